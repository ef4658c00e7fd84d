"""No task and no thread is started anywhere without an entry in the list of places."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import veredus
from tests.restarts.places import PLACES

ROOT = Path(veredus.__file__).parent
TOOLS = ("cli", "demo", "testing")
"""They end with the command or the test that uses them."""
STARTERS = {"create_task", "ensure_future", "Thread", "to_thread", "run_in_executor"}


def _starts(node: ast.AST, function: str = "") -> Iterator[str]:
    """The functions that start something."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    if isinstance(node, ast.Call):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name in STARTERS:
            yield function
    for inner in ast.iter_child_nodes(node):
        yield from _starts(inner, function)


def test_every_task_and_thread_has_an_entry() -> None:
    found: set[tuple[str, str]] = set()
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT)
        if name.parts[0] not in TOOLS:
            tree = ast.parse(path.read_text())
            found.update((str(name), function) for function in _starts(tree))
    assert found - PLACES.keys() == set(), "say in tests/restarts/places.py what happens when it ends"
    assert PLACES.keys() - found == set(), "nothing is started there any more"
