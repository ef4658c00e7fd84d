"""Arbitrary bytes wherever a task can stand: good tasks run beside them, each bad one is told once and can be shown."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.foreign.readers import ask_dashboard, ask_inspector
from tests.foreign.support import FAST, Notes
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App
from veredus.wire import keys
from veredus.wire.schema import message_class

FULL = os.environ.get("VEREDUS_TEST_FULL") == "1"
EXAMPLES = settings(
    max_examples=300 if FULL else 6,
    derandomize=not FULL,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # an example takes too long to be shrunk
    suppress_health_check=list(HealthCheck),
)
QUEUE = "default"
STATES = ("pending", "active", "scheduled", "retry", "archived", "completed", "aggregating", "bad", "")
CONTAINERS = ("pending", "active", "lease", "scheduled", "retry", "archived", "completed", "due", "g:g")
NUMBERS = st.sampled_from(["inf", "-inf", "0", "-1", "0.5", "1e300", str(2**63 - 1), str(-(2**63)), "1700000000"])
IDS = st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from([b"same", b"a:b", b"{x}", b" ", b"%s\n", b"\xff"]))


class Item(NamedTuple):
    """One thing that another program left."""

    task_id: bytes
    fields: dict[bytes, bytes] | None
    """None for a dangling id."""
    places: tuple[tuple[str, str], ...]
    """Containers, with the score in those that are sorted."""


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Valid ones that disagree with their place, cut ones, and any bytes."""
    fields: dict[str, Any] = {
        "type": draw(st.sampled_from(["note", "unknown", ""])),
        "payload": draw(st.binary(max_size=8)),
        "id": draw(st.sampled_from(["other", "", "same"])),
        "queue": draw(st.sampled_from(["default", "another", ""])),
        "retry": draw(st.sampled_from([0, -1, 3, 2**31 - 1])),
        "deadline": draw(st.sampled_from([0, -(2**63), 2**63 - 1])),
        "timeout": draw(st.sampled_from([0, 30, 2**63 - 1])),
        "unique_key": draw(st.sampled_from(["", "asynq:{default}:unique:x:", "a key of somebody else"])),
        "group_key": draw(st.sampled_from(["", "g"])),
    }
    data: bytes = message_class("TaskMessage")(**fields).SerializeToString()
    cut = draw(st.integers(0, len(data)))
    return draw(st.sampled_from([data, data[:cut], data + b"\xff", b""]) | st.binary(max_size=20))


FIELDS = (
    "pending_since held result unique_key order_key limit_key limited_by expires_at losses deferrals progress cancel "
    "traceback waited slots group"
)
OTHER_FIELDS = st.dictionaries(
    st.sampled_from([*FIELDS.encode().split(), b"\xff"]),
    st.one_of(NUMBERS.map(str.encode), st.binary(max_size=10)),
    max_size=4,
)


@st.composite
def items(draw: st.DrawFn) -> Item:
    task_id = draw(IDS)
    fields: dict[bytes, bytes] | None = None
    if draw(st.integers(0, 5)):
        fields = dict(draw(OTHER_FIELDS))
        if draw(st.integers(0, 5)):
            fields[b"msg"] = draw(messages())
        fields[b"state"] = draw(st.sampled_from(STATES)).encode()
    places = draw(st.lists(st.tuples(st.sampled_from(CONTAINERS), NUMBERS), min_size=1, max_size=3))
    return Item(task_id, fields, tuple(places))


def _plant(client: Any, found: list[Item]) -> None:
    client.sadd(keys.QUEUES, QUEUE, b"\xff queue", "")
    client.sadd(keys.groups(QUEUE), "g", b"\xff")
    for item in found:
        key = keys.task_prefix(QUEUE).encode() + item.task_id
        if item.fields:
            client.hset(key, mapping=item.fields)
        for name, score in item.places:
            container = keys.queue_prefix(QUEUE) + name
            if name in ("pending", "active"):
                client.lpush(container, item.task_id)
            else:
                client.zadd(container, {item.task_id: score})


async def _work(url: str, found: list[Item], server: RealServer) -> None:
    app, ran = App(url), list[int]()

    @app.task(name="good", max_retry=0)
    async def good(n: int) -> None:
        ran.append(n)

    @app.task(name="note", max_retry=0)
    async def note() -> None: ...

    @app.aggregate("g", grace=1, max_size=2)
    async def aggregate(group: str, members: list[bytes]) -> None: ...

    try:
        with server.client() as client:
            _plant(client, found)
        await ask_inspector(app, [QUEUE])
        with Notes() as notes:
            worker = app.worker(**FAST)
            async with worker:
                await good.enqueue(1)
                await good.using(delay=0.05).enqueue(2)
                await until(lambda: {1, 2} <= set(ran), what="the good tasks")
                await good.enqueue(3)
                await until(lambda: 3 in ran)
                restarts = dict(worker.signs.restarts)
        assert restarts == {}, notes.unexpected()
        removed = Counter(record.getMessage() for record in notes.records if "was removed" in record.getMessage())
        assert all(count == 1 for count in removed.values()), removed
        await ask_inspector(app, [QUEUE])
        await ask_dashboard(app, [QUEUE])
    finally:
        await app.close()


@EXAMPLES
@given(found=st.lists(items(), min_size=1, max_size=12))
def test_whatever_stands_in_a_queue_good_tasks_run(valkey_server: RealServer, found: list[Item]) -> None:
    valkey_server.flush()
    asyncio.run(_work(valkey_server.url, found, valkey_server))


@settings(EXAMPLES, max_examples=200 if FULL else 3)
@given(messages=st.lists(st.one_of(st.binary(max_size=40), IDS, NUMBERS.map(str.encode)), min_size=1, max_size=20))
def test_whatever_is_published_nobody_stops_listening(valkey_server: RealServer, messages: list[bytes]) -> None:
    """On every channel that a worker, a waiting producer or a gateway listens to."""
    valkey_server.flush()

    async def run() -> None:
        from tests.gateway.support import JsonClient, gateway
        from veredus.wire import session_keys

        async with App(valkey_server.url) as app:

            @app.task(name="good")
            async def good(n: int) -> int:
                return n

            worker, gw = app.worker(**FAST), gateway(app)
            async with worker, gw:
                waiting = asyncio.create_task((await good.using(delay=0.3).enqueue(5)).result(timeout=20))
                await asyncio.sleep(0)
                with valkey_server.client() as client:
                    channels = [keys.CANCEL_CHANNEL, keys.delay_wakeup(QUEUE), session_keys.hints(gw.node)]
                    channels += [name.decode() for name in client.pubsub_channels("*:ends:*")]
                    for channel in channels:
                        for message in messages:
                            client.publish(channel, message)
                assert await waiting == 5
                peer = await JsonClient.open(gw)
                await app.push({"hello": 1}, session=peer.sid)
                assert len(await peer.take(1)) == 1
                await peer.close()
                assert (worker.signs.restarts, gw.figures()["restarts"]) == ({}, {})

    asyncio.run(run())


pytestmark = [
    pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning"),
    pytest.mark.timeout(1200 if FULL else 120),
]
