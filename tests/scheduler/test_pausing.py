"""Pausing, resuming and running schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until
from veredus import App, ConfigError, ScheduleNotFound
from veredus.cli.main import main
from veredus.inspector.inspector import Inspector
from veredus.wire import keys
from veredus.wire.schedules import EntryRecord, encode_entry


async def test_the_ticks_of_a_paused_schedule_pass_and_are_not_caught_up() -> None:
    app, runs = App(), list[str]()
    app.cron("@every 60s", name="often", queue="low")(lambda: runs.append("often"))
    app.cron("@every 60s", name="other")(lambda: runs.append("other"))
    async with app.test() as q:
        inspector = app.inspector()
        [entry] = [one for one in app.schedules.entries.values() if one.call.type == "often"]
        schedules = q._work()._cron._schedules
        assert await schedules.pause("low", entry.id)
        assert not await schedules.pause("low", entry.id)
        await q.advance(180)
        assert runs == ["other"] * 3
        assert await schedules.resume("low", entry.id)
        assert not await schedules.resume("low", entry.id)
        runs.clear()
        await q.advance(60)
        assert sorted(runs) == ["often", "other"]
        assert await schedules.pause("low", "nobody") is None
        with pytest.raises(ScheduleNotFound):
            await inspector.pause_schedule("nobody")


async def test_the_inspector_says_what_is_paused_and_go_cannot_pause(app: App, redis_client: Any) -> None:
    app.cron("@daily", name="nightly", queue="low")(lambda: None)
    [entry] = app.schedules.entries.values()
    async with app.scheduler(), app:
        inspector: Inspector = app.inspector()

        async def paused() -> list[bool]:
            return [one.paused for one in await inspector.scheduler_entries() if one.id == entry.id]

        await until(lambda: _is(paused, [False]), what="the schedule")
        assert await inspector.pause_schedule(entry.id)
        assert await paused() == [True]
        assert await inspector.resume_schedule(entry.id)
        assert await paused() == [False]
        own = keys.scheduler_entries("go", 1, "x")
        await redis_client.rpush(
            own, encode_entry(EntryRecord(id="go", spec="@daily", task_type="t", task_payload=b""))
        )
        await redis_client.zadd(keys.SCHEDULERS, {own: 4_000_000_000})
        with pytest.raises(ConfigError, match="Go's schedulers have no pause"):
            await inspector.pause_schedule("go")
        await redis_client.delete(own)
        await redis_client.zrem(keys.SCHEDULERS, own)


async def _is(look: Any, expected: Any) -> bool:
    return bool(await look() == expected)


PROGRAM = """
from veredus import App
app = App()
@app.cron("@daily", name="pausing.nightly", queue="low", max_retry=3)
def nightly() -> None: ...
"""


def test_a_schedule_is_run_with_all_options_of_its_task(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pausing_app.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for line, code in (("pausing.nightly", 0), ("pausing.nightyl", 1)):
        with pytest.raises(SystemExit) as ended:
            main(["cron", "run", line, "--app", "pausing_app:app", "--redis", url])
        assert ended.value.code == code
    written = capsys.readouterr()
    assert "did you mean 'pausing.nightly'" in written.err
    task_id = written.out.strip().removeprefix("pausing.nightly: ")
    app = App(url)

    async def look() -> Any:
        async with Inspector.at(url) as inspector:
            return await inspector.task("low", task_id)

    info = app.server.portal.run(look())
    assert (info.state, info.max_retry) == ("pending", 3)
    app.close_sync()
