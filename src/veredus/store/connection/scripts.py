"""Lua files as callable scripts. A file's header is the contract between the script and the Python that calls it:

    -- done: delete tasks that succeeded.
    -- KEYS  active lease processed
    -- ARGV  queue_prefix limit:number apply:flag ROWS task_id owner delay_ms:number
    -- RETURNS  positions (from 1) of the rows that this owner no longer holds
    -- NEEDS  clock ownership

The loader puts Lua in front of the script that follows from these lines:

- A local for each key and argument. `:number` makes it a number, `:flag` a boolean; anything else is text.
- `ROWS`: any number of rows with these columns. `for i, task_id, owner in rows() do` loops over them and
  `local task_id, owner = rows(i)` or `rows(i).owner` reads one; columns are found by name, in any order. `rows_count`
  is their number. With several kinds of rows, each has a name: `ROWS(members) task_id ROWS(tasks) task_id message`
  gives `members()`, `tasks()`, `members_count` and `tasks_count`. Columns in brackets, which come last, are sent for
  all rows of a call or for none: then they are false.
- `MORE insert_keys` at the end of KEYS: the list of all further keys. Keys in brackets may be missing.
- The includes that NEEDS names (`nothing` for none), each once, after those that they need themselves. A line
  `-- include: name` in the middle of a script puts an include there: code that is rarely needed then costs nothing.
- `keys.lane(order_key)` and `session_keys.meta(base)` are the names that `wire/` gives: see `script_keys.py` here.
  Queue scripts have the argument `queue_prefix`, which stands for the queue. No script spells a key.
- Fields of a hash get names where they are read: `local state, group = unpack(redis.call('HMGET', key, 'state',
  'group'))`, or `read_task` of include/fields.lua, never `fields[2]`.
- Every script takes one more argument, `now_ms`, from tests alone. `clock()` knows it: no script reads another clock.

In Python, `load` repeats the words of KEYS and ARGV, and names a NamedTuple for each kind of rows, with the header's
columns as its fields; `bool` is a flag. Any difference stops the import. `Script.args` builds the arguments of a call.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain
from typing import Any

from veredus.store.connection import script_keys
from veredus.store.connection.script_header import INCLUDE, Contract, Header, needs, read_contract, read_header

_DEFINED = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One verb: its source and the name by which the server knows it once loaded."""

    name: str
    source: str
    sha: str
    fixed_keys: bool = True
    """Whether it looks at a fixed number of keys, so that another one may follow them unseen."""
    rows: tuple[RowKind, ...] = ()
    names: tuple[str, ...] = ()
    """Of its arguments without the rows."""

    def args(self, fixed: Sequence[str | bytes | int | float], *groups: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The arguments of a call: the fixed ones, then each kind of rows."""
        args = list(fixed)
        for kind, group in zip(self.rows, groups, strict=True):
            args.append(len(group))
            if kind.has_two_widths:
                args.append(len(group[0]) if group else kind.width)
            if kind.flags:
                for row in group:
                    values = list(row)
                    for place in kind.flags:
                        values[place] = int(values[place])
                    args += values
            else:
                args += chain.from_iterable(group)
        return args


@dataclass(frozen=True, slots=True)
class RowKind:
    """What `Script.args` knows of one kind of rows."""

    width: int
    has_two_widths: bool
    flags: tuple[int, ...]
    """Places of the columns that are flags."""


def load(name: str, *, keys: str, args: str, rows: type[Any] | tuple[type[Any], ...] = ()) -> Script:
    """Load `lua/<name>.lua`. `keys`, `args` and `rows` say what Python passes; see above."""
    source = _read(name)
    header = read_header(source)
    fixed = header.fixed_args
    if (header.keys, fixed) != (keys, args):
        raise AssertionError(
            f"lua/{name}.lua says KEYS {header.keys!r} ARGV {fixed!r}, Python passes {keys!r} and {args!r}"
        )
    contract = read_contract(name, header)
    contract.check_rows(rows if isinstance(rows, tuple) else (rows,))
    kinds = tuple(
        [
            RowKind(
                len(kind.columns),
                kind.has_two_widths,
                tuple([place for place, column in enumerate(kind.columns) if column.kind == "flag"]),
            )
            for kind in contract.rows
        ]
    )
    return _script(name, header, _text(contract, source, header.needs), kinds)


def _script(name: str, header: Header, source: str, rows: tuple[RowKind, ...]) -> Script:
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha, header.fixed_keys, rows, tuple(header.fixed_args.split()))


def _text(contract: Contract, source: str, needed: tuple[str, ...]) -> str:
    body = _with_includes(f"-- include: {' '.join(needed)}\n{source}")
    _check_names(contract, needed)
    code = re.sub(r"^ *--.*\n", "", body, flags=re.MULTILINE)
    has_two_queues = any(name.name == "target_prefix" for name in contract.args)
    has_task_prefix = "keys.task(" in code and not has_two_queues
    if has_task_prefix:
        code = f"local task_prefix = keys.task_prefix()\n{code}"
    code = contract.expand(script_keys.expand(code, has_task_prefix=has_task_prefix))
    return f"{contract.prologue(code)}\n{code}"


def _check_names(contract: Contract, needed: tuple[str, ...]) -> None:
    """A function of an include and an argument with the same name: one would hide the other."""
    names = {name.name for name in (*contract.keys, *contract.args)}
    names |= {column.name for rows in contract.rows for column in rows.columns}
    for include in _ordered(needed, set()):
        for name in sorted(names & set(_DEFINED.findall(_read(f"include/{include}")))):
            raise AssertionError(
                f"lua/{contract.script}.lua: the header names {name}, which include/{include}.lua defines"
            )


def _with_includes(source: str) -> str:
    """The text with its includes, each where it is first needed. What a block includes is not known outside of it."""
    known: set[str] = set()

    def place(line: re.Match[str]) -> str:
        seen = set(known)
        texts = [_read(f"include/{include}") for include in _ordered(line[1].split(), seen)]
        if line[0].startswith("--"):
            known.update(seen)
        return "\n".join(texts)

    return INCLUDE.sub(place, source)


def _ordered(names: Sequence[str], seen: set[str], path: tuple[str, ...] = ()) -> list[str]:
    """These includes and what they need, without those seen before; what is needed comes first."""
    found: list[str] = []
    for name in names:
        if name in path:
            raise AssertionError(f"lua/include: {' needs '.join((*path, name))}")
        if name not in seen:
            found += _ordered(needs(_read(f"include/{name}")), seen, (*path, name))
            seen.add(name)
            found.append(name)
    return found


@cache
def with_insert(outer: Script, insert: Script) -> Script:
    """A script that stores a task in the same step as something else: `insert` is a function inside it."""
    source = f"local insert = function(KEYS, ARGV)\n{insert.source}\nend\n{outer.source}"
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(f"{outer.name}+{insert.name}", source, sha, insert.fixed_keys, outer.rows)


@cache
def _read(name: str) -> str:
    return (resources.files("veredus") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
