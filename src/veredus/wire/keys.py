"""Every Redis key and channel, one function each."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Collection

from veredus.errors import ConfigError


def checked_prefix(given: str) -> str:
    """The prefix of all keys: `asynq`, which every Go peer reads, unless VEREDUS_KEY_PREFIX is set."""
    if not given.strip() or any(char in "{}*?[]\\" or char.isspace() for char in given):
        raise ConfigError("VEREDUS_KEY_PREFIX", given, "a text without braces, blanks and *?[]\\")
    return given


PREFIX = checked_prefix(os.environ.get("VEREDUS_KEY_PREFIX") or "asynq")
"""Fixed when the process starts. All processes of a system must use the same prefix."""

QUEUES = f"{PREFIX}:queues"
"""SET of the names of all queues that were ever used."""
SERVERS = f"{PREFIX}:servers"
"""ZSET of the records of worker processes by the second at which they expire."""
WORKERS = f"{PREFIX}:workers"
"""ZSET of the records of what worker processes run, by the second at which they expire."""
SCHEDULERS = f"{PREFIX}:schedulers"
"""ZSET of the records of schedulers by the second at which they expire."""
CANCEL_CHANNEL = f"{PREFIX}:cancel"
"""Channel that carries the ids of tasks to cancel."""
CHECKERS = f"{PREFIX}:checkers:{{{SERVERS}}}"
"""ZSET of the few workers that look for dead ones, by the millisecond until which they do. In the slot of SERVERS."""
JUDGED = f"{PREFIX}:judged:{{{SERVERS}}}"
"""HASH of the workers that were found dead: worker -> how many of its leases were taken. In the slot of SERVERS."""


def server(host: str, pid: int, server_id: str) -> str:
    """STRING (protobuf) that describes one worker process, Go's or ours; it expires 10 seconds after its last
    heartbeat."""
    return f"{PREFIX}:servers:{{{host}:{pid}:{server_id}}}"


def workers(host: str, pid: int, server_id: str) -> str:
    """HASH of the tasks that one worker process is running: task id -> protobuf."""
    return f"{PREFIX}:workers:{{{host}:{pid}:{server_id}}}"


def types(host: str, pid: int, server_id: str) -> str:
    """STRING with the types and groups that one worker process has functions for; Go workers write none."""
    return f"{PREFIX}:types:{{{host}:{pid}:{server_id}}}"


def types_beside(server_key: str) -> str:
    """The name that `types` gives to the process with this record."""
    return f"{PREFIX}:types:{server_key.removeprefix(f'{PREFIX}:servers:')}"


def details(host: str, pid: int, server_id: str) -> str:
    """HASH of what Asynq's record of a worker process has no room for: version, memory, and what it is asked to do. It
    expires with the record; Go's servers and earlier versions of Veredus have none."""
    return f"{PREFIX}:details:{{{host}:{pid}:{server_id}}}"


def scheduler_entries(host: str, pid: int, scheduler_id: str) -> str:
    """LIST (protobuf) of the schedules that one scheduler fires, for Asynq's tools."""
    return f"{PREFIX}:schedulers:{{{host}:{pid}:{scheduler_id}}}"


def scheduler_history(entry_id: str) -> str:
    """ZSET of the ticks of one schedule by second; the newest thousand."""
    return f"{PREFIX}:scheduler_history:{entry_id}"


def semaphore(scope: str) -> str:
    """ZSET of the holders of a semaphore by the second until which they hold it."""
    return f"{PREFIX}:sema:{scope}"


def queue_prefix(queue: str) -> str:
    """The braces make all keys of a queue share one slot of a cluster."""
    return f"{PREFIX}:{{{queue}}}:"


def task_prefix(queue: str) -> str:
    """The beginning of all task hashes of a queue."""
    return f"{PREFIX}:{{{queue}}}:t:"


