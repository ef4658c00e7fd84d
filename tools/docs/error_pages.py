"""The reference of errors: the tree, and each class with its text and what it carries."""

from __future__ import annotations

import inspect
import re

from veredus import errors


def pages() -> dict[str, str]:
    opening = inspect.getdoc(errors) or ""
    parts = [
        "# Errors",
        "Every error of Veredus is a `VeredusError` and says what was wrong, with which value, and what is allowed."
        " Where Python has an error of the same meaning, it is that too: a `ConfigError` is a `ValueError`, a"
        " `ConnectionLost` a `ConnectionError`.",
        f"```text\n{opening}\n```",
    ]
    for cls in classes():
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        carried = _attributes(cls)
        parts += [
            f"## {cls.__name__}",
            f"{inspect.getdoc(cls) or ''}\n\nIs a {bases}." + (f" Carries {carried}." if carried else ""),
        ]
    return {"errors.md": "\n\n".join(parts) + "\n"}


def classes() -> list[type[BaseException]]:
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == errors.__name__
    ]


def _attributes(cls: type) -> str:
    if "__init__" not in vars(cls):
        return ""
    found = re.findall(r"self\.(\w+)", inspect.getsource(vars(cls)["__init__"]))
    return ", ".join(f"`{name}`" for name in dict.fromkeys(found))
