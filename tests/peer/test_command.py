"""`veredus peer` as a program: what it prints, how it ends."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.peer.scripted import ScriptedGateway
from tests.support.waiting import PATIENCE, until


async def peer(*arguments: str, lines: str | None = None) -> tuple[int, str, str]:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "veredus", "peer", *arguments,
        stdin=asyncio.subprocess.DEVNULL if lines is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(program.communicate(lines.encode() if lines is not None else None), 2 * PATIENCE)
    assert program.returncode is not None
    return program.returncode, out.decode(), err.decode()


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
