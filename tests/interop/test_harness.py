"""The harness itself: it reads Go's bytes as Go does, and a dump that was tampered with never passes."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop import protobuf
from tests.interop.differences import RULES, expected
from tests.interop.golden import Dump, Row, differences, golden_dump, golden_run, picture, restore, take
from tests.interop.replay import SENT_ONLY, WORKED, Replay
from tests.support.golden import load, scenarios
from tests.support.servers import VALKEY_ONLY
from veredus.wire import keys
from veredus.wire.messages import decode_task, encode_task
from veredus.wire.presence import ServerRecord, encode_server

READ = [name for name in scenarios() if not name.startswith(("group-set-", "group-scheduled-after", "scheduler"))]


def _values(node: Any) -> list[Any]:
    """Every decoded value in a golden file."""
    if isinstance(node, dict):
        found = [node] if "protobuf" in node else []
        return found + [value for child in node.values() for value in _values(child)]
    return [value for child in node for value in _values(child)] if isinstance(node, list) else []


def _plain(value: Any) -> Any:
    """A decoded value as the golden files spell it."""
    if isinstance(value, dict) and "b64" in value:
        return base64.b64decode(value["b64"])
    if isinstance(value, dict) and ("seconds" in value or "nanos" in value):
        return {"seconds": 0, "nanos": 0} | value
    return value


@pytest.mark.parametrize("name", READ)
def test_our_second_codec_agrees_with_go(name: str) -> None:
    for value in _values(load(name)["redis"]):
        kind = value["protobuf"].removeprefix("asynq.")
        data = base64.b64decode(value["b64"])
        fields, order = protobuf.decode(kind, data)
        assert fields == {key: _plain(item) for key, item in value["decoded"].items()}
        assert order == value["field_order"]
        assert protobuf.encode(kind, fields) == data


@pytest.mark.parametrize("vector", load("vectors")["task_message"], ids=lambda vector: vector["name"])
def test_task_message_vectors(vector: Any) -> None:
    data = base64.b64decode(vector["encoded_b64"])
    fields = {name: plain for name, value in vector["fields"].items() if (plain := _plain(value))}
    decoded, _ = protobuf.decode("TaskMessage", data)
    assert decoded == fields
    assert protobuf.encode("TaskMessage", decoded) == data
    if decoded.get("type") and decoded.get("id"):
        ours = decode_task(data)
        assert {name: getattr(ours, name) for name in fields} == fields
        assert protobuf.decode("TaskMessage", encode_task(ours))[0] == fields
        assert len(encode_task(ours)) == len(data)


@pytest.mark.parametrize("vector", load("vectors")["server_info"], ids=lambda vector: vector["name"])
def test_server_info_vectors(vector: Any) -> None:
    fields = dict(vector["fields"])
    start = fields.pop("start_time")
    fields["queues"] = fields["queues"] or {}
    record = ServerRecord(**fields, started_at=start["seconds"] + start["nanos"] / 1e9)
    ours, theirs = (
        protobuf.decode("ServerInfo", data)[0]
        for data in (encode_server(record), base64.b64decode(vector["encoded_b64"]))
    )
    for decoded in (ours, theirs):  # a float holds an instant of our times to about a microsecond
        decoded["start_time"] = (decoded["start_time"]["seconds"], decoded["start_time"]["nanos"] // 10_000)
    assert ours == theirs


@pytest.mark.parametrize("vector", load("vectors")["unique_key"], ids=lambda vector: vector["key"])
def test_unique_key_vectors(vector: Any) -> None:
    payload = None if vector["payload"] is None else _plain(vector["payload"])
    assert keys.unique(vector["queue"], vector["type"], payload) == vector["key"]


def test_key_name_vectors() -> None:
    ours = {
        "active": keys.active("q"),
        "aggregation_set(g,sid)": keys.aggregation_set("q", "g", "sid"),
        "aggregation_sets": keys.aggregation_sets("q"),
        "archived": keys.archived("q"),
        "cancel_channel": keys.CANCEL_CHANNEL,
        "completed": keys.completed("q"),
        "failed(1794780000)": keys.failed_on("q", "2026-11-15"),
        "failed_total": keys.failed("q"),
        "group(g)": keys.group("q", "g"),
        "groups": keys.groups("q"),
        "lease": keys.lease("q"),
        "paused": keys.paused("q"),
        "pending": keys.pending("q"),
        "processed(1794780000)": keys.processed_on("q", "2026-11-15"),
        "processed(1794787199 in UTC+9)": keys.processed_on("q", "2026-11-15"),
        "processed_total": keys.processed("q"),
        "queues": keys.QUEUES,
        "retry": keys.retry("q"),
        "scheduled": keys.scheduled("q"),
        "scheduler(h:1:s)": keys.scheduler_entries("h", 1, "s"),
        "scheduler_history(eid)": keys.scheduler_history("eid"),
        "schedulers": keys.SCHEDULERS,
        "server(h,1,s)": keys.server("h", 1, "s"),
        "servers": keys.SERVERS,
        "task(id)": keys.task("q", "id"),
        "workers": keys.WORKERS,
        "workers(h,1,s)": keys.workers("h", 1, "s"),
    }
    assert ours == load("vectors")["keys_of_queue_q"]


@VALKEY_ONLY
@pytest.mark.parametrize("name", READ)
async def test_a_dump_that_is_restored_is_the_same_dump(name: str, redis_client: Any) -> None:
    golden = golden_dump(name)
    await restore(redis_client, golden)
    again = await take(redis_client)
    for key, row in golden.rows.items():
        assert again.rows[key].value == row.value
        assert again.rows[key].type == row.type
        assert abs(again.rows[key].pttl_ms - row.pttl_ms) < 2000
    assert again.rows.keys() == golden.rows.keys()


def test_every_golden_time_fits_its_relation() -> None:
    """A relation that Go's own dump broke would be no relation."""
    odd = [
        (name, path, token)
        for name in READ
        if name != "server-killed-ttl-passed"  # its lease and records are stale on purpose
        for path, token in picture(golden_dump(name), golden_run(name)).items()
        if isinstance(token, str) and (path[1:2] == ("score",) or path[-1] in ("ttl", "pending_since", "start_time"))
        if token[:1].isdigit() and not any(word in token for word in (" after ", "10 s", "90 days"))
        and not (path[-1] == "ttl" and ":unique:" in path[0])
    ]  # fmt: skip
    assert odd == []


