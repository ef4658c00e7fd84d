"""Short worker settings, and a queue seen through an independent client."""

from __future__ import annotations

import time
from typing import Any

from tests.support.waiting import until
from veredus.model.message import TaskMessage
from veredus.wire import keys
from veredus.wire.messages import decode_task, encode_task

FAST: dict[str, Any] = {"lease": 1.5, "sweep": 0.3, "shutdown_timeout": 5.0}
"""Settings under which leases run out and are swept within a test's patience."""


class Look:
    """One queue as Redis has it."""

    def __init__(self, client: Any, queue: str = "default") -> None:
        self.client, self.queue = client, queue

    def of(self, queue: str) -> Look:
        return Look(self.client, queue)

    async def fields(self, task_id: str) -> dict[str, bytes]:
        return {name.decode(): value for name, value in (await self.client.hgetall(self.task(task_id))).items()}

    def task(self, task_id: str) -> str:
        return keys.task(self.queue, task_id)

    async def state(self, task_id: str) -> str:
        """The hash's state, once the container agrees; `gone` without a hash."""
        found = await self.client.hget(self.task(task_id), "state")
        return found.decode() if found else "gone"

    async def message(self, task_id: str) -> TaskMessage:
        data = await self.client.hget(self.task(task_id), "msg")
        assert data is not None, f"{task_id} has no message"
        return decode_task(data)

    async def ends(self, task_id: str, state: str) -> TaskMessage | None:
        """Wait until the task is in this state; returns its message, None when it is gone."""

        async def there() -> bool:
            return await self.state(task_id) == state

        try:
            await until(there)
        except AssertionError:
            raise AssertionError(f"{task_id} is {await self.state(task_id)}, not {state}") from None
        return None if state == "gone" else await self.message(task_id)

    async def now_ms(self) -> int:
        """The server's clock."""
        seconds, microseconds = await self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def pending(self) -> list[str]:
        """The next to run first."""
        return [item.decode() for item in reversed(await self.client.lrange(keys.pending(self.queue), 0, -1))]

    async def active(self) -> list[str]:
        return [item.decode() for item in await self.client.lrange(keys.active(self.queue), 0, -1)]

    async def scores(self, name: str) -> dict[str, float]:
        rows = await self.client.zrange(keys.queue_prefix(self.queue) + name, 0, -1, withscores=True)
        return {member.decode(): score for member, score in rows}

    async def counters(self) -> tuple[int, int]:
        """Processed and failed; the totals and the day's agree unless midnight passed."""
        processed, failed = await self.client.mget(keys.processed(self.queue), keys.failed(self.queue))
        day = time.strftime("%Y-%m-%d", time.gmtime())
        today = await self.client.mget(keys.processed_on(self.queue, day), keys.failed_on(self.queue, day))
        assert [int(n or 0) for n in today] == [int(processed or 0), int(failed or 0)]
        return int(processed or 0), int(failed or 0)

    async def push_like_go(self, message: TaskMessage) -> str:
        """What Asynq's client does: SADD, hash, LPUSH, and nobody is notified."""
        await self.client.sadd(keys.QUEUES, self.queue)
        fields = {"msg": encode_task(message), "state": "pending", "pending_since": time.time_ns()}
        await self.client.hset(self.task(message.id), mapping=fields)
        await self.client.lpush(keys.pending(self.queue), message.id)
        return message.id


def go_message(
    task_type: str, payload: bytes = b"", *, task_id: str = "from-go", queue: str = "default"
) -> TaskMessage:
    return TaskMessage(type=task_type, payload=payload, id=task_id, queue=queue, retry=25, timeout=1800)
