"""What is stored about an error: its class and text, and where it was raised; limited in size."""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import os
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from veredus.errors import RevokeTask, SkipRetry

MOST = 8 * 1024
"""Bytes of an error text, and of a traceback."""
MOST_IN_LOG = 1024
"""Bytes of an error text in a line of the log."""

_LINK_BYTES = 1024
_CHAIN = 5
_OUTER_FRAMES, _INNER_FRAMES = 4, 20
_MOST_FRAMES = 100
_SOURCE_CHARACTERS = 160
_PACKAGE = Path(__file__).parent.parent
_OUR_FRAMES = tuple(
    f"{_PACKAGE / package}{os.sep}" for package in ("worker", "handlers", "wire", "telemetry", "gateway")
)
_INSTALLED = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_NOT_THE_USERS = (f"{_PACKAGE}{os.sep}", *_INSTALLED, "<frozen ")
_MAIN = ("__main__", "__mp_main__")
_HEAD = "Traceback (most recent call last):"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n"
_TEXTLESS: dict[type, str] = {SkipRetry: "skip retry for the task", RevokeTask: "revoke task"}
"""As in Asynq."""


REMOTE = "__veredus_remote__"
"""An attribute of an error that was raised in another process: its description, its traceback and its place there."""
PLACE = "__veredus_place__"
"""An attribute of an error that no line of the user's has raised: the place that it is about."""


def describe(error: BaseException, most: int = MOST) -> str:
    """The class and text of an error, in at most `most` bytes of UTF-8. A cut text says so."""
    if remote := getattr(error, REMOTE, None):
        return cut(remote[0], most)
    name = type(error).__name__
    try:
        text = str(error)
        text = text if len(text) > most else text.strip()
    except BaseException:  # a `__str__` of the user's may raise anything
        text = ""
    if not text:
        return _TEXTLESS.get(type(error)) or cut(name, most)
    if getattr(type(error), "has_asynqs_text", False) is True:
        return cut(text, most)
    return cut(f"{name}: {text[:most]}", most, len(name) + 2 + len(text))


def class_of(error: BaseException) -> str:
    """The name of an error's class, with its module unless that is Python's own or the main script."""
    kind = type(error)
    prefix = "" if kind.__module__ in ("builtins", *_MAIN) else f"{kind.__module__}."
    return cut(f"{prefix}{kind.__qualname__}", _LINK_BYTES)


def text_of(error: BaseException, most: int = MOST) -> str:
    """The text of an error without its class; empty if it has none."""
    try:
        text = str(error)
        return cut(text[:most].strip(), most, max(len(text), 1)) if text.strip() else _TEXTLESS.get(type(error), "")
    except BaseException:  # __str__ of a user's class may raise anything
        return ""


def place_of(error: BaseException | None) -> str:
    """Where an error was raised in the user's own code, as `shop.tasks.charge:41`; empty if that is unknown. The
    same for every error of one line, also if a library that the line calls raised it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if remote := getattr(error, REMOTE, None):
            return str(remote[2])
        if place := getattr(error, PLACE, ""):
            return str(place)
        if frames := _without_ours(error.__traceback__):
            own = [one for one in frames if not one[0].f_code.co_filename.startswith(_NOT_THE_USERS)]
            frame, number = (own or frames)[-1]
            return _place(frame.f_globals, frame.f_code, number)
        error = error.__cause__ or error.__context__
    return ""


def concerns(error: BaseException, function: Callable[..., Any]) -> None:
    """This error has no place of its own: it is about that function."""
    while isinstance(function, functools.partial):
        function = function.func
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is not None:
        setattr(error, PLACE, _place(plain.__globals__, code, code.co_firstlineno))


def _place(module_globals: Mapping[str, Any], code: CodeType, number: int) -> str:
    module = module_globals.get("__name__", "")
    if not module or module in _MAIN:
        module = Path(code.co_filename).stem
    return cut(f"{module}.{code.co_qualname}:{number}", _LINK_BYTES)


def one_line(error: BaseException) -> str:
    """`describe`, for a line of the log."""
    return cut(" ".join(describe(error).split()), MOST_IN_LOG)


def cut(text: str, most: int, length: int | None = None) -> str:
    """At most that many bytes of UTF-8, without splitting a character. Invalid characters are replaced. `length`:
    that of the whole text, if this is only its beginning."""
    length = length or len(text)
    data = text[: most + 1].encode("utf-8", "replace")
    if length == len(text) and len(data) <= most:
        return data.decode()
    mark = f"... (cut, {length:,} characters)"
    return data[: most - len(mark)].decode("utf-8", "ignore") + mark


def traceback_of(error: BaseException | None) -> str:
    """The traceback of an error as Python prints it, without the values of variables: at most 8 KiB, which always
    include the innermost frames and the last of several errors. Empty if all frames are Veredus's."""
    try:
        text = "\n".join(_chain(error)) if error is not None else ""
    except Exception:  # a loader of source code, or a class of the user's, that raises
        return ""
    return cut_traceback(text, MOST)


