"""An app in the process of a handler: it uses the server, and in a test the clock, of the worker that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from veredus.clock import Clock
    from veredus.store.redis import Redis

Fact = dict[str, Any]
"""Plain values, as JSON has them."""


class Stage(Protocol):
    """What stands in for server and time while an app is being tested."""

    clock: Clock

    def open_redis(self, name: str) -> Redis: ...

    def describe(self) -> Fact:
        """All that the process of a handler needs to be on it too."""
        ...

    def heard(self, fact: Fact) -> None:
        """What the app in the process of a handler told."""
        ...


class Surroundings:
    """The part of an app that follows its handlers into their processes."""

    lifespan: Any
    url: str | None
    _url: str | None
    _stage: Stage | None

    def __init__(self) -> None:
        self._state: Any = None
        self._away = False

    @property
    def state(self) -> Any:
        """What `lifespan` yields, in a running worker."""
        if self._away and self.lifespan is not None:
            raise LookupError(
                'app.state is not there in a handler with run_in="process": what `lifespan` opened stays in the '
                "worker's process; open it in the handler, at the top of its module, or with Depends(...)"
            )
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = value

    def surroundings(self) -> Fact:
        """What `move_to` needs in another process: the server that is used here, whoever said so."""
        return {"url": self.url, "stage": None if self._stage is None else self._stage.describe()}

    def move_to(self, place: Fact, tell: Callable[[Fact], None]) -> None:
        """In the process of a handler: use what the worker uses. `tell` brings a fact to `heard` in the worker."""
        self._away = True
        if place["url"] is not None:
            self._url = place["url"]
        if place["stage"] is not None:
            self._enter_stage(place["stage"], tell)

    def heard(self, fact: Fact) -> None:
        """Of the app in the process of a handler."""
        if self._stage is not None:
            self._stage.heard(fact)

    def _enter_stage(self, described: Fact, tell: Callable[[Fact], None]) -> None:
        raise NotImplementedError
