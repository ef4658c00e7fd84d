"""Reads the runs of durable tasks for people and tools."""

from __future__ import annotations

from veredus.model.durable import GATHER, FanOutRecord
from veredus.model.run_info import RunInfo, run_info
from veredus.store.inspect.inspect_part import InspectPart, data, text
from veredus.store.tasks.runs import DurableRuns, kid_keys
from veredus.wire import keys


class DurableRunReader(InspectPart):
    async def of(self, queue: str, task_id: str) -> RunInfo | None:
        """What a task has done so far; None if it has used no durable call."""
        key = keys.task(queue, task_id)
        mark, waiting = await self.redis.command("HMGET", data(key), "run", "waiting", key=key)
        if mark is None:
            return None
        fields = await DurableRuns(self.redis).fields(queue, task_id)
        ended = {}
        for field, value in fields.items():
            if field.startswith(GATHER):
                name = field[len(GATHER) :]
                names = kid_keys(queue, task_id, text(mark), name, FanOutRecord.unpack(value).size)
                lengths = await self.redis.command_each([("HLEN", one) for one in names])
                ended[name] = sum(length for length in lengths if isinstance(length, int))
        return run_info(text(mark), fields, text(waiting or b""), ended)
