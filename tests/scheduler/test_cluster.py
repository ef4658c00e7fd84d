"""Schedules on a cluster: the queues, the leader and the records are on different nodes."""

from __future__ import annotations

from tests.support.clusters import Nodes
from tests.support.waiting import until
from veredus import App
from veredus.wire import keys


async def test_schedules_fire_on_every_node(nodes: Nodes) -> None:
    app = App(nodes.url)
    queues = [nodes.queues(node, 1)[0] for node in range(3)]
    entries = [app.schedule("@every 1s", app.call("t", queue=queue)) for queue in queues]
    clients = [server.client() for server in nodes.servers]

    def ticks(node: int) -> list[int]:
        items = reversed(clients[node].lrange(keys.pending(queues[node]), 0, -1))
        ids = [item.decode() if isinstance(item, bytes) else item for item in items]
        return [int(task_id.rpartition(":")[2]) for task_id in ids]

    def all_keys() -> set[bytes | str]:
        return {key for client in clients for key in client.keys("*")}

    async with app.scheduler():
        await until(lambda: all(len(ticks(node)) >= 2 for node in range(3)))
        assert keys.SCHEDULERS.encode() in all_keys()
    for node in range(3):
        found = ticks(node)
        assert found == list(range(found[0], found[0] + len(found)))
        assert keys.scheduler_history(entries[node].id).encode() in all_keys()
    assert not [key for key in all_keys() if "schedulers" in str(key) or "leader" in str(key)]
