"""The keeper: a small process that is the server's parent and stops it when it has been idle for a while."""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from veredus.embedded import locks, record, sockets, waiting
from veredus.embedded.binary import Binary
from veredus.embedded.folder import Folder
from veredus.embedded.launch import Launched, launch
from veredus.embedded.probe import Probe, ProbeRefused

ANSWER_TIMEOUT = 30.0
ADOPT_TIMEOUT = 5.0
SHUTDOWN_TIMEOUT = 60.0
LONGEST_NAP, SHORTEST_NAP = 5.0, 0.05

logger = logging.getLogger("veredus.embedded.keeper")


class StopRequested(BaseException):
    """The keeper was asked to end."""


def main(arguments: list[str]) -> int:
    """`keeper FOLDER` adopts a live server, `keeper FOLDER PATH PRODUCT VERSION` starts that program.

    It returns to its starter once it holds the keeper's lock, and continues in a detached child. So the starter gets no
    zombie, and knows that a free lock from now on means that the keeper has ended.
    """
    os.umask(0o077)
    folder = Folder(Path(arguments[0]))
    binary = Binary(*arguments[1:4]) if len(arguments) > 1 else None
    try:
        lock = locks.take(folder.keeper_lock, timeout=1.0)
    except locks.Busy:
        return 0
    if os.fork():
        os._exit(0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        _Keeper(folder, lock).keep(binary)
    except Exception:
        logger.exception("the keeper failed")
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class _Seen:
    """Distinguishes use from idleness. Connections are counted too, because a short one may fall between two checks."""

    connections: int
    last_use: int


class _Keeper:
    def __init__(self, folder: Folder, lock: locks.Lock) -> None:
        self._folder, self._lock = folder, lock
        self._launched: Launched | None = None
        self._socket = ""

    def keep(self, binary: Binary | None) -> None:
        """Start or adopt the server, and stay until it has ended."""
        if binary is None:
            known = record.read(self._folder)
            self._socket = known.socket if known else ""
        else:
            self._socket = sockets.choose(self._folder.path)
            log = self._folder.open_log(self._folder.server_log)
            self._launched = launch(self._folder, binary, self._socket, log)
            os.close(log)
        probe = self._connect()
        if probe is None or not _has_loaded(probe):
            self._give_up()
            return
        logger.info("keeping the server at %s", self._socket)
        signal.signal(signal.SIGTERM, _end)
        try:
            self._watch(probe)
        except ConnectionError:
            logger.info("the server is gone")
        except StopRequested:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            logger.info("received a stop request: stopping the server")
            with Probe(self._socket) as last:
                if not self._shut_down(last):
                    return
        if self._launched is not None:
            logger.info("the server ended with code %s", self._launched.process.wait())

    def _connect(self) -> Probe | None:
        process = self._launched.process if self._launched else None
        deadline = waiting.Deadline(ANSWER_TIMEOUT if process else ADOPT_TIMEOUT)
        while process is None or process.poll() is None:
            try:
                return Probe(self._socket)
            except OSError as exc:
                if deadline.passed() or not self._folder.path.exists():
                    logger.error("no server answers at %s: %s", self._socket, exc)
                    break
            if process is None and not locks.is_held(self._folder.server_lock):
                logger.info("the server to adopt has ended")
                return None
            waiting.nap()
        return None

    def _give_up(self) -> None:
        if self._launched is not None:
            logger.error("the server ended with code %s before it was ready", self._launched.end())
            self._launched.gave_up()

    def _watch(self, probe: Probe) -> None:
        """Check periodically; return when the server has ended."""
        seen, idle_since = None, waiting.monotonic()
        while True:
            _, linger = self._folder.last_use()
            try:
                os.utime(self._socket)  # cleaners of temporary folders leave fresh files alone
                now = self._look(probe)
            except FileNotFoundError:
                logger.warning("%s is gone, nobody can connect any more: stopping the server", self._socket)
                self._shut_down(probe, even_if_it_refuses=True)
                return
            except ConnectionError:
                return
            except ProbeRefused:
                now = None  # loading, or busy with a script: in use
            except OSError:  # a timeout
                now = None  # busy as well, but this connection is still waiting for a reply
                probe.close()
                probe = self._connect_again()
            if now is None or now != seen:
                seen, idle_since = now, waiting.monotonic()
            elif waiting.monotonic() - idle_since >= linger and self._stop_if_idle(probe, now):
                return
            if probe.wait_closed(min(LONGEST_NAP, max(SHORTEST_NAP, linger / 4))):
                return

    def _connect_again(self) -> Probe:
        while True:
            try:
                return Probe(self._socket)
            except ConnectionError:
                raise
            except FileNotFoundError as exc:  # no client can connect any more, and it cannot be asked to shut down
                self._terminate()
                raise ConnectionResetError(f"{self._socket} is gone") from exc
            except OSError:  # too busy to accept new connections
                waiting.nap(LONGEST_NAP)

    def _terminate(self) -> None:
        """SIGTERM: the server saves its data and ends."""
        if self._launched is not None:
            self._launched.process.terminate()
        elif (known := record.read(self._folder)) is not None and locks.is_held(self._folder.server_lock):
            os.kill(known.pid, signal.SIGTERM)

    def _look(self, probe: Probe) -> _Seen | None:
        """What the server reports, or None while clients are connected."""
        if int(probe.info("clients")["connected_clients"]) > 1:
            return None
        connections = int(probe.info("stats")["total_connections_received"])
        return _Seen(connections, self._folder.last_use()[0])

    def _stop_if_idle(self, probe: Probe, seen: _Seen) -> bool:
        """Under the start lock, so that no client gets a server that is about to end."""
        try:
            start = locks.take(self._folder.start_lock, timeout=0.0)
        except locks.Busy:
            return False
        with start:
            if self._look(probe) != seen:
                return False
            logger.info("nobody has used the server for a while: stopping it")
            if not self._shut_down(probe):
                return False
            self._lock.release()
            return True

    def _shut_down(self, probe: Probe, *, even_if_it_refuses: bool = False) -> bool:
        """Shut the server down. It refuses if it cannot write its last data: then it stays, rather than lose them."""
        process = self._launched.process if self._launched else None
        try:
            probe.shut_down()
        except (OSError, ProbeRefused) as exc:
            logger.warning("the server did not shut down: %s", exc)
            if not (even_if_it_refuses and process):
                return False
            process.kill()
        return waiting.until(
            lambda: process.poll() is not None if process else not locks.is_held(self._folder.server_lock),
            timeout=SHUTDOWN_TIMEOUT,
        )


def _has_loaded(probe: Probe) -> bool:
    """Wait until the data is loaded. Returns False if the server ends instead, for example because it rejects the
    files."""
    while True:
        try:
            probe.ask("PING")
            return True
        except ConnectionError:
            return False
        except ProbeRefused as exc:
            if not str(exc).startswith("LOADING"):
                return True
        except OSError:
            return True  # alive, and too busy to answer
        if probe.wait_closed(0.1):
            return False


def _end(number: int, frame: object) -> None:
    raise StopRequested


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
