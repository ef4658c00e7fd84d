"""The commands that change tasks and queues: what they leave behind, and what they refuse without touching anything."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cli.conftest import Shop
from tests.cli.support import Command, Terminal, fill
from tests.support.servers import raw
from tests.support.waiting import until_sync
from veredus import App
from veredus.wire.messages import decode_task


def _stored(veredus: Command, task_id: str, queue: str = "default") -> Any:
    return decode_task(raw(veredus.redis.hget(f"asynq:{{{queue}}}:t:{task_id}", "msg")))


def _tasks(url: str, number: int, **options: Any) -> None:
    app = App(url)
    app.enqueue_many_sync(
        app.call("even" if n % 2 == 0 else "odd", {"n": n}, queue="mail", task_id=f"t{n}", **options)
        for n in range(number)
    )
    app.close_sync()


# Enqueue.


def test_enqueue_with_every_flag(veredus: Command) -> None:
    line = "-t email:send -q mail --id mine --retry 3 --timeout 90s --deadline 2040-01-01T01:00:00+01:00"
    line += " --unique 1h30m --at 2039-12-31T23:59:59.250Z --retention 2h --header trace=abc --header a=b=c"
    sent = veredus("task", "enqueue", *line.split(), "-l", '{"user_id": 42}')
    assert (sent.code, sent.out, sent.err) == (0, "mine scheduled\n", "")
    message = _stored(veredus, "mine", "mail")
    assert (message.type, message.payload, message.queue) == ("email:send", b'{"user_id": 42}', "mail")
    assert (message.retry, message.timeout, message.retention) == (3, 90, 7200)
    assert message.headers == {"trace": "abc", "a": "b=c"}
    assert message.deadline == datetime(2040, 1, 1, tzinfo=UTC).timestamp()
    task = veredus.look(lambda inspector: inspector.task("mail", "mine"))
    assert task.next_process_at == datetime(2039, 12, 31, 23, 59, 59, 250_000, tzinfo=UTC)
    (lock,) = veredus.redis.keys("asynq:{mail}:unique:email:send:*")
    assert message.unique_key == raw(lock).decode()
    assert veredus.redis.ttl(lock) >= 5390
    again = veredus("task", "enqueue", *line.replace("mine", "other").split(), "-l", '{"user_id": 42}')
    assert "not created: an equal task already exists" in again.out
    assert veredus.states() == {"scheduled": 1}


def test_enqueue_later_grouped_and_plain(veredus: Command) -> None:
    before = datetime.now(UTC)
    assert veredus.do("task enqueue -t a -l x --id later --in 1h30m").out == "later scheduled\n"
    due = veredus.look(lambda inspector: inspector.task("default", "later")).next_process_at
    assert due is not None
    assert abs(due - before - timedelta(minutes=90)) < timedelta(seconds=5)
    assert veredus.do("task enqueue -t a -l x --id member --group digest").out == "member aggregating\n"
    assert veredus.redis.zrange("asynq:{default}:g:digest", 0, -1) == [b"member"]
    sent = veredus.do("task enqueue -t a -l x")
    assert sent.out.endswith(" pending\n")
    message = _stored(veredus, sent.out.split()[0])
    assert (message.retry, message.timeout, message.deadline, message.retention) == (25, 1800, 0, 0)
    assert (message.unique_key, message.group_key, dict(message.headers or {})) == ("", "", {})
    began = time.time()
    assert veredus.do("task enqueue -t a -l x --id soon --expires 20m").code == 0
    expires = int(raw(veredus.redis.hget("asynq:{default}:t:soon", "expires_at"))) / 1000
    assert expires == pytest.approx(began + 1200, abs=5)
    veredus.do("task enqueue -t a -l x --id later").refused(1, "'later' exists already in queue 'default'")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--timeout 90x", "a duration such as 30s"),
        ("--timeout 0", "timeout"),
        ("--in nan", "--in"),
        ("--in -5s", "at least 0"),
        ("--in 1e300", "at most 3,000,000,000 seconds"),
        ("--in 5 --at 2040-01-01T00:00:00Z", "not both"),
        ("--at 2040-01-01T00:00:00", "no time zone"),
        ("--at tomorrow", "is not a time such as"),
        ("--deadline 2040-13-01T00:00:00Z", "--deadline"),
        ("--unique 1ms", "at least 1 second"),
        ("--retention -1", "--retention"),
        ("--expires never", "--expires"),
        ("--retry -1", "max_retry"),
        ("--retry few", "--retry"),
        ("--header trace", "NAME=VALUE"),
        ("--header =abc", "NAME=VALUE"),
        ("--queue }x", "queue"),
        ("--quue x", "--queue"),
    ],
)
def test_enqueue_refuses(veredus: Command, flags: str, text: str) -> None:
    veredus("task", "enqueue", "-t", "a", "-l", "x", *flags.split()).refused(2, text)
    assert veredus.everything() == {}


# One task.


def test_run_archive_delete_by_id(veredus: Command) -> None:
    fill(veredus.url)
    assert veredus.do("task run -q mail -i dead -i done").out == "dead: run done\ndone: run done\n"
    assert veredus.states() == {"pending": 4, "aggregating": 1, "scheduled": 2, "retry": 1}
    assert veredus.do("task run -q mail -i later --front").code == 0
    assert veredus.redis.lrange("asynq:{mail}:pending", -1, -1) == [b"later"]
    assert veredus.do("task archive -q mail -i first").out == "first: archive done\n"
    assert veredus.do("task delete -q mail -i failed -i member").code == 0
    assert veredus.states() == {"pending": 4, "scheduled": 1, "archived": 1}
    veredus.do("task run -q mail -i later").refused(1, "already pending")
    veredus.do("task archive -q mail -i first").refused(1, "already archived")


def test_move_reschedule_edit(veredus: Command) -> None:
    fill(veredus.url)
    assert veredus.do("task move -q mail -i later --to news").out == "later: moved from mail to news\n"
    assert _stored(veredus, "later", "news").queue == "news"
    assert veredus.states("news") == {"scheduled": 1}
    assert veredus.do("task reschedule -q mail -i first --in 90s").out.startswith("first: due 2")
    due = veredus.look(lambda inspector: inspector.task("mail", "first")).next_process_at
    assert due is not None
    assert abs(due - datetime.now(UTC) - timedelta(seconds=90)) < timedelta(seconds=5)
    veredus.do("task reschedule -q mail -i first --at 2041-05-06T07:08:09+02:00")
    due = veredus.look(lambda inspector: inspector.task("mail", "first")).next_process_at
    assert due == datetime(2041, 5, 6, 5, 8, 9, tzinfo=UTC)
    assert veredus("task", "edit", "-q", "mail", "-i", "first", "-l", "new ü").out == "first: payload replaced\n"
    assert _stored(veredus, "first", "mail").payload == "new ü".encode()
    veredus.do("task edit -q mail -i done -l x").refused(1, "cannot edit it")


# Many tasks.


@pytest.mark.parametrize(
    "line",
    [
        "task run -q mail -s scheduled --all",
        "task archive -q mail -s pending --all",
        "task delete -q mail -s retry --all --type email:*",
        "queue remove mail --force",
    ],
)
def test_nobody_to_ask_is_refused_and_changes_nothing(veredus: Command, line: str) -> None:
    fill(veredus.url)
    before = veredus.everything()
    veredus.do(line).refused(2, "--yes", "there is no terminal to ask on", "'mail'")
    assert veredus.everything() == before


def test_all_with_filters(veredus: Command) -> None:
    _tasks(veredus.url, 20, delay=3600)
    done = veredus.do("task run -q mail -s scheduled --all -y --type odd")
    assert (done.code, done.out, done.err) == (0, "run: 10 of 20 scheduled tasks\n", "")
    assert {
        _stored(veredus, raw(one).decode(), "mail").type for one in veredus.redis.lrange("asynq:{mail}:pending", 0, -1)
    } == {"odd"}
    assert veredus("task", "archive", "-q", "mail", "-s", "pending", "--all", "-y", "--payload", '"n":1').out == (
        "archive: 6 of 10 pending tasks\n"  # 1, 11, 13, 15, 17, 19
    )
    assert veredus.do("task delete -q mail -s archived --all -y --error nothing").out.startswith("delete: 0 of 6")
    assert veredus.states() == {"pending": 4, "scheduled": 10, "archived": 6}
    assert veredus.do("task delete -q mail -s scheduled --all -y").out == "delete: 10 of 10 scheduled tasks\n"
    assert veredus.do("task run -q mail -s archived --all -y").out == "run: 6 of 6 archived tasks\n"
    assert veredus.states() == {"pending": 10}


def test_all_of_a_group_and_by_error(veredus: Command) -> None:
    fill(veredus.url)
    assert veredus.do("task delete -q mail -s retry --all -y --error TimeOut").out == "delete: 1 of 1 retry tasks\n"
    veredus.do("task run -q mail -s aggregating -g digets --all -y").refused(1, "group 'digets'", "mean 'digest'")
    veredus.do("task list -q mail -s aggregating -g none").refused(1, "no task waits in group 'none' of queue 'mail'")
    assert veredus.do("task run -q mail -s aggregating -g digest --all -y").out == "run: 1 of 1 aggregating tasks\n"
    assert veredus.states() == {"pending": 3, "scheduled": 2, "archived": 1, "completed": 1}


def test_archive_all_does_not_overflow_the_archive_unasked(veredus: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEREDUS_ARCHIVE_SIZE", "5")
    _tasks(veredus.url, 8)
    before = veredus.everything()
    line = "task archive -q mail -s pending --all -y"
    veredus.do(line).refused(1, "archiving 8 tasks of queue 'mail' would delete 3", "keeps 5", "--drop-excess")
    assert veredus.everything() == before
    assert veredus.do(f"{line} --type odd").code == 0
    veredus.do(line).refused(1, "would delete 3")
    assert veredus.do(f"{line} --drop-excess").out.startswith("archive: 4 of 4 pending tasks")
    left = veredus.states()
    assert set(left) == {"archived"}
    assert left["archived"] <= 6


# Queues.


def test_pause_resume_remove(veredus: Command) -> None:
    fill(veredus.url)
    assert veredus.do("queue pause mail other").out == "mail: paused\nother: paused\n"
    assert veredus.redis.exists("asynq:{mail}:paused", "asynq:{other}:paused") == 2
    assert veredus.do("queue pause mail").out == "mail: already paused\n"
    assert veredus.do("queue resume mail").out == "mail: resumed\n"
    assert veredus.do("queue resume mail").out == "mail: was not paused\n"
    assert veredus.redis.exists("asynq:{mail}:paused") == 0
    before = veredus.everything()
    veredus.do("queue remove other -y").refused(1, "'other' still has 1 tasks", "--force")
    assert veredus.everything() == before
    removed = veredus.do("queue remove mail other --force -y")
    assert (removed.code, removed.out, removed.err) == (0, "mail: removed\nother: removed\n", "")
    assert [key for key in veredus.redis.keys("asynq:*") if b"{mail}" in key or b"{other}" in key] == []
    assert veredus.redis.smembers("asynq:queues") == set()


# At a terminal.


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 130, 3), ("", 130, 3)])
def test_it_asks_before_it_destroys(shop: Shop, answer: str, code: int, left: int) -> None:
    _tasks(shop.server.url, 3)
    with Terminal(shop, "task delete -q mail -s pending --all") as terminal:
        terminal.read_until("Delete all pending tasks of queue 'mail'? [y/N]: ")
        if answer:
            terminal.write(answer)
        else:
            until_sync(terminal.is_waiting, what="the wait for a key")
            terminal.interrupt()  # once is enough
        terminal.read_until("delete: 3 of 3 pending tasks" if code == 0 else "veredus: interrupted")
        assert terminal.ended() == code
    assert shop.client.llen("asynq:{mail}:pending") == left


def test_top_until_ctrl_c(shop: Shop) -> None:
    _tasks(shop.server.url, 3)
    with Terminal(shop, "top --refresh 0.2") as terminal:
        terminal.read_until("mail")
        assert "\x1b[?1049h" in terminal.shown, "a screen of its own"
        shop.client.lpush("asynq:{news}:pending", "x")
        shop.client.sadd("asynq:queues", "news")
        terminal.read_until("news")
        terminal.interrupt()
        terminal.read_until("\x1b[?1049l")
        assert terminal.ended() == 0


def test_cancel_before_it_runs_in_whatever_queue_it_is(veredus: Command) -> None:
    _tasks(veredus.url, 3)
    ids = [task.id for task in veredus.look(lambda i: i.tasks("mail", "pending"))]
    assert veredus.do(f"task cancel {ids[0]}").out == f"{ids[0]}: cancelled\n"
    assert veredus.do(f"task cancel -q mail {ids[1]} --then delete").out == f"{ids[1]}: cancelled\n"
    assert veredus.do(f"task cancel {ids[0]}").out == f"{ids[0]}: already ended\n"
    assert veredus.states() == {"archived": 1, "pending": 1}
    assert veredus.do("task cancel -q mail --all -y").out == "cancel: 0 of 0 running tasks\n"


def test_a_closed_queue_refuses_and_opens_again(veredus: Command) -> None:
    _tasks(veredus.url, 1)
    assert veredus.do("queue close mail").out == "mail: closed\n"
    assert veredus.do("queue close mail").out == "mail: already closed\n"
    veredus.do("task enqueue -q mail -t t -l 1").refused(1, "queue 'mail' is closed", "veredus queue open")
    assert veredus.do("queue open mail").out == "mail: open\n"
    assert veredus.do("queue open mail").out == "mail: was not closed\n"
    assert veredus.do("task enqueue -q mail -t t -l 1").code == 0


def test_the_names_of_asynqs_own_commands_work_too(veredus: Command) -> None:
    _tasks(veredus.url, 1)
    assert [q["queue"] for q in veredus.do("queue ls --json").json] == ["mail"]
    assert veredus.do("task ls -q mail -s pending --json").code == 0
    for due in ("--process-in 10m", "--process-at 2040-01-01T00:00:00Z"):
        assert veredus.do(f"task enqueue --type-name t -l 1 -q mail --id x{due[10]} {due}").out.endswith(" scheduled\n")
    due_at = veredus.look(lambda inspector: inspector.task("mail", "xa")).next_process_at
    assert due_at == datetime(2040, 1, 1, tzinfo=UTC)
    assert veredus.do("task rm -q mail -i xi").out == "xi: delete done\n"
    veredus.do("queue pause mail")
    assert veredus.do("queue unpause mail").out == "mail: resumed\n"
    for line in ("server ls", "cron ls", "group ls -q mail"):
        assert veredus.do(line).code == 0
    assert veredus.do("queue rm mail -f -y").out == "mail: removed\n"
    assert " ls" not in veredus.do("queue --help").out
