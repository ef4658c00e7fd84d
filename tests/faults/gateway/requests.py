"""What clients do: they come and come back, ask, cancel, acknowledge, join groups, leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.faults.expectations import always_done
from tests.faults.gateway.stage import ANNOUNCE, GatewayStage, on_gateway, summaries
from tests.faults.scenario import Scenario
from tests.faults.stage import Scene
from tests.support.faults import STANDSTILLS
from tests.support.waiting import until
from veredus.wire import session_keys

On = Callable[[GatewayStage], Awaitable[object]]
_COMPLETED = {"x": ("completed", 0)}
BIG = "x" * 5000
"""Too large to come along with a hint."""


def _scenario(name: str, calls: tuple[str, ...], prepare: On, act: On, after: Scene, **more: Any) -> Scenario:
    """A client that does as the protocol says comes to the same end, whatever a call meets."""
    return Scenario(
        name,
        calls,
        on_gateway(act),
        after,
        always_done,
        on_gateway(prepare),
        stage=GatewayStage,
        more_faults=STANDSTILLS,
        **more,
    )


async def _ada(stage: GatewayStage) -> None:
    await stage.open("ada")


async def _ada_and_worker(stage: GatewayStage) -> None:
    await stage.open("ada", worker=stage.direct)


def _asks(action: str, **more: Any) -> On:
    async def act(stage: GatewayStage) -> None:
        await stage.ask(1, action, "x", **more)
        if more.get("no_reply"):
            await until(lambda: "x" in stage.attempts, what="the task")

    return act


def _ran(*messages: str, at_worker: bool = False) -> Scene:
    return Scene({"x": (1,)}, _COMPLETED if at_worker else {}, int(at_worker), more={"ada": messages})


# Coming and going.


async def _nobody(stage: GatewayStage) -> None:
    await stage.open()


async def _comes(stage: GatewayStage) -> None:
    ada = await stage.connect("ada:room")
    await stage.direct.push("hello", group="room")
    await until(ada.has(lambda: ada.messages))


async def _ada_with_a_message(stage: GatewayStage) -> None:
    await _ada(stage)
    await stage.direct.push("a", session=stage.ada.sid)
    await until(stage.ada.has(lambda: stage.ada.messages))


async def _comes_back(stage: GatewayStage) -> None:
    before = stage.ada.link
    stage.ada.cut()
    await stage.direct.push("b", session=stage.ada.sid)
    await until(stage.ada.has(lambda: stage.ada.link is not before), what="the resume")
    await until(stage.ada.has(lambda: len(stage.ada.messages) == 2), what="what came meanwhile")


async def _leaves(stage: GatewayStage) -> None:
    await stage.ada.close()
    await stage.session_is(lambda row: row.state == "detached")


async def _ada_was_waited_for(stage: GatewayStage) -> None:
    await _ada(stage)
    await stage.direct.push("a", user="ada", wait=60)
    await until(stage.ada.has(lambda: stage.ada.messages))


async def _says_goodbye(stage: GatewayStage) -> None:
    """What it has acknowledged does not wait for the user's next session."""
    await stage.ada.acknowledge()
    await stage.ada.say_goodbye()

    async def is_over() -> bool:
        return await stage.row() is None

    await until(is_over, what="the end of the session")
    assert not await stage.redis.exists(session_keys.mailbox("ada"))


async def _acknowledges(stage: GatewayStage) -> None:
    await stage.ada.acknowledge()
    await stage.session_is(lambda row: row.pending == 0)


async def _is_sent_much(stage: GatewayStage) -> None:
    await stage.direct.push(BIG, session=stage.ada.sid)
    await until(stage.ada.has(lambda: stage.ada.messages), what="the message")


async def _shows_a_new_token(stage: GatewayStage) -> None:
    stage.ada.token = "ada:room"
    await stage.ada.send({"t": "auth", "token": "ada:room"})
    await stage.session_is(lambda row: row.groups == ("room",))
    await stage.direct.push("hello", group="room")


async def _joins(stage: GatewayStage) -> None:
    await stage.ada.change_group("room", True)
    await stage.direct.push("hello", group="room")