def task(queue: str, task_id: str) -> str:
    """HASH of one task: `msg` (protobuf), `state`, and everything else that is known about it."""
    return f"{PREFIX}:{{{queue}}}:t:{task_id}"


def pending(queue: str) -> str:
    """LIST of the ids that are ready to run; the next one is at its right end."""
    return f"{PREFIX}:{{{queue}}}:pending"


def active(queue: str) -> str:
    """LIST of the ids that are running."""
    return f"{PREFIX}:{{{queue}}}:active"


def lease(queue: str) -> str:
    """ZSET of the active ids by the second at which their leases end without a heartbeat."""
    return f"{PREFIX}:{{{queue}}}:lease"


def scheduled(queue: str) -> str:
    """ZSET of the ids that wait for their first run, by the second at which they are due."""
    return f"{PREFIX}:{{{queue}}}:scheduled"


def retry(queue: str) -> str:
    """ZSET of the ids that failed and wait for another attempt, by the second at which they are due."""
    return f"{PREFIX}:{{{queue}}}:retry"


def archived(queue: str) -> str:
    """ZSET of the ids that failed for good, by the second at which they were archived."""
    return f"{PREFIX}:{{{queue}}}:archived"


def completed(queue: str) -> str:
    """ZSET of the ids that succeeded and are kept, by the second at which they are deleted."""
    return f"{PREFIX}:{{{queue}}}:completed"


def container(queue: str, state: str) -> str:
    """The key that has the ids of tasks in this state; groups have keys of their own."""
    return f"{PREFIX}:{{{queue}}}:{state}"


def paused(queue: str) -> str:
    """STRING that exists while the queue is paused, with the second of the pause."""
    return f"{PREFIX}:{{{queue}}}:paused"


def processed(queue: str) -> str:
    """STRING with the total number of tasks that ended, successfully or not."""
    return f"{PREFIX}:{{{queue}}}:processed"


def failed(queue: str) -> str:
    """STRING with the total number of attempts that failed."""
    return f"{PREFIX}:{{{queue}}}:failed"


def processed_on(queue: str, day: str) -> str:
    """STRING with the number of tasks that ended on one day; `day` is a UTC date, YYYY-MM-DD."""
    return f"{PREFIX}:{{{queue}}}:processed:{day}"


def failed_on(queue: str, day: str) -> str:
    """STRING with the number of attempts that failed on one day; `day` is a UTC date, YYYY-MM-DD."""
    return f"{PREFIX}:{{{queue}}}:failed:{day}"


def unique(queue: str, task_type: str, payload: bytes | None) -> str:
    """The lock of a unique task. As in Go, no payload and an empty payload have different locks."""
    digest = "" if payload is None else hashlib.md5(payload, usedforsecurity=False).hexdigest()
    return f"{PREFIX}:{{{queue}}}:unique:{task_type}:{digest}"


def unique_prefix(queue: str) -> str:
    """The beginning of all locks of a queue."""
    return f"{PREFIX}:{{{queue}}}:unique:"


def groups(queue: str) -> str:
    """SET of the groups that have members."""
    return f"{PREFIX}:{{{queue}}}:groups"


def group_prefix(queue: str) -> str:
    """The beginning of all groups of a queue."""
    return f"{PREFIX}:{{{queue}}}:g:"


def group(queue: str, name: str) -> str:
    """ZSET of the members of a group by the second at which they joined."""
    return f"{PREFIX}:{{{queue}}}:g:{name}"


def aggregation_set(queue: str, name: str, set_id: str) -> str:
    """ZSET of the members of a group that are being aggregated together."""
    return f"{PREFIX}:{{{queue}}}:g:{name}:{set_id}"


def aggregation_sets(queue: str) -> str:
    """ZSET of the sets that are being aggregated, by the second at which their members go back to their groups."""
    return f"{PREFIX}:{{{queue}}}:aggregation_sets"


# Veredus's own keys: names that Asynq does not use, under the same hash tag.


