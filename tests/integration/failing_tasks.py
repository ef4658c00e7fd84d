"""Tasks that end badly, on the loop, in threads and in processes: the last must be importable by a child."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from veredus import App, SkipRetry

app = App("redis://127.0.0.1:1")  # every test points it at its own server


class Unhappy(Exception):
    """An error of the app's own."""


async def coroutine() -> int:
    return 1


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def raise_unhappy() -> None:
    secret = "s3cret"
    raise Unhappy(f"order {len(secret)}")


def raise_chain() -> None:
    try:
        raise_unhappy()
    except Unhappy as exc:
        raise KeyError("outer") from exc


def raise_much() -> None:
    raise Unhappy("ü" * 10_000_000)


def raise_skip() -> None:
    raise SkipRetry("no use")


class Unwritable:
    pass


DEEDS: dict[str, Callable[[], Any]] = {
    "coroutine": coroutine,
    "coroutines": lambda: {"all": [coroutine(), coroutine()]},
    "generator": generator,
    "async generator": async_generator,
    "object": Unwritable,
    "key": lambda: {(1, 2): 3},
    "nan": lambda: float("nan"),
    "inf": lambda: {"list": [1.5, None, float("-inf")]},
    "deep": lambda: nested(2000),
    "surrogate": lambda: "a\ud800b",
    "unhappy": raise_unhappy,
    "chain": raise_chain,
    "much": raise_much,
    "skip": raise_skip,
}


@app.task(name="loop")
async def on_loop(deed: str) -> Any:
    await asyncio.sleep(0)
    return DEEDS[deed]()


@app.task(name="thread")
def in_thread(deed: str) -> Any:
    return DEEDS[deed]()


@app.task(name="process", run_in="process")
def in_process(deed: str) -> Any:
    return DEEDS[deed]()


TASKS: dict[str, Any] = {"loop": on_loop, "thread": in_thread, "process": in_process}
