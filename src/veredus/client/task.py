"""A task: an ordinary function that can also be sent."""

from __future__ import annotations

import copy
import inspect
import sys
import weakref
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack

from veredus.client.call import Call
from veredus.client.handle import Handle
from veredus.errors import ConfigError
from veredus.model.job import Job
from veredus.model.key_rules import KeyRule, named_arguments, parameters_of
from veredus.model.limits import Limit
from veredus.model.message import TaskMessage
from veredus.model.options import KEY_OPTIONS, OptionArgs, Options
from veredus.model.retry import RetryDelayFunction, RetryRule
from veredus.wire.payload import PayloadCodec, name_of


class Sender(Protocol):
    """What a task needs from its app."""

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
"""Tasks that run in processes, by name and by the module whose import declared them."""
late: weakref.WeakSet[Any] = weakref.WeakSet()
"""Apps that import modules of their tasks when they are used."""


class Task(Generic[P, R, T]):
    """Calling it runs the function here. `enqueue` sends it. Options are given with `using`, never among the
    arguments."""

    def __init__(
        self,
        sender: Sender,
        function: Callable[P, R],
        *,
        name: str,
        codec: PayloadCodec,
        options: Options,
        run_in: str | None = None,
        retry_delay: RetryDelayFunction | None = None,
        retry_front: bool | None = None,
        retry_rule: RetryRule | None = None,
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
        self.retry_rule = retry_rule
        self.limits = limits
        self._twins: list[tuple[Task[..., Any, Any], Task[..., Any, Any], Mapping[str, Any]]] | None = None
        """Of a router's task that is in no app yet: it and its twins, which the app's defaults are missing from."""
        self.declared_in = ""
        """The module whose import declares it, for tasks that run in processes."""
        if self.run_in == "process":
            self.declared_in = declaring_module() or function.__module__
            _for_processes[name, self.declared_in] = self
        self._check_keys()
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def _check_keys(self) -> None:
        """Raises ConfigError for a template with names that are no arguments of this task."""
        if self.options.has_rules:
            for rule in (getattr(self.options, name) for name in KEY_OPTIONS):
                if isinstance(rule, KeyRule):
                    rule.check(parameters_of(self.function))

    @property
    def app(self) -> Sender:
        """The app that declared it."""
        return self._sender

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[OptionArgs]) -> Task[P, R, T]:
        """The same task with other options. This is cheap and does not change the original."""
        twin = copy.copy(self)
        twin.options = self.options.merged(options)
        twin._check_keys()
        if self._twins is not None:
            self._twins.append((self, twin, options))
        return twin

    def detach(self, twins: list[tuple[Task[..., Any, Any], Task[..., Any, Any], Mapping[str, Any]]]) -> None:
        """It has no app yet: until `become` it can be called here, and not sent."""
        self._twins = twins

    def become(self, other: Task[..., Any, Any], declared_in: str | None = None) -> Task[P, R, T]:
        """Take on all that another one is, such as the same task made for an app."""
        self.__dict__.update(other.__dict__)
        if declared_in is not None and self.run_in == "process":
            self.declared_in = declared_in or self.declared_in
            _for_processes[self.name, self.declared_in] = self
        return self

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """A call that is not sent yet, for `app.enqueue_many`."""
        return Call(self.name, self._payload(args, kwargs), self._options(args, kwargs))

    def _options(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Options:
        """The options, with the keys for these arguments."""
        options = self.options
        if not options.has_rules:
            return options
        return options.resolved(named_arguments(parameters_of(self.function), args, kwargs))

    def options_for(self, options: Options, payload: bytes) -> Options:
        """The same for other options and a payload that was made elsewhere. Raises PayloadError if it does not fit."""
        if not options.has_rules:
            return options
        job = Job(TaskMessage(type=self.name, payload=payload, id="", queue=options.queue))
        args, kwargs = self.codec.decode(job)
        return options.resolved(named_arguments(parameters_of(self.function), args, kwargs))

    def _payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The encoded arguments. Raises PayloadError for arguments that the handler could not be called with."""
        if self._twins is not None:
            raise ConfigError("task", self.name, "a task of an app: include its router first, app.include(router)")
        encoded = self.codec.encode(args, kwargs)
        if self._check_arguments:
            self.codec.check(self.name, encoded, args, kwargs)
        return encoded

    def check_payload(self, payload: bytes, value: Any) -> None:
        """The same check for a payload that was encoded elsewhere from this value."""
        if self._check_arguments:
            args, kwargs = ((), value) if isinstance(value, Mapping) else ((value,), {})
            self.codec.check(self.name, payload, args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """Send it; returns once Redis has it."""
        call: Call[T] = Call(self.name, self._payload(args, kwargs), self._options(args, kwargs))
        return await self._sender.send(call)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """Send it from synchronous code; returns once Redis has it."""
        call: Call[T] = Call(self.name, self._payload(args, kwargs), self._options(args, kwargs))
        return self._sender.send_sync(call)

    def send_sync(self, call: Call[T]) -> Handle[T]:
        """Send later what `call` made."""
        return self._sender.send_sync(call)

    def __repr__(self) -> str:
        return f"<task {self.name} queue={self.options.queue}>"


def default_name(function: Callable[..., Any]) -> str:
    """`module.function`, by the name under which others import and serve it."""
    if not isinstance(getattr(function, "__qualname__", None), str):
        raise ConfigError("name", None, f"a name for {function!r}: it has none of its own")
    return f"{public_module(function.__module__)}.{function.__qualname__}"


def public_module(module: str) -> str:
    """What a module is imported as: for one that runs as __main__ the name after `python -m`, or that of its file, with
    the packages that it is in."""
    if module not in ("__main__", "__mp_main__"):  # the second in processes of a script's handlers, as spawn calls it
        return module
    main = sys.modules.get(module)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        return str(spec.name)
    if not file:
        return "main"
    path = Path(file).resolve()
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


def declaring_module() -> str | None:
    """The innermost module that is being imported or run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return None if frame is None else frame.f_globals.get("__name__")


def declared(name: str, module: str) -> Task[..., Any, Any] | None:
    """The task with this name that importing this module declared, for handlers in processes."""
    return _for_processes.get((name, module))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine."""
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - a callable object may be async
    )


def where_to_run(function: Callable[..., Any], given: str | None) -> str:
    """Async functions run on the loop, others in a thread, unless declared otherwise."""
    on_loop = is_async(function)
    if given is None:
        return "loop" if on_loop else "thread"
    if given not in RUN_IN:
        raise ConfigError("run_in", given, f"one of {', '.join(RUN_IN)}", known=RUN_IN)
    if given == "loop" and not on_loop:
        raise ConfigError("run_in", given, "'thread' or 'process' for a function that is not async")
    if given in ("thread", "process") and on_loop:
        raise ConfigError("run_in", given, "'loop' for an async function; use def for threads and processes")
    return given


def refuse_generators(function: Callable[..., Any]) -> None:
    """Calling a generator function runs nothing: no worker would iterate over what it returns."""
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004 - a callable object may have one
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigError(
                "task",
                name_of(function),
                "a function without `yield`: a generator would never run; return a list, or send a task for each item",
            )


Handler = Callable[..., Any] | Callable[..., Awaitable[Any]]
