"""`veredus dev`: a server, a worker that restarts when a file changes, and the dashboard."""

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

POLL_INTERVAL = 0.3
"""Seconds between two scans of the files."""
SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"}
"""Folders that are not scanned, besides those whose names begin with a dot."""
SUFFIXES = (".py", ".toml", ".ini", ".env")
MOST_FILES = 20_000
STOP_TIMEOUT = 5.0
"""Seconds for a child process to stop."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("app", metavar="MODULE:APP")
@click.option("--redis", "redis_url", metavar="URL", envvar="VEREDUS_REDIS_URL", help="Default: the embedded server.")
@click.option("--watch", "folders", multiple=True, metavar="FOLDER", help="Folder to watch (default: the current one).")
@click.option("--dash/--no-dash", default=True, help="Also serve the dashboard (default).")
@click.option("--dash-port", type=click.IntRange(0, 65535), default=8787, show_default=True)
@click.pass_context
def dev(
    ctx: click.Context, app: str, redis_url: str | None, folders: Sequence[str], dash: bool, dash_port: int
) -> None:
    """Run an app during development: server, worker with reload, dashboard. Stop it with Ctrl-C.

    The worker restarts when a file below the current folder changes. Running tasks have 2 s to finish, then they return
    to the queue. Options that are not listed here are passed to `veredus worker`.

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
        click.echo("dev: no dashboard; to get it: pip install 'veredus[dash]'", err=True)
    return bool(found)


class _Dev:
    """Runs two child processes: the worker, which is restarted, and the dashboard."""

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
        """Run a worker until a file changes or we are stopped. If it exits by itself, wait for the next change."""
        files = snapshot(self._folders)
        worker = await _start(self._worker)
        ended = asyncio.create_task(worker.wait())
        reported = False
        try:
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL):
                        await self._stop.wait()
                if ended.done() and not reported:
                    reported = True
                    click.echo(f"dev: the worker exited with code {ended.result()}; it restarts at the next change")
                now = await asyncio.to_thread(snapshot, self._folders)
                if changed := sorted(set(files.items()) ^ set(now.items())):
                    click.echo(f"dev: {changed[0][0]} changed, restarting the worker")
                    return
        finally:
            ended.cancel()
            await _end(worker)


async def _start(arguments: Sequence[str]) -> asyncio.subprocess.Process:
    # In its own session, so that Ctrl-C reaches it once, through us.
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "veredus", *arguments, env=_environment(), start_new_session=True
    )


def _environment() -> dict[str, str]:
    """No .pyc files, which would look like edits, and no buffered output."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


async def _end(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await process.wait()
                return


def snapshot(folders: Sequence[Path]) -> dict[str, int]:
    """The watched files and their modification times."""
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
