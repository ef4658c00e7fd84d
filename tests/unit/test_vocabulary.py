"""Users read the usual words of the field: slots, order keys, notified, waiting. The old private words stay out."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from veredus.cli.main import cli

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "veredus"
STATIC = SOURCE / "dashboard" / "static"
OLD = re.compile(
    r"\blanes?\b|\bparked\b|\btold\b|\bmend(s|ed|ing)?\b|\bwhoever\b|\bdue in 2286\b|2286-11"
    r"|\bhands\b(?! (out|over|to|it|them|back|all|messages|tasks)\b)|\b(free|busy|one) hand\b",
    re.IGNORECASE,
)
UNPLAIN = re.compile(
    r"\b(told|whoever|somebody|meanwhile|so many|mend(s|ed|ing)?|heralds?|foundry|tend(s|ed)?|insistence)\b",
    re.IGNORECASE,
)
"""Not in docstrings and comments either; there, `lane` and `parked` are words of the glossary."""
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "clients" / "js" / "README.md"])


def _found(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if OLD.search(line)]


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, (*path, name))


def _texts(path: Path) -> Iterator[str]:
    """Strings of a module that people may read: more than one word, no docstring, no key names of a script."""
    tree = ast.parse(path.read_text())
    others = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "load":
            others |= {id(node) for node in ast.walk(call)}
    for node in ast.walk(tree):
        if id(node) not in others and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from [node.value] if " " in node.value.strip() else []


def _prose(page: str) -> str:
    """A page without code and anchors: names of keys and functions are what they are."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<a id=[^>]*>|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)", "", page, flags=re.DOTALL)


def test_the_words_are_recognized() -> None:
    for text in ("two lanes", "it is parked", "the client is told", "3 of 4 hands busy", "a free hand", "mends it"):
        assert _found(text), text
    for text in ("by hand", "a pool hands out tasks", "planes", "order keys", "a handler", "recommended"):
        assert not _found(text), text


def test_help_of_every_command() -> None:
    found = {
        path: _found(one.get_help(click.Context(one, info_name="veredus", **cli.context_settings)))
        for path, one in _commands(cli)
    }
    assert len(found) > 35
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_errors_log_lines_and_other_texts_of_the_source() -> None:
    texts = {path: list(_texts(path)) for path in sorted(SOURCE.rglob("*.py"))}
    assert sum(map(len, texts.values())) > 1000
    found = {str(path.relative_to(SOURCE)): [one for one in all_ if OLD.search(one)] for path, all_ in texts.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


def _docstrings(path: Path) -> Iterator[str]:
    """Of modules, classes and functions, and what describes a constant or an attribute below it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def test_docstrings() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for text in _docstrings(path)
        for line in text.splitlines()
        if UNPLAIN.search(line)
    ]
    assert found == []


def _comments(path: Path) -> Iterator[str]:
    if path.suffix == ".lua":
        yield from (line.partition("--")[2] for line in path.read_text().splitlines())
        return
    with path.open("rb") as source:
        yield from (one.string for one in tokenize.tokenize(source.readline) if one.type == tokenize.COMMENT)


def test_comments() -> None:
    files = [path for path in sorted(SOURCE.rglob("*")) if path.suffix in (".py", ".lua")]
    found = [
        f"{path.relative_to(SOURCE)}: {line}" for path in files for line in _comments(path) if UNPLAIN.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("name", ["veredus.js", "veredus.d.ts"])
def test_the_client_for_browsers(name: str) -> None:
    assert [line for line in (ROOT / "clients" / "js" / name).read_text().splitlines() if UNPLAIN.search(line)] == []


def test_the_dashboard() -> None:
    files = [path for path in sorted(STATIC.rglob("*")) if path.suffix in (".js", ".html", ".css")]
    assert len(files) > 20
    found = {path.name: _found(path.read_text()) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_pages(page: Path) -> None:
    prose = _prose(page.read_text())
    assert _found(prose) == []
    assert [line for line in prose.splitlines() if UNPLAIN.search(line)] == []
