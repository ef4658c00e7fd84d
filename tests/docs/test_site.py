"""The site: its pages can be made, cover everything that is public, and link to nothing that is not there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from benchmarks import picture
from tools.docs import (
    api_pages,
    checking,
    command_pages,
    error_pages,
    key_pages,
    lifecycle,
    metric_pages,
    reference,
    script_pages,
    setting_pages,
)
from tools.docs.navigation import SECTIONS, navigation
from tools.docs.staging import LINK, PROJECT, stage

import veredus
from tests.docs.blocks import ROOT
from veredus.cli.main import _COMMANDS
from veredus.model.frames import FRAMES
from veredus.model.lifecycle import BY_HAND, TRANSITIONS
from veredus.wire import keys, session_keys


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return reference.pages()


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    folder = tmp_path_factory.mktemp("site")
    return folder, stage(folder)


def headings(text: str) -> list[str]:
    plain = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [found.strip() for found in re.findall(r"^#+ (.*)$", plain, re.MULTILINE)]


def test_every_public_name_is_described(made: dict[str, str]) -> None:
    listed = {*headings(made["api.md"]), *headings(made["errors.md"])}
    assert set(veredus.__all__) <= listed
    for module in api_pages.modules():
        assert set(api_pages.exported(module)) <= listed, module.__name__


def test_every_public_name_says_what_it_is() -> None:
    silent = [name for name in veredus.__all__ if not (getattr(veredus, name).__doc__ or "").strip()]
    assert silent == []
    assert [cls.__name__ for cls in error_pages.classes() if not cls.__doc__] == []


def test_every_script_has_a_page_with_all_its_parts(made: dict[str, str]) -> None:
    files = {path for path in (ROOT / "src/veredus/lua").glob("*/*.lua") if path.parent.name != "include"}
    assert len(script_pages.names()) == len(files) > 80
    for name in script_pages.names():
        text = made[f"scripts/{name.replace('/', '-')}.md"]
        assert {"Sequence", "Steps", "Source"} <= set(headings(text)), name
        assert "| KEYS |" in text, name
        assert "| returns |" in text, name
        assert script_pages.purpose((ROOT / f"src/veredus/lua/{name}.lua").read_text()), name
        assert script_pages.callers_of(name), f"{name}: nobody in the store loads it"


def test_a_page_tells_what_its_script_does_in_order(made: dict[str, str]) -> None:
    text = made["scripts/task-retry.md"]
    steps = text.partition("## Steps")[2].partition("## Source")[0]
    order = ["leave_active", "plan_task", "HSET key", "keep_lock", "announce", "tally"]
    assert [steps.index(step) for step in order] == sorted(steps.index(step) for step in order)
    assert "the worker that dequeues it ends it as asked" in steps  # the comments of the source are the reasons
    assert text.count("<path") > 20  # and the arrows of its picture


def test_every_command_is_shown_with_its_help(made: dict[str, str]) -> None:
    paths = [" ".join(path) for path, _, _ in command_pages.commands()]
    assert {f"veredus {name}" for name in _COMMANDS} <= set(paths)
    assert set(paths) <= set(headings(made["cli.md"]))
    assert made["cli.md"].count("Usage: ") >= len(paths)


def test_every_help_fits_a_screen_and_shows_an_example() -> None:
    for path, command, context in command_pages.commands():
        text = command.get_help(context)
        assert text.count("\n") < 40, path
        examples = [line for line in text.splitlines() if line.strip().startswith("veredus ")]
        assert examples, f"{' '.join(path)} --help shows no example"


def test_every_setting_and_variable_is_listed(made: dict[str, str]) -> None:
    text = made["config.md"]
    for path in (ROOT / "src/veredus").rglob("*.py"):
        for name in re.findall(r"^@dataclass.*\nclass (\w+Config)\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert name in {cls for _, _, cls, _, _ in setting_pages.CLASSES}, f"{path.name}: {name}"
    for name in setting_pages.read_by_source():
        assert f"`{name}`" in text, name


def test_every_key_frame_and_error_is_listed(made: dict[str, str]) -> None:
    for module in (keys, session_keys):
        for key in key_pages.listed(module):
            assert key.text, f"{key.name} has no docstring"
            assert key.sample in made["keys.md"], key.name
    assert {cls.__name__ for cls in FRAMES.values()} <= set(headings(made["frames.md"]))
    assert {cls.__name__ for cls in error_pages.classes()} <= set(headings(made["errors.md"]))


def test_every_metric_is_listed(made: dict[str, str]) -> None:
    assert len(metric_pages.metrics()) > 20
    for metric in metric_pages.metrics():
        assert f"`{metric.name}`" in made["metrics.md"], metric.name
        assert metric.text, metric.name


def test_the_picture_of_the_life_cycle_is_that_of_the_table() -> None:
    assert lifecycle.PICTURE.read_text(encoding="utf-8") == lifecycle.draw(), "run python -m tools.docs.lifecycle"
    for verb, moves in TRANSITIONS.items():
        if verb not in BY_HAND and any(start is not end for start, end in moves):
            assert re.search(rf"\b{verb}\b", lifecycle.draw()), verb


def test_the_picture_of_the_benchmark_is_that_of_the_figures(tmp_path: Path) -> None:
    picture.draw(tmp_path / "bench.svg")
    assert (tmp_path / "bench.svg").read_text() == picture.PICTURE.read_text(), "run python -m benchmarks.picture"
    measured = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    for name, value in json.loads(picture.FIGURES.read_text())["bars"].items():
        assert f"{value:,}" in measured, f"{name}: {value:,} is no figure of docs/performance.md"


def slug(heading: str) -> str:
    plain = re.sub(r"<[^>]*>|[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors(text: str) -> set[str]:
    return {slug(heading) for heading in headings(text)} | set(re.findall(r'<a id="([^"]+)"', text))


def test_no_link_leads_nowhere(staged: tuple[Path, set[str]]) -> None:
    folder, pages = staged
    wrong = []
    for page in sorted(pages):
        text = (folder / page).read_text(encoding="utf-8")
        for _, link in LINK.findall(re.sub(r"^(`{3,}).*?^\1$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)):
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = Path(os.path.normpath((folder / page).parent / path)) if path else folder / page
            if not target.is_file():
                wrong.append(f"{page}: {link}")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
                wrong.append(f"{page}: {link} (no such heading)")
    assert wrong == []


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md", *PROJECT])
def test_no_link_of_the_repository_leads_nowhere(name: str) -> None:
    for _, link in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:|#", link):
            assert (ROOT / link.partition("#")[0]).exists(), link


def test_every_page_is_in_the_navigation(staged: tuple[Path, set[str]]) -> None:
    _, pages = staged
    shown = str(navigation(pages))
    for page in pages:
        assert page in shown or page.startswith(("reference/scripts/", "files/", "examples/")), page
    expected = {path for entries in SECTIONS.values() for _, path in entries}
    assert expected <= pages


def test_the_check_of_a_site_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="x">a</h1><a href="b.html">b</a><a href="#y">y</a><script src="https://cdn.example/x.js"></script>'
        '<a href="#x">x</a><a href="https://example.org">out</a><img src="none.png">'
    )
    assert sorted(checking.problems(tmp_path)) == [
        "a.html: #y leads to no such place on the page",
        "a.html: b.html leads nowhere",
        "a.html: loads https://cdn.example/x.js from another host",
        "a.html: loads none.png, which is not there",
    ]


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_a_lock_names_no_host_and_no_folder(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert not re.search(r"://|^-|^/|file:| /", text, re.MULTILINE)
    assert re.search(r"^\S+==\S+", text, re.MULTILINE)


def test_the_reference_is_the_same_wherever_it_is_made(made: dict[str, str]) -> None:
    for page, text in made.items():
        assert not re.search(r"0x[0-9a-f]{8}|(?<![\w.])/(home|root|tmp)/", text), page
        assert str(ROOT) not in text, page
