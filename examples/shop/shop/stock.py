"""The warehouse."""

from shop import ledger
from veredus import Router

router = Router(queue="stock")


@router.task(name="stock.reserve", order_key="product:{product}")
async def reserve(product: str, pieces: int, order: int) -> None:
    """One at a time for each product: nobody sells the last piece twice."""
    ledger.note(f"reserved {pieces} {product}", order)


@router.task(name="stock.release", order_key="product:{product}")
async def release(product: str, pieces: int, order: int) -> None:
    ledger.note(f"released {pieces} {product}", order)


@router.task(name="stock.ship")
async def ship(order: int) -> str:
    ledger.note("shipped", order)
    return f"parcel-{order}"


@router.task(name="stock.receive", order_key="product:{product}")
async def receive(product: str, pieces: int) -> None:
    ledger.note(f"received {pieces} {product}")


@router.task(name="stock.recount", delay=3, unique_for=3600, unique_key="{product}")
async def recount(product: str, reason: str) -> None:
    """Once, however many people ask for it, and whatever their reasons are."""
    ledger.note(f"recounted {product}: {reason}")


@router.task(name="stock.reorder", unique_for=3600, unique_key="{product}")
async def reorder(product: str, pieces: int) -> None:
    ledger.note(f"reordered {pieces} {product}")


@router.task(name="stock.move")
async def move(product: str, pieces: int, shelf: str) -> None:
    ledger.note(f"moved {pieces} {product} to {shelf}")


@router.cron("@every 1s", name="stock.sync", unique_for=60)
async def sync_warehouse() -> None:
    """The next tick is left out while this one runs."""
    ledger.note("synchronized the warehouse")


@router.cron("0 6 * * mon-fri", tz="Europe/Paris", name="stock.low")
async def look_for_low_stock() -> None:
    await reorder.enqueue("coffee", 100)
