"""Finds and repairs damage that crashes, evictions and old clients leave behind. No repair loses a payload."""

from __future__ import annotations

from veredus.errors import CommandRefused, QueueNotFound
from veredus.inspector.bulk_runner import Progress
from veredus.inspector.checkup import STALE_SET, Checkup
from veredus.inspector.findings import ORDER, ORDER_KINDS, TASK_KINDS, WARN, Finding
from veredus.inspector.health import examine_servers
from veredus.model.message import TaskMessage
from veredus.store.inspect.checkups import Checkups
from veredus.store.inspect.inspect_part import text
from veredus.store.inspect.moves import Moves
from veredus.store.inspect.queues import Queues, escaped
from veredus.store.inspect.tasks import Tasks
from veredus.store.tasks.limits import LimitStore
from veredus.store.tasks.live_processes import LiveProcesses
from veredus.store.tasks.order_keys import OrderKeys
from veredus.wire import keys
from veredus.wire.messages import UndecodableMessage, decode_task, encode_task

_ROUNDS = 4
_NEXT = 1000
"""Pending tasks whose types are compared with the handlers of the workers."""
_TYPES = {"pending": "list", "active": "list", "told": "list", "ended": "list", "groups": "set"}
_TYPES |= dict.fromkeys(("limits", "orphans"), "hash")


class Doctor:
    """Reads everything in pages while workers run, so that even a queue of a million tasks is not blocked."""

    def __init__(self, queues: Queues, tasks: Tasks, checkups: Checkups, processes: LiveProcesses) -> None:
        self._queues, self._tasks, self._processes = queues, tasks, processes
        self.checkups = checkups
        self._order_keys = OrderKeys(checkups.redis)
        self._moves = Moves(checkups.redis)
        self._limits = LimitStore(checkups.redis)

    async def diagnose(self, queue: str | None = None, *, server: bool = True) -> list[Finding]:
        """Check the server (also reporting what is fine) and one queue or all of them."""
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
                findings += await self.unserved_types(name)
        return findings

    async def unserved_types(self, queue: str, looked_at: int = _NEXT) -> list[Finding]:
        """Find types among the next pending tasks that none of the queue's workers has a handler for."""
        try:
            page = await self._tasks.page(queue, "pending", 0, looked_at)
        except CommandRefused:
            return []  # the list itself is damaged: repair that first
        types = {task.type for task in page.tasks}
        return [
            Finding(
                kind="unserved",
                level=WARN,
                text=f"queue {queue!r}: tasks of type {one} wait, but none of its live workers has a handler for them",
                advice="start a worker that declares this type, or delete them",
                queue=queue,
            )
            for one in sorted(await self._processes.unserved(queue, types))
        ]

    async def repair(self, finding: Finding) -> bool:
        """Check one finding again and repair it. False if there is nothing left to repair."""
        checkups, queue = self.checkups, finding.queue
        match finding.kind:
            case "unregistered":
                await self._queues.register(queue)
                return True
            case "wrong_type" if not finding.task_id:
                kind = _TYPES.get(finding.key, "zset")
                return await checkups.rename_damaged(queue, finding.key, kind)
            case "unlisted_group" | "stale_set":
                stale = await checkups.server_ms() // 1000 - STALE_SET
                return await checkups.regroup(queue, finding.key, finding.group, stale, apply=True)
            case "empty_group":
                return await checkups.unlist_group(queue, finding.group, apply=True)
            case "stale_lock":
                return await checkups.unlock(queue, finding.key, finding.detail, apply=True)
            case "unlisted_order_key":
                return await self._order_keys.enlist(queue, finding.group)
            case "empty_order_key":
                return await self._order_keys.unlist(queue, finding.group)
            case "stale_slot":
                return await self._limits.check(queue, finding.group, finding.task_id, apply=True)
            case kind if kind in ORDER_KINDS:
                return bool(await self._order_keys.check(queue, finding.task_id, finding.group, apply=True))
            case "half_moved":
                return await self._moves.settle(finding.detail, queue, finding.task_id)
            case "undecodable":
                return await self._quarantine(queue, finding.task_id)
            case kind if kind in TASK_KINDS:
                return bool(await checkups.repair(queue, finding.task_id, finding.group, apply=True))
        return False

    async def repair_all(self, queue: str | None = None, *, progress: Progress | None = None) -> list[Finding]:
        """Diagnose and repair until nothing is found, because one repair may reveal other damage. Returns the findings
        that were repaired."""
        repaired: list[Finding] = []
        for _ in range(_ROUNDS):
            found = [one for one in await self.diagnose(queue, server=False) if one.repairable]
            found.sort(key=lambda finding: ORDER.index(finding.kind))
            before = len(repaired)
            for number, finding in enumerate(found, start=1):
                if await self.repair(finding):
                    repaired.append(finding)
                if progress is not None:
                    progress(number, len(found))
            if len(repaired) == before:
                break
        return repaired

    async def _scan(self, pattern: str, route: str, seen: dict[str, Checkup], queues: set[str], only: str = "") -> None:
        async for page in self._queues.scan(pattern, route):
            names: dict[str, list[str]] = {}
            for key in page:
                queue, rest = keys.split(text(key), queues) or ("", "")
                if queue and only in ("", queue):  # keys of other queues may begin with the same prefix
                    names.setdefault(queue, []).append(rest)
            for queue, found in names.items():
                if queue not in seen:
                    seen[queue] = Checkup(self.checkups, queue)
                await seen[queue].see(found)

    async def _quarantine(self, queue: str, task_id: str) -> bool:
        """Archive a message that cannot be decoded: its bytes become the payload of a new one that Go's tools can
        show."""
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
