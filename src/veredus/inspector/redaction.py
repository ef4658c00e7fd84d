"""Applies the app's `redact` to what the inspector has read."""

from __future__ import annotations

from dataclasses import replace

from veredus.model.attempts import AttemptInfo
from veredus.model.error_groups import ErrorGroupInfo
from veredus.model.info import SchedulerEntryInfo, ServerInfo, TaskInfo
from veredus.model.redaction import Redact, Sensitive, redacted, redacted_bytes
from veredus.model.run_info import ChildLink, RunInfo


class Redaction:
    """Without a hook everything stays as it is. What workers of this app stored has been redacted before, and is once
    more: what Go or another app stored has not."""

    def __init__(self, redact: Redact | None) -> None:
        self._redact = redact

    def task(self, task: TaskInfo) -> TaskInfo:
        redact = self._redact
        if redact is None:
            return task

        def what(kind: str) -> Sensitive:
            return Sensitive(kind, task.type, task.queue, task.id)

        payload = redacted_bytes(redact, task.payload, what("payload"))
        return replace(
            task,
            payload=payload,
            is_redacted=payload != task.payload,
            result=redacted_bytes(redact, task.result, what("result")),
            last_error=redacted(redact, task.last_error, what("error")),
            traceback=redacted(redact, task.traceback, what("traceback")),
        )

    @property
    def is_on(self) -> bool:
        return self._redact is not None

    def attempt(self, one: AttemptInfo, type: str, queue: str, task_id: str) -> AttemptInfo:
        def shown(kind: str, text: str) -> str:
            return redacted(self._redact, text, Sensitive(kind, type, queue, task_id))

        return replace(
            one,
            error=shown("error", one.error),
            traceback=shown("traceback", one.traceback),
            log=tuple((at, shown("log", line)) for at, line in one.log),
        )

    def run(self, run: RunInfo | None) -> RunInfo | None:
        """What steps returned is left out, because its kind is unknown."""
        if self._redact is None or run is None:
            return run
        steps = [replace(one, detail="", children=tuple(map(self.child, one.children))) for one in run.steps]
        return replace(run, steps=tuple(steps))

    def child(self, child: ChildLink) -> ChildLink:
        return child if self._redact is None else replace(child, detail="")

    def server(self, server: ServerInfo) -> ServerInfo:
        if self._redact is None:
            return server
        workers = tuple(
            replace(
                one,
                task_payload=redacted_bytes(
                    self._redact, one.task_payload, Sensitive("payload", one.task_type, one.queue, one.task_id)
                ),
            )
            for one in server.active_workers
        )
        return replace(server, active_workers=workers)

    def error(self, group: ErrorGroupInfo) -> ErrorGroupInfo:
        if self._redact is None:
            return group
        what = Sensitive("error", group.type, group.queue, group.task_id)
        return replace(group, error=redacted(self._redact, group.error, what))

    def schedule(self, entry: SchedulerEntryInfo) -> SchedulerEntryInfo:
        if self._redact is None:
            return entry
        payload = redacted_bytes(self._redact, entry.task_payload, Sensitive("payload", entry.task_type))
        return replace(entry, task_payload=payload)
