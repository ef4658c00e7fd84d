"""The table: what a handler does, and what becomes of its task wherever it runs. `docs/handlers.md` shows it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.handlers import work
from veredus import SkipRetry

EXECUTORS = ("loop", "thread", "process")
MODES = ("one process", "supervised")

Text = str | re.Pattern[str]


@dataclass(frozen=True)
class Expected:
    """What is there when all is over."""

    state: str
    """The task's, or `gone`."""
    runs: int = 1
    """How often the handler began."""
    finished: int | None = None
    """How often it came to its own end; None where that does not matter."""
    retried: int = 0
    processed: int = 1
    failed: int = 0
    """The queue's counters."""
    error: Text = ""
    """The stored error, whole; or a pattern that fits the whole of it."""
    raised: bool = False
    """Whether the line that raised it stands in the stored traceback, and in the log beside the word "archived"."""
    result: Text | None = None
    logs: tuple[tuple[str, str, Text], ...] = ()
    """Level, logger and message of records that the worker writes once, with the task's id."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """What the handler noted."""
    progress: tuple[float, str] | None = None
    follow_ups: int = 0
    """Tasks that it sent."""


@dataclass(frozen=True)
class Difference:
    """Where one executor differs, how, and why."""

    executors: tuple[str, ...]
    reason: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = MODES


@dataclass(frozen=True)
class Row:
    name: str
    """Goes on from "A handler that ..."."""
    does: Callable[[], Any]
    outcome: str
    """What becomes of the task, for readers."""
    expected: Expected
    awaits: Callable[[], Any] | None = None
    """What it does on the loop instead."""
    options: Mapping[str, Any] = field(default_factory=lambda: {"max_retry": 0})
    cancel: str = ""
    """While it runs, it is cancelled with this `then`."""
    stopped: bool = False
    """While it runs, the worker is told to stop."""
    alone: tuple[str, ...] = ()
    """Executors where it ends or blocks the whole worker: there it has one of its own."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the worker, where it has one of its own."""
    differs: tuple[Difference, ...] = ()

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    def expects(self, executor: str, mode: str) -> Expected:
        expected = self.expected
        for one in self.differs:
            if executor in one.executors and mode in one.modes:
                expected = replace(expected, **one.changes)
        return expected


@dataclass(frozen=True)
class Cell:
    """One row in one executor: a task type with a queue of its own, so that the counters are its own too."""

    row: Row
    executor: str

    @property
    def task_id(self) -> str:
        return f"{self.row.slug}-{self.executor}"

    queue = task_id
    type = task_id


DONE = Expected("gone", finished=1)
ARCHIVED = ("warning", "veredus.worker", re.compile(r".*\barchived\b.*", re.DOTALL))


def completed(result: Text) -> Expected:
    return Expected("completed", result=result, finished=1)


def failed_twice(error: Text, **more: Any) -> Expected:
    """An attempt and a retry: one failure has not harmed what runs the next."""
    return Expected("archived", runs=2, retried=1, processed=2, failed=2, error=error, logs=(ARCHIVED,), **more)


def failed_once(error: Text, **more: Any) -> Expected:
    return Expected("archived", failed=1, error=error, logs=(ARCHIVED,), **more)


ONE_RETRY = {"max_retry": 1}
NO_RETRY = {"max_retry": 0}
ONE_SECOND = {"max_retry": 0, "timeout": 1}
TOO_LATE = "context deadline exceeded"

RETURNS = [
    Row("returns nothing", work.returns(None), "done and deleted", DONE),
    Row("returns a value", work.returns({"n": 1}), "completed, with the value as JSON", completed('{"n":1}')),
    Row("returns bytes", work.returns(b"\x00raw"), "completed, with these bytes", completed("\x00raw")),
    Row(
        "returns an object that JSON does not have",
        work.returns_object,
        "failed attempt: the error names the class",
        failed_once(re.compile(r".*\bobject\b.*", re.DOTALL), finished=1),
        options=NO_RETRY,
    ),
    Row(
        "returns NaN",
        work.returns(float("nan")),
        "failed attempt: JSON has no such number",
        failed_once(re.compile(r".*\bnan\b.*", re.DOTALL | re.IGNORECASE), finished=1),
        options=NO_RETRY,
    ),
    Row(
        "returns a generator",
        work.returns_generator,
        "failed attempt: nobody would run it",
        failed_once(re.compile(r".*\bgenerator\b.*", re.DOTALL), finished=1),
        options=NO_RETRY,
    ),
    Row(
        "returns a coroutine",
        work.returns_coroutine,
        "failed attempt: nobody would await it",
        failed_once(re.compile(r".*\bcoroutine\b.*", re.DOTALL), finished=1),
        options=NO_RETRY,
    ),
]


