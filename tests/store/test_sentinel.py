"""A real failover: the master is killed, the sentinel promotes the replica, and the store finds it by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.sentinels import Sentinels
from tests.support.servers import NoBinary, RealServer, free_port
from veredus.errors import ConnectionLost, NotReady
from veredus.store.store import Store, connect
from veredus.store.tasks.intake import CREATED, NewTask
from veredus.store.tasks.work import Work


@pytest.fixture
def set_up() -> Iterator[Sentinels]:
    try:
        sentinels = Sentinels(sentinels=1)
    except NoBinary as exc:
        pytest.skip(str(exc))
    yield sentinels
    sentinels.close()


async def test_the_store_finds_the_new_master(set_up: Sentinels) -> None:
    master, replica = set_up.servers
    dead = free_port()
    url = set_up.url.replace("redis+sentinel://", f"redis+sentinel://127.0.0.1:{dead},")
    store = Store(connect(url, timeout=2.0), patience=60.0)
    assert await store.intake.add("q", NewTask("before", b"1")) == CREATED
    assert master.client().llen("asynq:{q}:pending") == 1
    assert set_up.replicated()

    master.kill()
    with pytest.raises((ConnectionLost, NotReady)):
        await store.ping()
    assert await store.intake.add("q", NewTask("after", b"2")) == CREATED
    assert replica.client().info("replication")["role"] == "master"
    batch = await Work(store.redis, "w", lease_ms=12_000).dequeue("q", 5)
    assert batch.rows == [("before", b"1"), ("after", b"2")]
    await store.close()


async def test_no_sentinel_knows_the_name(new_server: Callable[..., RealServer]) -> None:
    sentinel = new_server(port=free_port(), sentinel="bind 127.0.0.1\nsentinel monitor main 127.0.0.1 1 1\n")
    store = Store(connect(f"redis+sentinel://127.0.0.1:{sentinel.port}/other"))
    with pytest.raises(ConnectionLost, match="knows no master 'other'"):
        await store.ping()
    await store.close()


async def test_a_replica_that_a_sentinel_names_as_master_is_not_written_to(
    new_server: Callable[..., RealServer],
) -> None:
    replica = new_server("--replicaof", "127.0.0.1", "1", port=free_port())
    sentinel = new_server(
        port=free_port(), sentinel=f"bind 127.0.0.1\nsentinel monitor main 127.0.0.1 {replica.port} 1\n"
    )
    store = Store(connect(f"redis+sentinel://127.0.0.1:{sentinel.port}/main"))
    with pytest.raises(NotReady, match="is not the master"):
        await store.ping()
    await store.close()
