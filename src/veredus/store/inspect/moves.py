"""Moves a task to another queue: in one script on one server, in three safe steps between cluster slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from veredus.model.durable import GATHER, OF_RUN
from veredus.store.connection.cluster import slot_of
from veredus.store.connection.connection import Argument
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import CONTAINERS, InspectPart, text
from veredus.store.inspect.tasks import CHANGED, DONE, NO_TASK, container
from veredus.wire import keys

_TARGETS = (keys.pending, keys.scheduled, keys.retry, keys.archived, keys.completed, keys.due, keys.groups)
MOVE = load(
    "inspect/move",
    keys=(
        f"{CONTAINERS} target_pending target_scheduled target_retry target_archived target_completed target_due "
        "target_groups queues"
    ),
    args="queue_prefix task_id seen_at old_message new_message new_lock target target_prefix channel from_start",
)


class Field(NamedTuple):
    """A field of the copied hash."""

    name: str
    value: bytes


STAGE_COPY = load("inspect/stage_copy", keys=CONTAINERS, args="queue_prefix task_id source lock", rows=Field)
DELETE_ORIGINAL = load("inspect/delete_original", keys=CONTAINERS, args="queue_prefix task_id seen_at message state")
RELEASE_COPY = load(
    "inspect/release_copy", keys=CONTAINERS, args="queue_prefix channel task_id source keep lock lock_ms"
)

RUNNING, LOCKED, BOUND = -1, -2, -8


@dataclass(frozen=True, slots=True)
class Move:
    """One task to move: its message and lock before and after."""

    task_id: str
    source: str
    target: str
    old: bytes
    new: bytes
    old_lock: str
    new_lock: str
    seen_at: int | None = None
    from_start: bool = False
    """A durable task forgets what it has done."""


class Moves(InspectPart):
    async def move(self, move: Move) -> int:
        """Returns a code of lua/inspect/move.lua."""
        source, target = keys.pending(move.source), keys.pending(move.target)
        if self.redis.address.kind == "cluster":
            await self.redis.command("SADD", keys.QUEUES, move.target, key=keys.QUEUES)
            if slot_of(source) != slot_of(target):
                return await self._across(move)
        return await self._at_once(move)

    async def _at_once(self, move: Move) -> int:
        in_cluster = self.redis.address.kind == "cluster"
        # In a cluster the list of queues is in another slot and already written, so pass any key of this slot.
        listed = keys.queue_prefix(move.target) + "moves" if in_cluster else keys.QUEUES
        args: list[Argument] = [
            move.task_id,
            "" if move.seen_at is None else move.seen_at,
            move.old,
            move.new,
            move.new_lock,
            move.target,
            keys.queue_prefix(move.target),
            keys.delay_wakeup(move.target),
            int(move.from_start),
        ]
        code: int = await self.run_in(
            move.source, MOVE, args, more_keys=[*[make(move.target) for make in _TARGETS], listed]
        )
        if in_cluster:
            await self.redis.command("DEL", listed, key=listed)
        return code

    async def _across(self, move: Move) -> int:
        """Stage a copy, delete the original, release the copy. An interrupted move can be repeated, because the copy
        records its source."""
        fields = await self._fields(move.source, move.task_id)
        if "msg" not in fields:
            return await self._release_copy(
                move, keep=True, lock_ms=0
            )  # an interrupted move may have deleted the original
        state = text(fields.get("state", b""))
        if state == "active":
            return RUNNING
        if fields["msg"] != move.old:
            return CHANGED
        if "waiting" in fields or any(name.startswith(GATHER) for name in fields):
            if not move.from_start:
                return BOUND
            if "waiting" in fields:
                state = "pending"
        if move.from_start:
            fields = {name: value for name, value in fields.items() if name not in OF_RUN and name[1:2] != ":"}
        lock_ms = await self._lock_ms(move)
        code = await self._stage_copy(move, fields, state, with_lock=lock_ms > 0)
        if code != DONE:
            return code
        gone = await self._delete_original(move, text(fields.get("state", b"")))
        if gone not in (DONE, NO_TASK):
            await self._release_copy(move, keep=False, lock_ms=0)
            return gone
        return await self._release_copy(move, keep=True, lock_ms=lock_ms)

    async def settle(self, source: str, target: str, task_id: str) -> bool:
        """Finish an interrupted move: release the copy if the original is gone, else delete the copy. False if there is
        no such copy."""
        move = Move(task_id, source, target, b"", b"", "", "")
        original = await self._fields(source, task_id)
        return await self._release_copy(move, keep="msg" not in original, lock_ms=0) == DONE

    async def _fields(self, queue: str, task_id: str) -> dict[str, bytes]:
        key = keys.task(queue, task_id)
        found = await self.redis.command("HGETALL", key, key=key)
        return {text(found[at]): found[at + 1] for at in range(0, len(found), 2)}

    async def _lock_ms(self, move: Move) -> int:
        """How long the task still holds its unique lock; 0 if it does not."""
        if not move.old_lock or await self.redis.command("GET", move.old_lock, key=move.old_lock) != (
            move.task_id.encode()
        ):
            return 0
        left: int = await self.redis.command("PTTL", move.old_lock, key=move.old_lock)
        return max(0, left)

    async def _stage_copy(self, move: Move, fields: Mapping[str, bytes], state: str, *, with_lock: bool) -> int:
        copied: dict[str, bytes] = {name: value for name, value in fields.items() if name != "held"}
        copied |= {"msg": move.new, "moved_state": state.encode()}
        if move.new_lock:
            copied["unique_key"] = move.new_lock.encode()
        place = container(move.source, state, text(fields.get("group", b"")))
        for name, key in (("moved_score", place), ("moved_due", keys.due(move.source))):
            if state != "pending":
                score = await self.redis.command("ZSCORE", key, move.task_id, key=key)
                if score is not None:
                    copied[name] = score
        args: list[Argument] = [move.task_id, move.source, move.new_lock if with_lock else ""]
        code: int = await self.run_in(move.target, STAGE_COPY, args, [Field(*item) for item in copied.items()])
        return code

    async def _delete_original(self, move: Move, state: str) -> int:
        args: list[Argument] = [move.task_id, "" if move.seen_at is None else move.seen_at, move.old, state]
        code: int = await self.run_in(move.source, DELETE_ORIGINAL, args)
        return code

    async def _release_copy(self, move: Move, *, keep: bool, lock_ms: int) -> int:
        code: int = await self.run_in(
            move.target,
            RELEASE_COPY,
            [
                keys.delay_wakeup(move.target),
                move.task_id,
                move.source,
                int(keep),
                move.new_lock if lock_ms else "",
                lock_ms,
            ],
        )
        return code
