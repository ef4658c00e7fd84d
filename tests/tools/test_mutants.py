"""`make mutants`: what it says of lists, mutants and tests that fail anyway; and that it leaves nothing changed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tools.mutants.__main__ import ROOT, main
from tools.mutants.drawing import AREAS, draw
from tools.mutants.drawing import main as drawing
from tools.mutants.entries import read
from tools.mutants.likely import LIKELY, likely

from tests.support.waiting import until_sync

PRICE = """\
TAX = 2
HIDES_TESTS = False


def price(cups: int) -> int:
    while cups < 0:
        cups += 1
    return cups * 3 + TAX


def rebate(cups: int) -> int:
    return cups - 1
"""
TESTS = """\
import subprocess, sys
from shop.price import TAX, price, rebate

def test_price():
    assert price(-1) == TAX and price(2) == 6 + TAX

def test_tax_in_a_child_with_an_environment_of_its_own():
    code = "from shop.price import TAX; print(TAX)"
    assert subprocess.run([sys.executable, "-c", code], env={}, capture_output=True).stdout.strip() == b"2"

def test_rebate_is_int():
    assert isinstance(rebate(3), int)
"""
CONFTEST = """\
from shop.price import HIDES_TESTS

def pytest_collection_modifyitems(items):
    if HIDES_TESTS:
        items.clear()
"""
LATE = """\
from shop.price import rebate

def test_rebate():
    assert rebate(3) == 2
"""


class Project:
    """A tiny project in a git checkout of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("src/shop/__init__.py", "")
        self.write("src/shop/price.py", PRICE)
        self.write("tests/conftest.py", CONFTEST)
        self.write("tests/test_price.py", TESTS)
        self.write("tests/test_late.py", LATE)
        self.write(".gitignore", "__pycache__/\nsecret.txt\n")
        self.write("secret.txt", "ignored")
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
        subprocess.run(["git", "add", "-A"], cwd=root, check=True)

    def write(self, file: str, text: str) -> None:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def mutants(self, *entries: dict[str, Any]) -> Path:
        """A list of them; what an entry leaves out is the change of `price` that `test_price` notices."""
        usual = {"file": "src/shop/price.py", "old": "cups * 3", "new": "cups * 4", "breaks": "the price"}
        usual["tests"] = ["tests/test_price.py::test_price"]  # type: ignore[assignment]
        lines = []
        for entry in entries:
            lines.append("[[mutant]]")
            whole = {key: value for key, value in {**usual, **entry}.items() if value is not None}
            lines += [f"{key} = {json.dumps(value)}" for key, value in whole.items()]
        self.write("tests/mutants/shop.toml", "\n".join(lines))
        return self.root / "tests/mutants/shop.toml"

    def content(self) -> dict[str, tuple[str, float]]:
        return {
            str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime)
            for path in self.root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Copies are made in a folder of the test's own, so that what is left of them can be seen."""
    (tmp_path / "copies").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "copies"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # a tiny project needs few of the plugins that this one has, and they take most of the time of a short run
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    return Project(tmp_path / "project")


def copies(project: Project) -> list[Path]:
    return list((project.root.parent / "copies").glob("veredus-mutants-*"))


