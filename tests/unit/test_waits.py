"""How tests wait: for events, with patience; a fixed time only to show that something does not happen.

Programs that a test writes down in a string, for a child process, count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ALLOWED = (TESTS / "support" / "waiting.py", Path(__file__))
LONGEST = 0.05
"""Seconds. Shorter ones let others have their turn; nobody waits with them for something to happen."""


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _seconds(node: ast.expr) -> float:
    """The seconds that the expression names; 0 if it is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.IfExp):
        return max(_seconds(node.body), _seconds(node.orelse))
    return 0.0


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings that may be programs, with the line that they begin in; what stands in braces becomes a name."""
    parts: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            pieces = [str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values]
            yield node.lineno, "".join(pieces)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.lineno, node.value


def _faults(source: str) -> list[tuple[int, str]]:
    """Line and fault of each wait that has to be another."""
    if "sleep" not in source and "pause" not in source:
        return []
    tree = ast.parse(source)
    found = [(node.lineno, fault) for node in ast.walk(tree) if isinstance(node, ast.Call) for fault in _wrong(node)]
    for line, text in _texts(tree):
        if "sleep" in text:
            try:
                found += [(line + at - 1, fault) for at, fault in _faults(text)]
            except SyntaxError:
                pass  # not a program
    return sorted(found)


def _wrong(call: ast.Call) -> Iterator[str]:
    name = _name(call.func)
    if name == "sleep" and call.args and _seconds(call.args[0]) >= LONGEST:
        yield (
            f"{ast.unparse(call)}: wait for the event with until() or until_sync(); hang with forever() or "
            'threading.Event().wait(); or show with pause(seconds, proves="...") that something does not happen'
        )
    if name in ("pause", "pause_sync") and (reason := _reason(call)) is not None and not reason.strip():
        yield f"{ast.unparse(call)}: say in proves= what this time shows"


def _reason(call: ast.Call) -> str | None:
    """What a pause of tests/support/waiting.py proves; None for other things of that name, such as pausing a queue."""
    if not any(word.arg == "proves" for word in call.keywords) and not _is_number(call):
        return None
    given = next((word.value for word in call.keywords if word.arg == "proves"), None)
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""


def _is_number(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and isinstance(first.value, int | float)


def test_no_test_waits_for_a_fixed_time() -> None:
    files = [path for path in sorted(TESTS.rglob("*.py")) if path not in ALLOWED]
    assert len(files) > 200
    faults = [
        f"{path.relative_to(TESTS.parent)}:{line}: {fault}"
        for path in files
        for line, fault in _faults(path.read_text(encoding="utf-8"))
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import time\ntime.sleep(0.05)", [2]),
        ("await asyncio.sleep(3600 if first else 0)", [1]),
        ("sleep(1)", [1]),
        ("time.sleep(0.04)\nawait asyncio.sleep(0)\ntime.sleep(seconds)", []),
        ('PROGRAM = """\nimport time\ntime.sleep(60)\n"""', [3]),
        ('PROGRAM = f"""\nimport {name}\ntime.sleep(60)\n"""', [3]),
        ('TEXT = "a sleep is not a program: time.sleep(60"', []),
        ('await pause(0.3, proves="nothing runs twice")\nawait app.pause("default")', []),
        ('await pause(0.3, proves="")\npause_sync(0.3)\nawait pause(0.3, proves=text)', [1, 2, 3]),
        ('pause_sync(seconds, proves=" ")', [1]),
    ],
)
def test_what_counts_as_a_fixed_time(source: str, lines: list[int]) -> None:
    program = f"async def f():\n{source}".replace("\n", "\n ") if "await" in source else source
    shift = 1 if "await" in source else 0
    assert [line - shift for line, _ in _faults(program)] == lines
