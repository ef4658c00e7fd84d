"""The storm: clients, producers and requests while gateways and workers are killed, connections cut, hints dropped.

Everything that a client sees is written into its journal; `check` reads the journals afterwards and proves what is
promised. Decisions come from one seed; what the machine makes of them differs from run to run.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gateway.fleet import Process, Site
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App
from veredus.model.delivery import MESSAGE_TIMEOUT
from veredus.model.frames import Kind
from veredus.peer import Message, Peer, RequestError, connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    clients: int
    producers: int
    pushes: int
    requests: int
    gateway_kill: float
    worker_kill: float
    cut: float
    """Seconds between two cut connections."""
    deaf: float
    """Seconds between two drops of all subscriptions."""
    pause: float
    """Seconds at most between two flights of pushes, and between two requests of a client."""
    patience: float
    """Seconds for the whole."""


@dataclass(slots=True)
class Journal:
    """What one client saw, and what others were told about its session."""

    name: str
    peer: Peer
    items: list[Any] = field(default_factory=list)
    promised: dict[int, str] = field(default_factory=dict)
    """By number: the id of a push that its producer was told is queued."""
    bound: dict[int, list[tuple[str, str, float]]] = field(default_factory=dict)
    """By request: (side, id, when) of what was told to be held."""
    answers: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Figures:
    killed_gateways: int = 0
    killed_workers: int = 0
    cuts: int = 0
    dropped: int = 0
    full: int = 0
    connections: int = 0
    duplicates: int = 0
    seconds: float = 0.0


async def storm(plan: Plan, server: RealServer, folder: Path, dice: random.Random) -> tuple[list[Journal], Figures]:
    """Run it to its end: all pushes made, all requests answered, every client up to the end of its log."""
    figures = Figures()
    began = time.monotonic()
    with Site(server, folder) as site:
        workers = [site.worker(number) for number in range(2)]
        await site.ready()
        app = App(server.url)
        journals = [await _client(site, number) for number in range(plan.clients)]
        calm = asyncio.Event()
        troubles = [
            asyncio.create_task(_kill(site, site.gateways, plan.gateway_kill, dice, calm, figures, "killed_gateways")),
            asyncio.create_task(_kill(site, workers, plan.worker_kill, dice, calm, figures, "killed_workers")),
            asyncio.create_task(_cut(journals, plan.cut, dice, calm, figures)),
            asyncio.create_task(_deafen(server, plan.deaf, calm, figures)),
        ]
        try:
            async with asyncio.timeout(plan.patience):
                await asyncio.gather(
                    *[
                        _produce(app, journals, plan, number, dice.randrange(2**32), figures)
                        for number in range(plan.producers)
                    ],
                    *[_ask(app, one, plan, dice.randrange(2**32)) for one in journals],
                )
                calm.set()
                await asyncio.gather(*troubles)
                await _until_all_is_read(app, journals)
        except TimeoutError:
            raise AssertionError(
                f"the storm did not end in {plan.patience} s\n{_standing(journals)}\n{site.logs()}"
            ) from None
        finally:
            for one in troubles:
                one.cancel()
            for journal in journals:
                await journal.peer.detach()
            await app.close()
        assert "Traceback" not in site.logs(10**9, "gateway"), site.logs(10**9, "gateway")[-5000:]
    for journal in journals:
        figures.connections += journal.peer.stats()["connections"]
        figures.duplicates += journal.peer.stats()["duplicates"]
    figures.seconds = time.monotonic() - began
    return journals, figures


async def _client(site: Site, number: int) -> Journal:
    urls = site.urls("quic" if number % 2 else "ws")
    if number % 4 > 1:
        urls.reverse()
    items: list[Any] = []
    peer = await connect(
        urls, token=f"user{number}", on_message=items.append, backoff_base=0.05, backoff_max=0.5, connect_timeout=20
    )
    return Journal(f"user{number} over {urls[0][:4]}", peer, items)


async def _produce(app: App, journals: list[Journal], plan: Plan, number: int, seed: int, figures: Figures) -> None:
    """Pushes in flights of many at once; one that finds the log full is made again later."""
    dice = random.Random(seed)
    share = plan.pushes // plan.producers
    left = [f"{number}-{n}" for n in range(share)]
    left.reverse()

    async def one(identity: str) -> None:
        journal = dice.choice(journals)
        while True:
            result = await app.push({"id": identity}, session=journal.peer.session, type="push")
            if result.status == "queued":
                assert journal.promised.setdefault(result.seq, identity) == identity
                return
            assert result.status == "full", result
            figures.full += 1
            await asyncio.sleep(dice.uniform(0.01, 0.04))

    while left:
        flight = [left.pop() for _ in range(min(len(left), dice.randrange(1, 100)))]
        await asyncio.gather(*[one(identity) for identity in flight])
        await asyncio.sleep(dice.uniform(0, plan.pause))


async def _ask(app: App, journal: Journal, plan: Plan, seed: int) -> None:
    """Requests, up to four at once, with notifies bound before they are sent, while they run, or not at all."""
    dice = random.Random(seed)
    gate, turn = asyncio.Semaphore(4), asyncio.Lock()
    peer = journal.peer

    async def bind(rid: int, count: int) -> None:
        for n in range(count):
            side = dice.choice(("before", "after"))
            identity = f"{rid}-{n}-{dice.randrange(10**6)}"
            result = await app.push({"id": identity}, session=peer.session, bind=(rid, side), type=f"bound-{side}")
            if result.status == "held":
                journal.bound.setdefault(rid, []).append((side, identity, time.time()))
            else:
                assert result.status in ("late", "queued"), result
                journal.promised[result.seq] = identity

    async def one(n: int) -> None:
        async with gate:
            async with turn:
                await asyncio.sleep(dice.uniform(0, plan.pause))
                ahead = dice.random() < 0.3
                if ahead:
                    await bind(peer.export().next_rid, dice.randrange(1, 3))
                pending = peer.submit("work", {"n": n, "ms": dice.uniform(0, 30)}, deadline=100)
            if not ahead and dice.random() < 0.5:
                await asyncio.sleep(dice.uniform(0, 0.03))
                await bind(pending.rid, dice.randrange(1, 3))
            try:
                journal.answers[pending.rid] = await pending
            except RequestError as exc:
                journal.answers[pending.rid] = exc

    await asyncio.gather(*[one(n) for n in range(plan.requests // plan.clients)])


async def _kill(
    site: Site,
    processes: list[Process],
    every: float,
    dice: random.Random,
    calm: asyncio.Event,
    figures: Figures,
    what: str,
) -> None:
    """The next one dies only after the last one is back: on a busy machine there would be nobody left otherwise."""
    while not await _calm(calm, every):
        victim = dice.choice(processes)
        await asyncio.to_thread(victim.kill)
        before = victim.log.stat().st_size
        victim.start()
        setattr(figures, what, getattr(figures, what) + 1)
        await until(lambda victim=victim, before=before: victim.log.stat().st_size > before, seconds=60)
        await site.ready()


async def _cut(
    journals: list[Journal], every: float, dice: random.Random, calm: asyncio.Event, figures: Figures
) -> None:
    while not await _calm(calm, every * dice.uniform(0.5, 1.5)):
        dice.choice(journals).peer.cut()
        figures.cuts += 1


async def _deafen(server: RealServer, every: float, calm: asyncio.Event, figures: Figures) -> None:
    with server.client() as redis:
        while not await _calm(calm, every):
            redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            figures.dropped += 1


async def _calm(calm: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await calm.wait()
    except TimeoutError:
        return False
    return True


async def _until_all_is_read(app: App, journals: list[Journal]) -> None:
    """One last message to each; when it is there, all before it should be."""
    for journal in journals:

        async def pushed(session: str = journal.peer.session) -> Any:
            result = await app.push({"id": "end"}, session=session, type="end")
            return result if result.ok else None

        journal.promised[(await until(pushed, what="room for the last message")).seq] = "end"

    def is_read(one: Journal) -> bool:
        return bool(one.items and isinstance(one.items[-1], Message) and one.items[-1].type == "end")

    await until(lambda: all(map(is_read, journals)), seconds=600, what="the end of every log")


def _standing(journals: list[Journal]) -> str:
    lines = [f"{one.name} {one.peer.session} {one.peer.stats()} answers {len(one.answers)}" for one in journals]
    return "\n".join(lines)


def check(journal: Journal, requests: int) -> None:
    """What is promised, of one client."""
    odd = [item for item in journal.items if not isinstance(item, Message)]
    assert not odd, f"{journal.name}: {odd[:5]}"
    messages: list[Message] = journal.items
    numbers = [message.seq for message in messages]
    assert numbers == list(range(1, len(numbers) + 1)), f"{journal.name}: not contiguous: {_first_break(numbers)}"
    times = [message.ts for message in messages]
    assert all(a < b for a, b in itertools.pairwise(times)), f"{journal.name}: times do not rise"
    for seq, identity in journal.promised.items():
        assert seq <= len(messages), f"{journal.name}: {identity} was promised as {seq} and is missing"
        assert messages[seq - 1].data["id"] == identity, f"{journal.name}: {seq} is {messages[seq - 1]}, not {identity}"
    responses = {message.rid: message for message in messages if message.kind is Kind.RESPONSE}
    count = Counter(message.rid for message in messages if message.kind is Kind.RESPONSE)
    assert all(n == 1 for n in count.values()), f"{journal.name}: answered twice: {count.most_common(3)}"
    assert len(journal.answers) == requests
    assert set(responses) == set(journal.answers), f"{journal.name}: answers {sorted(journal.answers)}"
    for rid, response in responses.items():
        assert response.code == 0, f"{journal.name}: {rid} failed: {response.code} {response.error}"
        assert journal.answers[rid] == response.data, f"{journal.name}: {rid} {journal.answers[rid]!r}"
        _check_run(journal, messages, rid, response)


def _check_run(journal: Journal, messages: list[Message], rid: int, response: Message) -> None:
    """What is bound to a response stands right before and right after it, with nothing in between."""
    first = last = response.seq - 1
    while first > 0 and _side(messages[first - 1], rid) == "before":
        first -= 1
    while last + 1 < len(messages) and _side(messages[last + 1], rid) == "after":
        last += 1
    run = messages[first : last + 1]
    held = {"before": [], "after": []}  # type: dict[str, list[str]]
    for message in run:
        side = _side(message, rid)
        if side and "id" in message.data:
            held[side].append(message.data["id"])
    told: dict[str, list[str]] = {"before": [], "after": []}
    late = {message.data.get("id"): message.ts / 1e6 for message in messages if message.kind is Kind.LATE}
    for side, identity, since in journal.bound.get(rid, []):
        # What is bound waits 30 s for a request that has not come yet, and is then sent without it.
        if identity not in late or late[identity] - since < MESSAGE_TIMEOUT - 1:
            told[side].append(identity)
    where = f"{journal.name}, request {rid}"
    assert held["before"] == told["before"], f"{where}: before {held['before']} != {told['before']}"
    assert held["after"][: len(told["after"])] == told["after"], f"{where}: after {held['after']} != {told['after']}"
    n = response.data["n"]
    own = [message for message in messages if message.type in ("own", "progress") and message.data["n"] == n]
    assert [message.data["own"] for message in own] == [1, 2, "before", "after"], f"{where}: {own}"
    assert own[2].seq < response.seq < own[3].seq


def _side(message: Message, rid: int) -> str:
    if message.bind_client_seq_id != rid or message.kind is Kind.LATE:
        return ""
    return {1: "before", 2: "after"}.get(int(message.sync_hint), "")


def _first_break(numbers: list[int]) -> str:
    for position, number in enumerate(numbers, 1):
        if number != position:
            return f"{numbers[max(0, position - 4) : position + 4]} at position {position}"
    return "the end"
