"""Tasks as Django users write them."""

from __future__ import annotations

from typing import Any

from django.db import connection

from veredus.contrib.django.framework import tasks

ran: list[Any] = []


@tasks.task
def add(a: int, b: int = 0) -> int:
    ran.append((a, b))
    return a + b


@tasks.task(queue_name="mail")
async def add_later(a: int) -> dict[str, int]:
    ran.append(a)
    return {"sum": a + 1}


@tasks.task
def fail(text: str) -> None:
    raise ValueError(text)


@tasks.task
async def fail_async(text: str) -> None:
    raise ValueError(text)


@tasks.task(takes_context=True)
def attempts(context: Any, until: int) -> int:
    if context.attempt < until:
        raise OSError("again")
    return context.attempt


@tasks.task
def no_json() -> object:
    return object()


@tasks.task
def asks_database() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 41 + 1")
        return cursor.fetchone()[0]


def plain() -> None:
    """No task at all."""
