"""Orders. Those of one customer are fulfilled one after the other."""

from dataclasses import dataclass

from shop import invoices, ledger, mail, payments, stock
from veredus import Router, current
from veredus.errors import ChildFailed

router = Router(queue="orders")

CENTS = 1250
TWO_WEEKS = 14 * 86400


@dataclass
class Order:
    id: int
    customer: str
    email: str
    product: str = "coffee"
    pieces: int = 1
    card: str = "4711"

    @property
    def cents(self) -> int:
        return self.pieces * CENTS


@router.task(name="orders.fulfil", order_key="customer:{order.customer}", retention=3600)
async def fulfil(order: Order) -> str:
    """A workflow in plain Python. Each `run` is a task of its own; while it waits for one, it uses no slot."""
    job = current()
    await job.run(mail.order_received.call(order.email, order.id))
    await job.progress(0.2, "received")
    await job.run(stock.reserve.call(order.product, order.pieces, order.id))
    await job.progress(0.4, "reserved")
    try:
        await job.run(payments.charge.call(order.id, order.card, order.cents))
    except ChildFailed as failure:
        await job.run(cancel.call(order, str(failure.error)))
        return "cancelled"
    await job.progress(0.6, "paid")
    document = await job.run(invoices.render.call(order.id, order.customer, order.cents))
    await job.run(mail.invoice.call(order.email, order.id, document))
    await job.progress(0.8, "invoiced")
    await job.run(ship.call(order))
    await job.progress(1.0, "shipped")
    return "shipped"


@router.task(name="orders.ship")
async def ship(order: Order) -> None:
    await current().run(stock.ship.call(order.id))
    await mail.shipped.enqueue(order.email, order.id)
    await mail.ask_for_review.using(delay=TWO_WEEKS, task_id=f"review-{order.id}").enqueue(order.email, order.id)


@router.task(name="orders.cancel")
async def cancel(order: Order, why: str) -> None:
    await current().run(stock.release.call(order.product, order.pieces, order.id))
    await mail.payment_failed.enqueue(order.email, order.id, why)
    ledger.note("cancelled", order.id)


@router.task(name="orders.send_back")
async def send_back(order: Order) -> None:
    await stock.receive.enqueue(order.product, order.pieces)
    await payments.refund.enqueue(order.id, order.cents)
    await invoices.credit_note.enqueue(order.id, order.cents)


@router.task(name="orders.change_address", order_key="customer:{customer}")
async def change_address(customer: str, order: int, address: str) -> None:
    ledger.note(f"goes to {address}", order)


@router.cron("*/10 * * * *", name="orders.expire")
async def expire_unpaid() -> None:
    ledger.note("looked for unpaid orders")
