"""Entries and events on the wire, compared with what Asynq itself wrote."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import golden
from tests.support.golden import raw
from veredus import App
from veredus.scheduler.schedule_state import ScheduleState
from veredus.wire.messages import as_dict
from veredus.wire.schedules import EnqueueRecord, EntryRecord, decode_entry, decode_event, encode_entry, encode_event
from veredus.wire.times import NEVER_SECONDS


def _shown(name: str) -> list[Any]:
    (key,) = [key for key in golden.load(name)["redis"]["keys"] if key["key"].startswith("asynq:schedulers:{")]
    return list(key["items"])


ENTRIES = [(name, item) for name in ("scheduler", "scheduler-before-first") for item in _shown(name)]


@pytest.mark.parametrize(("name", "item"), ENTRIES)
def test_entries_of_asynq_decode_and_encode_to_the_same_bytes(name: str, item: Any) -> None:
    record = decode_entry(raw(item))
    assert record.spec == item["decoded"]["spec"]
    assert encode_entry(record) == raw(item)


@pytest.mark.parametrize(("name", "item"), ENTRIES)
def test_the_same_declaration_shows_the_same_fields(name: str, item: Any) -> None:
    wanted = item["decoded"]
    app = App("redis://nowhere.invalid")
    call = app.call(
        "report:daily",
        {"r": 1},
        queue="reports",
        max_retry=7,
        timeout=90,
        retention=3600,
        headers={"src": "cron"},
    )
    line = ScheduleState(app.schedule(wanted["spec"], call))
    previous = wanted["prev_enqueue_time"]["seconds"]
    fired = None if previous == NEVER_SECONDS else previous
    line.at = wanted["next_enqueue_time"]["seconds"] - 5 if "@every" in wanted["spec"] else 1794781374
    line.move(line.at, fired=False)
    line.fired = fired
    shown = as_dict("SchedulerEntry", encode_entry(line.record()))
    assert shown.pop("id") != wanted["id"]
    assert shown.pop("next_enqueue_time").seconds == wanted["next_enqueue_time"]["seconds"]
    assert shown.pop("prev_enqueue_time").seconds == previous
    assert list(shown.pop("enqueue_options")) == wanted["enqueue_options"]
    assert shown.pop("task_payload") == raw(wanted["task_payload"])
    assert shown == {"spec": wanted["spec"], "task_type": wanted["task_type"]}


def test_never_is_the_zero_time_of_go() -> None:
    record = EntryRecord(id="e", spec="@daily", task_type="t", task_payload=b"")
    data = encode_entry(record)
    assert data.endswith(bytes.fromhex("3a0b088092b8c398feffffff01"))
    assert decode_entry(data) == record


def test_events() -> None:
    (key,) = [k for k in golden.load("scheduler")["redis"]["keys"] if k["key"].startswith("asynq:scheduler_history:")]
    for member in key["members"]:
        event = decode_event(raw(member))
        assert event.task_id == member["decoded"]["task_id"]
        assert int(event.at) == int(member["score"])
    assert decode_event(encode_event(EnqueueRecord("task", 1794781379.25))) == EnqueueRecord("task", 1794781379.25)
