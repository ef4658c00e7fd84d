"""What is sent a second time, on a fresh connection, when its connection broke before the reply came: only what reads.

Changes are repeated by those who can tell a second one: producers number their calls, workers their batches.
"""

from __future__ import annotations

COMMANDS = frozenset({
    "CLUSTER", "EXISTS", "GET", "HGET", "HGETALL", "HMGET", "INFO", "LLEN", "LRANGE", "MGET", "PING", "PTTL", "SCAN",
    "SCARD", "SISMEMBER", "SMEMBERS", "SSCAN", "TIME", "TYPE", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYSCORE",
    "ZREVRANGE", "ZSCAN", "ZSCORE",
})  # fmt: skip
SCRIPTS = frozenset({
    "inspect/examine", "inspect/info", "inspect/leases", "inspect/list", "inspect/memory", "inspect/stats",
    "limit/list", "node/list", "order/list", "outbox/read", "session/show",
    "result/await",  # may add a listener to a task, which a second time changes nothing
})  # fmt: skip
