"""Parses the header of a Lua file and generates the Lua code that follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, get_type_hints

_LINE = re.compile(r"^-- (KEYS|ARGV|RETURNS|NEEDS)\b[ \t]*(.*(?:\n--  +.*)*)$", re.MULTILINE)
INCLUDE = re.compile(r"^ *-- include:(.*)$", re.MULTILINE)
_GROUP = re.compile(r"ROWS(?:\((\w+)\))?")
_NAME = re.compile(r"(\[?)(\w+)(?::(number|flag))?(\]?)")
_LOOP = re.compile(r"\bfor (\w+), ([\w, ]+?) in (\w+)\(\) do\b")
_ROW = re.compile(r"\blocal ([\w, ]+?) = (\w+)\((\w+)\)(?!\.)")
_CELL = re.compile(r"\b(\w+)\((\w+)\)\.(\w+)")


@dataclass(frozen=True, slots=True)
class Name:
    """A key, an argument or a column of a row."""

    name: str
    kind: str = ""
    """`number` or `flag`; empty for text."""
    is_optional: bool = False

    def read(self, value: str) -> str:
        """Lua code that reads it from its place in ARGV."""
        if self.kind == "number":
            return f"tonumber({value})"
        return f"{value} == '1'" if self.kind == "flag" else value


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows at the end of ARGV. Their number comes first, then their width if they have optional columns."""

    name: str
    columns: tuple[Name, ...]
    first: str
    """Lua code: where in ARGV the first row begins."""

    @property
    def has_two_widths(self) -> bool:
        return any(column.is_optional for column in self.columns)

    def cell(self, row: str, column: Name) -> str:
        """Lua code that reads one column of a row; `row` is counted from 1."""
        position, width = self.columns.index(column), len(self.columns)
        if self.has_two_widths:
            value = f"ARGV[{self.name}_first + ({row} - 1) * {self.name}_width + {position}]"
            return (
                f"{self.name}_width == {width} and {column.read(value)}" if column.is_optional else column.read(value)
            )
        step = row if width == 1 else f"{row} * {width}"
        if self.first.isdigit():
            offset = int(self.first) - width + position
            place = f"{step} {'-' if offset < 0 else '+'} {abs(offset)}" if offset else step
        else:
            place = f"{self.first} + {step} - {width - position}"
        return column.read(f"ARGV[{place}]")

    def select(self, names: str, row: str, script: str) -> str:
        """`local` and the columns with these names, of one row."""
        known = {column.name: column for column in self.columns}
        wanted = [name.strip() for name in names.split(",")]
        for name in wanted:
            if name not in known:
                raise AssertionError(
                    f"lua/{script}.lua reads the column {name!r} of {self.name}, its header has no such column"
                )
        return f"local {', '.join(wanted)} = {', '.join(self.cell(row, known[name]) for name in wanted)}"


@dataclass(frozen=True, slots=True)
class Header:
    keys: str
    args: str
    needs: tuple[str, ...]
    includes: tuple[str, ...]
    """All includes that the file names, at its top or further down."""

    @property
    def fixed_args(self) -> str:
        """The names of the arguments without the rows."""
        return re.sub(r":(number|flag)\b", "", self.args.partition("ROWS")[0]).strip()

    @property
    def fixed_keys(self) -> bool:
        return not any(mark in self.keys for mark in ("[", "MORE"))


def read_header(source: str) -> Header:
    found = {kind: " ".join(text.replace("\n--", " ").split()) for kind, text in _LINE.findall(source)}
    missing = [kind for kind in ("KEYS", "ARGV", "RETURNS", "NEEDS") if kind not in found]
    if missing:
        raise AssertionError(f"a script opens with -- KEYS, -- ARGV, -- RETURNS and -- NEEDS: {missing[0]} is missing")
    needed = needs(source)
    includes = (*needed, *" ".join(INCLUDE.findall(source)).split())
    return Header(found["KEYS"], found["ARGV"], needed, tuple(dict.fromkeys(includes)))


def needs(source: str) -> tuple[str, ...]:
    """The includes that a file names in its header."""
    for kind, text in _LINE.findall(source):
        if kind == "NEEDS":
            names = tuple(text.replace("\n--", " ").split())
            return () if names == ("nothing",) else names
    return ()