async def _ada_in_a_group(stage: GatewayStage) -> None:
    await _ada(stage)
    await stage.direct.join(stage.ada.sid, "room")


async def _leaves_the_group(stage: GatewayStage) -> None:
    await stage.ada.change_group("room", False)
    await stage.direct.push("hello", group="room")
    await stage.session_is(lambda row: row.groups == ())


# Asking.


async def _asks_twice(stage: GatewayStage) -> None:
    """It runs, but its connection breaks before the accept has come: the client sends it again."""
    await stage.ada.begin(1, "wait_there", "x")
    await until(stage.ada.has(lambda: "x" in stage.attempts or 1 in stage.ada.rejected), what="the handler or a reject")
    if 1 in stage.ada.rejected:
        await stage.left_nothing(1, "x")
        await stage.ada.begin(1, "wait_there", "x")
    await until(lambda: "x" in stage.attempts, what="the handler")
    await until(stage.ada.has(lambda: "accept" in stage.ada.told.get(1, ())), what="the accept")
    stage.ada.told.clear()
    stage.ada.cut()
    await until(stage.ada.has(lambda: stage.ada.told), what="an answer to the second one")
    assert 1 not in stage.ada.rejected, "it runs"
    stage.go_on.set()
    await stage.ada.is_over(1)


async def _ada_at_a_closed_queue(stage: GatewayStage) -> None:
    await _ada_and_worker(stage)
    await stage.direct.tasks["plain"].enqueue("first")
    await until(lambda: "first" in stage.attempts)
    await stage.settled()
    await stage.direct.inspector().close_queue("q")
    stage.notes["ada"] = lambda: _answers(stage)


async def _answers(stage: GatewayStage) -> tuple[str, ...]:
    """Without those that say "not now"."""
    return tuple(one.partition(": ")[2] for one in await summaries(stage.ada) if not one.endswith("503"))


async def _asks_a_closed_queue(stage: GatewayStage) -> None:
    """It is rejected, or the answer is that it cannot be taken; neither runs. Then the queue is opened."""
    await stage.ada.request(1, "there", "x")
    if 1 in stage.ada.rejected:
        await stage.left_nothing(1, "x")
        await stage.direct.inspector().open_queue("q")
        await stage.ask_again(1, "x")
    else:
        assert stage.ada.told[1][-1] == "503", stage.ada.told
        await stage.proxy.all_executed()
        assert "x" not in stage.attempts
        await stage.direct.inspector().open_queue("q")
        await stage.ask(2, "there", "x")


def _cancels(action: str, last: str) -> On:
    """Until the client was told and the last call was made: the client is told first."""

    async def act(stage: GatewayStage) -> None:
        frame = {"t": "request", "rid": 1, "action": action, "body": {"name": "x"}}
        await stage.ada.send(frame)
        await until(stage.ada.has(lambda: "x" in stage.attempts), what="the handler")
        while 1 not in stage.ada.told or "499" not in stage.ada.told[1]:
            await stage.ada.send({"t": "cancel", "rid": 1})
            await stage.ada.wait_a_moment(lambda: "499" in stage.ada.told.get(1, ()))
        await until(lambda: last in stage.proxy.calls, what=f"the call {last}")

    return act


async def _is_not_answered(stage: GatewayStage) -> None:
    """A gateway died with it: its deadline is over, and only the record in Redis is left of it."""
    row = await stage.row()
    assert row is not None
    await stage.store.outbox.accept(stage.ada.sid, 7, 1, row.generation)
    await stage.sweep_until(lambda: "408" in stage.ada.told.get(7, ()))


async def _ada_and_a_slow_worker(stage: GatewayStage) -> None:
    await stage.open("ada", worker=stage.app)


