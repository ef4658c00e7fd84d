"""A replica that takes over without the last messages: clients that saw them are told, others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.outbox.support import Log, text_of
from tests.outbox.test_hints import listening
from tests.support.sentinels import Sentinels, is_replicating
from tests.support.servers import NoBinary, RealServer, free_port
from tests.support.waiting import until, until_sync
from veredus.errors import StoreError
from veredus.model.delivery import Cursor
from veredus.store.store import Store, connect


@pytest.mark.parametrize("pushed_since", [0, 3])
async def test_a_promoted_replica_without_the_tail(new_server: Callable[..., RealServer], pushed_since: int) -> None:
    master = new_server("--repl-diskless-sync-delay", "0", port=free_port())
    replica = new_server("--replicaof", "127.0.0.1", str(master.port))
    until_sync(lambda: is_replicating(replica), what="the replication")
    before = Log(Store(connect(master.url)), None)
    sid = (await before.create()).sid
    other = (await before.create("eve")).sid
    await before.push(sid, "a", "b", "c")
    await before.push(other, "x")
    unhurt = await before.cursor(other, 1)
    assert master.client().wait(1, 5000) == 1
    replica.client().execute_command("REPLICAOF", "NO", "ONE")
    before.later(5)
    await before.push(sid, "lost d", "lost e")
    seen = await before.cursor(sid, 5)
    partly = await before.cursor(sid, 3)
    await before.store.close()
    master.kill()

    after = Log(Store(connect(replica.url)), None)
    after.at(before.now + 10)
    if pushed_since:
        await after.push(sid, *[f"new {n}" for n in range(pushed_since)])
    attached = await after.attach(sid, seen)
    reason = "ahead" if pushed_since < 2 else "fork"
    assert (attached.result, attached.reason) == ("reset", reason)
    assert attached.base == Cursor(attached.epoch, 0, 0)
    expected = ["a", "b", "c", *[f"new {n}" for n in range(pushed_since)]]
    assert [text_of(entry.tail) for entry in attached.entries] == expected
    again = await after.attach(sid, partly._replace(epoch=attached.epoch))  # what both have in common still fits
    assert again.result == "resumed"
    assert (await after.attach(other, unhurt, user="eve")).result == "resumed"
    await after.store.close()


@pytest.mark.parametrize("how", ["kill", "ask"])
async def test_hints_arrive_again_after_a_failover(how: str) -> None:
    """Nothing is worse than a node that looks well and hears nothing."""
    try:
        sentinels = Sentinels()
    except NoBinary as exc:
        pytest.skip(str(exc))
    try:
        log = Log(Store(connect(sentinels.url)), None)
        async with listening(log.store, probe_every=0.5) as (hints, heard):
            sid = (await log.create()).sid
            old = sentinels.master()
            until_sync(sentinels.replicated, what="the replication")
            if how == "kill":
                old.kill()
            else:
                sentinels.fail_over()
            await asyncio.to_thread(sentinels.wait_for_master_other_than, old)
            await until(lambda: heard.doubts >= 1 and hints.healthy, what="it listens to the new master")
            await until(lambda: _pushed(log, sid), what="the new master takes pushes")
            await until(lambda: any(row.sid == sid for row in heard.rows))
        await log.store.close()
    finally:
        sentinels.close()


async def _pushed(log: Log, sid: str) -> bool:
    try:
        return (await log.push(sid, "x"))[0].ok
    except StoreError:
        return False
