"""Requests and groups of a peer without a gateway: what is sent, when it is sent again, and what the answers do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.waiting import PATIENCE, pause, until
from veredus.errors import RequestFailed, RequestLost, RequestRejected
from veredus.link.client import ClientLink
from veredus.link.events import Rejected
from veredus.model.frames import ErrorCode, Kind, Message
from veredus.peer import PeerConfig
from veredus.peer.groups import PeerGroups
from veredus.peer.requests import PeerRequests, Pending


class NotedLink(ClientLink):
    """Notes what it is told."""

    def __init__(self, state: str = "idle") -> None:
        super().__init__()
        self.state = state
        self.told: list[tuple[Any, ...]] = []
        self.flushes = 0

    def flush_soon(self) -> None:
        self.flushes += 1

    def send_again(self, rid: int) -> None:
        self.told.append(("again", rid))

    def give_up(self, rid: int) -> None:
        self.told.append(("give up", rid))

    def cancel(self, rid: int) -> None:
        self.told.append(("cancel", rid))

    def join(self, group: str) -> None:
        self.told.append(("join", group))

    def leave(self, group: str) -> None:
        self.told.append(("leave", group))


def requests_of(link: NotedLink, **settings: Any) -> PeerRequests:
    config = PeerConfig(**{"backoff_base": 0.001, "backoff_max": 0.001, **settings})
    return PeerRequests(link, link.flush_soon, config)


def busy(rid: int, retry_after_ms: int = 0) -> Rejected:
    return Rejected(rid, ErrorCode.LIMIT, True, retry_after_ms, "busy")


def one_rejected() -> tuple[NotedLink, PeerRequests, Pending]:
    """A request that the gateway has rejected for now."""
    link = NotedLink("open")
    requests = requests_of(link, retries=5)
    pending = requests.submit("echo", None, None, False, False)
    requests.rejected(busy(pending.rid))
    return link, requests, pending


# ---- requests


async def test_a_request_that_is_rejected_for_now_is_sent_again_as_often_as_is_set() -> None:
    link = NotedLink()
    requests = requests_of(link, retries=2)
    pending = requests.submit("echo", None, None, False, False)
    assert link.flushes == 1
    for number in (1, 2):
        requests.rejected(busy(pending.rid))
        assert link.told == [("again", pending.rid)] * (number - 1), "at once is too soon"
        await until(lambda number=number: link.told == [("again", pending.rid)] * number)
        assert link.flushes == 1 + number
        assert not pending.done
        assert not pending.retry_scheduled
    requests.rejected(busy(pending.rid))
    with pytest.raises(RequestRejected, match="busy"):
        await pending
    assert link.told[2:] == [("give up", pending.rid)]


@pytest.mark.parametrize(("retry_after_ms", "is_tried"), [(10, True), (60_000, False)])
async def test_a_request_is_not_sent_again_after_its_deadline(retry_after_ms: int, is_tried: bool) -> None:
    link = NotedLink()
    requests = requests_of(link, retries=5)
    pending = requests.submit("echo", None, 30.0, False, False)
    requests.rejected(busy(pending.rid, retry_after_ms))
    assert pending.done is not is_tried
    if is_tried:
        await until(lambda: link.told == [("again", pending.rid)])
    requests.fail_all(lambda action: RequestLost(action, "the end"))


@pytest.mark.parametrize("is_retryable", [True, False])
async def test_a_request_that_was_lost_is_never_sent_again(is_retryable: bool) -> None:
    link = NotedLink()
    requests = requests_of(link, retries=5)
    pending = requests.submit("echo", None, None, False, False)
    requests.rejected(Rejected(pending.rid, ErrorCode.WORKER_LOST, is_retryable, 0, "gone"))
    with pytest.raises(RequestLost, match="gone") as lost:
        await pending
    assert lost.value.retryable is is_retryable
    assert link.told == [("give up", pending.rid)]


async def test_a_request_that_is_cancelled_before_it_is_sent_again_is_given_up_here() -> None:
    """The gateway has rejected it: there is nothing to cancel."""
    link, requests, pending = one_rejected()
    pending.cancel()
    assert link.told == [("give up", pending.rid)]
    requests._send_again(pending)
    requests.welcomed()
    assert link.told == [("give up", pending.rid)]


async def test_a_new_connection_has_sent_what_was_to_be_sent_again() -> None:
    link, requests, pending = one_rejected()
    requests.welcomed()
    requests._send_again(pending)
    assert link.told == []
    pending.cancel()
    assert link.told == [("cancel", pending.rid)], "the gateway has it"


@pytest.mark.parametrize(("state", "told"), [("open", [("cancel", 1)]), ("hello", []), ("idle", [])])
async def test_a_cancel_goes_out_with_a_connection_and_waits_for_one_without(state: str, told: list[Any]) -> None:
    link = NotedLink(state)
    requests = requests_of(link)
    pending = requests.submit("echo", None, None, False, False)
    waiting = asyncio.create_task(_wait_for(pending))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (link.told, link.flushes, len(requests)) == (told, 1 + len(told), 0)
    requests.welcomed()
    assert link.told == [("cancel", 1)]


async def _wait_for(pending: Any) -> Any:
    return await pending


async def test_a_request_that_was_accepted_stays_open_for_its_answer_unless_it_wants_none() -> None:
    requests = requests_of(NotedLink())
    asks = requests.submit("echo", None, None, False, False)
    tells = requests.submit("echo", None, None, False, True)
    for rid in (asks.rid, tells.rid, 77, asks.rid):
        requests.accepted(rid)
    assert (asks.done, tells.done, len(requests)) == (False, True, 1)
    await asyncio.wait_for(asks.accepted(), PATIENCE)
    assert await tells is None
    assert requests.answered(Message(seq=1, ts=1, kind=Kind.RESPONSE, rid=asks.rid, body=b"5"))
    assert await asks == 5


async def test_a_request_waits_for_its_answer_a_little_longer_than_its_deadline() -> None:
    requests = requests_of(NotedLink(), grace=7.0)
    loop = asyncio.get_running_loop()
    before = loop.time()
    pending = requests.submit("echo", None, 30.0, False, False)
    after = loop.time()
    assert before + 30 <= pending.until <= after + 30
    assert pending.timer is not None
    assert before + 37 <= pending.timer.when() <= after + 37
    pending.cancel()


@pytest.mark.parametrize("end", ["answered", "failed", "timed out", "all failed"])
async def test_a_request_ends_once(end: str) -> None:
    requests = requests_of(NotedLink())
    pending = requests.submit("echo", None, 60.0, False, False)
    timer = pending.timer
    assert timer is not None
    pending.fail(RequestFailed("echo", "first", code=500, retryable=False))
    assert timer.cancelled()
    if end == "answered":
        requests.answered(Message(seq=1, ts=1, kind=Kind.RESPONSE, rid=pending.rid, body=b"5"))
    elif end == "failed":
        requests.answered(Message(seq=1, ts=1, kind=Kind.RESPONSE, rid=pending.rid, code=500, error="second"))
    elif end == "timed out":
        requests._timed_out(pending.rid, 60.0)
    else:
        requests.fail_all(lambda action: RequestLost(action, "second"))
    with pytest.raises(RequestFailed, match="first"):
        await pending
    requests._timed_out(pending.rid, 60.0)
    assert len(requests) == 0


# ---- groups


def groups_of(monkeypatch: pytest.MonkeyPatch, interval: float = 0.2) -> tuple[NotedLink, PeerGroups]:
    monkeypatch.setattr("veredus.peer.groups.ASK_INTERVAL", interval)
    link = NotedLink()
    return link, PeerGroups(link, link.flush_soon)


def answer(group: Any = "g", joined: bool = False, code: int = 0) -> dict[str, Any]:
    return {"group": group, "joined": joined, "code": code}


async def test_whoever_asks_is_sent_at_once_and_again_until_there_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    link, groups = groups_of(monkeypatch, 0.005)
    joining = groups.ask("g", True)
    assert (link.told, link.flushes) == ([("join", "g")], 1)
    await until(lambda: len(link.told) >= 3)
    assert link.flushes == len(link.told)
    groups.answered(answer(joined=True))
    await asyncio.wait_for(joining, PATIENCE)
    count = len(link.told)
    await pause(0.03, proves="what was answered is not asked again")
    assert len(link.told) == count


async def test_two_who_ask_for_the_same_share_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    _, groups = groups_of(monkeypatch)
    first = groups.ask("g", True)
    assert groups.ask("g", True) is first
    groups.answered(answer(joined=True))
    assert first.done()
    second = groups.ask("g", False)
    assert second is not first
    groups.answered(answer())
    assert second.done()


@pytest.mark.parametrize(
    "said", [None, [], "g", {}, {"group": 5}, {"group": ["g"]}, {"group": "other", "joined": True}, {"joined": True}]
)
async def test_what_is_no_answer_about_a_group_that_was_asked_for_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    link, groups = groups_of(monkeypatch)
    joining = groups.ask("g", True)
    groups.answered(said)
    assert not joining.done()
    groups.answered(answer(joined=True))
    await asyncio.wait_for(joining, PATIENCE)
    link.told.clear()
    groups.welcomed()
    assert link.told == [("join", "g")]


async def test_a_new_connection_is_told_all_wishes_but_those_that_were_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    link, groups = groups_of(monkeypatch)
    wishes = {"in": True, "out": False, "refused": True}
    futures = {name: groups.ask(name, is_member) for name, is_member in wishes.items()}
    groups.answered(answer("in", joined=True))
    groups.answered(answer("out"))
    groups.answered(answer("refused", code=ErrorCode.FORBIDDEN))
    assert all(future.done() for future in futures.values())
    link.told.clear()
    groups.welcomed()
    assert link.told == [("join", "in"), ("leave", "out")]


async def test_a_group_that_nobody_waits_for_is_asked_for_once_more_after_an_error_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, groups = groups_of(monkeypatch, 0.005)
    groups.ask("g", True)
    groups.answered(answer(joined=True))
    await pause(0.02, proves="the timer of the first question is over")
    for number in (1, 2):
        before = (len(link.told), link.flushes)
        for _ in range(3):
            groups.answered(answer(code=ErrorCode.UNAVAILABLE))
        await until(lambda before=before: link.flushes > before[1])
        await pause(0.02, proves="three answers are one reason to ask again")
        assert (len(link.told), link.flushes) == (before[0] + 1, before[1] + 1), number


async def test_whoever_waits_asks_again_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    link, groups = groups_of(monkeypatch)
    joining = groups.ask("g", True)
    groups.answered(answer(code=ErrorCode.UNAVAILABLE))
    assert not joining.done()
    assert groups._retrying == set()
    link.told.clear()
    groups._retry("g")
    assert link.told == [], "somebody waits, and asks"
    groups.answered(answer(code=ErrorCode.FORBIDDEN))
    groups._retry("g")
    assert link.told == [], "it was refused meanwhile"
    with pytest.raises(RequestRejected):
        await joining


async def test_at_the_end_all_who_wait_are_told_and_none_asks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    link, groups = groups_of(monkeypatch, 0.005)
    waiting = [groups.ask(name, True) for name in "ab"]
    waiting[0].cancel()
    groups.fail_all("the end")
    with pytest.raises(RequestLost, match="group b: the end"):
        await waiting[1]
    count = len(link.told)
    await pause(0.03, proves="nobody asks after the end")
    assert len(link.told) == count
