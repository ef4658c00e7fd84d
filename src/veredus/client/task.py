"""A task: an ordinary function that can also be sent."""

from __future__ import annotations

import copy
import inspect
import sys
import weakref
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from veredus.client.calls import Call
from veredus.client.handle import Handle
from veredus.errors import ConfigError
from veredus.model.limits import Limit
from veredus.model.options import OptionArgs, Options
from veredus.model.retry import RetryDelayFunction
from veredus.wire.payload import Codec, name_of

if TYPE_CHECKING:
    from typing import Protocol

    class Sender(Protocol):
        """What a task needs of its app."""

        async def send(self, call: Call[Any]) -> Handle[Any]: ...

        def send_sync(self, call: Call[Any]) -> Handle[Any]: ...

        def surroundings(self) -> dict[str, Any]: ...

        def move_to(self, place: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None: ...

        def heard(self, fact: dict[str, Any]) -> None: ...


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

RUN_IN = ("loop", "thread", "process")

_for_processes: weakref.WeakValueDictionary[tuple[str, str], Task[..., Any, Any]] = weakref.WeakValueDictionary()
"""Tasks that run in processes, by name and by where importing declared them."""


class Task(Generic[P, R, T]):
    """Calling it runs the function here. `enqueue` sends it; options go through `using`, never among the arguments."""

    def __init__(
        self,
        sender: Sender,
        function: Callable[P, R],
        *,
        name: str,
        codec: Codec,
        options: Options,
        run_in: str | None = None,
        retry_delay: RetryDelayFunction | None = None,
        retry_front: bool | None = None,
        limits: tuple[Limit, ...] = (),
        check_arguments: bool = True,
    ) -> None:
        self._sender = sender
        self._check_arguments = check_arguments
        self.function = function
        self.name = name
        self.codec = codec
        self.options = options
        refuse_generators(function)
        self.run_in = where_to_run(function, run_in)
        self.retry_delay = retry_delay
        self.retry_front = retry_front
        self.limits = limits
        self.declared_in = ""
        """The module whose import declares it, for tasks that run in processes."""
        if self.run_in == "process":
            self.declared_in = declaring_module() or function.__module__
            _for_processes[name, self.declared_in] = self
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    @property
    def app(self) -> Sender:
        """The app that declared it."""
        return self._sender

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[OptionArgs]) -> Task[P, R, T]:
        """The same task with other options; cheap, and this one stays as it is."""
        twin = copy.copy(self)
        twin.options = self.options.merged(options)
        return twin

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """An unsent call, for `app.enqueue_many`."""
        return Call(self.name, self._payload(args, kwargs), self.options)

    def _payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments as they travel. Raises PayloadError for what its handler could not be called with."""
        encoded = self.codec.encode(args, kwargs)
        if self._check_arguments:
            self.codec.check(self.name, encoded, args, kwargs)
        return encoded

    def check_payload(self, payload: bytes, value: Any) -> None:
        """The same for a payload that was made elsewhere, from this value."""
        if self._check_arguments:
            args, kwargs = ((), value) if isinstance(value, Mapping) else ((value,), {})
            self.codec.check(self.name, payload, args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """Send it; returns once Redis has it."""
        return await self._sender.send(Call(self.name, self._payload(args, kwargs), self.options))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """Send it from synchronous code; returns once Redis has it."""
        return self._sender.send_sync(Call(self.name, self._payload(args, kwargs), self.options))

    def send_sync(self, call: Call[T]) -> Handle[T]:
        """Send what `call` made, later."""
        return self._sender.send_sync(call)

    def __repr__(self) -> str:
        return f"<task {self.name} queue={self.options.queue}>"


def default_name(function: Callable[..., Any]) -> str:
    """`module.function`; a script run as __main__ goes by its file, so that others can import and serve it."""
    if not isinstance(getattr(function, "__qualname__", None), str):
        raise ConfigError("name", None, f"a name for {function!r}: it has none of its own")
    module = function.__module__
    if module in ("__main__", "__mp_main__"):  # the second in processes of a script's handlers, as spawn calls it
        file = getattr(sys.modules.get(module), "__file__", None)
        module = Path(file).stem if file else "main"
    return f"{module}.{function.__qualname__}"


def declaring_module() -> str | None:
    """The innermost module that is being imported (or run) now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return None if frame is None else frame.f_globals.get("__name__")


def declared(name: str, module: str) -> Task[..., Any, Any] | None:
    """The task for processes that has this name and that importing this module declared."""
    return _for_processes.get((name, module))


def where_to_run(function: Callable[..., Any], given: str | None) -> str:
    """Async functions on the loop, others in a thread, unless told otherwise."""
    is_async = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - a callable object may be async
    )
    if given is None:
        return "loop" if is_async else "thread"
    if given not in RUN_IN:
        raise ConfigError("run_in", given, f"one of {', '.join(RUN_IN)}", known=RUN_IN)
    if given == "loop" and not is_async:
        raise ConfigError("run_in", given, "'thread' or 'process' for a function that is not async")
    if given in ("thread", "process") and is_async:
        raise ConfigError("run_in", given, "'loop' for an async function; use def for threads and processes")
    return given


def refuse_generators(function: Callable[..., Any]) -> None:
    """Calling a generator function runs nothing of it: no worker would ever iterate over what it returns."""
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004 - a callable object may have one
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigError(
                "task",
                name_of(function),
                "a function without `yield`: a generator would never run; return a list, or send a task for each item",
            )


Handler = Callable[..., Any] | Callable[..., Awaitable[Any]]
