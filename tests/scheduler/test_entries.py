"""Entries: declared, checked, and the same in every process."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from veredus import App, Call, ConfigError, Entry, PayloadTooLarge
from veredus.model.options import Options
from veredus.wire.option_texts import option_texts, quoted

CALL: Call[Any] = Call("t", b"{}", Options())


@pytest.fixture
def app() -> App:
    return App("redis://nowhere.invalid")


def test_cron_declares_a_task_and_an_entry(app: App) -> None:
    @app.cron("*/5 * * * *", tz="Europe/Paris", name="sweep", missed="once", queue="low", max_retry=3, timeout=90)
    async def sweep(days: int = 7) -> str:
        return f"{days} days"

    assert app.tasks == {"sweep": sweep}
    assert sweep.options.queue == "low"
    (entry,) = app.schedules.entries.values()
    assert (entry.call.type, entry.call.payload, entry.missed) == ("sweep", b"{}", "once")
    assert entry.line.spec == "CRON_TZ=Europe/Paris */5 * * * *"
    assert option_texts(entry.call.options) == ("MaxRetry(3)", 'Queue("low")', "Timeout(1m30s)")
    assert app.served_queues() == {"low": 1}


def test_a_sync_function_can_be_scheduled_too(app: App) -> None:
    @app.cron("@daily")
    def sweep() -> None: ...

    assert sweep.run_in == "thread"


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        ("61 * * * *", {}, "spec: minute"),
        ("@every 10ms", {}, "at least 1s"),
        ("@daily", {"tz": "Nowhere/Land"}, "tz"),
        ("@daily", {"missed": "some"}, "missed.*all, once, skip"),
        ("@daily", {"task_id": "fixed"}, "task_id.*its own id"),
        ("@daily", {"at": datetime(2030, 1, 1, tzinfo=UTC)}, "at: .*a duration"),
        ("@daily", {"deadline": datetime(2030, 1, 1, tzinfo=UTC)}, "deadline"),
        ("@daily", {"expires": datetime(2030, 1, 1, tzinfo=UTC)}, "expires"),
        ("@daily", {"max_retries": 1}, "did you mean 'max_retry'"),
    ],
)
def test_errors_come_at_the_declaration_and_leave_nothing_behind(
    app: App, spec: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):

        @app.cron(spec, **settings)
        async def sweep() -> None: ...

    assert not app.tasks
    assert not app.schedules


def test_required_parameters_are_refused(app: App) -> None:
    with pytest.raises(ConfigError, match=r"function.*without required parameters.*app\.schedule"):

        @app.cron("@daily")
        async def sweep(days: int) -> None: ...

    assert not app.tasks


def test_the_same_entry_twice_needs_a_name(app: App) -> None:
    first = app.schedule("@daily", CALL)
    with pytest.raises(ConfigError, match="name"):
        app.schedule("@daily", CALL)
    assert app.schedule("@daily", CALL, name="again").id != first.id


def test_a_payload_that_could_never_be_sent_is_refused() -> None:
    app = App("redis://nowhere.invalid", max_payload=10)
    with pytest.raises(PayloadTooLarge):
        app.schedule("@daily", app.call("t", "x" * 20))
    assert not app.schedules


def test_a_call_is_needed(app: App) -> None:
    with pytest.raises(ConfigError, match=r"task\.call"):
        app.schedule("@daily", "t")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="interval"):
        app.schedule_provider(list, interval=0)
    with pytest.raises(ConfigError, match="schedule provider"):
        app.schedule_provider([])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"@app\.cron"):
        app.scheduler()


def test_an_id_follows_from_what_an_entry_says() -> None:
    same = Entry("@daily", CALL)
    assert Entry(" @daily ", Call("t", b"{}", Options()), missed="skip").id == same.id
    others = [
        Entry("@midnight", CALL),
        Entry("@daily", CALL, tz="UTC"),
        Entry("@daily", CALL, name="n"),
        Entry("@daily", Call("u", b"{}", Options())),
        Entry("@daily", Call("t", b"", Options())),
        Entry("@daily", Call("t", None, Options())),
        Entry("@daily", Call("t", b"{}", Options().merged({"queue": "q"}))),
        Entry("@daily", Call("t", b"{}", Options().merged({"headers": {"a": "b"}}))),
        Entry("@daily", Call("t", b"{}", Options().merged({"expires": 5}))),
    ]
    assert len({entry.id for entry in [same, *others]}) == len(others) + 1
    assert same.task_id(1_800_000_000) == f"{same.id}:1800000000"


def test_ids_and_scope_are_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from veredus import App\napp = App()\n"
        "@app.cron('@hourly', queue='low', headers={'b': '1', 'a': '2'})\nasync def sweep(): ...\n"
        "app.schedule('@daily', app.call('go:report', {'r': 1}))\n"
        "print([e.id for e in app.schedules.entries.values()], app.schedule_scope())\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", "import shop"],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_another_service_on_the_same_server_has_another_scope(app: App) -> None:
    other = App("redis://nowhere.invalid")
    app.schedule("@daily", CALL)
    other.schedule("@hourly", CALL)
    assert app.schedule_scope() != other.schedule_scope()


def test_options_in_the_words_of_go() -> None:
    options = Options().merged(
        {
            "queue": 'lo"w',
            "max_retry": 0,
            "timeout": timedelta(minutes=1.5),
            "deadline": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
            "unique_for": 3600,
            "delay": 129600,
            "retention": 86400,
            "headers": {"k<": "v&", "a": "é"},
            "expires": 30,
        }
    )
    assert option_texts(options) == (
        "MaxRetry(0)",
        'Queue("lo\\"w")',
        "Retention(24h0m0s)",
        "Timeout(1m30s)",
        "Deadline(Tue Nov 14 22:13:20 UTC 2023)",
        "Unique(1h0m0s)",
        "ProcessIn(36h0m0s)",
        "Expires(30s)",
        'Header(["a","é"])',
        'Header(["k\\u003c","v\\u0026"])',
    )
    assert option_texts(Options()) == ()
    assert quoted("a\n\x00\u00e9\u200b") == '"a\\n\\x00\u00e9\\u200b"'
    assert quoted("\x7f\x80\U000e0001") == '"\\x7f\\u0080\\U000e0001"'


def test_options_that_go_does_not_have_stand_there_all_the_same() -> None:
    """Its readers overlook them, as long as there are brackets around something."""
    paris = timezone(timedelta(hours=1))
    options = Options().merged(
        {"order_key": 'k"1', "order_hold": True, "expires": datetime(2030, 1, 1, tzinfo=paris), "replace": True}
    )
    assert option_texts(options) == (
        "Expires(2029-12-31T23:00:00+00:00)",
        "Replace(true)",
        'OrderKey("k\\"1")',
        "OrderHold(true)",
    )


@pytest.mark.parametrize("day", [1, 21])
def test_a_date_in_the_words_of_go(day: int) -> None:
    text = option_texts(Options(at=datetime(2024, 3, day, 4, 5, 6, tzinfo=UTC)))[0]
    assert text == (
        "ProcessAt(Fri Mar  1 04:05:06 UTC 2024)" if day == 1 else "ProcessAt(Thu Mar 21 04:05:06 UTC 2024)"
    )
