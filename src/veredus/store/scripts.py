"""The Lua files as callable scripts: includes resolved, header compared with what Python passes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_HEADER = re.compile(r"^-- (KEYS|ARGV|RETURNS)[ \t]*(.*)$", re.MULTILINE)
_INCLUDE = re.compile(r"^ *-- include:(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One verb: its source and the name by which the server knows it once loaded."""

    name: str
    source: str
    sha: str
    fixed_keys: bool = True
    """Whether it looks at so many keys and no more, so that another one may follow them unseen."""


@dataclass(frozen=True, slots=True)
class Header:
    keys: str
    args: str
    includes: tuple[str, ...]


def load(name: str, *, keys: str, args: str) -> Script:
    """Load `lua/<name>.lua`. `keys` and `args` are what the Python side passes, in the words of the file's header; a
    difference is a programming error and stops the import."""
    source = _read(name)
    header = read_header(source)
    if (header.keys, header.args) != (keys, args):
        raise AssertionError(
            f"lua/{name}.lua says KEYS {header.keys!r} ARGV {header.args!r}, Python passes {keys!r} and {args!r}"
        )
    # Where the line stands: a script that mostly ends before it does not make the functions that it does not need.
    body = _INCLUDE.sub(lambda line: "\n".join([_read(f"include/{include}") for include in line[1].split()]), source)
    fixed_keys = "*" not in keys and "[" not in keys
    return Script(name, body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest(), fixed_keys)


def read_header(source: str) -> Header:
    found = {kind: text.strip() for kind, text in _HEADER.findall(source)}
    if "KEYS" not in found or "ARGV" not in found or "RETURNS" not in found:
        raise AssertionError("a script opens with -- KEYS, -- ARGV and -- RETURNS")
    return Header(found["KEYS"], found["ARGV"], tuple(" ".join(_INCLUDE.findall(source)).split()))


@cache
def with_insert(outer: Script, insert: Script) -> Script:
    """A script that stores a task in the same step as something else: `insert` is a function inside it."""
    source = f"local insert = function(KEYS, ARGV)\n{insert.source}\nend\n{outer.source}"
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(f"{outer.name}+{insert.name}", source, sha, insert.fixed_keys)


@cache
def _read(name: str) -> str:
    return (resources.files("veredus") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
