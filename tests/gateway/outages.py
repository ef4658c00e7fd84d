"""A storm of outages: the server stands still, networks are black holes, processes die; what clients were told holds.

Every run of a handler is a line in a file. `check` compares it with what each client was told of each request.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.gateway.asker import ACCEPTED, ANSWERED, GIVEN_UP, Asked, Asker
from tests.gateway.fleet import Process, Site
from tests.support.holes import Hole
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App

SETTINGS = ("--request-rate", "10", "--request-burst", "10", "--open-requests", "8")
KINDS = (("note", False), ("note", True), ("note_here", False), ("unknown", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Seconds."""

    clients: int
    lasts: float
    pause: float
    """The server stands still for so long."""
    pause_every: float
    hole: float
    """A network is a black hole for at most so long."""
    hole_every: float
    """Between two holes before clients."""
    server_hole_every: float
    """Between two holes before the server, each of one gateway."""
    kill_every: float
    closed: float
    """The queue is closed, or the server full, for so long."""
    closed_every: float
    deadline: float
    """Of each request."""
    patience: float
    """For all answers, when the storm is over."""


@dataclass(slots=True)
class Storm:
    plan: Plan
    dice: random.Random
    askers: list[Asker] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    killed: set[str] = field(default_factory=set)
    """Processes that were killed: what they ran may run again."""
    runs: dict[str, list[str]] = field(default_factory=dict)
    """By request: the processes that ran it."""


async def storm(plan: Plan, server: RealServer, folder: Path, dice: random.Random) -> Storm:
    """`VEREDUS_TEST_RUNS` names the file of the runs."""
    found = Storm(plan, dice)
    holes = [Hole(server.socket, folder / f"s{number}") for number in range(2)]
    urls = [f"unix://{folder / f's{number}'}" for number in range(2)]
    async with _running(holes):
        with Site(server, folder, urls=urls, settings=SETTINGS) as site:
            workers = [site.worker(number, lease="15") for number in range(2)]
            await site.ready()
            doors = [Hole(ws) for _ in range(plan.clients) for ws, _ in site.ports]
            async with _running(doors), App(server.url, timeout=60) as app:
                for number in range(plan.clients):
                    ways = [f"ws://127.0.0.1:{hole.port}/" for hole in doors[2 * number : 2 * number + 2]]
                    seed = dice.randrange(2**32)
                    found.askers.append(Asker(f"c{number}", ways, random.Random(seed), plan.deadline))
                await _weather(found, site, workers, server, app, holes, doors)
            assert "Traceback" not in site.logs(10**9, "gateway"), site.logs(10**9, "gateway")[-5000:]
    return found


@asynccontextmanager
async def _running(holes: list[Hole]) -> AsyncIterator[None]:
    for hole in holes:
        await hole.start()
    try:
        yield
    finally:
        for hole in holes:
            await hole.close()


