"""The page as a person uses it: a job, cuts, a reload; everything arrives once and in order."""

from __future__ import annotations

import re
import urllib.request

from playwright.sync_api import expect

from tests.browser.conftest import Watched

STROKES = 144
WHOLE_JOB = STROKES + 3  # varnished before the response, the response, signed after it


def _start(watched: Watched) -> None:
    expect(watched.page.locator("#state")).to_have_text("connected")
    watched.page.get_by_role("button", name="Start a job").click()


def _stroke(watched: Watched, number: int) -> None:
    """Wait until so many strokes are painted."""
    for _ in range(2000):
        if watched.page.evaluate("() => document.getElementById('bar').value") >= number:
            return
        watched.page.wait_for_timeout(10)
    raise AssertionError(f"stroke {number} never came")


def _finished(watched: Watched) -> None:
    expect(watched.page.locator("#result")).to_contain_text("signed and delivered")
    expect(watched.page.locator("#bar-text")).to_contain_text(f"{STROKES} strokes")


def _holes(watched: Watched) -> int:
    """Tiles of the canvas that nobody painted."""
    count: int = watched.page.evaluate(
        """() => { const c = document.getElementById('picture'); const p = c.getContext('2d');
           const { data } = p.getImageData(0, 0, c.width, c.height);
           let holes = 0;
           for (let x = 8; x < c.width; x += 16) for (let y = 8; y < c.height; y += 16)
             if (data[(y * c.width + x) * 4 + 3] === 0) holes += 1;
           return holes; }"""
    )
    return count


def test_cut_in_the_middle_of_a_job_and_resume_with_nothing_missing(watched: Watched) -> None:
    _start(watched)
    for stroke in (20, 60, 100):
        _stroke(watched, stroke)
        watched.page.get_by_role("button", name="Cut my connection").click()
        if stroke == 60:
            watched.picture("cut")
        expect(watched.page.locator("#state")).to_have_text("connected")
    _finished(watched)
    seen = watched.seen()
    assert (seen["first"], seen["last"], seen["count"]) == (1, WHOLE_JOB, WHOLE_JOB)
    assert (seen["missing"], seen["disorder"], seen["resumes"], seen["connections"]) == (0, 0, 3, 4)
    assert _holes(watched) == 0
    expect(watched.page.locator("#verdict")).to_have_text(f"✓ numbers 1 to {WHOLE_JOB}: every one, once, in order")
    watched.picture("light")
    watched.page.emulate_media(color_scheme="dark")
    watched.picture("dark")


def test_the_journal_shows_before_response_after_in_this_order(watched: Watched) -> None:
    _start(watched)
    _finished(watched)
    rows = [row.inner_text().split("\t") for row in watched.page.locator("#journal tr").all()[:3]]
    assert [row[0] for row in rows] == [str(WHOLE_JOB), str(WHOLE_JOB - 1), str(WHOLE_JOB - 2)]
    assert [row[1] for row in rows] == ["notify", "response", "notify"]
    assert rows[2][2] == "varnished"


def test_cut_every_second_while_two_jobs_run_at_once(watched: Watched) -> None:
    watched.page.get_by_role("button", name="Cut each second").click()
    _start(watched)
    _stroke(watched, 40)
    watched.page.get_by_role("button", name="Start a job").click()
    _finished(watched)
    watched.page.get_by_role("button", name="Cut each second").click()
    seen = watched.seen()
    assert seen["last"] == seen["count"] == 2 * WHOLE_JOB
    assert (seen["missing"], seen["disorder"]) == (0, 0)
    assert seen["resumes"] >= 3
    assert _holes(watched) == 0


def test_a_reload_goes_on_where_the_page_was(watched: Watched) -> None:
    _start(watched)
    _stroke(watched, 50)
    before = watched.seen()
    watched.page.reload()
    expect(watched.page.locator("#state")).to_have_text("connected")
    expect(watched.page.locator("#result")).to_contain_text("signed and delivered")
    after = watched.seen()
    # What was painted and not yet acknowledged comes again; nothing is skipped.
    assert 1 < after["first"] <= after["last"] - after["count"] + 1
    assert before["acked_seq"] < after["first"]
    assert (after["last"], after["missing"], after["disorder"], after["resumes"]) == (WHOLE_JOB, 0, 0, 1)


def test_usable_by_keyboard_and_by_name(watched: Watched) -> None:
    page = watched.page
    expect(page.locator("#state")).to_have_text("connected")
    assert page.evaluate("() => document.documentElement.lang") == "en"
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Start a job")).to_be_focused()
    page.keyboard.press("Enter")
    _stroke(watched, 5)
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Cut my connection")).to_be_focused()
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling on a phone"
    watched.picture("phone")


def test_the_policy_allows_the_gateways_and_nothing_else(watched: Watched, page_url: str) -> None:
    with urllib.request.urlopen(page_url) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.search(r"connect-src 'self' ws://127\.0\.0\.1:\d+/ ws://127\.0\.0\.1:\d+/;", policy)
    expect(watched.page.locator("#state")).to_have_text("connected")
