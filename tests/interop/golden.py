"""Dumps of a whole Redis, golden or live, as pictures with relations in place of ids and times, to be compared."""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.interop import protobuf
from tests.support.golden import load

_DUMP = """
local time = redis.call('TIME')
local rows = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'string' then value = { redis.call('GET', key) }
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  else value = redis.call('HGETALL', key) end
  rows[#rows + 1] = { key, kind, redis.call('PTTL', key), value }
end
return { time[1], time[2], redis.call('PUBSUB', 'CHANNELS'), rows }
"""
_IDENTITY = re.compile(r"\{([^{}]+):(\d+):([0-9a-f-]{36})\}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DURATION = re.compile(r"(\d+)(ms|h|m|s)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
DAYS_90 = 90 * 86400

Path = tuple[str, ...]
Picture = dict[Path, Any]


@dataclass(frozen=True)
class Row:
    """One key. A hash or zset is a dict of bytes (scores as text), a list a list, a set a set, a string bytes."""

    key: str
    type: str
    pttl_ms: int
    value: Any


@dataclass(frozen=True)
class Dump:
    """Everything in a Redis at one instant (Unix seconds)."""

    captured: float
    rows: dict[str, Row]
    channels: frozenset[str]


STATISTICS = re.compile(r":(recorded:|type_minutes:|type_hours:|errors$|error_minutes:|error_hours:)")


@dataclass(frozen=True)
class Side:
    """What one implementation promises about times."""

    name: str
    lease: float
    record_ttl: float = 10.0


GO = Side("go", lease=30)
OURS = Side("veredus", lease=12)


@dataclass
class Sent:
    """A task that was stored: the relations of its times are checked against this."""

    id: str
    called: float
    returned: float
    due: float | None = None
    """The exact instant if known (Go returns it), else None."""
    delay: float | None = None
    unique: float | None = None
    named: bool = False


@dataclass
class Run:
    """How a dump came about."""

    side: Side
    started: float
    sent: list[Sent] = field(default_factory=list)
    retry_delay: tuple[float, float] = (15, 44)


def seconds(text: str) -> float:
    """A duration of the golden files: 90s, 1h, 1500ms."""
    return sum(int(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def instant(text: str) -> datetime:
    """RFC 3339, as far as Python's datetime can hold it."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text).replace("Z", "+00:00"))


# Taking a dump.


async def take(client: Any) -> Dump:
    """The whole Redis, in one script. Without what comes and goes while a test looks: the records of a producer's
    calls, which are gone after 40 seconds (shown by `test_sent_record`), which workers are idle
    (`test_idle_workers`, `test_blocking_wait`), which of them look for dead ones (`test_closed_connections`), and what
    workers count (`test_statistics_keys`)."""
    whole, micros, channels, rows = await client.eval(_DUMP, 0)
    parsed = {}
    for key, kind, pttl, value in rows:
        name, kind = key.decode(), kind.decode()
        if ":sent:" in name and 0 < pttl <= 40_000:
            continue
        if STATISTICS.search(name) and pttl > 0:
            continue
        if name.endswith((":idle", ":watcher")) and 0 < pttl <= 3_600_000:
            continue
        if name == "asynq:checkers:{asynq:servers}" and 0 < pttl <= 60_000:
            continue
        if kind in ("hash", "zset"):
            value = {value[i]: value[i + 1] for i in range(0, len(value), 2)}
        elif kind == "set":
            value = set(value)
        elif kind == "string":
            value = value[0]
        parsed[name] = Row(name, kind, pttl, value)
    names = [channel.decode() for channel in channels]
    listened = frozenset(name for name in names if not name.startswith(("asynq:wake:", "asynq:alive:")))
    return Dump(int(whole) + int(micros) / 1e6, parsed, listened)


def golden_dump(name: str) -> Dump:
    """The dump in a golden file."""
    redis = load(name)["redis"]
    rows = {}
    for row in redis["keys"]:
        kind = row["type"]
        if kind == "string":
            value: Any = _bytes(row["value"])
        elif kind == "list":
            value = [_bytes(item) for item in row["items"]]
        elif kind == "set":
            value = {_bytes(item) for item in row["members"]}
        elif kind == "zset":
            value = {_bytes(item): item["score"].encode() for item in row["members"]}
        else:
            value = {item["field"].encode(): _bytes(item) for item in row["fields"]}
        rows[row["key"]] = Row(row["key"], kind, row["pttl_ms"], value)
    return Dump(int(redis["captured_at_unix_ns"]) / 1e9, rows, frozenset(redis["pubsub_channels"] or []))


def golden_run(name: str) -> Run:
    """The calls of a golden file."""
    run = Run(GO, math.inf)
    for call in load(name)["inputs"]:
        at = int(call.get("called_at_unix_ns") or call.get("at_unix_ns")) / 1e9
        run.started = min(run.started, at)
        given = call.get("given") or {}
        if "retry_delay" in call.get("config", {}):
            run.retry_delay = (seconds(call["config"]["retry_delay"]),) * 2
        if not call["call"].startswith("Client."):
            continue
        for info in call["returned"] or []:
            due = instant(info["next_process_at"]).timestamp() if info["state"] == "scheduled" else None
            run.sent.append(
                Sent(
                    info["id"],
                    at,
                    at,
                    due,
                    seconds(given["process_in"]) if "process_in" in given else None,
                    seconds(given["unique"]) if "unique" in given else None,
                    named="task_id" in given,
                )
            )
    return run


async def restore(client: Any, dump: Dump) -> None:
    """Write a dump into an empty Redis, byte for byte, with its remaining times to live."""
    pipe = client.pipeline(transaction=True)
    for row in dump.rows.values():
        if row.type == "string":
            pipe.set(row.key, row.value)
        elif row.type == "list":
            pipe.rpush(row.key, *row.value)
        elif row.type == "set":
            pipe.sadd(row.key, *row.value)
        elif row.type == "zset":
            pipe.execute_command("ZADD", row.key, *[x for member, score in row.value.items() for x in (score, member)])
        else:
            pipe.execute_command("HSET", row.key, *[x for pair in row.value.items() for x in pair])
        if row.pttl_ms > 0:
            pipe.pexpire(row.key, row.pttl_ms)
    await pipe.execute()


def _bytes(value: dict[str, Any]) -> bytes:
    return base64.b64decode(value["b64"])


# From a dump to a picture.


def picture(dump: Dump, run: Run) -> Picture:
    """Every key, type, time to live, member and field by its own path; ids and times as relations within the run. A
    time that breaks its relation stands as it is, and so differs from every golden one."""
    return _Painter(dump, run).paint()


def differences(golden: Picture, ours: Picture) -> list[str]:
    """One line for each path that differs."""
    found = []
    for path in sorted(golden.keys() | ours.keys()):
        if golden.get(path, "(nothing)") != ours.get(path, "(nothing)"):
            where = " / ".join(path)
            found.append(f"{where}: expected {golden.get(path, '(nothing)')!r}, got {ours.get(path, '(nothing)')!r}")
    return found


class _Painter:
    def __init__(self, dump: Dump, run: Run) -> None:
        self._dump, self._run = dump, run
        self._picture: Picture = {("channels",): dump.channels}
        self._sent = {sent.id: sent for sent in run.sent}
        unnamed = dict.fromkeys(sent.id for sent in run.sent if not sent.named)
        self._names = {task_id: f"<task {number}>" for number, task_id in enumerate(unnamed)}

    def paint(self) -> Picture:
        for row in self._dump.rows.values():
            self._row(row)
        return self._picture

    def _row(self, row: Row) -> None:
        key = self._text(row.key)
        queue, rest = _parts(row.key)
        self._picture[(key, "type")] = row.type
        self._picture[(key, "ttl")] = self._ttl(row, rest)
        if row.type == "string":
            self._picture[(key, "value")] = self._string(row, rest)
        elif row.type == "list":
            self._picture[(key, "items")] = tuple(self._text(item.decode()) for item in row.value)
        elif row.type == "set":
            self._picture[(key, "members")] = frozenset(self._text(item.decode()) for item in row.value)
        elif row.type == "zset":
            for member, score in row.value.items():
                token = self._score(queue, rest, member.decode(), score.decode())
                self._picture[(key, "score", self._text(member.decode()))] = token
        elif rest.startswith("t:"):
            self._task(key, queue, rest[2:], row.value)
        elif row.key.startswith("asynq:details:{"):
            for name, value in row.value.items():
                is_known = re.fullmatch(rb"\d+(\.\d+)*", value)
                self._picture[(key, "field", name.decode())] = "numbers" if is_known else value.decode()
        else:
            for name, value in row.value.items():
                self._message((key, self._text(name.decode())), "WorkerInfo", value, row.key)

    def _text(self, text: str) -> str:
        """With ids, identities and days replaced by names."""
        text = _IDENTITY.sub("{<host>:<pid>:<server>}", text)
        for task_id, name in self._names.items():
            text = text.replace(task_id, name)
        text = re.sub(r":batch:" + _UUID.pattern, ":batch:<worker>", text)
        for at in (self._run.started, self._dump.captured):
            day = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
            text = re.sub(rf"(processed|failed):{day}$", r"\1:<day>", text)
        return text

    def _within_run(self, at: float, slack: float) -> bool:
        return self._run.started - slack <= at <= self._dump.captured + slack

    def _ttl(self, row: Row, rest: str) -> str:
        if row.pttl_ms == -1:
            return "none"
        left = row.pttl_ms / 1000
        side = self._run.side
        if row.key.startswith(("asynq:servers:{", "asynq:workers:{", "asynq:types:{", "asynq:details:{")):
            begun = self._within_run(self._dump.captured + left - side.record_ttl, 1)
            return "10 s" if begun and left <= side.record_ttl else f"{left} s"
        ends = self._dump.captured + left
        if re.fullmatch(r"(processed|failed):[\d-]+", rest):
            fits = self._run.started + DAYS_90 - 2 <= ends <= self._dump.captured + DAYS_90 + 2
            return "90 days" if fits else f"{left} s"
        if rest.startswith("unique:"):
            for sent in self._run.sent:
                if sent.unique is not None and sent.id.encode() == row.value:
                    promised = int(sent.unique) + (sent.delay or 0)
                    if sent.called + promised - 2 <= ends <= sent.returned + promised + 2:
                        return f"{promised:g} s"
        if rest.startswith("batch:"):
            return "10 min" if self._run.started + 598 <= ends <= self._dump.captured + 602 else f"{left} s"
        return f"{left} s"

    def _string(self, row: Row, rest: str) -> str:
        if row.key.startswith("asynq:servers:{"):
            self._message((self._text(row.key), "value"), "ServerInfo", row.value, row.key)
            return "ServerInfo"
        text = row.value.decode()
        if row.key.startswith("asynq:types:{"):
            return "types" if re.fullmatch(r"(\x01[^\0]+\0[123])+\x03", text) else text
        if rest == "paused":
            return "a second of the run" if text.isdigit() and self._within_run(int(text), 1) else text
        if rest.startswith("batch:"):
            return "a number" if text.isdigit() else text
        return self._text(text)

    def _score(self, queue: str, rest: str, member: str, text: str) -> str:
        if not re.fullmatch(r"\d+", text):
            return text
        score, side, captured = int(text), self._run.side, self._dump.captured
        if queue == "":
            fits = self._within_run(score - side.record_ttl, 1) and score <= captured + side.record_ttl
            return "10 s after the beat" if fits else text
        if rest == "lease":
            return f"{side.lease:g} s after the beat" if self._within_run(score - side.lease, 1) else text
        if rest.startswith("g:"):
            return "a second of the run" if self._within_run(score, 1) else text
        if rest == "scheduled":
            return self._due(queue, member, score)
        message, _ = protobuf.decode("TaskMessage", self._dump.rows[f"asynq:{{{queue}}}:t:{member}"].value[b"msg"])
        if rest in ("retry", "archived"):
            # What is written later than the failure has the later time: on a busy machine by more than a second.
            late, slack = score - message["last_failed_at"], captured - message["last_failed_at"] + 1
            if rest == "archived":
                return "at the failure" if 0 <= late <= slack else text
            low, high = self._run.retry_delay
            return f"{low:g} to {high:g} s after the failure" if low <= late <= high + slack else text
        if rest == "completed":
            late = score - message["completed_at"] - message["retention"]
            return "when the retention ends" if 0 <= late <= captured - message["completed_at"] + 1 else text
        if rest == "due":
            return self._exact(queue, member, score)
        return text

    def _due(self, queue: str, member: str, score: int) -> str:
        index = self._dump.rows.get(f"asynq:{{{queue}}}:due")
        due = self._sent[member].due
        if due is None and index is not None and member.encode() in index.value:
            due = int(index.value[member.encode()]) / 1000
        if due is None:
            return str(score)
        down, up = ("due, rounded down", math.floor(due)), ("due, rounded up", math.ceil(due))
        rules = [down, up] if self._run.side is GO else [up, down]
        return next((name for name, value in rules if value == score), str(score))

    def _exact(self, queue: str, member: str, score: int) -> str:
        """An entry of our own index: the millisecond that belongs to the second in the shared set."""
        sent = self._sent[member]
        for name in ("scheduled", "retry"):
            shared = self._dump.rows.get(f"asynq:{{{queue}}}:{name}")
            if shared is None or member.encode() not in shared.value:
                continue
            if float(shared.value[member.encode()]) != math.ceil(score / 1000):
                return str(score)
            if name == "scheduled" and sent.due is not None and score != math.ceil(round(sent.due * 1000, 3)):
                return str(score)
            if name == "scheduled" and sent.delay is not None:
                early, late = sent.called + sent.delay - 0.002, sent.returned + sent.delay + 0.002
                if not early <= score / 1000 <= late:
                    return str(score)
            return f"the millisecond in {name}"
        return str(score)

    def _task(self, key: str, queue: str, task_id: str, fields: dict[bytes, bytes]) -> None:
        lease = self._dump.rows.get(f"asynq:{{{queue}}}:lease")
        for raw_name, value in fields.items():
            name = raw_name.decode()
            if name == "msg":
                self._message((key, "msg"), "TaskMessage", value, "")
                continue
            token: Any = value if name in ("result", "original") else self._text(value.decode())
            if name == "pending_since" and token.isdigit() and self._within_run(int(token) / 1e9, 0.05):
                token = "a nanosecond of the run"
            elif name == "group_seq" and re.fullmatch(r"\d{19}-\d{6}", token):
                token = "an arrival in the run" if self._within_run(int(token[:19]) / 1e9, 0.05) else token
            elif (
                name == "held"
                and re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}:(recoverer:)?\d+:\d+", token)
                and lease is not None
                and lease.value.get(task_id.encode()) == value.rpartition(b":")[2]
            ):
                token = "a batch of a worker, and the end of the lease"
            elif name.startswith("attempt:"):
                record = json.loads(value)
                assert record["worker"], record
                assert record["end"] > 0, record
                continue
            elif name == "attempts":
                records = [other for other in fields if other.startswith(b"attempt:")]
                token = "the number of records" if int(value) == len(records) else "another number than of records"
            elif name == "traceback":
                message = protobuf.decode("TaskMessage", fields[b"msg"])[0]
                stamp = f"{message['last_failed_at']} {message.get('retried', 0)}"
                if re.match(rf"{stamp}\n(.*\n)*Traceback \(most recent call last\):\n  File ", token):
                    token = "where the last failure was raised"
            self._picture[(key, "field", name)] = token

    def _message(self, path: Path, name: str, data: bytes, record_key: str) -> None:
        fields, order = protobuf.decode(name, data)
        self._picture[(*path, "is encoded as Go does")] = data == protobuf.encode(name, fields)
        self._picture[(*path, "field order")] = tuple(dict.fromkeys(order))
        identity = _IDENTITY.search(record_key)
        for field_name, value in fields.items():
            token = value
            if field_name in ("last_failed_at", "completed_at") and self._within_run(value, 1):
                token = "a second of the run"
            elif field_name == "start_time" and self._within_run(_unix(value), 0.05):
                token = "an instant of the run"
            elif field_name == "deadline" and name == "WorkerInfo":
                token = f"{round(_unix(value) - _unix(fields['start_time']), 2):g} s after the start"
            elif identity and field_name in ("host", "pid", "server_id"):
                expected = dict(zip(("host", "pid", "server_id"), identity.groups(), strict=True))[field_name]
                token = "as in the key" if str(value) == expected else value
            elif isinstance(value, str):
                token = self._text(value)
            self._picture[(*path, field_name)] = token


def _parts(key: str) -> tuple[str, str]:
    """Queue and rest of a queue's key; an empty queue for all others."""
    match = re.fullmatch(r"asynq:\{(.+?)\}:(.+)", key, re.DOTALL)
    return (match[1], match[2]) if match else ("", key)


def _unix(timestamp: dict[str, int]) -> float:
    return timestamp["seconds"] + timestamp["nanos"] / 1e9
