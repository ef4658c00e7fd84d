"""`veredus peer` as a program: what it prints, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.peer.scripted import ScriptedGateway
from tests.support.relays import CERTIFICATE, KEY
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, pause, until
from veredus import App
from veredus.link.transports.certificate import make_local_certificate
from veredus.model.frames import Join


async def peer(*arguments: str, lines: str | None = None) -> tuple[int, str, str]:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "veredus", "peer", *arguments,
        stdin=asyncio.subprocess.DEVNULL if lines is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        given = lines.encode() if lines is not None else None
        out, err = await asyncio.wait_for(program.communicate(given), 2 * PATIENCE)
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode is not None
    return program.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program while it runs; `stdout` can be read line by line."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "veredus", "peer", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.communicate()


async def line(program: asyncio.subprocess.Process) -> str:
    assert program.stdout is not None
    return (await asyncio.wait_for(program.stdout.readline(), PATIENCE)).decode()


def rows(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


async def test_a_request_its_answer_and_the_exit_code(either: ScriptedGateway) -> None:
    code, out, err = await peer(either.url, "--token", "ada", "--request", "echo", '{"n": "ü"}')
    assert (code, out) == (0, '     1 response  rid=1 {"n": "ü"}\n')
    assert "new session" in err
    assert either.hellos[0].token == "ada"
    assert not either.sessions  # it said goodbye


async def test_json_lines_and_a_failed_request(gateway: ScriptedGateway) -> None:
    code, out, _ = await peer(gateway.url, "--json", lines='echo [1]\n/stats\nnope\n/what\necho {"a\n')
    said = rows(out)
    assert code == 1
    assert [row["data"] for row in said if row.get("kind") == "response"] == [[1]]
    assert {row["event"] for row in said if "event" in row} == {
        "connected", "stats", "request_failed", "help", "mistake",
    }  # fmt: skip


async def test_it_cuts_its_own_connection_and_shows_that_nothing_is_missing(gateway: ScriptedGateway) -> None:
    running = asyncio.create_task(peer(gateway.url, "--json", "--cut", "0.1", "--count", "60"))
    await until(lambda: bool(gateway.sessions))
    for n in range(60):
        gateway.push(n)
        await asyncio.sleep(0.01)
    code, out, _ = await running
    said = rows(out)
    assert code == 0
    assert [row["seq"] for row in said if "seq" in row] == list(range(1, 61))
    assert sum(row.get("result") == "resumed" for row in said) >= 2


async def test_a_state_file_resumes_the_session_at_the_next_start(gateway: ScriptedGateway, tmp_path: Path) -> None:
    state = tmp_path / "session"
    first, _, _ = await peer(gateway.url, "--state", str(state), "-r", "echo", "1")
    assert state.stat().st_mode & 0o077 == 0
    gateway.push("later")
    second, out, err = await peer(gateway.url, "--state", str(state), "--count", "1")
    assert (first, second) == (0, 0)
    assert out == '     2 notify    "later"\n'
    assert "resumed session" in err


async def test_wrong_usage_a_refused_token_and_nobody_there(gateway: ScriptedGateway) -> None:
    code, _, err = await peer(gateway.url, "--request", "echo", "{")
    assert (code, err.count("\n")) == (2, 1)
    assert "expected JSON" in err
    assert (await peer("http://x"))[0] == 2
    gateway.refusals = [(4501, 0)]
    code, _, err = await peer(gateway.url)
    assert code == 3
    assert "4501" in err


async def test_with_follow_it_goes_on_after_the_answers(gateway: ScriptedGateway) -> None:
    async with started(gateway.url, "--request", "echo", "1", "--follow") as program:
        assert await line(program) == "     1 response  rid=1 1\n"
        await pause(0.3, proves="it does not end when its requests are answered")
        assert program.returncode is None
        gateway.push("later")
        assert await line(program) == '     2 notify    "later"\n'


async def test_with_wait_it_ends_after_that_time_though_nothing_came(gateway: ScriptedGateway) -> None:
    code, out, _ = await peer(gateway.url, "--wait", "300ms")
    assert (code, out) == (0, "")
    assert len(gateway.hellos) == 1
    assert not gateway.sessions  # it said goodbye


async def test_it_joins_each_group_that_it_is_given(gateway: ScriptedGateway) -> None:
    code, _, _ = await peer(gateway.url, "--join", "news", "--join", "sport", "-r", "echo", "1")
    assert code == 0
    assert [frame.group for frame in gateway.frames if isinstance(frame, Join)] == ["news", "sport"]


async def test_a_deadline_goes_with_each_request(gateway: ScriptedGateway) -> None:
    code, _, _ = await peer(gateway.url, "--deadline", "90s", "-r", "echo", "1", "-r", "echo", "2")
    assert code == 0
    assert [request.deadline_ms for request in gateway.requests] == [90_000, 90_000]


async def test_verify_names_an_authority_or_believes_any(valkey_server: RealServer, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.crt"
    stranger.write_bytes(make_local_certificate().certificate)
    async with App(valkey_server.url) as app:
        settings = {"quic": "off", "http": "off", "certificate": str(CERTIFICATE), "key": str(KEY)}
        async with app.gateway(ws="127.0.0.1:0", **settings) as served:
            assert served.ws_address is not None
            port = served.ws_address.port

            async def ends(host: str, verify: str, expected: int) -> None:
                more = ["--verify", verify] if verify else []
                code, _, err = await peer(f"wss://{host}:{port}", "--wait", "0.1", *more)
                assert code == expected, (host, verify, err)

            # All at once: those that are refused try until the time to connect is over.
            await asyncio.gather(
                ends("127.0.0.1", str(CERTIFICATE), 0),
                ends("127.0.0.1", str(stranger), 3),
                ends("127.1", "no", 0),  # this machine, by a name that is not known for it
                ends("127.1", "", 3),
            )
