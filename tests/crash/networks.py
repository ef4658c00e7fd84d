"""A network of namespaces: a router in the middle, and nodes whose packets it can drop in either direction.

Nothing of it is connected to the network of this machine: all addresses are inside namespaces that are made here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BOTH, REQUESTS, REPLIES = "both directions", "requests only", "replies only"
DIRECTIONS = (BOTH, REQUESTS, REPLIES)
_NAME = re.compile(r"veredus-(\d+)-\d+-\w+")
_networks = itertools.count()


class NoNamespaces(Exception):
    """Network namespaces cannot be made here; the text says what was therefore not tested."""


@dataclass(frozen=True, slots=True)
class Node:
    """One namespace with one address."""

    name: str
    namespace: str
    number: int

    @property
    def address(self) -> str:
        return f"10.213.{self.number}.2"

    @property
    def within(self) -> list[str]:
        """What a command begins with to run in it."""
        return ["ip", "netns", "exec", self.namespace]


class Network:
    """Nodes reach each other through the router. `cut` drops packets there without a word, as a broken switch does."""

    def __init__(self) -> None:
        if not sys.platform.startswith("linux") or shutil.which("ip") is None or os.geteuid() != 0:
            raise NoNamespaces("network namespaces need Linux, root and `ip`: real partitions were NOT TESTED")
        self._tag = f"veredus-{os.getpid()}-{next(_networks)}"
        self._router = f"{self._tag}-router"
        self._nodes: list[Node] = []
        remove_orphans()
        try:
            _ip("netns", "add", self._router)
        except subprocess.CalledProcessError as exc:
            raise NoNamespaces(f"`ip netns add`: {exc.stderr.strip()}: real partitions were NOT TESTED") from None
        _ip("netns", "exec", self._router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def node(self, name: str) -> Node:
        node = Node(name, f"{self._tag}-{name}", len(self._nodes) + 1)
        self._nodes.append(node)
        _ip("netns", "add", node.namespace)
        _ip("-n", node.namespace, "link", "set", "lo", "up")
        self.plug(node)
        return node

    def plug(self, node: Node) -> None:
        """Connect it to the router with a new cable; its address stays the same."""
        outer, inner, gateway = f"v{os.getpid()}n{node.number}", "eth0", f"10.213.{node.number}.1"
        _ip("link", "add", outer, "netns", self._router, "type", "veth", "peer", inner, "netns", node.namespace)
        for namespace, link, address in ((self._router, outer, gateway), (node.namespace, inner, node.address)):
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", link)
            _ip("-n", namespace, "link", "set", link, "up")
        _ip("-n", node.namespace, "route", "add", "default", "via", gateway)

    def unplug(self, node: Node) -> None:
        """Take its cable away, as when a machine moves; connections stay open on both sides."""
        _ip("-n", node.namespace, "link", "del", "eth0")

    def cut(self, node: Node, direction: str) -> None:
        """Requests are what the node sends, replies what is sent to it; TCP's own acknowledgements included."""
        if direction != REPLIES:
            self._rule("add", "from", node)
        if direction != REQUESTS:
            self._rule("add", "to", node)

    def heal(self, node: Node) -> None:
        for way in ("from", "to"):
            with contextlib.suppress(subprocess.CalledProcessError):  # this direction was not cut
                self._rule("del", way, node)

    def close(self) -> None:
        for namespace in _namespaces():
            if namespace.startswith(f"{self._tag}-"):
                _ip("netns", "del", namespace)

    def left(self) -> list[str]:
        """Namespaces that are still there."""
        return [name for name in _namespaces() if name.startswith(f"{self._tag}-")]

    def _rule(self, change: str, way: str, node: Node) -> None:
        _ip("-n", self._router, "rule", change, way, node.address, "blackhole", "pref", "100")


def remove_orphans() -> None:
    """Namespaces of test processes that were killed."""
    for name in _namespaces():
        match = _NAME.fullmatch(name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _ip("netns", "del", name)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, ["ip", *arguments], done.stdout, done.stderr)
    return done.stdout
