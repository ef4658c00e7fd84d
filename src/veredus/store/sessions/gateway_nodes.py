"""GatewayNodes: the gateway processes, known by their heartbeats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veredus.model.delivery import NODE_TIMEOUT
from veredus.store.connection.redis import Redis
from veredus.store.connection.scripts import load
from veredus.store.inspect.inspect_part import text
from veredus.wire import session_keys as keys
from veredus.wire.times import count_of

BEAT = load("node/beat", keys="nodes", args="node info")
LEAVE = load("node/leave", keys="nodes", args="node")
BURY = load("node/bury", keys="nodes", args="node timeout_ms")
LIST = load("node/list", keys="nodes", args="")


@dataclass(frozen=True, slots=True)
class GatewayNodeInfo:
    """One node, as of its last heartbeat."""

    age: float
    """Seconds since the last heartbeat, by the server's clock."""
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return self.age < NODE_TIMEOUT


class GatewayNodes:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._beating: frozenset[str] = frozenset()

    async def beat(self, node: str, info: Mapping[str, Any] | None = None) -> bool:
        """Send a heartbeat, every few seconds; `info` has the node's addresses and figures. Returns False if it was too
        late (the process was suspended, or the server unavailable): others may have detached its sessions."""
        data = json.dumps(dict(info or {}), separators=(",", ":"))
        age = await self._redis.run(BEAT, (keys.NODES,), (keys.check_name("node", node), data))
        first, self._beating = node not in self._beating, self._beating | {node}
        return first or 0 <= age < NODE_TIMEOUT * 1000

    async def leave(self, node: str) -> None:
        """Remove this node. The next sweep of any gateway detaches the sessions it still has."""
        await self._redis.run(LEAVE, (keys.NODES,), (node,))

    async def bury(self, node: str) -> bool:
        """Remove a dead node that has no sessions left. Returns False if it is alive again."""
        return bool(await self._redis.run(BURY, (keys.NODES,), (node, int(NODE_TIMEOUT * 1000))))

    async def nodes(self) -> dict[str, GatewayNodeInfo]:
        """All known nodes by name, including dead ones that no sweep has removed yet."""
        now, rows = await self._redis.run(LIST, (keys.NODES,), ())
        found = {}
        for i in range(0, len(rows), 2):
            at, _, info = rows[i + 1].partition(b" ")
            found[text(rows[i])] = GatewayNodeInfo((int(now) - count_of(at)) / 1000, _figures(info))
        return found


def _figures(info: bytes) -> dict[str, Any]:
    """The info of a node; empty if it is unreadable."""
    try:
        found = json.loads(info or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
