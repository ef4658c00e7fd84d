"""Notifies for which there is no room wait, are dropped and counted, or raise; what waits for a user is not lost."""

from __future__ import annotations

import pytest

from tests.gateway.support import JsonClient, gateway
from tests.support.waiting import until
from veredus import App, ConfigError, OutboxFull, current
from veredus.gateway import maintenance

COUNT = 40
ROOM = 5


@pytest.mark.parametrize("where", ["gateway", "worker"])
async def test_a_notify_waits_until_the_client_has_read_enough(app: App, where: str) -> None:
    @app.action("tell", where=where, queue="r")
    async def tell() -> str:
        for number in range(COUNT):
            await current().client.notify(number)
        return "told"

    async with gateway(app, quota_entries=ROOM) as gw, app.worker("r"):
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "tell")
        for number in range(COUNT):
            message = await client.frame("msg")
            assert (message["body"], message["bind_client_seq_id"]) == (number, 1)
            if number % ROOM == ROOM - 1:
                await client.ack()
        response = await client.frame("msg")
        assert (response["body"], response.get("metadata")) == ("told", None)


async def test_dropped_notifies_are_counted_in_the_response(app: App) -> None:
    @app.action("tell", where="gateway")
    async def tell() -> list[str]:
        return [str((await current().client.notify(number, full="drop")).status) for number in range(COUNT)]  # type: ignore[union-attr]

    async with gateway(app, quota_entries=ROOM) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "tell")
        assert [message["body"] for message in await client.take(ROOM)] == list(range(ROOM))
        response = await client.frame("msg")
        assert response["body"] == ["queued"] * ROOM + ["full"] * (COUNT - ROOM)
        assert response["metadata"] == {"dropped": str(COUNT - ROOM)}


async def test_a_notify_without_room_may_raise(app: App) -> None:
    @app.action("tell", where="gateway")
    async def tell() -> int:
        with pytest.raises(ConfigError, match="full: got 'maybe', expected one of wait, drop, raise"):
            await current().client.notify(0, full="maybe")
        for number in range(COUNT):
            try:
                await current().client.notify(number, full="raise")
            except OutboxFull:
                return number
        return COUNT

    async with gateway(app, quota_entries=ROOM) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "tell")
        assert (await client.frame("msg", rid=1))["body"] == ROOM


async def test_a_notify_waits_no_longer_than_its_request_lives(app: App) -> None:
    ended: list[str] = []

    @app.action("tell", where="gateway")
    async def tell() -> None:
        try:
            for number in range(COUNT):
                await current().client.notify(number)
        finally:
            ended.append("tell")

    async with gateway(app, quota_entries=ROOM) as gw:
        client = await JsonClient.open(gw, "ada")
        await client.request(1, "tell", deadline_ms=500)
        assert (await client.frame("msg", rid=1))["code"] == 408
        await until(lambda: ended, what="the end of the handler")


async def test_what_waits_for_a_user_who_has_just_left_is_there_when_the_user_comes_back(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SWEEP", 0.1)
    async with gateway(app, session_ttl=0.3) as gw:
        client = await JsonClient.open(gw, "ada")
        client.cut()
        await until(lambda: not gw.delivery.attached)
        (result,) = await app.push("important", user="ada", wait=3600)
        assert (result.status, result.session) == ("queued", client.sid)

        async def is_over() -> bool:
            return (await app.presence("ada")).sessions == []

        await until(is_over, what="the end of the session")
        again = await JsonClient.open(gw, "ada")
        assert (await again.take(1))[0]["body"] == "important"
        await again.ack()
        await again.send({"t": "bye"})
        await again.close_code()
        third = await JsonClient.open(gw, "ada")
        await app.push("end", session=third.sid)
        assert (await third.take(1))[0]["body"] == "end"
