"""Options: checked where they are given, with the field, the value and what is allowed; merged from task to call."""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.errors import ConfigError
from veredus.model import options
from veredus.model.build import IDS_AT_ONCE, build, due_text, expires_text, new_id
from veredus.model.options import Options

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001
AWARE = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("queue", value) for value in ("", "  ", None, 5, b"x", "}x", "\ud800")],
        *[("max_retry", value) for value in (-1, 1.5, True, "3", None, 2**31)],
        *[("timeout", value) for value in (0, -1, True, "3", float("nan"), float("inf"), timedelta(0), 3e9 + 1)],
        *[("deadline", value) for value in (NAIVE, 5, "2030-01-01", True)],
        *[("delay", value) for value in (-0.1, True, "3", float("nan"), timedelta(-1), AWARE)],
        *[("at", value) for value in (NAIVE, 5, timedelta(1))],
        *[
            (name, datetime.fromtimestamp(second, UTC))
            for name in ("at", "deadline", "expires")
            for second in (-1, 0, 7_258_118_400, 9_999_999_998, 9_999_999_999, 10_000_000_000)
        ],
        *[("retention", value) for value in (-1, True, "3")],
        *[("expires", value) for value in (0, -1, True, NAIVE, "3")],
        *[("task_id", value) for value in ("", " ", 5, b"x", "\udfff")],
        *[("headers", value) for value in ("x", {"a": 1}, {1: "a"}, [("a", "b")], {"a": "\ud800"})],
        *[("unique_for", value) for value in (0.5, 0, -1, True, "3")],
    ],
)
def test_a_wrong_value_names_the_field_and_what_is_allowed(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Options().merged({name: value})
    assert caught.value.field == name
    assert caught.value.allowed
    assert str(caught.value).startswith(f"{name}: got ")


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("at", datetime(2199, 12, 31, tzinfo=UTC), datetime(2199, 12, 31, tzinfo=UTC)),
        ("max_retry", 0, 0),
        ("max_retry", 2**31 - 1, 2**31 - 1),
        ("delay", 0, 0.0),
        ("delay", timedelta(milliseconds=1), 0.001),
        ("retention", 3_000_000_000, 3e9),
        ("timeout", None, None),
        ("unique_for", 1, 1.0),
        ("unique_for", None, None),
        ("expires", AWARE, AWARE),
    ],
)
def test_what_is_just_allowed_is_kept(name: str, value: Any, kept: Any) -> None:
    assert getattr(Options().merged({name: value}), name) == kept


