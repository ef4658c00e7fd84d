"""Every Redis key and channel, one function each."""

from __future__ import annotations

import hashlib

QUEUES = "asynq:queues"
SERVERS = "asynq:servers"
WORKERS = "asynq:workers"
SCHEDULERS = "asynq:schedulers"
CANCEL_CHANNEL = "asynq:cancel"


def server(host: str, pid: int, server_id: str) -> str:
    return f"asynq:servers:{{{host}:{pid}:{server_id}}}"


def workers(host: str, pid: int, server_id: str) -> str:
    return f"asynq:workers:{{{host}:{pid}:{server_id}}}"


def scheduler_entries(host: str, pid: int, scheduler_id: str) -> str:
    return f"asynq:schedulers:{{{host}:{pid}:{scheduler_id}}}"


def scheduler_history(entry_id: str) -> str:
    return f"asynq:scheduler_history:{entry_id}"


def semaphore(scope: str) -> str:
    return f"asynq:sema:{scope}"


def queue_prefix(queue: str) -> str:
    """The braces make all keys of a queue share one slot of a cluster."""
    return f"asynq:{{{queue}}}:"


def task_prefix(queue: str) -> str:
    return f"asynq:{{{queue}}}:t:"


def task(queue: str, task_id: str) -> str:
    return f"asynq:{{{queue}}}:t:{task_id}"


def pending(queue: str) -> str:
    return f"asynq:{{{queue}}}:pending"


def active(queue: str) -> str:
    return f"asynq:{{{queue}}}:active"


def lease(queue: str) -> str:
    return f"asynq:{{{queue}}}:lease"


def scheduled(queue: str) -> str:
    return f"asynq:{{{queue}}}:scheduled"


def retry(queue: str) -> str:
    return f"asynq:{{{queue}}}:retry"


def archived(queue: str) -> str:
    return f"asynq:{{{queue}}}:archived"


def completed(queue: str) -> str:
    return f"asynq:{{{queue}}}:completed"


def paused(queue: str) -> str:
    return f"asynq:{{{queue}}}:paused"


def processed(queue: str) -> str:
    return f"asynq:{{{queue}}}:processed"


def failed(queue: str) -> str:
    return f"asynq:{{{queue}}}:failed"


def processed_on(queue: str, day: str) -> str:
    """`day` is a UTC date, YYYY-MM-DD."""
    return f"asynq:{{{queue}}}:processed:{day}"


def failed_on(queue: str, day: str) -> str:
    """`day` is a UTC date, YYYY-MM-DD."""
    return f"asynq:{{{queue}}}:failed:{day}"


def unique(queue: str, task_type: str, payload: bytes | None) -> str:
    """The lock of a unique task: no payload at all and an empty one are two different locks, as in Go."""
    digest = "" if payload is None else hashlib.md5(payload, usedforsecurity=False).hexdigest()
    return f"asynq:{{{queue}}}:unique:{task_type}:{digest}"


def groups(queue: str) -> str:
    return f"asynq:{{{queue}}}:groups"


def group_prefix(queue: str) -> str:
    return f"asynq:{{{queue}}}:g:"


def group(queue: str, name: str) -> str:
    return f"asynq:{{{queue}}}:g:{name}"


def aggregation_set(queue: str, name: str, set_id: str) -> str:
    return f"asynq:{{{queue}}}:g:{name}:{set_id}"


def aggregation_sets(queue: str) -> str:
    return f"asynq:{{{queue}}}:aggregation_sets"


# Our own, beside Asynq's: names that it does not use, under the same hash tag.


def due(queue: str) -> str:
    """ZSET of scheduled and retried ids by due instant in milliseconds: Asynq's own scores have whole seconds."""
    return f"asynq:{{{queue}}}:due"


def batch(queue: str, worker_id: str) -> str:
    """STRING with the number of a worker's last dequeue, so that a repeated request gets the same batch."""
    return f"asynq:{{{queue}}}:batch:{worker_id}"


def delay_wakeup(queue: str) -> str:
    """Channel that wakes the forwarders; the message is the new due instant in milliseconds."""
    return f"asynq:{{{queue}}}:delay_wakeup"


def cron(queue: str, entry_id: str) -> str:
    """HASH of one schedule whose tasks go to this queue: the tick it is at, and the last one that was enqueued."""
    return f"asynq:{{{queue}}}:cron:{entry_id}"


def scheduler_leader(scope: str) -> str:
    """STRING that names the scheduler which fires the schedules of this scope, for as long as its lease lasts."""
    return f"asynq:veredus:scheduler_leader:{scope}"


def ends(listener: str) -> str:
    """Channel on which one listening process is told what became of the tasks that it waits for."""
    return f"asynq:ends:{listener}"
