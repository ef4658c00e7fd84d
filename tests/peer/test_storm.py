"""Everything at once, at random: pushes, copies, holes, cuts, slow reading, requests; the journal stays whole."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.peer.conftest import QUICK
from tests.peer.scripted import ScriptedGateway
from tests.support.waiting import PATIENCE, until
from veredus.peer import Message, connect

STEPS = 200


@pytest.mark.parametrize("run", [1, 2])
async def test_the_journal_is_contiguous_and_every_request_runs_and_is_answered_once(
    gateway: ScriptedGateway, run: int
) -> None:
    seed = int(os.environ.get("VEREDUS_TEST_SEED") or random.randrange(10**6))
    print(f"replay with VEREDUS_TEST_SEED={seed}")
    chance = random.Random(seed)
    journal: list[int] = []

    async with connect(gateway.url, **QUICK) as peer:

        async def read() -> None:
            async for item in peer:
                assert isinstance(item, Message)
                journal.append(item.seq)
                if chance.random() < 0.1:
                    await asyncio.sleep(0.005)

        reading = asyncio.create_task(read())
        session = gateway.session
        answers = []
        for step in range(STEPS):
            wire = session.wire
            match chance.randrange(8):
                case 0 | 1 | 2:
                    for _ in range(chance.randrange(1, 6)):
                        gateway.push(step)
                case 3 if wire in gateway.wires and session.log:
                    first = chance.randrange(max(1, session.top - 20), session.top + 1)
                    wire.send(*[session.log[seq] for seq in range(first, session.top + 1)])
                case 4:
                    session.mute = chance.random() < 0.5
                    gateway.push("perhaps unseen")
                    session.mute = False
                case 5:
                    peer.cut()
                case 6:
                    gateway.cut_all()
                case _:
                    answers.append(peer.submit("echo", step))
            await asyncio.sleep(chance.choice((0, 0, 0.002, 0.01)))
        expected = [await asyncio.wait_for(answer, PATIENCE) for answer in answers]
        assert expected == sorted(expected)
        assert len(expected) == len(answers) == len(gateway.ran) == len(set(gateway.ran))
        gateway.push("the last one")
        await until(lambda: journal[-1:] == [session.top])
        assert journal == list(range(1, session.top + 1))
        assert peer.stats()["resets"] == 0
        reading.cancel()
