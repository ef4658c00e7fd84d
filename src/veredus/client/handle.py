"""What a producer holds of a task it sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Handle(Generic[T]):
    """A task that Redis has. `state` is the one it was stored in."""

    id: str
    queue: str
    type: str
    state: str
    created: bool = True
    """False when nothing was stored, because the task is unique and another one is there already, or (in a batch)
    because the id is taken."""
