"""Every Redis key and channel, one function each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection

from veredus.errors import ConfigError


def checked_prefix(given: str) -> str:
    """The name space of all keys: `asynq`, which every Go peer reads, unless VEREDUS_KEY_PREFIX says otherwise."""
    if not given.strip() or any(char in "{}*?[]\\" or char.isspace() for char in given):
        raise ConfigError("VEREDUS_KEY_PREFIX", given, "a text without braces, blanks and *?[]\\")
    return given


PREFIX = checked_prefix(os.environ.get("VEREDUS_KEY_PREFIX") or "asynq")
"""One per process, fixed when it starts: all parts of one system must agree on it."""

QUEUES = f"{PREFIX}:queues"
"""SET of the names of all queues that were ever used."""
SERVERS = f"{PREFIX}:servers"
"""ZSET of the records of worker processes by the second at which they lapse."""
WORKERS = f"{PREFIX}:workers"
"""ZSET of the records of what worker processes run, by the second at which they lapse."""
SCHEDULERS = f"{PREFIX}:schedulers"
"""ZSET of the records of schedulers by the second at which they lapse."""
CANCEL_CHANNEL = f"{PREFIX}:cancel"
"""Channel on which the id of a task is told that shall be cancelled."""


def server(host: str, pid: int, server_id: str) -> str:
    """STRING (protobuf) about one worker process, Go's or ours; it lives 10 seconds beyond its last heartbeat."""
    return f"{PREFIX}:servers:{{{host}:{pid}:{server_id}}}"


def workers(host: str, pid: int, server_id: str) -> str:
    """HASH of what one worker process is running: task id -> protobuf."""
    return f"{PREFIX}:workers:{{{host}:{pid}:{server_id}}}"


def types(host: str, pid: int, server_id: str) -> str:
    """STRING with the types and the groups that one worker process has functions for; Go workers have none."""
    return f"{PREFIX}:types:{{{host}:{pid}:{server_id}}}"


def types_beside(server_key: str) -> str:
    """The name that `types` gives to the process with this record."""
    return f"{PREFIX}:types:{server_key.removeprefix(f'{PREFIX}:servers:')}"


def scheduler_entries(host: str, pid: int, scheduler_id: str) -> str:
    """LIST (protobuf) of the schedules that one scheduler fires, for Asynq's tools."""
    return f"{PREFIX}:schedulers:{{{host}:{pid}:{scheduler_id}}}"


def scheduler_history(entry_id: str) -> str:
    """ZSET of the ticks of one schedule by second, the newest thousand."""
    return f"{PREFIX}:scheduler_history:{entry_id}"


def semaphore(scope: str) -> str:
    """ZSET of the holders of a semaphore by the second until which they have it."""
    return f"{PREFIX}:sema:{scope}"


def queue_prefix(queue: str) -> str:
    """The braces make all keys of a queue share one slot of a cluster."""
    return f"{PREFIX}:{{{queue}}}:"


def task_prefix(queue: str) -> str:
    """What all task hashes of a queue begin with."""
    return f"{PREFIX}:{{{queue}}}:t:"


def task(queue: str, task_id: str) -> str:
    """HASH of one task: `msg` (protobuf), `state`, and what else is known of it."""
    return f"{PREFIX}:{{{queue}}}:t:{task_id}"


def pending(queue: str) -> str:
    """LIST of the ids that are ready to run; the next one is at its right end."""
    return f"{PREFIX}:{{{queue}}}:pending"


def active(queue: str) -> str:
    """LIST of the ids that are being run."""
    return f"{PREFIX}:{{{queue}}}:active"


def lease(queue: str) -> str:
    """ZSET of the active ids by the second at which they are lost without a heartbeat."""
    return f"{PREFIX}:{{{queue}}}:lease"


def scheduled(queue: str) -> str:
    """ZSET of the ids that wait for their first run, by the second at which they are due."""
    return f"{PREFIX}:{{{queue}}}:scheduled"


def retry(queue: str) -> str:
    """ZSET of the ids that failed and wait for another attempt, by the second at which they are due."""
    return f"{PREFIX}:{{{queue}}}:retry"


def archived(queue: str) -> str:
    """ZSET of the ids that ended without success, by the second at which they did."""
    return f"{PREFIX}:{{{queue}}}:archived"


def completed(queue: str) -> str:
    """ZSET of the ids that ended well and are kept, by the second at which they are deleted."""
    return f"{PREFIX}:{{{queue}}}:completed"


def paused(queue: str) -> str:
    """STRING that exists while nothing is handed out, with the second since when."""
    return f"{PREFIX}:{{{queue}}}:paused"


def processed(queue: str) -> str:
    """STRING with the number of tasks that ended, well or not, in all."""
    return f"{PREFIX}:{{{queue}}}:processed"


def failed(queue: str) -> str:
    """STRING with the number of attempts that failed, in all."""
    return f"{PREFIX}:{{{queue}}}:failed"


def processed_on(queue: str, day: str) -> str:
    """STRING with the number of tasks that ended on one day; `day` is a UTC date, YYYY-MM-DD."""
    return f"{PREFIX}:{{{queue}}}:processed:{day}"


def failed_on(queue: str, day: str) -> str:
    """STRING with the number of attempts that failed on one day; `day` is a UTC date, YYYY-MM-DD."""
    return f"{PREFIX}:{{{queue}}}:failed:{day}"


