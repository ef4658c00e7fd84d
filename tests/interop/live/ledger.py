"""The books of a storm: what was sent, what ran where, which verbs and kills there were, and what does not add up."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SLACK = 2.0
"""Seconds after the end of a handler within which a kill may still lose its outcome."""


class Sent(NamedTuple):
    """A task that Redis has taken, as its client said."""

    id: str
    number: int
    behave: str = ""
    group: str = ""
    order: str = ""
    """Queue and order key, of tasks whose order is checked: no verb touches these."""


class Verb(NamedTuple):
    """What an inspector did to a task, and between which moments."""

    name: str
    id: str
    asked: float
    done: float


@dataclass
class Attempt:
    """One run of a handler. `ended` is None if nothing was heard of it again."""

    id: str
    pid: int
    numbers: tuple[int, ...]
    began: float
    ended: float | None = None
    failed: str = ""

    @property
    def succeeded(self) -> bool:
        return self.ended is not None and not self.failed

    def __str__(self) -> str:
        end = "no end" if self.ended is None else f"ended {self.ended:.3f} {self.failed or 'well'}"
        return f"{self.id} in process {self.pid}: began {self.began:.3f}, {end}"


@dataclass
class Ledger:
    sent: dict[str, Sent] = field(default_factory=dict)
    verbs: list[Verb] = field(default_factory=list)
    kills: dict[int, float] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    aggregations: list[tuple[int, float, tuple[int, ...]]] = field(default_factory=list)
    """By which process, when, of which members."""

    def read(self, facts: Iterable[dict[str, Any]]) -> None:
        """All facts of all processes: what (`began`, `ran`, `aggregated`), id, payload, failed, pid, at."""
        self.attempts, self.aggregations = {}, []
        running: dict[tuple[int, str], list[Attempt]] = defaultdict(list)
        for fact in sorted(facts, key=lambda one: float(one["at"])):
            numbers, pid, at = numbers_in(fact["payload"]), fact["pid"], fact["at"]
            if fact["what"] == "aggregated":
                self.aggregations.append((pid, at, numbers))
            elif fact["what"] == "began":
                attempt = Attempt(fact["id"], pid, numbers, at)
                running[pid, attempt.id].append(attempt)
                self.attempts.setdefault(attempt.id, []).append(attempt)
            else:
                attempt = running[pid, fact["id"]].pop(0)
                attempt.ended, attempt.failed = at, fact.get("failed") or ""

    def ended(self, task_id: str) -> bool:
        """Whether it ran as its payload asked for, so that an archived one is where it belongs."""
        sent = self.sent.get(task_id)
        wants = sent.behave if sent else ""
        for attempt in self.attempts.get(task_id, ()):
            if attempt.succeeded or (wants and f"told to {wants}" in attempt.failed):
                return True
        return False

    def lost(self) -> list[Sent]:
        """Sent, not deleted by anybody, and never run to its end."""
        deleted = {verb.id for verb in self.verbs if verb.name == "delete"}
        joined = {
            number
            for attempts in self.attempts.values()
            for attempt in attempts
            if attempt.succeeded
            for number in attempt.numbers
        }
        return [
            one
            for one in self.sent.values()
            if one.id not in deleted and not self.ended(one.id) and not (one.group and one.number in joined)
        ]

    def repeats(self) -> Iterator[tuple[Attempt, str]]:
        """Attempts that were followed by another although they had not failed, with what explains it; `` for none."""
        for attempts in self.attempts.values():
            for first, second in itertools.pairwise(attempts):
                in_turn = first.ended is not None and second.began >= first.ended
                if first.failed and in_turn:
                    continue
                if in_turn and self._verb("run", first.id, first.began, second.began):
                    yield first, "run"
                else:
                    yield first, "kill" if self._killed(first, second.began) else ""
        yield from self._joined_twice()

    def _joined_twice(self) -> Iterator[tuple[Attempt, str]]:
        """Members of a group that ran in two tasks: Go stores the new task and removes the members in two steps."""
        ran: dict[int, list[Attempt]] = defaultdict(list)
        members = {one.number for one in self.sent.values() if one.group}
        for attempts in self.attempts.values():
            for attempt in [attempt for attempt in attempts if attempt.succeeded][:1]:
                for number in members.intersection(attempt.numbers):
                    ran[number].append(attempt)
        for number, tasks in ran.items():
            tasks.sort(key=lambda one: one.began)
            for first, second in itertools.pairwise(tasks):
                by_kill = self._killed(first, second.began) or self._joined_before_a_kill(number)
                yield first, "kill" if by_kill else ""

    def _joined_before_a_kill(self, number: int) -> bool:
        return any(
            number in numbers and at <= self.kills.get(pid, 0.0) <= at + SLACK for pid, at, numbers in self.aggregations
        )

    def _killed(self, attempt: Attempt, again: float) -> bool:
        killed = self.kills.get(attempt.pid)
        if killed is None or not attempt.began <= killed <= again:
            return False
        return attempt.ended is None or killed <= attempt.ended + SLACK

    def _verb(self, name: str, task_id: str, since: float, until: float) -> bool:
        """Whether this verb was at work on the task between these moments."""
        return any(v.name == name and v.id == task_id and v.done >= since and v.asked <= until for v in self.verbs)

    def unended(self) -> list[Attempt]:
        """Begun by a process that was not killed, and never ended."""
        every = (attempt for attempts in self.attempts.values() for attempt in attempts)
        return [one for one in every if one.ended is None and one.pid not in self.kills]

    def run_all_the_same(self) -> list[str]:
        """Deleted, or archived and not run by anybody since, and yet begun afterwards."""
        found = []
        for verb in self.verbs:
            for attempt in self.attempts.get(verb.id, ()):
                if attempt.began <= verb.done or verb.name not in ("delete", "archive"):
                    continue
                if verb.name == "delete" or not self._verb("run", verb.id, verb.asked, attempt.began):
                    found.append(f"{verb.name} of {verb.id} at {verb.done:.3f}, but {attempt}")
        return found

    def out_of_order(self) -> list[str]:
        """Tasks of one order key that began before the one ahead of them had ended."""
        lanes: dict[str, list[Sent]] = defaultdict(list)
        for one in self.sent.values():
            if one.order:
                lanes[one.order].append(one)
        found = []
        for lane in lanes.values():
            for ahead, behind in itertools.pairwise(lane):
                last, first = self.attempts[ahead.id][-1], self.attempts[behind.id][0]
                if last.ended is None or first.began < last.ended:
                    found.append(f"{ahead.order}: {first}, but ahead of it {last}")
        return found


def numbers_in(payload: bytes | str) -> tuple[int, ...]:
    """The number of a task, or of all that were joined to one."""
    text = payload if isinstance(payload, str) else payload.decode()
    return tuple(one["n"] for one in json.loads(f"[{text}]"))
