"""Checks one queue: reads keys and containers in pages, then checks each suspicious task again with one script."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Sequence

from veredus.inspector.findings import Finding, damage
from veredus.inspector.order_checkup import OrderCheckup
from veredus.model.order_keys import PARKED
from veredus.store.inspect.checkups import CHUNK, Checkups, TaskSighting
from veredus.wire import keys
from veredus.wire.messages import UndecodableMessage, decode_task

STALE_SET = 120
"""Seconds after its deadline at which an aggregation set counts as abandoned."""
STALE_MOVE = 60
"""Seconds after which an unfinished move counts as interrupted."""
_SORTED = ["lease", "scheduled", "retry", "archived", "completed", "due", "aggregation_sets"]
_SORTED += ["lanes", "limited", "waits"]
_LISTS = ["pending", "active", "told", "ended"]
_HASHES = ["limits", "orphans"]
_TYPES = {"groups": "set", **dict.fromkeys(_LISTS, "list"), **dict.fromkeys(_SORTED, "zset")}
_TYPES |= dict.fromkeys(_HASHES, "hash")
_SETS = ("scheduled", "retry", "archived", "completed")
_USED = (*_SETS, "pending", "active")


class Checkup:
    """Call `see` with the queue's key names (without its prefix) as they are found, then `finish`.

    Tasks move while the pages are read, so a mismatch on a page is not a finding yet. It makes the task a suspect, and
    a script then checks all places of that task at once.
    """

    def __init__(self, checkups: Checkups, queue: str) -> None:
        self._checkups, self._queue = checkups, queue
        self._prefix = keys.queue_prefix(queue)
        self._findings: dict[tuple[str, str], Finding] = {}
        self._suspects: dict[str, str] = {}
        self._in_lists: dict[str, set[str]] = {"pending": set(), "active": set()}
        self._staged: set[str] = set()
        self._groups: set[str] = set()
        self._order = OrderCheckup(checkups, queue)
        self.used = False

    @property
    def findings(self) -> list[Finding]:
        return list(self._findings.values())

    async def see(self, names: Sequence[str]) -> None:
        """Check some of the queue's keys."""
        self.used = self.used or any(name in _USED or name.startswith(("t:", "g:")) for name in names)
        await self._see_tasks([name[2:] for name in names if name.startswith("t:")])
        await self._see_locks([name for name in names if name.startswith("unique:")])
        self._groups.update(name[2:] for name in names if name.startswith("g:"))
        self._order.see(names)

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
                self._suspect_all(sighting for sighting in await self._examine(page) if sighting.state != "active")
        if {"due", "scheduled", "retry"} <= sound:
            await self._check_due()
        await self._order.finish(self._found, order_sound={"lanes", "scheduled"} <= sound)
        await self._confirm()

    # Keys.

    async def _see_tasks(self, task_ids: Sequence[str]) -> None:
        for sighting in await self._checkups.examine(self._queue, task_ids, messages=True):
            if sighting.message is not None:
                self._check_message(sighting)
            if sighting.state in self._in_lists and sighting.has_message and not sighting.sets:
                self._in_lists[sighting.state].add(sighting.task_id)
            elif sighting.state == "aggregating" and sighting.has_message and not sighting.sets:
                self._staged.add(sighting.task_id)
            elif sighting.state and not _is_sound(sighting):
                self._suspects[sighting.task_id] = ""

    def _check_message(self, sighting: TaskSighting) -> None:
        try:
            decode_task(sighting.message or b"")
        except UndecodableMessage as exc:
            self._found("undecodable", task_id=sighting.task_id, detail=str(exc))

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
            for sighting, (task_id, score) in zip(await self._examine([row[0] for row in rows]), rows, strict=True):
                if sighting.state != state or not _is_sound(sighting) or score % 1:
                    self._suspects[task_id] = group
                elif state == "scheduled" and score == PARKED:
                    self._order.add_waiting(task_id)

    async def _check_moves(self) -> None:
        """Find copies that an interrupted move between cluster slots left in the archive. A move in progress is
        younger."""
        at, old = 0, await self._checkups.server_ms() / 1000 - STALE_MOVE
        while rows := await self._checkups.ranked(self._prefix + "archived", at, CHUNK):
            at += len(rows)
            ids = [task_id for task_id, score in rows if score < old]
            for task_id, source in zip(ids, await self._checkups.moved_from(self._queue, ids), strict=True):
                if source:
                    self._found("half_moved", task_id=task_id, detail=source)

    async def _check_list(self, name: str, is_list: bool) -> None:
        """Every id in the list must be a task of that state, and every task of that state must be in the list."""
        listed: set[str] = set()
        at = 0
        while is_list and (page := await self._checkups.listed(self._prefix + name, at, CHUNK)):
            at += len(page)
            for sighting in await self._examine(page):
                if sighting.task_id in listed or sighting.state != name or not _is_sound(sighting):
                    self._suspects[sighting.task_id] = ""
                listed.add(sighting.task_id)
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
            known = True  # that repair handles its members
        if is_set or known:
            at = 0
            while rows := await self._checkups.ranked(key, at, CHUNK):
                at += len(rows)
                self._staged.difference_update(task_id for task_id, _ in rows)
                sightings = await self._examine([task_id for task_id, _ in rows])
                self._suspect_all(
                    one
                    for one in sightings
                    if one.state != "aggregating" or not one.has_message or (is_set and one.sets)
                )
        elif kind == "zset":
            await self._check_set(key, "aggregating", name)

    # Suspects.

    async def _suspect_again(self, task_ids: Sequence[str], state: str) -> None:
        """Suspect the tasks that still have this state. Most have moved on since they were seen."""
        for start in range(0, len(task_ids), CHUNK):
            sightings = await self._examine(task_ids[start : start + CHUNK])
            self._suspect_all(sighting for sighting in sightings if sighting.state == state)

    async def _confirm(self) -> None:
        for task_id, group in self._suspects.items():
            for kind, detail in await self._checkups.repair(self._queue, task_id, group, apply=False):
                if kind == "unlisted_group":
                    continue  # reported by _check_group
                key = f"t:{task_id}" if kind == "wrong_type" else ""
                self._found(kind, task_id=task_id, key=key, group=group, detail=detail)

    async def _examine(self, task_ids: Sequence[str]) -> list[TaskSighting]:
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

    def _suspect_all(self, sightings: Iterable[TaskSighting]) -> None:
        for sighting in sightings:
            self._suspects.setdefault(sighting.task_id, "")

    def _found(self, kind: str, *, task_id: str = "", key: str = "", group: str = "", detail: str = "") -> None:
        finding = damage(kind, self._queue, task_id=task_id, key=key, group=group, detail=detail)
        self._findings[(kind, task_id or key or group)] = finding


def _is_sound(sighting: TaskSighting) -> bool:
    """Quick check: the task is in the one set of its state (if that has a set), and leased only if active."""
    if not sighting.has_message or sighting.leased != (sighting.state == "active"):
        return False
    return sighting.sets == (frozenset() if sighting.state in ("pending", "active") else {sighting.state})
