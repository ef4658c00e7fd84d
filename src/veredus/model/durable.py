"""Durable tasks: the rules of steps and waits. No I/O, no clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from veredus.errors import ConcurrentDurableCall, ConcurrentWait, ConfigError, DamagedRun
from veredus.model.names import is_utf8

MOST_FIELDS = 10_000
"""Steps and waits of one run: a handler reads all of them when it begins again."""
LARGEST_RESULT = 1024 * 1024
"""Bytes of one step's result, or of an event."""
LARGEST_RESULTS = 16 * 1024 * 1024
"""Bytes of all results that one gather returns in a list."""
LONGEST_NAME = 200
EVENT_TTL = 7 * 86400.0
RESERVED = "veredus:"
"""Event names and task types that begin like this are ours."""

STEP, SLEEP, EVENT, GATHER, SENT, ALL_THERE = "s:", "z:", "e:", "g:", "n:", "o:"
"""What the fields of a task's hash begin with: the result of a step, the end of a sleep, the outcome of a wait, what is
known of a fan-out, how many of its children were enqueued for certain, and whether all their outcomes are there."""
BEGAN = "b:"
"""In front of the field of a wait or fan-out: when it began and when its outcome came, in Unix ms. For people."""
OF_RUN = ("run", "waiting", "woke", "resumed", "front")
"""Further fields that go when a durable task begins from its start: as in `lua/include/forget_run.lua`."""
MOST_CHILDREN = 10_000_000
"""Children in one fan-out. A record with a higher number is damaged."""
UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError)
"""What parsing raises for bytes of another program."""
CHILD_RETENTION = 86400
"""Seconds for which a child that has ended is kept at least."""
PORTION = 250
"""Children that are enqueued in one step."""
PARENT = "veredus-parent"
"""The header of a child: the queue and the id of its parent."""
ANCESTORS = "veredus-order-keys"
"""The header of a child: the order keys of those that wait for it."""
KEPT, FAILED = b"+", b"-"
"""What a value in them begins with. An instant in ms is neither: the wait goes on."""


class Wait(NamedTuple):
    """What a parked task waits for: as in `lua/include/waits.lua`."""

    kind: str
    """sleep, event or children."""
    ends: int
    """When it ends in any case, in Unix ms; 0 for never."""
    field: str


def is_outcome(value: bytes) -> bool:
    """Whether a wait is over, and this is what came of it."""
    return value[:1] in (KEPT, FAILED)


def event_of(field: str) -> str:
    """The event that the outcome in this field is about: the same one may be waited for several times."""
    return field[2:].partition("\0")[0]


def shown_name(field: str) -> str:
    """A step or wait, for people: its name, and which use of the name if there are several."""
    return field[2:].replace("\0", " #")


class StepRecord(NamedTuple):
    """A step that has ended, as it is kept."""

    is_failure: bool
    began_us: int
    """Unix microseconds, so that steps of one run are shown in their order."""
    took_us: int
    attempt: int
    data: bytes
    """Its encoded result, or the class and the text of its error."""

    def pack(self) -> bytes:
        sign = FAILED if self.is_failure else KEPT
        return b"%s%d %d %d %s" % (sign, self.began_us, self.took_us, self.attempt, self.data)

    @classmethod
    def unpack(cls, value: bytes) -> StepRecord:
        """Raises DamagedRun."""
        try:
            began, took, attempt, data = value[1:].split(b" ", 3)
            return cls(value[:1] == FAILED, int(began), int(took), int(attempt), data)
        except UNREADABLE as exc:
            raise DamagedRun(f"not the record of a step: {value[:100]!r}") from exc

    @property
    def failure(self) -> tuple[str, str]:
        return read_failure(self.data)


def pack_failure(kind: str, text: str) -> bytes:
    """The data of a step that has failed."""
    return json.dumps([kind, text]).encode()


def natural(found: bytes | str) -> int:
    """A number that was kept as text; 0 for anything else."""
    try:
        number = int(found)
    except ValueError:
        return 0
    return number if 0 < number < 2**63 else 0


def read_failure(data: bytes) -> tuple[str, str]:
    """The class and the text of an error. Raises DamagedRun."""
    try:
        kind, text = json.loads(data)
    except UNREADABLE as exc:
        raise DamagedRun(f"not the record of an error: {data[:100]!r}") from exc
    return str(kind), str(text)


def check_durable_name(field: str, name: object) -> str:
    """The name of a step, a sleep or an event."""
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or "\0" in name:
        raise ConfigError(field, name, f"a text of 1 to {LONGEST_NAME} characters")
    if not is_utf8(name):
        raise ConfigError(field, name, "a text that can be written as UTF-8")
    return name


