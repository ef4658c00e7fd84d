"""The shop of examples/shop, started by its one command, does what its README says."""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.docs.test_examples import EXAMPLES, environment
from tests.support.processes import running
from tests.support.servers import RealServer, free_port
from tests.support.waiting import until
from veredus import App
from veredus.inspector.inspector import Inspector
from veredus.peer import Message, connect
from veredus.store.store import connect as connect_store
from veredus.store.tasks.live_processes import LiveProcesses

LAST = "mailed ada@example.org: order {} is on its way"


class Shop:
    """What customers and the test see of it."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._url, self._ledger = url, ledger

    def ask(self, method: str, path: str, **body: Any) -> Any:
        found = httpx.request(method, self._url + path, json=body or None, timeout=30)
        return found.raise_for_status().json() if found.headers["content-type"] == "application/json" else found.text

    def is_up(self) -> bool:
        try:
            return bool(self.ask("GET", "config.json"))
        except httpx.TransportError:
            return False

    def order(self, customer: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("POST", "orders", customer=customer, email=f"{customer}@example.org", **more)
        return found

    def events(self) -> list[tuple[int | None, str]]:
        with sqlite3.connect(self._ledger) as db:
            return db.execute("select order_id, what from events order by number").fetchall()

    def happened(self, what: str) -> int:
        return sum(event == what for _, event in self.events())

    def most_mails_at_once(self, provider: str) -> int:
        at_once = most = 0
        for _, what in self.events():
            at_once += (what == f"mail begins {provider}") - (what == f"mail ends {provider}")
            most = max(most, at_once)
        return most


async def test_the_shop(valkey_server: RealServer, tmp_path: Path) -> None:
    port, ledger = free_port(), tmp_path / "ledger.sqlite3"
    given = environment(valkey_server) | {"SHOP_LEDGER": str(ledger)}
    with running([sys.executable, str(EXAMPLES / "shop/run.py"), "--port", str(port)], env=given):
        shop = Shop(f"http://127.0.0.1:{port}/", ledger)
        await until(shop.is_up, seconds=60, what="the shop")
        await _orders(shop)
        await _rules(shop, valkey_server.url)
        _page(shop)


async def _orders(shop: Shop) -> None:
    async with connect(shop.ask("GET", "config.json")["gateway"], token="ada") as browser:
        first, second = shop.order("ada"), shop.order("ada", product="tea")
        declined = shop.order("bob", card="declined")
        told: dict[str, list[Any]] = {first["task"]: [], second["task"]: []}
        async for item in browser:
            assert isinstance(item, Message)
            body = item.data
            told[body["task"]].append(body.get("note") or body.get("result"))
            if told[second["task"]][-1:] == ["shipped"] and item.type == "task.ended":
                break
    steps = ["received", "reserved", "paid", "invoiced", "shipped", "shipped"]
    for said in told.values():
        assert [*dict.fromkeys(said)] == [one for one in steps[:-1] if one in said], said
        assert said[-1] == "shipped"
    await until(lambda: shop.happened(LAST.format(second["order"])), what="the last mail")
    events = shop.events()
    mine = [order for order, _ in events if order in (first["order"], second["order"])]
    of_first = [what for order, what in events if order == first["order"]]
    assert "charged 1250 cents at attempt 2" in of_first, "the bank was down once"
    assert events.index((first["order"], "shipped")) < events.index((second["order"], "reserved 1 tea"))
    assert mine[0] == first["order"]
    await until(lambda: shop.happened("cancelled"))
    cancelled = [what for order, what in shop.events() if order == declined["order"]]
    assert "released 1 coffee" in cancelled
    assert not any("charged" in what for what in cancelled)


async def _rules(shop: Shop, url: str) -> None:
    asked = [shop.ask("POST", f"stock/tea/recount?reason={reason}")["new"] for reason in ("rain", "hail")]
    assert asked == [True, False], "unique by the product alone"
    day = shop.ask("POST", "office/days/monday")["task"]
    async with App(url) as app, Inspector.at(url) as inspector:
        addresses = [f"guest{number}@slow.example" for number in range(8)]
        await app.enqueue("mail.newsletters", {"issue": 1, "addresses": addresses}, queue="mail", limit_key=None)
        late = await app.enqueue("payments.transfer", {"order": 1}, queue="payments")
        await until(lambda: shop.happened("mailed guest7@slow.example: newsletter 1"), what="the newsletters")
        assert 1 <= shop.most_mails_at_once("slow.example") <= 2
        await until(lambda: shop.happened("paid by transfer"))
        assert not (await inspector.queue("payments")).retry
        assert late.created
        [server] = await inspector.servers()
        entries = {entry.task_type: entry for entry in await inspector.scheduler_entries()}
        assert len(entries) == 7
        await until(lambda: shop.happened("synchronized the warehouse"), what="a tick")
        document = await app.enqueue("invoices.render", {"order": 1, "customer": "ada", "cents": 5}, queue="invoices")
        made_by = re.search(r"process (\d+)", await document.result(timeout=30))
        assert made_by is not None
        assert int(made_by[1]) != server.pid
    await until(lambda: shop.ask("GET", f"office/tasks/{day}")["status"] == "SUCCESSFUL", what="Django's task")
    await until(lambda: shop.happened("recounted tea: rain"))
    redis = connect_store(url)
    [member] = await LiveProcesses(redis).members()
    await redis.close()
    assert (member.types or "").count("\1") + 2 > 40, "with Django's two tasks"


def _page(shop: Shop) -> None:
    assert '<script type="module" src="page.js">' in shop.ask("GET", "")
    assert "./js/veredus.js" in shop.ask("GET", "page.js")
    assert "export" in shop.ask("GET", "js/veredus.js")