def cut_traceback(text: str, most: int) -> str:
    """The end of a traceback, cut to a number of UTF-8 bytes and to whole lines: the innermost frames and the error."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    mark = "... (cut)\n"
    tail = data[len(mark) - most :].decode("utf-8", "ignore")
    return mark + tail.partition("\n")[2]


def drop_older_raises(error: BaseException) -> None:
    """Call this where an error is caught. An exception object that is raised repeatedly collects the frames of every
    raise and keeps them, and their variables, alive. Only those of the last raise are kept. An older raise starts
    where the catching function, which is always the outermost, appears a second time."""
    trace = error.__traceback__
    if trace is None:
        return
    catches = trace.tb_frame.f_code
    while trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code is catches:
            trace.tb_next = None
            return
        trace = trace.tb_next


def is_short(error: BaseException) -> bool:
    """Whether Python's own traceback of this error is limited in size, valid UTF-8, and says where it was raised."""
    left, seen, waiting = 3 * MOST, set(), [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        try:
            text = "".join((str(one), *getattr(one, "__notes__", ())))
            left -= len(text) if len(text) > left else len(text.encode())
        except BaseException:  # as above
            return False
        frames = sum(1 for _ in itertools.islice(traceback.walk_tb(one.__traceback__), _MOST_FRAMES + 1))
        if left < 0 or len(seen) > _CHAIN or frames > _MOST_FRAMES:
            return False
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return True


def write_traceback(failed_at: int, retried: int, text: str) -> bytes:
    """A traceback as stored beside the task's message, with the failure that it belongs to."""
    return f"{failed_at} {retried}\n{text}".encode() if text else b""


def read_traceback(failed_at: int, retried: int, stored: bytes) -> str:
    """Empty if it belongs to an earlier failure: Go keeps the field when its own attempts fail."""
    stamp, _, text = stored.partition(b"\n")
    return text.decode("utf-8", "replace") if stamp == f"{failed_at} {retried}".encode() else ""


def _chain(error: BaseException) -> list[str]:
    """The error and its causes and contexts, the original one first."""
    blocks: list[list[str]] = []
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen and len(seen) < _CHAIN:
        seen.add(id(one))
        if remote := getattr(one, REMOTE, None):  # the handler's process has written the rest
            return [line for block in ([remote[1]], *reversed(blocks)) for line in block] if remote[1] else []
        blocks.append(_block(one))
        blocks.append([_CAUSE if one.__cause__ is not None else _CONTEXT])
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    blocks.pop()
    if all(block[0] != _HEAD for block in blocks):
        return []
    return [line for block in reversed(blocks) for line in block]


def _block(error: BaseException, *, parts: bool = True) -> list[str]:
    """The frames and the text of one error; for an exception group, also those of its members."""
    lines = [*_frames(error.__traceback__), describe(error, _LINK_BYTES)]
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        lines += [cut(note, _LINK_BYTES) for note in notes[:_CHAIN] if isinstance(note, str)]
    if parts and isinstance(error, BaseExceptionGroup):
        for number, part in enumerate(error.exceptions[:_CHAIN], 1):
            lines += [f"  ({number}) {line}" for line in _block(part, parts=False)]
    return lines


def _frames(trace: TracebackType | None) -> list[str]:
    found = _without_ours(trace)
    left_out = max(0, len(found) - _OUTER_FRAMES - _INNER_FRAMES)
    if left_out:
        del found[_OUTER_FRAMES : _OUTER_FRAMES + left_out]
    lines = [_HEAD] if found else []
    for position, (frame, number) in enumerate(found):
        if left_out and position == _OUTER_FRAMES:
            lines.append(f"  ... {left_out:,} frames left out ...")
        file = frame.f_code.co_filename
        lines.append(f'  File "{file}", line {number}, in {frame.f_code.co_qualname}')
        if source := linecache.getline(file, number, frame.f_globals).strip():
            lines.append(f"    {source[:_SOURCE_CHARACTERS]}")
    return lines


def _without_ours(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    """The frames, without those that only lead to the handler."""
    found: list[tuple[FrameType, int]] = []
    for frame, number in traceback.walk_tb(trace):
        if found or not frame.f_code.co_filename.startswith(_OUR_FRAMES):
            found.append((frame, number))
    return found