def step_name(function: Callable[..., Any]) -> str:
    """The default name of a step."""
    inner = getattr(function, "func", function)
    name = getattr(inner, "__name__", "")
    if not name or name == "<lambda>":
        raise ConfigError("name", None, f"a name for the step: {function!r} has none of its own")
    return check_durable_name("name", name)


class CallNames:
    """The names that a run has used so far, in this attempt. A name that is used again gets a number, so that a loop
    may call the same step; one function's name cannot be another's."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[int, object]] = {}

    def take(self, prefix: str, name: str, what: object = None) -> str:
        """The field for the next use of a name. Raises ConfigError if it was used for something else."""
        count, before = self._used.get(prefix + name, (0, what))
        if before is not what:
            raise ConfigError("name", name, "a name that no other step of this run uses: give name=...")
        self._used[prefix + name] = count + 1, what
        return f"{prefix}{name}" if count == 0 else f"{prefix}{name}\0{count + 1}"


def identity(function: Callable[..., Any]) -> object:
    """What two uses of one function have in common, also if it is defined anew for each use."""
    inner: Any = getattr(function, "func", function)
    inner = getattr(inner, "__wrapped__", inner)
    inner = getattr(inner, "__func__", inner)
    return getattr(inner, "__code__", inner)


class OpenCalls:
    """The durable calls of one handler that are under way. Steps may be concurrent if all have explicit names: names
    given in the order of the calls would change from run to run. A wait is alone."""

    def __init__(self) -> None:
        self._open: dict[str, bool] = {}
        self._waits = 0

    def enter(self, field: str, *, is_named: bool, is_wait: bool) -> None:
        if self._open and (is_wait or self._waits):
            raise ConcurrentWait(
                f"{shown_name(field)!r} while {self._other()!r} is not finished: a handler waits for one thing "
                "at a time"
            )
        if self._open and not (is_named and all(self._open.values())):
            raise ConcurrentDurableCall(
                f"step {shown_name(field)!r} while {self._other()!r} is not finished: concurrent steps need names of "
                "their own, name=... for each"
            )
        if any(event_of(one) == event_of(field) for one in self._open):
            raise ConcurrentDurableCall(f"step {shown_name(field)!r} is called a second time while it runs")
        self._open[field] = is_named
        self._waits += is_wait

    def leave(self, field: str, *, is_wait: bool) -> None:
        del self._open[field]
        self._waits -= is_wait

    def _other(self) -> str:
        return shown_name(next(iter(self._open)))


class FanOutRecord(NamedTuple):
    """What a parent knows of a fan-out, written before its children are enqueued."""

    size: int
    digest: str
    queues: tuple[tuple[str, int, bool], ...]
    """For each run of consecutive children: their queue, their number, and whether their results are kept for longer
    than the parent needs them."""

    def pack(self) -> bytes:
        return f"{self.size} {self.digest} {json.dumps(self.queues)}".encode()

    @classmethod
    def unpack(cls, data: bytes) -> FanOutRecord:
        """Raises DamagedRun."""
        try:
            size, digest, queues = data.split(b" ", 2)
            rows = tuple((str(queue), int(number), bool(kept)) for queue, number, kept in json.loads(queues))
            record = cls(int(size), digest.decode(), rows)
        except UNREADABLE as exc:
            raise DamagedRun(f"not the record of a fan-out: {data[:100]!r}") from exc
        numbers = [number for _, number, _ in rows]
        if not 0 <= record.size <= MOST_CHILDREN or any(n < 0 for n in numbers) or sum(numbers) != record.size:
            raise DamagedRun(f"a fan-out with wrong numbers: {data[:100]!r}")
        return record

    def queue_of(self) -> list[str]:
        """The queue of each child."""
        return [queue for queue, number, _ in self.queues for _ in range(number)]


def read_sent(value: bytes) -> int:
    """How many children of a fan-out were enqueued for certain: none if it is no number, because those that exist are
    met again."""
    return int(value) if value.isdigit() else 0


def child_id(parent: str, mark: str, name: str, position: int) -> str:
    """The id of a child: the same whenever the parent enqueues it again."""
    return child_ids(parent, mark, name, (position,))[0]


def child_ids(parent: str, mark: str, name: str, positions: Iterable[int]) -> list[str]:
    """The same of many children of one fan-out."""
    head = f"{parent}:{mark}:{shown_name(GATHER + name)}:"
    return [f"{head}{position}" for position in positions]


def succeeded(result: bytes | None) -> bytes:
    """The outcome of a child that has returned this."""
    return KEPT if result is None else KEPT + b"r" + result


def child_failure(error: str, kind: str = "failed") -> bytes:
    """The outcome of a child that has not: it failed, was cancelled, refused, or is unknown."""
    return FAILED + json.dumps([kind, error]).encode()
