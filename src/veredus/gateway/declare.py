"""GatewayDeclarations: the part of an app for clients, such as `@app.action` and `app.gateway`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from veredus.client.declaring import ActionSettings, Then
from veredus.client.task import P, R, Task
from veredus.errors import ConfigError
from veredus.model.request import ActionRule

if TYPE_CHECKING:
    from veredus.gateway.gateway import Gateway

AnyTask = Task[..., Any, Any]
F = TypeVar("F", bound=Callable[..., Any])


class ActionDeclarations:
    """The part of an app, and of a router, that declares what clients may call."""

    if TYPE_CHECKING:

        def _declare(self, function: Callable[..., Any], *, then: Then | None = ..., **settings: Any) -> AnyTask: ...

    def action(
        self,
        name: str | None = None,
        *,
        deadline: float | timedelta = 30.0,
        serial: bool = False,
        where: str = "worker",
        payload: str = "json",
        **settings: Unpack[ActionSettings],
    ) -> Callable[[Callable[P, R]], Task[P, R, Any]]:
        """Declare a task that clients may call by this name. Clients can call actions only.

        The return value is the response; a failure is an error response; `current().client` notifies the client. If
        there is no response within `deadline` seconds, the client gets error 408. `serial` runs the requests of a
        session one after the other. `where="gateway"` runs the action in the gateway, for quick work that needs no
        worker. The other settings are those of `task`; without `max_retry` a failure is final.
        """
        if name is not None and not isinstance(name, str):
            raise ConfigError("name", name, 'a string: write @app.action("render"), with parentheses')

        def allow(app: GatewayDeclarations, task: AnyTask) -> None:
            if where == "gateway" and task.run_in == "process":
                raise ConfigError("run_in", "process", "'loop' or 'thread' for an action with where=\"gateway\"")
            app.actions[task.name] = ActionRule.make(task.name, task.options.queue, deadline, serial, where)

        def declare(function: Callable[P, R]) -> Task[P, R, Any]:
            given: dict[str, Any] = {"max_retry": 0, **settings}
            named = name or getattr(function, "__name__", None)
            return cast("Task[P, R, Any]", self._declare(function, name=named, payload=payload, then=allow, **given))

        return declare


class GatewayDeclarations(ActionDeclarations):
    """Actions, authentication and hooks of an app."""

    actions: dict[str, ActionRule]
    gateway_settings: dict[str, Any]

    if TYPE_CHECKING:

        def load(self) -> None: ...

    def authenticate(self, function: F) -> F:
        """Declare the authenticator: a function, async or not, that takes the token and returns an `Identity` or raises
        `Unauthorized`. For JSON Web Tokens: `app.authenticate(gateway.auth.jwt(SECRET))`."""
        self.gateway_settings["authenticate"] = function
        return function

    def may_join(self, function: F) -> F:
        """Declare which groups clients may join by themselves: a function of (identity, group) that returns a bool."""
        self.gateway_settings["may_join"] = function
        return function

    def on_connect(self, function: F) -> F:
        """Declare a function of a `gateway.client_hooks.ConnectedClient`. The gateway calls it when a client has
        connected and has its session (new, resumed or reset). It may be async or not, may take 10 s and runs in the
        background; its exceptions are logged. You can declare several."""
        return self._add_hook("on_connect", function)

    def on_disconnect(self, function: F) -> F:
        """Declare a function that is called when a connection ends, after `on_connect`. It takes the client and a
        `gateway.client_hooks.CloseReason` (`code`, `text`). A gateway that is killed calls nothing: see `presence`."""
        return self._add_hook("on_disconnect", function)

    def _add_hook(self, name: str, function: F) -> F:
        if not callable(function):
            raise ConfigError(name, function, f"a function: write @app.{name}, without parentheses")
        self.gateway_settings[name] = (*self.gateway_settings.get(name, ()), function)
        return function

    def gateway(self, **settings: Any) -> Gateway:
        """A gateway for this app: `app.gateway(ws="0.0.0.0:8765", authenticate=check).run()`, or
        `async with app.gateway(): ...` inside your own loop."""
        from veredus.gateway.config import GatewayConfig
        from veredus.gateway.gateway import Gateway

        self.load()
        return Gateway(self, GatewayConfig.make(**{**self.gateway_settings, **settings}))
