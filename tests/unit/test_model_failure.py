"""What is kept of an error: bounded texts with the class, and tracebacks without values."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.errors import ResultError, SkipRetry
from veredus.handlers.executors.remote_errors import pack_error, rebuild
from veredus.handlers.mux import HandlerNotFound
from veredus.model.failure import MOST, cut, describe, is_short, one_line, read_traceback, traceback_of, write_traceback
from veredus.wire.payload import encode_value


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x"), "ValueError: x"),
        (ValueError("  x\n"), "ValueError: x"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
        (Mute(), "Mute"),
        (SkipRetry(), "skip retry for the task"),
        (SkipRetry("no use"), "SkipRetry: no use"),
        (ResultError("no"), "ResultError: no"),
        (HandlerNotFound("mail"), 'handler not found for task "mail"'),
        (asyncio.CancelledError(), "CancelledError"),
        (ValueError("a\ud800b"), "ValueError: a?b"),
    ],
)
def test_an_error_is_described_with_its_class(error: BaseException, text: str) -> None:
    assert describe(error) == text


@given(st.text(), st.integers(50, 300), st.integers(1, 50))
def test_a_text_is_cut_between_characters_and_says_so(part: str, most: int, times: int) -> None:
    text = part * times
    kept = cut(text, most)
    assert len(kept.encode()) <= most
    whole = text.encode("utf-8", "replace").decode()
    if kept != whole:
        assert len(whole.encode()) > most
        begun, mark, _ = kept.rpartition("... (cut, ")
        assert mark
        assert whole.startswith(begun)
        assert len(begun.encode()) > most - 45


def test_ten_megabytes_of_text_cost_eight_kibibytes_and_no_time() -> None:
    error = ValueError("ü" * 10_000_000)
    began = time.perf_counter()
    text = describe(error)
    assert time.perf_counter() - began < 1.0
    assert text.startswith("ValueError: üüü")
    assert text.endswith("ü... (cut, 10,000,012 characters)")
    assert MOST - 2 <= len(text.encode()) <= MOST
    assert len(one_line(error).encode()) <= 1024
    assert not is_short(error)


def test_what_no_log_file_can_hold_is_not_left_to_the_formatter() -> None:
    assert is_short(ValueError("ü"))
    assert not is_short(ValueError("a\ud800b"))
    error = ValueError("x")
    error.add_note("ü" * 2 * MOST)
    assert not is_short(error)


def test_a_line_of_the_log_is_one_line() -> None:
    assert one_line(ValueError("two\n  lines")) == "ValueError: two lines"


def _raised(how: Any) -> BaseException:
    try:
        how()
    except BaseException as exc:
        return exc
    raise AssertionError("it raises")


def _fails(secret: str = "s3cret") -> None:
    raise ValueError("boom")


def test_a_traceback_says_where_and_has_no_values() -> None:
    text = traceback_of(_raised(_fails))
    lines = text.split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: boom"
    assert lines[-2] == '    raise ValueError("boom")'
    assert lines[-3].endswith(", in _fails")
    assert __file__ in lines[-3]
    assert "s3cret" not in text


def test_causes_and_contexts_are_told_first() -> None:
    def wraps() -> None:
        try:
            _fails()
        except ValueError as exc:
            raise KeyError("outer") from exc

    def stumbles() -> None:
        try:
            wraps()
        except KeyError:
            raise RuntimeError("last")  # noqa: B904

    text = traceback_of(_raised(stumbles))
    parts = ["ValueError: boom", "direct cause", "KeyError: 'outer'", "During handling", "RuntimeError: last"]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    assert text.endswith("RuntimeError: last")


def test_a_circle_of_causes_ends() -> None:
    error, other = _raised(_fails), KeyError()
    error.__cause__, other.__cause__ = other, error
    assert traceback_of(error).endswith("ValueError: boom")
    assert is_short(error)


def test_notes_and_parts_of_a_group_are_told() -> None:
    def many() -> None:
        inner = _raised(_fails)
        inner.add_note("of order 7")
        assert isinstance(inner, Exception)
        raise ExceptionGroup("several", [inner, TypeError("other")])

    text = traceback_of(_raised(many))
    assert "ExceptionGroup: several (2 sub-exceptions)" in text
    assert "  (1) ValueError: boom\n  (1) of order 7" in text
    assert text.endswith("  (2) TypeError: other")


def _recurse(text: str, depth: int) -> None:
    if not depth:
        raise ValueError(text)
    _recurse(text, depth - 1)


def _recurse_much() -> None:
    _recurse("x" * 10_000_000, 3)


@pytest.mark.parametrize("text", ["x", "ü" * 10_000_000], ids=["short", "long"])
def test_of_a_long_traceback_the_innermost_frames_are_kept(text: str) -> None:
    def deep() -> None:
        _recurse(text, 400)

    error = _raised(deep)
    assert not is_short(error)
    told = traceback_of(error)
    assert len(told.encode()) <= MOST
    assert "frames left out" in told
    assert "raise ValueError(text)" in told.split("\n")[-2]
    assert told.split("\n")[-1].startswith("ValueError: ")


def test_a_traceback_beyond_the_limit_keeps_its_end() -> None:
    error = _raised(_fails)
    for number in range(4):
        outer = ValueError("ü" * 900 + str(number))
        outer.__cause__, error = error, outer
    for _ in range(5):
        error.add_note("ü" * 500)
    text = traceback_of(error)
    assert len(text.encode()) <= MOST
    assert text.startswith("... (cut)\n")
    assert text.endswith("\n" + "ü" * 500)


def test_frames_that_lead_to_the_handler_are_left_out() -> None:
    assert traceback_of(_raised(lambda: encode_value(object()))) != "", "this test itself is no frame of ours"
    error = _raised(lambda: encode_value(object()))
    while error.__traceback__ is not None and "/tests/" in error.__traceback__.tb_frame.f_code.co_filename:
        error.__traceback__ = error.__traceback__.tb_next
    error.__cause__ = None
    assert traceback_of(error) == ""


def test_an_error_that_was_never_raised_has_no_traceback() -> None:
    assert traceback_of(ValueError("x")) == ""
    assert traceback_of(None) == ""


def test_an_error_of_another_process_is_described_as_it_was_there() -> None:
    there = _raised(_recurse_much)
    here = rebuild(json.loads(json.dumps(pack_error(there))))
    assert type(here) is ValueError
    assert describe(here) == describe(there)
    assert describe(here).endswith("(cut, 10,000,012 characters)")
    assert traceback_of(here) == traceback_of(there)
    assert "raise ValueError(text)" in "".join(here.__notes__)


def test_a_stored_traceback_counts_for_its_own_failure_only() -> None:
    stored = write_traceback(1700, 2, "Trace\nback")
    assert read_traceback(1700, 2, stored) == "Trace\nback"
    assert read_traceback(1701, 2, stored) == ""
    assert read_traceback(1700, 3, stored) == ""
    assert read_traceback(1700, 2, b"") == ""
    assert write_traceback(1700, 2, "") == b""
