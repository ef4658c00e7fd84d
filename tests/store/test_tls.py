"""TLS: through a terminating proxy, with the certificate checked, refused and waved through."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App
from veredus.errors import ConfigError, ConnectionLost
from veredus.store.store import connect

pytestmark = VALKEY_ONLY
CERTIFICATE = Path(__file__).parents[1] / "data" / "tls.crt"
KEY = CERTIFICATE.with_suffix(".key")


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def tls_port(url: str) -> AsyncIterator[int]:
    """A port that speaks TLS and passes everything on to the server's socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(url.removeprefix("unix://"))
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield proxy.sockets[0].getsockname()[1]
    proxy.close()


async def test_tasks_travel_and_run_over_tls(tls_port: int) -> None:
    app = App(f"rediss://localhost:{tls_port}/0?ssl_ca_certs={CERTIFICATE}")
    ran = asyncio.Event()

    @app.task
    async def work(text: str) -> None:
        assert text == "über TLS"
        ran.set()

    async with app, app.worker():
        await work.enqueue("über TLS")
        await until(ran.is_set)


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls_port: int) -> None:
    redis = connect(f"rediss://localhost:{tls_port}/0")
    with pytest.raises(ConnectionLost, match=r"TLS.*(?i:certificate)"):
        await redis.command("PING", key="")


async def test_a_certificate_for_another_name_is_refused(tls_port: int) -> None:
    redis = connect(f"rediss://127.0.0.2:{tls_port}/0?ssl_ca_certs={CERTIFICATE}")
    with pytest.raises(ConnectionLost):
        await redis.command("PING", key="")


async def test_checking_can_be_turned_off(tls_port: int) -> None:
    redis = connect(f"rediss://localhost:{tls_port}/0?ssl_cert_reqs=none")
    assert await redis.command("PING", key="") == b"PONG"
    await redis.close()


def test_a_certificate_file_that_is_not_there_is_told(url: str) -> None:
    with pytest.raises(ConfigError, match="readable certificate files"):
        connect("rediss://localhost?ssl_ca_certs=/nowhere/ca.pem")