# Tampering: each change of one byte, score, order, type or time of a correct dump must be found.


def _bump(row: Row, by: int = 2) -> Row:
    """All scores a little later."""
    return dataclasses.replace(row, value={member: b"%d" % (int(score) + by) for member, score in row.value.items()})


def _with_field(row: Row, name: bytes, value: bytes | None) -> Row:
    fields = {key: item for key, item in row.value.items() if key != name}
    return dataclasses.replace(row, value=fields if value is None else fields | {name: value})


def _with_message(row: Row, **changes: Any) -> Row:
    fields, _ = protobuf.decode("TaskMessage", row.value[b"msg"])
    return _with_field(row, b"msg", protobuf.encode("TaskMessage", fields | changes))


Tamper = Callable[[Row], Row | None]
TAMPERS: list[tuple[str, str, str, Tamper]] = [
    ("scheduled", "a score a second off", ":scheduled", lambda row: _bump(row, 1)),
    ("scheduled", "a score with a fraction", ":scheduled", lambda row: dataclasses.replace(
        row, value={member: score + b".5" for member, score in row.value.items()})),
    ("scheduled", "a stale index", ":due", lambda row: _bump(row, 5000)),
    ("scheduled", "no index", ":due", lambda row: None),
    ("scheduled", "another state", ":t:", lambda row: _with_field(row, b"state", b"retry")),
    ("scheduled", "a field too many", ":t:", lambda row: _with_field(row, b"extra", b"1")),
    ("scheduled", "a field too few", ":t:", lambda row: _with_field(row, b"state", None)),
    ("pending-variants", "another order", ":pending", lambda row: dataclasses.replace(
        row, value=row.value[::-1] if len(row.value) > 1 else [*row.value, *row.value])),
    ("pending-variants", "another type", ":pending", lambda row: dataclasses.replace(
        row, type="set", value=set(row.value))),
    ("pending-variants", "a key with a time to live", ":pending", lambda row: dataclasses.replace(row, pttl_ms=60_000)),
    ("pending-variants", "pending_since in seconds", ":t:", lambda row: _with_field(
        row, b"pending_since", row.value[b"pending_since"][:10])),
    ("pending-variants", "another timeout", ":t:", lambda row: _with_message(row, timeout=1801)),
    ("pending-variants", "another payload", ":t:", lambda row: _with_message(row, payload=b"?")),
    ("pending-variants", "fields in another order", ":t:", lambda row: _with_field(
        row, b"msg", row.value[b"msg"] + b"\x0a" + bytes([1]) + b"t")),
    ("pending-variants", "no queue registered", "asynq:queues", lambda row: None),
    ("unique", "a lock that ends 3 s later", ":unique:", lambda row: dataclasses.replace(
        row, pttl_ms=row.pttl_ms + 3000)),
    ("unique", "a lock without end", ":unique:", lambda row: dataclasses.replace(row, pttl_ms=-1)),
    ("unique", "a lock of somebody else", ":unique:", lambda row: dataclasses.replace(row, value=b"another")),
    ("retry", "a retry an hour later", ":retry", lambda row: _bump(row, 3600)),
    ("retry", "a failure in the future", ":t:", lambda row: _with_message(row, last_failed_at=4_000_000_000)),
    ("retry", "a retry not counted", ":t:", lambda row: _with_message(row, retried=0)),
    ("retry", "another error text", ":t:", lambda row: _with_message(row, error_msg="other")),
    ("retry", "a counter one off", ":processed", lambda row: dataclasses.replace(row, value=b"2")),
    ("retry", "a daily counter without end", ":processed:2", lambda row: dataclasses.replace(row, pttl_ms=-1)),
    ("retry", "a daily counter that ends a minute early", ":failed:2", lambda row: dataclasses.replace(
        row, pttl_ms=row.pttl_ms - 60_000)),
    ("retry", "a batch number kept for ever", ":batch:", lambda row: dataclasses.replace(row, pttl_ms=-1)),
    ("completed", "another result", ":t:", lambda row: _with_field(row, b"result", b"other")),
    ("completed", "kept a minute longer", ":completed", lambda row: _bump(row, 60)),
    ("paused", "a pause in another unit", ":paused", lambda row: dataclasses.replace(row, value=row.value + b"000")),
    ("server-idle", "a record that goes stale later", "asynq:servers", _bump),
    ("server-idle", "a record that lives longer", "asynq:servers:", lambda row: dataclasses.replace(
        row, pttl_ms=row.pttl_ms + 3000)),
]  # fmt: skip


