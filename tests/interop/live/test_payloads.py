"""What encoding/json of a Go service writes, read by the signature of a Python handler."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.integration.support import FAST, Look
from tests.interop.live.peer import go_peer
from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App

pytestmark = VALKEY_ONLY


class Line(msgspec.Struct):
    sku: str
    count: int
    notes: list[str]
    extra: dict[str, int] = msgspec.field(default_factory=lambda: {"default": 1})


@dataclass
class Order:
    id: int
    tags: list[str]
    ports: dict[str, int] = field(default_factory=lambda: {"default": 1})
    note: str | None = "default"
    lines: tuple[Line, ...] = ()
    bulk: dict[str, Line] = field(default_factory=dict)


READ = {
    "plain": Order(7, ["a"], {"x": 1}, None, (Line("s", 2, ["n"]),)),
    "nils": Order(7, [], note=None),
    "nil lines": Order(7, [], note=None, lines=(Line("s", 2, []),), bulk={"b": Line("t", 3, [])}),
    "floats": Order(1_000_000, [], note=None, lines=(Line("s", 1_000_000, []), Line("t", 10**21, []))),
}
MISFITS = {
    "fraction": "Expected `int`, got `float` - at `$.id`",
    "fraction deep": "Expected `int`, got `float` - at `$.lines[0].count`",
    "missing": "Object missing required field `id`",
    "nil id": "Expected `int`, got `null` - at `$.id`",
    "text": "Expected `int`, got `str` - at `$.id`",
    "added": "Object missing required field `notes` - at `$.lines[0]`",
}


async def test_structs_with_added_fields_nils_and_floats_reach_python_handlers_and_misfits_are_retried(
    program: Path, url: str, redis_client: Any
) -> None:
    """unreadable-payload."""
    app, look = App(url), Look(redis_client, "shared")
    got: dict[str, Any] = {}

    @app.handler("order", queue="shared")
    async def one(order: Order) -> None:
        got["object"] = order

    @app.handler("arguments", queue="shared")
    async def arguments(id: int, tags: list[str], lines: list[dict[str, Any]], note: str = "default") -> None:
        got["arguments"] = (id, tags, lines, note)

    @app.handler("strict", queue="shared", strict=True)
    async def strict(id: int, tags: list[str], ports: dict[str, int], note: str | None, lines: Any, bulk: Any) -> None:
        got["strict"] = id

    @app.handler("optional", queue="shared")
    async def optional(id: int = 3) -> None:
        got["optional"] = id

    async with app, go_peer(program, url) as peer, app.worker("shared", **FAST):
        for name, order in READ.items():
            got.clear()
            await peer.send_struct(name, "order", queue="shared")
            await until(lambda expected=order: got.get("object") == expected)
        await peer.send_struct("added", "arguments", queue="shared")
        await until(lambda: got.get("arguments") == (7, [], [{"sku": "s", "count": 1, "colour": "red"}], "default"))
        for nothing in ("nothing", "missing"):
            got.clear()
            await peer.send_struct(nothing, "optional", queue="shared")
            await until(lambda: got.get("optional") == 3)
        misfits = {name: await peer.send_struct(name, "order", queue="shared") for name in MISFITS}
        refused = [await peer.send_struct(name, "strict", queue="shared") for name in ("nils", "floats", "added")]
        for name, says in MISFITS.items():
            message = await look.ends(misfits[name], "retry")
            assert message is not None
            assert (message.error_msg, message.retried) == (f"PayloadError: payload does not fit: {says}", 1)
            assert (await peer.task("shared", misfits[name]))["error"] == message.error_msg
        for task_id in refused:
            await look.ends(task_id, "retry")
        last = await peer.send_struct("fraction", "order", queue="shared", max_retry=0)
        await look.ends(last, "archived")
        await peer.do("run", queue="shared", id=last)
        await until(lambda: _failed_again(look, last))
    assert "strict" not in got
    assert await check_invariant(redis_client) == []


async def test_go_gets_what_python_sends(program: Path, url: str, redis_client: Any) -> None:
    app = App(url)

    @app.task(name="go:greet", queue="for-go")
    async def greet(user_id: int, lang: str = "en") -> None: ...

    @app.task(name="go:struct", queue="for-go", max_retry=0)
    async def struct(behave: str, ms: int = 0) -> None: ...

    async with app, go_peer(program, url) as peer:
        await greet.enqueue(7, lang="zh")
        await app.enqueue("go:value", {"list": [1, None], "text": "漢字"}, queue="for-go")
        await app.enqueue("go:bytes", b"\x00\xff", queue="for-go")
        await app.enqueue("go:none", None, queue="for-go")
        await app.produce("go-topic", {"n": 1})
        await struct.enqueue("fail")
        await peer.serve("go:", "go-topic", queues={"for-go": 1, "go-topic": 1})
        await until(lambda: len(peer.ran) == 6)
    assert {ran["type"]: ran["payload"] for ran in peer.ran} == {
        "go:greet": b'{"user_id":7,"lang":"zh"}',
        "go:value": '{"list":[1,null],"text":"漢字"}'.encode(),
        "go:bytes": b"\x00\xff",
        "go:none": b"",
        "go-topic": b'{"n":1}',
        "go:struct": b'{"behave":"fail"}',
    }
    assert [ran.get("failed") for ran in peer.ran if ran["type"] == "go:struct"] == ["told to fail"], "it was decoded"
    assert await check_invariant(redis_client) == []


async def _failed_again(look: Look, task_id: str) -> bool:
    return await look.state(task_id) == "archived" and await look.client.get("asynq:{shared}:failed") == b"11"
