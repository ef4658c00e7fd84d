"""A method that fails the first times it is called."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest


class Broken(RuntimeError):
    """What a test makes something fail with."""


class Failing:
    """Replaces a method of a class; `calls` counts from the first on, also after it works again."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: type,
        name: str,
        *,
        times: float = 1,
        error: type[BaseException] = Broken,
    ) -> None:
        self.calls = 0
        original: Any = inspect.getattr_static(owner, name)

        def fails() -> None:
            self.calls += 1
            if self.calls <= times:
                raise error("broken by the test")

        if inspect.iscoroutinefunction(original):

            @functools.wraps(original)
            async def replaced(*args: Any, **kwargs: Any) -> Any:
                fails()
                return await original(*args, **kwargs)

        else:

            @functools.wraps(original)
            def replaced(*args: Any, **kwargs: Any) -> Any:
                fails()
                return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, replaced)
