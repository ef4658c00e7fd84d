"""Sends calls: builds the messages, writes them in batches, and reports what happened to each."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from veredus.client.batches import CallBatches, handle_of
from veredus.client.call import Call
from veredus.client.handle import Handle
from veredus.client.handle_queries import HandleQueries
from veredus.client.served_check import ServedCheck
from veredus.client.task_listener import TaskListener
from veredus.client.templates import OptionsTemplate, new_task
from veredus.clock import SYSTEM, Clock
from veredus.errors import NotConfirmed, QueueFull, TaskIdConflict
from veredus.model.build import build, new_id
from veredus.model.key_rules import fixed
from veredus.model.options import Options
from veredus.store.store import Store
from veredus.store.tasks.intake import FULL, ID_EXISTS, Code, Intake, NewTask
from veredus.store.tasks.live_processes import LiveProcesses
from veredus.wire import keys
from veredus.wire.messages import encode_task

if TYPE_CHECKING:
    from veredus.client.notifier import Notifier

MAX_TEMPLATES = 1_000

Send = Callable[[Iterable[Call[Any]]], Awaitable[list[Handle[Any]]]]
SendMiddleware = Callable[[Iterable[Call[Any]], Send], Awaitable[list[Handle[Any]]]]
"""Wraps everything that is sent. It gets the calls and the function that sends them, and returns one handle per call
in order."""


class Client:
    """The producer's side of one store."""

    def __init__(
        self,
        store: Store,
        *,
        max_payload: int,
        clock: Clock = SYSTEM,
        queries: HandleQueries | None = None,
        middlewares: Sequence[SendMiddleware] = (),
        confirms: bool = True,
        unserved: str = "ignore",
        is_limited: Callable[[str, str], bool] = lambda task_type, queue: False,
    ) -> None:
        """`confirms`: False if the server cannot confirm any `durability`, like that of a test. `is_limited`:
        whether a limit was declared for this type or this queue."""
        self.store = store
        self._confirms = confirms
        self._middlewares = middlewares
        self.listener = TaskListener(store.redis, store.results)
        self._notifier: Notifier | None = None
        self._queries = queries
        self._max_payload = max_payload
        self._clock = clock
        self._served = ServedCheck(LiveProcesses(store.redis), unserved)
        self._is_limited = is_limited
        self._templates: dict[tuple[str, int], OptionsTemplate] = {}
        """A template per type and options object: such tasks differ only in id and payload."""

    async def enqueue(self, call: Call[Any], *, _wrapped: bool = False) -> Handle[Any]:
        """Send one task; returns once Redis has it. Raises TaskIdConflict if the id is taken."""
        if self._middlewares and not _wrapped:
            return (await self._through(self._enqueue_each)((call,)))[0]
        entry = self.entry(call)
        queue = call.options.queue
        if entry.needs:
            await self._served.before(queue, entry)
        code = await self._intake(call.options.durability).add(queue, entry)
        if code == FULL:
            code = await self._when_room(call.options, entry)
        if entry.needs:
            await self._served.after(queue, entry)
        if code == ID_EXISTS:
            raise TaskIdConflict(entry.task_id, queue)
        handle = handle_of(entry.task_id, queue, call.type, entry.state, code, self._queries)
        if isinstance(code, NotConfirmed):
            raise NotConfirmed(f"task {entry.task_id} is {code}", handles=[handle])
        return handle

    async def _when_room(self, options: Options, entry: NewTask) -> Code:
        """Try again until the queue has room. Raises QueueFull."""
        intake = self._intake(options.durability)
        [code] = await intake.add_many(options.queue, [entry], wait=options.wait_for_room or 0.0)
        if code == FULL:
            raise QueueFull(options.queue, intake.most_in(options.queue))
        return code

    def _intake(self, durability: str) -> Intake:
        return self.store.intake_with(durability if self._confirms else "any")

    async def _enqueue_each(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        return [await self.enqueue(call, _wrapped=True) for call in calls]

    @property
    def notifier(self) -> Notifier:
        """For messages to clients of the gateway."""
        if self._notifier is None:
            from veredus.client.notifier import Notifier

            self._notifier = Notifier(self.store, clock=self._clock)
        return self._notifier

    async def close(self) -> None:
        self.listener.close()
        if self._notifier is not None:
            await self._notifier.close()
        await self.store.close()

    async def enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        """Send many tasks in few round trips. The handles are in the order of the calls.

        A list is checked completely before anything is sent. Other iterables are sent while they are read: if one
        raises, the tasks before that are in Redis.
        """
        return await (self._through(self._enqueue_many) if self._middlewares else self._enqueue_many)(calls)

    def _through(self, send: Send) -> Send:
        """The first one declared is the outermost."""
        for middleware in reversed(self._middlewares):
            send = functools.partial(_call_middleware, middleware, send)
        return send

    async def _enqueue_many(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        if isinstance(calls, list | tuple):
            for call in calls:
                call.check_size(self._max_payload)
        batches = CallBatches(self._intake, self._queries)
        needing: dict[tuple[str, tuple[str, ...], str], NewTask] = {}
        options, template, limit = None, None, self._max_payload
        for call in calls:
            if call.options is not options or template is None or call.type != template.type:
                options, template = call.options, self._plain_template(call)
            if template is not None:
                payload = call.payload or b""
                if len(payload) > limit:
                    call.check_size(limit)
                full = batches.add_plain(template, payload)
            else:
                entry = self.entry(call)
                if entry.needs:
                    await self._served.before(call.options.queue, entry)
                    needing[call.options.queue, entry.needs, entry.group] = entry
                full = batches.add(call, entry)
            if full is not None:
                await batches.send(full)
        handles = await batches.finish()
        for (queue, _, _), entry in needing.items():
            await self._served.after(queue, entry)
        return handles

    def entry(self, call: Call[Any]) -> NewTask:
        """The task as it will be stored."""
        call.check_size(self._max_payload)
        options = call.options
        if options.task_id is None and not options.unique_for:
            task_id = new_id()
            template = self._templates.get((call.type, id(options))) or self._make_template(call)
            data = template.fill(task_id, call.payload or b"")
            if template.is_plain:
                return NewTask(task_id, data)
            return new_task(task_id, data, options, self._clock.time(), needs=template.needs)
        message = build(call.type, call.payload, options)
        if options.unique_for:
            own = fixed("unique_key", options.unique_key)
            message.unique_key = keys.unique(options.queue, call.type, own.encode() if own else call.payload)
        data = encode_task(message)
        return new_task(message.id, data, options, self._clock.time(), message.unique_key, self._needs(call))

    def _needs(self, call: Call[Any]) -> tuple[str, ...]:
        """The options of this call that only Veredus workers support."""
        if not self._served.is_on:
            return ()
        options = call.options
        needs = [name for name in ("order_key", "limit_key", "group") if getattr(options, name) is not None]
        if options.limit_key is None and self._is_limited(call.type, options.queue):
            needs.append("limit")
        return tuple(needs)

    def _plain_template(self, call: Call[Any]) -> OptionsTemplate | None:
        """For a call that needs only an id and a message."""
        if call.options.task_id is not None or call.options.unique_for:
            return None
        template = self._templates.get((call.type, id(call.options))) or self._make_template(call)
        return template if template.is_plain else None

    def _make_template(self, call: Call[Any]) -> OptionsTemplate:
        if len(self._templates) >= MAX_TEMPLATES:
            self._templates.clear()
        template = OptionsTemplate(call, self._needs(call), self._queries)
        self._templates[call.type, id(call.options)] = template
        return template


async def _call_middleware(middleware: SendMiddleware, send: Send, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
    return await middleware(calls, send)
