"""Reports: threads, because they block; at most two at once, because the app says so."""

from shop import ledger
from veredus import Router, current

router = Router(queue="reports", timeout=600)


@router.task(name="reports.export", retention=3600)
def export_orders(customer: str) -> int:
    lines = ledger.events()
    for number in range(1, 11):
        if current().cancelled:
            return 0
        current().progress_sync(number / 10, f"part {number}")
    return len(lines)


@router.task(name="reports.best", unique_for=600)
def best_customers(most: int = 10) -> list[str]:
    with ledger.opened() as db:
        found = db.execute("select customer from orders group by 1 order by count(*) desc limit ?", (most,))
        return [customer for (customer,) in found]


@router.cron("0 1 * * *", name="reports.sales", tz="Europe/Paris", missed="once")
def daily_sales() -> None:
    ledger.note("reported the sales")


@router.cron("@weekly", name="reports.value")
def stock_value() -> None:
    ledger.note("reported the value of the stock")


@router.cron("@hourly", name="reports.tidy", max_retry=0)
def tidy() -> None:
    with ledger.opened() as db:
        db.execute("delete from events where at < unixepoch() - 86400 * 90")
