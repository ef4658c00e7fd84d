"""Default values that are provided by the worker and never travel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Dependency:
    """Marks a parameter: its value is what `provider` returns (or yields) in the worker, once per attempt."""

    provider: Callable[..., Any]


def Depends(provider: Callable[..., Any]) -> Any:
    """`async def send(to: str, db: Pool = Depends(get_pool))`: `db` is filled in by the worker.

    The provider may be a plain or async function, or a generator whose code after `yield` runs when the attempt ends;
    it may have dependencies of its own.
    """
    return Dependency(provider)
