"""A saga: an order is charged and packed on any worker; if it cannot be shipped, everything before is undone.

No server needed: `python examples/workflows/order_saga.py`, or `pytest examples/workflows/order_saga.py`.
"""

import asyncio

from veredus import App, current
from veredus.errors import ChildFailed, StepFailed

app = App()
ledger: list[str] = []


async def charge(order: int) -> str:
    ledger.append(f"charged {order}, key {current().step_key.rpartition(':')[2]}")
    return f"receipt-{order}"


async def refund(receipt: str) -> None:
    ledger.append(f"refunded {receipt}")


@app.task
async def pack(part: str) -> str:
    ledger.append(f"packed {part}")
    return f"box of {part}"


@app.task
async def unpack(box: str) -> None:
    ledger.append(f"unpacked {box}")


async def ship(boxes: list[str]) -> str:
    if any("glass" in box for box in boxes):
        raise ValueError("the carrier takes no glass")
    return f"{len(boxes)} boxes shipped"


@app.task(timeout=60)
async def fulfil(order: int, parts: list[str]) -> str:
    job = current()
    try:
        receipt = await job.step(charge, order, retries=2)
    except StepFailed as failure:
        return f"not charged: {failure.text}"
    try:
        boxes = await job.gather("pack", [pack.call(part) for part in parts])
    except ChildFailed as failure:
        await job.step(refund, receipt)
        return f"not packed: {failure.error}"
    try:
        return await job.step(ship, boxes)
    except StepFailed as failure:  # undone in reverse order; each step once, also after a crash
        await job.gather("unpack", [unpack.call(box) for box in boxes])
        await job.step(refund, receipt)
        return f"not shipped: {failure.text}"


async def test_an_order_is_shipped_or_undone() -> None:
    ledger.clear()
    async with app.test() as q:
        shipped, undone = await fulfil.enqueue(1, ["lamp"]), await fulfil.enqueue(2, ["glass", "lamp"])
        await q.drain()
        assert await shipped.result() == "1 boxes shipped"
        assert await undone.result() == "not shipped: the carrier takes no glass"
    assert sorted(ledger) == [
        "charged 1, key charge",
        "charged 2, key charge",
        "packed glass",
        "packed lamp",
        "packed lamp",
        "refunded receipt-2",
        "unpacked box of glass",
        "unpacked box of lamp",
    ]


async def test_a_crash_anywhere_charges_and_refunds_once() -> None:
    for calls in range(1, 6):
        ledger.clear()
        async with app.test() as q:
            q.crash(after=calls)
            handle = await fulfil.enqueue(2, ["glass"])
            await q.run_all()
            assert await handle.result() == "not shipped: the carrier takes no glass"
        assert (ledger.count("charged 2, key charge"), ledger.count("refunded receipt-2")) == (1, 1), calls


async def main() -> None:
    async with app, app.worker():
        for order, parts in ((1, ["lamp", "desk"]), (2, ["glass"])):
            print(await (await fulfil.enqueue(order, parts)).result(timeout=30))
    print(*ledger, sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
