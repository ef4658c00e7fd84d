"""Coroutines carried by few asyncio tasks behave as if each had its own, from the moment it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.waiting import PATIENCE, forever
from veredus.handlers.eager_runner import SLICE, EagerRunner

Body = Callable[[], Awaitable[object]]
VARIABLE: ContextVar[str] = ContextVar("variable", default="unset")


class Passenger:
    """One body; each is a kind of its own unless told otherwise."""

    def __init__(self, name: str, body: Body, kind: str) -> None:
        self.name, self.body, self.kind = name, body, kind
        self.task: asyncio.Task[None] | None = None


class Ride:
    """Carries bodies and remembers what became of each."""

    def __init__(self) -> None:
        self.carrier: EagerRunner[Passenger] = EagerRunner(self._run)
        self.began: list[str] = []
        self.ended: dict[str, object] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._left = 0
        self._over = asyncio.Event()

    def add(self, name: str, body: Body, kind: str = "") -> None:
        self._left += 1
        self._over.clear()
        self.carrier.start(Passenger(name, body, kind or name))

    async def over(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._over.wait()

    async def _run(self, passenger: Passenger) -> None:
        name = passenger.name
        task = passenger.task
        assert task is asyncio.current_task()
        assert task is not None
        self.tasks[name] = task
        self.began.append(name)
        try:
            self.ended[name] = await passenger.body()
        except BaseException as exc:
            self.ended[name] = exc
        self._left -= 1
        if not self._left:
            self._over.set()


async def nothing() -> None:
    pass


async def test_what_never_waits_shares_one_task_and_runs_in_order() -> None:
    ride = Ride()
    for number in range(20):
        ride.add(str(number), nothing)
    await ride.over()
    assert ride.began == [str(number) for number in range(20)]
    assert len(set(ride.tasks.values())) == 1


async def test_what_waits_holds_up_nobody_and_is_alone_in_its_task() -> None:
    ride, gate = Ride(), asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    for name, body in (("a", wait), ("b", nothing), ("c", wait), ("d", nothing)):
        ride.add(name, body)
    while "d" not in ride.ended:
        await asyncio.sleep(0)
    assert set(ride.ended) == {"b", "d"}
    assert len({ride.tasks["a"], ride.tasks["c"]}) == 2
    gate.set()
    await ride.over()


async def test_a_kind_that_waits_gets_a_task_for_each_and_all_begin_at_once() -> None:
    ride, gate = Ride(), asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    for number in range(300):
        ride.add(str(number), wait, kind="wait")
    for _ in range(5):
        await asyncio.sleep(0)
    assert ride.began == [str(number) for number in range(300)]
    assert len(set(ride.tasks.values())) == 300
    gate.set()
    await ride.over()


async def test_each_has_its_own_context_variables() -> None:
    ride, seen = Ride(), {}

    async def set_and_wait() -> None:
        VARIABLE.set("mine")
        await asyncio.sleep(0)
        seen["a"] = VARIABLE.get()

    async def look() -> None:
        seen["b"] = VARIABLE.get()
        VARIABLE.set("leaked")

    async def look_again() -> None:
        seen["c"] = VARIABLE.get()

    for name, body in (("a", set_and_wait), ("b", look), ("c", look_again)):
        ride.add(name, body)
    await ride.over()
    assert seen == {"a": "mine", "b": "unset", "c": "unset"}


async def test_a_cancelled_one_hears_of_it_and_the_next_does_not() -> None:
    ride, gate = Ride(), asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    ride.add("a", wait)
    while "a" not in ride.tasks:
        await asyncio.sleep(0)
    ride.add("b", nothing)
    ride.tasks["a"].cancel()
    await ride.over()
    assert isinstance(ride.ended["a"], asyncio.CancelledError)
    assert ride.ended["b"] is None


async def test_one_that_cancels_its_own_task_and_ends_leaves_the_next_alone() -> None:
    ride = Ride()

    async def cancel_self() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def wait() -> None:
        await asyncio.sleep(0)

    ride.add("a", cancel_self)
    ride.add("b", wait)
    await ride.over()
    assert ride.ended["b"] is None


async def test_timeouts_inside_work_though_others_ran_in_the_same_task_before() -> None:
    ride = Ride()

    async def too_long() -> None:
        async with asyncio.timeout(0.01):
            await forever()

    ride.add("a", nothing)
    ride.add("b", too_long)
    await ride.over()
    assert isinstance(ride.ended["b"], TimeoutError)


async def test_the_loop_gets_its_turn_between_ones_that_compute() -> None:
    ride, turns = Ride(), []

    async def compute() -> None:
        time.sleep(SLICE)

    for number in range(3):
        ride.add(str(number), compute)
    asyncio.get_running_loop().call_soon(lambda: turns.append(len(ride.ended)))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(lambda: turns.append(len(ride.ended)))
    await ride.over()
    assert turns[0] < 3


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=30))
def test_all_end_once_however_often_each_waits(plan: list[tuple[int, bool]]) -> None:
    async def scenario() -> None:
        ride = Ride()

        async def body(waits: int, fails: bool) -> None:
            for _ in range(waits):
                await asyncio.sleep(0)
            if fails:
                raise ValueError

        for number, (waits, fails) in enumerate(plan):
            ride.add(str(number), lambda waits=waits, fails=fails: body(waits, fails))  # type: ignore[misc]
        if plan:
            await ride.over()
        assert ride.began == [str(number) for number in range(len(plan))]
        for number, (_, fails) in enumerate(plan):
            assert isinstance(ride.ended[str(number)], ValueError) == fails

    asyncio.run(scenario())
