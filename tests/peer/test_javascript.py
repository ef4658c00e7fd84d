"""The JavaScript client: its own tests in Node, its types, and a conversation with the same scripted gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.peer.scripted import ScriptedGateway
from tests.support.waiting import PATIENCE, until
from veredus.model.frames import Kind

CLIENT = Path(__file__).parent.parent.parent / "clients/js"
LEAST = 20


def _node() -> str:
    node = shutil.which("node")
    version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout if node else ""
    if not node or int(re.sub(r"\D.*", "", version.lstrip("v")) or 0) < LEAST:
        pytest.skip(f"no Node >= {LEAST} is installed here ({version.strip() or 'none'}): clients/js was NOT TESTED")
    return node


def _environment(node: str) -> dict[str, str]:
    """Node 20 and 21 have a WebSocket behind an option; later ones have it anyway."""
    major = int(
        subprocess.run([node, "-p", "process.versions.node"], capture_output=True, text=True).stdout.split(".")[0]
    )
    return os.environ | ({"NODE_OPTIONS": "--experimental-websocket"} if major < 22 else {})


def test_its_own_tests_pass() -> None:
    node = _node()
    ended = subprocess.run(
        [node, "--test", "test/"], cwd=CLIENT, env=_environment(node), capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr


def test_its_types_compile() -> None:
    compiler = shutil.which("tsc")
    if compiler is None:
        pytest.skip("no TypeScript compiler (tsc) is installed here: veredus.d.ts was NOT TESTED")
    options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom,dom.iterable", "--module", "nodenext"]
    ended = subprocess.run(
        [compiler, *options, "test/types.ts"], cwd=CLIENT, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stdout


PROGRAM = """
import { connect } from '%s/veredus.js';
const session = await connect(process.argv[1], { token: 'ada', backoffBase: 0.01 });
const echoed = await session.request('echo', { n: [1, 'ü'] });
const seen = [];
for await (const item of session) {
  seen.push([item.seq, item.kind, item.type, item.title, item.metadata?.k ?? '', item.body ?? null]);
  if (seen.length === 2) session.cut();
  if (seen.length === 4) break;
}
await session.request('echo');
session.close();
console.log(JSON.stringify({ echoed, seen, resumes: session.stats.resumes }));
"""


async def test_it_speaks_the_json_of_the_python_codec(gateway: ScriptedGateway) -> None:
    node = _node()
    program = await asyncio.create_subprocess_exec(
        node, "--input-type=module", "-e", PROGRAM % CLIENT.as_uri(), gateway.url,
        env=_environment(node), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await until(lambda: gateway.requests, what="its first request")
    for n in range(3):
        gateway.push({"n": n}, type="t", title="T", metadata={"k": "v"})
    gateway.push(None, kind=Kind.SYSTEM, body=b"\x00\xff", encoding="raw")
    out, err = await asyncio.wait_for(program.communicate(), 2 * PATIENCE)
    assert program.returncode == 0, err.decode()
    said = json.loads(out)
    assert said["echoed"] == {"n": [1, "ü"]}
    seen = [row for row in said["seen"] if row[1] == "notify"]
    assert seen == [[row[0], "notify", "t", "T", "v", {"n": n}] for n, row in enumerate(seen)]
    assert said["resumes"] == 1
