"""A real Sentinel set-up: one master, replicas, three sentinels that know each other from the start."""

from __future__ import annotations

import secrets

import redis

from tests.support.servers import RealServer, free_port
from tests.support.waiting import until_sync

NAME = "main"
DOWN_AFTER = 500


def is_replicating(replica: RealServer) -> bool:
    """Whether it has its master's data and gets what is new."""
    return replica.client().info("replication").get("master_link_status") == "up"


class Sentinels:
    """Which server is the master changes; `master()` asks."""

    def __init__(self, *options: str, replicas: int = 1, sentinels: int = 3, announce: int = 0) -> None:
        """`announce`: the port that the sentinels give for the master, for a proxy before it."""
        self.servers: list[RealServer] = []
        self.sentinels: list[RealServer] = []
        try:
            first = RealServer("valkey", "--repl-diskless-sync-delay", "0", *options, port=free_port())
            self.servers.append(first)
            for _ in range(replicas):
                more = ("--replicaof", "127.0.0.1", str(first.port), "--repl-diskless-sync-delay", "0", *options)
                self.servers.append(RealServer("valkey", *more, port=free_port()))
            for replica in self.servers[1:]:
                until_sync(lambda replica=replica: is_replicating(replica), what="the replication")
            self._start_sentinels(sentinels, announce or first.port)
        except BaseException:
            self.close()
            raise

    def _start_sentinels(self, count: int, master_port: int) -> None:
        members = [(free_port(), secrets.token_hex(20)) for _ in range(count)]
        for port, own_id in members:
            lines = [
                "bind 127.0.0.1",
                f"sentinel myid {own_id}",
                f"sentinel monitor {NAME} 127.0.0.1 {master_port} {count // 2 + 1}",
                f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER}",
                f"sentinel failover-timeout {NAME} 4000",
                *[f"sentinel known-replica {NAME} 127.0.0.1 {one.port}" for one in self.servers[1:]],
                *[f"sentinel known-sentinel {NAME} 127.0.0.1 {p} {i}" for p, i in members if i != own_id],
            ]
            self.sentinels.append(RealServer("valkey", port=port, sentinel="\n".join(lines) + "\n"))
        for sentinel in self.sentinels:
            # One that finds its machine busy does nothing for a while, by default for 30 s.
            sentinel.client().execute_command("SENTINEL", "DEBUG", "tilt-period", 500)
            until_sync(lambda sentinel=sentinel: self._is_set_up(sentinel), what="a watching sentinel")

    def _is_set_up(self, sentinel: RealServer) -> bool:
        client = sentinel.client()
        rows = client.execute_command("SENTINEL", "REPLICAS", NAME)
        ready = [row for row in rows if (row[b"flags"], row[b"master-link-status"]) == (b"slave", b"ok")]
        try:
            client.execute_command("SENTINEL", "CKQUORUM", NAME)
        except redis.ResponseError:
            return False
        return len(ready) == len(self.servers) - 1

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{one.port}' for one in self.sentinels)}/{NAME}/0"

    def master(self) -> RealServer:
        """What the majority's view will be: the first sentinel that is alive says."""
        found = next(one for one in self.sentinels if one.alive()).client()
        port = int(found.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])
        return next(one for one in self.servers if one.port == port)

    def wait_for_master_other_than(self, old: RealServer) -> RealServer:
        def is_there() -> bool:
            new = self.master()
            return new is not old and new.client().info("replication")["role"] == "master"

        until_sync(is_there, what="a new master")
        return self.master()

    def replicated(self) -> bool:
        """Wait until a replica has all that the master has."""
        client = self.master().client()
        pipe = client.pipeline(transaction=False)
        pipe.execute_command("SET", "probe", 1)
        pipe.execute_command("WAIT", 1, 5000)
        pipe.execute_command("DEL", "probe")
        return int(pipe.execute()[1]) >= 1

    def fail_over(self) -> None:
        """Gracefully: the old master lives on, as a replica. A sentinel refuses while it knows no replica that is up to
        date, for example just after the master was frozen."""

        def is_accepted() -> bool:
            try:
                return bool(self.sentinels[0].client().execute_command("SENTINEL", "FAILOVER", NAME))
            except redis.ResponseError as exc:
                if "NOGOODSLAVE" not in str(exc):
                    raise
                return False

        until_sync(is_accepted, what="a replica that a sentinel can promote")

    def close(self) -> None:
        for server in [*self.sentinels, *self.servers]:
            server.close()
