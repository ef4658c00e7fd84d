"""An unsent task: what `task.call(...)` makes and `app.enqueue_many` sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from veredus.errors import PayloadTooLarge
from veredus.model.options import Options

T = TypeVar("T", covariant=True)

DEFAULT_MAX_PAYLOAD = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A task's type, encoded payload and options."""

    type: str
    payload: bytes | None
    options: Options

    def check_size(self, limit: int) -> None:
        if self.payload is not None and len(self.payload) > limit:
            raise PayloadTooLarge(len(self.payload), limit)
