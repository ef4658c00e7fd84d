"""Synchronous calls in the thread of their caller: as safe as on an event loop."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.forks import in_a_fork
from tests.support.proxy import proxy_before
from tests.support.servers import VALKEY_ONLY, RealServer
from tests.support.waiting import until_sync
from veredus import App, TaskIdConflict
from veredus.client import blocking_clients
from veredus.errors import ConnectionLost
from veredus.store.connection import own_loop
from veredus.wire import keys

pytestmark = VALKEY_ONLY
LONG = 20.0
"""Seconds that a server has for an answer: nothing here may wait for that."""


@pytest.fixture
def app(server: RealServer) -> Iterator[App]:
    app = App(server.url)
    yield app
    app.close_sync()


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "veredus-blocking"]


def _pending(server: RealServer) -> int:
    with server.client() as client:
        return int(client.llen(keys.pending("default")))


def test_calls_one_after_the_other_use_one_connection_and_no_thread(app: App, server: RealServer) -> None:
    ids = [app.enqueue_sync("t", {"n": n}).id for n in range(20)]
    assert len(set(ids)) == 20
    assert not app.enqueue_sync("t", unique_for=60).state.startswith("scheduled")
    assert app.enqueue_sync("t", unique_for=60).created is False
    assert app.enqueue_sync("t", delay=60).state == "scheduled"
    with pytest.raises(TaskIdConflict):
        app.enqueue_sync("t", task_id=ids[0])
    assert app.enqueue_sync("t", task_id="again").id == "again"
    assert len(server.connections()) == 1
    assert not _threads()


def test_more_threads_than_connections(app: App, server: RealServer) -> None:
    together = threading.Barrier(3 * blocking_clients.MOST)

    def send(n: int) -> list[str]:
        together.wait(30)
        return [app.enqueue_sync("t", {"n": n}).id for _ in range(10)]

    with ThreadPoolExecutor(3 * blocking_clients.MOST) as pool:
        ids = [one for part in pool.map(send, range(3 * blocking_clients.MOST)) for one in part]
    assert len(set(ids)) == _pending(server) == 30 * blocking_clients.MOST
    assert len(server.connections()) <= blocking_clients.MOST + 1, "those that find none free share one more"


def test_a_connection_that_the_server_has_closed_is_noticed_before_the_next_call(
    server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_loop, "JUST_NOW", 0.0)
    app = App(server.url, patience=0)  # nothing is sent again
    app.enqueue_sync("t")
    server.end_connections()
    until_sync(lambda: not server.connections(), what="the end of the connection")
    app.enqueue_sync("t")
    app.close_sync()
    assert _pending(server) == 2


@pytest.mark.parametrize("replies_only", [False, True], ids=["request", "reply"])
async def test_a_connection_that_was_forgotten_is_replaced_within_the_patience(
    server: RealServer, replies_only: bool
) -> None:
    async with proxy_before(server.socket) as proxy:
        app = App(proxy.url, timeout=LONG)
        await asyncio.to_thread(app.enqueue_sync, "t")
        proxy.forget(replies_only=replies_only)
        assert (await asyncio.to_thread(app.enqueue_sync, "t")).created
        await asyncio.to_thread(app.close_sync)
    assert _pending(server) == 2


@pytest.mark.parametrize("break_it", ["lose_request", "lose_reply"])
async def test_a_lost_reply_makes_no_second_task(server: RealServer, break_it: str) -> None:
    async with proxy_before(server.socket) as proxy:
        app = App(proxy.url)
        await asyncio.to_thread(app.enqueue_sync, "t")
        setattr(proxy, break_it, 1)
        assert (await asyncio.to_thread(app.enqueue_sync, "t")).created
        assert getattr(proxy, break_it) == 0
        await asyncio.to_thread(app.close_sync)
    assert _pending(server) == 2


@pytest.mark.usefixtures("server")
def test_nobody_there_is_told_within_the_patience(tmp_path: Path) -> None:
    app = App(f"unix://{tmp_path}/nobody", patience=0.2)
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="cannot connect"):
            app.enqueue_sync("t")
    app.close_sync()


def _ids(server: RealServer) -> set[str]:
    """Of the connections."""
    return {line.partition(" ")[0] for line in server.connections()}


def _in_use(app: App) -> bool:
    """Whether a call is under way."""
    return len(app.server._all_connections()._blocking._free) < blocking_clients.MOST


def _signal_while_sending(app: App, server: RealServer, number: int) -> None:
    """Once a call is under way, send this signal to its thread; then let the server go on."""
    until_sync(lambda: _in_use(app), what="the call")
    signal.pthread_kill(threading.main_thread().ident or 0, number)
    server.thaw()


@pytest.mark.parametrize("by_hand", [10.0, 0.001], ids=["by hand", "on the loop"])
def test_ctrl_c_ends_the_wait_and_the_next_call_gets_its_own_reply(
    app: App, server: RealServer, by_hand: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_loop, "BY_HAND", by_hand)
    app.enqueue_sync("t", task_id="before")
    used = _ids(server)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    server.freeze()
    interrupting = threading.Thread(target=_signal_while_sending, args=(app, server, signal.SIGINT))
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            app.enqueue_sync("t", task_id="interrupted")
    finally:
        interrupting.join()
        signal.signal(signal.SIGINT, before)
    assert app.enqueue_sync("t", task_id="after").id == "after"
    with pytest.raises(TaskIdConflict):
        app.enqueue_sync("t", task_id="before")
    until_sync(lambda: len(server.connections()) == 1, what="the end of the interrupted connection")
    assert _ids(server) != used


def test_a_signal_handler_may_send_while_its_thread_is_sending(app: App, server: RealServer) -> None:
    app.enqueue_sync("t")
    sent: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: sent.append(app.enqueue_sync("t").id))
    server.freeze()
    thread = threading.Thread(target=_signal_while_sending, args=(app, server, signal.SIGUSR1))
    thread.start()
    try:
        app.enqueue_sync("t")
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert len(sent) == 1
    assert _pending(server) == 3


def test_a_fork_sends_on_connections_of_its_own(app: App, server: RealServer) -> None:
    app.enqueue_sync("t", task_id="parent-1")

    clients = app.server._all_connections()._blocking._free
    ours = clients[-1]

    def in_child() -> list[str]:
        sent = [app.enqueue_sync("t", task_id=f"child-{n}").id for n in range(2)]
        return [*sent, "the parent's loop" if clients[-1] is ours else "a loop of its own"]

    assert asyncio.run(in_a_fork(in_child)) == ["child-0", "child-1", "a loop of its own"]
    assert app.enqueue_sync("t", task_id="parent-2").created
    assert _pending(server) == 4


def test_an_app_that_nobody_has_any_more_keeps_no_connection(server: RealServer) -> None:
    app = App(server.url)
    app.enqueue_sync("t")
    assert server.connections()
    del app
    gc.collect()
    until_sync(lambda: not server.connections(), what="the end of the connection")


def test_closed_while_it_sends(app: App, server: RealServer) -> None:
    """The call ends well; its connection is not used again."""
    app.enqueue_sync("t")
    server.freeze()
    sending = threading.Thread(target=app.enqueue_sync, args=("t",))
    sending.start()
    until_sync(lambda: _in_use(app), what="the call")
    app.close_sync()
    server.thaw()
    sending.join(30)
    assert _pending(server) == 2
    until_sync(lambda: not server.connections(), what="the end of the connection")


async def test_a_thread_with_a_running_loop_sends_through_another(app: App, server: RealServer) -> None:
    app.enqueue_sync("t")
    assert _threads()
    assert _pending(server) == 1
