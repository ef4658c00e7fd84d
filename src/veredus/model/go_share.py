"""Which tasks of a queue are left for Go servers that serve it too.

An idle Veredus worker takes a new task at once, an idle Go server at its next poll. By chance alone, Go would hardly
ever get one. So some of the tasks that arrive in a short queue are left until Go has had time to poll. Go's share of
them is its share of the worker processes. What Go does not take by then runs here, and nothing is left for a while.

A Go server does not say which types it has handlers for, and fails a task without a handler. So one task of each type
is left at first, as a trial. Go gets its share only after it has run that one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

POLL = 2.0
"""Seconds for which a task is left: an idle Go server polls every 0.5 to 1.5 seconds, and may be late."""
FIRST_BREAK, LONGEST_BREAK = 10.0, 60.0
"""Seconds for which nothing is left after Go took nothing: it is busy or gone. Grows each time."""
MOST_TYPES = 1000

_SEPARATORS = re.compile("[\0-\3]")
_NO_HANDLER = re.compile(rb'handler not found for task "([^"]+)"')


class GoShare:
    """The share of one queue. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.percent = 0
        self._go: frozenset[str] = frozenset()
        self._most = 0
        self._for_go: set[str] = set()
        """Types that Go has run."""
        self._not_for_go: set[str] = set()
        """Types for which a Go server had no handler."""
        self._left: dict[str, str] = {}
        """The tasks left last, with their types. If this worker dequeues one of them, Go did not take it in time."""
        self.trials: dict[str, str] = {}
        """By type: a task that another process has taken, and of which it is still unknown whether Go ran it."""
        self._running: set[str] = set()
        """Types whose trial was active when it was last read."""
        self._off_until = 0.0
        self._break = FIRST_BREAK

    def serve(self, go: Collection[str], ours: int, most: int) -> None:
        """These Go servers and that many of our processes are alive; the Go servers together run at most that many
        tasks."""
        percent, self._most = round(100 * len(go) / (len(go) + ours)) if go else 0, most
        if percent != self.percent:
            self.percent = percent
            self._left.clear()  # the new share may not include them
        if self._go != frozenset(go):
            self._go = frozenset(go)
            for memory in (self._for_go, self._not_for_go, self._left, self.trials, self._running):
                memory.clear()  # the new servers may have other handlers

    def terms(self, now: float) -> str:
        """The rule for the dequeue script; empty while nothing is left for Go."""
        if not self.percent or now < self._off_until:
            return ""
        known = "".join(f"\1{name}\0" for name in self._for_go)
        not_left = "".join(f"\2{name}\0" for name in self._not_for_go | self.trials.keys())
        trials = [(name, task_id) for task_id, name in self._left.items() if self._is_trial(task_id, name)]
        tried = "".join(f"\3{name}\0{task_id}\0" for name, task_id in trials)
        return f"{self.percent} {round(POLL * 1000)} {self._most}{known}{not_left}{tried}"

    def _is_trial(self, task_id: str, name: str) -> bool:
        return name not in self._for_go and not _SEPARATORS.search(task_id)

    def runs_in_go(self, name: str) -> bool:
        """Whether a Go server has run a task of this type."""
        return name in self._for_go

    def answered(self, rows: Iterable[tuple[str, bytes]], left: Iterable[tuple[str, str]], now: float) -> None:
        """These tasks were taken, and those were left for Go."""
        taken = set()
        for task_id, message in rows:
            taken.add(task_id)
            found = _NO_HANDLER.search(message)
            if found:
                self._learn(found[1].decode(errors="replace"), is_known=False)
        for name in [name for name, task_id in self.trials.items() if task_id in taken]:
            del self.trials[name]  # it came back and runs here
        before, self._left = self._left, dict(left)
        if before.keys() & taken:  # Go had its time
            self._off_until, self._break = now + self._break, min(2 * self._break, LONGEST_BREAK)
            self._left.clear()
            return
        gone = {task_id: name for task_id, name in before.items() if task_id not in self._left}
        if gone:
            self._break = FIRST_BREAK
        for task_id, name in gone.items():
            if not self.runs_in_go(name):
                self.trials[name] = task_id
        # Types that are no longer left are taken here before Go had its time, which proves nothing.
        not_left = self._not_for_go | self.trials.keys()
        self._left = {task_id: name for task_id, name in self._left.items() if name not in not_left}

    def found(self, name: str, task_id: str, state: str, message: bytes) -> None:
        """What happened to the trial of this type; no state if the task is gone."""
        if self.trials.get(name) != task_id:
            return  # more has become known since the read was started
        if state == "active" and name not in self._running:
            self._running.add(name)  # without a handler, Go gives it up at once: if it is active again, it is running
            return
        self._running.discard(name)
        del self.trials[name]
        if state in ("", "completed", "active"):
            self._learn(name, is_known=True)
        elif state in ("retry", "archived"):
            self._learn(name, is_known=not _NO_HANDLER.search(message))
        # it has not run: the next one is another trial

    def _learn(self, name: str, *, is_known: bool) -> None:
        """A Go server without a handler counts more than another one that has it."""
        if not is_known:
            self._for_go.discard(name)
            self.trials.pop(name, None)
        types = self._for_go if is_known else self._not_for_go
        if len(types) < MOST_TYPES and name not in self._not_for_go:
            types.add(name)
