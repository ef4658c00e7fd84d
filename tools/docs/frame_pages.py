"""The reference of frames: what client and gateway send each other, from `model/frames.py`."""

from __future__ import annotations

import inspect

from veredus.model.frames import FRAMES, CloseCode, ErrorCode, Kind, Type, resumable


def pages() -> dict[str, str]:
    parts = [
        "# Frames",
        "The values that travel between a client and the gateway, as `veredus.model.frames` has them. How they are"
        " written as protobuf and JSON, and in which order they come, is in [the protocol](../gateway-protocol.md).",
        "## From the client",
        *[_frame(number) for number in Type if number < Type.WELCOME],
        "## From the gateway",
        *[_frame(number) for number in Type if number >= Type.WELCOME],
        "## Kinds of messages",
        "\n".join(["| number | name |", "|---|---|", *(f"| {int(kind)} | `{kind.name}` |" for kind in Kind)]),
        "## Close codes",
        "\n".join(
            ["| code | name | then |", "|---|---|---|"]
            + [
                f"| {int(code)} | `{code.name}` | {'reconnect and resume' if resumable(code) else 'do not reconnect'} |"
                for code in CloseCode
            ]
        ),
        "## Error codes of requests",
        "\n".join(
            ["| code | name | may succeed later |", "|---|---|---|"]
            + [f"| {int(code)} | `{code.name}` | {'yes' if code.retryable else 'no'} |" for code in ErrorCode]
        ),
    ]
    return {"frames.md": "\n\n".join(parts) + "\n"}


def _frame(number: Type) -> str:
    cls = FRAMES[number]
    defaults = cls._field_defaults
    rows = "\n".join(
        f"| `{name}` | `{_kind(cls, name)}` | {f'`{defaults[name]!r}`' if name in defaults else 'required'} |"
        for name in cls._fields
    )
    head = f"### {cls.__name__}\n\nNumber {int(number)}. {inspect.getdoc(cls)}"
    return f"{head}\n\n| field | type | default |\n|---|---|---|\n{rows}"


def _kind(cls: type, name: str) -> str:
    kind = cls.__annotations__[name]
    text = getattr(kind, "__forward_arg__", None) or getattr(kind, "__name__", None) or str(kind)
    return str(text).replace("|", "\\|")
