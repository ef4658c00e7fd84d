"""A tab that is reloaded at every point of a scripted exchange: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import program
from tests.browser.exchange import STEPS

EXPECTED = [[step, what] for step in range(STEPS) for what in ("push", "notify", "done", "after")]

AT_REST = "(count) => document.title === 'finished' && JSON.parse(sessionStorage.seen).length >= count && rest()"


class Run(NamedTuple):
    seen: list[Any]
    points: list[str]
    loads: int
    sessions: list[str]


@pytest.fixture(scope="module")
def exchange_url() -> Iterator[str]:
    yield from program(Path(__file__).parent / "exchange.py")


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    one = browser.new_context(service_workers="block")
    yield one
    one.close()


def _run(context: Any, url: str, user: str, reloads: str) -> Run:
    tab = context.new_page()
    try:
        tab.goto(f"{url}?user={user}&{reloads}")
        expect(tab).to_have_title("finished")
        tab.wait_for_function(AT_REST, arg=len(EXPECTED))  # Chromium may hang when a tab is closed while it is reloaded
        kept: dict[str, str] = tab.evaluate("() => ({...sessionStorage})")
    finally:
        tab.close()
    return Run(*(json.loads(kept[name]) for name in Run._fields))


@pytest.mark.timeout(400)
def test_a_tab_reloaded_at_every_point_loses_nothing_and_gets_nothing_twice(context: Any, exchange_url: str) -> None:
    quiet = _run(context, exchange_url, "quiet", "")
    assert (quiet.seen, quiet.loads) == (EXPECTED, 1)
    is_known = quiet.points.index("welcome") + 1
    reloaded: list[str] = []
    while True:
        number = len(reloaded) + 1
        run = _run(context, exchange_url, f"user{number}", f"at={number}")
        if len(run.points) < number:
            break  # it was finished before
        reloaded.append(run.points[number - 1])
        where = f"reloaded at point {number}, {reloaded[-1]!r}"
        assert run.seen == EXPECTED, where
        assert len(run.sessions) == 1 or number < is_known, where
    print(f"reloaded at {len(reloaded)} points: {reloaded}")
    needed = {"before hello", "hello", "before welcome", "welcome", "before request", "request"}
    assert needed <= set(reloaded)
    assert any("msg" in name for name in reloaded)


@pytest.mark.parametrize("every", [10, 13])
def test_a_tab_reloaded_again_and_again(context: Any, exchange_url: str, every: int) -> None:
    run = _run(context, exchange_url, f"often{every}", f"every={every}")
    assert run.seen == EXPECTED
    assert run.loads >= 3, "messages that come together are one point, so the number of reloads differs"
    assert len(run.sessions) == 1
