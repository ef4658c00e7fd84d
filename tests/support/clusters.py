"""A real cluster of three masters, with replicas if asked for: slots that move, masters that die."""

from __future__ import annotations

import contextlib
from typing import Any

import redis

from tests.support.sentinels import is_replicating
from tests.support.servers import RealServer, free_port
from tests.support.waiting import until_sync
from veredus.store.connection.slot_map import SLOTS, slot_of
from veredus.wire import keys

THIRD = SLOTS // 3
RANGES = [(0, THIRD - 1), (THIRD, 2 * THIRD - 1), (2 * THIRD, SLOTS - 1)]


class Nodes:
    """Node n of the first three has the n-th third of the slots at first; replica n of it, if any, is node n + 3."""

    def __init__(self, *options: str, replicas: bool = False, node_timeout: int = 2000, ports: Any = None) -> None:
        """`ports` gives the options by which a node announces another port, for a proxy before it."""
        self.servers: list[RealServer] = []
        count = 6 if replicas else 3
        try:
            for _ in range(count):
                port = free_port()
                announced = ports(port) if ports else ()
                self.servers.append(
                    RealServer(
                        "valkey",
                        *("--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout)),
                        *("--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"),
                        *announced,
                        *options,
                        port=port,
                    )
                )
            self._assemble()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.servers[0].port}"

    @property
    def masters(self) -> list[RealServer]:
        return self.servers[:3]

    def _assemble(self) -> None:
        for epoch, server in enumerate(self.servers, start=1):
            server.client().execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for server, slots in zip(self.masters, RANGES, strict=True):
            server.client().execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
        for server in self.servers:  # everybody meets everybody: no waiting for gossip
            for other in self.servers:
                if other is not server:
                    server.client().execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
        self.ids = [server.client().execute_command("CLUSTER", "MYID").decode() for server in self.servers]
        for server in self.servers:
            until_sync(lambda server=server: self._is_whole(server), what="a whole cluster")
        for replica, master in zip(self.servers[3:], self.ids, strict=False):
            until_sync(lambda replica=replica, master=master: _follows(replica.client(), master), what="a master")
        for replica in self.servers[3:]:
            until_sync(lambda replica=replica: is_replicating(replica), what="the replication")

    def _is_whole(self, server: RealServer) -> bool:
        info = server.client().execute_command("CLUSTER", "INFO")
        text = info.decode() if isinstance(info, bytes) else "\n".join(f"{k}:{v}" for k, v in info.items())
        state = dict(line.split(":", 1) for line in text.replace("\r", "").splitlines() if ":" in line)
        return (state["cluster_state"], state["cluster_slots_ok"], state["cluster_known_nodes"]) == (
            "ok",
            str(SLOTS),
            str(len(self.servers)),
        )

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def flush(self) -> None:
        for server in self.masters:
            server.flush()

    # Where things are.

    def queues(self, node: int, count: int) -> list[str]:
        """Names of queues that live on this node at first."""
        first, last = RANGES[node]
        names = (f"q{node}-{i}" for i in range(10_000))
        return [name for name in names if first <= slot_of(keys.pending(name)) <= last][:count]

    def spread(self, count: int, start: int = 0) -> list[str]:
        """So many queues, the n-th on node n % 3."""
        on_each = [self.queues(node, start + count // 3 + 1)[start:] for node in range(3)]
        return [on_each[n % 3][n // 3] for n in range(count)]

    def key_is_on(self, node: int, key: str) -> bool:
        found = self.servers[node].client().execute_command("CLUSTER", "GETKEYSINSLOT", slot_of(key), 1000)
        return key.encode() in found

    def client(self) -> redis.RedisCluster:
        """An independent client that finds its way."""
        return redis.RedisCluster(host="127.0.0.1", port=self.servers[0].port)

    # Slots that move.

    def move(self, slot: int, target: int) -> None:
        """Give an empty slot to another node, at once."""
        for server in [self.servers[target], *self.masters]:
            server.client().execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])

    def begin_move(self, slot: int, source: int, target: int) -> None:
        self.servers[target].client().execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        self.servers[source].client().execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])

    def move_keys(self, slot: int, source: int, target: int, count: int) -> int:
        """Move some keys of a slot, as tools did before slots moved in one step; returns how many."""
        client = self.servers[source].client()
        found = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, count)
        if found:
            port = self.servers[target].port
            client.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *found)
        return len(found)

    def move_at_once(self, slot: int, source: int, target: int) -> None:
        """Valkey 9: the slot with all its keys, while it is being written to."""
        client = self.servers[source].client()
        client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.ids[target])
        owner = self.servers[target]
        until_sync(lambda: self._owner(owner, slot) == owner.port, what="the slot's new owner")

    def _owner(self, server: RealServer, slot: int) -> int:
        for first, last, master, *_ in server.client().execute_command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return int(master[1])
        return 0

    # Masters that go.

    def replicate(self, node: int) -> None:
        """Wait until the replica has all that its master has."""
        master, replica = self.servers[node].client(), self.servers[node + 3].client()
        until_sync(lambda: _offset(replica) == _offset(master), what="the same offset")


def _offset(client: redis.Redis) -> int:
    info = client.info("replication")
    return int(info["master_repl_offset"] if info["role"] == "master" else info["slave_repl_offset"])


def _follows(client: redis.Redis, master: str) -> bool:
    with contextlib.suppress(redis.ResponseError):  # it has not heard of that node yet
        client.execute_command("CLUSTER", "REPLICATE", master)
        return True
    return False
