"""Declaring tasks: names, options, places to run, and everything that is refused at once."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from veredus import App, ConfigError, Depends
from veredus.client.task import Task


async def on_loop(n: int) -> int:
    """Adds one."""
    return n + 1


def in_thread(n: int) -> int:
    return n + 1


async def test_a_task_is_still_its_function() -> None:
    app = App()
    task: Any = app.task(on_loop)
    assert await task(1) == 2
    assert app.task(name="other")(in_thread)(1) == 2
    assert (task.__name__, task.__doc__, task.__wrapped__) == ("on_loop", "Adds one.", on_loop)
    assert task.name == f"{__name__}.on_loop"
    assert "on_loop" in repr(task)


@pytest.mark.parametrize(
    ("function", "run_in", "place"),
    [
        (on_loop, None, "loop"),
        (in_thread, None, "thread"),
        (in_thread, "process", "process"),
        (functools.partial(in_thread), None, "thread"),
        (functools.partial(on_loop), None, "loop"),
    ],
)
def test_where_a_task_runs(function: Any, run_in: str | None, place: str) -> None:
    assert App().task(name="t", run_in=run_in)(function).run_in == place


def _refused(*args: Any, **kwargs: Any) -> None: ...
def _positional_only(n: int, /) -> None: ...
def _none() -> None: ...


@pytest.mark.parametrize(
    ("function", "settings", "field"),
    [
        (on_loop, {"run_in": "threads"}, "did you mean 'thread'"),
        (on_loop, {"run_in": "thread"}, "'loop' for an async function"),
        (in_thread, {"run_in": "loop"}, "not async"),
        (in_thread, {"qeue": "x"}, "did you mean 'queue'"),
        (in_thread, {"queue": ""}, "queue"),
        (in_thread, {"name": " "}, "name"),
        (in_thread, {"name": 5}, "name"),
        (in_thread, {"payload": "xml"}, "payload"),
        (in_thread, {"retry_delay": -1}, "retry_delay"),
        (in_thread, {"max_retry": -1}, "max_retry"),
        (_none, {"payload": "raw"}, "payload"),
        (_refused, {}, "parameter 'args'"),
        (_positional_only, {}, "parameter 'n'"),
        (functools.partial(in_thread), {}, "name"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(function: Any, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        App().task(**settings)(function)


def test_a_name_is_taken_once() -> None:
    app = App()
    app.task(name="t")(in_thread)
    with pytest.raises(ConfigError, match="no other task"):
        app.task(name="t")(on_loop)
    with pytest.raises(ConfigError, match="a task already"):
        app.task(name="u")(app.tasks["t"])


@pytest.mark.parametrize("pattern", ["", " ", "a*b", "**"])
def test_a_pattern_is_a_name_or_a_prefix(pattern: str) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        App().handler(pattern)


def test_a_topic_handler_has_one_parameter() -> None:
    with pytest.raises(ConfigError, match="one parameter"):
        App().topic("t")(lambda a, b: None)
    topic = App().topic("orders", max_retry=2)(in_thread)
    assert (topic.name, topic.options.queue, topic.options.max_retry) == ("orders", "orders", 2)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"url": "http://x"}, "http"),
        ({"queue": ""}, "queue"),
        ({"max_payload": 0}, "max_payload"),
        ({"max_payload": "1"}, "max_payload"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "x"}, "timeout"),
        ({"result_ttl": -1}, "result_ttl"),
        ({"result_ttl": "x"}, "result_ttl"),
        ({"patience": -1}, "patience"),
        ({"patience": "x"}, "patience"),
    ],
)
def test_an_app_refuses_wrong_settings(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        App(**settings)


def test_the_url_comes_from_the_app_then_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VEREDUS_REDIS_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    app = App()
    urls = [app.url]
    monkeypatch.setenv("REDIS_URL", "redis://b")
    urls.append(app.url)
    monkeypatch.setenv("VEREDUS_REDIS_URL", "redis://a")
    urls.append(app.url)
    app.use("redis://c")
    urls.append(app.url)
    assert urls == [None, "redis://b", "redis://a", "redis://c"]


def test_using_makes_a_twin() -> None:
    task: Task[Any, Any, Any] = App().task(in_thread)
    twin = task.using(max_retry=1, queue="other")
    assert (twin.options.max_retry, twin.options.queue, twin.name) == (1, "other", task.name)
    assert (task.options.max_retry, task.options.queue) == (25, "default")


def test_dependencies_are_no_arguments() -> None:
    def handler(n: int, db: object = Depends(object)) -> None: ...

    assert App().task(handler).call(1).payload == b'{"n":1}'


async def test_a_result_is_read_as_the_handler_with_the_longest_fitting_pattern_says() -> None:
    app = App()

    @app.handler("a:*")
    async def wide() -> int:
        return 1

    @app.handler("a:b:*")
    async def narrow() -> int:
        return 1

    @app.task(name="a:b:c")
    async def exact() -> int:
        return 1

    found = [app.function_of(name) for name in ("a:x", "a:b:x", "a:b:c", "z")]
    assert found == [wide.function, narrow.function, exact.function, None]
