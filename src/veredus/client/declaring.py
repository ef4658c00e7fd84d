"""Declaring tasks: what an app and a router have in common, and how a declaration becomes a task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack, cast, overload

from veredus.client.task import P, R, Sender, T, Task, default_name, is_async
from veredus.errors import ConfigError
from veredus.model.limits import Limits, check_limits
from veredus.model.names import check_name
from veredus.model.options import NAMES, ActionOptionArgs, OptionArgs, Options
from veredus.model.retry import ErrorClasses, RetryDelay, RetryRule, as_function
from veredus.wire.payload import codec_for, name_of, value_codec_for


class Settings(TypedDict, total=False):
    """Settings of a task that are not options: they apply where it runs, or where its arguments are checked."""

    run_in: str | None
    retry_delay: RetryDelay | None
    retry_front: bool | None
    retry_on: ErrorClasses | None
    no_retry_on: ErrorClasses | None
    limit: Limits
    check_arguments: bool | None
    strict: bool | None


class TaskSettings(OptionArgs, Settings, total=False):
    """What `@app.task(...)`, `App(defaults={...})` and `Router(...)` accept: settings of a task, and options of its
    calls."""


class ActionSettings(ActionOptionArgs, Settings, total=False):
    """What `@app.action(...)` accepts."""


SETTINGS = tuple(Settings.__annotations__)
TASKS, PATTERNS = "tasks", "patterns"

Then = Callable[[Any, Task[..., Any, Any]], None]
"""What else an app does with a task: an entry in its schedule, an action for clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What tasks have that say nothing else."""

    options: Options = field(default_factory=Options)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def with_(self, given: Mapping[str, Any]) -> Defaults:
        """These with others on top; None for a setting that is no option leaves what was there."""
        settings = {name: given[name] for name in SETTINGS if given.get(name) is not None}
        options = {name: value for name, value in given.items() if name not in SETTINGS}
        for name in options.keys() - NAMES:
            known = (*NAMES, *SETTINGS)
            raise ConfigError("option", name, f"one of {', '.join(known)}", known=known)
        return Defaults(options=self.options.merged(options), settings={**self.settings, **settings})


def check_defaults(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings for many tasks at once. Raises ConfigError for one that is wrong or makes sense only for one task."""
    if given.get("task_id") is not None:
        raise ConfigError("task_id", given["task_id"], "an option of a call: every task has an id of its own")
    settings = Defaults().with_(given).settings
    _checked(settings)
    if settings.get("run_in") not in (None, "thread", "process"):
        raise ConfigError("run_in", settings["run_in"], "'thread' or 'process', for all tasks that are not async")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A function and what was said about it: all that makes a task, but for the app's own defaults."""

    function: Callable[..., Any]
    name: str
    layers: tuple[Mapping[str, Any], ...]
    """Settings, the most general first."""
    payload: str = "json"
    registry: str = TASKS
    then: Then | None = None

    def make_task(self, sender: Sender, defaults: Defaults) -> Task[..., Any, Any]:
        inherited = defaults
        for layer in self.layers[:-1]:
            inherited = inherited.with_(layer)
        settings = dict(inherited.settings)
        if is_async(self.function):
            settings.pop("run_in", None)  # a default is for those that are not
        final = Defaults(options=inherited.options, settings=settings).with_(self.layers[-1])
        strict = bool(final.settings.get("strict"))
        if self.payload == "value":
            codec = value_codec_for(self.function, strict=strict)
        else:
            codec = codec_for(self.function, self.payload, strict=strict)
        return Task(
            sender, self.function, name=self.name, codec=codec, options=final.options, **_checked(final.settings)
        )

    @property
    def place(self) -> str:
        return place_of(self.function)


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as a Task has them."""
    delay, is_checked = settings.get("retry_delay"), settings.get("check_arguments")
    return {
        "run_in": settings.get("run_in"),
        "retry_delay": None if delay is None else as_function(delay),
        "retry_front": settings.get("retry_front"),
        "retry_rule": RetryRule.make(settings.get("retry_on"), settings.get("no_retry_on")),
        "limits": check_limits("limit", settings.get("limit")),
        "check_arguments": True if is_checked is None else bool(is_checked),
    }


def place_of(function: Callable[..., Any]) -> str:
    """Where a function stands: `shop.mail.welcome (shop/mail.py:12)`."""
    while isinstance(function, functools.partial):
        function = function.func
    name = f"{getattr(function, '__module__', '?')}.{name_of(function)}"
    code = getattr(inspect.unwrap(function), "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def refuse_what_is_no_function(function: Any) -> None:
    """A worker has no object to call a method on, and no class has a result."""
    hint = "a function at the top of a module"
    if isinstance(function, Task):
        raise ConfigError("task", function, "a plain function: this one is a task already")
    if isinstance(function, type):
        raise ConfigError("task", function.__qualname__, f"{hint}: not a class; write a function that uses it")
    if isinstance(function, staticmethod | classmethod):
        raise ConfigError("task", name_of(function.__func__), f"{hint}: move it out of its class")
    if not callable(function):
        raise ConfigError("task", function, f"{hint}: write @app.task or @app.task(name=...)")
    plain = inspect.unwrap(function)
    names = list(getattr(getattr(plain, "__code__", None), "co_varnames", ())[:1])
    if inspect.ismethod(plain) or (names in (["self"], ["cls"]) and "." in _after_locals(plain)):
        raise ConfigError(
            "task",
            name_of(function),
            f"{hint}: a worker has no object to call a method on; move it out of its class and send what it needs "
            "as arguments, such as an id",
        )


def _after_locals(function: Any) -> str:
    """The part of a name that tells of classes: `Shop.send`."""
    return name_of(function).rpartition("<locals>.")[2]


class TaskDeclarations:
    """The part of an app, and of a router, that declares tasks, topics and handlers."""

    def _declare(
        self, function: Callable[..., Any], *, then: Then | None = None, **settings: Any
    ) -> Task[..., Any, Any]:
        raise NotImplementedError

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self, *, name: str | None = None, payload: str = "json", **settings: Unpack[TaskSettings]
    ) -> TaskDecorator: ...
    def task(self, function: Any = None, /, **settings: Any) -> Any:  # type: ignore[misc]
        """Declare a task: `@app.task` or `@app.task(queue="mail", max_retry=5, timeout=30)`.

        `name` is its type on the wire (default `module.function`), `run_in` one of loop, thread, process,
        `payload="raw"` gives the handler the bytes; `check_arguments=False` sends arguments of any type, to be refused
        on arrival if they do not fit; `strict=True` refuses on arrival what Go would ignore: unknown fields, null for
        an empty value, 3.0 for an int. All else are enqueue options.
        """
        if function is None:
            return TaskDecorator(self, settings)
        return TaskDecorator(self, settings)(function)

    def topic(self, name: str, **settings: Unpack[TaskSettings]) -> Callable[[Callable[P, R]], Task[P, R, Any]]:
        """Declare the consumer of a topic: a queue with one task type of the same name, whose payload is any JSON value
        that fits the handler's one parameter."""

        def declare(function: Callable[P, R]) -> Task[P, R, Any]:
            given: dict[str, Any] = {"queue": name, **settings}
            return cast("Task[P, R, Any]", self._declare(function, name=name, payload="value", **given))

        return declare

    def handler(self, pattern: str, **settings: Unpack[TaskSettings]) -> Callable[[Callable[P, R]], Task[P, R, Any]]:
        """Declare a handler for every type that fits: `email:send` exactly, or `email:*` for a prefix. A parameter of
        type `Job` gets the task as it arrived. Exact names win over patterns, longer patterns over shorter ones."""
        if not pattern.strip() or "*" in pattern[:-1]:
            raise ConfigError("pattern", pattern, "a task type, or a prefix that ends in *")
        registry = PATTERNS if pattern.endswith("*") else TASKS

        def declare(function: Callable[P, R]) -> Task[P, R, Any]:
            return cast("Task[P, R, Any]", self._declare(function, name=pattern, registry=registry, **settings))

        return declare


def declaration_of(
    function: Callable[..., Any],
    layers: tuple[Mapping[str, Any], ...],
    *,
    name: str | None = None,
    payload: str = "json",
    registry: str = TASKS,
    then: Then | None = None,
    **settings: Any,
) -> Declaration:
    """What was declared, with its name. `layers` are the settings of the router that it is declared with, if any."""
    refuse_what_is_no_function(function)
    name = default_name(function) if name is None else name
    check_name("name", name)
    given = (*layers, settings)
    return Declaration(function=function, name=name, layers=given, payload=payload, registry=registry, then=then)


def refuse_two(name: str, first: Callable[..., Any], second: Callable[..., Any]) -> None:
    """Two tasks with one name."""
    raise ConfigError(
        "name",
        name,
        f"a name that no other task of this app has: {place_of(first)} has it, and {place_of(second)} declares it "
        "again; give one of them a name=",
    )


class TaskDecorator:
    """`@app.task(...)`: keeps the function's signature for type checkers, async or not."""

    def __init__(self, owner: TaskDeclarations, settings: Mapping[str, Any]) -> None:
        self._owner = owner
        self._settings = settings

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        return self._owner._declare(function, **self._settings)