def due(queue: str) -> str:
    """ZSET of scheduled and retried ids by due time in milliseconds: Asynq's own scores are whole seconds."""
    return f"{PREFIX}:{{{queue}}}:due"


def closed(queue: str) -> str:
    """STRING with the second at which the queue was closed for new tasks of our clients."""
    return f"{PREFIX}:{{{queue}}}:closed"


def replaced(queue: str) -> str:
    """HASH of a task while another one replaces it; it never exists after the script."""
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
    """ZSET of the order keys that have tasks, by the time in milliseconds at which they were last checked."""
    return f"{PREFIX}:{{{queue}}}:lanes"


def limits(queue: str) -> str:
    """HASH of the declared limits: what is limited -> how many at once, how many starts, per how many ms."""
    return f"{PREFIX}:{{{queue}}}:limits"


def limited(queue: str) -> str:
    """ZSET of the scopes of limits that have waiting tasks, by the time in milliseconds at which to check them."""
    return f"{PREFIX}:{{{queue}}}:limited"


def slots(queue: str, scope: str) -> str:
    """ZSET of the tasks that run within a limit, by the second until which they occupy it."""
    return f"{PREFIX}:{{{queue}}}:slots:{scope}"


def starts(queue: str, scope: str) -> str:
    """LIST of the times in milliseconds at which the last tasks within a limit started."""
    return f"{PREFIX}:{{{queue}}}:starts:{scope}"


def waiting(queue: str, scope: str) -> str:
    """ZSET of the tasks that wait for room within a limit, by arrival in microseconds."""
    return f"{PREFIX}:{{{queue}}}:waiting:{scope}"


def called(queue: str, scope: str) -> str:
    """ZSET of the tasks that were called back from waiting, by the time in milliseconds until which room within the
    limit is reserved for them."""
    return f"{PREFIX}:{{{queue}}}:called:{scope}"


def damaged(queue: str, name: str) -> str:
    """A key of a wrong type, renamed by the doctor; `name` is the rest of its name."""
    return f"{PREFIX}:{{{queue}}}:damaged:{name}"


def damaged_task(queue: str, task_id: str) -> str:
    """The key of a task that was not a hash, renamed by the doctor."""
    return f"{PREFIX}:{{{queue}}}:damaged:t:{task_id}"


def forwarding(queue: str) -> str:
    """STRING, who moved a portion of due tasks; exists for some milliseconds if more are due."""
    return f"{PREFIX}:{{{queue}}}:forwarding"


def idle(queue: str) -> str:
    """ZSET of the channels of workers that found the queue empty, by the time in milliseconds since when they wait."""
    return f"{PREFIX}:{{{queue}}}:idle"


def watcher(queue: str) -> str:
    """STRING that names the worker which blocks on the queue, so that a plain LPUSH wakes one worker at once."""
    return f"{PREFIX}:{{{queue}}}:watcher"


def wake_up(worker_id: str, connection: int) -> str:
    """Channel on which one connection of a worker learns that a queue has work."""
    return f"{PREFIX}:wake:{worker_id}:{connection}"


def alive(worker_id: str) -> str:
    """Channel that carries nothing: a worker process is subscribed to it as long as it lives."""
    return f"{PREFIX}:alive:{worker_id}"


def full(queue: str) -> str:
    """STRING that exists while a worker waits for room within the limit of the whole queue."""
    return f"{PREFIX}:{{{queue}}}:full"


def recorded(queue: str, worker_id: str) -> str:
    """STRING with the number of a worker's last record of statistics, so that a repeated one is not added twice."""
    return f"{PREFIX}:{{{queue}}}:recorded:{worker_id}"


def type_minutes(queue: str, epoch_hour: int | str) -> str:
    """HASH of what ran in one hour since 1970, by minute and task type; kept for half a day."""
    return f"{PREFIX}:{{{queue}}}:type_minutes:{epoch_hour}"


