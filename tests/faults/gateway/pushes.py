"""What producers send to clients. A push that returned is delivered once; one that raised, at most once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tests.faults.expectations import in_steps
from tests.faults.gateway.stage import ANNOUNCE, GatewayStage, on_gateway
from tests.faults.scenario import Answer, Expect, Scenario, Site
from tests.faults.stage import Scene
from tests.support.faults import MAX_CLIENTS, OOM, REPLY_LATE, SILENT, STANDSTILLS, Fault
from tests.support.waiting import until

On = Callable[[GatewayStage], Awaitable[object]]


def pushed(site: Site, fault: Fault) -> Expect:
    """A server that is not ready is asked again. After a lost connection nobody knows what has happened, so a push
    without a key is not sent again."""
    if fault is OOM:
        return Expect.TOLD
    if fault.is_error:
        return Expect.DONE
    return Expect.UNKNOWN if fault.executed or fault in STANDSTILLS else Expect.TOLD


def keyed(site: Site, fault: Fault) -> Expect:
    """With a key it is sent again until it is known to be there."""
    return Expect.TOLD if fault is OOM else Expect.DONE


def spread(site: Site, fault: Fault) -> Expect:
    """One call for each part of the members: those that have it do not get it again. The question where they are is
    asked again on a fresh connection, and one that the server has no room for is waited for."""
    expected = pushed(site, fault)
    if site.label == "smembers" and fault is MAX_CLIENTS:
        return Expect.DONE
    if site.label == "smembers" and fault.breaks:
        return Expect.DONE if fault not in (SILENT, REPLY_LATE, *STANDSTILLS) else Expect.EITHER  # it only reads
    return expected if expected is Expect.DONE or site.label == "smembers" else Expect.ONCE


def to_nobody(site: Site, fault: Fault) -> Expect:
    """What follows the last message is only tidied up."""
    return spread(site, fault) if site.label in ("smembers", "outbox-spread") else Expect.DONE


def spread_keyed(site: Site, fault: Fault) -> Expect:
    expected = keyed(site, fault)
    return Expect.PARTLY if expected is Expect.TOLD and site.label == "outbox-spread" else expected


def _push(
    name: str,
    calls: tuple[str, ...],
    act: On,
    before: Scene,
    after: Scene,
    expect: Answer = pushed,
    users: tuple[str, ...] = ("ada",),
    prepare: On | None = None,
    **more: Any,
) -> Scenario:
    async def opened(stage: GatewayStage) -> None:
        await stage.open(*users)
        await stage.app.presence("nobody")  # it is connected
        stage.proxy.calls.clear()
        if prepare is not None:
            await prepare(stage)

    return Scenario(
        f"push-{name}",
        calls,
        on_gateway(act),
        after,
        expect,
        on_gateway(opened),
        before,
        stage=GatewayStage,
        more_faults=STANDSTILLS,
        **more,
    )


def _to(target: str, **how: Any) -> On:
    async def act(stage: GatewayStage) -> None:
        value: Any = {"session": stage.ada.sid, "everyone": True, "users": ["ada", "bob"]}.get(target)
        await stage.app.push("hi", **{target: value, **how})

    return act


async def _to_many(stage: GatewayStage) -> None:
    """More than one call takes, so one of them may fail alone."""
    await stage.app.push("hi", users=["ada", *(f"user{n}" for n in range(300)), "bob"])


def _seen(*messages: str, **others: tuple[str, ...]) -> Scene:
    return Scene(more={"ada": messages, **others})


async def _answered(stage: GatewayStage) -> None:
    await stage.ask(1, "here", "x")
    stage.proxy.calls.clear()


async def _asks(stage: GatewayStage) -> None:
    await stage.ask(1, "here", "x")


async def _bob_comes(stage: GatewayStage) -> None:
    bob = await stage.connect("bob")
    await until(bob.has(lambda: bob.messages))


async def _in_a_room(stage: GatewayStage) -> None:
    for client in stage.clients.values():
        await stage.direct.join(client.sid, "room")


async def _in_no_room(stage: GatewayStage) -> None:
    await _in_a_room(stage)
    await stage.direct.leave(stage.ada.sid, "room")


async def _groups(stage: GatewayStage) -> tuple[str, ...]:
    row = await stage.row()
    return row.groups if row is not None else ()


async def _noting_groups(stage: GatewayStage) -> None:
    stage.notes["groups"] = lambda: _groups(stage)


async def _noting_a_room(stage: GatewayStage) -> None:
    await _noting_groups(stage)
    await _in_a_room(stage)


async def _joins(stage: GatewayStage) -> None:
    await stage.app.join(stage.ada.sid, "room")


async def _leaves(stage: GatewayStage) -> None:
    await stage.app.leave(stage.ada.sid, "room")


_NOBODY, _BOTH = _seen(bob=()), _seen("hi", bob=("hi",))
_PARTS = (_seen("hi", bob=()), _seen(bob=("hi",)))
_X = {"x": (1,)}


def _answered_and(*messages: str) -> Scene:
    return Scene(_X, more={"ada": messages})


def _member(*groups: str) -> Scene:
    return Scene(more={"ada": (), "groups": groups})


PUSHES: list[Scenario] = [
    _push("session", ("outbox-append",), _to("session"), _seen(), _seen("hi")),
    _push("keyed", ("outbox-append",), _to("session", dedupe_key="k"), _seen(), _seen("hi"), keyed),
    _push("user", ("outbox-post",), _to("user", user="ada"), _seen(), _seen("hi")),
    _push("users", ("outbox-post",), _to("users"), _NOBODY, _BOTH, users=("ada", "bob")),
    _push(
        "many-users",
        ("outbox-post", "outbox-post"),
        _to_many,
        _NOBODY,
        _BOTH,
        spread,
        users=("ada", "bob"),
        between=_PARTS,
    ),
    _push(
        "absent-user",
        ("outbox-post",),
        _to("user", user="bob", wait=60, dedupe_key="k"),
        _seen(),
        _seen(bob=("hi",)),
        keyed,
        finish=on_gateway(_bob_comes),
    ),
    _push(
        "group",
        ("smembers", "outbox-spread", "outbox-spread"),
        _to("group", group="room"),
        _NOBODY,
        _BOTH,
        spread,
        users=("ada", "bob"),
        prepare=_in_a_room,
        between=_PARTS,
    ),
    _push(
        "group-keyed",
        ("smembers", "outbox-spread", "outbox-spread"),
        _to("group", group="room", dedupe_key="k"),
        _NOBODY,
        _BOTH,
        spread_keyed,
        users=("ada", "bob"),
        prepare=_in_a_room,
        between=_PARTS,
    ),
    _push(
        "empty-group",
        ("smembers", "outbox-spread", "srem", "exists", "zrem"),
        _to("group", group="room"),
        _seen(),
        _seen(),
        to_nobody,
        prepare=_in_no_room,
    ),
    _push(
        "everyone",
        ("outbox-spread",),
        _to("everyone", dedupe_key="k"),
        _NOBODY,
        _BOTH,
        spread_keyed,
        users=("ada", "bob"),
        between=_PARTS,
        in_order=False,
    ),
    _push(
        "before",
        ("outbox-bind",),
        _to("session", bind=(1, "before"), dedupe_key="k"),
        _seen(),
        _answered_and("hi", "1: x"),
        keyed,
        finish=on_gateway(_asks),
    ),
    _push(
        "after-the-answer",
        ("outbox-bind",),
        _to("session", bind=(1, "after")),
        _answered_and("1: x"),
        _answered_and("1: x", "hi"),
        prepare=_answered,
    ),
    _push(
        "too-late",
        ("outbox-bind",),
        _to("session", bind=(1, "before")),
        _answered_and("1: x"),
        _answered_and("1: x", "late hi"),
        prepare=_answered,
    ),
    replace(
        _push(
            "x",
            (*ANNOUNCE, "session-join", "sadd"),
            _joins,
            _member(),
            _member("room"),
            in_steps,
            prepare=_noting_groups,
        ),
        name="app-join",
    ),
    replace(
        _push(
            "x",
            ("session-leave",),
            _leaves,
            _member("room"),
            _member(),
            in_steps,
            prepare=_noting_a_room,
        ),
        name="app-leave",
    ),
]
