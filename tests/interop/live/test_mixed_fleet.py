"""A storm over a fleet of both: every option, verbs of both inspectors, members killed with -9. The books are right."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.crash.fleet import seeded
from tests.interop.live.fleet import QUEUES, Fleet
from tests.interop.live.ledger import Ledger, Sent, Verb
from tests.interop.live.peer import GoError, GoPeer, go_peer
from tests.support.keyspace import check_invariant
from tests.support.servers import RealServer
from tests.support.sizes import FULL, size
from tests.support.waiting import until
from veredus import App, VeredusError

pytestmark = pytest.mark.timeout(size(240, 900))

TASKS = size(1_500, 20_000)
SECONDS = size(8.0, 60.0)
KILL_EVERY = size(1.5, 3.0)
LEASE = size(5.0, 12.0)
CHUNK = 50
LATEST = size(2.0, 10.0)
"""The longest delay."""
GROUPS = ("g1", "g2", "g3")
END_LEASES_OF_THE_DEAD = """
local now = tonumber(redis.call('TIME')[1])
local leases = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for at = 1, #leases, 2 do
    local id, ends = leases[at], tonumber(leases[at + 1])
    local held = redis.call('HGET', ARGV[1] .. id, 'held') or ''
    if now - 31 < ends and ends < now + 28 and tonumber(held:match('(%d+)$') or 0) ~= ends then
        redis.call('ZADD', KEYS[1], 'XX', now - 60, id)
    end
end
"""
"""In one step: a task whose owner changes between a look at its lease and one at its owner would be taken for lost.
A lease of Veredus ends by itself: its end is in `held`."""
PLACES = ("pending", "active", "scheduled", "retry", "groups", "aggregation_sets")


def plan(rng: random.Random) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Tasks with every option: type, payload and options, by their names in Python."""
    for number in range(TASKS):
        kind = rng.choices(["storm:work", "storm:go", "storm:limited"], [80, 8, 12])[0]
        behave = rng.choices(["wait", "fail once", "fail", "skip", "revoke"], [84, 7, 3, 3, 3])[0]
        payload: dict[str, Any] = {"n": number, "behave": behave, "ms": rng.choice([5, 10, 20, 40, 300])}
        options: dict[str, Any] = {"queue": "slow" if kind == "storm:limited" else rng.choice([*QUEUES])}
        if behave == "fail once":
            payload |= {"behave": "fail", "times": 1}
        elif behave == "fail":
            options["max_retry"] = 0
        elif rng.random() < 0.2:
            options["max_retry"] = rng.randrange(15, 40)
        for name, value, share in (
            ("delay", rng.uniform(0.05, LATEST), 0.1),
            ("at", datetime.fromtimestamp(time.time() + rng.uniform(0.5, LATEST), UTC), 0.1),
            ("task_id", f"id-{number}", 0.2),
            ("unique_for", 60, 0.15),
            ("retention", 600, 0.15),
            ("timeout", 60, 0.2),
            ("deadline", datetime.fromtimestamp(int(time.time()) + 1800, UTC), 0.1),
            ("headers", {"n": str(number)}, 0.1),
            ("expires", 1800, 0.1),
            ("order_key", f"key-{rng.randrange(20)}", 0.1),
            ("limit_key", f"host-{rng.randrange(5)}", 0.1 if kind != "storm:limited" else 1),
        ):
            if rng.random() < share and not (name == "at" and "delay" in options):
                options[name] = value
        if rng.random() < 0.05 and behave == "wait":  # in an order that is checked, and left alone by verbs
            order = {"order_key": f"calm-{rng.randrange(8)}", "queue": options["queue"]}
            options = {name: value for name, value in options.items() if name not in ("delay", "at")} | order
        elif options.get("order_key") and behave == "wait" and rng.random() < 0.3:
            options["order_hold"] = True
        elif rng.random() < 0.1 and behave == "wait" and "order_key" not in options:
            options["group"] = rng.choice(GROUPS)
            options.pop("unique_for", None)  # Go leaves the locks of members behind until their time is over
            options.pop("limit_key", None)
        if rng.random() < 0.1:
            payload["result"] = f"r{number}"
        yield kind, payload, options


