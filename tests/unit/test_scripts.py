"""The Lua files: headers that say everything, includes that exist, and a loader that refuses what does not fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import veredus.store
from veredus.model.lifecycle import TRANSITIONS
from veredus.model.settlement import Settlement
from veredus.store.connection import scripts
from veredus.store.connection.script_header import needs, read_contract, read_header
from veredus.store.connection.scripts import Script, load
from veredus.store.tasks.intake import ENQUEUE

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
    named = [line.split()[1] for line in lines if re.match(r"-- (KEYS|ARGV|RETURNS|NEEDS)\b", line)]
    assert named == ["KEYS", "ARGV", "RETURNS", "NEEDS"]
    assert re.search(r"^-- RETURNS  \S", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", INCLUDES, ids=name)
def test_an_include_says_what_its_functions_do(path: Path) -> None:
    source = path.read_text()
    functions = re.findall(r"^local function (\w+)", source, re.MULTILINE)
    assert functions
    for function in functions:
        assert re.search(rf"^-- {function}: ", source, re.MULTILINE), function


def code_of(path: Path) -> str:
    return "\n".join(line for line in path.read_text().splitlines() if not line.strip().startswith("--"))


def defined_in(path: Path) -> set[str]:
    return set(re.findall(r"^local (?:function )?(\w+)", path.read_text(), re.MULTILINE))


def named_by(path: Path) -> list[str]:
    """The includes that a file names, at its top or further down."""
    source = path.read_text()
    return [*needs(source), *" ".join(re.findall(r"^ *-- include:(.*)$", source, re.MULTILINE)).split()]


@pytest.mark.parametrize("path", [*FILES, *INCLUDES], ids=name)
def test_a_file_needs_the_includes_whose_names_it_uses_and_no_others(path: Path) -> None:
    code, own = code_of(path), defined_in(path) | set(re.findall(r"local function (\w+)", path.read_text()))
    named = named_by(path)
    for include in INCLUDES:
        names = "|".join(sorted(defined_in(include) - own))
        uses = set(re.findall(rf"(?<![\w.:'])(?:{names})(?=\()", code)) if names and include != path else set()
        if uses:
            assert include.stem in named, f"{path.name} uses {uses} of {include.stem}"
        if include.stem in named:
            assert re.search(rf"(?<![\w.:'])(?:{names})\b", code), f"{path.name} uses nothing of {include.stem}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_script_uses_every_argument_and_every_column(path: Path) -> None:
    """Keys may be there for the cluster's sake alone, and all scripts of the inspector are passed the prefix."""
    contract = read_contract(name(path), read_header(path.read_text()))
    code = "\n".join(code_of(file) for file in [path, *[LUA / f"include/{stem}.lua" for stem in named_by(path)]])
    for argument in (*contract.args, *[column for rows in contract.rows for column in rows.columns]):
        is_inspect = path.parent.name == "inspect"
        is_prefix = argument.name == "queue_prefix" and (is_inspect or re.search(r"(?<!session_)keys\.", code))
        assert is_prefix or re.search(rf"\b{argument.name}\b", code), argument.name


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_script_is_loaded_by_the_store(path: Path) -> None:
    assert any(f'"{name(path)}"' in module.read_text() for module in STORE.rglob("*.py"))


ANOTHER_NAME = {
    "durable/step": "one row of a durable handler's run",
    "inspect/list": "page: Python has a type with this name",
    "keep/mark": "run by every call that waits for replicas or the disk",
    "node/list": "known: Python has a type with this name",
    "order/list": "pages: Python has a type with this name",
    "outbox/post": "append_to_users: an append to all sessions of a user",
    "result/await": "look, and wait: await is a keyword of Python",
    "task/holders": "add, of unique tasks: also tells who has their locks",
    "task/replace": "add, with replace=True",
    "task/room": "add, to a queue with a maximum length",
    "task/schedule": "add, of delayed tasks",
}
"""Scripts that a function with another name calls, and why."""


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_verb_has_one_name_in_lua_and_in_the_store(path: Path) -> None:
    for module in STORE.rglob("*.py"):
        text = module.read_text()
        constant = re.search(rf'^(\w+) = load\(\s*"{name(path)}"', text, re.MULTILINE)
        if constant:
            assert re.fullmatch(rf"{path.stem.upper()}(_\w+)?", constant[1])
            has_function = re.search(rf"def _?{path.stem}(_\w+)?\(", text) is not None
            assert has_function != (name(path) in ANOTHER_NAME), module