def unique(queue: str, task_type: str, payload: bytes | None) -> str:
    """The lock of a unique task: no payload at all and an empty one are two different locks, as in Go."""
    digest = "" if payload is None else hashlib.md5(payload, usedforsecurity=False).hexdigest()
    return f"{PREFIX}:{{{queue}}}:unique:{task_type}:{digest}"


def groups(queue: str) -> str:
    """SET of the groups that have members."""
    return f"{PREFIX}:{{{queue}}}:groups"


def group_prefix(queue: str) -> str:
    """What all groups of a queue begin with."""
    return f"{PREFIX}:{{{queue}}}:g:"


def group(queue: str, name: str) -> str:
    """ZSET of the members of a group by the second at which they joined."""
    return f"{PREFIX}:{{{queue}}}:g:{name}"


def aggregation_set(queue: str, name: str, set_id: str) -> str:
    """ZSET of the members of a group that are being aggregated together."""
    return f"{PREFIX}:{{{queue}}}:g:{name}:{set_id}"


def aggregation_sets(queue: str) -> str:
    """ZSET of the sets that are being aggregated, by the second at which they go back to their groups."""
    return f"{PREFIX}:{{{queue}}}:aggregation_sets"


# Our own, beside Asynq's: names that it does not use, under the same hash tag.


def due(queue: str) -> str:
    """ZSET of scheduled and retried ids by due instant in milliseconds: Asynq's own scores have whole seconds."""
    return f"{PREFIX}:{{{queue}}}:due"


def closed(queue: str) -> str:
    """STRING with the second since which a queue takes no new tasks from our clients."""
    return f"{PREFIX}:{{{queue}}}:closed"


def replaced(queue: str) -> str:
    """HASH of a task while another one takes its place: never there when the script has ended."""
    return f"{PREFIX}:{{{queue}}}:replaced"


def batch(queue: str, worker_id: str) -> str:
    """STRING with the number of a worker's last dequeue, so that a repeated request gets the same batch."""
    return f"{PREFIX}:{{{queue}}}:batch:{worker_id}"


def sent(queue: str, producer: str, slot: int) -> str:
    """STRING with the number of a producer's last call in one slot, so that a repeated call stores nothing twice."""
    return f"{PREFIX}:{{{queue}}}:sent:{producer}:{slot}"


def delay_wakeup(queue: str) -> str:
    """Channel that wakes the forwarders; the message is the new due instant in milliseconds."""
    return f"{PREFIX}:{{{queue}}}:delay_wakeup"


def lane(queue: str, order_key: str) -> str:
    """ZSET of the tasks with one order key by arrival; only the first may be pending, active or in retry."""
    return f"{PREFIX}:{{{queue}}}:lane:{order_key}"


def lanes(queue: str) -> str:
    """ZSET of the order keys that have tasks, by the time in milliseconds at which they were last looked at."""
    return f"{PREFIX}:{{{queue}}}:lanes"


def limits(queue: str) -> str:
    """HASH of the limits that were declared: what is limited -> how many at once, how many starts, per how many ms."""
    return f"{PREFIX}:{{{queue}}}:limits"


def limited(queue: str) -> str:
    """ZSET of the scopes of limits that somebody waits for, by the time in milliseconds at which to look at them."""
    return f"{PREFIX}:{{{queue}}}:limited"


def slots(queue: str, scope: str) -> str:
    """ZSET of the tasks that run within a limit, by the second until which they hold their room."""
    return f"{PREFIX}:{{{queue}}}:slots:{scope}"


def starts(queue: str, scope: str) -> str:
    """LIST of the milliseconds at which the last tasks within a limit began."""
    return f"{PREFIX}:{{{queue}}}:starts:{scope}"


def waiting(queue: str, scope: str) -> str:
    """ZSET of the tasks that wait for room within a limit, by arrival in microseconds."""
    return f"{PREFIX}:{{{queue}}}:waiting:{scope}"


def split(key: str, queues: Collection[str]) -> tuple[str, str] | None:
    """The queue that a key belongs to, and the rest of its name; None for a key of no queue. A name that another
    program gave may have braces: of the queues that there are, the longest that fits."""
    start = len(PREFIX) + 2
    end = key.find("}:", start + 1) if key.startswith(f"{PREFIX}:{{") else -1
    if end < 0:
        return None
    further = key.find("}:", end + 1)
    while further >= 0:
        if key[start:further] in queues:
            end = further
        further = key.find("}:", further + 1)
    return (key[start:end], key[end + 2 :]) if key[end + 2 :] else None


def absent(key: str) -> str:
    """A key in the slot of this one that never exists: a script that names it is refused while the slot moves from node
    to node, when it would find only some of the keys it needs. Empty for a key without a hash tag."""
    start = key.find("{")
    end = key.find("}", start + 2)
    return f"{key[: end + 1]}:absent" if 0 <= start < end else ""


def cron(queue: str, entry_id: str) -> str:
    """HASH of one schedule whose tasks go to this queue: the tick it is at, and the last one that was enqueued."""
    return f"{PREFIX}:{{{queue}}}:cron:{entry_id}"


def scheduler_leader(scope: str) -> str:
    """STRING that names the scheduler which fires the schedules of this scope, for as long as its lease lasts."""
    return f"{PREFIX}:veredus:scheduler_leader:{scope}"


def ends(listener: str) -> str:
    """Channel on which one listening process is told what became of the tasks that it waits for."""
    return f"{PREFIX}:ends:{listener}"


def told(queue: str) -> str:
    """LIST of what happened to tasks that clients of the gateway follow, until a worker has passed it on."""
    return f"{PREFIX}:{{{queue}}}:told"
