"""Whether the server itself is fit to keep tasks."""

from __future__ import annotations

from veredus.clock import SYSTEM, Clock
from veredus.errors import CommandRefused, StoreError
from veredus.inspector.findings import BAD, OK, WARN, Finding
from veredus.store.checkups import Checkups

_SLOW, _VERY_SLOW = 0.05, 0.25
_SKEWED, _BADLY_SKEWED = 1.0, 30.0


async def examine_servers(checkups: Checkups, clock: Clock = SYSTEM) -> list[Finding]:
    """Every check for every server: one, or all masters of a cluster."""
    findings: list[Finding] = []
    for route in await checkups.routes():
        facts = await checkups.server_facts(route)
        findings += [version(facts), eviction(facts), memory(facts)]
        findings.append(persistence(facts, await _setting(checkups, "save", route)))
        findings.append(skew(await _skew(checkups, clock)))
        findings.append(latency(await _latency(checkups, clock, route)))
    return findings


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
            return _finding("persistence", BAD, "the append-only file cannot be written", "look at the server's disk")
        return _finding("persistence", OK, "tasks survive a restart (append-only file)")
    if facts.get("rdb_last_bgsave_status", "ok") != "ok":
        return _finding("persistence", BAD, "the last snapshot could not be written", "look at the server's disk")
    if save is None:
        return _finding("persistence", WARN, "no append-only file, and it does not tell whether it writes snapshots")
    if save:
        text = f"only snapshots (save {save}): a crash loses what came after the last one"
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
        return _finding("memory", WARN, text, "raise maxmemory, or delete what is not needed")
    return _finding("memory", OK, text)


def skew(seconds: float) -> Finding:
    text = f"the server's clock is {abs(seconds):.2f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
    if abs(seconds) > _BADLY_SKEWED:
        return _finding("clock", BAD, text, "set the clocks: Go workers would take each other's tasks")
    if abs(seconds) > _SKEWED:
        return _finding("clock", WARN, text, "set the clocks")
    return _finding("clock", OK, text)


def latency(seconds: float) -> Finding:
    text = f"it answers in {seconds * 1000:.1f} ms"
    if seconds > _VERY_SLOW:
        return _finding("latency", BAD, text, "look for slow commands (SLOWLOG GET) and a loaded network")
    if seconds > _SLOW:
        return _finding("latency", WARN, text, "bring the workers nearer to the server")
    return _finding("latency", OK, text)


async def _skew(checkups: Checkups, clock: Clock) -> float:
    before = clock.time()
    server = await checkups.server_ms() / 1000
    return server - (before + clock.time()) / 2


async def _latency(checkups: Checkups, clock: Clock, route: str) -> float:
    """The middle one of five."""
    taken = []
    for _ in range(5):
        before = clock.monotonic()
        await checkups.redis.command("PING", key=route)
        taken.append(clock.monotonic() - before)
    return sorted(taken)[2]


async def _setting(checkups: Checkups, name: str, route: str) -> str | None:
    """None where asking is forbidden, as with some hosted servers."""
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
