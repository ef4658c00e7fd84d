"""The commands and scripts that are sent again on a fresh connection if the first one broke before the reply: only
reads, and what has no effect the second time.

Changes are repeated by callers that can recognise a repetition: producers number their calls, workers their batches.
"""

from __future__ import annotations

COMMANDS = frozenset({
    "CLUSTER", "EXISTS", "GET", "HGET", "HGETALL", "HMGET", "INFO", "LLEN", "LRANGE", "MGET", "PING", "PTTL", "SCAN",
    "SCARD", "SISMEMBER", "SMEMBERS", "SSCAN", "TIME", "TYPE", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYSCORE",
    "ZREVRANGE", "ZSCAN", "ZSCORE",
})  # fmt: skip
SCRIPTS = frozenset({
    "durable/outcomes",
    "inspect/examine", "inspect/info", "inspect/leases", "inspect/list", "inspect/memory", "inspect/stats",
    "limit/list", "node/list", "order/list", "outbox/read", "session/show",
    "limit/acquire",  # a task has one token of a semaphore, however often it asks
    "result/await",  # may add a listener to a task, which has no effect the second time
})  # fmt: skip
