"""Injects the parameters that a handler declares with Depends(...), and cleans up after it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache
from typing import Any

from veredus.model.depends import Dependency


@cache
def dependencies(function: Callable[..., Any]) -> tuple[tuple[str, Dependency], ...]:
    """The parameters of a function that are injected."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple((p.name, p.default) for p in parameters if isinstance(p.default, Dependency))


async def call_injected(function: Callable[..., Any], call: Callable[[dict[str, Any]], Awaitable[Any]]) -> Any:
    """Inject, call, clean up. An error is raised even if the clean-up of a dependency suppresses it."""
    stack = AsyncExitStack()
    try:
        result = await call(await inject(function, stack))
    except BaseException as exc:
        await stack.__aexit__(type(exc), exc, exc.__traceback__)
        raise
    await stack.aclose()
    return result


async def inject(function: Callable[..., Any], stack: AsyncExitStack) -> dict[str, Any]:
    """The values of this function's dependencies. They are cleaned up when the stack is closed."""
    return await _resolve(function, stack, {})


async def _resolve(function: Callable[..., Any], stack: AsyncExitStack, made: dict[Any, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, dependency in dependencies(function):
        provider = dependency.provider
        if provider not in made:
            made[provider] = await _provide(provider, stack, await _resolve(provider, stack, made))
        values[name] = made[provider]
    return values


async def _provide(provider: Callable[..., Any], stack: AsyncExitStack, arguments: dict[str, Any]) -> Any:
    if inspect.isasyncgenfunction(provider):
        return await stack.enter_async_context(asynccontextmanager(provider)(**arguments))
    if inspect.isgeneratorfunction(provider):
        return stack.enter_context(contextmanager(provider)(**arguments))
    value = provider(**arguments)
    return await value if inspect.isawaitable(value) else value