@pytest.mark.parametrize("verb", TRANSITIONS)
def test_a_verb_of_the_life_cycle_has_one_name_in_lua_store_model_and_tests(verb: str) -> None:
    assert any(path.stem == verb for path in FILES)
    tests = [*Path(__file__).parents[1].rglob("test_*.py")]
    assert any(re.search(rf"\b({verb}|{verb.upper()})\b", file.read_text()) for file in tests)


@pytest.mark.parametrize("settlement", get_args(Settlement), ids=lambda settlement: settlement.__name__)
def test_a_settlement_is_named_after_its_script(settlement: type) -> None:
    verb = settlement.__name__.lower()
    assert (LUA / f"task/{verb}.lua").exists()
    assert verb in TRANSITIONS


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_script_unpacks_a_table_without_bounds(path: Path) -> None:
    for call in re.findall(r"unpack\(([^)]*)\)", path.read_text()):
        assert call.count(",") == 2 or re.match(r"read\(|redis\.p?call\('", call), call


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    files: dict[str, str] = {"include/one": "local one = 1", "include/two": "local two = 2"}
    monkeypatch.setattr(scripts, "_read", files.__getitem__)
    return files


HEADER = "-- verb: do it.\n-- KEYS  a b\n-- ARGV  x y:number ROWS task_id is_new:flag\n-- RETURNS  1\n"


class Row(NamedTuple):
    task_id: str
    is_new: bool


def load_verb(**changes: Any) -> Script:
    return load("task/verb", **{"keys": "a b", "args": "x y", "rows": Row, **changes})


def test_a_header_lacks_no_line(fake: dict[str, str]) -> None:
    fake["task/verb"] = HEADER + "return 1"
    with pytest.raises(AssertionError, match="NEEDS is missing"):
        load_verb()


@pytest.mark.parametrize("path", [*FILES, *INCLUDES], ids=name)
def test_nothing_is_read_by_its_position(path: Path) -> None:
    """The arguments, keys and fields of a script have names; `page[i]` is an element of a list."""
    assert (
        not re.findall(r"(?:ARGV|KEYS)\[|\b(?:fields|row|values|found)\[\d", code_of(path)) or path.stem == "ownership"
    )
    assert not re.search(r"'(?:asynq|veredus):|queue_prefix \.\.", code_of(path))


def lua_of(script: Script) -> str:
    return " ".join(script.source.split())


def test_what_the_header_lists_and_the_script_uses_gets_a_name(fake: dict[str, str]) -> None:
    fake["task/verb"] = HEADER + "-- NEEDS  nothing\nreturn { b, y, rows_count }"
    assert lua_of(load_verb()).endswith(
        "local b, y = KEYS[2], tonumber(ARGV[2]) local rows_count = tonumber(ARGV[3]) return { b, y, rows_count }"
    )


def test_columns_are_read_by_name_in_any_order(fake: dict[str, str]) -> None:
    fake["task/verb"] = (
        HEADER + "-- NEEDS  nothing\nfor i, is_new, task_id in rows() do end\nlocal task_id = rows(last)\nreturn x"
    )
    text = lua_of(load_verb())
    assert "for i = 1, rows_count do local is_new, task_id = ARGV[i * 2 + 3] == '1', ARGV[i * 2 + 2] end" in text
    assert "local task_id = ARGV[last * 2 + 2] return x" in text


def test_a_column_that_the_header_does_not_list_stops_the_import(fake: dict[str, str]) -> None:
    fake["task/verb"] = HEADER + "-- NEEDS  nothing\nfor i, task_id, owner in rows() do end\nreturn x"
    with pytest.raises(AssertionError, match="reads the column 'owner' of rows"):
        load_verb()


def test_kinds_of_rows_follow_one_another_and_the_time_comes_last(fake: dict[str, str]) -> None:
    fake["task/verb"] = (
        "-- verb: do it.\n-- KEYS  a\n-- ARGV  x ROWS(old) task_id ROWS(new) task_id [is_new:flag]\n-- RETURNS  1\n"
        "-- NEEDS  nothing\nfor i, task_id in old() do end\nfor i, task_id, is_new in new() do end\n"
        "return { x, given_now_ms }"
    )

    class Old(NamedTuple):
        task_id: str

    script = load_verb(keys="a", args="x", rows=(Old, Row))
    assert script.args(["x"], [("o",)], [("n", True), ("m", False)]) == ["x", 1, "o", 2, 2, "n", 1, "m", 0]
    text = lua_of(script)
    assert "local old_count = tonumber(ARGV[2]) local new_count = tonumber(ARGV[3 + old_count * 1])" in text
    assert "for i = 1, old_count do local task_id = ARGV[i + 2] end" in text
    assert "new_width == 2 and ARGV[new_first + (i - 1) * new_width + 1] == '1' end" in text
    assert "local given_now_ms = ARGV[new_first + new_count * new_width]" in text