def type_hours(queue: str, epoch_day: int | str) -> str:
    """HASH of what ran on one day since 1970, by hour and task type; kept for 30 days."""
    return f"{PREFIX}:{{{queue}}}:type_hours:{epoch_day}"


def errors(queue: str) -> str:
    """HASH of the groups of errors: when the first and the last were, and what is known of the last one."""
    return f"{PREFIX}:{{{queue}}}:errors"


def error_minutes(queue: str, epoch_hour: int | str) -> str:
    """HASH of the errors of one hour since 1970, by minute and group; kept for half a day."""
    return f"{PREFIX}:{{{queue}}}:error_minutes:{epoch_hour}"


def error_hours(queue: str, epoch_day: int | str) -> str:
    """HASH of the errors of one day since 1970, by hour and group; kept for 30 days."""
    return f"{PREFIX}:{{{queue}}}:error_hours:{epoch_day}"


def split(key: str, queues: Collection[str]) -> tuple[str, str] | None:
    """The queue of a key, and the rest of the key's name; None for a key without a queue. Queue names that other
    programs chose may contain braces: the longest name in `queues` that fits wins."""
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
    """A key in the slot of this one that never exists. A script that names it is refused while the slot moves
    between nodes, when it would find only some of its keys. Empty for a key without a hash tag."""
    start = key.find("{")
    end = key.find("}", start + 2)
    return f"{key[: end + 1]}:absent" if 0 <= start < end else ""


def missing(key: str) -> str:
    """A key beside this one that never exists: scripts delete it where they need a write that changes nothing."""
    return f"{key}:absent"


def cron(queue: str, entry_id: str) -> str:
    """HASH of one schedule whose tasks go to this queue: its current tick, and the last one that was enqueued."""
    return f"{PREFIX}:{{{queue}}}:cron:{entry_id}"


def scheduler_leader(scope: str) -> str:
    """STRING that names the scheduler that fires the schedules of this scope, for as long as its lease lasts."""
    return f"{PREFIX}:veredus:scheduler_leader:{scope}"


def ends(listener: str) -> str:
    """Channel on which one listening process learns how the tasks that it waits for ended."""
    return f"{PREFIX}:ends:{listener}"


def told(queue: str) -> str:
    """LIST of what happened to tasks that clients of the gateway follow, until a worker has sent it to them."""
    return f"{PREFIX}:{{{queue}}}:told"


def waits(queue: str) -> str:
    """ZSET of the durable tasks that wait for events or children, by the time in milliseconds of their next look."""
    return f"{PREFIX}:{{{queue}}}:waits"


def ended(queue: str) -> str:
    """LIST of children of durable tasks that have ended, with the parents to notify, until a worker has done so."""
    return f"{PREFIX}:{{{queue}}}:ended"


def orphans(queue: str) -> str:
    """HASH of durable tasks that were cancelled with their children, `<id> <run mark>` -> their fan-outs, until all
    children are cancelled."""
    return f"{PREFIX}:{{{queue}}}:orphans"


def kids(queue: str, task_id: str, mark: str, name: str, chunk: int) -> str:
    """HASH of the outcomes of up to 1,000 children of one run, position -> outcome; it lives 30 days at most."""
    return f"{PREFIX}:{{{queue}}}:kids:{task_id}:{mark}:{chunk}:{name}"


EVENT_PARTITIONS = 64


def event(name: str) -> str:
    """STRING with what was emitted under a name, `+` and JSON; it expires. In one of 64 slots of a cluster."""
    return f"{PREFIX}:veredus:{{e{zlib.crc32(name.encode()) % EVENT_PARTITIONS:02x}}}:event:{name}"


def waiters(name: str) -> str:
    """SET of the tasks that wait for an event: queue, id, mark and field; it lapses unless a look renews it."""
    return f"{PREFIX}:veredus:{{e{zlib.crc32(name.encode()) % EVENT_PARTITIONS:02x}}}:waiters:{name}"
