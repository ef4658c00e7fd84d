"""Mails. No provider gets more than two at once, whatever the number of workers and kinds of mail."""

from shop import outside
from shop.app import app  # for what belongs to the whole app; the app imports this module only when it is needed
from veredus import Call, Job, Limit, Router

router = Router(
    queue="mail",
    limit_key=lambda address: address.rpartition("@")[2],
    limit=Limit(concurrency=2, per="key"),
    retry_on=outside.Unavailable,
)


@router.task(name="mail.order_received")
async def order_received(address: str, order: int) -> None:
    await outside.send_mail(address, f"we have order {order}", order)


@router.task(name="mail.payment_failed")
async def payment_failed(address: str, order: int, why: str) -> None:
    await outside.send_mail(address, f"order {order} is cancelled: {why}", order)


@router.task(name="mail.invoice")
async def invoice(address: str, order: int, document: str) -> None:
    await outside.send_mail(address, f"your invoice, {len(document)} characters", order)


@router.task(name="mail.shipped")
async def shipped(address: str, order: int) -> None:
    await outside.send_mail(address, f"order {order} is on its way", order)


@router.task(name="mail.review")
async def ask_for_review(address: str, order: int) -> None:
    """Sent with a delay of two weeks."""
    await outside.send_mail(address, f"how do you like order {order}?", order)


@router.task(name="mail.welcome", unique_for=86400, unique_key="{address}")
async def welcome(address: str, name: str) -> None:
    await outside.send_mail(address, f"welcome {name}")


@router.task(name="mail.password", expires=900)
async def password_link(address: str) -> None:
    """Nobody wants an old one."""
    await outside.send_mail(address, "your new password")


@router.task(name="mail.newsletter")
async def newsletter(address: str, issue: int) -> None:
    await outside.send_mail(address, f"newsletter {issue}")


@router.task(name="mail.newsletters", limit_key=None)
async def send_newsletters(issue: int, addresses: list[str]) -> int:
    handles = await app.enqueue_many(newsletter.call(address, issue) for address in addresses)
    return len(handles)


@router.task(name="mail.digest")
async def digest(address: str, lines: list[str]) -> None:
    await outside.send_mail(address, f"{len(lines)} things happened")


@router.task(name="mail.line", limit_key=None)
async def line(text: str) -> None:
    """Never runs by itself: `line.using(group="digest:ada@example.org")` waits for the others of its group."""


@app.aggregate("digest:*", queue="mail", grace=60, max_delay=600, max_size=50)
def lines_of_a_digest(group: str, jobs: list[Job]) -> Call[None]:
    return digest.call(group.removeprefix("digest:"), [job.json()["text"] for job in jobs])