def for_go(options: dict[str, Any]) -> dict[str, Any]:
    """The same options by the names of the Go program; those that Go has not are left out."""
    shared = ("queue", "max_retry", "task_id", "group", "headers")
    given: dict[str, Any] = {name: options[name] for name in shared if name in options}
    for name, theirs in (("delay", "process_in_ms"), ("unique_for", "unique_ms"), ("retention", "retention_ms")):
        if name in options:
            given[theirs] = int(options[name] * 1000)
    if "timeout" in options:
        given["timeout_ms"] = options["timeout"] * 1000
    if "at" in options:
        given["process_at"] = int(options["at"].timestamp() * 1000)
    if "deadline" in options:
        given["deadline_at"] = int(options["deadline"].timestamp())
    return given


class Storm:
    def __init__(self, app: App, peer: GoPeer, fleet: Fleet, client: Any) -> None:
        self.app, self.peer, self.fleet, self.client = app, peer, fleet, client
        self.rng = seeded()
        self.ledger = Ledger(kills=fleet.kills)
        self.over = asyncio.Event()
        self.by: Counter[str] = Counter()
        self.pauses = 0

    # Clients.

    def _note(self, by: str, task_id: str, payload: dict[str, Any], options: dict[str, Any]) -> None:
        behave = payload["behave"] if payload["behave"] != "wait" and "times" not in payload else ""
        order = options.get("order_key", "") if by == "python" else ""
        order = f"{options['queue']} {order}" if order.startswith("calm-") else ""
        self.by[by] += 1
        self.ledger.sent[task_id] = Sent(task_id, payload["n"], behave, options.get("group", ""), order)

    async def send(self) -> None:
        """Both clients by turns, spread over the time of the storm; unique tasks also by the other client at once."""
        began, tasks = time.monotonic(), plan(self.rng)
        for first in range(0, TASKS, 2 * CHUNK):
            chunk = list(itertools.islice(tasks, 2 * CHUNK))
            await asyncio.gather(self._python(chunk[:CHUNK]), self._go(chunk[CHUNK:]))
            await asyncio.gather(self._go(twins(chunk[:CHUNK])), self._python(twins(chunk[CHUNK:])))
            await asyncio.sleep(began + SECONDS * first / TASKS - time.monotonic())

    async def _python(self, tasks: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
        at_once, alone = tasks[: CHUNK // 2], tasks[CHUNK // 2 :]
        calls = [self.app.call(kind, dumped(payload), **options) for kind, payload, options in at_once]
        handles = await self.app.enqueue_many(calls) if calls else []
        handles += [await self.app.enqueue(kind, dumped(payload), **options) for kind, payload, options in alone]
        for handle, (_, payload, options) in zip(handles, tasks, strict=True):
            if handle.created:
                self._note("python", handle.id, payload, options)
            else:
                assert "unique_for" in options

    async def _go(self, tasks: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
        async def one(kind: str, payload: dict[str, Any], options: dict[str, Any]) -> None:
            try:
                (sent,) = await self.peer.enqueue(kind, dumped(payload), **for_go(options))
            except GoError as exc:
                if "task already exists" not in str(exc):
                    raise
            else:
                self._note("go", sent["id"], payload, options)

        await asyncio.gather(*[one(*task) for task in tasks])

    # Verbs.

    async def meddle(self, by_go: bool) -> None:
        while not self.over.is_set():
            verb = self.rng.choices(["cancel", "archive", "run", "delete", "pause"], [6, 4, 8, 1, 1])[0]
            queue = self.rng.choice([*QUEUES])
            with contextlib.suppress(VeredusError, GoError):
                if verb == "pause":
                    await self._pause(queue, by_go)
                else:
                    await self._verb(verb, queue, by_go)
            await asyncio.sleep(self.rng.uniform(0.01, 0.1))

    async def _pause(self, queue: str, by_go: bool) -> None:
        await (self.peer.do("pause", queue=queue) if by_go else self.app.inspector().pause(queue))
        self.pauses += 1
        await asyncio.sleep(self.rng.uniform(0.1, 0.5))
        await (self.app.inspector().resume(queue) if by_go else self.peer.do("unpause", queue=queue))

    async def _verb(self, verb: str, queue: str, by_go: bool) -> None:
        states = {"cancel": ("active",), "run": ("scheduled", "retry", "archived", "aggregating")}
        state = self.rng.choice(states.get(verb, ("pending", "scheduled", "retry", "archived", "aggregating")))
        group = self.rng.choice(GROUPS) if state == "aggregating" else None
        found = await self.app.inspector().tasks(queue, state, group=group, size=30)
        ours = [info.id for info in found if info.id in self.ledger.sent and not self.ledger.sent[info.id].order]
        if not ours:
            return
        task_id, asked = self.rng.choice(ours), time.time()
        if by_go:
            await self.peer.do(verb, queue=queue, id=task_id)
        elif verb == "cancel":
            await self.app.inspector().cancel(queue, task_id, then=self.rng.choice(["archive", "retry"]))
        else:
            await getattr(self.app.inspector(), verb)(queue, task_id)
        self.ledger.verbs.append(Verb(verb, task_id, asked, time.time()))

    # Kills.

    async def kill(self) -> None:
        """One member after the other in an order by chance, all four before the next round."""
        began, places = time.monotonic(), list[int]()
        for at in range(1, int(SECONDS / KILL_EVERY) + 1):
            places = places or self.rng.sample(range(4), 4)
            await asyncio.sleep(began + at * KILL_EVERY - time.monotonic())
            await self.fleet.replace(places.pop())

    # The end.

    async def settle(self) -> None:
        """Whatever was archived on its way is run, until nothing waits anywhere."""
        for queue in QUEUES:
            await self.app.inspector().resume(queue)
        give_up = time.monotonic() + size(120, 400)
        while True:
            if not FULL:
                await self._a_minute_later()
            waiting = {place: n for place, n in (await self.counts()).items() if n}
            at_rest = all(place.endswith(" scheduled") for place in waiting)  # perhaps behind an archived task
            if at_rest and not await self._run_what_was_archived() and not waiting:
                return
            assert time.monotonic() < give_up, f"still there: {waiting}; {self.fleet.log.read_text()[-2000:]}"
            await asyncio.sleep(size(0.04, 0.5))

    async def counts(self) -> dict[str, int]:
        count = {"pending": "LLEN", "active": "LLEN", "groups": "SCARD"}
        async with self.client.pipeline(transaction=True) as pipe:
            names = [f"{queue} {place}" for queue in QUEUES for place in PLACES]
            for queue in QUEUES:
                for place in PLACES:
                    pipe.execute_command(count.get(place, "ZCARD"), f"asynq:{{{queue}}}:{place}")
            return dict(zip(names, await pipe.execute(), strict=True))

    async def _run_what_was_archived(self) -> int:
        self.ledger.read(self.fleet.facts())
        ran = 0
        for queue in QUEUES:
            for info in await self.app.inspector().tasks(queue, "archived", size=20_000):
                if self.ledger.ended(info.id):
                    continue
                asked, ran = time.time(), ran + 1
                if ran % 2:
                    await self.app.inspector().run(queue, info.id)
                else:
                    await self.peer.do("run", queue=queue, id=info.id)
                self.ledger.verbs.append(Verb("run", info.id, asked, time.time()))
        return ran

    async def _a_minute_later(self) -> None:
        """Go's leases and sets end only after one and two minutes: a small storm lets them end at once, those of the
        dead. No handler of the living takes two seconds."""
        for queue in QUEUES:
            prefix = f"asynq:{{{queue}}}:"
            await self.client.eval(END_LEASES_OF_THE_DEAD, 1, f"{prefix}lease", f"{prefix}t:")
            now = (await self.client.time())[0]
            for name, until_second in await self.client.zrange(f"{prefix}aggregation_sets", 0, -1, withscores=True):
                if until_second < now + 118:
                    await self.client.zadd(f"{prefix}aggregation_sets", {name: now - 1}, xx=True)


def dumped(payload: dict[str, Any]) -> bytes:
    """The same bytes from both clients, so that they share unique locks."""
    return json.dumps(payload).encode()


def twins(tasks: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The unique ones once more, without what only one task can have."""
    alone = ("task_id", "order_key", "order_hold")
    return [
        (kind, payload, {name: value for name, value in options.items() if name not in alone})
        for kind, payload, options in tasks
        if "unique_for" in options
    ]


@contextlib.asynccontextmanager
async def storm(programs: list[Path], url: str, client: Any, folder: Path) -> AsyncIterator[Storm]:
    fleet = Fleet(programs, url, folder, LEASE)
    async with App(url) as app, go_peer(programs[0], url) as peer:
        try:
            await fleet.start()
            yield Storm(app, peer, fleet, client)
        finally:
            await fleet.stop()


async def remains(client: Any) -> list[str]:
    """What Veredus keeps for delays, order and limits while there are tasks."""
    kept = ("due", "lanes", "lane:", "limited", "waiting:", "slots:")
    names = [key.decode() async for key in client.scan_iter("asynq:{*", count=5000)]
    return [name for name in names if name.partition("}:")[2].startswith(kept)]


async def test_nothing_is_lost_or_run_twice_in_a_fleet_of_both(
    programs: list[Path], new_server: Callable[..., RealServer], tmp_path: Path
) -> None:
    server = new_server("--appendonly", "yes")
    redis_client, url = redis.asyncio.Redis(unix_socket_path=server.socket), server.url
    began = time.monotonic()
    async with redis_client, storm(programs, url, redis_client, tmp_path) as run:
        meddling = [asyncio.create_task(run.meddle(by_go)) for by_go in (True, False)]
        await asyncio.gather(run.send(), run.kill())
        run.over.set()
        await asyncio.gather(*meddling)
        await run.settle()

        async def tidy() -> bool:
            return not await remains(redis_client)

        with contextlib.suppress(AssertionError):
            await until(tidy)
        left = await remains(redis_client)
        command = [sys.executable, "-m", "veredus", "doctor", "--redis", url]
        doctor = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
        breaches = await check_invariant(redis_client)
    took, ledger = time.monotonic() - began, run.ledger
    ledger.read(run.fleet.facts())
    repeats = list(ledger.repeats())
    report(run, repeats, doctor.stdout, took)
    assert ledger.lost() == []
    assert [str(attempt) for attempt, why in repeats if not why] == []
    assert ledger.unended() == []
    assert ledger.run_all_the_same() == []
    assert ledger.out_of_order() == []
    assert left == []
    assert doctor.returncode == 0
    assert "no damage found in the queues" in doctor.stdout
    assert breaches == []
    assert set(run.by) == {"go", "python"}
    assert set(Counter(run.fleet.killed)) == {program.name for program in programs} | {"veredus"}


def report(run: Storm, repeats: list[Any], doctor: str, took: float) -> None:
    ledger = run.ledger
    attempts = [attempt for attempts in ledger.attempts.values() for attempt in attempts]
    reasons = Counter(why or "NO REASON" for _, why in repeats)
    by_kill = Counter(attempt.pid for attempt, why in repeats if why == "kill")
    deleted = {verb.id for verb in ledger.verbs if verb.name == "delete"}
    verbs = Counter(verb.name for verb in ledger.verbs) + Counter(pause=run.pauses)
    print(f"\n{len(ledger.sent)} tasks sent {dict(run.by)}, {len(attempts)} attempts of {len(ledger.attempts)} tasks")
    print(f"in {took:.0f} s; {len(ledger.kills)} kills {dict(Counter(run.fleet.killed))}; verbs {dict(verbs)}")
    print(f"deleted by verbs {len(deleted)}, lost {len(ledger.lost())}; run again {dict(reasons)}")
    print(f"run again per kill {sorted(by_kill.values())}")
    print("doctor:", doctor.strip().replace("\n", "\n        "))