@pytest.mark.parametrize("name", ["order_key", "limit_key"])
def test_a_group_runs_as_one_task_so_its_members_have_no_order_and_no_limit(name: str) -> None:
    keyed = Options().merged({name: "k"})
    with pytest.raises(ConfigError, match=f"either {name} or group"):
        keyed.merged({"group": "g"})
    assert keyed.merged({"group": "g", name: None}).group == "g"


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("dealy", "delay"),
        ("max_retries", "max_retry"),
        ("que", "queue"),
        ("time_out", "timeout"),
        ("header", "headers"),
    ],
)
def test_an_unknown_option_suggests_the_nearest(typo: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        Options().merged({typo: 1})


def test_delay_and_at_exclude_and_replace_each_other() -> None:
    with pytest.raises(ConfigError, match="either delay or at"):
        Options().merged({"delay": 1, "at": AWARE})
    later = Options().merged({"delay": 5}).merged({"at": AWARE})
    assert (later.delay, later.at) == (None, AWARE)
    again = later.merged({"delay": 5})
    assert (again.delay, again.at) == (5.0, None)


def test_merging_leaves_the_first_alone_and_headers_are_joined() -> None:
    first = Options().merged({"headers": {"a": "1", "b": "1"}, "max_retry": 3})
    second = first.merged({"headers": {"b": "2"}, "timeout": timedelta(seconds=2)})
    assert (first.headers, first.timeout) == ({"a": "1", "b": "1"}, None)
    assert (second.headers, second.timeout, second.max_retry) == ({"a": "1", "b": "2"}, 2.0, 3)
    assert first.merged({}) is first


@given(st.floats(min_value=0.001, max_value=1e9))
def test_a_delay_is_never_shortened(delay: float) -> None:
    text = due_text(Options().merged({"delay": delay}), 0.0)
    assert text.startswith("+")
    assert delay * 1000 - 1e-3 <= float(text[1:]) < delay * 1000 + 0.002


@pytest.mark.parametrize(("delay", "text"), [(0.25, "+250"), (0.2504, "+250.400"), (2e-6, "+0.002"), (1e-9, "+0.001")])
def test_a_delay_is_sent_to_the_microsecond(delay: float, text: str) -> None:
    assert due_text(Options().merged({"delay": delay}), 0.0) == text


@given(st.datetimes(min_value=datetime(2001, 1, 1), max_value=datetime(2199, 12, 31)), st.floats(0, 1e9))  # noqa: DTZ001
def test_an_instant_is_never_early_and_the_past_is_now(at: datetime, now: float) -> None:
    at = at.replace(tzinfo=UTC)
    text = due_text(Options().merged({"at": at}), now)
    if at.timestamp() <= now:
        assert text == ""
    else:
        assert 0 <= int(text) - at.timestamp() * 1000 + 0.001 < 1.002


@given(st.floats(min_value=0.001, max_value=1e8), st.one_of(st.none(), st.floats(min_value=0.001, max_value=1e8)))
def test_timeouts_and_retentions_are_rounded_up_to_whole_seconds(timeout: float, retention: float | None) -> None:
    message = build("t", b"", Options().merged({"timeout": timeout, "retention": retention}))
    assert timeout <= message.timeout < timeout + 1
    assert message.retention == 0 if retention is None else retention <= message.retention < retention + 1


def test_what_is_built_follows_asynqs_rules() -> None:
    assert (build("t", None, Options()).timeout, build("t", None, Options()).deadline) == (1800, 0)
    only_deadline = build("t", None, Options().merged({"deadline": AWARE}))
    assert (only_deadline.timeout, only_deadline.deadline) == (0, int(AWARE.timestamp()))
    assert build("t", None, Options()).id != build("t", None, Options()).id
    assert len(build("t", None, Options()).id) == 36


@pytest.mark.parametrize("name", ["", " ", None, 5, "a\ud800"])
def test_a_type_without_a_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="task type"):
        build(name, b"", Options())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, ""),
        ({"expires": 5}, "+5000"),
        ({"expires": 0.0005}, "+1"),
        ({"expires": AWARE}, str(int(AWARE.timestamp() * 1000))),
        ({"expires": 5, "delay": 4.9}, "+5000"),
    ],
)
def test_expiry_texts(options: dict[str, Any], text: str) -> None:
    assert expires_text(Options().merged(options), 1000.0) == text


def test_the_same_options_given_twice_are_one_object_and_what_only_looks_the_same_is_not() -> None:
    base = Options()
    first = base.merged({"max_retry": 1, "queue": "q"})
    assert base.merged({"max_retry": 1, "queue": "q"}) is first
    assert base.merged({"max_retry": 2, "queue": "q"}) != first
    assert Options(timeout=5.0).merged({"max_retry": 1, "queue": "q"}).timeout == 5.0
    for value in (True, 1.0):  # equal to 1, and refused all the same
        with pytest.raises(ConfigError, match="max_retry"):
            base.merged({"max_retry": value, "queue": "q"})


def test_options_that_differ_from_call_to_call_are_not_kept_and_those_kept_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "_MERGED", {})
    for number in range(10):
        Options().merged({"task_id": f"{number}"})
        Options().merged({"headers": {"a": f"{number}"}})
    assert not any(kept.task_id or kept.headers for _, kept in options._MERGED.values())
    for number in range(options.MAX_MERGED + 1):
        assert Options().merged({"queue": f"q{number}"}).queue == f"q{number}"
    assert 0 < len(options._MERGED) <= options.MAX_MERGED


def test_ids_are_random_uuids_and_a_fork_makes_others() -> None:
    ids = [new_id() for _ in range(1000)]
    assert all(str(uuid.UUID(task_id)) == task_id and uuid.UUID(task_id).version == 4 for task_id in ids)
    assert len(set(ids)) == 1000
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, "".join(new_id() for _ in range(IDS_AT_ONCE)).encode())
        os._exit(0)
    os.wait()
    forks = os.read(reading, 36 * IDS_AT_ONCE).decode()
    os.close(reading)
    os.close(writing)
    assert not any(new_id() in forks for _ in range(IDS_AT_ONCE))
