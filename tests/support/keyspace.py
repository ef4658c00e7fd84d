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
      if redis.call('HEXISTS', key, 'msg') == 1 then value[3], value[4] = 'msg', '' end
    else
      value = redis.call('HGETALL', key)
    end
  else value = '' end
  rows[#rows + 1] = { key, kind, redis.call('PTTL', key), value }
end
return rows
"""
_QUEUE_KEY = re.compile(r"asynq:\{(.+?)\}:(.+)", re.DOTALL)
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
    groups set names exactly the groups that have members. Index entries of `due` may be stale, as documented: a Go
    worker moves tasks without knowing of it. One look, so it may be called under load."""
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
    named = keys["groups"].value if "groups" in keys else set()
    waiting = {name[2:] for name in groups - staged}
    found += [f"{queue}: the group {group} has members but is not in groups" for group in waiting - named]
    found += [f"{queue}: the group {group} is in groups but has no members" for group in named - waiting]


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
