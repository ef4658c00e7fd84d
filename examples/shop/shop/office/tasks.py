"""Django's own tasks."""

from shop import ledger, stock

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task(queue_name="office")
def close_day(day: str) -> str:
    ledger.note(f"closed {day}")
    return f"{day} is closed"


@task(queue_name="office", priority=10)
def import_prices(prices: dict[str, int]) -> int:
    for product in prices:
        stock.recount.enqueue_sync(product, "new price")
    return len(prices)
