"""Payloads on arrival: what fits reaches the handler as the right types, what does not is retried with a reason."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic
import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, Job

pytestmark = VALKEY_ONLY


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Address:
    street: str
    tags: list[str] = field(default_factory=list)


class Point(msgspec.Struct):
    x: int
    y: int = 0


class User(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"user_id": "x"}, "user_id"),
        ({}, "user_id"),
        ({"user_id": 1.5}, "Expected `int`, got `float` - at `$.user_id`"),
        ({"user_id": 1, "lang": 2}, "lang"),
        ([1], "object"),
        (b"{not json", "payload does not fit"),
        (b"\xff\xfe", "payload does not fit"),
        (None, "user_id"),
        (b"null", "object"),
        (b"[" * 100_000, "payload does not fit"),
    ],
    ids=["wrong type", "missing", "fraction", "wrong", "a list", "no json", "binary", "nothing", "null itself", "deep"],
)
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_payload_that_does_not_fit_is_retried_and_archived_when_its_retries_are_used_up(
    app: App, look: Look, payload: Any, reason: str, where: str
) -> None:
    ran: list[Any] = []

    async def on_loop(user_id: int, lang: str = "en") -> None:
        ran.append(user_id)

    def in_thread(user_id: int, lang: str = "en") -> None:
        ran.append(user_id)

    app.task(name="t", check_arguments=False, retry_delay=0.01)(on_loop if where == "loop" else in_thread)
    async with app.worker(**FAST):
        handle = await app.enqueue("t", payload, max_retry=2)
        message = await look.ends(handle.id, "archived")
    assert message is not None
    assert reason in message.error_msg
    assert message.retried == 2
    assert ran == []
    assert await look.counters() == (3, 3)


async def test_a_misfit_waits_in_retry_for_a_worker_that_can_read_it(url: str, look: Look) -> None:
    """What a deployment looks like: the new field is required, and the old worker is still there."""
    old, new = App(url), App(url)
    got: list[str] = []

    @old.task(name="t", retry_delay=0.05)
    async def before(name: int) -> None: ...

    @new.task(name="t")
    async def after(name: str) -> None:
        got.append(name)

    handle = await old.enqueue("t", b'{"name": "Ann"}')
    async with old.worker(**FAST):
        message = await look.ends(handle.id, "retry")
        assert message is not None
        assert message.error_msg == ("PayloadError: payload does not fit: Expected `int`, got `str` - at `$.name`")
    async with new.worker(**FAST):
        await until(lambda: got == ["Ann"])
    await old.close()
    await new.close()


async def test_added_fields_nulls_and_whole_floats_of_go_reach_the_handler(app: App, look: Look) -> None:
    @app.task(name="t")
    async def t(user_id: int, tags: list[str], address: Address, lang: str = "en") -> list[Any]:
        return [user_id, tags, address.street, address.tags, lang]

    @app.task(name="strict", strict=True, max_retry=0)
    async def strict(user_id: int) -> None: ...

    sent = b'{"user_id":1e+06,"tags":null,"lang":null,"address":{"street":"a","tags":null,"no":3},"added":[]}'
    async with app.worker(**FAST):
        handle = await app.enqueue("t", sent)
        assert await handle.result(timeout=30) == [1_000_000, [], "a", [], "en"]
        refused = await app.enqueue("strict", b'{"user_id":1,"added":2}')
        message = await look.ends(refused.id, "archived")
    assert message is not None
    assert "Object contains unknown field `added`" in message.error_msg


async def test_arguments_arrive_as_their_types(app: App, look: Look) -> None:
    got: list[Any] = []
    now = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    key = uuid.uuid4()

    @app.task
    async def typed(
        when: dt.datetime,
        key: uuid.UUID,
        colour: Colour,
        address: Address,
        point: Point,
        user: User,
        gap: dt.timedelta = dt.timedelta(0),
        numbers: tuple[int, ...] = (),
        note: str | None = "default",
        *,
        keyword: bool = False,
    ) -> None:
        got.append((when, key, colour, address, point, user, gap, numbers, note, keyword))

    async with app.worker(**FAST):
        handle = await typed.enqueue(
            now,
            key,
            Colour.RED,
            Address("Main", ["a"]),
            Point(1, 2),
            User(name="Ann", age=3),
            keyword=True,
            note=None,
            numbers=(1, 2),
        )
        await look.ends(handle.id, "gone")
    assert got == [
        (
            now,
            key,
            Colour.RED,
            Address("Main", ["a"]),
            Point(1, 2),
            User(name="Ann", age=3),
            dt.timedelta(0),
            (1, 2),
            None,
            True,
        )
    ]


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (Address, Address("Main"), b'{"street":"Main","tags":[]}'),
        (Point, Point(1), b'{"x":1,"y":0}'),
        (User, User(name="Ann", age=3), b'{"name":"Ann","age":3}'),
    ],
)
async def test_a_single_object_is_the_payload_itself(
    app: App, look: Look, kind: Any, value: Any, stored: bytes
) -> None:
    got: list[Any] = []

    async def handle(thing: Any) -> None:
        got.append(thing)

    handle.__annotations__["thing"] = kind
    task: Any = app.task(name="t")(handle)
    sent = await task.enqueue(value)
    assert (await look.message(sent.id)).payload == stored
    async with app.worker(**FAST):
        await until(lambda: got == [value])
        bad = await app.enqueue("t", b'{"nothing":"fits"}', max_retry=0)
        await look.ends(bad.id, "archived")


async def test_a_pydantic_model_that_refuses_archives(app: App, look: Look) -> None:
    @app.task(name="t", check_arguments=False)
    async def handle(user: User) -> None: ...

    async with app.worker(**FAST):
        sent = await app.enqueue("t", {"name": "Ann", "age": -1}, max_retry=0)
        message = await look.ends(sent.id, "archived")
    assert message is not None
    assert "greater than or equal to 0" in message.error_msg


async def test_raw_bytes_and_jobs_are_not_decoded(app: App, look: Look) -> None:
    got: list[Any] = []

    @app.task(name="raw", payload="raw")
    async def raw(data: bytes) -> None:
        got.append(data)

    @app.task(name="job")
    async def job(job: Job) -> None:
        got.append(job.payload)

    async with app.worker(**FAST):
        await raw.enqueue(b"{not json")
        await app.enqueue("job", b"\xff")
        await until(lambda: sorted(got) == [b"\xff", b"{not json"][::-1] or len(got) == 2)
    assert sorted(got) == sorted([b"{not json", b"\xff"])


async def test_a_payload_error_of_another_task_is_an_ordinary_failure(app: App, look: Look) -> None:
    @app.task(name="inner")
    async def inner(n: int) -> None: ...

    @app.task(name="outer")
    async def outer() -> None:
        await inner.enqueue("x", "y")  # type: ignore[call-arg, arg-type]

    async with app.worker(**FAST):
        handle = await outer.enqueue()
        message = await look.ends(handle.id, "retry")
    assert message is not None
    assert "positional arguments" in message.error_msg
