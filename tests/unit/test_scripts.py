"""The Lua files: headers that say everything, includes that exist, and a loader that refuses what does not fit."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import veredus.store
from veredus.store import scripts
from veredus.store.intake import ENQUEUE
from veredus.store.scripts import load, read_header

LUA = Path(veredus.store.__file__).parent.parent / "lua"
INCLUDES = sorted(LUA.glob("include/*.lua"))
FILES = sorted(path for path in LUA.rglob("*.lua") if path.parent.name != "include")
STORE = Path(veredus.store.__file__).parent


def name(path: Path) -> str:
    return str(path.relative_to(LUA).with_suffix(""))


def test_there_are_scripts() -> None:
    assert len(FILES) >= 14
    assert len(INCLUDES) >= 6


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_script_opens_with_its_verb_and_names_all_it_takes_and_gives(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert re.fullmatch(rf"-- {path.stem}: .+[.;]", lines[0])
    assert [line.split()[1] for line in lines[1:4]] == ["KEYS", "ARGV", "RETURNS"]
    assert len(lines[3].split()) > 2


@pytest.mark.parametrize("path", INCLUDES, ids=name)
def test_an_include_says_what_its_functions_do(path: Path) -> None:
    source = path.read_text()
    functions = re.findall(r"^local function (\w+)", source, re.MULTILINE)
    assert functions
    for function in functions:
        assert re.search(rf"^-- {function}: ", source, re.MULTILINE), function


@pytest.mark.parametrize("path", FILES, ids=name)
def test_includes_exist_and_are_the_ones_used(path: Path) -> None:
    source = path.read_text()
    code = "\n".join(line for line in source.splitlines() if not line.startswith("--"))
    included = read_header(source).includes
    for name in included:
        assert (LUA / "include" / f"{name}.lua").exists()
    for include in INCLUDES:
        defined = re.findall(r"^local function (\w+)", include.read_text(), re.MULTILINE)
        own = re.findall(r"local function (\w+)", code)
        uses = [function for function in defined if function not in own and re.search(rf"\b{function}\(", code)]
        if uses:
            assert include.stem in included, f"{path.name} uses {uses} of {include.stem}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_script_is_loaded_by_the_store(path: Path) -> None:
    assert any(f'"{name(path)}"' in module.read_text() for module in STORE.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_script_unpacks_a_table_without_bounds(path: Path) -> None:
    for call in re.findall(r"unpack\(([^)]*)\)", path.read_text()):
        assert call in ("KEYS", "ARGV") or call.count(",") == 2, call


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    files: dict[str, str] = {"include/one": "local one = 1", "include/two": "local two = 2"}
    monkeypatch.setattr(scripts, "_read", files.__getitem__)
    return files


HEADER = "-- verb: do it.\n-- KEYS  a b\n-- ARGV  x {y z}* [now_ms]\n-- RETURNS  1\n"


def test_a_matching_header_loads(fake: dict[str, str]) -> None:
    fake["task/verb"] = HEADER + "return 1"
    script = load("task/verb", keys="a b", args="x {y z}* [now_ms]")
    assert script.name == "task/verb"
    assert script.sha == hashlib.sha1(script.source.encode()).hexdigest()


@pytest.mark.parametrize(
    ("keys", "args"),
    [
        ("b a", "x {y z}* [now_ms]"),
        ("a", "x {y z}* [now_ms]"),
        ("a b", "x {z y}* [now_ms]"),
        ("a b", "x {y z}*"),
        ("a b", ""),
    ],
)
def test_a_header_that_differs_from_what_python_passes_stops_the_import(
    fake: dict[str, str], keys: str, args: str
) -> None:
    fake["task/verb"] = HEADER + "return 1"
    with pytest.raises(AssertionError, match=r"task/verb\.lua says KEYS 'a b'"):
        load("task/verb", keys=keys, args=args)


@pytest.mark.parametrize("missing", ["KEYS", "ARGV", "RETURNS"])
def test_a_script_without_a_whole_header_is_refused(fake: dict[str, str], missing: str) -> None:
    fake["task/verb"] = "\n".join(line for line in HEADER.splitlines() if missing not in line)
    with pytest.raises(AssertionError, match="opens with"):
        load("task/verb", keys="a b", args="x {y z}* [now_ms]")


def test_includes_stand_where_they_are_asked_for_in_the_order_given(fake: dict[str, str]) -> None:
    """So that a script need not make functions that it seldom needs."""
    fake["task/verb"] = HEADER + "-- include: two\nif two then\n  -- include: one two\n  return one\nend"
    source = load("task/verb", keys="a b", args="x {y z}* [now_ms]").source
    assert source == HEADER + "local two = 2\nif two then\nlocal one = 1\nlocal two = 2\n  return one\nend"
    assert read_header(fake["task/verb"]).includes == ("two", "one", "two")


def test_an_include_that_does_not_exist_is_refused(fake: dict[str, str]) -> None:
    fake["task/verb"] = HEADER + "-- include: three\n"
    with pytest.raises(KeyError, match="include/three"):
        load("task/verb", keys="a b", args="x {y z}* [now_ms]")


def test_real_scripts_carry_their_includes() -> None:
    assert "local function clock(" in ENQUEUE.source
    assert ENQUEUE.source.index("local function clock(") < ENQUEUE.source.index("local now, now_up, nanoseconds =")