def _raises(name: str, body: Callable[[], Any], error: Text, *differs: Difference, outcome: str = "") -> Row:
    expected = failed_twice(error, finished=0, raised=True)
    return Row(f"raises {name}", body, outcome, expected, options=ONE_RETRY, differs=differs)


RAISES = [
    _raises("an exception", work.raises(lambda: Exception("plain")), "Exception: plain"),
    _raises("a class of its own", work.raises(lambda: work.OutOfStock("no beans")), "OutOfStock: no beans"),
    _raises("an exception without a message", work.raises(work.OutOfStock), "OutOfStock"),
    _raises("KeyError", work.raises(lambda: KeyError("name")), "KeyError: 'name'"),
    _raises("an exception that cannot be printed", work.raises(work.Mute), "Mute"),
    _raises(
        "an exception that needs arguments",
        work.raises(lambda: work.NeedsArguments("beans", 5)),
        "NeedsArguments: 5 of beans",
    ),
    _raises("BaseException", work.raises(lambda: BaseException("base")), "BaseException: base"),
    _raises("a subclass of BaseException", work.raises(lambda: work.Quit("enough")), "Quit: enough"),
    _raises("KeyboardInterrupt", work.raises(KeyboardInterrupt), "KeyboardInterrupt"),
    _raises("SystemExit, as `sys.exit` does", work.exit_with_text, "SystemExit: bye"),
    _raises(
        "GeneratorExit",
        work.raises(GeneratorExit),
        "RuntimeError: the handler raised GeneratorExit()",
        Difference(("loop",), "a coroutine may end with it", {"error": "GeneratorExit"}),
    ),
    _raises(
        "StopIteration",
        work.raises(lambda: StopIteration(3)),
        "RuntimeError: the handler raised StopIteration(3)",
        Difference(
            ("loop",),
            "Python's own words for it in a coroutine",
            {"error": "RuntimeError: coroutine raised StopIteration"},
        ),
    ),
    _raises("asyncio.CancelledError", work.raises(asyncio.CancelledError), "CancelledError"),
    _raises(
        "asyncio.CancelledError with a message",
        work.raises(lambda: asyncio.CancelledError("own")),
        "CancelledError: own",
    ),
    _raises(
        "an exception group",
        work.raises(lambda: ExceptionGroup("many", [ValueError("a"), KeyError("b")])),
        "ExceptionGroup: many (2 sub-exceptions)",
    ),
    _raises(
        "10 MB of text",
        work.raises(lambda: work.OutOfStock("x" * 10_000_000)),
        re.compile(r"OutOfStock: x{8000,8192}\.\.\. \(cut, 10,000,012 characters\)"),
        outcome="the first 8 KiB are kept",
    ),
    Row(
        "raises SkipRetry",
        work.raises(lambda: SkipRetry("never")),
        "archived at once, without its retries",
        failed_once("SkipRetry: never", finished=0, raised=True),
        options=ONE_RETRY,
    ),
    Row(
        "raises an exception `from` SkipRetry",
        work.skip_from_another,
        "the same",
        failed_once("OutOfStock: no beans", finished=0, raised=True),
        options=ONE_RETRY,
    ),
    Row(
        "raises an exception group with SkipRetry",
        work.skip_in_a_group,
        "the same",
        failed_once("ExceptionGroup: many (2 sub-exceptions)", finished=0, raised=True),
        options=ONE_RETRY,
    ),
    Row("raises RevokeTask", work.revoke, "deleted, and no failure", replace(DONE, finished=0), options=ONE_RETRY),
]

