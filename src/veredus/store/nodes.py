"""Gateway nodes: who is there, where, and how busy; known by heartbeats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veredus.model.delivery import NODE_TIMEOUT
from veredus.store.places import text
from veredus.store.redis import Redis
from veredus.store.scripts import load
from veredus.wire import session_keys as keys
from veredus.wire.times import count_of

BEAT = load("node/beat", keys="nodes", args="node info [now_ms]")
LEAVE = load("node/leave", keys="nodes", args="node [now_ms]")
BURY = load("node/bury", keys="nodes", args="node timeout_ms [now_ms]")
NODES = load("node/list", keys="nodes", args="[now_ms]")


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node as its last heartbeat told it."""

    age: float
    """Seconds since the last heartbeat, by the server's clock."""
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return self.age < NODE_TIMEOUT


class Nodes:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._beating: frozenset[str] = frozenset()

    async def beat(self, node: str, info: Mapping[str, Any] | None = None) -> bool:
        """Every few seconds: this node lives; `info` is what others shall know (address, figures). False if it beat too
        late (it stood still, or the server was away): it may have been taken for dead, and its sessions been
        detached."""
        data = json.dumps(dict(info or {}), separators=(",", ":"))
        age = await self._redis.run(BEAT, (keys.NODES,), (keys.check_name("node", node), data))
        first, self._beating = node not in self._beating, self._beating | {node}
        return first or 0 <= age < NODE_TIMEOUT * 1000

    async def leave(self, node: str) -> None:
        """This node stops: whatever sessions it still has are orphans at once; the next sweep anywhere detaches
        them."""
        await self._redis.run(LEAVE, (keys.NODES,), (node,))

    async def bury(self, node: str) -> bool:
        """Forget a node that has no sessions left; False if it has come back to life."""
        return bool(await self._redis.run(BURY, (keys.NODES,), (node, int(NODE_TIMEOUT * 1000))))

    async def nodes(self) -> dict[str, NodeInfo]:
        """All known nodes by name, the dead ones too until a sweep has buried them."""
        now, rows = await self._redis.run(NODES, (keys.NODES,), ())
        found = {}
        for i in range(0, len(rows), 2):
            at, _, info = rows[i + 1].partition(b" ")
            found[text(rows[i])] = NodeInfo((int(now) - count_of(at)) / 1000, _figures(info))
        return found


def _figures(info: bytes) -> dict[str, Any]:
    """What a node tells of itself; nothing if that cannot be read."""
    try:
        found = json.loads(info or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
