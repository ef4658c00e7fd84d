"""The part of an app that clients see: `@app.action` and `app.gateway`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from veredus.client.task import P, R, Task
from veredus.errors import ConfigError
from veredus.model.request import ActionRule

if TYPE_CHECKING:
    from veredus.gateway.server import Gateway

F = TypeVar("F", bound=Callable[..., Any])


class Serving:
    """What an app offers to clients."""

    actions: dict[str, ActionRule]
    gateway_settings: dict[str, Any]
    tasks: dict[str, Task[..., Any, Any]]

    if TYPE_CHECKING:

        def _declare(self, function: Callable[P, R], **settings: Any) -> Task[P, R, Any]: ...

    def action(
        self,
        name: str | None = None,
        *,
        deadline: float | timedelta = 30.0,
        serial: bool = False,
        where: str = "worker",
        **settings: Any,
    ) -> Callable[[Callable[P, R]], Task[P, R, Any]]:
        """Declare a task that clients may call by this name; only actions can be called by clients.

        Its return value is the response, its failure an error response; `current().client` notifies the client. Not
        answered within `deadline` seconds, the client gets error 408. `serial` runs a session's requests for it one
        after the other. `where="gateway"` runs it in the gateway itself, for what is quick and needs no worker. The
        other settings are those of `task`; without `max_retry` a failure is final.
        """
        if name is not None and not isinstance(name, str):
            raise ConfigError("name", name, 'a text: write @app.action("render"), with parentheses')

        def declare(function: Callable[P, R]) -> Task[P, R, Any]:
            settings.setdefault("max_retry", 0)
            named = name or getattr(function, "__name__", None)
            task = self._declare(function, name=named, **settings)
            try:
                if where == "gateway" and task.run_in == "process":
                    raise ConfigError("run_in", "process", "'loop' or 'thread' for an action of where=\"gateway\"")
                rule = ActionRule.make(task.name, task.options.queue, deadline, serial, where)
            except ConfigError:
                del self.tasks[task.name]
                raise
            self.actions[task.name] = rule
            return task

        return declare

    def authenticate(self, function: F) -> F:
        """Declare who clients are: `@app.authenticate` over a function of the token that returns an `Identity` or
        raises `Unauthorized`, async or not. For JSON Web Tokens: `app.authenticate(gateway.auth.jwt(SECRET))`."""
        self.gateway_settings["authenticate"] = function
        return function

    def may_join(self, function: F) -> F:
        """Declare which groups clients may join by themselves: a function of (identity, group) that says yes or no."""
        self.gateway_settings["may_join"] = function
        return function

    def on_connect(self, function: F) -> F:
        """Declare a function of a `gateway.lifecycle.Client` that is called in the gateway's process when a client has
        connected and has its session (new, resumed or reset). It may be async or not, may take 10 s, and delays nobody;
        what it raises is logged. Several may be declared."""
        return self._add_hook("on_connect", function)

    def on_disconnect(self, function: F) -> F:
        """The same for the end of a connection: a function of the client and a `gateway.lifecycle.Reason` (`code`,
        `text`). It runs after `on_connect`. A gateway that is killed calls nothing: see `presence`."""
        return self._add_hook("on_disconnect", function)

    def _add_hook(self, name: str, function: F) -> F:
        if not callable(function):
            raise ConfigError(name, function, f"a function: write @app.{name}, without parentheses")
        self.gateway_settings[name] = (*self.gateway_settings.get(name, ()), function)
        return function

    def gateway(self, **settings: Any) -> Gateway:
        """A gateway for this app: `app.gateway(ws="0.0.0.0:8765", authenticate=check).run()`, or inside a loop of your
        own `async with app.gateway(): ...`."""
        from veredus.gateway.config import GatewayConfig
        from veredus.gateway.server import Gateway

        return Gateway(self, GatewayConfig.make(**{**self.gateway_settings, **settings}))