ENDED = [
    Row(
        "does not end in its time",
        work.waits_until_cancelled,
        "notified at its timeout; failed attempt",
        failed_once(TOO_LATE),
        awaits=work.waits_until_cancelled_on_loop,
        options=ONE_SECOND,
        differs=(
            Difference(("loop",), "the coroutine is cancelled: `await` raises CancelledError there", {"finished": 0}),
            Difference(("thread",), "no thread can be stopped: `current().cancelled` tells it", {"finished": 1}),
            Difference(("process",), "the process is killed", {"finished": 0}),
        ),
    ),
    Row(
        "ignores that its time is over for a moment",
        work.ignores_that_its_time_is_over(0.5),
        "the same, when it has ended",
        failed_once(TOO_LATE, finished=1),
        awaits=work.ignores_that_its_time_is_over_on_loop(0.5),
        options=ONE_SECOND,
        differs=(Difference(("process",), "it cannot: the process is killed", {"finished": 0}),),
    ),
    Row(
        "is cancelled, to be archived",
        work.waits_until_cancelled,
        "archived, and no failure",
        Expected("archived", error="context canceled"),
        awaits=work.waits_until_cancelled_on_loop,
        options=ONE_RETRY,
        cancel="archive",
    ),
    Row(
        "is cancelled, to be deleted",
        work.waits_until_cancelled,
        "deleted, and no failure",
        Expected("gone"),
        awaits=work.waits_until_cancelled_on_loop,
        options=ONE_RETRY,
        cancel="delete",
    ),
    Row(
        "is cancelled, to be retried",
        work.waits_in_the_first_attempt,
        "runs again, as one of its retries",
        Expected("gone", runs=2, processed=2, failed=1),
        awaits=work.waits_in_the_first_attempt_on_loop,
        options=ONE_RETRY,
        cancel="retry",
    ),
]

USES = [
    Row(
        "logs",
        work.logs,
        "records reach the worker's log handlers with level, logger, message and task",
        replace(DONE, logs=(("info", "shop", "5 beans for Ann"), ("error", "shop", "no beans left"))),
    ),
    Row(
        "reports progress",
        work.reports,
        "the last report is kept, and followers get it",
        replace(completed("1"), progress=(1.0, "all")),
        awaits=work.reports_on_loop,
    ),
    Row(
        "writes a result before its end",
        work.writes_result,
        "completed, with these bytes",
        completed("written"),
        awaits=work.writes_result_on_loop,
    ),
    Row(
        "sends a task with `await`",
        work.sends_async,
        "the task is where the worker's tasks are",
        replace(DONE, follow_ups=1),
        awaits=work.sends_on_loop,
    ),
    Row("sends a task with `enqueue_sync`", work.sends_sync, "the same", replace(DONE, follow_ups=1)),
    Row(
        "uses `current()`",
        work.looks_at_current,
        "id, queue, type, attempt, retries, headers and deadline are those of the task",
        replace(
            DONE,
            seen={
                "attempt": 1,
                "max_retry": 7,
                "headers": {"tenant": "7"},
                "cancelled": False,
                "has its time": True,
            },
        ),
        options={"max_retry": 7, "timeout": 30, "headers": {"tenant": "7"}},
    ),
    Row(
        "uses `app.state`",
        work.uses_state,
        "it has what the app's `lifespan` opened",
        completed('"beans"'),
        differs=(
            Difference(
                ("process",),
                "what `lifespan` opened is in the worker's process: failed attempt, and the error says so",
                {
                    "state": "archived",
                    "failed": 1,
                    "finished": 0,
                    "result": None,
                    "error": re.compile(r"\w+: app\.state is not available in a handler with run_in=\"process\": .*"),
                },
            ),
        ),
    ),
    Row("forks", work.forks, "completes as usual", completed('"forked"')),
    Row(
        "forks, and both use the app",
        work.forks_and_sends,
        "each process has connections of its own",
        replace(completed('"forked"'), follow_ups=2),
    ),
    Row(
        "forks, and the child returns too",
        work.forks_and_returns,
        "completed once: the child ends there",
        replace(completed('"from the handler"'), finished=2),
    ),
]

KILLED = "killed its worker 3 times"


def _only_its_process(how: str) -> Difference:
    text = f"{KILLED}: ProcessDied: the process of this task {how}"
    return Difference(("process",), "only the process of the handler ends, and neighbours go on", {"error": text})