async def _weather(
    found: Storm, site: Site, workers: list[Process], server: RealServer, app: App, holes: list[Hole], doors: list[Hole]
) -> None:
    plan = found.plan
    running = [asyncio.create_task(asker.run()) for asker in found.askers]
    running.append(asyncio.create_task(_supervises([*site.gateways, *workers])))
    troubles = [
        asyncio.create_task(_pauses(found, server)),
        asyncio.create_task(_black_holes(found, holes, plan.server_hole_every, "holes before the server")),
        asyncio.create_task(_black_holes(found, doors, plan.hole_every, "holes before clients")),
        asyncio.create_task(_kills(found, site, [*site.gateways, *workers])),
        asyncio.create_task(_refusals(found, server, app)),
        *[asyncio.create_task(_asks(found, asker)) for asker in found.askers],
    ]
    try:
        ended, _ = await asyncio.wait(troubles, timeout=plan.lasts, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()
        for task in troubles:
            task.cancel()
        await asyncio.gather(*troubles, return_exceptions=True)
        for hole in [*holes, *doors]:
            hole.end()
        try:
            await until(lambda: not any(asker.waiting for asker in found.askers), seconds=plan.patience)
        except AssertionError:
            waiting = [asked for asker in found.askers for asked in asker.waiting]
            problems = [problem for asker in found.askers for problem in asker.problems]
            raise AssertionError(f"no answer to {waiting[:20]}; {problems[:20]}\n{site.logs()}") from None
        inspector = app.inspector()

        async def is_empty() -> bool:
            queue = await inspector.queue("site")
            return not (queue.pending or queue.active or queue.scheduled or queue.retry)

        await until(is_empty, seconds=plan.patience, what="the end of all tasks")
    finally:
        server.thaw()
        for task in [*running, *troubles]:
            task.cancel()
        await asyncio.gather(*running, *troubles, return_exceptions=True)


async def _asks(found: Storm, asker: Asker) -> None:
    dice = random.Random(found.dice.randrange(2**32))
    while True:
        await asyncio.sleep(dice.uniform(0, 0.4))
        for _ in range(dice.choice((1, 1, 1, 12))):
            if len(asker.waiting) < 30:
                action, no_reply = dice.choices(KINDS, (6, 3, 3, 0.3))[0]
                await asker.ask(action, no_reply=no_reply)


async def _pauses(found: Storm, server: RealServer) -> None:
    plan = found.plan
    while True:
        await asyncio.sleep(plan.pause_every * found.dice.uniform(0.5, 1.5))
        found.counts["pauses"] += 1
        if found.dice.random() < 0.5:
            server.freeze()
            try:
                await asyncio.sleep(plan.pause)
            finally:
                server.thaw()
        else:
            with server.client() as redis:
                await asyncio.to_thread(redis.execute_command, "CLIENT", "PAUSE", int(plan.pause * 1000), "ALL")
            await asyncio.sleep(plan.pause)


async def _black_holes(found: Storm, holes: list[Hole], every: float, what: str) -> None:
    plan, dice = found.plan, found.dice
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(every * dice.uniform(0.5, 1.5))
            free = [hole for hole in holes if not hole.is_open]
            if free:
                found.counts[what] += 1
                group.create_task(_black_hole(dice.choice(free), plan.hole * dice.uniform(0.1, 1), dice.random() < 0.5))


async def _black_hole(hole: Hole, seconds: float, swallows: bool) -> None:
    hole.open(swallows=swallows)
    try:
        await asyncio.sleep(seconds)
    finally:
        hole.end()


async def _kills(found: Storm, site: Site, processes: list[Process]) -> None:
    while True:
        await asyncio.sleep(found.plan.kill_every * found.dice.uniform(0.5, 1.5))
        victim = found.dice.choice(processes)
        found.killed.add(str(victim.pid))
        victim.kill()
        victim.start()
        found.counts["kills"] += 1


async def _supervises(processes: list[Process]) -> None:
    """One that does not reach the server when it starts ends: it is started again, as a supervisor would do."""
    while True:
        await asyncio.sleep(0.04)
        for process in processes:
            if not process.alive():
                process.start()


async def _refusals(found: Storm, server: RealServer, app: App) -> None:
    """For a moment the queue takes nothing, or the server nothing at all."""
    inspector = app.inspector()
    while True:
        await asyncio.sleep(found.plan.closed_every * found.dice.uniform(0.5, 1.5))
        found.counts["refusals"] += 1
        if found.dice.random() < 0.5:
            await inspector.close_queue("site")
            try:
                await asyncio.sleep(found.plan.closed)
            finally:
                await inspector.open_queue("site")
        else:
            with server.client() as redis:
                await asyncio.to_thread(redis.execute_command, "CONFIG", "SET", "maxmemory", "1")
                try:
                    await asyncio.sleep(found.plan.closed)
                finally:
                    await asyncio.to_thread(redis.execute_command, "CONFIG", "SET", "maxmemory", "0")


def read_runs(found: Storm, file: Path) -> None:
    for line in file.read_text().splitlines():
        key, process = line.split()
        found.runs.setdefault(key, []).append(process)


def check(found: Storm) -> list[str]:
    """What did not hold, of every request."""
    wrong = [problem for asker in found.askers for problem in asker.problems]
    for asker in found.askers:
        for asked in asker.asked.values():
            runs = found.runs.get(asked.key, [])
            # one that was cut off by a kill runs again
            certain = [process for process in runs[:-1] if process not in found.killed]
            told = f"{asked.key} {asked.action}{' without reply' * asked.no_reply}: {asked.state} {asked.code}"
            if asked.state == GIVEN_UP and runs:
                wrong.append(f"{told}, and it ran: {asked.words} {runs}")
            elif certain:
                wrong.append(f"{told}, and it ran {len(runs)} times: {asked.words} {runs}")
            elif not runs and (asked.state == ACCEPTED or (asked.state == ANSWERED and not asked.code)):
                wrong.append(f"{told}, and it did not run: {asked.words}")
    return wrong


def summary(found: Storm) -> str:
    every: list[Asked] = [asked for asker in found.askers for asked in asker.asked.values()]
    states = Counter(f"{one.state} {one.code}" if one.state == ANSWERED else one.state for one in every)
    again = [one for one in every if one.rejects and one.state != GIVEN_UP]
    return (
        f"{len(every)} requests: {dict(states)}; {sum(one.rejects for one in every)} rejects, {len(again)} requests "
        f"sent again after one and taken; {sum(asker.connections for asker in found.askers)} connections; "
        f"{dict(found.counts)}"
    )
