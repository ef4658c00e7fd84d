"""The dashboard in a real browser: every page with real data, live, by keyboard, on a phone; actions ask, then act."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import shop
from tests.browser.dashboards import SCRIPT, TOKEN, Place, Shop, Watched, axe_source
from tests.support.waiting import until_sync

PAGES = {
    "overview": ("#/", ["mail", "images", "ledger", "Throughput", "History"]),
    "failures": ("#/failures", ["SkipRetry", "email:send", "451 mailbox"]),
    "types": ("#/types", ["image:resize", "Run p95"]),
    "type": ("#/types/email:send", ["Attempts", "Run time", "Waiting time"]),
    "active": ("#/queues/reports?state=active", ["report:build", "held"]),
    "pending": ("#/queues/idle?state=pending", ["nobody"]),
    "scheduled": ("#/queues/mail?state=scheduled", ["later-000", "Page 1 of 3"]),
    "retry": ("#/queues/mail?state=retry", ["email:send", "451 mailbox"]),
    "archived": ("#/queues/mail?state=archived", ["550 no such mailbox"]),
    "completed": ("#/queues/images?state=completed", ["image:resize", '{"width":']),
    "aggregating": ("#/queues/mail?state=aggregating", ["digest"]),
    "members": ("#/queues/mail?state=aggregating&group=digest", ["email:send", "group digest"]),
    "task": ("#/queues/mail/tasks/later-000", ["later", "Payload", "Headers", "Reschedule"]),
    "attempts": ("#/queues/mail/tasks/send-11", ["Attempt 1", "451 mailbox 11 busy", "in send", "Worker"]),
    "workers": ("#/workers", ["report:build", "Veredus", "Quiet", "of 10 slots busy", "reports"]),
    "schedules": ("#/schedules", ["nightly:cleanup", "every 2 seconds"]),
    "order": ("#/order?queue=ledger", ["account-0", "holds up the rest", "Release"]),
    "limits": ("#/order?queue=images", ["1000/s", "Remove"]),
    "gateway": ("#/gateway", ["alive", "attached", "anonymous"]),
    "server": ("#/server", ["Valkey", "Health", "no append-only file", "Check every queue"]),
}


@pytest.fixture(scope="module")
def dash(browser: Any) -> Iterator[Shop]:
    place = Shop()
    yield place
    place.close()


@pytest.fixture(scope="module")
def bare(browser: Any) -> Iterator[Place]:
    """A server with nothing in it, and a dashboard that only shows."""
    place = Place("--read-only")
    yield place
    place.close()


def _watched(browser: Any, place: Place, **settings: Any) -> Iterator[Watched]:
    context = browser.new_context(
        **{"viewport": {"width": 1360, "height": 900}, "service_workers": "block", **settings}
    )
    one = Watched(context.new_page(), place)
    yield one
    context.close()
    one.check()


@pytest.fixture
def watched(browser: Any, dash: Shop) -> Iterator[Watched]:
    yield from _watched(browser, dash)


@pytest.fixture
def empty(browser: Any, bare: Place) -> Iterator[Watched]:
    yield from _watched(browser, bare)


@pytest.fixture
def phone(browser: Any, dash: Shop) -> Iterator[Watched]:
    yield from _watched(browser, dash, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)


def _says(page: Any, text: str) -> None:
    from playwright.sync_api import expect

    expect(page.locator("main")).to_contain_text(text)


def _answer(page: Any, title: str, button: str) -> None:
    """The question that must come before anything is destroyed."""
    from playwright.sync_api import expect

    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(title)
    dialog.get_by_role("button", name=button, exact=True).click()
    expect(dialog).to_have_count(0)


# Seeing.


@pytest.mark.parametrize("name", PAGES)
def test_every_page_renders_with_real_data(watched: Watched, name: str) -> None:
    route, parts = PAGES[name]
    watched.enter(route)
    for part in parts:
        _says(watched.page, part)
    watched.picture(name)
    watched.page.emulate_media(color_scheme="dark")
    watched.picture(f"{name}-dark")


def test_no_table_is_cut_off(browser: Any, dash: Shop) -> None:
    """At 1440 and 1920 pixels."""
    cut = """() => [...document.querySelectorAll('.table-box')]
        .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.querySelector('table').ariaLabel)"""
    for width in (1440, 1920):
        for watched in _watched(browser, dash, viewport={"width": width, "height": 900}):
            watched.enter()
            for name, (route, parts) in PAGES.items():
                watched.go(route)
                _says(watched.page, parts[0])
                assert watched.page.evaluate(cut) == [], (name, width)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_fits_a_phone(phone: Watched, name: str) -> None:
    route, parts = PAGES[name]
    phone.enter(route)
    _says(phone.page, parts[0])
    width = phone.page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= 390, "nothing must stick out"
    if name == "overview":  # two screens have room for seven queues
        heights = phone.page.evaluate("() => [...document.querySelectorAll('tbody tr')].map(row => row.offsetHeight)")
        assert sum(heights) / len(heights) < 2 * (844 - 52 - 60) / 7
    phone.picture(f"{name}-phone", full=False)


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, dash: Shop, colours: str) -> None:
    source = axe_source()
    context = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme=colours, bypass_csp=True)
    watched = Watched(context.new_page(), dash)
    watched.enter()
    watched.page.evaluate("source => { (0, eval)(source) }", source)
    found: dict[str, list[str]] = {}
    for name, (route, parts) in PAGES.items():
        watched.go(route)
        _says(watched.page, parts[0])
        found[name] = _violations(watched.page)
    watched.go("#/queues/mail?state=scheduled")
    watched.page.locator("tbody input").first.check()
    watched.page.get_by_role("button", name="Delete", exact=True).click()
    found["question"] = _violations(watched.page)
    context.close()
    assert {name: problems for name, problems in found.items() if problems} == {}


def _violations(page: Any) -> list[str]:
    result = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for one in result["violations"]
        for node in one["nodes"][:3]
    ]


def test_what_changes_is_seen_without_reloading(watched: Watched, dash: Shop) -> None:
    from playwright.sync_api import expect

    page = watched.page
    watched.enter("#/queues/idle?state=pending")
    page.evaluate("() => { window.same = true }")
    shop.app.enqueue_sync("fresh", {"n": 2}, queue="idle", task_id="fresh-1")
    _says(page, "fresh-1")
    shop.app.enqueue_many_sync(shop.app.call("fresh", {"n": n}, queue="idle") for n in range(7))
    expect(page.locator(".tab.is-pending b")).to_have_text(str(dash.counts("idle")["pending"]))
    watched.go("#/queues/reports?state=active")
    page.locator("tbody a.id").click()
    bar = page.get_by_role("main").get_by_role("progressbar")
    _says(page, "of 20000")
    before = page.locator("main strong").first.inner_text()
    page.wait_for_function("before => document.querySelector('main strong').innerText !== before", arg=before)
    assert bar.get_attribute("aria-valuenow") is not None
    assert page.evaluate("() => window.same") is True, "it was never reloaded"


def test_tables_are_sorted_by_a_click_and_tasks_are_listed_the_newest_first(watched: Watched) -> None:
    from playwright.sync_api import expect

    page = watched.page
    watched.enter()
    rows = page.get_by_role("table", name="Queues").locator("tbody tr")
    page.get_by_role("button", name="Tasks", exact=True).click()
    expect(page.locator("th[aria-sort=descending]")).to_have_count(1)
    expect(rows.first).to_contain_text("mail")
    _says(page, "Needs attention")
    _says(page, "no worker serves queue 'idle'")
    watched.go("#/queues/mail?state=scheduled")
    _says(page, "later-000")
    page.get_by_role("button", name="Last first").click()
    expect(page.locator("tbody tr").first).to_contain_text("script")
    _says(page, "later-129")


def test_the_charts_move(watched: Watched) -> None:
    from playwright.sync_api import expect

    watched.enter()
    page = watched.page
    page.wait_for_selector(".chart .bar.done", timeout=20_000)
    chart = "() => document.querySelector('.chart').getAttribute('aria-label')"
    before = page.evaluate(chart)
    assert "attempts per minute, 60 in all" in before
    shop.app.enqueue_many_sync(shop.resize.call(n) for n in range(300))
    page.wait_for_function(f"before => ({chart})() !== before", arg=before)
    days = page.get_by_role("group", name="Days")
    days.get_by_role("button", name="7 d").click()
    expect(page.locator(".chart").nth(1).locator(".day")).to_have_count(7)
    days.get_by_role("button", name="90 d").click()
    expect(page.locator(".chart").nth(1).locator(".day")).to_have_count(90)


def test_markup_in_data_is_text(watched: Watched) -> None:
    page = watched.page
    watched.enter("#/queues/mail/tasks/script")
    _says(page, SCRIPT)
    assert page.locator("main script, main img").count() == 0
    watched.go("#/queues/mail?state=scheduled&page=3")
    _says(page, "window.pwned=1")
    assert page.evaluate("() => window.pwned") is None


# Entering.


def test_the_door(watched: Watched, dash: Shop) -> None:
    from playwright.sync_api import expect

    page = watched.page
    page.goto(dash.address)
    expect(page.get_by_label("Token")).to_be_visible()
    assert "mail" not in page.locator("body").inner_text()
    watched.complaints.clear()  # Chromium itself notes the 401 of the first question
    page.get_by_label("Token").fill("wrong-but-long-enough")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("Wrong token")
    watched.complaints.clear()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    _says(page, "Waiting")
    assert TOKEN not in page.url
    assert page.evaluate("() => document.cookie") == ""
    page.reload()
    _says(page, "Waiting")
    watched.go("#/nowhere/at/all")
    _says(page, "Nothing is here")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    watched.complaints.clear()


def test_a_newcomer_is_told_what_to_do_and_read_only_offers_nothing_to_press(empty: Watched, bare: Place) -> None:
    page = empty.page
    empty.enter()
    _says(page, "No queue yet")
    _says(page, "veredus demo")
    empty.picture("newcomer")
    for route, text in {
        "#/workers": "veredus worker module:app",
        "#/schedules": "veredus scheduler module:app",
        "#/order": "veredus task enqueue",
        "#/gateway": "veredus gateway module:app",
    }.items():
        empty.go(route)
        _says(page, text)
    bare.redis.sadd("asynq:queues", "mail")
    for state in ("active", "pending", "scheduled", "retry", "archived", "completed", "aggregating"):
        empty.go(f"#/queues/mail?state={state}")
        page.wait_for_selector(".empty h3")
        names = page.get_by_role("main").get_by_role("button").all_inner_texts()
        assert set(names) <= {"Charts", "Find", ""}, names
    bare.redis.flushall()


# Acting.


def _list(watched: Watched, queue: str, state: str, ids: list[str], **options: Any) -> None:
    for task_id in ids:
        shop.app.enqueue_sync("act", {"n": 1}, queue=queue, task_id=task_id, **options)
    watched.enter(f"#/queues/{queue}?state={state}")
    _says(watched.page, ids[0])


def _pick(page: Any, *ids: str) -> None:
    for task_id in ids:
        page.get_by_role("checkbox", name=f"Select {task_id}").check()


def _press(page: Any, name: str) -> None:
    page.get_by_role("group", name="Selected tasks").get_by_role("button", name=name, exact=True).click()


def test_delete_asks_says_how_many_and_deletes(watched: Watched, dash: Shop) -> None:
    page = watched.page
    _list(watched, "del", "scheduled", [f"d{n}" for n in range(5)], delay=3000)
    _pick(page, "d0", "d1", "d2")
    _press(page, "Delete")
    watched.picture("question", full=False)
    _answer(page, "Delete 3 tasks?", "Cancel")
    assert dash.counts("del")["scheduled"] == 5, "nothing happens before the answer"
    _press(page, "Delete")
    page.keyboard.press("Escape")
    assert dash.counts("del")["scheduled"] == 5
    _press(page, "Delete")
    _answer(page, "Delete 3 tasks?", "Delete 3 tasks")
    until_sync(lambda: dash.counts("del")["scheduled"] == 2)
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 2")


@pytest.mark.parametrize(
    ("verb", "title", "button", "state"),
    [
        ("Run now", "", "", "pending"),
        ("Archive", "Archive 2 tasks?", "Archive 2 tasks", "archived"),
        ("Cancel", "Cancel 2 tasks?", "Cancel 2 tasks", "archived"),
    ],
)
def test_selected_tasks_are_run_archived_and_cancelled(
    watched: Watched, dash: Shop, verb: str, title: str, button: str, state: str
) -> None:
    queue = f"acts-{verb.split()[0].lower()}"
    _list(watched, queue, "scheduled", ["a1", "a2", "a3"], delay=3000)
    _pick(watched.page, "a1", "a3")
    _press(watched.page, verb)
    if title:
        _answer(watched.page, title, button)
    until_sync(lambda: dash.counts(queue)[state] == 2)
    assert dash.counts(queue)["scheduled"] == 1


def test_a_task_is_edited_rescheduled_moved_requeued_on_its_own_page(watched: Watched, dash: Shop) -> None:
    page = watched.page
    shop.app.enqueue_sync("act", {"n": 1}, queue="own", task_id="one", delay=3000)
    watched.enter("#/queues/own/tasks/one")
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_role("textbox", name="Payload").fill('{"n": 2, "said": "by hand"}')
    page.get_by_role("button", name="Save").click()
    _says(page, "by hand")
    page.get_by_role("button", name="Reschedule", exact=True).click()
    page.get_by_label("In seconds").fill("7200")
    page.get_by_role("dialog").get_by_role("button", name="Reschedule").click()
    until_sync(lambda: "T" in dash.get("task", queue="own", id="one")["next_process_at"])
    _says(page, "in 1 h 59 min")
    page.get_by_role("button", name="Archive", exact=True).click()
    _answer(page, "Archive 1 task?", "Archive 1 task")
    _says(page, "archived")
    page.get_by_role("button", name="Requeue", exact=True).click()
    until_sync(lambda: dash.counts("own")["pending"] == 1)
    _says(page, "pending")
    page.get_by_role("button", name="Move", exact=True).click()
    page.get_by_label("To the queue").fill("elsewhere")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    until_sync(lambda: dash.counts("elsewhere")["pending"] == 1)
    _says(page, "This task is gone")
    watched.go("#/queues/elsewhere/tasks/one")
    page.get_by_role("button", name="Delete", exact=True).click()
    _answer(page, "Delete 1 task?", "Delete 1 task")
    until_sync(lambda: dash.counts("elsewhere")["size"] == 0)


def test_running_tasks_are_requeued_and_cancelled(watched: Watched, dash: Shop) -> None:
    page = watched.page
    one = shop.build.enqueue_sync(7)
    until_sync(lambda: dash.get("task", queue="reports", id=one.id)["state"] == "active")
    watched.enter(f"#/queues/reports/tasks/{one.id}")
    page.get_by_role("button", name="Requeue", exact=True).click()
    _answer(page, "Stop and requeue", "Stop and requeue")
    until_sync(lambda: dash.get("task", queue="reports", id=one.id)["retried"] == 1)
    watched.go("#/queues/reports?state=retry")
    _pick(page, one.id)
    _press(page, "Run now")
    until_sync(lambda: dash.get("task", queue="reports", id=one.id)["state"] == "active")
    watched.go(f"#/queues/reports/tasks/{one.id}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_label("Then").select_option("archive")
    _answer(page, "Cancel 1 task?", "Cancel 1 task")
    until_sync(lambda: dash.get("task", queue="reports", id=one.id)["state"] == "archived")
    _says(page, "archived")


def test_all_matching_are_counted_before_and_all_of_a_state_are_a_job(watched: Watched, dash: Shop) -> None:
    from playwright.sync_api import expect

    page = watched.page
    app = shop.app
    app.enqueue_many_sync(
        app.call("wanted" if n % 4 else "other", {"n": n}, queue="bulk", delay=3000) for n in range(800)
    )
    watched.enter("#/queues/bulk?state=scheduled")
    page.get_by_label("Type").fill("want*")
    page.get_by_role("button", name="Find").click()
    _says(page, "found in")
    page.get_by_role("button", name="Delete all matching").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("600 scheduled tasks of queue “bulk” match")
    assert dash.counts("bulk")["scheduled"] == 800
    dialog.get_by_role("button", name="Delete 600 tasks").click()
    until_sync(lambda: dash.counts("bulk")["scheduled"] == 200)
    expect(page.get_by_role("complementary", name="Jobs")).to_contain_text("600 tasks")
    page.get_by_role("link", name="Clear").click()
    page.get_by_role("button", name="Archive all").click()
    _answer(page, "200 scheduled tasks of queue “bulk”. They will not run", "Archive 200 tasks")
    until_sync(lambda: dash.counts("bulk")["archived"] == 200)


def test_a_long_job_shows_how_far_it_is_and_is_stopped(watched: Watched, dash: Shop) -> None:
    from playwright.sync_api import expect

    page = watched.page
    app = shop.app
    app.enqueue_many_sync(app.call("t", {"n": n}, queue="long", delay=3000) for n in range(100_000))
    watched.enter("#/queues/long?state=scheduled")
    page.get_by_role("button", name="Delete all").click()
    _answer(page, "100,000 scheduled tasks", "Delete 100,000 tasks")
    dock = page.get_by_role("complementary", name="Jobs")
    dock.get_by_role("button", name="Stop").click()
    expect(dock).to_contain_text("stopped after")
    watched.picture("stopped-job", full=False)
    left = dash.counts("long")["scheduled"]
    assert 0 < left < 100_000
    page.get_by_role("button", name="Delete queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Also delete")).check()
    dialog.get_by_role("button", name=re.compile("Delete with")).click()
    until_sync(lambda: not dash.redis.sismember("asynq:queues", "long"))


def test_queues_are_paused_and_closed(watched: Watched, dash: Shop) -> None:
    page = watched.page
    shop.app.enqueue_sync("t", queue="gate")
    watched.enter("#/queues/gate")
    page.get_by_role("button", name="Pause", exact=True).click()
    _says(page, "paused")
    page.get_by_role("button", name="Resume", exact=True).click()
    page.get_by_role("button", name="Pause", exact=True).wait_for()
    page.get_by_role("button", name="Close", exact=True).click()
    _answer(page, "Close “gate”?", "Close it")
    _says(page, "closed")
    page.get_by_role("button", name="Open", exact=True).click()
    until_sync(lambda: not dash.counts("gate")["closed"])


def test_order_keys_limits_and_sessions(watched: Watched, dash: Shop) -> None:
    page = watched.page
    watched.enter("#/order?queue=ledger")
    page.get_by_role("button", name="Release account-0").first.click()
    _answer(page, "Release “account-0”?", "Release")
    until_sync(
        lambda: (
            not [row for row in dash.get("order-keys", queue="ledger")["order_keys"] if row["held"] and row["size"] > 1]
        )
    )
    watched.go("#/order?queue=images")
    page.get_by_role("button", name="Remove the limit queue").click()
    _answer(page, "Remove the limit “queue”?", "Remove")
    until_sync(lambda: not dash.get("limits", queue="images")["limits"])
    watched.go("#/schedules")
    page.get_by_role("link", name="nightly:cleanup").click()
    _says(page, "When nightly:cleanup fired")
    page.wait_for_selector("table[aria-label^='When'] tbody tr")
    watched.go("#/gateway")
    page.locator("main a.id").first.click()
    page.get_by_role("button", name="End session").click()
    _answer(page, "End this session?", "End it")
    until_sync(lambda: dash.get("gateway")["sessions"] == 0)


def test_the_doctor_checks_and_repairs(watched: Watched, dash: Shop) -> None:
    page = watched.page
    for n in range(3):
        shop.app.enqueue_sync("t", queue="sick", task_id=f"s{n}")
    dash.redis.delete("asynq:{sick}:pending")
    watched.enter("#/server")
    page.get_by_role("button", name="Check every queue").click()
    _says(page, "is in no list")
    watched.picture("doctor")
    page.get_by_role("button", name=re.compile("^Repair: .*'s1'")).click()
    _answer(page, "Repair this?", "Repair")
    until_sync(lambda: dash.counts("sick")["pending"] == 1)
    page.get_by_role("button", name="Repair all 2").click()
    _answer(page, "Repair 2 findings?", "Repair 2")
    until_sync(lambda: dash.counts("sick")["pending"] == 3)


def test_everything_by_keyboard(watched: Watched) -> None:
    from playwright.sync_api import expect

    page = watched.page
    watched.enter()
    for keys, title in (
        ("gf", "Failures"),
        ("gt", "Task types"),
        ("gw", "Workers"),
        ("gs", "Schedules"),
        ("gl", "Order and limits"),
        ("gg", "Gateway"),
        ("gr", "Server"),
        ("go", "Overview"),
    ):
        for key in keys:
            page.keyboard.press(key)
        expect(page.locator("h1")).to_contain_text(title)
    page.keyboard.press("/")
    page.keyboard.type("later-007")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("later")
    watched.go("#/queues/mail?state=scheduled")
    _says(page, "later-000")
    page.locator("h1").focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_role("group", name="Selected tasks")).to_contain_text("1 selected")
    page.keyboard.press("Escape")
    expect(page.get_by_role("group", name="Selected tasks")).to_have_count(0)
    page.keyboard.press("]")
    _says(page, "Page 2 of 3")
    page.keyboard.press("[")
    _says(page, "Page 1 of 3")
    page.locator("h1").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    _says(page, "Headers")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keyboard")
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "light"


# Trouble.


def test_names_that_are_no_text_can_be_opened_and_deleted(watched: Watched, dash: Shop) -> None:
    page = watched.page
    shop.app.enqueue_sync("odd", {"n": 1}, queue="odd", delay=3000, task_id="odd")
    dash.redis.rename(b"asynq:{odd}:t:odd", b"asynq:{odd}:t:odd/\xff&\xfe")
    dash.redis.delete("asynq:{odd}:scheduled", "asynq:{odd}:due")
    dash.redis.zadd("asynq:{odd}:scheduled", {b"odd/\xff&\xfe": 9_000_000_000})
    watched.enter("#/queues/odd?state=scheduled")
    page.locator("tbody a.id").click()
    _says(page, "Headers")
    page.get_by_role("button", name="Delete", exact=True).click()
    _answer(page, "Delete 1 task?", "Delete 1 task")
    until_sync(lambda: dash.counts("odd")["size"] == 0)


def test_a_page_lives_through_outages_of_redis_and_of_the_dashboard(browser: Any) -> None:
    from playwright.sync_api import expect

    place = Place()
    context = browser.new_context()
    watched = Watched(context.new_page(), place)
    page = watched.page
    try:
        watched.enter()
        _says(page, "No queue yet")
        place.server.kill()
        _says(page, "That did not work")
        place.server.start()
        _says(page, "No queue yet")
        state = page.get_by_role("banner").get_by_role("status")
        expect(state).to_have_text("Live")
        place.dash.terminate()
        place.dash.wait(15)
        expect(state).to_have_text("Disconnected")
        place.serve(int(place.address.rsplit(":", 1)[1].strip("/")))
        expect(state).to_have_text("Live")
        place.redis.sadd("asynq:queues", "fresh")
        _says(page, "fresh")  # the cookie still holds: the token is the same
    finally:
        context.close()
        place.close()
