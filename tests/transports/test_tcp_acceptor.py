"""Who may come in by TCP: limits, deadlines before and after TLS, proxies, and what one read can bring."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.raw import JSON, line, upgrade, ws_frame
from tests.support.waiting import pause, until
from tests.transports.support import WAIT, Notes, greet, house, still_served
from veredus.link.transports.certificate import make_local_certificate
from veredus.link.transports.tcp_acceptor import RECEIVE_BUFFER, AcceptedSocket, TcpAcceptor, bind


class Keeper:
    """Takes notes; refuses `shut` addresses."""

    def __init__(self, *, shut: set[str] | None = None, proxies: set[str] | None = None) -> None:
        self.shut, self.proxies = shut or set(), proxies or set()
        self.here: Counter[str] = Counter()
        self.entered: Counter[str] = Counter()
        self.silences = self.drops = 0

    def enter(self, host: str) -> bool:
        if host in self.shut:
            return False
        self.here[host] += 1
        self.entered[host] += 1
        return True

    def leave(self, host: str) -> None:
        self.here[host] -= 1
        assert self.here[host] >= 0

    def silent(self) -> None:
        self.silences += 1

    def dropped(self) -> None:
        self.drops += 1

    def is_proxy(self, host: str) -> bool:
        return host in self.proxies


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    made = make_local_certificate()
    (tmp_path / "c.pem").write_bytes(made.certificate)
    (tmp_path / "k.pem").write_bytes(made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    return context


async def _to_the_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_socket_that_says_nothing_is_cut_after_its_deadline_and_counted(first: bytes) -> None:
    keeper = Keeper()
    async with house("websocket", handshake_timeout=0.2, admission=keeper) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        writer.write(first)
        await until(lambda: keeper.here["127.0.0.1"] == 1)
        assert await _to_the_end(reader) == b""
        await until(lambda: keeper.here["127.0.0.1"] == 0)
        assert keeper.silences == 1
        writer.close()


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00\x01", b"nonsense\r\n\r\n"])
async def test_a_silent_socket_is_cut_before_the_tls_handshake_is_complete(first: bytes, tls: ssl.SSLContext) -> None:
    keeper = Keeper()
    async with house("websocket", handshake_timeout=0.2, admission=keeper, tls=tls) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        writer.write(first)
        await until(lambda: keeper.entered["127.0.0.1"] == 1)
        await _to_the_end(reader)
        await until(lambda: keeper.here["127.0.0.1"] == 0)
        assert keeper.silences == (0 if first.startswith(b"nonsense") else 1)
        writer.close()


async def test_a_socket_that_is_silent_after_tls_is_cut_and_one_that_speaks_is_served(tls: ssl.SSLContext) -> None:
    keeper = Keeper()
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with house("websocket", handshake_timeout=0.5, admission=keeper, tls=tls) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address, ssl=trusting)
        assert await _to_the_end(reader) == b""
        writer.close()
        await until(lambda: keeper.silences == 1)
        reader, writer = await asyncio.open_connection(*one.listener.address, ssl=trusting)
        writer.write(upgrade())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        await pause(0.6, proves="the deadline does not cut one that was let in")
        writer.write(line({"t": "hello", "version": 1}))
        assert b"welcome" in await reader.readuntil(b"\n")
        writer.close()
        await until(lambda: keeper.here["127.0.0.1"] == 0)


async def test_an_address_that_may_not_come_is_closed_at_once() -> None:
    keeper = Keeper(shut={"127.0.0.1"})
    async with house("websocket", admission=keeper) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        writer.write(upgrade(JSON, "/"))
        with contextlib.suppress(ConnectionError):
            assert await _to_the_end(reader) == b"", "it gets no answer"
        writer.close()
        assert one.desks == []


@pytest.mark.parametrize(
    ("proxies", "header", "counted"),
    [
        ({"127.0.0.1"}, "X-Forwarded-For: 10.0.0.1, 192.0.2.7", "192.0.2.7"),
        ({"127.0.0.1", "192.0.2.7"}, "X-Forwarded-For: 10.0.0.1, 192.0.2.7", "10.0.0.1"),
        ({"127.0.0.1"}, "X-Forwarded-For: 192.0.2.7:1234", "192.0.2.7"),
        ({"127.0.0.1"}, "X-Forwarded-For: 2001:db8::7", "2001:db8::7"),
        ({"127.0.0.1"}, "X-Forwarded-For: [2001:db8::7]:1234", "2001:db8::7"),
        ({"127.0.0.1"}, "X-Forwarded-For: nonsense", "127.0.0.1"),
        (set(), "X-Forwarded-For: 192.0.2.7", "127.0.0.1"),
    ],
)
async def test_only_a_trusted_proxy_may_say_for_whom_it_stands(proxies: set[str], header: str, counted: str) -> None:
    keeper = Keeper(proxies=proxies)
    async with house("websocket", admission=keeper) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        writer.write(upgrade(JSON, "/", header))
        await reader.readuntil(b"\r\n\r\n")
        transport: Any = one.desks[0].transport
        assert transport.host == counted
        assert +keeper.here == Counter({"127.0.0.1": 1} | {counted: 1})
        writer.close()
        await until(lambda: not +keeper.here)


async def test_too_many_clients_of_one_address_behind_a_proxy_are_told_so() -> None:
    keeper = Keeper(shut={"192.0.2.7"}, proxies={"127.0.0.1"})
    async with house("websocket", admission=keeper) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        writer.write(upgrade(JSON, "/", "X-Forwarded-For: 192.0.2.7"))
        await reader.readuntil(b"\r\n\r\n")
        assert int.from_bytes((await reader.readexactly(4))[2:]) == 4008
        writer.close()
        assert one.desks == []


async def test_one_read_brings_no_more_than_the_receive_buffer() -> None:
    """A flood is read in pieces: between two of them everybody else has a turn."""
    async with house("websocket", max_message=100 * 2**20) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        writer.write(upgrade())
        await reader.readuntil(b"\r\n\r\n")
        desk = one.desks[0]
        reads: list[int] = []
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1
            if desk.end is None:
                asyncio.get_running_loop().call_soon(count)

        count()
        seen = {"turn": 0, "bytes": 0}

        def received(transport: Any, data: bytes) -> None:
            if seen["turn"] != turns:
                reads.append(seen["bytes"])
                seen.update(turn=turns, bytes=0)
            seen["bytes"] += len(data)

        desk.received = received  # type: ignore[method-assign]
        writer.write(ws_frame(b"x" * 1000) * 8000)
        await asyncio.wait_for(writer.drain(), WAIT)
        await until(lambda: sum(reads) + seen["bytes"] == 8_000_000)
        assert max(reads) < 8 * RECEIVE_BUFFER
        writer.close()
        await desk.ending()


@pytest.mark.parametrize("frame", [ws_frame(b"p", 9), ws_frame(b"p", 10), ws_frame(b"", 1, fin=False)])
async def test_too_many_pings_pongs_or_fragments_end_the_connection(frame: bytes) -> None:
    async with house("websocket", control_rate=10.0) as one:
        good = await one.connect()
        await greet(good)
        reader, writer = await asyncio.open_connection(*one.listener.address)
        writer.write(upgrade())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame + ws_frame(b"", frame[0] & 15 or 1 if frame[0] != 1 else 0, fin=frame[0] != 1) * 200)
        assert (await one.desks[1].ending())[0] == 4005
        writer.close()
        await still_served(good, 1)


async def test_a_peer_that_goes_on_sending_after_a_close_is_not_read_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veredus.link.transports.websocket_transport.CLOSE_GRACE", 1.0)
    async with house("websocket") as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        writer.write(upgrade())
        await reader.readuntil(b"\r\n\r\n")
        transport: Any = one.desks[0].transport
        transport.close(4000, "go")
        writer.write(ws_frame(b"x") * 1000)
        await until(lambda: not transport._out.is_reading())
        assert one.desks[0].end is None, "and not because the grace is over"
        await one.desks[0].ending()
        writer.close()


async def test_a_door_that_is_closed_lets_nobody_in_who_was_on_the_way(tls: ssl.SSLContext) -> None:
    keeper = Keeper()
    async with house("websocket", admission=keeper, tls=tls) as one:
        reader, writer = await asyncio.open_connection(*one.listener.address)
        await until(lambda: keeper.here["127.0.0.1"] == 1)
        await one.listener.close()
        await _to_the_end(reader)
        assert keeper.here["127.0.0.1"] == 0
        writer.close()


@pytest.mark.parametrize("problem", [OSError, ValueError, TimeoutError, asyncio.CancelledError])
async def test_a_socket_that_cannot_be_served_is_closed_and_no_longer_counted(
    caplog: pytest.LogCaptureFixture, problem: type[BaseException]
) -> None:
    def fail(accepted: AcceptedSocket) -> asyncio.Protocol:
        raise problem("on purpose")

    keeper = Keeper()
    sockets = await bind("127.0.0.1", 0)
    acceptor = TcpAcceptor(sockets, fail, admission=keeper, tls=None, deadline=WAIT)
    for number in (1, 2):
        reader, writer = await asyncio.open_connection(*sockets[0].getsockname())
        assert await _to_the_end(reader) == b""
        writer.close()
        await until(lambda number=number: keeper.entered["127.0.0.1"] == number and not keeper.here["127.0.0.1"])
    acceptor.close()
    await acceptor.wait_closed()
    assert keeper.silences == (2 if problem is TimeoutError else 0)
    assert caplog.text.count("cannot serve an accepted connection") == (2 if problem is ValueError else 0)


async def test_a_door_without_file_descriptors_rests_instead_of_spinning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("veredus.link.transports.tcp_acceptor.NO_FILES_PAUSE", 0.05)

    class Exhausted(socket.socket):
        tries = 0

        def accept(self) -> Any:
            self.tries += 1
            if self.tries < 3:
                raise OSError(24, "Too many open files")
            return super().accept()

    listening = Exhausted()
    listening.bind(("127.0.0.1", 0))
    visits: list[AcceptedSocket] = []

    def serve(visit: AcceptedSocket) -> asyncio.BaseProtocol:
        visits.append(visit)
        return asyncio.Protocol()

    door = TcpAcceptor([listening], serve, admission=None, tls=None, deadline=5.0)
    _, writer = await asyncio.open_connection(*listening.getsockname())
    await until(lambda: visits)
    assert listening.tries == 3 or listening.tries == 4
    assert caplog.text.count("cannot accept connections") == 2
    writer.close()
    visits[0].end()
    door.close()
    await door.wait_closed()


async def test_a_handler_is_not_asked_for_by_one_that_leaves_before_its_upgrade() -> None:
    keeper = Keeper()
    async with house("websocket", admission=keeper) as one:
        _, writer = await asyncio.open_connection(*one.listener.address)
        await until(lambda: keeper.here["127.0.0.1"] == 1)
        writer.transport.abort()
        await until(lambda: keeper.here["127.0.0.1"] == 0)
        assert (one.desks, keeper.silences) == ([], 0)
        good: Notes = await one.connect()
        await greet(good)