HARMS = [
    Row(
        "goes on long after its time",
        work.ignores_that_its_time_is_over(3.0),
        "failed attempt when it has ended; no other attempt begins before",
        Expected("gone", runs=2, finished=2, processed=2, failed=1),
        awaits=work.ignores_that_its_time_is_over_on_loop(3.0),
        options={"max_retry": 1, "timeout": 1},
        alone=("loop", "thread"),
        settings={"deadline_grace": 0.5},
        differs=(
            Difference(
                ("loop", "thread"),
                "its process is replaced when all other handlers there have ended",
                {"finished": 1},
                modes=("supervised",),
            ),
            Difference(("process",), "it cannot: the process is killed", {"finished": 1}),
        ),
    ),
    Row(
        "holds the GIL for longer than the lease",
        work.holds_the_gil,
        "completes as usual. The supervisor renews its lease; without one, another worker may run it again",
        completed('"held"'),
        alone=("loop", "thread"),
        settings={"lease": 3.0},
    ),
    Row(
        "kills its process",
        work.kills_its_process,
        "archived after three crashes, whatever `max_retry` says",
        Expected("archived", runs=3, finished=0, retried=2, processed=3, failed=3, error=KILLED),
        options={"max_retry": 25},
        alone=("loop", "thread"),
        differs=(_only_its_process("was ended by SIGKILL"),),
    ),
    Row(
        "calls `os._exit`",
        work.leaves_its_process,
        "the same",
        Expected("archived", runs=3, finished=0, retried=2, processed=3, failed=3, error=KILLED),
        options={"max_retry": 25},
        alone=("loop", "thread"),
        differs=(_only_its_process("ended with exit code 3"),),
    ),
]

WORKER_STOPS = [
    Row(
        "ends in time when the worker stops",
        work.ends_after_the_signal,
        "completes as usual",
        completed('"ended in time"'),
        awaits=work.ends_after_the_signal_on_loop,
        stopped=True,
    ),
    Row(
        "does not end when the worker stops",
        work.works_too_long,
        "given back after the shutdown timeout: pending, at the front, no attempt counted",
        Expected("pending", processed=0, finished=0),
        awaits=work.waits_until_cancelled_on_loop,
        stopped=True,
    ),
]


@dataclass(frozen=True)
class Group:
    title: str
    text: str
    """What holds for all of its rows, for readers."""
    rows: list[Row]


GROUPS = [
    Group(
        "What it returns", "A result is bytes, or anything that JSON can hold. All else is a failed attempt.", RETURNS
    ),
    Group(
        "What it raises",
        "Whatever a handler raises is a failed attempt, and the worker goes on: the task is retried as often as "
        "`max_retry` says, then\narchived. The class of the error and its text are stored.",
        RAISES,
    ),
    Group("How it is ended", "At its timeout, or by `handle.cancel()`.", ENDED),
    Group("What it uses", "Nearly all of it works everywhere.", USES),
    Group(
        "What harms the worker",
        "What ends or blocks the process that it runs in. [Leases and crashes](concepts/leases.md) says more.",
        HARMS,
    ),
    Group(
        "When the worker stops",
        "On SIGTERM, running handlers have the shutdown timeout (25 seconds) to end.",
        WORKER_STOPS,
    ),
]
ROWS = [row for group in GROUPS for row in group.rows]


def as_markdown() -> str:
    """The table for readers."""
    parts = []
    for group in GROUPS:
        lines = [f"### {group.title}", "", group.text, ""]
        lines += ["| A handler that ... | What becomes of its task | Where it differs |", "|---|---|---|"]
        lines += [f"| {row.name} | {_outcome(row)} | {_differs(row)} |" for row in group.rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _outcome(row: Row) -> str:
    error = row.expected.error
    return ": ".join(filter(None, [row.outcome, f"`{error}`" if isinstance(error, str) and error else ""]))


def _differs(row: Row) -> str:
    return "; ".join(_where(one) + one.reason + _instead(one) for one in row.differs)


def _where(one: Difference) -> str:
    mode = "" if one.modes == MODES else f", {' and '.join(one.modes)}"
    return f"**{' and '.join(one.executors)}**{mode}: "


def _instead(one: Difference) -> str:
    error = one.changes.get("error")
    return f": `{error}`" if isinstance(error, str) and error else ""
