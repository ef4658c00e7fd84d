"""`veredus dev`: a server, a worker that starts anew when a file changes, and the dashboard, in one command."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

LOOK_EVERY = 0.3
"""Seconds between two looks at the files."""
SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"}
"""Folders that nobody edits; those whose names begin with a dot neither."""
SUFFIXES = (".py", ".toml", ".ini", ".env")
MOST_FILES = 20_000
PATIENCE = 5.0
"""Seconds that a child may take to end."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("app", metavar="MODULE:APP")
@click.option("--redis", "redis_url", metavar="URL", envvar="VEREDUS_REDIS_URL", help="Default: the embedded server.")
@click.option("--watch", "folders", multiple=True, metavar="FOLDER", help="Where to look for changes (default: here).")
@click.option("--dash/--no-dash", default=True, help="Serve the dashboard as well (the default).")
@click.option("--dash-port", type=click.IntRange(0, 65535), default=8787, show_default=True)
@click.pass_context
def dev(
    ctx: click.Context, app: str, redis_url: str | None, folders: Sequence[str], dash: bool, dash_port: int
) -> None:
    """Run an app while you write it: server, worker with reload, dashboard; end with Ctrl-C.

    A change to a file below the current folder starts the worker anew; what runs has 2 s to finish and is given back
    otherwise. Options that are not listed here go to `veredus worker`.

    \b
    Examples:
      veredus dev shop:app
      veredus dev shop:app --concurrency 10 --log-level debug
      veredus dev shop:app --watch src --watch templates --no-dash
    """
    options = ["--redis", redis_url] if redis_url else []
    worker = ["worker", app, "--shutdown-timeout", "2", *options, *ctx.args]
    board = ["dash", "--port", str(dash_port), *options] if dash and _has_dashboard() else None
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_Dev([Path(folder) for folder in folders or ["."]], worker, board).run())


def _has_dashboard() -> bool:
    found = all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn", "veredus.dashboard"))
    if not found:
        click.echo("dev: no dashboard, for want of pip install 'veredus[dash]'", err=True)
    return bool(found)


class _Dev:
    """Two children: the worker, which comes and goes, and the dashboard, which stays."""

    def __init__(self, folders: Sequence[Path], worker: Sequence[str], board: Sequence[str] | None) -> None:
        self._folders = folders
        self._worker = worker
        self._board = board
        self._stop = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        board = await _start(self._board) if self._board else None
        try:
            while not self._stop.is_set():
                await self._run_worker()
        finally:
            if board is not None:
                await _end(board)

    async def _run_worker(self) -> None:
        """Until a file changes or we are stopped; a worker that ends by itself is started anew at the next change."""
        files = snapshot(self._folders)
        worker = await _start(self._worker)
        ended = asyncio.create_task(worker.wait())
        told = False
        try:
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await self._stop.wait()
                if ended.done() and not told:
                    told = True
                    click.echo(f"dev: the worker ended with code {ended.result()}; it starts anew at the next change")
                now = await asyncio.to_thread(snapshot, self._folders)
                if changed := sorted(set(files.items()) ^ set(now.items())):
                    click.echo(f"dev: {changed[0][0]} changed, the worker starts anew")
                    return
        finally:
            ended.cancel()
            await _end(worker)


async def _start(arguments: Sequence[str]) -> asyncio.subprocess.Process:
    # A session of its own: Ctrl-C reaches it through us, once.
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "veredus", *arguments, env=_environment(), start_new_session=True
    )


def _environment() -> dict[str, str]:
    """Written files must not be mistaken for edited ones, and output must not wait in a buffer."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


async def _end(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await process.wait()
                return


def snapshot(folders: Sequence[Path]) -> dict[str, int]:
    """Every file that matters, and when it was last written."""
    found: dict[str, int] = {}
    for path in _files(folders):
        with contextlib.suppress(OSError):
            found[str(path)] = path.stat().st_mtime_ns
        if len(found) >= MOST_FILES:
            break
    return found


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    for top in folders:
        for folder, inner, names in os.walk(top):
            inner[:] = [name for name in inner if name not in SKIPPED and not name.startswith(".")]
            yield from (Path(folder, name) for name in names if name.endswith(SUFFIXES))
