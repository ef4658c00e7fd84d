"""Looking for damage and mending it: each look and each repair is one script that sees all places at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from veredus.store.cluster import SLOTS, slot_of
from veredus.store.connection import Argument
from veredus.store.places import CONTAINERS, Part, data, sound, text
from veredus.store.scripts import load
from veredus.wire import keys

EXAMINE = load(
    "inspect/examine", keys=CONTAINERS, args="queue_prefix with_messages max_bytes count {task_id}* [now_ms]"
)
MEND = load("inspect/mend", keys=CONTAINERS, args="queue_prefix task_id group apply [now_ms]")
QUARANTINE = load("inspect/quarantine", keys=CONTAINERS, args="queue_prefix task_id seen_at message stand_in [now_ms]")
REGROUP = load("inspect/regroup", keys=CONTAINERS, args="queue_prefix set_key group stale_before limit apply [now_ms]")
UNLOCK = load("inspect/unlock", keys=CONTAINERS, args="queue_prefix lock holder apply [now_ms]")
ASIDE = load("inspect/aside", keys="key damaged", args="kind [now_ms]")

CHUNK = 250
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sight:
    """What one quick look at a task showed."""

    task_id: str
    state: str
    """Empty: there is no hash. `!`: the key is no hash. `?`: it has no state."""
    has_message: bool
    message: bytes | None
    sets: frozenset[str]
    """The sorted sets that have it, by state."""
    leased: bool


class Checkups(Part):
    async def examine(self, queue: str, task_ids: Sequence[str], *, messages: bool = False) -> list[Sight]:
        seen: list[Sight] = []
        while len(seen) < len(task_ids):
            chunk = task_ids[len(seen) : len(seen) + CHUNK]
            args: list[Argument] = [int(messages), MAX_BYTES, len(chunk), *map(data, chunk)]
            rows = await self.run_in(queue, EXAMINE, args)
            for at in range(0, len(rows), 5):
                state, has, message, sets, leased = rows[at : at + 5]
                names = frozenset(text(sets).split(",")) - {""}
                seen.append(Sight(chunk[at // 5], text(state), bool(has), message, names, bool(leased)))
        return seen

    async def mend(self, queue: str, task_id: str, group: str = "", *, apply: bool) -> list[tuple[str, str]]:
        """What is wrong with the places of one task, as (kind, detail); put right if `apply`."""
        rows = await self.run_in(queue, MEND, [data(task_id), data(group), int(apply)])
        return [(text(rows[at]), text(rows[at + 1])) for at in range(0, len(rows), 2)]

    async def quarantine(self, queue: str, task_id: str, message: bytes, stand_in: bytes, place: int | None) -> bool:
        code = await self.run_in(queue, QUARANTINE, [data(task_id), "" if place is None else place, message, stand_in])
        return bool(code == 1)

    async def unlist_group(self, queue: str, group: str, *, apply: bool) -> bool:
        """Whether a group without members is on the list of groups; it is taken off if `apply`."""
        _, _, changed = await self.run_in(queue, REGROUP, ["", data(group), 0, 0, int(apply)])
        return bool(changed)

    async def regroup(self, queue: str, set_key: str, group: str, stale_before: int, *, apply: bool) -> bool:
        """Whether an aggregation set is stale, or neither a set nor a group is listed for this key; if `apply`, its
        members go back to the groups that they name."""
        any_change = False
        while True:
            args: list[Argument] = [data(set_key), data(group), stale_before, CHUNK, int(apply)]
            moved, left, changed = await self.run_in(queue, REGROUP, args)
            any_change = any_change or bool(moved or changed)
            if not apply or not moved or not left:
                return any_change

    async def unlock(self, queue: str, lock: str, holder: str, *, apply: bool) -> bool:
        """Whether this lock has lost its task; it is deleted if `apply`."""
        return bool(await self.run_in(queue, UNLOCK, [data(lock), data(holder), int(apply)]))

    async def aside(self, queue: str, name: str, kind: str) -> bool:
        """Rename a key whose type is not `kind`."""
        prefix = keys.queue_prefix(queue)
        return bool(await self.redis.run(ASIDE, [prefix + name, f"{prefix}damaged:{name}"], self.timed([kind])))

    # Pages of single keys.

    async def types(self, names: Sequence[str]) -> list[str]:
        return [text(reply) for reply in sound(await self.redis.command_each([("TYPE", data(name)) for name in names]))]

    async def listed(self, key: str, start: int, size: int) -> list[str]:
        """Part of a list, from its head: what joins meanwhile makes ids come twice, but none is passed over."""
        found = await self.redis.command("LRANGE", key, start, start + size - 1, key=key)
        return [text(task_id) for task_id in found]

    async def ranked(self, key: str, start: int, size: int) -> list[tuple[str, float]]:
        found = await self.redis.command("ZRANGE", data(key), start, start + size - 1, "WITHSCORES", key=key)
        return [(text(found[at]), float(found[at + 1])) for at in range(0, len(found), 2)]

    async def scores(self, key: str, task_ids: Sequence[str]) -> list[float | None]:
        found = await self.redis.command("ZMSCORE", key, *map(data, task_ids), key=key)
        return [None if score is None else float(score) for score in found]

    async def listed_groups(self, queue: str) -> list[str]:
        """The names on the list of groups, read in pages."""
        key, cursor = keys.groups(queue), b"0"
        names: list[str] = []
        while True:
            cursor, found = await self.redis.command("SSCAN", key, cursor, "COUNT", 500, key=key)
            names += map(text, found)
            if cursor == b"0":
                return names

    async def values(self, names: Sequence[str]) -> list[bytes | None]:
        """Of strings; None for a key that is gone or something else."""
        replies = await self.redis.command_each([("GET", data(name)) for name in names])
        return [reply if isinstance(reply, bytes) else None for reply in replies]

    async def moved_from(self, queue: str, task_ids: Sequence[str]) -> list[str]:
        """The queue from which each was copied by a move that has not ended; empty for none."""
        replies = await self.redis.command_each(
            [("HGET", data(keys.task(queue, task_id)), "moved_from") for task_id in task_ids]
        )
        return [text(reply) if isinstance(reply, bytes) else "" for reply in replies]

    # The server.

    async def routes(self) -> list[str]:
        """One key per server, by which commands reach it: one server, or every master of a cluster."""
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
        """How one node sees the whole cluster."""
        return _facts(await self.redis.command("CLUSTER", "INFO", key=""))

    async def masters(self) -> dict[str, int]:
        """The masters of a cluster, each with the number of its replicas."""
        rows = await self.redis.command("CLUSTER", "SLOTS", key="")
        return {text(row[2][2]): len(row) - 3 for row in rows}

    async def setting(self, name: str, route: str) -> str:
        found = await self.redis.command("CONFIG", "GET", name, key=route)
        return text(found[1]) if len(found) > 1 else ""


def _facts(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value for name, _, value in lines}
