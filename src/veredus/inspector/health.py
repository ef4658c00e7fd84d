"""Checks whether the Redis server is fit to store tasks."""

from __future__ import annotations

from dataclasses import replace

from veredus.clock import SYSTEM, Clock
from veredus.errors import CommandRefused, StoreError
from veredus.inspector.findings import BAD, OK, WARN, Finding
from veredus.store.connection.slot_map import SLOTS
from veredus.store.inspect.checkups import Checkups

_SLOW, _VERY_SLOW = 0.05, 0.25
_SKEWED, _BADLY_SKEWED = 1.0, 30.0


async def examine_servers(checkups: Checkups, clock: Clock = SYSTEM) -> list[Finding]:
    """Run every check on the server, or on every master of a cluster."""
    findings: list[Finding] = []
    kind = checkups.redis.address.kind
    if kind == "cluster":
        findings.append(cluster(await checkups.cluster_facts(), await checkups.masters()))
    for route in await checkups.routes():
        facts = await checkups.server_facts(route)
        found = [version(facts), eviction(facts), memory(facts)]
        found.append(persistence(facts, await _setting(checkups, "save", route)))
        found.append(skew(await _skew(checkups, clock, route)))
        found.append(latency(await _latency(checkups, clock, route)))
        if kind == "sentinel":
            found.append(replication(facts))
        if kind == "cluster":
            found = [replace(one, text=f"node at port {facts.get('tcp_port', '?')}: {one.text}") for one in found]
        findings += found
    return findings


def cluster(facts: dict[str, str], replicas: dict[str, int]) -> Finding:
    """`replicas` has their number for each master."""
    assigned, lost = int(facts.get("cluster_slots_assigned", 0)), int(facts.get("cluster_slots_fail", 0))
    if facts.get("cluster_state") != "ok" or lost or assigned < SLOTS:
        text = f"the cluster is {facts.get('cluster_state')}: {SLOTS - assigned + lost:,} slots have no live master"
        return _finding("cluster", BAD, text, "see CLUSTER NODES: queues in these slots do not work")
    alone = sum(not count for count in replicas.values())
    text = f"{len(replicas)} masters have all {SLOTS:,} slots"
    if alone:
        return _finding("cluster", WARN, f"{text}; {alone} have no replica", "give each master a replica")
    return _finding("cluster", OK, f"{text}, each with a replica")


def replication(facts: dict[str, str]) -> Finding:
    count = int(facts.get("connected_slaves", 0))
    rows = [facts.get(f"slave{n}", "") for n in range(count)]
    online = sum("state=online" in row for row in rows)
    if not online:
        return _finding(
            "replication", WARN, "no replica follows this master", "add a replica: without one, no failover is possible"
        )
    replicas = "1 replica follows" if online == 1 else f"{online} replicas follow"
    return _finding("replication", OK, f"{replicas} this master")


def version(facts: dict[str, str]) -> Finding:
    number = facts.get("redis_version", "0")
    name = f"Valkey {facts['valkey_version']}" if "valkey_version" in facts else f"Redis {number}"
    parts = tuple(int(part) for part in number.split(".")[:2] if part.isdigit())
    if parts < (6, 2):
        return _finding("version", BAD, f"the server is {name}", "use Redis 6.2 or newer, or Valkey")
    return _finding("version", OK, f"the server is {name}")


def eviction(facts: dict[str, str]) -> Finding:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return _finding("eviction", OK, "nothing is evicted when memory is full (noeviction)")
    if policy.startswith("volatile"):
        text = f"maxmemory-policy is {policy}: unique locks and worker records may vanish when memory is full"
        return _finding("eviction", WARN, text, "CONFIG SET maxmemory-policy noeviction")
    text = f"maxmemory-policy is {policy}: tasks may vanish when memory is full"
    return _finding("eviction", BAD, text, "CONFIG SET maxmemory-policy noeviction")


def persistence(facts: dict[str, str], save: str | None) -> Finding:
    if facts.get("aof_enabled") == "1":
        if facts.get("aof_last_write_status", "ok") != "ok":
            return _finding("persistence", BAD, "the append-only file cannot be written", "check the server's disk")
        return _finding("persistence", OK, "tasks survive a restart (append-only file)")
    if facts.get("rdb_last_bgsave_status", "ok") != "ok":
        return _finding("persistence", BAD, "the last snapshot could not be written", "check the server's disk")
    if save is None:
        return _finding("persistence", WARN, "no append-only file; cannot read whether snapshots are enabled")
    if save:
        text = f"only snapshots (save {save}): a crash loses everything after the last one"
        return _finding("persistence", WARN, text, "CONFIG SET appendonly yes")
    text = "no append-only file and no snapshots: a restart loses every task"
    return _finding("persistence", BAD, text, "CONFIG SET appendonly yes")


def memory(facts: dict[str, str]) -> Finding:
    used, limit = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
    if not limit:
        return _finding("memory", OK, f"{used / 2**20:,.0f} MB used, no limit set")
    text = f"{used / 2**20:,.0f} of {limit / 2**20:,.0f} MB used"
    if used > 0.98 * limit:
        return _finding("memory", BAD, text, "raise maxmemory: a full server refuses new tasks")
    if used > 0.9 * limit:
        return _finding("memory", WARN, text, "raise maxmemory or delete old tasks")
    return _finding("memory", OK, text)


def skew(seconds: float) -> Finding:
    text = f"the server's clock is {abs(seconds):.2f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
    if abs(seconds) > _BADLY_SKEWED:
        return _finding("clock", BAD, text, "synchronize the clocks: Go workers would take over each other's tasks")
    if abs(seconds) > _SKEWED:
        return _finding("clock", WARN, text, "synchronize the clocks")
    return _finding("clock", OK, text)


def latency(seconds: float) -> Finding:
    text = f"the server answers in {seconds * 1000:.1f} ms"
    if seconds > _VERY_SLOW:
        return _finding("latency", BAD, text, "check for slow commands (SLOWLOG GET) and network load")
    if seconds > _SLOW:
        return _finding("latency", WARN, text, "run the workers closer to the server")
    return _finding("latency", OK, text)


async def _skew(checkups: Checkups, clock: Clock, route: str) -> float:
    before = clock.time()
    server = await checkups.server_ms(route) / 1000
    return server - (before + clock.time()) / 2


async def _latency(checkups: Checkups, clock: Clock, route: str) -> float:
    """The median of five PINGs."""
    taken = []
    for _ in range(5):
        before = clock.monotonic()
        await checkups.redis.command("PING", key=route)
        taken.append(clock.monotonic() - before)
    return sorted(taken)[2]


async def _setting(checkups: Checkups, name: str, route: str) -> str | None:
    """None if the server forbids CONFIG, as some hosted servers do."""
    try:
        return await checkups.setting(name, route)
    except CommandRefused:
        return None
    except StoreError as exc:
        if "NOPERM" in str(exc):
            return None
        raise


def _finding(kind: str, level: str, text: str, advice: str = "") -> Finding:
    return Finding(kind=kind, level=level, text=text, advice=advice)
