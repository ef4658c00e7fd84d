"""Enqueues children of durable tasks, and reads what they return."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from veredus.client.call import Call
from veredus.client.templates import OptionsTemplate
from veredus.client.trace_metadata import with_trace
from veredus.errors import ConfigError, QueueClosed, WouldWaitForItself
from veredus.model.durable import ANCESTORS, CHILD_RETENTION, PARENT, PORTION
from veredus.model.options import Options
from veredus.store.connection.batching import in_batches
from veredus.store.tasks.children import ChildTask
from veredus.store.tasks.intake import CLOSED, LOCKED, NewTask
from veredus.store.tasks.runs import MOST_BYTES
from veredus.wire.results import result_decoder

if TYPE_CHECKING:
    from veredus.client.client import Client

Find = Callable[[str], Callable[..., Any] | None]


class ParentTask(NamedTuple):
    """Whose children they are."""

    queue: str
    task_id: str
    order_keys: tuple[str, ...]
    """`queue\\0order key` of the parent and of those that wait for it."""

    def headers(self) -> dict[str, str]:
        named = {PARENT: json.dumps([self.queue, self.task_id])}
        return named | ({ANCESTORS: json.dumps(self.order_keys)} if self.order_keys else {})


class ChildSender:
    """One per worker."""

    def __init__(self, client: Client, find: Find) -> None:
        self._client = client
        self._find = find

    def checked(self, calls: Sequence[Call[Any]], parent: ParentTask) -> list[Call[Any]]:
        """The calls with the options of children. Raises ConfigError or WouldWaitForItself."""
        made: dict[int, Options] = {}
        found: list[Call[Any]] = []
        for call in calls:
            if not isinstance(call, Call):
                raise ConfigError("calls", call, "what task.call(...) or app.call(...) returns")
            options = made.get(id(call.options))
            if options is None:
                options = made[id(call.options)] = _child_options(call.options, parent)
            found.append(Call(call.type, call.payload, options))
        return found

    async def check_open(self, calls: Sequence[Call[Any]]) -> None:
        """Raises QueueClosed before anything is enqueued."""
        from veredus.store.inspect.queues import Queues

        queues = Queues(self._client.store.redis)
        for queue in dict.fromkeys(call.options.queue for call in calls):
            if await queues.is_closed(queue):
                raise QueueClosed(queue)

    async def send(self, calls: Sequence[Call[Any]], children: Sequence[ChildTask]) -> list[int]:
        """Enqueue a portion. Returns the places of those that a unique lock refused. May be repeated."""
        client = self._client
        batches: dict[tuple[str, Any], list[tuple[int, NewTask]]] = {}
        templates: dict[tuple[str, int], OptionsTemplate] = {}
        for place, (call, child) in enumerate(zip(calls, children, strict=True)):
            key = (call.type, id(call.options))
            template = templates.get(key)
            if template is None:
                template = templates[key] = OptionsTemplate(call, (), None)
            if template.is_plain and not call.options.unique_for:
                entry = NewTask(child.task_id, template.fill(child.task_id, call.payload or b""))
            else:
                entry = client.entry(Call(call.type, call.payload, call.options.merged({"task_id": child.task_id})))
            batches.setdefault((child.queue, entry.batch_kind), []).append((place, entry))
        refused = []
        for (queue, _), alike in batches.items():
            for rows in in_batches(alike, lambda row: len(row[1].message), PORTION, MOST_BYTES):
                codes = await client.store.children.spawn(
                    queue, [entry for _, entry in rows], [children[place] for place, _ in rows]
                )
                if codes == [CLOSED]:
                    raise QueueClosed(queue)
                refused += [place for (place, _), code in zip(rows, codes, strict=True) if code == LOCKED]
        return refused

    def decode(self, task_type: str, outcome: bytes) -> Any:
        """The result in the outcome of a child that succeeded."""
        if len(outcome) == 1:
            return None
        return result_decoder(self._find(task_type))(outcome[2:])


def digest_of(calls: Sequence[Call[Any]]) -> str:
    """Tells whether a fan-out has the children that it had at the last attempt."""
    digest = hashlib.sha1(usedforsecurity=False)
    heads: dict[tuple[str, str], bytes] = {}
    for call in calls:
        kind, payload = (call.type, call.options.queue), call.payload or b""
        head = heads.get(kind)
        if head is None:
            head = heads[kind] = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in kind)
        digest.update(b"%b%b%b" % (head, len(payload).to_bytes(4, "big"), payload))
    return digest.hexdigest()[:16]


def _child_options(options: Options, parent: ParentTask) -> Options:
    if options.group is not None:
        raise ConfigError("group", options.group, "no group: a child cannot be aggregated")
    if options.task_id is not None:
        raise ConfigError("task_id", options.task_id, "no id: the parent gives a child its id")
    if options.order_key is not None and f"{options.queue}\0{options.order_key}" in parent.order_keys:
        raise WouldWaitForItself(
            f"a child with order_key={options.order_key!r} in queue {options.queue!r} could begin only when its "
            "parent has ended, which waits for it"
        )
    headers = {**with_trace(options.headers), **parent.headers()}
    return options.merged({"retention": max(options.retention or 0, CHILD_RETENTION), "headers": headers})
