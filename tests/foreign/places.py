"""Every key and channel there is: what it must be, and how to name the one of a queue or a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from veredus.wire import keys, session_keys

TYPES = ("string", "list", "set", "zset", "hash", "stream")
WHO = ("host", 1, "id")
SID = "p000-" + "a" * 20
USER = "u"

GLOBAL: dict[str, tuple[str, Callable[[], str]]] = {
    "QUEUES": ("set", lambda: keys.QUEUES),
    "SERVERS": ("zset", lambda: keys.SERVERS),
    "WORKERS": ("zset", lambda: keys.WORKERS),
    "CHECKERS": ("zset", lambda: keys.CHECKERS),
    "JUDGED": ("hash", lambda: keys.JUDGED),
    "SCHEDULERS": ("zset", lambda: keys.SCHEDULERS),
    "server": ("string", lambda: keys.server(*WHO)),
    "workers": ("hash", lambda: keys.workers(*WHO)),
    "types": ("string", lambda: keys.types(*WHO)),
    "details": ("hash", lambda: keys.details(*WHO)),
    "types_beside": ("string", lambda: keys.types_beside(keys.server(*WHO))),
    "scheduler_entries": ("list", lambda: keys.scheduler_entries(*WHO)),
    "scheduler_history": ("zset", lambda: keys.scheduler_history("entry")),
    "semaphore": ("zset", lambda: keys.semaphore("scope")),
    "scheduler_leader": ("string", lambda: keys.scheduler_leader("scope")),
    "event": ("string", lambda: keys.event("shipped")),
    "waiters": ("set", lambda: keys.waiters("shipped")),
}
"""Those that belong to no queue."""

QUEUE: dict[str, tuple[str, Callable[[str], str]]] = {
    "task": ("hash", lambda queue: keys.task(queue, "bad")),
    "pending": ("list", keys.pending),
    "active": ("list", keys.active),
    "lease": ("zset", keys.lease),
    "scheduled": ("zset", keys.scheduled),
    "retry": ("zset", keys.retry),
    "archived": ("zset", keys.archived),
    "completed": ("zset", keys.completed),
    "paused": ("string", keys.paused),
    "processed": ("string", keys.processed),
    "failed": ("string", keys.failed),
    "processed_on": ("string", lambda queue: keys.processed_on(queue, _today())),
    "failed_on": ("string", lambda queue: keys.failed_on(queue, _today())),
    "unique": ("string", lambda queue: keys.unique(queue, "note", b'{"n":1}')),
    "groups": ("set", keys.groups),
    "group": ("zset", lambda queue: keys.group(queue, "g")),
    "aggregation_set": ("zset", lambda queue: keys.aggregation_set(queue, "g", "set")),
    "aggregation_sets": ("zset", keys.aggregation_sets),
    "due": ("zset", keys.due),
    "closed": ("string", keys.closed),
    "batch": ("string", lambda queue: keys.batch(queue, "worker")),
    "lane": ("zset", lambda queue: keys.lane(queue, "o")),
    "lanes": ("zset", keys.lanes),
    "limits": ("hash", keys.limits),
    "limited": ("zset", keys.limited),
    "slots": ("zset", lambda queue: keys.slots(queue, "q")),
    "starts": ("list", lambda queue: keys.starts(queue, "q")),
    "waiting": ("zset", lambda queue: keys.waiting(queue, "q")),
    "called": ("zset", lambda queue: keys.called(queue, "q")),
    "full": ("string", keys.full),
    "idle": ("zset", keys.idle),
    "watcher": ("string", keys.watcher),
    "waits": ("zset", keys.waits),
    "ended": ("list", keys.ended),
    "orphans": ("hash", keys.orphans),
    "kids": ("hash", lambda queue: keys.kids(queue, "bad", "mark", "pages", 0)),
    "forwarding": ("string", keys.forwarding),
    "cron": ("hash", lambda queue: keys.cron(queue, "entry")),
    "told": ("list", keys.told),
    "replaced": ("hash", keys.replaced),
    "sent": ("string", lambda queue: keys.sent(queue, "producer", 1)),
    "recorded": ("string", lambda queue: keys.recorded(queue, "worker")),
    "errors": ("hash", keys.errors),
    "type_minutes": ("hash", lambda queue: keys.type_minutes(queue, _now() // 3600)),
    "type_hours": ("hash", lambda queue: keys.type_hours(queue, _now() // 86400)),
    "error_minutes": ("hash", lambda queue: keys.error_minutes(queue, _now() // 3600)),
    "error_hours": ("hash", lambda queue: keys.error_hours(queue, _now() // 86400)),
}
"""Those of one queue."""

GATEWAY: dict[str, tuple[str, Callable[[], str]]] = {
    "NODES": ("hash", lambda: session_keys.NODES),
    "sessions": ("zset", lambda: session_keys.sessions("p000")),
    "expiries": ("zset", lambda: session_keys.expiries("p000")),
    "deadlines": ("zset", lambda: session_keys.deadlines("p000")),
    "early_binds": ("zset", lambda: session_keys.early_binds("p000")),
    "emptied": ("zset", lambda: session_keys.emptied("p000")),
    "attached": ("set", lambda: session_keys.attached("p000", "node")),
    "user": ("zset", lambda: session_keys.user(USER)),
    "mailbox": ("list", lambda: session_keys.mailbox(USER)),
    "group": ("zset", lambda: session_keys.group("p000", "g")),
    "group_partitions": ("set", lambda: session_keys.group_partitions("g")),
    "meta": ("hash", lambda: session_keys.meta(SID)),
    "outbox": ("list", lambda: session_keys.outbox(SID)),
    "requests": ("hash", lambda: session_keys.requests(SID)),
    "befores": ("list", lambda: session_keys.befores(SID, 1)),
    "afters": ("list", lambda: session_keys.afters(SID, 1)),
    "session_groups": ("set", lambda: session_keys.session_groups(SID)),
    "waiting": ("hash", lambda: session_keys.waiting(SID)),
    "told": ("hash", lambda: session_keys.told(SID)),
    "ended": ("string", lambda: session_keys.ended(SID)),
    "revoked": ("string", lambda: session_keys.revoked(USER)),
    "dedupe": ("string", lambda: session_keys.dedupe(SID, "key")),
    "user_dedupe": ("string", lambda: session_keys.user_dedupe(USER, "key")),
}

CHANNELS = {"CANCEL_CHANNEL", "delay_wakeup", "ends", "alive", "wake_up", "hints", "sharded_hints"}
"""Anybody can publish anything there."""
NO_KEYS = {
    *("PREFIX", "checked_prefix", "queue_prefix", "task_prefix", "group_prefix", "unique_prefix", "absent", "split"),
    *("container", "missing", "damaged", "damaged_task", "EVENT_PARTITIONS"),
    *("PARTITIONS", "ROOT", "TAGS", "tag", "user_tag", "new_sid", "sid_tag", "is_sid", "prefix", "session_prefix"),
    "check_name",
}


def _now() -> int:
    import time

    return int(time.time())


def _today() -> str:
    import time

    return time.strftime("%Y-%m-%d", time.gmtime())


def plant(client: Any, key: str | bytes, kind: str) -> None:
    """Make this key one of that type, with something in it that means nothing."""
    client.delete(key)
    if kind == "string":
        client.set(key, b"\xff nonsense")
    elif kind == "list":
        client.rpush(key, b"\xff", "bad", "")
    elif kind == "set":
        client.sadd(key, b"\xff", "bad")
    elif kind == "zset":
        client.zadd(key, {b"\xff": float("-inf"), "bad": float("inf"), "half": 0.5})
    elif kind == "hash":
        client.hset(key, mapping={b"\xff": b"\xfe", "state": "bad"})
    else:
        client.xadd(key, {"field": "value"})
