"""Finds and repairs damage. Each check and each repair is one script that sees all keys at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from veredus.store.connection.cluster import SLOTS, slot_of
from veredus.store.connection.connection import Argument
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import CONTAINERS, InspectPart, TaskId, data, raise_first_error, text
from veredus.wire import keys

EXAMINE = load("inspect/examine", keys=CONTAINERS, args="queue_prefix with_messages max_bytes", rows=TaskId)
REPAIR = load("inspect/repair", keys=CONTAINERS, args="queue_prefix task_id seen_group apply")
QUARANTINE = load("inspect/quarantine", keys=CONTAINERS, args="queue_prefix task_id seen_at message stand_in")
REGROUP = load("inspect/regroup", keys=CONTAINERS, args="queue_prefix set group stale_before limit apply")
UNLOCK = load("inspect/unlock", keys=CONTAINERS, args="queue_prefix lock holder apply")
RENAME_DAMAGED = load("inspect/rename_damaged", keys="key damaged", args="kind")

CHUNK = 250
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskSighting:
    """Where one task was found."""

    task_id: str
    state: str
    """Empty if there is no hash, `!` if the key is not a hash, `?` if the hash has no state."""
    has_message: bool
    message: bytes | None
    sets: frozenset[str]
    """The states whose sorted sets contain the task."""
    leased: bool


class Checkups(InspectPart):
    async def examine(self, queue: str, task_ids: Sequence[str], *, messages: bool = False) -> list[TaskSighting]:
        seen: list[TaskSighting] = []
        while len(seen) < len(task_ids):
            chunk = task_ids[len(seen) : len(seen) + CHUNK]
            asked = [TaskId(data(task_id)) for task_id in chunk]
            rows = await self.run_in(queue, EXAMINE, [int(messages), MAX_BYTES], asked)
            for at in range(0, len(rows), 5):
                state, has, message, sets, leased = rows[at : at + 5]
                names = frozenset(text(sets).split(",")) - {""}
                seen.append(TaskSighting(chunk[at // 5], text(state), bool(has), message, names, bool(leased)))
        return seen

    async def repair(self, queue: str, task_id: str, group: str = "", *, apply: bool) -> list[tuple[str, str]]:
        """What is wrong with one task, as (kind, detail). Repairs it if `apply`."""
        rows = await self.run_in(queue, REPAIR, [data(task_id), data(group), int(apply)])
        return [(text(rows[at]), text(rows[at + 1])) for at in range(0, len(rows), 2)]

    async def quarantine(self, queue: str, task_id: str, message: bytes, stand_in: bytes, place: int | None) -> bool:
        code = await self.run_in(queue, QUARANTINE, [data(task_id), "" if place is None else place, message, stand_in])
        return bool(code == 1)

    async def unlist_group(self, queue: str, group: str, *, apply: bool) -> bool:
        """Whether an empty group is listed. Removes it from the list if `apply`."""
        _, _, changed = await self.run_in(queue, REGROUP, ["", data(group), 0, 0, int(apply)])
        return bool(changed)

    async def regroup(self, queue: str, set_key: str, group: str, stale_before: int, *, apply: bool) -> bool:
        """Whether an aggregation set is stale, or the key is listed neither as a set nor as a group. If `apply`,
        returns its members to their groups."""
        any_change = False
        while True:
            args: list[Argument] = [data(set_key), data(group), stale_before, CHUNK, int(apply)]
            moved, left, changed = await self.run_in(queue, REGROUP, args)
            any_change = any_change or bool(moved or changed)
            if not apply or not moved or not left:
                return any_change

    async def unlock(self, queue: str, lock: str, holder: str, *, apply: bool) -> bool:
        """Whether this lock belongs to no task any more. Deletes it if `apply`."""
        return bool(await self.run_in(queue, UNLOCK, [data(lock), data(holder), int(apply)]))

    async def rename_damaged(self, queue: str, name: str, kind: str) -> bool:
        """Rename a key whose type is not `kind`."""
        names = [keys.queue_prefix(queue) + name, keys.damaged(queue, name)]
        return bool(await self.redis.run(RENAME_DAMAGED, names, [kind]))

    # Pages of single keys.

    async def types(self, names: Sequence[str]) -> list[str]:
        return [
            text(reply)
            for reply in raise_first_error(await self.redis.command_each([("TYPE", data(name)) for name in names]))
        ]

    async def listed(self, key: str, start: int, size: int) -> list[str]:
        """Part of a list, from its head: tasks added while reading make ids appear twice, but none is skipped."""
        found = await self.redis.command("LRANGE", key, start, start + size - 1, key=key)
        return [text(task_id) for task_id in found]

    async def ranked(self, key: str, start: int, size: int) -> list[tuple[str, float]]:
        found = await self.redis.command("ZRANGE", data(key), start, start + size - 1, "WITHSCORES", key=key)
        return [(text(found[at]), float(found[at + 1])) for at in range(0, len(found), 2)]

    async def scores(self, key: str, task_ids: Sequence[str]) -> list[float | None]:
        found = await self.redis.command("ZMSCORE", key, *map(data, task_ids), key=key)
        return [None if score is None else float(score) for score in found]

    async def listed_groups(self, queue: str) -> list[str]:
        """The names of all listed groups."""
        key, cursor = keys.groups(queue), b"0"
        names: list[str] = []
        while True:
            cursor, found = await self.redis.command("SSCAN", key, cursor, "COUNT", 500, key=key)
            names += map(text, found)
            if cursor == b"0":
                return names

    async def values(self, names: Sequence[str]) -> list[bytes | None]:
        """The values of string keys; None for a missing key or another type."""
        replies = await self.redis.command_each([("GET", data(name)) for name in names])
        return [reply if isinstance(reply, bytes) else None for reply in replies]

    async def moved_from(self, queue: str, task_ids: Sequence[str]) -> list[str]:
        """The queue that an unfinished move copied each task from; empty for none."""
        replies = await self.redis.command_each(
            [("HGET", data(keys.task(queue, task_id)), "moved_from") for task_id in task_ids]
        )
        return [text(reply) if isinstance(reply, bytes) else "" for reply in replies]

    # The server.

    async def routes(self) -> list[str]:
        """One key per server that routes a command to it: a single server, or every master of a cluster."""
        if self.redis.address.kind != "cluster":
            return [""]
        rows = await self.redis.command("CLUSTER", "SLOTS", key="")
        wanted = {(text(row[2][0] or b""), row[2][1]): (row[0], row[1]) for row in rows}
        return [
            next(name for n in range(10 * SLOTS) if first <= slot_of(name := f"{n}") <= last)
            for first, last in wanted.values()
        ]

    async def server_facts(self, route: str) -> dict[str, str]:
        """INFO of one server."""
        return _facts(await self.redis.command("INFO", key=route))

    async def cluster_facts(self) -> dict[str, str]:
        """CLUSTER INFO of one node."""
        return _facts(await self.redis.command("CLUSTER", "INFO", key=""))

    async def masters(self) -> dict[str, int]:
        """The masters of a cluster with their number of replicas."""
        rows = await self.redis.command("CLUSTER", "SLOTS", key="")
        return {text(row[2][2]): len(row) - 3 for row in rows}

    async def setting(self, name: str, route: str) -> str:
        found = await self.redis.command("CONFIG", "GET", name, key=route)
        return text(found[1]) if len(found) > 1 else ""


def _facts(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value for name, _, value in lines}
