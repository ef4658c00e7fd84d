"""Router: tasks of one module, to be included in an app; and what an app includes."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Unpack, cast

from veredus.client.declaring import (
    Declaration,
    Defaults,
    TaskDeclarations,
    TaskSettings,
    Then,
    check_defaults,
    declaration_of,
    refuse_two,
)
from veredus.client.task import Sender, Task, declaring_module, late, public_module
from veredus.errors import ConfigError
from veredus.gateway.declare import ActionDeclarations
from veredus.scheduler.declare import CronDeclarations

AnyTask = Task[..., Any, Any]


class Router(TaskDeclarations, CronDeclarations, ActionDeclarations):
    """Declares tasks without an app, as routers of web frameworks do: `router = Router(queue="mail")` in one module,
    `app.include(router)` in another. Its settings are defaults of its tasks, over those of the app."""

    def __init__(self, **settings: Unpack[TaskSettings]) -> None:
        self._settings: Mapping[str, Any] = check_defaults(cast("Mapping[str, Any]", settings))
        self._declared: list[tuple[Declaration, AnyTask]] = []
        self._twins: list[tuple[AnyTask, AnyTask, Mapping[str, Any]]] = []
        self._parts: list[Router] = []
        self.app: Including | None = None
        """The app that it is included in."""

    def include(self, *routers: Router) -> None:
        """Add the tasks of other routers, which keep their settings: an app that includes this one gets them too."""
        for one in routers:
            if not isinstance(one, Router) or self in one._whole():
                raise ConfigError("include", one, "a Router that does not include this one")
            self._parts.append(one)
            if self.app is not None:
                one.join(self.app, declaring_module() or "")

    def _whole(self) -> list[Router]:
        """This one and all that it includes."""
        found = [self]
        for one in found:
            found += [part for part in one._parts if part not in found]
        return found

    def _declare(self, function: Callable[..., Any], *, then: Then | None = None, **settings: Any) -> AnyTask:
        declaration = declaration_of(function, (self._settings,), then=then, **settings)
        if self.app is not None:
            return self.app._add(declaration)
        for other, _ in self._declared:
            if (other.name, other.registry) == (declaration.name, declaration.registry):
                refuse_two(declaration.name, other.function, function)
        task = declaration.make_task(cast(Sender, self), Defaults())
        task.detach(self._twins)
        self._declared.append((declaration, task))
        return task

    def join(self, app: Including, declared_in: str) -> None:
        """Its tasks become those of this app."""
        routers = [one for one in self._whole() if one.app is not app]
        added: list[AnyTask] = []
        try:
            for one in routers:
                if one.app is not None:
                    expected = "a router that is in no other app: its tasks can be sent by one app only"
                    raise ConfigError("router", one, expected)
                for declaration, task in one._declared:
                    app._add(declaration, into=task, declared_in=declared_in)
                    added.append(task)
        except ConfigError:
            for task in added:
                app.drop(task)
            raise
        for one in routers:
            one._belong_to(app)

    def _belong_to(self, app: Including) -> None:
        self.app = app
        for parent, twin, options in self._twins:
            twin.become(parent)
            twin.options = parent.options.merged(options)
        self._twins.clear()

    def __repr__(self) -> str:
        names = ", ".join(declaration.name for declaration, _ in self._declared)
        return f"<router of {names or 'no tasks'}>"


class Including:
    """The part of an app that takes in tasks of other modules."""

    tasks: dict[str, AnyTask]
    patterns: dict[str, AnyTask]
    _declared_defaults: Defaults

    def __init__(self) -> None:
        super().__init__()
        self._to_load: list[str] = []
        self._loading = threading.RLock()
        self._made_in = declaring_module() or ""

    def include(self, *what: Router | str) -> None:
        """Add the tasks of routers, or of modules: `app.include(router)`, `app.include("shop.tasks")`. A module is
        imported when tasks are first sent or a worker starts, so it may itself import the module of the app; the
        routers in it are included then."""
        for one in what:
            if isinstance(one, Router):
                one.join(self, declaring_module() or "")
            elif isinstance(one, str) and one.strip() and not one.startswith("."):
                self._to_load.append(one)
                late.add(cast(Any, self))
            else:
                raise ConfigError("include", one, "a Router, or the full name of a module such as 'shop.tasks'")

    def load(self) -> None:
        """Import the modules that were included by name, if that has not happened yet. Workers, schedulers, gateways
        and the first call do so by themselves."""
        if not self._to_load:
            return
        with self._loading:
            while self._to_load:
                name = self._to_load.pop(0)
                try:
                    self._take_in(name)
                except BaseException:
                    self._to_load.insert(0, name)
                    raise

    def _take_in(self, name: str) -> None:
        if name == public_module("__main__"):
            module = sys.modules["__main__"]  # it runs as `python -m`: a second import would declare all of it again
            sys.modules.setdefault(name, module)
        else:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as exc:
                if exc.name is None or not (name == exc.name or name.startswith(f"{exc.name}.")):
                    raise
                raise ConfigError("include", name, f"a module that can be imported; found no {exc.name!r}") from exc
        for value in list(vars(module).values()):
            if isinstance(value, Router) and value.app is None:
                value.join(self, self._made_in)

    def _add(self, declaration: Declaration, into: AnyTask | None = None, declared_in: str | None = None) -> AnyTask:
        """Make a task of a declaration, or make a router's task one of this app."""
        registry: dict[str, AnyTask] = getattr(self, declaration.registry)
        name = declaration.name
        present = registry.get(name)
        if present is not None and not _is_main_again(present.function, declaration.function):
            refuse_two(name, present.function, declaration.function)
        task = declaration.make_task(cast(Sender, self), self._declared_defaults)
        if into is not None:
            task = into.become(task, declared_in)
        registry[name] = task
        if declaration.then is not None:
            try:
                declaration.then(self, task)
            except ConfigError:
                del registry[name]
                raise
        return task

    def drop(self, task: AnyTask) -> None:
        """Forget a task, because its router cannot be included as a whole."""
        for registry in (self.tasks, self.patterns):
            if registry.get(task.name) is task:
                del registry[task.name]


def _is_main_again(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Whether both are one function of a file that runs as __main__ and was imported as well."""
    modules = {first.__module__, second.__module__}
    codes = [getattr(function, "__code__", None) for function in (first, second)]
    if "__main__" not in modules or len(modules) != 2 or None in codes:
        return False
    return len({(code.co_filename, code.co_qualname, code.co_firstlineno) for code in codes if code is not None}) == 1
