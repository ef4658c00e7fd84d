"""The durable calls of `current()`: steps that are kept, and waits that use no worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, TypeVarTuple, cast, overload

from veredus.errors import ConfigError
from veredus.handlers.durable_run import DurableRun, HandlerParked
from veredus.handlers.fan_out import each_result, gather, gathered
from veredus.handlers.running_step import STEP
from veredus.handlers.steps import step
from veredus.model.durable import KEPT
from veredus.wire.results import result_decoder

if TYPE_CHECKING:
    from veredus.client.call import Call
    from veredus.client.children import ChildSender
    from veredus.errors import ChildFailed
    from veredus.model.durable import Wait

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DurableCalls:
    """Part of the context."""

    __slots__ = ()

    if TYPE_CHECKING:
        durable: DurableRun | None
        wait: Wait | None

        def _durable(self) -> DurableRun: ...

        def _children(self) -> ChildSender: ...

        def _blocking(self, coroutine: Any) -> Any: ...

    @overload
    async def step(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        name: str | None = None,
        retries: int = 0,
        delay: float | timedelta = 1.0,
    ) -> T: ...
    @overload
    async def step(
        self,
        function: Callable[[*Ts], T],
        *args: *Ts,
        name: str | None = None,
        retries: int = 0,
        delay: float | timedelta = 1.0,
    ) -> T: ...
    async def step(  # type: ignore[misc]
        self,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        retries: int = 0,
        delay: float | timedelta = 1.0,
    ) -> Any:
        """Run a function until it has succeeded once, and keep its result: when the handler begins again, after a crash
        or a wait, `step` returns what was kept. A function that is not async runs in a thread.

        `name` identifies the step; the default is the function's name, with a number if it is used again. After a
        failure it is tried again up to `retries` times, each `delay` seconds later; then StepFailed is raised.
        """
        return await step(self._durable(), function, args, name, _count(retries), delay)

    def step_sync(
        self,
        function: Callable[[*Ts], T],
        *args: *Ts,
        name: str | None = None,
        retries: int = 0,
        delay: float | timedelta = 1.0,
    ) -> T:
        """`step` for handlers in threads."""
        self._refuse_parking()
        run = self._durable()
        return cast(T, self._blocking(step(run, function, args, name, _count(retries), delay)))

    @property
    def step_key(self) -> str:
        """Inside a step: a text that is the same whenever this step of this run is repeated. Pass it to the
        other system as its idempotency key, because a crash right after the effect repeats the step."""
        running = STEP.get()
        if running is None:
            raise LookupError("step_key works only inside a function that current().step(...) runs")
        return running.key

    @property
    def parking(self) -> bool:
        """True while the handler leaves its worker, because it waits for something: it will begin again."""
        return self.durable is not None and self.durable.parking

    async def sleep(self, name: str, duration: float | timedelta) -> None:
        """Sleep without using a worker, for seconds or years. CancelledError is raised in the handler, which
        begins again on any worker when the time has come."""
        if await self._durable().sleep(name, duration) is None:
            await self._durable().left()

    def sleep_sync(self, name: str, duration: float | timedelta) -> None:
        """`sleep` for handlers in threads."""
        self._refuse_parking()
        if self._blocking(self._durable().sleep(name, duration)) is None:
            raise HandlerParked(name)

    async def wait_for(self, event: str, timeout: float | timedelta | None = None) -> Any:
        """Wait for an event without using a worker: returns what `app.emit(event, ...)` was given, even
        before this call, or None after `timeout`."""
        outcome = await self._durable().wait_for(event, timeout)
        if outcome is None:
            await self._durable().left()
        return _event(outcome)

    def wait_for_sync(self, event: str, timeout: float | timedelta | None = None) -> Any:
        """`wait_for` for handlers in threads."""
        self._refuse_parking()
        outcome = self._blocking(self._durable().wait_for(event, timeout))
        if outcome is None:
            raise HandlerParked(event)
        return _event(outcome)

    @overload
    async def gather(
        self, name: str, calls: Iterable[Call[T]], *, return_errors: Literal[False] = False
    ) -> list[T]: ...
    @overload
    async def gather(self, name: str, calls: Iterable[Call[T]], *, return_errors: bool) -> list[T | ChildFailed]: ...
    async def gather(self, name: str, calls: Iterable[Call[T]], *, return_errors: bool = False) -> list[Any]:
        """Run tasks as children, on any worker and queue, and wait for all of them without using a worker. Returns
        their results in the order of the calls. Raises ChildFailed for the first that failed; with
        `return_errors`, the errors are in the list instead."""
        results = await gather(self._durable(), self._children(), name, list(calls), return_errors=return_errors)
        if results is None:
            await self._durable().left()
        return results or []

    @overload
    def gather_each(
        self, name: str, calls: Iterable[Call[T]], *, return_errors: Literal[False] = False
    ) -> AsyncIterator[T]: ...
    @overload
    def gather_each(
        self, name: str, calls: Iterable[Call[T]], *, return_errors: bool
    ) -> AsyncIterator[T | ChildFailed]: ...
    async def gather_each(
        self, name: str, calls: Iterable[Call[T]], *, return_errors: bool = False
    ) -> AsyncIterator[Any]:
        """`gather` for many or large results: `async for result in job.gather_each("pages", calls)`. They are read in
        pages of 1,000. The children run all at once; the first result comes when all have ended."""
        run, children, listed = self._durable(), self._children(), list(calls)
        found = await gathered(run, children, name, listed)
        if found is None:
            await run.left()
            return
        async for result in each_result(run, children, found, listed, return_errors=return_errors):
            yield result

    def gather_sync(self, name: str, calls: Iterable[Call[T]], *, return_errors: bool = False) -> list[T]:
        """`gather` for handlers in threads."""
        self._refuse_parking()
        run, children = self._durable(), self._children()
        results = self._blocking(gather(run, children, name, list(calls), return_errors=return_errors))
        if results is None:
            raise HandlerParked(name)
        return cast(list[T], results)

    async def run(self, call: Call[T], *, name: str | None = None) -> T:
        """Run one task as a child and wait for its result without using a worker. Raises ChildFailed with its error."""
        return (await self.gather(call.type if name is None else name, [call]))[0]

    def run_sync(self, call: Call[T], *, name: str | None = None) -> T:
        """`run` for handlers in threads."""
        return self.gather_sync(call.type if name is None else name, [call])[0]

    def _refuse_parking(self) -> None:
        if self.parking:
            raise HandlerParked("this handler is leaving its worker, because it already waits for something")


def _event(outcome: bytes | None) -> Any:
    if outcome is None or outcome[:1] != KEPT:
        return None
    return result_decoder(None)(outcome[1:])


def _count(retries: object) -> int:
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise ConfigError("retries", retries, "a whole number from 0 on")
    return retries
