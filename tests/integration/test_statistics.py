"""Statistics of task types and groups of errors: equal to what ran, minute by minute, also after restarts."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import pause
from veredus import App, Query
from veredus.clock import Clock
from veredus.dashboard.backend import Opened
from veredus.dashboard.forms import Form
from veredus.dashboard.read_routes import READINGS
from veredus.errors import ConfigError, ConnectionLost
from veredus.events import Event, TaskEnded
from veredus.model.type_stats import HOURS_KEPT, MINUTE, OTHERS, Counted, Durations, Window
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.store.tasks.stats import MOST_GROUPS, MOST_TYPES, ErrorRow, Stats, TypeRow
from veredus.wire import keys
from veredus.worker.roles.recorder import Recorder
from veredus.worker.type_counts import UNKNOWN, TypeCounts

pytestmark = [VALKEY_ONLY, pytest.mark.usefixtures("server")]


def _app(url: str, **given: Any) -> App:
    app = App(url, **given)

    @app.task(name="mail", max_retry=0)
    async def mail(fails: bool = False) -> None:
        if fails:
            raise ValueError("no such user 4242")

    @app.task(name="sms", queue="other", max_retry=0)
    async def sms() -> None:
        raise KeyError("number")

    @app.task(name="slow", queue="other")
    async def slow() -> None:
        await pause(0.2, proves="the run time is measured")

    return app


def _note(clock: Clock, ended: Counter[tuple[str, int]], event: Event) -> None:
    if isinstance(event, TaskEnded):
        ended[event.message.type, int(clock.time() // MINUTE) * MINUTE] += 1


async def test_the_statistics_equal_what_ran_after_restarts(url: str, look: Look) -> None:
    """Each worker ends before the next one begins: nothing but Redis knows the sum."""
    ended: Counter[tuple[str, int]] = Counter()
    for _ in range(2):
        app = _app(url)
        await app.enqueue_many(app.tasks["mail"].call(fails=n < 3) for n in range(10))
        await app.enqueue_many(app.tasks[name].call() for name in ("sms", "slow"))
        worker = app.worker(["default", "other"], **FAST, burst=True)
        async with worker:
            worker.bus.subscribe(functools.partial(_note, worker._clock, ended))
            await worker.wait()
        await app.close()
    async with _app(url) as app:
        inspector = app.inspector()
        found = {one.type: one for one in await inspector.type_stats()}
        assert {name: (one.counted.processed, one.counted.failed) for name, one in found.items()} == {
            "mail": (20, 6),
            "sms": (2, 2),
            "slow": (2, 0),
        }
        series = {(name, at): one.processed for name, info in found.items() for at, one in info.series}
        assert series == ended, "each minute has what ended in it"
        processed, failed = await look.counters()
        assert (processed, failed) == (20, 6)
        slow = found["slow"].counted
        assert slow.run.count == slow.wait.count == 2
        assert 0.18 < (slow.run.percentile(0.5) or 0) < 5
        hours = await inspector.type_stats(13 * 3600, queue="other", type="s*")
        assert [(one.type, one.counted.processed, one.span) for one in hours] == [("slow", 2, 3600), ("sms", 2, 3600)]
        assert sum(one.processed for _, one in hours[0].series) == 2
        with pytest.raises(ConfigError, match="seconds"):
            await inspector.type_stats(HOURS_KEPT + 1)


async def test_errors_are_grouped_over_all_queues(url: str, look: Look) -> None:
    async with _app(url, redact=lambda text, what: text.replace("4242", "****")) as app:
        for name in ("default", "more"):
            await app.enqueue_many(app.tasks["mail"].using(queue=name).call(fails=True) for _ in range(3))
        await app.tasks["sms"].enqueue()
        async with app.worker(["default", "more", "other"], **FAST, burst=True) as worker:
            await worker.wait()
        for name in ("default", "more", "other"):  # what cannot be read leaves out nothing else
            errors = await look.client.hgetall(keys.errors(name))
            await look.client.delete(keys.errors(name))
            await look.client.hset(keys.errors(name), mapping={"damaged": b"x", **errors})
        inspector = app.inspector()
        mail, sms = await inspector.errors()
        assert (mail.type, mail.error_class, mail.error, mail.count) == ("mail", "ValueError", "no such user ****", 6)
        assert mail.place.startswith("tests.integration.test_statistics._app.<locals>.mail:")
        assert mail.queues == ("default", "more")
        assert sum(count for _, count in mail.series) == 6
        assert mail.first <= mail.last <= await look.now_ms() / 1000
        assert await look.of(mail.queue).state(mail.task_id) == "archived"
        assert (sms.type, sms.error_class, sms.count, sms.queues) == ("sms", "KeyError", 1, ("other",))
        assert [one.id for one in await inspector.errors(queue="more")] == [mail.id]
        assert [one.id for one in await inspector.errors(type="s*")] == [sms.id]
        found = await inspector.search_page("more", "archived", Query(error_group=mail.id))
        assert len(found.tasks) == 3
        opened = Opened(asyncio.get_running_loop(), app.open_redis(), app)
        shown = await READINGS["errors"].read(opened, Form({"hours": "1"}, READINGS["errors"].parameters))
        assert [(one["id"], one["count"]) for one in shown["errors"]] == [(mail.id, 6), (sms.id, 1)]
        shown = await READINGS["types"].read(opened, Form({"type": "mail"}, READINGS["types"].parameters))
        assert [(one["type"], one["processed"], one["failed"]) for one in shown["types"]] == [("mail", 6, 6)]
        await opened.redis.close()

        # A failure of Go is none of the group: nobody knows where it was raised.
        other = (await inspector.tasks("more", "archived"))[0]
        message = await look.of("more").message(other.id)
        message.last_failed_at += 60
        await look.client.hset(look.of("more").task(other.id), "msg", _encoded(message))
        assert (await inspector.run_errors(mail.id[:6])).done == 5
        assert await look.client.llen(keys.pending("default")) == 3
        assert (await inspector.delete_errors(sms.id)).done == 1
        assert await look.of("other").state(sms.task_id) == "gone"
        with pytest.raises(ConfigError, match="the id of one group"):
            await inspector.run_errors("")


def _encoded(message: Any) -> bytes:
    from veredus.wire.messages import encode_task

    return encode_task(message)


async def test_a_lost_lease_and_a_message_that_is_none_are_errors_too(url: str, look: Look) -> None:
    async with _app(url) as app:
        handle = await app.tasks["mail"].enqueue()
        await look.client.hset(look.task(handle.id), "msg", b"\xff")
        async with app.worker(["default"], **FAST):
            await look.ends(handle.id, "archived")
        (one,) = await app.inspector().errors()
        assert (one.type, one.error_class, one.task_id) == ("undecodable", "unreadable", handle.id)
        assert [(info.type, info.counted.failed) for info in await app.inspector().type_stats()] == [("undecodable", 1)]


async def test_a_record_counts_once_and_is_repeated_until_it_is_answered(store: Store) -> None:
    class Lossy(Stats):
        lost = 2

        async def record(self, *args: Any) -> bool:
            added = await super().record(*args)
            if self.lost:
                self.lost -= 1
                raise ConnectionLost("the reply is lost")
            return added

    counts, now = TypeCounts(), 1_800_000_030.0
    recorder = Recorder(Lossy(store.redis), "w", counts, OutageLog())
    counts.note("q", "t", now, 500.0, 20)
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            await recorder.step()
        counts.note_failed("q", "t", now + 60, 500.0, UNKNOWN)
    assert await recorder.step()
    assert not await recorder.step(), "nothing to say, no call"
    found = await Stats(store.redis).types(["q"], Window.last(3600, int(now) + 120))
    assert {(at, one.processed, one.failed, one.wait.count) for _, at, one in found} == {
        (1_800_000_000, 1, 0, 1),
        (1_800_000_060, 2, 2, 0),
    }


async def test_what_several_workers_count_in_one_span_is_summed(store: Store) -> None:
    stats, minute = Stats(store.redis), 30_000_000
    assert await stats.record("q", "w1", 1, [TypeRow(minute, "t", 3, 1, "70000 5:2 9:1", "40000 1:3")], [])
    assert await stats.record("q", "w2", 1, [TypeRow(minute, "t", 4, 2, "30000 9:3 3:1", "5000 1:2")], [])
    assert await stats.record("q", "w1", 2, [TypeRow(minute, "t", 1, 0, "1000 5:1", "0")], [])
    sums = Counted(8, 3, Durations(101, {5: 3, 9: 4, 3: 1}), Durations(45, {1: 5}))
    for seconds in (3600, HOURS_KEPT):
        ((_, _, counted),) = await stats.types(["q"], Window.last(seconds, minute * 60 + 30))
        assert counted == sums


async def test_all_keys_expire_and_have_room_for_only_so_many_names(store: Store, redis_client: Any) -> None:
    stats, minute = Stats(store.redis), 30_000_000
    types = [TypeRow(minute, f"t{n}", 1, 0, "5 1:1", "0") for n in range(12_010)]
    errors = [ErrorRow(minute, f"g{n}", 1, minute * 60 + n, '{"type":"t"}') for n in range(MOST_GROUPS + 5)]
    assert await stats.record("q", "w", 1, types[:12_000], errors[: MOST_GROUPS - 1])
    assert await stats.record("q", "w", 2, types[12_000:], errors[MOST_GROUPS - 1 :])
    assert not await stats.record("q", "w", 1, types, errors), "an old record that comes late"
    names = [name.decode() for name in await redis_client.keys("*")]
    assert len(names) == 6
    assert all([await redis_client.ttl(name) > 0 for name in names])
    for key, span, most in (
        (keys.type_minutes("q", minute // 60), minute, MOST_TYPES * 60),
        (keys.type_hours("q", minute // 1440), minute // 60, MOST_TYPES * 24),
    ):
        assert await redis_client.hlen(key) == most + 1
        assert (await redis_client.hget(key, f"{span} {OTHERS}")).startswith(b"%d 0|" % (12_010 - most))
    assert await redis_client.hlen(keys.errors("q")) == MOST_GROUPS
    assert await redis_client.hexists(keys.errors("q"), "g0") == 0, "the one whose last error is the longest ago"
    assert await redis_client.hexists(keys.errors("q"), f"g{MOST_GROUPS + 4}") == 1


async def test_a_damaged_key_fails_before_anything_is_written(store: Store, redis_client: Any) -> None:
    await redis_client.set(keys.type_hours("q", 20_833), "no hash")
    minute = 20_833 * 1440
    with pytest.raises(Exception, match="WRONGTYPE"):
        await Stats(store.redis).record("q", "w", 1, [TypeRow(minute, "t", 1, 0, "0", "0")], [])
    assert await redis_client.exists(keys.recorded("q", "w")) == 0
    await redis_client.delete(keys.type_hours("q", 20_833))
    await redis_client.hset(keys.errors("q"), "g", "damaged")
    await redis_client.hset(keys.error_minutes("q", 10), mapping={"600 g": "many", "x": "1", "601 g": "2"})
    found = await Stats(store.redis).errors(["q"], Window.last(3600, 36_100))
    assert [(one.id, one.count, one.type) for one in found] == [("g", 2, "")]
    await redis_client.hset(keys.type_minutes("q", 10), mapping={"600 t": "1", "601 t": "1 1|0|0"})
    assert [one[1:] for one in await Stats(store.redis).types(["q"], Window.last(3600, 36_100))] == [
        (36_060, Counted(1, 1))
    ]
