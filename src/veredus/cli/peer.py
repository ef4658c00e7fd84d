"""`veredus peer`: talk to a gateway from a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click

from veredus.cli.common import Duration, json_option
from veredus.errors import ConfigError, RequestError, SessionClosed
from veredus.model.frames import CloseCode
from veredus.peer import Discontinuity, Gap, Item, Message, Peer, connect
from veredus.peer.items import Connected, Disconnected, Event, GoingAway, Retrying, Volatile

COLOURS = {
    "response": "green",
    "notify": "cyan",
    "group": "blue",
    "system": "magenta",
    "tombstone": "white",
    "late": "yellow",
}
LATE_MESSAGES = 0.05
"""Seconds to wait for messages that follow the last response."""
HELP = "action {json} | /cut | /join GROUP | /leave GROUP | /stats | /quit"


@click.command()
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--token", envvar="VEREDUS_TOKEN", default="", help="Token for the gateway; VEREDUS_TOKEN.")
@click.option(
    "-r",
    "--request",
    "requests",
    nargs=2,
    multiple=True,
    metavar="ACTION BODY",
    help="Send a request with a JSON body, print the response and exit. May be repeated.",
)
@click.option("--deadline", type=Duration(), help="Time limit of a request.")
@click.option("--follow", is_flag=True, help="Keep printing messages after the responses.")
@click.option("-n", "--count", type=click.IntRange(1), help="Exit after this number of messages.")
@click.option("--wait", type=Duration(), help="Exit after this time.")
@click.option("--join", "groups", multiple=True, metavar="GROUP", help="Join a group. May be repeated.")
@click.option(
    "--cut", type=Duration(), metavar="SECONDS", help="Cut the connection at this interval, to see it resume."
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save the session in this file, so that the next run resumes it.",
)
@click.option("--verify", metavar="CA-FILE", help="Trust this certificate authority; 'no' accepts any certificate.")
@json_option
def peer(urls: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Connect to a gateway (ws://, wss:// or quic://), print messages, send requests.

    \b
    With --request, or with lines from a pipe, it prints the responses and exits. Otherwise it runs until Ctrl-C, and
    every line typed is a request, such as:  render {"order": 42}      (more: /cut, /join GROUP, /stats, /quit)

    \b
    Examples:
      veredus peer ws://127.0.0.1:8765 --token ada
      veredus peer quic://127.0.0.1:8766 --request render '{"order": 42}' --json
      veredus peer ws://127.0.0.1:8765 ws://127.0.0.1:8775 --cut 1 --count 1000

    \b
    Exit codes:
      0  success
      1  a request failed or was rejected, or the gateway ended the session
      2  wrong usage
      3  no gateway could be reached, or the token was refused
    """
    session = Conversation(as_json, given)
    try:
        return asyncio.run(session.run(list(urls)))
    except KeyboardInterrupt:
        return 130
    except SessionClosed as exc:
        session.say(f"closed: {exc}", "red", event="closed", code=exc.code)
        return 3 if exc.code == CloseCode.UNAUTHORIZED else 1


