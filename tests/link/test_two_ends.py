"""Both ends against each other over a pipe that cuts anywhere, with a log that forgets and forks: nothing is lost,
doubled or out of order, and every loss is announced."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.sizes import FULL
from veredus.link.session import (
    Acked,
    ClientLink,
    Discontinued,
    Ended,
    LinkConfig,
    LogEntry,
    Lost,
    Received,
    Rejected,
    ServerLink,
    Welcomed,
)
from veredus.model.delivery import AttachResult, Cursor, LogState, ResetReason, judge_cursor
from veredus.model.frames import Hello, Kind, Message, OpenRequest, Request, Welcome
from veredus.wire.frames import encode_stored

CONFIG = LinkConfig(window_messages=6, window_bytes=4000, flush_messages=3, flush_bytes=500)


class Log:
    """A session's log as the scripts keep it, in memory."""

    def __init__(self) -> None:
        self.epoch = "e1"
        self.entries: list[LogEntry] = []
        self.floor = self.floor_ts = self.policy_floor = 0
        self.clock = 1000
        self.requests: dict[int, str] = {}
        self.epochs = 1
        self.owed: set[int] = set()  # times of all that were appended and neither dropped nor lost in a failover

    @property
    def top(self) -> int:
        return self.floor + len(self.entries)

    def append(self, message: Message) -> LogEntry:
        self.clock += 1
        entry = LogEntry(self.top + 1, self.clock, 0, encode_stored(message))
        self.entries.append(entry)
        self.owed.add(entry.ts)
        return entry

    def trim(self, seq: int) -> None:
        while self.entries and self.floor < seq:
            gone = self.entries.pop(0)
            self.floor, self.floor_ts = gone.seq, gone.ts

    def ack(self, seq: int, ts: int) -> bool:
        if seq > self.top or (seq > self.floor and ts and self.entries[seq - self.floor - 1].ts != ts):
            return False
        self.trim(seq)
        return True

    def read(self, first: int, count: int) -> list[LogEntry]:
        return self.entries[max(0, first - self.floor - 1) :][:count]

    def attach(self, cursor: Cursor) -> tuple[AttachResult, ResetReason, tuple[int, int] | None]:
        at = next((entry.ts for entry in self.entries if entry.seq == cursor.seq), None)
        state = LogState(self.epoch, self.top, self.floor, self.floor_ts, self.policy_floor)
        verdict, reason, gap = judge_cursor(state, cursor, at)
        if verdict is AttachResult.RESET:
            self.epochs += 1
            self.epoch = f"e{self.epochs}"
        else:
            self.trim(cursor.seq)
        return verdict, reason, gap


