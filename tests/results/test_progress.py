"""Progress and early results: in order, coalesced, only while the task is the handler's own."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support import golden
from tests.support.waiting import PATIENCE, pause, until
from veredus import App, Job, LeaseLost, Progress, current
from veredus.errors import ConfigError
from veredus.model.task_status import read_progress, write_progress
from veredus.store.tasks.results import Results
from veredus.wire.messages import decode_task


async def test_steps_arrive_in_order_and_the_last_one_always(app: App, look: Look) -> None:
    started = asyncio.Event()
    seconds = 0.0

    @app.task
    async def render(pages: int) -> int:
        nonlocal seconds
        await started.wait()
        began = time.monotonic()
        for page in range(1, pages + 1):
            await current().progress(page / pages, f"page {page}")
            await asyncio.sleep(0.02)
        seconds = time.monotonic() - began
        return pages

    async with app.worker(**FAST):
        handle = await render.enqueue(40)
        steps: list[Progress] = []

        async def follow() -> None:
            async for step in handle.progress():
                steps.append(step)

        follower = asyncio.create_task(follow())
        await until(lambda: _is_waited_for(look, handle.id))
        started.set()
        assert await handle.result(PATIENCE) == 40
        await asyncio.wait_for(follower, PATIENCE)
    assert [step.share for step in steps] == sorted({step.share for step in steps})
    assert (steps[0].note, steps[-1].share, steps[-1].note) == ("page 1", 1.0, "page 40")
    assert 3 <= len(steps) <= 3 + 10 * seconds, (len(steps), seconds)  # at most ten a second
    status = await handle.status()
    assert status.progress == steps[-1]


async def test_a_hundred_reports_at_once_are_two_writes(app: App, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    real = Results.progress

    async def counted(self: Results, queue: str, task_id: str, owner: str, progress: bytes) -> bool:
        written.append(progress)
        return await real(self, queue, task_id, owner, progress)

    monkeypatch.setattr(Results, "progress", counted)

    seconds = 0.0

    @app.task(retention=60)
    async def busy() -> None:
        nonlocal seconds
        began = time.monotonic()
        for n in range(1, 101):
            await current().progress(n / 100)
        seconds = time.monotonic() - began

    async with app.worker(**FAST):
        handle = await busy.enqueue()
        await handle.result(PATIENCE)
    assert 2 <= len(written) <= 2 + 10 * seconds, (len(written), seconds)
    assert (await handle.status()).progress == read_progress(written[-1])
    assert (await handle.status()).progress.share == 1.0  # type: ignore[union-attr]


async def test_the_last_report_is_kept_on_a_server_that_does_not_know_the_script(app: App, look: Look) -> None:
    """As after a restart: the report is refused and sent again, and the end of its task must not overtake it."""

    @app.task
    async def two_steps() -> int:
        await current().progress(0.5)
        await current().progress(1.0)
        return 1

    @app.task
    async def one() -> int:
        return 1

    async with app.worker(**FAST):
        await (await one.enqueue()).result(PATIENCE)  # the server knows how a task is completed
        handle = await two_steps.enqueue()
        await handle.result(PATIENCE)
    progress = (await handle.status()).progress
    assert progress is not None
    assert progress.share == 1.0


async def test_a_report_that_takes_long_does_not_overwrite_a_newer_one(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    real = Results.progress

    async def first_one_slow(self: Results, queue: str, task_id: str, owner: str, progress: bytes) -> bool:
        if b"0.5" in progress:
            await pause(0.3, proves="nothing newer is written meanwhile")
        done = await real(self, queue, task_id, owner, progress)
        written.append(progress)
        return done

    monkeypatch.setattr(Results, "progress", first_one_slow)

    @app.task(retention=60)
    async def two_steps() -> None:
        await current().progress(0.5)
        await current().progress(1.0)
        await until(lambda: len(written) == 2)

    async with app.worker(**FAST):
        handle = await two_steps.enqueue()
        await handle.result(PATIENCE)
    progress = (await handle.status()).progress
    assert progress is not None
    assert progress.share == 1.0


async def test_a_thread_reports_too(app: App, look: Look) -> None:
    @app.task
    def crunch() -> int:
        current().progress_sync(0.5, "half")
        current().write_result_sync(b"early")
        current().progress_sync(1, "all")
        return 1

    async with app.worker(**FAST):
        handle = await crunch.enqueue()
        assert await handle.result(PATIENCE) == 1
        progress = (await handle.status()).progress
        assert progress is not None
        assert (progress.share, progress.note) == (1.0, "all")


async def test_one_who_comes_later_gets_the_last_step_first(app: App, look: Look) -> None:
    go = asyncio.Event()

    @app.task
    async def halfway() -> None:
        await current().progress(0.5, "waiting")
        await go.wait()

    async with app.worker(**FAST):
        handle = await halfway.enqueue()
        await until(lambda: look.client.hexists(look.task(handle.id), "progress"))
        steps = []
        async for step in handle.progress():
            steps.append(step.note)
            go.set()
    assert steps == ["waiting"]


async def test_a_result_written_early_is_there_before_the_end_and_kept(app: App, look: Look) -> None:
    go = asyncio.Event()

    @app.task
    async def early(override: bool) -> Any:
        assert await current().write_result(b"early") == 5
        await go.wait()
        return "late" if override else None

    async with app.worker(**FAST):
        kept, replaced = await early.enqueue(False), await early.enqueue(True)
        for handle in (kept, replaced):

            async def is_there(task_id: str = handle.id) -> bool:
                return bool(await look.client.hget(look.task(task_id), "result") == b"early")

            await until(is_there)
        go.set()
        assert await kept.result(PATIENCE) == b"early"
        assert await replaced.result(PATIENCE) == "late"


async def test_what_a_failed_attempt_has_written_stays_when_the_next_one_writes_nothing(app: App, look: Look) -> None:
    """As in Go, whose ResultWriter writes into a hash that survives retries."""

    @app.task(retry_delay=0, retention=600)
    async def twice() -> None:
        if current().attempt == 1:
            await current().write_result(b"of the first attempt")
            raise ValueError("then it fails")

    async with app.worker(**FAST):
        handle = await twice.enqueue()
        await look.ends(handle.id, "completed")
    assert await look.client.hget(look.task(handle.id), "result") == b"of the first attempt"


async def test_a_late_writer_leaves_no_orphan(app: App, look: Look) -> None:
    told: list[BaseException] = []
    deleted = asyncio.Event()

    @app.task
    async def outlived() -> None:
        await deleted.wait()
        await current().progress(1.0)
        try:
            await current().write_result(b"late")
        except LeaseLost as exc:
            told.append(exc)
            raise

    async with app.worker(**FAST):
        handle = await outlived.enqueue()
        await until(look.active)
        await look.client.delete(look.task(handle.id))
        await look.client.lrem("asynq:{default}:active", 0, handle.id)
        await look.client.zrem("asynq:{default}:lease", handle.id)
        deleted.set()
        await until(lambda: told)
    assert await look.client.exists(look.task(handle.id)) == 0


async def test_results_stand_where_asynq_puts_them(app: App, look: Look) -> None:
    """What a Go handler's ResultWriter left behind, beside what ours leaves."""

    @app.handler("echo")
    async def echo(job: Job) -> None:
        if job.payload != b"none":
            await current().write_result(job.payload)

    recorded = golden.load("completed")
    hashes = {row["key"].rpartition(":")[2]: row for row in recorded["redis"]["keys"] if ":t:" in row["key"]}
    async with app.worker(**FAST):
        for call in recorded["inputs"]:
            if call["call"] != "Client.Enqueue":
                continue
            theirs = {f["field"]: golden.raw(f) for f in hashes[call["returned"][0]["id"]]["fields"]}
            payload = golden.raw(call["payload"]) if "result" in theirs else b"none"
            kept = decode_task(theirs["msg"]).retention
            handle = await app.enqueue("echo", payload, retention=kept)
            await look.ends(handle.id, "completed")
            ours = await look.fields(handle.id)
            assert ours.keys() == theirs.keys() | {"attempts", "attempt:1"}
            assert ours.get("result") == theirs.get("result")
            assert decode_task(ours["msg"]).retention == kept


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "half", True, None])
def test_a_share_is_a_number_from_0_to_1(share: Any) -> None:
    with pytest.raises(ConfigError, match="share"):
        write_progress(share, "", 0)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"1", b"\xff", b'{"share": "x", "note": "", "at": 0}'])
def test_what_is_no_progress_disturbs_nobody(data: bytes) -> None:
    assert read_progress(data) is None


async def _is_waited_for(look: Look, task_id: str) -> bool:
    return bool(await look.client.hexists(look.task(task_id), "waited"))