class Conversation:
    """One run of the command."""

    def __init__(self, as_json: bool, given: dict[str, Any]) -> None:
        self._as_json = as_json
        self._given = given
        self._failed = 0
        self._asked: set[asyncio.Task[None]] = set()
        self._asked_any = False

    async def run(self, urls: list[str]) -> int:
        given = self._given
        requests = [(action, _body(text)) for action, text in given["requests"]]
        verify = {"no": False, None: None}.get(given["verify"], given["verify"])
        state: Path | None = given["state"]
        saved = _read(state)
        settings = {"token": given["token"], "verify": verify, "resume": saved, "on_event": self._event}
        async with contextlib.AsyncExitStack() as stack:
            peer = await connect(urls, **settings)
            stack.push_async_callback(self._leave, peer, state)
            for group in given["groups"]:
                peer.join(group)
            printing = asyncio.create_task(self._print(peer))
            helpers = [asyncio.create_task(self._talk(peer, requests))]
            if given["cut"]:
                helpers.append(asyncio.create_task(self._cut_often(peer)))
            try:
                async with asyncio.timeout(given["wait"]):
                    await asyncio.wait({printing, helpers[0]}, return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                pass
            for task in (printing, *helpers):
                if not task.done():
                    task.cancel()
            for task in (printing, *helpers):
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        return 1 if self._failed else 0

    async def _leave(self, peer: Peer, state: Path | None) -> None:
        if state is None:
            await peer.close()
            return
        await peer.detach()
        _write(state, peer.export().to_json())

    # Sending and receiving.

    async def _print(self, peer: Peer) -> None:
        seen = 0
        async for item in peer:
            self._show(item)
            seen += isinstance(item, Message)
            if seen == self._given["count"]:
                peer.handled()
                return

    async def _talk(self, peer: Peer, requests: list[tuple[str, Any]]) -> None:
        for action, body in requests:
            self._ask(peer, action, body)
        if not requests:
            async for line in _lines():
                if line == "/quit":
                    return
                self._command(peer, line)
        await asyncio.gather(*self._asked)
        # On a terminal, or without requests, only Ctrl-C, --count or --wait ends it.
        if self._given["follow"] or self._given["count"] or not (requests or self._asked_any):
            await asyncio.Event().wait()
        await asyncio.sleep(LATE_MESSAGES)

    def _command(self, peer: Peer, line: str) -> None:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        try:
            if word == "/cut":
                peer.cut()
            elif word in ("/join", "/leave") and rest:
                (peer.join if word == "/join" else peer.leave)(rest)
            elif word == "/stats":
                self.say(json.dumps(peer.stats()), "white", event="stats", **peer.stats())
            elif word.startswith("/"):
                self.say(HELP, "white", event="help", help=HELP)
            elif word:
                self._ask(peer, word, _body(rest))
        except ConfigError as exc:
            self.say(str(exc), "red", event="mistake", error=str(exc))
            self._failed += 0 if sys.stdin.isatty() else 1

    def _ask(self, peer: Peer, action: str, body: Any) -> None:
        self._asked_any = True
        task = asyncio.create_task(self._answer(peer, action, body))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _answer(self, peer: Peer, action: str, body: Any) -> None:
        """Only reports failures: the response is printed as a message, in its order."""
        try:
            await peer.request(action, body, deadline=self._given["deadline"])
        except RequestError as exc:
            self._failed += 1
            self.say(str(exc), "red", event="request_failed", action=action, code=exc.code, error=exc.problem)

    async def _cut_often(self, peer: Peer) -> None:
        while True:
            await asyncio.sleep(self._given["cut"])
            if peer.connected:
                peer.cut()

    # Output.

    def _show(self, item: Item) -> None:
        if isinstance(item, Gap):
            self.say(f"{item.first}-{item.last} were dropped: {item.reason}", "red", event="gap", **item._asdict())
        elif isinstance(item, Discontinuity):
            self.say(f"a new log begins: {item.reason}", "red", event="discontinuity", reason=item.reason)
        elif self._as_json:
            click.echo(json.dumps(item.as_dict(), ensure_ascii=False, default=_bytes))
        else:
            fields = item.as_dict()
            kind = fields["kind"]
            data = fields.pop("data")
            rest = {name: fields[name] for name in fields.keys() - {"seq", "ts", "kind", "type", "create_time", "code"}}
            parts = [click.style(f"{item.seq:>6}", bold=True), click.style(f"{kind:<9}", fg=COLOURS[kind])]
            parts += [click.style(f"{item.code}", fg="red")] if item.code else []
            parts += [click.style(item.type, bold=True)] if item.type else []
            parts += [_plain(f"{name}={value}") for name, value in sorted(rest.items())]
            parts += [_plain(json.dumps(data, ensure_ascii=False, default=_bytes))] if data is not None else []
            click.echo(" ".join(parts))

    def _event(self, event: Event) -> None:
        if isinstance(event, Connected):
            text = f"{event.result} session {event.session} at {event.url}" + (
                f" ({event.reason})" if event.reason else ""
            )
            self.say(text, "green", event="connected", **event._asdict())
        elif isinstance(event, Disconnected):
            self.say(
                f"lost the connection: {event.code} {event.reason}", "yellow", event="disconnected", **event._asdict()
            )
        elif isinstance(event, Retrying):
            self.say(
                f"again in {event.delay:.2f} s {event.problem and f'({event.problem})'}",
                "yellow",
                event="retrying",
                **event._asdict(),
            )
        elif isinstance(event, GoingAway):
            self.say(f"asked to move: {event.reason}", "yellow", event="going_away", **event._asdict())
        elif isinstance(event, Volatile):
            self.say(f"volatile {event.type} {event.data!r}", "white", event="volatile", **event._asdict())

    def say(self, text: str, colour: str, **fields: Any) -> None:
        """Print a line about the connection: on stderr, or with --json in the one stream of JSON on stdout."""
        if self._as_json:
            click.echo(json.dumps(fields, ensure_ascii=False, default=_bytes))
        else:
            click.echo(click.style(f"     - {_plain(text)}", fg=colour), err=True)


async def _lines() -> AsyncIterator[str]:
    """Lines from stdin. The thread is a daemon, so that a pending read does not keep the process alive."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the command has ended
            for line in sys.stdin:
                loop.call_soon_threadsafe(queue.put_nowait, line.strip())
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await queue.get()) is not None:
        if line:
            yield line


def _read(state: Path | None) -> str | None:
    return state.read_text() if state is not None and state.exists() and state.stat().st_size else None


def _write(state: Path, text: str) -> None:
    state.touch(mode=0o600)  # it is a secret
    state.write_text(text)


def _body(text: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError as exc:
        raise ConfigError("body", text, f"JSON ({exc})") from None


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _bytes(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
