"""Tasks whose attempts end in every way there is: those in processes must be importable by a child."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pydantic

from veredus import App, current

app = App("redis://127.0.0.1:1")  # every test points it at its own server


def fail(how: str) -> Any:
    current().log(f"about to {how}")
    if how == "raise":
        raise ValueError("no card 4242")
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        threading.Event().wait()
    return how


@app.task(name="loop", max_retry=0)
async def on_loop(how: str) -> Any:
    if how == "hang":
        current().log("about to hang")
        await asyncio.Event().wait()
    return fail(how)


@app.task(name="thread", max_retry=0)
def in_thread(how: str) -> Any:
    return fail(how)


@app.task(name="process", run_in="process", max_retry=0)
def in_process(how: str) -> Any:
    return fail(how)


@app.task(name="flaky", max_retry=20, retry_delay=0, retention=600)
async def flaky(failures: int) -> str:
    if current().attempt <= failures:
        raise KeyError(current().attempt)
    return "at last"


class Card(pydantic.BaseModel):
    number: int


@app.task(name="model_loop", max_retry=0)
async def model_loop(card: Card) -> None: ...


@app.task(name="model_thread", max_retry=0, run_in="thread")
def model_thread(card: Card) -> None: ...


@app.task(name="model_process", max_retry=0, run_in="process")
def model_process(card: Card) -> None: ...


MODELS: dict[str, Any] = {"loop": model_loop, "thread": model_thread, "process": model_process}
TASKS: dict[str, Any] = {"loop": on_loop, "thread": in_thread, "process": in_process}
