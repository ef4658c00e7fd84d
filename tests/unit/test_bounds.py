"""Every lower bound in pyproject.toml is a version that `make test-lowest` runs the tests with."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name != "all"}
BOUNDS = sorted({*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)})


CAPPED = {"aioquic", "picows"}
"""What is used of these beyond their public parts may change in any release: tests/transports/test_libraries.py."""


def installed() -> dict[str, Version]:
    pins = [Requirement(line) for line in (ROOT / "requirements" / "lowest.txt").read_text().splitlines()]
    return {pin.name: Version(next(iter(pin.specifier)).version) for pin in pins}


@pytest.mark.parametrize("line", BOUNDS)
def test_the_lower_bound_is_what_the_lowest_environment_has(line: str) -> None:
    requirement = Requirement(line)
    bounds = {bound.operator: Version(bound.version) for bound in requirement.specifier}
    assert bounds.keys() == ({">=", "<"} if requirement.name in CAPPED else {">="}), "no other upper caps"
    assert installed()[requirement.name] == bounds[">="], "write requirements/lowest.txt anew: make lock"


def test_all_has_every_extra_that_is_no_web_framework() -> None:
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert Requirement(everything).extras == EXTRAS.keys() - {"fastapi", "django"}