REQUESTS: list[Scenario] = [
    _scenario("client-comes", (*ANNOUNCE, "session-create", "sadd"), _nobody, _comes, Scene(more={"ada": ("hello",)})),
    _scenario(
        "client-comes-back",
        ("session-attach",),
        _ada_with_a_message,
        _comes_back,
        Scene(more={"ada": ("a", "b")}),
        in_order=False,
    ),
    _scenario("client-leaves", ("session-detach",), _ada, _leaves, Scene(more={"ada": ()})),
    _scenario(
        "client-says-goodbye",
        ("outbox-ack", "session-close"),
        _ada_was_waited_for,
        _says_goodbye,
        Scene(more={"ada": ("a",)}),
    ),
    _scenario(
        "client-acknowledges",
        ("outbox-ack",),
        _ada_with_a_message,
        _acknowledges,
        Scene(more={"ada": ("a",)}),
    ),
    _scenario("log-is-read", ("outbox-read",), _ada, _is_sent_much, Scene(more={"ada": (BIG,)})),
    _scenario(
        "new-token", (*ANNOUNCE, "session-grant", "sadd"), _ada, _shows_a_new_token, Scene(more={"ada": ("hello",)})
    ),
    _scenario("join", (*ANNOUNCE, "session-join", "sadd"), _ada, _joins, Scene(more={"ada": ("hello",)})),
    _scenario("leave", ("session-leave",), _ada_in_a_group, _leaves_the_group, Scene(more={"ada": ()})),
    _scenario("request-here", ("outbox-accept", "outbox-respond"), _ada, _asks("here"), _ran("1: x")),
    _scenario(
        "request-notifies",
        ("outbox-accept", "outbox-append", "outbox-respond"),
        _ada,
        _asks("notify"),
        _ran("now", "before", "1: x", "after"),
    ),
    _scenario(
        "request-there",
        ("outbox-accept", "sadd", "task-enqueue"),
        _ada_and_worker,
        _asks("there"),
        _ran("1: x", at_worker=True),
    ),
    _scenario(
        "request-without-reply",
        ("sadd", "task-enqueue"),
        _ada_and_worker,
        _asks("there", no_reply=True),
        _ran(at_worker=True),
    ),
    _scenario(
        "request-in-turn",
        ("outbox-accept", "sadd", "order-enqueue"),
        _ada_and_worker,
        _asks("there", serial=True),
        _ran("1: x", at_worker=True),
    ),
    _scenario(
        "request-unique",
        ("outbox-accept", "sadd", "task-holders+task-enqueue"),
        _ada_and_worker,
        _asks("there_once"),
        _ran("1: x", at_worker=True),
    ),
    _scenario(
        "request-twice",
        ("outbox-accept", "outbox-accept", "task-enqueue"),
        _ada_and_worker,
        _asks_twice,
        _ran("1: x", at_worker=True),
        in_order=False,
    ),
    _scenario(
        "request-to-a-closed-queue",
        ("outbox-accept", "sadd", "task-enqueue", "exists", "outbox-refuse", "outbox-accept", "task-enqueue"),
        _ada_at_a_closed_queue,
        _asks_a_closed_queue,
        Scene({"first": (1,), "x": (1,)}, _COMPLETED, 2, more={"ada": ("x",)}),
    ),
    _scenario(
        "cancel-here",
        ("outbox-respond",),
        _ada,
        _cancels("wait_here", "outbox-respond"),
        _ran("1: 499"),
        in_order=False,
    ),
    _scenario(
        "cancel-there",
        ("outbox-respond", "cancel-cancel"),
        _ada_and_worker,
        _cancels("wait_there", "cancel-cancel"),
        Scene({"x": (1,)}, {}, 1, more={"ada": ("1: 499",)}),
        in_order=False,
    ),
    _scenario(
        "deadline-here",
        ("outbox-respond",),
        _ada,
        _asks("wait_here", deadline_ms=300),
        _ran("1: 408"),
        in_order=False,
    ),
    _scenario(
        "sweep",
        ("node-list", "session-sweep", "outbox-respond"),
        _ada,
        _is_not_answered,
        Scene(more={"ada": ("7: 408",)}),
        in_order=False,
    ),
    _scenario(
        "worker-answers",
        ("outbox-respond",),
        _ada_and_a_slow_worker,
        _asks("there"),
        _ran("1: x", at_worker=True),
        in_order=False,
    ),
]
