"""Names: one rule, wherever one is made; and keys that belong to one queue only, whatever their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus import App, ConfigError, Limit
from veredus.model.build import build
from veredus.model.names import MAX_NAME, MAX_QUEUE, check_name, check_queue
from veredus.model.options import KEY_OPTIONS, Options
from veredus.model.priority import parse_queues
from veredus.wire import keys

BAD = ["", "  ", None, 5, b"x", "\ud800", "a\nb", "a\x00", "\x7f", "\u2028x", " a", "a ", "\ta"]
BAD_QUEUES = [*BAD, "a,b", "a=3", "a}:t:b", "{a}", "}", "q" * (MAX_QUEUE + 1)]


def _app(name: Any) -> None:
    App(queue=name)


def _task(name: Any) -> None:
    @App().task(queue=name)
    async def task() -> None: ...


def _topic(name: Any) -> None:
    @App().topic(name)
    async def topic(value: int) -> None: ...


def _aggregate(name: Any) -> None:
    if name is None:
        raise ConfigError("queue", name, "any queue: None is all of them")

    @App().aggregate("*", queue=name)
    def aggregate(group: str, jobs: list[Any]) -> None: ...


WHERE_QUEUES: dict[str, Callable[[Any], Any]] = {
    "app": _app,
    "task": _task,
    "using": lambda name: Options().merged({"queue": name}),
    "call": lambda name: App().call("t", queue=name),
    "topic": _topic,
    "aggregate": _aggregate,
    "limit": lambda name: App().limit(name, Limit(concurrency=1)),
    "worker, as a mapping": lambda name: App().worker(queues={name: 1}),
    "parsed, as a mapping": lambda name: parse_queues({name: 1}),
}


@pytest.mark.parametrize("where", WHERE_QUEUES)
@pytest.mark.parametrize("name", BAD_QUEUES)
def test_a_queue_is_named_by_the_same_rule_everywhere(where: str, name: Any) -> None:
    with pytest.raises(ConfigError):
        WHERE_QUEUES[where](name)


@pytest.mark.parametrize("where", WHERE_QUEUES)
@pytest.mark.parametrize("name", ["a", "a:b", "a.b-c/d", "mails to send", "日本", "q" * MAX_QUEUE])
def test_what_is_allowed_is_allowed_everywhere(where: str, name: str) -> None:
    WHERE_QUEUES[where](name)


@pytest.mark.parametrize("value", [["a,b=3"], ["a\nb"], [" a"], "a}:t:b", "a\nb=2,c"])
def test_lists_and_texts_of_queues_are_no_way_around_it(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^queues: got "):
        parse_queues(value)
    assert parse_queues(["a=3", "b"]) == parse_queues(" a = 3 , b ") == {"a": 3, "b": 1}


NAMED = ["task_id", "group", "order_key", "limit_key"]


@pytest.mark.parametrize("option", NAMED)
@pytest.mark.parametrize("name", [*[one for one in BAD if one is not None], "x" * (MAX_NAME + 1)])
def test_ids_groups_and_keys(option: str, name: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{option}: got "):
        Options().merged({option: name})


@pytest.mark.parametrize("name", ["a:replaced", "a}:pending", "{a}", "a,b=c", "é" * MAX_NAME])
def test_only_queues_are_named_in_braces(name: str) -> None:
    for option in NAMED:
        given = name.replace("{", "{{").replace("}", "}}") if option in KEY_OPTIONS else name
        assert getattr(Options().merged({option: given}), option) == name
    assert build(name, b"", Options()).type == name


@pytest.mark.parametrize("name", [*BAD, "x" * (MAX_NAME + 1)])
def test_types(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^task type: got "):
        build(name, b"", Options())
    if name is not None:
        with pytest.raises(ConfigError, match=r"^name: got "):

            @App().task(name=name)
            async def task() -> None: ...


def test_an_error_shows_no_more_than_the_beginning_of_a_long_name() -> None:
    with pytest.raises(ConfigError) as caught:
        check_name("task_id", "x" * 1_000_000)
    assert str(caught.value) == f"task_id: got '{'x' * 40}...', expected at most 500 characters, not 1,000,000"


ANY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.sampled_from(
    ["a}:t:b", "a", "b}:pending", "t:x", "a:replaced", "x}", ":", "a}:g:g"]
)
PARTS = [keys.task, keys.group, keys.lane, keys.slots, keys.starts, keys.waiting, keys.batch, keys.cron]
WHOLE = [
    keys.pending,
    keys.active,
    keys.lease,
    keys.scheduled,
    keys.due,
    keys.closed,
    keys.replaced,
    keys.told,
    keys.lanes,
]


def _is_queue(name: str) -> bool:
    try:
        check_queue("queue", name)
    except ConfigError:
        return False
    return True


@given(
    ANY.filter(_is_queue), ANY.filter(_is_queue), ANY, ANY, st.sampled_from(PARTS), st.sampled_from([*PARTS, *WHOLE])
)
def test_no_two_names_make_the_same_key(one: str, two: str, a: str, b: str, first: Any, second: Any) -> None:
    other = second(two) if second in WHOLE else second(two, b)
    same = second not in WHOLE and (one, a, first) == (two, b, second)
    assert (first(one, a) == other) == same


@given(ANY.filter(_is_queue), ANY)
def test_a_key_is_split_into_its_queue_and_the_rest(queue: str, task_id: str) -> None:
    assert keys.split(keys.task(queue, task_id), {queue}) == (queue, f"t:{task_id}")
    assert keys.split(keys.pending(queue), set()) == (queue, "pending")


def test_a_queue_with_braces_that_another_program_made_keeps_its_keys() -> None:
    queues = {"a", "a}:t:b"}
    assert keys.split(keys.pending("a}:t:b"), queues) == ("a}:t:b", "pending")
    assert keys.split(keys.task("a}:t:b", "x"), queues) == ("a}:t:b", "t:x")
    assert keys.split(keys.task("a", "b"), queues) == ("a", "t:b")
    assert keys.split(keys.task("a", "b}:pending"), {"a"}) == ("a", "t:b}:pending")
    assert keys.split(keys.QUEUES, queues) is None
    assert keys.split("asynq:{a}:", queues) is None
    assert keys.split("asynq:servers:{h:1:x}", queues) is None
