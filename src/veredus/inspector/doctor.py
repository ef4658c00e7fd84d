"""Doctor: finds what crashes, evictions and old clients have left behind, and mends it without losing a payload."""

from __future__ import annotations

from veredus.errors import CommandRefused, QueueNotFound
from veredus.inspector.bulk import Progress
from veredus.inspector.checkup import STALE_SET, Checkup
from veredus.inspector.findings import LANE_KINDS, ORDER, TASK_KINDS, WARN, Finding
from veredus.inspector.health import examine_servers
from veredus.model.message import TaskMessage
from veredus.store.checkups import Checkups
from veredus.store.lanes import Lanes
from veredus.store.limits import LimitDesk
from veredus.store.moves import Moves
from veredus.store.places import text
from veredus.store.queues import Queues, escaped
from veredus.store.roll import Roll
from veredus.store.tasks import Tasks
from veredus.wire import keys
from veredus.wire.messages import UndecodableMessage, decode_task, encode_task

_ROUNDS = 4
_NEXT = 1000
"""Of so many tasks that are next, the types are compared with what the workers have handlers for."""
_TYPES = {"pending": "list", "active": "list", "told": "list", "groups": "set", "limits": "hash"}


class Doctor:
    """Everything is read in pages while the workers work: a queue of a million tasks is examined without a stall."""

    def __init__(self, queues: Queues, tasks: Tasks, checkups: Checkups, roll: Roll) -> None:
        self._queues, self._tasks, self._roll = queues, tasks, roll
        self.checkups = checkups
        self._lanes = Lanes(checkups.redis, now_ms=checkups.now_ms)
        self._moves = Moves(checkups.redis, now_ms=checkups.now_ms)
        self._limits = LimitDesk(checkups.redis, now_ms=checkups.now_ms)

    async def diagnose(self, queue: str | None = None, *, server: bool = True) -> list[Finding]:
        """The state of the server (also what is well), and every damage in one queue or in all."""
        findings = await examine_servers(self.checkups) if server else []
        registered = set(await self._queues.names())
        seen = {name: Checkup(self.checkups, name) for name in (registered if queue is None else {queue})}
        if queue is None:
            for route in await self.checkups.routes():
                await self._scan(keys.PREFIX + ":{*", route, seen, registered)
        else:
            prefix = keys.queue_prefix(queue)
            await self._scan(f"{escaped(prefix)}*", prefix, seen, registered | {queue}, only=queue)
            if queue not in registered and not seen[queue].used:
                raise QueueNotFound(queue, known=registered)
        for name in sorted(seen):
            await seen[name].finish(registered=name in registered)
            findings += seen[name].findings
            if server:
                findings += await self._unserved(name)
        return findings

    async def _unserved(self, queue: str) -> list[Finding]:
        """Types of the next pending tasks that none of the queue's workers has a handler for."""
        try:
            page = await self._tasks.page(queue, "pending", 0, _NEXT)
        except CommandRefused:
            return []  # the list itself is damaged: that is found and mended first
        types = {task.type for task in page.tasks}
        return [
            Finding(
                kind="unserved",
                level=WARN,
                text=f"queue {queue!r}: tasks of type {one} wait, but none of its live workers has a handler for them",
                advice="start a worker that declares this type, or delete them",
                queue=queue,
            )
            for one in sorted(await self._roll.unserved(queue, types))
        ]

    async def repair(self, finding: Finding) -> bool:
        """Mend one finding, after looking again. False if there is nothing (any more) to mend."""
        checkups, queue = self.checkups, finding.queue
        match finding.kind:
            case "unregistered":
                await self._queues.register(queue)
                return True
            case "wrong_type" if not finding.task_id:
                kind = _TYPES.get(finding.key, "zset")
                return await checkups.aside(queue, finding.key, kind)
            case "unlisted_group" | "stale_set":
                stale = await checkups.server_ms() // 1000 - STALE_SET
                return await checkups.regroup(queue, finding.key, finding.group, stale, apply=True)
            case "empty_group":
                return await checkups.unlist_group(queue, finding.group, apply=True)
            case "stale_lock":
                return await checkups.unlock(queue, finding.key, finding.detail, apply=True)
            case "unlisted_lane":
                return await self._lanes.enlist(queue, finding.group)
            case "empty_lane":
                return await self._lanes.unlist(queue, finding.group)
            case "stale_slot":
                return await self._limits.check(queue, finding.group, finding.task_id, apply=True)
            case kind if kind in LANE_KINDS:
                return bool(await self._lanes.check(queue, finding.task_id, finding.group, apply=True))
            case "half_moved":
                return await self._moves.settle(finding.detail, queue, finding.task_id)
            case "undecodable":
                return await self._quarantine(queue, finding.task_id)
            case kind if kind in TASK_KINDS:
                return bool(await checkups.mend(queue, finding.task_id, finding.group, apply=True))
        return False

    async def repair_all(self, queue: str | None = None, *, progress: Progress | None = None) -> list[Finding]:
        """Diagnose and mend until nothing is found, since one repair may bring other damage to light. Returns what was
        mended."""
        mended: list[Finding] = []
        for _ in range(_ROUNDS):
            found = [one for one in await self.diagnose(queue, server=False) if one.repairable]
            found.sort(key=lambda finding: ORDER.index(finding.kind))
            before = len(mended)
            for number, finding in enumerate(found, start=1):
                if await self.repair(finding):
                    mended.append(finding)
                if progress is not None:
                    progress(number, len(found))
            if len(mended) == before:
                break
        return mended

    async def _scan(self, pattern: str, route: str, seen: dict[str, Checkup], queues: set[str], only: str = "") -> None:
        async for page in self._queues.scan(pattern, route):
            names: dict[str, list[str]] = {}
            for key in page:
                queue, rest = keys.split(text(key), queues) or ("", "")
                if queue and only in ("", queue):  # the keys of others may begin alike
                    names.setdefault(queue, []).append(rest)
            for queue, found in names.items():
                if queue not in seen:
                    seen[queue] = Checkup(self.checkups, queue)
                await seen[queue].see(found)

    async def _quarantine(self, queue: str, task_id: str) -> bool:
        """Archived as a message that Go's tools can show: the bytes are its payload."""
        data = await self._tasks.message(queue, task_id)
        if data is None:
            return False
        try:
            decode_task(data)
        except UndecodableMessage as exc:
            now = await self.checkups.server_ms() // 1000
            stand_in = TaskMessage(
                type="undecodable", payload=data, id=task_id, queue=queue, error_msg=str(exc), last_failed_at=now
            )
            place = await self._tasks.place(queue, task_id)
            return await self.checkups.quarantine(queue, task_id, data, encode_task(stand_in), place)
        return False
