"""Any sequence of pushes, binds, responses, acks, drops, attaches, failovers and sweeps: the log does as the law says,
a client that follows it misses nothing without being told, and nothing is left behind."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.outbox.support import AFTER, BEFORE, Log, tail
from tests.support.servers import RealServer
from tests.support.sizes import FULL
from veredus.model.delivery import Cursor, LogState, PushStatus, Quota, judge_cursor
from veredus.model.frames import Kind
from veredus.store.sessions.outbox import Append
from veredus.store.store import Store, connect
from veredus.wire import session_keys as keys
from veredus.wire.frames import decode_stored

QUOTA, EXTRA, TTL, HOLD = 6, 64, 10_000, 30_000
RIDS = st.integers(1, 4)
POLICIES = st.sampled_from(["", "reject", "drop_oldest"])


@dataclass
class Item:
    text: str
    late: str
    on_fail: str


@dataclass
class Model:
    """What the session should be."""

    sid: str
    epoch: str
    generation: int = 1
    attached: bool = True
    ends: int = 0
    floor: int = 0
    policy_floor: int = 0
    times: dict[int, int] = field(default_factory=lambda: {0: 0})
    """ts by seq, of everything ever numbered in this history."""
    log: list[tuple[int, str, Kind]] = field(default_factory=list)
    requests: dict[int, tuple[str, int]] = field(default_factory=dict)
    """rid -> (open, done or early; deadline or seq)"""
    held: dict[int, tuple[list[Item], list[Item]]] = field(default_factory=dict)
    rid_floor: int = 0
    used: dict[str, int] = field(default_factory=dict)

    @property
    def top(self) -> int:
        return self.log[-1][0] if self.log else self.floor

    def add(self, text: str, kind: Kind = Kind.NOTIFY) -> int:
        self.log.append((self.top + 1, text, kind))
        return self.top

    def trim(self, seq: int) -> None:
        self.log = [row for row in self.log if row[0] > seq]
        self.floor = max(self.floor, seq)

    def answered(self, rid: int) -> bool:
        if rid in self.requests:
            return self.requests[rid][0] == "done"
        return rid <= self.rid_floor

    def take(self, rid: int) -> tuple[list[Item], list[Item]]:
        return self.held.pop(rid, ([], []))


class Session(RuleBasedStateMachine):
    def __init__(self, server: RealServer) -> None:
        super().__init__()
        server.flush()
        self.runner = asyncio.Runner()
        self.client: Any = redis.asyncio.Redis(unix_socket_path=server.socket)
        self.store: Store = self.run(self._connect(server.url))
        self.log: Log = self.run(self._log())
        self.number = 0
        self.saved: tuple[dict[bytes, bytes], Model] | None = None
        self.model: Model | None = None
        self.begin()

    async def _connect(self, url: str) -> Store:
        return Store(connect(url))

    async def _log(self) -> Log:
        return Log(self.store, self.client)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        async def wrapped() -> Any:
            return await awaitable

        return self.runner.run(wrapped())

    def teardown(self) -> None:
        self.run(self.store.close())
        self.run(self.client.aclose())
        self.runner.close()

    def text(self) -> str:
        self.number += 1
        return f"m{self.number}"

    @property
    def m(self) -> Model:
        assert self.model is not None
        return self.model

    # The session.

    def begin(self) -> None:
        created = self.run(self.log.create(quota=Quota(entries=QUOTA), ttl_ms=TTL, max_sessions=1))
        assert created.replaced == ((self.model.sid,) if self.model else ())
        self.model = Model(created.sid, created.epoch)
        self.saved = None
        self.cursor = Cursor(created.epoch, 0, 0)

    @initialize()
    def start(self) -> None:
        pass

    @precondition(lambda self: self.model is None)
    @rule()
    def new(self) -> None:
        self.begin()

    @precondition(lambda self: self.model is not None)
    @rule()
    def close(self) -> None:
        assert self.run(self.store.sessions.close(self.m.sid)) is True
        self.model = None

    @precondition(lambda self: self.model is not None)
    @rule()
    def drop(self) -> None:
        m = self.m
        assert self.run(self.store.sessions.detach([(m.sid, m.generation)])) == [m.attached]
        if m.attached:
            m.attached, m.ends = False, self.log.now + TTL

    @precondition(lambda self: self.model is not None)
    @rule(first=st.integers(0, 4))
    def attach(self, first: int) -> None:
        m = self.m
        state = LogState(m.epoch, m.top, m.floor, m.times[m.floor], m.policy_floor)
        verdict, reason, gap = judge_cursor(state, self.cursor, m.times.get(self.cursor.seq))
        attached = self.run(self.log.attach(m.sid, self.cursor, secret_hash="h0", next_secret_hash="h0", first=first))
        assert (attached.result, attached.reason, attached.gap) == (verdict, reason, gap)
        m.generation, m.attached = m.generation + 1, True
        assert attached.generation == m.generation
        if verdict == "reset":
            m.epoch = attached.epoch
        elif gap is None:
            m.trim(self.cursor.seq)
        self.cursor = attached.base
        assert self.cursor == Cursor(m.epoch, m.floor, m.times[m.floor])
        self.receive(attached.entries)
        known = {rid: state for rid, (state, _) in m.requests.items() if state != "early"}
        assert dict(attached.open_requests) == known

    @precondition(lambda self: self.model is not None)
    @rule(most=st.integers(1, 5))
    def pump(self, most: int) -> None:
        """What a gateway does: read behind the client's cursor and deliver; a gap made by a policy is announced."""
        (excerpt,) = self.run(self.store.outbox.read([(self.m.sid, self.cursor.seq + 1, most, 100_000)]))
        if (excerpt.epoch, excerpt.generation) != (
            self.m.epoch,
            self.m.generation,
        ) or self.cursor.epoch != self.m.epoch:
            return  # after a failover: whoever looks finds out, and the client attaches anew
        if self.cursor.seq > excerpt.top or self.m.times.get(self.cursor.seq) != self.cursor.ts:
            return
        if self.cursor.seq < excerpt.floor <= excerpt.policy_floor:
            self.cursor = Cursor(self.m.epoch, excerpt.floor, excerpt.floor_ts)
        self.receive(excerpt.entries)

    def receive(self, entries: list[Any]) -> None:
        for entry in entries:
            assert entry.seq == self.cursor.seq + 1
            assert entry.ts > self.cursor.ts
            self.cursor = Cursor(self.m.epoch, entry.seq, entry.ts)
            expected = next(row for row in self.m.log if row[0] == entry.seq)
            message = decode_stored(entry.tail)
            assert (message.body.decode(), message.kind) == expected[1:]

    # What producers do.

    @precondition(lambda self: self.model is not None)
    @rule(count=st.integers(1, 3), policy=POLICIES, key=st.sampled_from(["", "", "k1", "k2"]))
    def push(self, count: int, policy: str, key: str) -> None:
        m = self.m
        self.log.later(1)
        texts = [self.text() for _ in range(count)]
        expected = []
        for text in texts:
            if key and key in m.used:
                expected.append((PushStatus.DUPLICATE, m.used[key], m.sid))
            elif m.top - m.floor >= QUOTA and policy != "drop_oldest":
                expected.append((PushStatus.FULL, 0, m.sid))
            else:
                seq = m.add(text)
                while m.top - m.floor > QUOTA:
                    m.trim(m.floor + 1)
                    m.policy_floor = m.floor
                expected.append((PushStatus.QUEUED, seq, m.sid))
                if key:
                    m.used[key] = seq
        rows = [Append(m.sid, tail(text), dedupe_key=key, policy=policy) for text in texts]
        assert self.run(self.store.outbox.append(rows)) == expected
        self.note_times()

    @precondition(lambda self: self.model is not None)
    @rule(
        rid=RIDS,
        hint=st.sampled_from([BEFORE, AFTER]),
        late=st.sampled_from(["send", "reject"]),
        on_fail=st.sampled_from(["send", "drop"]),
    )
    def bind(self, rid: int, hint: Any, late: str, on_fail: str) -> None:
        m, text = self.m, self.text()
        self.log.later(1)
        result = self.run(self.log.bind(m.sid, rid, hint, text, late=late, on_fail=on_fail))
        if not m.answered(rid):
            sides = m.held.setdefault(rid, ([], []))
            sides[0 if hint is BEFORE else 1].append(Item(text, late, on_fail))
            if rid not in m.requests or m.requests[rid][0] == "early":
                m.requests[rid] = ("early", self.log.now + HOLD)
            assert result.status is PushStatus.HELD
        elif hint is BEFORE and late == "reject":
            assert result.status is PushStatus.TOO_LATE
        elif m.top - m.floor >= QUOTA:
            assert result.status is PushStatus.FULL
        else:
            seq = m.add(text, Kind.LATE if hint is BEFORE else Kind.NOTIFY)
            assert result == (PushStatus.LATE if hint is BEFORE else PushStatus.QUEUED, seq, m.sid)
        self.note_times()

    @precondition(lambda self: self.model is not None)
    @rule(rid=RIDS, ms=st.sampled_from([100, 40_000]))
    def accept(self, rid: int, ms: int) -> None:
        m = self.m
        state = self.run(self.store.outbox.accept(m.sid, rid, self.log.now + ms, m.generation))
        if m.requests.get(rid, ("",))[0] == "open":
            assert state == "open"
        elif m.answered(rid):
            assert state == "done"
        else:
            assert state == "new"
            m.requests[rid] = ("open", self.log.now + ms)
        assert self.run(self.store.outbox.accept(m.sid, 99, self.log.now, m.generation - 1)) == "superseded"

    @precondition(lambda self: self.model is not None)
    @rule(rid=RIDS, failed=st.booleans(), befores=st.integers(0, 2), afters=st.integers(0, 2))
    def respond(self, rid: int, failed: bool, befores: int, afters: int) -> None:
        m = self.m
        self.log.later(1)
        before, after = [self.text() for _ in range(befores)], [self.text() for _ in range(afters)]
        response = self.text()
        responded = self.run(
            self.log.respond(
                m.sid,
                rid,
                response,
                befores=[tail(text) for text in before],
                afters=[tail(text) for text in after],
                failed=failed,
            )
        )
        if m.answered(rid):
            assert responded.status == "duplicate"
            assert responded.seq == m.requests.get(rid, ("", 0))[1]
        else:
            self.answer(rid, response, before, after, failed)
            assert (responded.status, responded.seq) == ("sent", m.requests[rid][1])
        self.note_times()

    def answer(self, rid: int, response: str, before: list[str], after: list[str], failed: bool) -> None:
        m = self.m
        held = m.take(rid)
        kept = [[item.text for item in side if not failed or item.on_fail == "send"] for side in held]
        for text in [*kept[0], *before]:
            m.add(text)
        m.requests[rid] = ("done", m.add(response, Kind.RESPONSE))
        for text in [*kept[1], *after]:
            m.add(text)

    @precondition(lambda self: self.model is not None)
    @rule(behind=st.integers(0, 3), floor=st.integers(0, 4))
    def ack(self, behind: int, floor: int) -> None:
        m = self.m
        seq = max(0, min(self.cursor.seq, m.top) - behind)
        assert self.run(self.store.outbox.ack([(m.sid, seq, floor), (m.sid, m.top + 1, 0)])) == ["ok", "ahead"]
        if seq > m.floor:
            m.trim(seq)
        if floor > m.rid_floor:
            m.rid_floor = floor
            m.requests = {r: s for r, s in m.requests.items() if r > floor or s[0] != "done"}

    # What time and failures do.

    @precondition(lambda self: self.model is not None)
    @rule(ms=st.sampled_from([50, 5000, 31_000]))
    def pass_time(self, ms: int) -> None:
        m = self.m
        self.log.later(ms)
        self.saved = None if ms > 5000 else self.saved
        swept = self.run(self.store.sessions.sweep())
        if not m.attached and m.ends <= self.log.now:
            assert swept.expired == [m.sid]
            self.model = None
            return
        due = sorted(rid for rid, (state, at) in m.requests.items() if state == "open" and at <= self.log.now)
        assert sorted(swept.due) == [(m.sid, rid) for rid in due]
        early = [(at, rid) for rid, (state, at) in m.requests.items() if state == "early" and at <= self.log.now]
        flushed = 0
        for _, rid in sorted(early, key=lambda row: (row[0], f"{m.sid}.{row[1]}")):
            for item in itertools.chain(*m.take(rid)):
                if item.late == "send":
                    m.add(item.text, Kind.LATE)
                    flushed += 1
            del m.requests[rid]
        assert swept.flushed == flushed
        assert self.run(self.store.outbox.expire(swept.due)) == len(due)
        for _, rid in swept.due:
            self.answer(rid, "", [], [], failed=True)
        self.note_times()

    @precondition(lambda self: self.model is not None)
    @rule()
    def replicate(self) -> None:
        """What a replica has at this moment."""

        async def copy_all() -> dict[bytes, bytes]:
            return {key: await self.client.dump(key) for key in await self.client.keys("*") if b":i:" not in key}

        self.saved = (self.run(copy_all()), copy.deepcopy(self.m))

    @precondition(lambda self: self.saved is not None and self.model is not None)
    @rule()
    def fail_over(self) -> None:
        """The replica takes over: what came after is lost. The client keeps its cursor."""
        assert self.saved is not None
        data, self.model = self.saved[0], copy.deepcopy(self.saved[1])

        async def restore() -> None:
            await self.client.flushall()
            for key, value in data.items():
                await self.client.restore(key, 0, value)

        self.run(restore())
        self.m.used.clear()
        self.log.later(1)
        self.saved = None

    @precondition(lambda self: self.model is not None)
    @rule(lost=st.integers(1, 3), new=st.integers(0, 3))
    def lose_the_tail(self, lost: int, new: int) -> None:
        """The client got what the new master never had; others take the same numbers."""
        self.replicate()
        self.push(lost, "drop_oldest", "")
        self.pump(QUOTA + EXTRA)
        self.fail_over()
        if new:
            self.push(new, "drop_oldest", "")
        self.attach(4)

    def note_times(self) -> None:
        for entry in self.run(self.log.entries(self.m.sid)):
            self.m.times.setdefault(entry.seq, entry.ts)

    @invariant()
    def the_log_is_as_it_should_be(self) -> None:
        space = self.run(self.log.everything())
        left = {name for name in space if ":i:" not in name}
        if self.model is None:
            assert left == set()
            return
        m = self.m
        messages = [(e.seq, decode_stored(e.tail)) for e in self.run(self.log.entries(m.sid))]
        assert [(seq, message.body.decode(), message.kind) for seq, message in messages] == m.log
        responses = [message.rid for _, message in messages if message.kind is Kind.RESPONSE]
        assert len(responses) == len(set(responses))
        tag = m.sid[:4]
        expected = {keys.meta(m.sid), keys.sessions(tag), keys.user("bob")}
        expected |= {keys.outbox(m.sid)} if m.log else set()
        expected |= {keys.requests(m.sid)} if m.requests else set()
        states = [state for state, _ in m.requests.values()]
        expected |= {keys.deadlines(tag)} if "open" in states else set()
        expected |= {keys.early_binds(tag)} if "early" in states else set()
        for rid, (befores, afters) in m.held.items():
            expected |= {keys.befores(m.sid, rid)} if befores else set()
            expected |= {keys.afters(m.sid, rid)} if afters else set()
        expected |= {name for name in left if ":n:" in name} if m.attached else {keys.expiries(tag)}
        assert left == expected
        meta = space[keys.meta(m.sid)].value
        assert int(meta.get("op", 0)) == states.count("open")
        assert int(meta.get("hb", 0)) == sum(len(side) for sides in m.held.values() for side in sides)
        assert (int(meta["f"]), int(meta["s"]), int(meta["pf"])) == (m.floor, m.top, m.policy_floor)


def test_any_sequence(valkey_server: RealServer) -> None:
    run_state_machine_as_test(
        lambda: Session(valkey_server),  # type: ignore[arg-type]  # any function that makes one will do
        settings=settings(
            max_examples=400 if FULL else 30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        ),
    )