def test_each_end_of_a_run_is_told_apart_and_the_checkout_is_left_as_it_was(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    late, vague = ["tests/test_late.py"], ["tests/test_price.py::test_rebate_is_int"]
    project.mutants(
        {},
        {"old": "cups - 1", "new": "cups - 2", "breaks": "rebate", "tests": vague},
        {"old": "TAX = 2", "new": "TAKS = 2", "breaks": "it imports"},
        {"old": "TAX = 2", "new": "raise SystemError", "breaks": "conftest.py imports", "tests": late},
        {"old": "HIDES_TESTS = False", "new": "HIDES_TESTS = True", "breaks": "collecting", "tests": late},
        {"old": "TAX = 2", "new": "TAX = 3", "breaks": "the tax", "tests": ["tests/test_price.py"]},
        {"old": "* 3", "new": "* 5", "breaks": "the price again"},
    )  # fmt: skip
    before = project.content()

    assert main(["--json", "--jobs", "2"], project.root) == 1

    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert [(one["breaks"], one["verdict"]) for one in told["mutants"]] == [
        ("the price", "killed"),
        ("rebate", "survived"),
        ("it imports", "error"),
        ("conftest.py imports", "error"),
        ("collecting", "error"),
        ("the tax", "killed"),
        ("the price again", "killed"),
    ]
    assert told["counts"] == {"killed": 3, "survived": 1, "error": 3}
    reasons = {one["breaks"]: one["by"] for one in told["mutants"]}
    assert reasons["the price"] == "test_price::test_price"
    assert reasons["the tax"] == "test_price::test_tax_in_a_child_with_an_environment_of_its_own"
    assert reasons["it imports"].startswith("it does not import: ")
    assert reasons["conftest.py imports"].startswith("it does not import: ")
    assert reasons["collecting"].startswith("no tests were collected (exit code 5): ")
    assert told["mutants"][1]["line"] == 12
    assert told["mutants"][1]["area"] == "price"
    assert "[7/7]" in captured.err
    assert project.content() == before
    assert copies(project) == []


def test_a_mutant_that_hangs_is_killed_by_the_time_limit(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.mutants({"old": "cups += 1", "new": "pass", "breaks": "it ends"})

    assert main(["--json", "--limit", "1.5"], project.root) == 0

    (told,) = json.loads(capsys.readouterr().out)["mutants"]
    assert (told["verdict"], told["by"]) == ("timed out", "after 1.5 s")
    assert told["seconds"] >= 1.5


def test_when_all_are_killed_it_ends_well_and_counts_them(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    given = project.mutants({}, {"breaks": "another", "old": "cups < 0", "new": "cups < 1"})

    assert main([str(given), "--only", "the price"], project.root) == 0

    captured = capsys.readouterr()
    assert "1 mutants in" in captured.out
    assert captured.out.split()[:9] == ["area", "killed", "timed", "out", "survived", "error", "price", "1", "0"]
    assert "killed" in captured.err
    assert "shop/price.py:8" in captured.err


def test_a_survivor_is_shown_with_its_place_and_its_change(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.mutants({"old": "cups - 1", "new": "cups -\\\n  2", "breaks": "the rebate"})

    assert main([], project.root) == 1

    out = capsys.readouterr().out
    assert "src/shop/price.py:12  the rebate" in out
    assert "cups - 1  ->  cups -\\ 2" in out
    assert "tests/mutants/shop.toml, entry 1" in out


def test_the_whole_suite_is_asked_where_no_tests_are_named_and_on_demand(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.mutants(
        {"old": "cups - 1", "new": "cups - 2", "breaks": "named"},
        {"old": "cups - 1", "new": "cups - 3", "breaks": "unnamed", "tests": None},
    )

    assert main(["--json", "--whole"], project.root) == 0

    told = json.loads(capsys.readouterr().out)["mutants"]
    assert [(one["verdict"], one["by"]) for one in told] == [("killed", "test_late::test_rebate")] * 2


def test_it_takes_files_as_they_stand_new_ones_too_but_none_that_git_ignores(project: Project) -> None:
    project.write("src/shop/price.py", PRICE.replace("cups * 3", "cups * 7"))
    project.write(
        "tests/test_new.py",
        "import pathlib\nfrom shop.price import price\n\n"
        "def test_new():\n    assert price(1) == 9\n    assert not pathlib.Path('secret.txt').exists()\n",
    )
    project.mutants({"old": "cups * 7", "tests": ["tests/test_new.py"]})
    (project.root / "tests/test_late.py").unlink()

    assert main([], project.root) == 0


def test_tests_that_fail_anyway_stop_it(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.write("tests/test_late.py", LATE.replace("== 2", "== 1"))
    project.mutants({}, {"tests": ["tests/test_late.py"], "new": "cups * 9"})

    assert main([], project.root) == 2

    err = capsys.readouterr().err
    assert "the tests do not pass without any mutant: test_late::test_rebate" in err
    assert "[1/" not in err
    assert copies(project) == []


@pytest.mark.parametrize("test", ["tests/test_price.py::test_gone", "tests/conftest.py"])
def test_a_test_that_is_not_there_stops_it(project: Project, capsys: pytest.CaptureFixture[str], test: str) -> None:
    project.mutants({"tests": [test]})

    assert main([], project.root) == 2

    assert "the tests do not pass without any mutant" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"old": "cups * 33"}, "old: no longer occurs in src/shop/price.py; it must occur exactly once: cups * 33"),
        ({"old": "cups"}, "old: occurs 6 times in src/shop/price.py"),
        ({"new": "cups * 3"}, "new: is the same as old"),
        ({"new": "cups * * 3"}, "new: what results is not Python: "),
        ({"file": "src/shop/tea.py"}, "file: src/shop/tea.py: there is no such file in the project"),
        ({"file": "../../outside.py"}, "file: ../../outside.py: there is no such file in the project"),
        ({"file": None}, "file: is None, a string is needed"),
        ({"breaks": " "}, "breaks: is empty"),
        ({"new": 4}, "new: is 4, a string is needed"),
        ({"brakes": "x"}, "brakes: unknown; allowed are file, old, new, breaks, tests"),
        ({"tests": []}, "tests: is [], a list of pytest's names is needed"),
        ({"tests": "tests/test_price.py"}, "tests: is 'tests/test_price.py', a list of pytest's names is needed"),
        ({"tests": ["tests/test_tea.py::test_x"]}, "tests: tests/test_tea.py::test_x: there is no such file"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named_and_nothing_runs(
    project: Project, capsys: pytest.CaptureFixture[str], entry: dict[str, Any], says: str
) -> None:
    project.mutants({"breaks": "well"}, {"new": "cups * 5", **entry})

    assert main(["--check"], project.root) == 2
    assert main([], project.root) == 2

    err = capsys.readouterr().err
    assert err.count("tests/mutants/shop.toml: entry 2") == 2
    assert f": {says}" in err
    assert "1 problems in the lists; nothing was run" in err


def test_lists_that_fit_the_source_can_be_checked_without_a_run(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.mutants({"tests": ["tests/test_price.py"]})

    assert main(["--check"], project.root) == 0

    assert capsys.readouterr() == ("", "")


def test_a_change_that_is_listed_twice_and_a_file_that_is_no_list_are_refused(project: Project) -> None:
    given = project.mutants({}, {"breaks": "once more"})
    project.write("other.toml", 'mutants = "many"')
    project.write("broken.toml", "[[mutant]")

    _, problems = read(project.root, [given, project.root / "other.toml", project.root / "broken.toml"])

    assert problems[0].startswith("other.toml: holds ['mutants']; ")
    assert problems[1].startswith("broken.toml: cannot be read: ")
    assert problems[2:] == [
        "tests/mutants/shop.toml: entry 2: is the same change as tests/mutants/shop.toml, entry 1"
    ]  # fmt: skip


def test_it_refuses_to_run_when_the_copy_is_not_what_is_imported(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.write("src/shop/__init__.py", "__file__ = '/elsewhere/shop/__init__.py'")
    project.mutants({})

    assert main([], project.root) == 2

    err = capsys.readouterr().err
    assert "shop would be imported from elsewhere" in err
    assert "/elsewhere/shop/__init__.py" in err
    assert copies(project) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_tests_and_removes_the_copies(project: Project, number: signal.Signals) -> None:
    # The test tells where it hangs, and hangs only with the mutant; its process must be gone afterwards.
    hanging = project.root.parent / "hanging"
    project.write(
        "tests/test_hang.py",
        "import os, pathlib, signal\nfrom shop.price import TAX\n\ndef test_hang():\n    if TAX == 3:\n"
        f"        pathlib.Path({str(hanging)!r}).write_text(str(os.getpid()))\n        signal.pause()\n",
    )
    project.mutants({"old": "TAX = 2", "new": "TAX = 3", "tests": ["tests/test_hang.py"]})
    code = "import sys, pathlib; from tools.mutants.__main__ import run_as_program as run"
    code += "; sys.exit(run([], pathlib.Path(sys.argv[1])))"
    tool = subprocess.Popen([sys.executable, "-c", code, str(project.root)], cwd=ROOT, stderr=subprocess.PIPE)
    until_sync(lambda: hanging.exists() and hanging.read_text(), what="the mutant that hangs")

    tool.send_signal(number)
    _, err = tool.communicate(timeout=30)

    assert tool.returncode == 130
    assert b"stopped; the copies are removed" in err
    assert copies(project) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(hanging.read_text()), 0)


def test_the_lists_of_this_project_fit_its_source() -> None:
    """A stale entry shows here, long before somebody runs `make mutants`."""
    mutants, problems = read(ROOT, sorted((ROOT / "tests/mutants").glob("*.toml")))

    assert problems == []
    assert mutants
    assert sorted({test for mutant in mutants for test in mutant.tests if not _is_there(test)}) == []


def _is_there(test: str) -> bool:
    """The file exists, and it has a function of this name."""
    file, _, name = test.partition("::")
    path = ROOT / file
    function = name.partition("[")[0].rpartition("::")[2]
    return path.exists() and (not name or f"def {function}(" in path.read_text(encoding="utf-8"))


def test_every_file_of_the_package_has_likely_tests_and_they_exist() -> None:
    sources = [path for path in (ROOT / "src/veredus").rglob("*") if path.suffix in (".py", ".lua")]
    assert len(sources) > 200
    assert [path for path in sources if not likely(path.relative_to(ROOT).as_posix())] == []
    assert [test for tests in LIKELY.values() for test in tests if not (ROOT / test).exists()] == []
    assert likely("src/veredus/lua/order/advance_stale_lanes.lua") == ("tests/order",)
    assert likely("src/veredus/lua/task/done.lua") == ("tests/lua",)
    assert likely("README.md") == ()
    beginnings = [beginning for beginning in LIKELY if not list(ROOT.glob(f"{beginning}*"))]
    assert beginnings == []


def test_drawn_changes_fit_the_source_and_come_from_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drawing(["300", "--seed", "5"]) == 0
    drawn = tmp_path / "drawn.toml"
    drawn.write_text(capsys.readouterr().out)
    mutants, problems = read(ROOT, [drawn])
    assert problems == []
    assert {mutant.area: 50 for mutant in mutants} == dict.fromkeys(AREAS, 50)
    assert {Path(mutant.file).suffix for mutant in mutants} == {".py", ".lua"}


def test_a_seed_says_which_changes_are_drawn() -> None:
    assert draw(ROOT, 6, 1) == draw(ROOT, 6, 1) != draw(ROOT, 6, 2)


def test_a_dropped_not_leaves_its_brackets(tmp_path: Path) -> None:
    source = tmp_path / "src/veredus/store"
    source.mkdir(parents=True)
    (source / "a.py").write_text("def f(a, b):\n    return not (a and b)\n")
    assert "    return (a and b)\n" in {entry["new"] for entry in draw(tmp_path, 100, 1, ["store"])}


def test_every_kind_of_change_is_drawn(tmp_path: Path) -> None:
    source = tmp_path / "src/veredus/store"
    source.mkdir(parents=True)
    (source / "a.py").write_text(
        "def f(é, b):\n    for c in b:\n        if not é and c is None or é < min(b):\n            continue\n"
        "    f(é - b, 1)\n    return é in b\n"
    )
    (source / "b.lua").write_text("-- a < b\nif a < b and not c then\n  redis.call('DEL', a)\nend\n")
    found = draw(tmp_path, 100, 1, ["store"])
    assert {entry["new"] for entry in found if entry["file"].endswith(".py")} == {
        "        if not é and c is None and é < min(b):\n",
        "        if not é and c is None or é < max(b):\n",
        "        if not é and c is None or é <= min(b):\n",
        "        if not é and c is not None or é < min(b):\n",
        "        if not é or c is None or é < min(b):\n",
        "        if é and c is None or é < min(b):\n",
        "    f(é + b, 1)\n",
        "    pass\n",
        "    return é not in b\n",
        "            break\n",
    }
    assert sorted(entry["new"] for entry in found if entry["file"].endswith(".lua")) == [
        "  \n",
        "if a < b and c then\n",
        "if a < b or not c then\n",
        "if a <= b and not c then\n",
    ]
