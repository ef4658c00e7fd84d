"""The programs of examples/workflows: each has tests of its own, and runs."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples/workflows"
LAST_LINES = {
    "order_saga": "refunded receipt-2",
    "approval": "ada: granted",
    "nightly": "999 bills, 102891 in all; failed: ValueError: no address",
    "agent": "booked",
}


def load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"workflow_{name}", FOLDER / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


TESTS = [
    pytest.param(function, id=f"{path.stem}-{name}")
    for path in sorted(FOLDER.glob("*.py"))
    for name, function in inspect.getmembers(load(path.stem), inspect.iscoroutinefunction)
    if name.startswith("test_")
]


def test_every_example_has_tests() -> None:
    assert {str(param.id).partition("-")[0] for param in TESTS} == set(LAST_LINES)


@pytest.mark.parametrize("function", TESTS)
async def test_of_an_example(function: Any) -> None:
    await function()


@pytest.mark.parametrize("name", LAST_LINES)
async def test_an_example_runs(name: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = load(name)
    module.app.use(url)
    await module.main()
    assert LAST_LINES[name] in capsys.readouterr().out
