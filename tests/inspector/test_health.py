"""The server's own health: each check says ok, warn or bad, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.servers import VALKEY_ONLY
from veredus.inspector import health
from veredus.inspector.findings import BAD, OK, WARN
from veredus.inspector.inspector import Inspector

GOOD = {"redis_version": "7.2.4", "valkey_version": "9.1.0", "aof_enabled": "1", "maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({"redis_version": "6.2.0"}, OK),
        ({"redis_version": "6.0.16"}, BAD),
        ({"redis_version": "5.0.7"}, BAD),
        (GOOD, OK),
    ],
)
def test_the_version(facts: dict[str, str], level: str) -> None:
    assert health.version(facts).level == level


def test_valkey_is_called_by_its_name() -> None:
    assert "Valkey 9.1.0" in health.version(GOOD).text


@pytest.mark.parametrize(("policy", "level"), [("noeviction", OK), ("volatile-lru", WARN), ("allkeys-lru", BAD)])
def test_eviction(policy: str, level: str) -> None:
    finding = health.eviction({"maxmemory_policy": policy})
    assert finding.level == level
    assert ("noeviction" in finding.advice) == (level != OK)


@pytest.mark.parametrize(
    ("facts", "save", "level"),
    [
        ({"aof_enabled": "1"}, "", OK),
        ({"aof_enabled": "1", "aof_last_write_status": "err"}, "", BAD),
        ({"aof_enabled": "0"}, "3600 1", WARN),
        ({"aof_enabled": "0"}, "", BAD),
        ({"aof_enabled": "0"}, None, WARN),
        ({"aof_enabled": "0", "rdb_last_bgsave_status": "err"}, "3600 1", BAD),
    ],
)
def test_persistence(facts: dict[str, str], save: str | None, level: str) -> None:
    assert health.persistence(facts, save).level == level


@pytest.mark.parametrize(("used", "limit", "level"), [(9, 0, OK), (50, 100, OK), (95, 100, WARN), (99, 100, BAD)])
def test_memory(used: int, limit: int, level: str) -> None:
    assert health.memory({"used_memory": str(used), "maxmemory": str(limit)}).level == level


@pytest.mark.parametrize(("seconds", "level"), [(0.1, OK), (2, WARN), (-2, WARN), (31, BAD), (-31, BAD)])
def test_the_clock(seconds: float, level: str) -> None:
    assert health.skew(seconds).level == level


@pytest.mark.parametrize(("seconds", "level"), [(0.001, OK), (0.1, WARN), (0.5, BAD)])
def test_latency(seconds: float, level: str) -> None:
    assert health.latency(seconds).level == level


async def test_a_real_server(inspector: Inspector) -> None:
    found = {one.kind: one for one in await inspector.doctor.diagnose()}
    assert found.keys() == {"version", "eviction", "memory", "persistence", "clock", "latency"}
    assert (found["version"].level, found["eviction"].level, found["clock"].level) == (OK, OK, OK)
    assert found["persistence"].level == BAD  # the tests' servers keep nothing
    assert not any(one.repairable for one in found.values())
    assert found["clock"].as_dict()["level"] == "ok"
    assert not await inspector.doctor.repair(found["clock"])


@VALKEY_ONLY
async def test_a_real_server_with_bad_settings(inspector: Inspector, redis_client: Any) -> None:
    await redis_client.config_set("maxmemory-policy", "allkeys-lru")
    await redis_client.config_set("save", "3600 1")
    try:
        found = {one.kind: one.level for one in await inspector.doctor.diagnose()}
    finally:
        await redis_client.config_set("maxmemory-policy", "noeviction")
        await redis_client.config_set("save", "")
    assert (found["eviction"], found["persistence"]) == (BAD, WARN)


@VALKEY_ONLY
async def test_a_server_that_does_not_tell_its_settings(inspector: Inspector, redis_client: Any) -> None:
    await redis_client.execute_command("ACL", "SETUSER", "default", "-config")
    try:
        found = {one.kind: one.level for one in await inspector.doctor.diagnose()}
    finally:
        await redis_client.execute_command("ACL", "SETUSER", "default", "+config")
    assert found["persistence"] == WARN
