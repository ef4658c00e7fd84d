"""The whole keyspace in one consistent look: for comparing before and after, and for checking the invariant."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, NamedTuple

_EVERYTHING = """
local brief = ARGV[1] == '1'
local rows = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'hash' then
    if brief then
      value = { 'state', redis.call('HGET', key, 'state') or '' }
      for _, field in ipairs({ 'order_key', 'order_hold', 'limited_by' }) do
        local found = redis.call('HGET', key, field)
        if found then value[#value + 1] = field; value[#value + 1] = found end
      end
      if redis.call('HEXISTS', key, 'msg') == 1 then value[#value + 1] = "msg"; value[#value + 1] = "" end
    else
      value = redis.call('HGETALL', key)
    end
  else value = '' end
  rows[#rows + 1] = { key, kind, redis.call('PTTL', key), value }
end
return rows
"""
_QUEUE_KEY = re.compile(r"asynq:\{(.+?)\}:(.+)", re.DOTALL)
PARKED = "9999999999"
_STATES = ("pending", "active", "scheduled", "retry", "archived", "completed")
_KINDS = {"pending": "list", "active": "list"} | dict.fromkeys(
    ("lease", "scheduled", "retry", "archived", "completed", "due", "aggregation_sets"), "zset"
)


class Key(NamedTuple):
    """One key. Text is UTF-8 with surrogateescape; a sorted set is a dict of member -> score as Redis prints it."""

    type: str
    value: Any
    ttl: str
    """none, seconds (up to a minute), minutes, hours or days: exact times would differ from one look to the next."""


async def snapshot(redis_client: Any) -> dict[str, Key]:
    """The whole keyspace."""
    return _parse(await redis_client.eval(_EVERYTHING, 0, "0"))


async def check_invariant(redis_client: Any) -> list[str]:
    """Every breach of: an id is in exactly one container; its hash exists with `msg` and the matching `state`; no hash
    is in no container; active and lease have the same ids; scores are whole; every used queue is in asynq:queues; the
    groups set names exactly the groups that have members; lanes and limits as `_check_lanes` says. Index entries of
    `due` may be stale, as documented: a Go worker moves tasks without knowing of it. One look, so it may be called
    under load."""
    return breaches(_parse(await redis_client.eval(_EVERYTHING, 0, "1")))


def breaches(space: dict[str, Key]) -> list[str]:
    """The check itself, over a snapshot."""
    found: list[str] = []
    queues: dict[str, dict[str, Key]] = {}
    for name, key in space.items():
        match = _QUEUE_KEY.fullmatch(name)
        if match:
            queues.setdefault(match[1], {})[match[2]] = key
    registered = space["asynq:queues"].value if "asynq:queues" in space else set()
    for queue, keys in sorted(queues.items()):
        _check_queue(queue, keys, found)
        used = any(rest in _STATES or rest.startswith(("t:", "g:")) for rest in keys)
        if used and queue not in registered:
            found.append(f"{queue}: used but not in asynq:queues")
    return found


def _check_queue(queue: str, keys: dict[str, Key], found: list[str]) -> None:
    def members(name: str, kind: str) -> Any:
        key = keys.get(name)
        if key is None:
            return {}
        if key.type != kind:
            found.append(f"{queue}: {name} is a {key.type}, not a {kind}")
            return {}
        if kind == "zset":
            for member, score in key.value.items():
                if not re.fullmatch(r"-?\d+", score):
                    found.append(f"{queue}: {name} has {member} with the score {score}")
        return key.value

    prefix = f"asynq:{{{queue}}}:"
    staged = {full.removeprefix(prefix) for full in members("aggregation_sets", "zset")}
    places: dict[str, Counter[str]] = {}
    for name in _STATES:
        for task_id in members(name, _KINDS[name]):
            places.setdefault(task_id, Counter())[name] += 1
    groups = {name for name in keys if name.startswith("g:")}
    for name in groups:
        for task_id in members(name, "zset"):
            places.setdefault(task_id, Counter())[name] += 1

    hashes = {name[2:]: key for name, key in keys.items() if name.startswith("t:")}
    for task_id, counts in places.items():
        if counts.total() != 1:
            found.append(f"{queue}: {task_id} is in {dict(counts)}")
        expected = {"aggregating" if place.startswith("g:") else place for place in counts}
        key = hashes.get(task_id)
        if key is None:
            found.append(f"{queue}: {task_id} is in {dict(counts)} and has no hash")
        elif key.type != "hash":
            found.append(f"{queue}: the hash of {task_id} is a {key.type}")
        else:
            if "msg" not in key.value:
                found.append(f"{queue}: {task_id} has no msg")
            if key.value.get("state") not in expected:
                found.append(f"{queue}: {task_id} has state {key.value.get('state')!r} and is in {dict(counts)}")
    found += [f"{queue}: {task_id} is in no container" for task_id in hashes.keys() - places.keys()]

    active, lease = set(members("active", "list")), set(members("lease", "zset"))
    found += [f"{queue}: {task_id} is active without a lease" for task_id in active - lease]
    found += [f"{queue}: {task_id} has a lease but is not active" for task_id in lease - active]
    members("due", "zset")
    _check_lanes(queue, keys, hashes, found)
    named = keys["groups"].value if "groups" in keys else set()
    waiting = {name[2:] for name in groups - staged}
    found += [f"{queue}: the group {group} has members but is not in groups" for group in waiting - named]
    found += [f"{queue}: the group {group} is in groups but has no members" for group in named - waiting]


def _check_lanes(queue: str, keys: dict[str, Key], hashes: dict[str, Key], found: list[str]) -> None:
    """The lanes that have tasks are exactly those listed; each has only tasks that name it and have not ended; only its
    first is on its way, and is; whoever is parked stands in its lane or waits for the limit that its hash names."""

    def fields(task_id: str) -> dict[str, str]:
        key = hashes.get(task_id)
        return key.value if key is not None and key.type == "hash" else {}

    scheduled = keys["scheduled"].value if "scheduled" in keys else {}
    lanes = {name[5:]: key.value for name, key in keys.items() if name.startswith("lane:") and key.type == "zset"}
    listed = set(keys["lanes"].value) if "lanes" in keys else set()
    found += [f"{queue}: the lane {lane} is not in lanes" for lane in lanes.keys() - listed]
    found += [f"{queue}: the lane {lane} is in lanes but has no tasks" for lane in listed - lanes.keys()]
    for lane, members in lanes.items():
        for place, task_id in enumerate(sorted(members, key=lambda one: float(members[one]))):
            task = fields(task_id)
            is_held = task.get("state") == "archived" and "order_hold" in task
            is_on_its_way = task.get("state") in ("pending", "active", "retry")
            is_parked = task.get("state") == "scheduled" and scheduled.get(task_id) == PARKED
            if task.get("order_key") != lane or not (is_held or is_on_its_way or is_parked):
                found.append(f"{queue}: the lane {lane} has {task_id}, which is {task}")
            elif place > 0 and is_on_its_way:
                found.append(f"{queue}: {task_id} is {task['state']} though it is not its turn in lane {lane}")
            elif place == 0 and is_parked and "limited_by" not in task:
                found.append(f"{queue}: {task_id} is parked though it is its turn in lane {lane}")
    for task_id, score in scheduled.items():
        if score != PARKED:
            continue
        task = fields(task_id)
        waiting = keys.get(f"waiting:{task.get('limited_by')}")
        in_lane = task_id in lanes.get(task.get("order_key", ""), {})
        if not in_lane and (waiting is None or task_id not in waiting.value):
            found.append(f"{queue}: {task_id} is parked in no lane and for no limit")


def _parse(rows: list[Any]) -> dict[str, Key]:
    space = {}
    for name, kind, ttl, value in rows:
        kind = _text(kind)
        if kind == "list":
            value = [_text(item) for item in value]
        elif kind == "set":
            value = {_text(item) for item in value}
        elif kind in ("hash", "zset"):
            value = {_text(value[i]): _text(value[i + 1]) for i in range(0, len(value), 2)}
        else:
            value = _text(value)
        space[_text(name)] = Key(kind, value, _ttl_class(ttl))
    return dict(sorted(space.items()))


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")


def _ttl_class(milliseconds: int) -> str:
    if milliseconds < 0:
        return "none"
    seconds = math.ceil(milliseconds / 1000)
    for name, limit in (("seconds", 60), ("minutes", 3600), ("hours", 86400)):
        if seconds <= limit:
            return name
    return "days"
