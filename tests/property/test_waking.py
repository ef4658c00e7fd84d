"""No wake-up is lost, whatever the order of events.

The invariant: while tasks are pending, no worker is idle, or a worker that was woken has yet to look. Producers,
workers that take some or all, workers that cannot take anything and workers that die are mixed at random on a real
server. At the end, as long as one worker lives, every task was taken.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.queue import Queue
from tests.support.servers import VALKEY_ONLY
from tests.support.sizes import FULL
from tests.support.waiting import until
from veredus.store.connection.wakeups import Subscription
from veredus.store.store import Store
from veredus.store.tasks.work import WAKE

pytestmark = VALKEY_ONLY


class Member:
    """A worker of the model: awake while it may have something to do."""

    def __init__(self, store: Store, number: int) -> None:
        self.name = f"w{number}"
        self.channel = f"asynq:wake:{self.name}:0"
        self.is_awake = True
        self.room = 2
        self.batch = 0
        self.subscription = Subscription(store.redis, [self.channel], lambda *_: self.wake())

    def wake(self) -> None:
        self.is_awake = True


class Fleet:
    def __init__(self, store: Store, client: Any, seed: int) -> None:
        self.random = random.Random(seed)
        self.store, self.client = store, client
        self.queue = Queue(store.redis, client)
        self.members: list[Member] = []
        self.started = self.sent = 0
        self.taken: list[str] = []

    async def start(self) -> None:
        member = Member(self.store, self.started)
        self.started += 1
        await member.subscription.open(lambda: None)
        self.members.append(member)

    async def send(self) -> None:
        number = self.random.choice([1, 1, 1, 5])
        await self.queue.enqueue(*[str(self.sent + place) for place in range(number)], now=None)
        self.sent += number

    async def look(self) -> None:
        awake = [member for member in self.members if member.is_awake]
        if awake:
            await self.look_as(self.random.choice(awake))

    async def look_as(self, member: Member) -> None:
        """What the processor does: dequeue while there is room, and pass on what it was told of if there is none."""
        if member.room == 0:
            await self.store.redis.run(WAKE, self.queue.keys("pending"), [self.queue.key("")])
            member.is_awake = False
            return
        member.is_awake = False
        member.batch += 1
        ids, reply = await self.queue.dequeue(
            member.room, worker=member.name, number=member.batch, channel=member.channel, now=None
        )
        self.taken += ids
        member.room -= len(ids)
        member.is_awake = member.is_awake or (not reply[-1] and member.room > 0)

    async def end(self) -> None:
        """A task of some worker ends: it has room again, and looks."""
        member = self.random.choice(self.members)
        member.room, member.is_awake = 2, True

    async def kill(self) -> None:
        """kill -9. What it was told of and did not look at is found by another one, which looks by itself."""
        if len(self.members) > 1:
            member = self.random.choice(self.members)
            self.members.remove(member)
            member.subscription.close()
            await until(lambda: self.is_gone(member))
            if member.is_awake:
                self.random.choice(self.members).wake()

    async def is_gone(self, member: Member) -> bool:
        ((_, listening),) = await self.client.pubsub_numsub(member.channel)
        return bool(listening == 0)

    async def settle(self) -> None:
        """Until every message has arrived."""
        for member in self.members:
            await member.subscription.ping()

    async def check(self) -> None:
        await self.settle()
        if await self.queue.pending() and not any(member.is_awake for member in self.members):
            idle = await self.queue.scores("idle")
            lost = [member.name for member in self.members if member.channel in idle]
            assert not lost, "tasks are pending, and nobody will wake these workers"


@pytest.mark.parametrize("seed", range(200 if FULL else 12))
async def test_no_wake_up_is_lost(store: Store, redis_client: Any, seed: int) -> None:
    fleet = Fleet(store, redis_client, seed)
    for _ in range(4):
        await fleet.start()
    for _ in range(80):
        step = fleet.random.choice(
            [fleet.send, fleet.send, fleet.look, fleet.look, fleet.look, fleet.end, fleet.kill, fleet.start]
            if len(fleet.members) < 6
            else [fleet.send, fleet.look, fleet.look, fleet.look, fleet.end, fleet.kill]
        )
        await step()
        await fleet.check()
    is_over = False
    while not is_over:
        for member in fleet.members:
            if member.room == 0:
                member.room, member.is_awake = 2, True
        await fleet.look()
        await fleet.settle()
        is_over = not any(member.is_awake or member.room == 0 for member in fleet.members)
    assert await fleet.queue.pending() == []
    assert len(fleet.taken) == len(set(fleet.taken)) == fleet.sent
    for member in fleet.members:
        member.subscription.close()
