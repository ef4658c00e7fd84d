"""Stands for the shop's database: what happened, and to which order. Used by all processes.

Each call blocks for less than a millisecond. For a database elsewhere, async handlers would use an async driver."""

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = Path(os.environ.get("SHOP_LEDGER") or Path(tempfile.gettempdir()) / f"shop-{os.getuid()}.sqlite3")
SCHEMA = """
create table if not exists orders (id integer primary key, customer text);
create table if not exists events (number integer primary key, at real, order_id integer, what text);
"""


@contextmanager
def opened() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(FILE, timeout=10)
    try:
        connection.execute("pragma synchronous = off")
        connection.executescript(SCHEMA)
        with connection:
            yield connection
    finally:
        connection.close()


def new_order(customer: str) -> int:
    with opened() as db:
        number = db.execute("insert into orders (customer) values (?)", (customer,)).lastrowid
    assert number is not None
    return number


def note(what: str, order: int | None = None) -> None:
    with opened() as db:
        db.execute("insert into events (at, order_id, what) values (?, ?, ?)", (time.time(), order, what))


def events(order: int | None = None) -> list[str]:
    """What happened to an order, or in the whole shop, in order."""
    with opened() as db:
        found = db.execute("select what from events where ? is null or order_id = ? order by number", (order, order))
        return [what for (what,) in found]


def count(what: str) -> int:
    with opened() as db:
        number: int = db.execute("select count(*) from events where what = ?", (what,)).fetchone()[0]
    return number
