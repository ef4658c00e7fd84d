"""The page of examples/shop: somebody orders, watches the order proceed, and reloads in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import ROOT, program
from tests.support.servers import free_port


@pytest.fixture(scope="module")
def shop_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_LEDGER", str(tmp_path_factory.mktemp("shop") / "ledger.sqlite3"))
        yield from program(ROOT / "examples/shop/run.py", "--port", str(free_port()))


def test_an_order_is_watched_to_its_end_and_over_a_reload(browser: Any, shop_url: str) -> None:
    page = browser.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for _ in range(100):  # it says its address before it listens
        try:
            page.goto(shop_url)
            break
        except Exception:
            page.wait_for_timeout(200)
    order = page.get_by_role("button", name="Order")
    order.click()
    expect(page.locator("#orders li")).to_have_count(1)
    page.reload()
    expect(page.locator("#orders li span")).to_have_text("shipped")
    page.get_by_label("Card").select_option("declined")
    order.click()
    expect(page.locator("#orders li span").first).to_have_text("cancelled")
    assert complaints == []
    page.close()
