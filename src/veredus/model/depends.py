"""Parameters whose values the worker provides; they are not part of the payload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Dependency:
    """Marks a parameter. The worker passes what `provider` returns (or yields), once per attempt."""

    provider: Callable[..., Any]


def Depends(provider: Callable[..., Any]) -> Any:
    """`async def send(to: str, db: Pool = Depends(get_pool))`: the worker passes `db`.

    The provider is a plain or async function, or a generator whose code after `yield` runs when the attempt ends. It
    may have dependencies itself.
    """
    return Dependency(provider)