@dataclass(frozen=True, slots=True)
class Contract:
    """The names of a header, parsed."""

    script: str
    keys: tuple[Name, ...]
    more_keys: str
    """The list of all further keys; empty if there are none."""
    args: tuple[Name, ...]
    rows: tuple[Rows, ...]

    def prologue(self, body: str) -> str:
        """Lua code that names keys and arguments, as far as the body uses them."""
        lines = ["local KEYS, ARGV = KEYS, ARGV"]
        given = [(key.name, f"KEYS[{place}]") for place, key in enumerate(self.keys, 1)]
        given += [(arg.name, arg.read(f"ARGV[{place}]")) for place, arg in enumerate(self.args, 1)]
        used = [(name, value) for name, value in given if re.search(rf"\b{name}\b", body)]
        if used:
            lines.append(f"local {', '.join(name for name, _ in used)} = {', '.join(value for _, value in used)}")
        if self.more_keys:
            lines.append(f"local {self.more_keys} = {{ unpack(KEYS, {len(self.keys) + 1}, #KEYS) }}")
        place = str(len(self.args) + 1)
        for rows in self.rows:
            width = str(len(rows.columns))
            lines.append(f"local {rows.name}_count = tonumber(ARGV[{place}])")
            if rows.has_two_widths:
                lines.append(f"local {rows.name}_width = tonumber(ARGV[{place} + 1])")
                width = f"{rows.name}_width"
            elif re.search(rf"\b{rows.name}_width\b", body):
                lines.append(f"local {rows.name}_width = {width}")
            if rows.has_two_widths or not rows.first.isdigit() or re.search(rf"\b{rows.name}_first\b", body):
                first = f"{place} + {2 if rows.has_two_widths else 1}"
                lines.append(f"local {rows.name}_first = {first}")
                place = f"{rows.name}_first + {rows.name}_count * {width}"
            else:
                place = f"{rows.first} + {rows.name}_count * {width}"
        if "given_now_ms" in body:
            lines.append(f"local given_now_ms = ARGV[{place}]")
        return "\n".join(lines)

    def expand(self, source: str) -> str:
        """Lua code with every `for i, column in rows() do` and `local column = rows(i)` written out, which saves the
        call of an iterator function for each row."""
        groups = {rows.name: rows for rows in self.rows}

        def loop(found: re.Match[str]) -> str:
            if found[3] not in groups:
                return found[0]
            selected = groups[found[3]].select(found[2], found[1], self.script)
            return f"for {found[1]} = 1, {found[3]}_count do {selected}"

        def row(found: re.Match[str]) -> str:
            return groups[found[2]].select(found[1], found[3], self.script) if found[2] in groups else found[0]

        def cell(found: re.Match[str]) -> str:
            if found[1] not in groups:
                return found[0]
            return f"({groups[found[1]].select(found[3], found[2], self.script).partition(' = ')[2]})"

        return _CELL.sub(cell, _ROW.sub(row, _LOOP.sub(loop, source)))

    def check_rows(self, types: tuple[type[Any], ...]) -> None:
        """Refuse Python row types that differ from the header."""
        if len(types) != len(self.rows):
            raise AssertionError(
                f"lua/{self.script}.lua has {len(self.rows)} kinds of rows, Python passes {len(types)}"
            )
        for rows, row_type in zip(self.rows, types, strict=True):
            columns = [(column.name, column.kind == "flag") for column in rows.columns]
            fields = [(field, hint is bool) for field, hint in get_type_hints(row_type).items()]
            if columns != fields:
                raise AssertionError(
                    f"lua/{self.script}.lua lists the columns {_words(columns)}, "
                    f"Python's {row_type.__name__} has {_words(fields)}"
                )


def read_contract(script: str, header: Header) -> Contract:
    named, _, more = header.keys.partition("MORE")
    args, *groups = _split(header.args)
    rows: list[Rows] = []
    for name, columns in groups:
        is_first = not rows and not any(column.is_optional for column in columns)
        rows.append(Rows(name, columns, str(len(args[1]) + 2) if is_first else f"{name}_first"))
    return Contract(script, _names(named.split()), more.strip(), args[1], tuple(rows))


def _split(text: str) -> list[tuple[str, tuple[Name, ...]]]:
    """The arguments, then each group of rows with its name."""
    groups: list[tuple[str, list[str]]] = [("", [])]
    for word in text.split():
        group = _GROUP.fullmatch(word)
        if group:
            groups.append((group[1] or "rows", []))
        else:
            groups[-1][1].append(word)
    return [(name, _names(words)) for name, words in groups]


def _names(words: list[str]) -> tuple[Name, ...]:
    found, is_optional = [], False
    for word in words:
        name = _NAME.fullmatch(word)
        if not name:
            raise AssertionError(f"{word!r} is no name: a word, perhaps with :number or :flag, in brackets if optional")
        is_optional = is_optional or bool(name[1])
        found.append(Name(name[2], name[3] or "", is_optional))
        is_optional = is_optional and not name[4]
    return tuple(found)


def _words(columns: list[tuple[str, bool]]) -> str:
    return " ".join(f"{name}:flag" if is_flag else name for name, is_flag in columns)
