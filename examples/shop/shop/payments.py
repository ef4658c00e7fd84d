"""Payments: some errors are tried again, others are final."""

from shop import ledger, outside
from veredus import Retry, Router, current

router = Router(queue="payments", retry_on=outside.Unavailable, max_retry=8)


@router.task(name="payments.check")
async def check_for_fraud(customer: str, cents: int) -> bool:
    return cents < 1_000_000


@router.task(name="payments.charge", no_retry_on=outside.CardDeclined)
async def charge(order: int, card: str, cents: int) -> str:
    """`current().id` is the same in all attempts: the bank's idempotency key."""
    receipt = await outside.charge_card(order, card, cents)
    ledger.note(f"charged {cents} cents at attempt {current().attempt}", order)
    return receipt


@router.task(name="payments.refund")
async def refund(order: int, cents: int) -> None:
    ledger.note(f"refunded {cents} cents", order)


@router.task(name="payments.transfer", max_retry=0)
async def wait_for_transfer(order: int) -> None:
    """Asks again and again; an attempt that finds nothing is no failure."""
    asked = ledger.count(f"no transfer for order {order} yet")
    if asked < 2:
        ledger.note(f"no transfer for order {order} yet", order)
        raise Retry("no transfer yet", after=0.05, counts=False)
    ledger.note("paid by transfer", order)


@router.task(name="payments.payout", order_key="seller:{seller}", order_hold=True)
async def pay_out(seller: str, cents: int) -> None:
    """If one fails for good, the seller's next ones wait until an operator has looked at it."""
    ledger.note(f"paid {cents} cents to {seller}")


@router.cron("30 2 * * *", name="payments.reconcile", missed="once")
async def reconcile() -> None:
    ledger.note("reconciled the payments")