def test_further_keys_are_a_list_and_make_the_number_of_keys_unknown(fake: dict[str, str]) -> None:
    fake["task/verb"] = HEADER.replace("a b", "a MORE others") + "-- NEEDS  nothing\nreturn { a, others[1] }"
    script = load_verb(keys="a MORE others")
    assert "local others = { unpack(KEYS, 2, #KEYS) }" in script.source
    assert not script.fixed_keys


@pytest.mark.parametrize(
    "changes",
    [{"keys": "b a"}, {"keys": "a"}, {"args": "y x"}, {"args": "x"}, {"args": ""}],
    ids=str,
)
def test_keys_and_arguments_that_python_names_otherwise_stop_the_import(
    fake: dict[str, str], changes: dict[str, Any]
) -> None:
    fake["task/verb"] = HEADER + "-- NEEDS  nothing\nreturn 1"
    with pytest.raises(AssertionError, match=r"task/verb\.lua says KEYS 'a b' ARGV 'x y'"):
        load_verb(**changes)


def test_rows_that_differ_from_the_header_stop_the_import(fake: dict[str, str]) -> None:
    class Swapped(NamedTuple):
        is_new: bool
        task_id: str

    class NoFlag(NamedTuple):
        task_id: str
        is_new: int

    fake["task/verb"] = HEADER + "-- NEEDS  nothing\nreturn 1"
    with pytest.raises(AssertionError, match="columns task_id is_new:flag, Python's Swapped has is_new:flag task_id"):
        load_verb(rows=Swapped)
    with pytest.raises(AssertionError, match="Python's NoFlag has task_id is_new"):
        load_verb(rows=NoFlag)
    with pytest.raises(AssertionError, match="1 kinds of rows, Python passes 0"):
        load_verb(rows=())


@pytest.mark.parametrize("missing", ["KEYS", "ARGV", "RETURNS"])
def test_a_script_without_a_whole_header_is_refused(fake: dict[str, str], missing: str) -> None:
    fake["task/verb"] = "\n".join(line for line in HEADER.splitlines() if missing not in line)
    with pytest.raises(AssertionError, match="opens with"):
        load_verb()


def test_a_name_that_an_include_defines_again_stops_the_import(fake: dict[str, str]) -> None:
    fake["include/one"] = "local function y() end"
    fake["task/verb"] = HEADER + "-- NEEDS  one\nreturn y"
    with pytest.raises(AssertionError, match=r"task/verb\.lua: the header names y, which include/one\.lua defines"):
        load_verb()


def test_includes_come_once_after_what_they_need(fake: dict[str, str]) -> None:
    fake["include/three"] = "-- NEEDS  two one\nlocal three = 3"
    fake["include/two"] = "-- NEEDS  one\nlocal two = 2"
    fake["task/verb"] = HEADER + "-- NEEDS  three two\nreturn three"
    assert lua_of(load_verb()).endswith("local one = 1 local two = 2 local three = 3 return three")


def test_an_include_in_a_block_is_known_only_there(fake: dict[str, str]) -> None:
    """So that a script need not make functions that it seldom needs."""
    fake["task/verb"] = HEADER + (
        "-- NEEDS  nothing\nif x then\n  -- include: one\nend\n-- include: one two\nif y then\n  -- include: two\nend"
    )
    assert lua_of(load_verb()).endswith("if x then local one = 1 end local one = 1 local two = 2 if y then end")


def test_includes_that_need_each_other_are_refused(fake: dict[str, str]) -> None:
    fake["include/one"], fake["include/two"] = "-- NEEDS  two\n", "-- NEEDS  one\n"
    fake["task/verb"] = HEADER + "-- NEEDS  one\nreturn 1"
    with pytest.raises(AssertionError, match="one needs two needs one"):
        load_verb()


def test_an_include_that_does_not_exist_is_refused(fake: dict[str, str]) -> None:
    fake["task/verb"] = HEADER + "-- NEEDS  three\n"
    with pytest.raises(KeyError, match="include/three"):
        load_verb()


def test_real_scripts_carry_their_includes() -> None:
    assert "local function clock(" in ENQUEUE.source
    assert ENQUEUE.source.index("local function clock(") < ENQUEUE.source.index("now_up, nanoseconds = clock()")