@VALKEY_ONLY
@pytest.mark.parametrize("name", sorted({tamper[0] for tamper in TAMPERS}))
async def test_what_is_tampered_with_is_found(name: str, url: str, redis_client: Any) -> None:
    replay = Replay(name, url, redis_client)
    dump = await replay.play()
    golden = expected(name)
    assert differences(golden, picture(dump, replay.run)) == []
    for _, what, part, change in (tamper for tamper in TAMPERS if tamper[0] == name):
        hit = [key for key in dump.rows if part in key and not (part == "asynq:servers" and key != part)]
        assert hit, f"{what}: no key has {part}"
        rows = {key: change(row) if key in hit else row for key, row in dump.rows.items()}
        spoilt = Dump(dump.captured, {key: row for key, row in rows.items() if row is not None}, dump.channels)
        assert differences(golden, picture(spoilt, replay.run)), f"{what} was not noticed"
    deaf = Dump(dump.captured, dump.rows, dump.channels ^ {"asynq:cancel"})
    assert differences(golden, picture(deaf, replay.run)), "another channel was not noticed"
    planted = Dump(dump.captured, dump.rows | {"asynq:x": Row("asynq:x", "string", -1, b"1")}, dump.channels)
    assert differences(golden, picture(planted, replay.run)), "a key too many was not noticed"
    for key in dump.rows:
        fewer = Dump(dump.captured, {k: row for k, row in dump.rows.items() if k != key}, dump.channels)
        try:
            assert differences(golden, picture(fewer, replay.run)), f"{key} was not missed"
        except KeyError:
            pass  # a score whose task is gone cannot even be painted


def test_every_rule_changes_some_golden_picture() -> None:
    for row in RULES:
        others = [name for name in RULES if name != row]
        assert any(expected(name) != expected(name, others) for name in READ), f"{row} explains nothing"


def test_every_core_scenario_is_replayed() -> None:
    elsewhere = {"active", "active-first", "active-done", "server-killed", "server-killed-recovered"}
    assert set(SENT_ONLY) | set(WORKED) | elsewhere | {"server-killed-ttl-passed", "unknown-type"} == set(READ)
