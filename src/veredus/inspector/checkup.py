"""The examination of one queue: pages of keys and containers, and a second, exact look at whatever seems wrong."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Sequence

from veredus.inspector.findings import Finding, damage
from veredus.inspector.lane_checkup import LaneCheckup
from veredus.model.ordering import PARKED
from veredus.store.checkups import CHUNK, Checkups, Sight
from veredus.wire import keys
from veredus.wire.messages import UndecodableMessage, decode_task

STALE_SET = 120
"""Seconds after its deadline at which nobody can be expected to reclaim an aggregation set any more."""
STALE_MOVE = 60
"""Seconds after which a move that has not ended was broken off."""
_TYPES = {"pending": "list", "active": "list", "told": "list", "groups": "set", "limits": "hash"} | dict.fromkeys(
    ("lease", "scheduled", "retry", "archived", "completed", "due", "aggregation_sets", "lanes", "limited"), "zset"
)
_SETS = ("scheduled", "retry", "archived", "completed")
_USED = (*_SETS, "pending", "active")


class Checkup:
    """Fed with the names of the queue's keys (without its prefix) as they are found, then finished.

    A look at one page is not one at the whole queue: tasks move meanwhile. So nothing seen on the way is a finding,
    only a reason to look at that one task again, with all its places in the same instant.
    """

    def __init__(self, checkups: Checkups, queue: str) -> None:
        self._checkups, self._queue = checkups, queue
        self._prefix = keys.queue_prefix(queue)
        self._findings: dict[tuple[str, str], Finding] = {}
        self._suspects: dict[str, str] = {}
        self._in_lists: dict[str, set[str]] = {"pending": set(), "active": set()}
        self._staged: set[str] = set()
        self._groups: set[str] = set()
        self._lanes = LaneCheckup(checkups, queue)
        self.used = False

    @property
    def findings(self) -> list[Finding]:
        return list(self._findings.values())

    async def see(self, names: Sequence[str]) -> None:
        """Some of the queue's keys."""
        self.used = self.used or any(name in _USED or name.startswith(("t:", "g:")) for name in names)
        await self._see_tasks([name[2:] for name in names if name.startswith("t:")])
        await self._see_locks([name for name in names if name.startswith("unique:")])
        self._groups.update(name[2:] for name in names if name.startswith("g:"))
        self._lanes.see(names)

    async def finish(self, *, registered: bool) -> None:
        if self.used and not registered:
            self._found("unregistered", key=keys.QUEUES)
        kinds = await self._checkups.types([self._prefix + name for name in _TYPES])
        sound = {name for (name, kind), found in zip(_TYPES.items(), kinds, strict=True) if found in (kind, "none")}
        for name, found in zip(_TYPES, kinds, strict=True):
            if name not in sound:
                self._found("wrong_type", key=name, detail=found)
        await self._check_groups(sound)
        for name in sound.intersection(_SETS):
            await self._check_set(self._prefix + name, name)
        if "archived" in sound:
            await self._check_moves()
        for name in ("pending", "active"):
            await self._check_list(name, name in sound)
        if "lease" in sound:
            async for page in self._pages("lease"):
                self._suspect_all(sight for sight in await self._look(page) if sight.state != "active")
        if {"due", "scheduled", "retry"} <= sound:
            await self._check_due()
        await self._lanes.finish(self._found, lanes_sound={"lanes", "scheduled"} <= sound)
        await self._confirm()

    # On the way through the keys.

    async def _see_tasks(self, task_ids: Sequence[str]) -> None:
        for sight in await self._checkups.examine(self._queue, task_ids, messages=True):
            if sight.message is not None:
                self._check_message(sight)
            if sight.state in self._in_lists and sight.has_message and not sight.sets:
                self._in_lists[sight.state].add(sight.task_id)
            elif sight.state == "aggregating" and sight.has_message and not sight.sets:
                self._staged.add(sight.task_id)
            elif sight.state and not _is_sound(sight):
                self._suspects[sight.task_id] = ""

    def _check_message(self, sight: Sight) -> None:
        try:
            decode_task(sight.message or b"")
        except UndecodableMessage as exc:
            self._found("undecodable", task_id=sight.task_id, detail=str(exc))

    async def _see_locks(self, names: Sequence[str]) -> None:
        full = [self._prefix + name for name in names]
        for lock, holder in zip(full, await self._checkups.values(full), strict=True):
            owner = None if holder is None else holder.decode("utf-8", "surrogateescape")
            if owner is not None and await self._checkups.unlock(self._queue, lock, owner, apply=False):
                self._found("stale_lock", key=lock, detail=owner)

    # Containers.

    async def _check_set(self, key: str, state: str, group: str = "") -> None:
        at = 0
        while rows := await self._checkups.ranked(key, at, CHUNK):
            at += len(rows)
            for sight, (task_id, score) in zip(await self._look([row[0] for row in rows]), rows, strict=True):
                if sight.state != state or not _is_sound(sight) or score % 1:
                    self._suspects[task_id] = group
                elif state == "scheduled" and score == PARKED:
                    self._lanes.park(task_id)

    async def _check_moves(self) -> None:
        """Copies that a move across a cluster left in the archive; one that is under way is younger."""
        at, old = 0, await self._checkups.server_ms() / 1000 - STALE_MOVE
        while rows := await self._checkups.ranked(self._prefix + "archived", at, CHUNK):
            at += len(rows)
            ids = [task_id for task_id, score in rows if score < old]
            for task_id, source in zip(ids, await self._checkups.moved_from(self._queue, ids), strict=True):
                if source:
                    self._found("half_moved", task_id=task_id, detail=source)

    async def _check_list(self, name: str, is_list: bool) -> None:
        """What is in the list must be a task of that state; what has that state must be in the list."""
        listed: set[str] = set()
        at = 0
        while is_list and (page := await self._checkups.listed(self._prefix + name, at, CHUNK)):
            at += len(page)
            for sight in await self._look(page):
                if sight.task_id in listed or sight.state != name or not _is_sound(sight):
                    self._suspects[sight.task_id] = ""
                listed.add(sight.task_id)
        await self._suspect_again(sorted(self._in_lists[name] - listed), name)

    async def _check_due(self) -> None:
        at = 0
        while rows := await self._checkups.ranked(keys.due(self._queue), at, CHUNK):
            at += len(rows)
            ids = [task_id for task_id, _ in rows]
            scheduled = await self._checkups.scores(keys.scheduled(self._queue), ids)
            retry = await self._checkups.scores(keys.retry(self._queue), ids)
            for (task_id, exact), *scores in zip(rows, scheduled, retry, strict=True):
                if not math.isfinite(exact) or math.ceil(exact / 1000) not in scores or exact % 1:
                    self._suspects.setdefault(task_id, "")

    async def _check_groups(self, sound: set[str]) -> None:
        sets: dict[str, float] = {}
        if "aggregation_sets" in sound:
            at = 0
            while rows := await self._checkups.ranked(keys.aggregation_sets(self._queue), at, CHUNK):
                at += len(rows)
                sets.update(rows)
        stale = await self._checkups.server_ms() // 1000 - STALE_SET
        prefix = keys.group_prefix(self._queue)
        for key in sorted(sets.keys() | {prefix + name for name in self._groups}):
            await self._check_group(key, key.removeprefix(prefix), key in sets, sound, stale)
        if "groups" in sound:
            for name in await self._checkups.listed_groups(self._queue):
                if await self._checkups.unlist_group(self._queue, name, apply=False):
                    self._found("empty_group", group=name, detail=name)
        await self._suspect_again(sorted(self._staged), "aggregating")

    async def _check_group(self, key: str, name: str, is_set: bool, sound: set[str], stale: int) -> None:
        kind = (await self._checkups.types([key]))[0]
        if kind not in ("zset", "none"):
            self._found("wrong_type", key=f"g:{name}", detail=kind)
            return
        known = False
        if {"groups", "aggregation_sets"} <= sound and await self._checkups.regroup(
            self._queue, key, name, stale, apply=False
        ):
            self._found("stale_set" if is_set else "unlisted_group", key=key, group=name)
            known = True  # its members are where that repair will look for them
        if is_set or known:
            at = 0
            while rows := await self._checkups.ranked(key, at, CHUNK):
                at += len(rows)
                self._staged.difference_update(task_id for task_id, _ in rows)
                sights = await self._look([task_id for task_id, _ in rows])
                self._suspect_all(
                    one for one in sights if one.state != "aggregating" or not one.has_message or (is_set and one.sets)
                )
        elif kind == "zset":
            await self._check_set(key, "aggregating", name)

    # Second looks.

    async def _suspect_again(self, task_ids: Sequence[str], state: str) -> None:
        """Those that were not where they should be and still have that state: most have simply moved on meanwhile."""
        for start in range(0, len(task_ids), CHUNK):
            sights = await self._look(task_ids[start : start + CHUNK])
            self._suspect_all(sight for sight in sights if sight.state == state)

    async def _confirm(self) -> None:
        for task_id, group in self._suspects.items():
            for kind, detail in await self._checkups.mend(self._queue, task_id, group, apply=False):
                if kind == "unlisted_group":
                    continue  # found by its key
                key = f"t:{task_id}" if kind == "wrong_type" else ""
                self._found(kind, task_id=task_id, key=key, group=group, detail=detail)

    async def _look(self, task_ids: Sequence[str]) -> list[Sight]:
        return await self._checkups.examine(self._queue, task_ids)

    async def _pages(self, name: str) -> AsyncIterator[list[str]]:
        at = 0
        while rows := await self._checkups.ranked(self._prefix + name, at, CHUNK):
            at += len(rows)
            for task_id, score in rows:
                if score % 1:
                    self._suspects[task_id] = ""
            yield [task_id for task_id, _ in rows]
            await asyncio.sleep(0)

    def _suspect_all(self, sights: Iterable[Sight]) -> None:
        for sight in sights:
            self._suspects.setdefault(sight.task_id, "")

    def _found(self, kind: str, *, task_id: str = "", key: str = "", group: str = "", detail: str = "") -> None:
        finding = damage(kind, self._queue, task_id=task_id, key=key, group=group, detail=detail)
        self._findings[(kind, task_id or key or group)] = finding


def _is_sound(sight: Sight) -> bool:
    """As far as one quick look can tell: in the one set that its state says (if any), and leased only if active."""
    if not sight.has_message or sight.leased != (sight.state == "active"):
        return False
    return sight.sets == (frozenset() if sight.state in ("pending", "active") else {sight.state})
