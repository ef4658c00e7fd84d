"""durability="replica" where masters change: behind Sentinel and on a cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.clusters import Nodes
from tests.support.sentinels import NAME, Sentinels
from tests.support.waiting import until
from veredus import App, NotConfirmed, NotReady
from veredus.store.connection.slot_map import slot_of
from veredus.wire import keys


async def test_behind_sentinel_every_replica_that_may_become_the_master_confirms(
    new_sentinels: Callable[..., Sentinels],
) -> None:
    """Of two replicas one has it: the other may be the next master, or be it already."""
    sentinels = new_sentinels(replicas=2)
    app = App(sentinels.url, durability="replica", patience=0.6)
    await app.enqueue("t", 0)
    frozen = sentinels.servers[2]
    frozen.freeze()
    try:
        with pytest.raises(NotConfirmed, match="1 of 2 replicas"):
            await app.enqueue("t", 1)
        await until(lambda: _counted(sentinels) == 1, what="the sentinels to give it up")
        await until(lambda: _is_sent(app), what="a write that the other one confirms")
    finally:
        frozen.thaw()
    await app.close()


def _counted(sentinels: Sentinels) -> int:
    rows = sentinels.sentinels[0].client().execute_command("SENTINEL", "REPLICAS", NAME)
    return sum(b"s_down" not in row[b"flags"] for row in rows)


async def _is_sent(app: App) -> bool:
    try:
        await app.enqueue("t", 2)
    except (NotConfirmed, NotReady):
        return False
    return True


async def test_on_a_cluster_each_queue_is_confirmed_by_its_own_node(new_nodes: Callable[..., Nodes]) -> None:
    nodes = new_nodes(replicas=True)
    queues = nodes.spread(6)
    app = App(nodes.url, durability="replica")
    handles = [await app.enqueue("t", 1, queue=queue) for queue in queues]
    handles += await app.enqueue_many(app.call("t", n, queue=queue) for n in range(20) for queue in queues)
    for handle in handles:
        node = min(slot_of(keys.pending(handle.queue)) * 3 // 16384, 2)
        replica = nodes.servers[node + 3].client()
        replica.execute_command("READONLY")
        assert replica.execute_command("EXISTS", keys.task(handle.queue, handle.id)) == 1
    await app.close()
