"""Keys that are made of a task's arguments: a template such as `user:{user_id}`, or a function."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from veredus.errors import ConfigError, near
from veredus.model.depends import Dependency
from veredus.model.names import check_name

KeyFunction = Callable[..., str | int | None]
"""Called with those arguments of the task that it has parameters for, by name; None for no key."""
TEMPLATE = 'a template such as "user:{user_id}" or "{order.customer}" (write {{ for a brace)'


class KeyRule:
    """How a key follows from the arguments of a task."""

    __slots__ = ("_function", "_parts", "_takes", "option", "source")

    def __init__(self, option: str, source: str | KeyFunction) -> None:
        self.option = option
        self.source = source
        self._function = source if callable(source) else None
        self._parts: list[tuple[str, str]] = [] if callable(source) else _parse(option, source)
        self._takes = _taken(source) if callable(source) else {}

    @property
    def names(self) -> list[str]:
        """The arguments that it needs."""
        if self._takes is not None and self._function is not None:
            return [name for name, is_needed in self._takes.items() if is_needed]
        return [field.partition(".")[0] for _, field in self._parts if field]

    def key(self, named: Mapping[str, Any]) -> str | None:
        """The key for these arguments, which have their defaults. Raises ConfigError."""
        if self._function is None:
            made: Any = "".join(text + (self._value(field, named) if field else "") for text, field in self._parts)
        else:
            self.check(named)
            taken = self._takes
            try:
                made = self._function(**{k: v for k, v in named.items() if taken is None or k in taken})
            except Exception as exc:  # a function of the user's may raise anything
                allowed = f"a function of the task's arguments; it raised {type(exc).__name__}: {exc}"
                raise ConfigError(self.option, self.source, allowed) from exc
        if made is None:
            return None
        return check_name(self.option, str(made) if isinstance(made, int) and not isinstance(made, bool) else made)

    def _value(self, field: str, named: Mapping[str, Any]) -> str:
        name, *path = field.split(".")
        if name not in named:
            raise self._unknown(name, named)
        value = named[name]
        for step in path:
            try:
                value = value[step] if isinstance(value, Mapping) else getattr(value, step)
            except (KeyError, AttributeError) as exc:
                raise ConfigError(self.option, self.source, f"an argument {name!r} that has {step!r}") from exc
        return str(value)

    def _unknown(self, name: str, named: Mapping[str, Any]) -> ConfigError:
        has = ", ".join(map(repr, named)) or "no arguments"
        return ConfigError(self.option, self.source, f"names of the task's arguments; it has {has}{near(name, named)}")

    def check(self, names: Mapping[str, Any]) -> None:
        """Raises ConfigError if it needs what the task does not have."""
        for name in self.names:
            if name not in names:
                raise self._unknown(name, names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRule) and (self.option, self.source) == (other.option, other.source)

    def __hash__(self) -> int:
        return hash((self.option, self.source))

    def __repr__(self) -> str:
        return repr(self.source)


def key_or_rule(option: str, given: Any) -> str | KeyRule | None:
    """What was given for a key: a text without braces is the key itself."""
    if given is None or isinstance(given, KeyRule):
        return given
    if callable(given):
        return KeyRule(option, given)
    text = check_name(option, given)
    if "{" not in text and "}" not in text:
        return text
    rule = KeyRule(option, text)
    return rule if rule.names else check_name(option, "".join(part for part, _ in rule._parts))


def fixed(option: str, key: str | KeyRule | None) -> str:
    """The key itself; empty for none. Raises ConfigError if it still depends on arguments."""
    if isinstance(key, KeyRule):
        raise ConfigError(option, key.source, "a key without arguments here, where there are none")
    return key or ""


@lru_cache(maxsize=1024)
def parameters_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The names of a function's arguments, in their order, with the defaults of those that have one."""
    found = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in found if not isinstance(one.default, Dependency)}


def named_arguments(parameters: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments by name, with defaults."""
    defaults = {name: value for name, value in parameters.items() if value is not inspect.Parameter.empty}
    return {**defaults, **dict(zip(parameters, args, strict=False)), **kwargs}


def _taken(function: KeyFunction) -> Mapping[str, bool] | None:
    """The parameters of a function, and whether it needs them; None if it takes all there are."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_KEYWORD for one in found):
        return None
    return {one.name: one.default is one.empty for one in found if one.kind is not one.VAR_POSITIONAL}


def _parse(option: str, text: str) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    try:
        for literal, field, form, conversion in string.Formatter().parse(text):
            if field is not None and (form or conversion or not all(map(str.isidentifier, field.split(".")))):
                raise ValueError
            parts.append((literal, field or ""))
    except ValueError:
        raise ConfigError(option, text, TEMPLATE) from None
    return parts
