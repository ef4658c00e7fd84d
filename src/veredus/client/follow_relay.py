"""Following a task: sends its progress and its end to a client as notifies, from whatever process."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from veredus.errors import CommandRefused, ConfigError, PayloadError
from veredus.model.delivery import PushResult
from veredus.model.task_status import read_progress
from veredus.store.store import Store
from veredus.store.tasks import results
from veredus.store.tasks.follow_feed import FollowFeed, FollowTarget, read_record
from veredus.store.tasks.results import TaskReport, heard
from veredus.wire import session_keys
from veredus.wire.messages import UndecodableMessage, decode_task
from veredus.wire.results import result_decoder

if TYPE_CHECKING:
    from veredus.client.client import Client
    from veredus.client.handle import Handle
    from veredus.client.notifier import Notifier

logger = logging.getLogger("veredus")

PROGRESS, ENDED = "task.progress", "task.ended"
MAIL = 86400.0
"""Seconds for which the notify about the end waits for a user who has no session."""

_decode = result_decoder(None)


async def follow(client: Client, handle: Handle[Any], *, session: str | None, user: str | None) -> None:
    """Register the client as a follower of the task. If the task has ended already, notify it at once."""
    if (session is None) == (user is None):
        raise ConfigError("target", [session, user], "exactly one of session, user")
    if session is not None:
        session_keys.sid_tag(session)
    else:
        session_keys.check_name("user", user or "")
    target = FollowTarget(session or "", user or "")
    sight = await client.store.results.look(handle.queue, handle.id, target.channel)
    if sight.ended:
        key = hashlib.sha1(f"{handle.queue} {handle.id} {sight.state}".encode(), usedforsecurity=False).hexdigest()
        await _push(client.notifier, target, ENDED, _ending(handle.queue, handle.id, sight), key)


class FollowRelay:
    """Sends what scripts recorded for followers. Several relays may run: all read the list from its beginning, and
    the dedupe key of a record ensures that it is sent once and in order."""

    def __init__(self, store: Store, notifier: Notifier) -> None:
        self._store = store
        self._feed = FollowFeed(store.redis)
        self._notifier = notifier

    async def pass_on(self, queues: Sequence[str]) -> int:
        """Send everything that waits in these queues. Returns the number of records."""
        count, refused = 0, None
        while waiting := await self._feed.waiting(queues):
            queues = []
            for queue, records in waiting.items():
                if isinstance(records, CommandRefused):
                    refused = records  # raised after the other queues have been handled
                    continue
                queues.append(queue)
                for record in records:
                    await self._pass(queue, record)
                    await self._feed.remove(queue, record)
                    count += 1
        if refused is not None:
            raise refused
        return count

    async def _pass(self, queue: str, record: bytes) -> None:
        key = hashlib.sha1(record, usedforsecurity=False).hexdigest()
        try:
            target, data = read_record(record)
            task_key, sight = heard(data)
            task_id = task_key.partition("}:t:")[2]
        except ValueError:
            logger.warning("queue %s has an unreadable notification for a follower: %r", queue, record[:200])
            return
        if sight.state == results.PROGRESSED:
            step = read_progress(sight.progress)
            if step is not None:
                body = {"task": task_id, "queue": queue, "share": step.share, "note": step.note}
                await _push(self._notifier, target, PROGRESS, body, key)
            return
        if not sight.whole:
            found = await self._store.results.look(queue, task_id)
            sight = found if found.state == sight.state else sight
        await _push(self._notifier, target, ENDED, _ending(queue, task_id, sight), key)


async def _push(notifier: Notifier, target: FollowTarget, type: str, body: dict[str, Any], key: str) -> None:
    where: dict[str, Any] = {"session": target.session} if target.session else {"user": target.user}
    if target.user and type == ENDED:
        where["wait"] = MAIL
    try:
        pushed = await notifier.push(body, type=type, metadata={"task": body["task"]}, dedupe_key=key, **where)
    except (PayloadError, ConfigError) as exc:
        logger.warning("%s of task %s is passed on without its content: %s", type, body["task"], exc)
        brief = {name: body[name] for name in ("task", "queue", "state") if name in body}
        try:
            pushed = await notifier.push(brief, type=type, dedupe_key=key, **where)
        except (PayloadError, ConfigError) as exc:
            logger.warning("%s of task %s cannot be passed on: %s", type, body["task"], exc)
            return
    refused = [one.status for one in (pushed if isinstance(pushed, list) else [pushed]) if isinstance(one, PushResult)]
    if "full" in refused:
        logger.warning("%s of task %s did not reach %s: its outbox is full", type, body["task"], target.channel[1:])


def _ending(queue: str, task_id: str, sight: TaskReport) -> dict[str, Any]:
    """What a follower receives at the end."""
    body: dict[str, Any] = {"task": task_id, "queue": queue, "state": sight.state}
    if sight.state == results.COMPLETED and sight.result is not None:
        value = _decode(sight.result)
        body["result"] = {"bytes": len(value)} if isinstance(value, bytes) else value
    elif sight.state == results.ARCHIVED:
        try:
            body["error"] = decode_task(sight.message).error_msg if sight.message else ""
        except UndecodableMessage as exc:
            body["error"] = str(exc)
    return body
