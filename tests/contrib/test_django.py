"""The backend for Django's Tasks, against the real framework: Django 6, or 5.2 with django-tasks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

django = pytest.importorskip("django")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.contrib.site.settings")
django.setup()

from asgiref.sync import async_to_sync  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import transaction  # noqa: E402

from tests.contrib.site import jobs, tasks  # noqa: E402
from tests.support.servers import RealServer  # noqa: E402
from veredus.contrib.django import VeredusBackend, enqueue_on_commit, enqueue_on_commit_of  # noqa: E402
from veredus.contrib.django.backend import BANDS, _aware  # noqa: E402
from veredus.contrib.django.framework import TaskResultDoesNotExist, base, signals  # noqa: E402
from veredus.contrib.django.framework import tasks as framework  # noqa: E402
from veredus.contrib.django.records import DjangoTaskRecord, result_of  # noqa: E402
from veredus.errors import ConfigError, PayloadError  # noqa: E402
from veredus.model.info import TaskInfo  # noqa: E402
from veredus.testing import BlockingRehearsal  # noqa: E402

Status = base.TaskResultStatus
START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def q() -> Iterator[BlockingRehearsal]:
    tasks.ran.clear()
    jobs.welcomed.clear()
    backend = framework.task_backends["default"]
    with backend.app.test(start=START, queues=backend.worker_queues()) as rehearsal:
        yield rehearsal
    backend.app.close_sync()


def test_enqueue_run_and_read_the_result(q: BlockingRehearsal) -> None:
    result = tasks.add.enqueue(1, b=2)
    assert (result.status, result.args, result.kwargs, result.backend) == (Status.READY, [1], {"b": 2}, "default")
    assert (result.enqueued_at, result.started_at, result.attempts) == (START, None, 0)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    q.advance(5)
    assert tasks.add.get_result(result.id).status is Status.SUCCESSFUL
    result.refresh()
    assert (result.return_value, result.attempts, result.is_finished, result.errors) == (3, 1, True, [])
    assert (result.enqueued_at, result.started_at, result.finished_at) == (START, START, START)
    assert json.loads(q.sent[0].payload or b"") == {"args": [1], "kwargs": {"b": 2}}
    assert q.sent[0].type == "django:tests.contrib.site.tasks.add"


def test_coroutines_and_async_calls(q: BlockingRehearsal) -> None:
    async def send() -> Any:
        return await tasks.add_later.aenqueue(1)

    result = asyncio.run(send())
    assert q.sent[0].queue == "mail"
    q.drain(raises=True)

    async def read() -> Any:
        await result.arefresh()
        return await tasks.add_later.aget_result(result.id)

    assert asyncio.run(read()).return_value == {"sum": 2}
    assert result.return_value == {"sum": 2}


@pytest.mark.parametrize("task", [tasks.fail, tasks.fail_async], ids=["sync", "async"])
def test_failures_are_retried_and_remembered(q: BlockingRehearsal, task: Any) -> None:
    result = task.enqueue("no luck")
    q.drain()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (Status.READY, 1, 1)
    q.run_all()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (Status.FAILED, 3, 3)
    assert result.errors[0].exception_class is ValueError
    assert "no luck" in result.errors[-1].traceback
    assert result.finished_at == q.runs[-1].at > START == result.started_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_of_many_failures_the_last_ten_are_remembered() -> None:
    record = DjangoTaskRecord()
    for number in range(12):
        record.fail(ValueError(f"failure {number}"), 1.0)
    assert [text.splitlines()[-1] for _, text in record.errors] == [f"ValueError: failure {n}" for n in range(2, 12)]


def test_a_task_whose_worker_was_lost_for_good_has_failed_with_a_reason() -> None:
    info = TaskInfo(
        id="1", queue="default", type="django:tests.contrib.site.tasks.add", state="archived", result=b"",
        payload=b'{"args": [1], "kwargs": {"b": 2}}', last_error="asynq: task lease expired", last_failed=1_900_000_000,
    )  # fmt: skip
    result = result_of(info)
    assert result.status is Status.FAILED
    assert [(one.exception_class_path, one.traceback) for one in result.errors] == [
        ("veredus.errors.TaskFailed", "asynq: task lease expired")
    ]
    assert result.finished_at == datetime.fromtimestamp(1_900_000_000, UTC)


def test_a_naive_instant_is_a_local_one() -> None:
    naive = datetime(2030, 1, 1, 12)  # noqa: DTZ001
    aware = _aware(naive)
    assert aware is not None
    assert aware.tzinfo is not None
    assert aware.timestamp() == naive.timestamp()
    assert _aware(START) is START


def test_context_and_attempts(q: BlockingRehearsal) -> None:
    result = tasks.attempts.enqueue(2)
    q.run_all()
    result.refresh()
    assert (result.return_value, result.attempts, len(result.errors)) == (2, 2, 1)


def test_run_after(q: BlockingRehearsal) -> None:
    when = START + timedelta(minutes=5)
    result = tasks.add.using(run_after=when).enqueue(1)
    assert q.drain() == []
    assert tasks.add.get_result(result.id).task.run_after == when
    q.advance(299.999)
    assert tasks.ran == []
    q.advance(0.001)
    assert tasks.ran == [(1, 0)]


def test_priorities_have_three_bands(q: BlockingRehearsal) -> None:
    for priority in (-50, 0, 50):
        tasks.add.using(priority=priority).enqueue(priority)
    q.drain()
    assert tasks.ran == [(50, 0), (0, 0), (-50, 0)]
    assert [one.queue for one in q.sent] == ["default:low", "default", "default:high"]
    result = tasks.add.get_result(q.sent[0].id)
    assert (result.task.priority, result.task.queue_name) == (-50, "default")
    with pytest.raises(Exception, match="between -100 and 100"):
        tasks.add.using(priority=101)


def test_what_it_refuses(q: BlockingRehearsal) -> None:
    with pytest.raises(Exception, match="'unknown' is not valid"):
        tasks.add.using(queue_name="unknown")
    with pytest.raises(Exception, match="module level"):
        framework.task(lambda: None)
    with pytest.raises(Exception, match="aware datetime"):
        tasks.add.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.add.enqueue(object())
    assert q.sent == []


def test_unknown_results(q: BlockingRehearsal) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result("no-such-id")
    other = jobs.welcome.enqueue_sync(1)
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result(other.id)
    with pytest.raises(Exception, match="does not match"):
        tasks.fail.get_result(tasks.add.enqueue(1).id)


def test_a_result_that_json_cannot_carry_fails_the_task(q: BlockingRehearsal) -> None:
    result = tasks.no_json.enqueue()
    q.run_all()
    result.refresh()
    assert result.status is Status.FAILED
    assert "Unsupported type" in result.errors[-1].traceback


def test_only_tasks_are_run(q: BlockingRehearsal) -> None:
    for path in ("tests.contrib.site.tasks.plain", "os.getcwd", "no.such.module"):
        jobs.app.enqueue_sync(f"django:{path}", {"args": [], "kwargs": {}}, max_retry=0)
    runs = q.drain()
    assert [run.action for run in runs] == ["archive"] * 3
    assert all(isinstance(run.error, ImportError) for run in runs)


def test_the_database_is_at_hand(q: BlockingRehearsal) -> None:
    result = tasks.asks_database.enqueue()
    q.drain()
    result.refresh()
    assert result.return_value == 42


def test_signals(q: BlockingRehearsal) -> None:
    heard: list[tuple[str, str]] = []
    named = {"enqueued": signals.task_enqueued, "started": signals.task_started, "finished": signals.task_finished}
    receivers = []
    for name, signal in named.items():
        receivers.append(lambda sender, task_result, name=name, **_: heard.append((name, str(task_result.status))))
        signal.connect(receivers[-1], sender=VeredusBackend)
    try:
        tasks.add.enqueue(1)
        tasks.fail.enqueue("x")
        q.run_all()
    finally:
        for signal, receiver in zip(named.values(), receivers, strict=True):
            signal.disconnect(receiver, sender=VeredusBackend)
    assert heard.count(("enqueued", "READY")) == 2
    assert heard.count(("started", "RUNNING")) == 4
    assert [one for one in heard if one[0] == "finished"] == [("finished", "SUCCESSFUL"), ("finished", "FAILED")]


def test_on_commit(q: BlockingRehearsal) -> None:
    with transaction.atomic():
        enqueue_on_commit(jobs.welcome, 1)
        result = tasks.add.using(backend="later").enqueue(1)
        assert q.sent == []
    assert [one.type for one in q.sent] == ["welcome", "django:tests.contrib.site.tasks.add"]
    assert q.sent[1].id == result.id
    with transaction.atomic():
        enqueue_on_commit_of("default", jobs.welcome, 2)
        transaction.set_rollback(True)
    enqueue_on_commit(jobs.welcome, 3)
    with pytest.raises(PayloadError, match="misses the argument"):
        enqueue_on_commit(jobs.welcome)  # type: ignore[call-arg]
    q.drain()
    assert jobs.welcomed == [1, 3]


def test_on_commit_of_another_database(q: BlockingRehearsal) -> None:
    with transaction.atomic(using="other"):
        enqueue_on_commit_of("other", jobs.welcome, 1)
        enqueue_on_commit(jobs.welcome, 2)
        assert len(q.sent) == 1, "the default database has no transaction"
    q.drain()
    assert jobs.welcomed == [2, 1]


def test_an_async_enqueue_waits_for_the_commit_too(q: BlockingRehearsal) -> None:
    with transaction.atomic():
        result = async_to_sync(tasks.add.using(backend="later").aenqueue)(1)
        assert q.sent == []
    assert [one.id for one in q.sent] == [result.id]


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'max_retry'"):
        VeredusBackend("default", {"OPTIONS": {"max_retries": 3}})
    bad = VeredusBackend("default", {"OPTIONS": {"app": "no_colon"}})
    assert "module:attribute" in bad.check()[0].msg
    assert VeredusBackend("default", {"OPTIONS": {"url": "redis://localhost"}}).check() == []
    with pytest.raises(CommandError, match="weight"):
        call_command("veredus_worker", "--queues", "mail=x", stdout=StringIO())


def test_the_worker_command(valkey_server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real worker in a process of its own."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "VEREDUS_REDIS_URL": valkey_server.url, "PYTHONPATH": str(root)}
    monkeypatch.setenv("VEREDUS_REDIS_URL", valkey_server.url)
    result = tasks.add.enqueue(20, b=22)
    command = [sys.executable, "-m", "django", "veredus_worker", "--burst", "--concurrency", "4"]
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    result.refresh()
    assert (result.status, result.return_value) == (Status.SUCCESSFUL, 42)
    assert result.worker_ids[0].rpartition(":")[2] != str(os.getpid())
    jobs.app.close_sync()


def test_named_queues_are_served_with_their_bands_and_unknown_ones_warn(caplog: pytest.LogCaptureFixture) -> None:
    backend = framework.task_backends["default"]
    known = sorted(backend.queues)
    name = known[0]
    assert backend.worker(queues=f"{name}=3").config.queues == {f"{name}:high": 300, name: 30, f"{name}:low": 3}
    assert backend.worker(queues=[f"{name}:high"]).config.queues == {f"{name}:high": 1}
    assert set(backend.worker().config.queues) == {one + band for one in known for band in ("", ":high", ":low")}
    assert caplog.records == []
    assert set(backend.worker(queues={f"{name}x": 1}).config.queues) == {f"{name}x:high", f"{name}x", f"{name}x:low"}
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"queue '{name}x' is not in TASKS['default']['QUEUES']" in warning
    assert f"did you mean '{name}'" in warning


def test_a_worker_of_the_app_serves_the_queues_of_its_backend_too() -> None:
    backend = framework.task_backends["default"]
    served = backend.app.served_queues()
    assert backend.worker_queues().items() <= served.items()
    own = {task.options.queue for task in backend.app.tasks.values()} - backend.worker_queues().keys()
    assert {served[queue] for queue in own} <= {BANDS[""]}, "as often as Django's middle band"
