"""The whole round: the tests as they are must pass; then each mutant in turn, in one or more copies at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.copies import Copy
from tools.mutants.entries import Mutant
from tools.mutants.likely import likely
from tools.mutants.running import ERROR, KILLED, SURVIVED, TIMED_OUT, Run, Stopped, run

NAMED_LIMIT = 120.0
"""Seconds for the tests that a mutant names; they take this long only when they hang."""
WIDE_LIMIT = 3600.0
"""Seconds for whole folders of tests, in which each test has the limit of pytest-timeout."""
_SUITE = ("--ignore=tests/tools",)
"""Without the tests of these tools, which look at the lists and would notice any change."""


@dataclass(frozen=True)
class Judgement:
    """What became of a mutant: killed, timed out, survived or error."""

    mutant: Mutant
    verdict: str
    seconds: float
    by: str = ""


class RedBaseline(Exception):
    """The tests do not pass without any mutant, so they would kill every one; the text says which."""


class Round:
    """Copies of one working tree, and the mutants that are tried in them."""

    def __init__(
        self, root: Path, jobs: int = 1, whole: bool = False, limit: float = NAMED_LIMIT, workers: int = 2
    ) -> None:
        self._root = root
        self._jobs = jobs
        self._whole = whole
        self._limit = limit
        self._parallel = ("-n", str(workers)) if workers > 1 else ()
        self._copies: list[Copy] = []
        self._stop = threading.Event()
        self._suite = threading.Lock()
        self._suite_passes = False

    def __enter__(self) -> Round:
        try:
            for _ in range(self._jobs):
                self._copies.append(Copy(self._root))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for copy in self._copies:
            copy.end_strays()
            copy.remove()

    def baseline(self, mutants: Sequence[Mutant]) -> Run:
        """Run once, without any mutant, all tests that will be asked."""
        tests = dict.fromkeys(test for mutant in mutants for test in (mutant.tests or likely(mutant.file)))
        if not tests:
            return Run("passed", 0.0)
        return self._must_pass(self._copies[0], tuple(tests))

    def judge(self, mutants: Sequence[Mutant], tell: Callable[[Judgement], None]) -> list[Judgement]:
        """Try each of them; `tell` hears of each as it is done, the list is in the given order."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(mutants)):
            waiting.put(index)
        done: dict[int, Judgement] = {}
        failures: list[BaseException] = []
        lock = threading.Lock()
        ended = [threading.Event() for _ in self._copies]

        def work(copy: Copy, end: threading.Event) -> None:
            try:
                while not self._stop.is_set():
                    index = waiting.get_nowait()
                    judgement = self._judge(copy, mutants[index])
                    with lock:
                        done[index] = judgement
                        tell(judgement)
            except (queue.Empty, Stopped):
                pass
            except BaseException as exc:
                failures.append(exc)
                self._stop.set()
            finally:
                end.set()

        for copy, end in zip(self._copies, ended, strict=True):
            threading.Thread(target=work, args=(copy, end)).start()
        try:
            _wait_for(ended)
        except BaseException:  # Ctrl-C: every thread ends the processes that it has started
            self._stop.set()
            _wait_for(ended)
            raise
        if failures:
            raise failures[0]
        return [done[index] for index in range(len(mutants))]

    def _judge(self, copy: Copy, mutant: Mutant) -> Judgement:
        tests = mutant.tests or likely(mutant.file)
        original = copy.read(mutant.file)
        seconds, judgement = 0.0, Judgement(mutant, SURVIVED, 0.0)
        try:
            if tests:
                copy.write(mutant.file, original.replace(mutant.old, mutant.new))
                ended = run(copy, tests, ("-x",), self._limit if mutant.tests else WIDE_LIMIT, self._stop)
                judgement = _judgement(mutant, ended, 0.0)
            if judgement.verdict == SURVIVED and (self._whole or not mutant.tests):
                seconds = judgement.seconds
                copy.write(mutant.file, original)
                with self._suite:
                    if not self._suite_passes:
                        self._must_pass(copy, ())
                        self._suite_passes = True
                copy.write(mutant.file, original.replace(mutant.old, mutant.new))
                ended = run(copy, (), ("-x", *_SUITE, *self._parallel), WIDE_LIMIT, self._stop)
                judgement = _judgement(mutant, ended, seconds)
        finally:
            copy.write(mutant.file, original)
        return judgement

    def _must_pass(self, copy: Copy, tests: tuple[str, ...]) -> Run:
        wide = not tests or any("::" not in test for test in tests) or self._jobs > 1
        ended = run(copy, tests, (() if tests else _SUITE) + (self._parallel if wide else ()), WIDE_LIMIT, self._stop)
        if ended.how != "passed":
            what = ", ".join(ended.failed) or ended.why or ended.how
            lines = "\n".join(ended.output.splitlines()[-30:])
            raise RedBaseline(f"the tests do not pass without any mutant: {what}\n{lines}")
        return ended


def _wait_for(events: Sequence[threading.Event]) -> None:
    """Not `Thread.join`: interrupted once, it takes the thread for ended."""
    for event in events:
        event.wait()


def _judgement(mutant: Mutant, ended: Run, before: float) -> Judgement:
    verdict = {"passed": SURVIVED, "failed": KILLED, TIMED_OUT: TIMED_OUT, ERROR: ERROR}[ended.how]
    return Judgement(mutant, verdict, before + ended.seconds, ", ".join(ended.failed) or ended.why)
