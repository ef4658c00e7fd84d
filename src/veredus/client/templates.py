"""From calls to new tasks: what the calls of one type with the same options have in common is made once."""

from __future__ import annotations

from typing import Any

from veredus.client.call import Call
from veredus.client.handle import Stored
from veredus.client.handle_queries import HandleQueries
from veredus.model.build import build, due_text, expires_text
from veredus.model.key_rules import fixed
from veredus.model.lifecycle import State
from veredus.model.options import Options
from veredus.store.tasks.intake import NewTask
from veredus.wire.messages import MessageTemplate


class OptionsTemplate(MessageTemplate):
    """Keeps the options alive, so that their id stays unique, and knows which of them need more than a plain
    enqueue."""

    __slots__ = ("is_plain", "needs", "options", "stored", "type")

    def __init__(self, call: Call[Any], needs: tuple[str, ...], queries: HandleQueries | None) -> None:
        super().__init__(build(call.type, b"", call.options))
        self.type = call.type
        self.options = call.options
        self.needs = needs
        self.is_plain = not needs and _is_plain(call.options)
        self.stored = Stored(call.options.queue, call.type, str(State.PENDING), True, queries)


def new_task(
    task_id: str, data: bytes, options: Options, now: float, unique_key: str = "", needs: tuple[str, ...] = ()
) -> NewTask:
    return NewTask(
        task_id,
        data,
        due_text(options, now),
        expires_text(options, now),
        unique_key,
        int(options.unique_for or 0),
        group=options.group or "",
        replace=options.replace,
        order_key=fixed("order_key", options.order_key),
        order_hold=options.order_hold,
        limit_key=fixed("limit_key", options.limit_key),
        needs=needs,
    )


def _is_plain(options: Options) -> bool:
    """Whether a task with these options is stored with nothing but its id and message, whenever it is sent."""
    if options.at is not None or options.expires is not None or options.task_id is not None:
        return False
    return new_task("", b"", options, 0.0) == NewTask("", b"")