class TwoEnds(RuleBasedStateMachine):
    """Bytes travel in pieces; a cut loses what is on the way in both directions."""

    encoding = "protobuf"

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.log = Log()
        self.client = ClientLink(self.encoding, window_messages=6)
        self.server: ServerLink | None = None
        self.up = bytearray()
        self.down: list[bytes] = []
        self.body = 0
        self.journal: list[Cursor] = []
        self.dying = False
        self.rewound = False
        self.undone: list[Cursor] = []
        self.lost: set[tuple[str, int]] = set()
        self.discontinuities = 0
        self.resets = 0
        self.asked: set[int] = set()
        self.runs: dict[int, int] = {}
        self.answers: dict[int, int] = {}
        self.position: tuple[str, int] = ("", 0)

    # ---- the world

    @rule(at_once=st.booleans())
    def connect(self, at_once: bool = True) -> None:
        self.cut()
        self.server = ServerLink(self.encoding, CONFIG, self.now)
        self.client.connected(self.now)
        if at_once:
            self.carry()

    def cut(self) -> None:
        if self.server is not None:
            self.server = None
            self.client.disconnected(self.now)
        self.up.clear()
        self.down.clear()

    @rule()
    def lose_the_connection(self) -> None:
        self.cut()

    @rule(many=st.integers(1, 5), hinted=st.booleans())
    def push(self, many: int, hinted: bool) -> None:
        for _ in range(many):
            self.body += 1
            entry = self.log.append(Message(body=b"%d" % self.body))
            if self.server is not None and hinted:
                self.take_server(self.server.offer_entries([entry], self.now))

    @rule()
    def repeat_hints(self) -> None:
        if self.server is not None:
            self.take_server(self.server.offer_entries(list(reversed(self.log.entries[-4:])), self.now))

    @precondition(lambda self: self.client.unanswered < 4)
    @rule(no_reply=st.booleans())
    def ask(self, no_reply: bool) -> None:
        rid = self.client.request("a", b"1", no_reply=no_reply)
        if not no_reply:
            self.asked.add(rid)

    @rule()
    def die_at_the_next_request(self) -> None:
        self.dying = True

    @rule()
    def answer(self) -> None:
        for rid, state in self.log.requests.items():
            if state == "open" and rid in self.runs:
                self.log.requests[rid] = "done"
                entry = self.log.append(Message(kind=Kind.RESPONSE, rid=rid))
                if self.server is not None:
                    self.take_server(self.server.offer_entries([entry], self.now))
                break

    @precondition(lambda self: len(self.log.entries) > 2)
    @rule()
    def drop_by_policy(self) -> None:
        """The quota is full: the oldest go, and the log says so. Answers stay: they are exempt."""
        first = self.log.read(self.log.floor + 1, 2)
        if any(b"\x18\x01" in entry.tail[:4] for entry in first):
            return
        self.lost |= {(self.log.epoch, entry.seq) for entry in first}
        self.log.owed -= {entry.ts for entry in first}
        self.log.trim(first[-1].seq)
        self.log.policy_floor = self.log.floor

    @rule(tail=st.integers(1, 3))
    def fail_over_without_the_tail(self, tail: int) -> None:
        if any(b"\x18\x01" in entry.tail[:4] for entry in self.log.entries[-tail:]) or not self.log.entries:
            return
        self.log.owed -= {entry.ts for entry in self.log.entries[-tail:]}
        del self.log.entries[-tail:]
        self.log.clock += 5
        self.resets += 1
        if self.server is not None:  # the gateway's connection to the store broke
            self.server.verify_log()

    @rule(seconds=st.sampled_from([0.05, 0.2, 3.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.server is not None:
            self.take_server(self.server.tick(self.now, unsent=sum(map(len, self.down))))
        self.take_client(self.client.tick(self.now))

    @rule(pieces=st.integers(1, 6))
    def carry(self, pieces: int = 3) -> None:
        for _ in range(pieces):
            self.step()

    @rule(cuts=st.lists(st.integers(1, 30), min_size=1, max_size=4))
    def carry_bit_by_bit(self, cuts: list[int]) -> None:
        """A stream may be cut anywhere between two reads."""
        for size in cuts:
            self.fill()
            if self.server is not None and self.up:
                piece, self.up = bytes(self.up[:size]), self.up[size:]
                self.take_server(self.server.receive(piece, self.now))
            if self.down and self.server is not None:
                piece, rest = self.down[0][:size], self.down[0][size:]
                self.down[:1] = [rest] if rest else []
                self.take_client(self.client.receive(piece, self.now))

    @rule(many=st.integers(1, 8))
    def handle(self, many: int) -> None:
        for cursor in self.undone[:many]:
            self.client.done(cursor, self.now)
        del self.undone[:many]

    # ---- both gateway and application, as small as they can be

    def fill(self) -> None:
        for chunk in self.client.take_output():
            self.up += chunk
        if self.server is not None:
            self.down += self.server.take_output()

    def step(self) -> None:
        self.fill()
        if self.server is not None and self.up:
            data, self.up = bytes(self.up), bytearray()
            self.take_server(self.server.receive(data, self.now))
        if self.server is not None and self.down:
            self.take_client(self.client.receive(self.down.pop(0), self.now))
        if self.server is not None and (wanted := self.server.wanted()) is not None:
            self.take_server(
                self.server.offer_read(
                    self.log.epoch,
                    self.log.floor,
                    self.log.policy_floor,
                    self.log.top,
                    self.log.read(wanted.from_seq, wanted.count),
                    self.now,
                    floor_ts=self.log.floor_ts,
                )
            )

    def take_server(self, events: Any) -> None:
        for event in events:
            if self.server is None:
                return
            if isinstance(event, Hello):
                self.attach(event)
            elif isinstance(event, Acked):
                if not self.log.ack(event.seq, event.ts):
                    self.take_server(self.server.close(4007, "another log", self.now))
                    return
            elif isinstance(event, Request):
                self.log.requests.setdefault(event.rid, "open")
                if self.dying:  # it was noted, and not passed on
                    self.dying = False
                    self.cut()
                    return
                if event.rid not in self.runs:  # its task has one id, however often it is enqueued
                    self.runs[event.rid] = 1
                    if event.no_reply:
                        self.log.requests[event.rid] = "done"
                self.server.accept(event.rid, self.now)
            elif isinstance(event, Ended):
                assert event.code in (4007, 4001, 4002, 4502), event
                self.cut()

    def attach(self, hello: Hello) -> None:
        assert self.server is not None
        open_ = tuple(OpenRequest(rid, state) for rid, state in self.log.requests.items() if rid > hello.rid_floor)
        if hello.resume is None:
            first = self.log.read(self.log.floor + 1, 4)
            base = Cursor(self.log.epoch, self.log.floor, self.log.floor_ts)
            welcome = Welcome("p001-s", "k", "new", cursor=base, top=self.log.top, open=open_)
            self.server.welcome(welcome, first, self.now)
            return
        cursor = hello.resume.cursor
        verdict, reason, gap = self.log.attach(cursor)
        if verdict is AttachResult.RESET or gap is not None:
            cursor = Cursor(self.log.epoch, self.log.floor, self.log.floor_ts)
        self.server.welcome(
            Welcome("p001-s", "k", verdict, reason=reason, cursor=cursor, top=self.log.top, open=open_),
            self.log.read(cursor.seq + 1, 4),
            self.now,
            gap=gap,
        )

    def take_client(self, events: Any) -> None:
        for event in events:
            if isinstance(event, Received):
                self.note(event.cursor, event.cursor.seq)
                self.undone.append(event.cursor)
                if event.message.kind is Kind.RESPONSE:
                    rid = event.message.rid
                    self.answers[rid] = self.answers.get(rid, 0) + 1
            elif isinstance(event, Lost):
                self.note(event.cursor, event.first)
                self.position = (event.cursor.epoch, event.last)
                assert event.reason == "quota"
                assert {(event.cursor.epoch, seq) for seq in range(event.first, event.last + 1)} <= self.lost
                self.undone.append(event.cursor)
            elif isinstance(event, Discontinued):
                self.discontinuities += 1
                if event.reason == "fork" and self.position[0] == self.client.cursor.epoch:
                    self.rewound = True
            elif isinstance(event, Welcomed):
                if event.welcome.result != "resumed":
                    self.position = event.welcome.cursor[:2]
            elif isinstance(event, Ended):
                assert event.code in (4007, 4001, 4002, 4502), event
                self.cut()
            else:
                assert not isinstance(event, Rejected)

    def note(self, cursor: Cursor, first: int) -> None:
        """The journal: each number once, each the one after the last."""
        epoch, last = self.position
        assert cursor.epoch == epoch
        assert first <= last if self.rewound and first != last + 1 else first == last + 1
        self.rewound = False
        self.position = (cursor.epoch, cursor.seq)
        self.journal.append(cursor)

    # ---- what must hold

    @invariant()
    def nothing_twice(self) -> None:
        assert len(set(self.journal)) == len(self.journal)
        assert set(self.answers) <= set(self.runs)

    @invariant()
    def a_reset_needs_a_reason(self) -> None:
        assert self.discontinuities <= 2 * self.resets

    @invariant()
    def memory_is_bounded(self) -> None:
        if self.server is not None:
            stats = self.server.get_queue_stats()
            assert stats["pending_count"] <= 6
            assert stats["queue_size"] <= 6

    def teardown(self) -> None:
        """In the end, left in peace, everything arrives and everything is answered."""
        self.dying = False
        for _ in range(6):
            if self.server is None or self.client.state != "open":
                self.connect()
            for _ in range(60):
                self.answer()
                self.now += 0.11
                self.step()
                self.take_client(self.client.tick(self.now))
                self.handle(50)
            if self.server is not None and self.client.received.seq == self.log.top and not self.client.unanswered:
                break
            self.cut()
        assert self.client.received[:2] == self.client.cursor[:2] == (self.log.epoch, self.log.top)
        assert self.log.owed <= {cursor.ts for cursor in self.journal}
        assert not self.client.unanswered
        assert {rid for rid in self.asked if self.runs.get(rid)} == self.asked
        assert set(self.answers) == self.asked
        if not self.resets:
            assert all(count == 1 for count in self.answers.values())
            assert not self.discontinuities


class TwoEndsInJson(TwoEnds):
    """The same in JSON, whose messages are not cut."""

    encoding = "json"

    @rule(cuts=st.lists(st.integers(1, 30), min_size=1, max_size=4))
    def carry_bit_by_bit(self, cuts: list[int]) -> None:
        self.carry(len(cuts))


def _run(machine: type[TwoEnds], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_two_ends_over_a_pipe_that_cuts() -> None:
    _run(TwoEnds, 2000 if FULL else 80)


def test_two_ends_in_json() -> None:
    _run(TwoEndsInJson, 500 if FULL else 25)


@pytest.mark.parametrize("when", ["before the welcome", "after the welcome"])
def test_what_came_before_a_failover_acknowledges_nothing_that_came_after_it(when: str) -> None:
    """The client handles a message of the old log after it has asked to resume, before the replay shows that another
    one has its number now."""
    ends = TwoEnds()
    ends.connect()
    ends.push(5, True)
    ends.carry(6)
    ends.lose_the_connection()
    ends.fail_over_without_the_tail(1)
    ends.push(1, False)
    ends.server = ServerLink(ends.encoding, CONFIG, ends.now)
    ends.client.connected(ends.now)
    ends.fill()
    ends.take_server(ends.server.receive(bytes(ends.up), ends.now))  # the replay is on its way
    ends.up.clear()
    welcome, *replay = ends.server.take_output()
    ends.down += replay
    if when == "before the welcome":
        ends.handle(5)
    ends.take_client(ends.client.receive(welcome, ends.now))
    ends.handle(5)
    ends.wait(0.2)
    ends.carry(6)
    ends.teardown()


def test_a_failover_on_a_connection_does_not_let_an_ack_remove_what_came_after_it() -> None:
    ends = TwoEnds()
    ends.connect()
    ends.push(5, True)
    ends.carry(6)
    ends.fail_over_without_the_tail(1)
    ends.push(1, False)
    ends.handle(5)
    ends.wait(0.2)
    ends.carry(6)
    ends.teardown()
