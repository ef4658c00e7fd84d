"""Declaring aggregators: which one is for a group, what is refused, what a member is decoded to; and the agenda."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from veredus import App, ConfigError, Depends, Job, PayloadError
from veredus.model.grouping import Agenda, aggregated_id, backoff, find
from veredus.model.message import TaskMessage
from veredus.wire.members import member_decoder_for
from veredus.worker.startup import warnings


@dataclass
class Item:
    user: int
    text: str = ""


class Struct(msgspec.Struct):
    user: int


class Model(pydantic.BaseModel):
    user: int


def job(payload: bytes) -> Job:
    return Job(TaskMessage(type="t", payload=payload, id="1", queue="q"))


def nothing(group: str, jobs: list[Job]) -> None: ...


def test_the_exact_name_wins_then_the_longest_prefix_then_the_queue() -> None:
    app = App()
    for pattern, queue in [("*", None), ("d:*", None), ("d:*", "mail"), ("d:42", None), ("d:4*", None)]:
        app.aggregate(pattern, queue=queue)(nothing)

    def found(queue: str, group: str) -> tuple[str, str | None] | None:
        one = find(app.aggregations, queue, group)
        return None if one is None else (one.pattern, one.queue)

    assert found("q", "d:42") == ("d:42", None)
    assert found("q", "d:421") == ("d:4*", None)
    assert found("q", "d:5") == ("d:*", None)
    assert found("mail", "d:5") == ("d:*", "mail")
    assert found("q", "else") == ("*", None)
    assert find(app.aggregations[2:3], "q", "d:5") is None


def test_the_queues_of_aggregators_are_served() -> None:
    app = App()
    app.task(queue="mail", name="t")(lambda: None)
    app.aggregate("a")(nothing)
    app.aggregate("b", queue="digests")(nothing)
    assert list(app.served_queues()) == ["mail", "digests"]


def test_the_function_stays_what_it_is() -> None:
    assert App().aggregate("a")(nothing) is nothing


def test_settings() -> None:
    app = App()
    app.aggregate("a", grace=timedelta(seconds=90), max_delay=600, max_size=20)(nothing)
    one = app.aggregations[0]
    assert (one.grace, one.max_delay, one.max_size) == (90.0, 600.0, 20)
    app.aggregate("b")(nothing)
    one = app.aggregations[1]
    assert (one.grace, one.max_delay, one.max_size, one.queue) == (60.0, None, None, None)
    app.aggregate("c", grace=1, max_delay=1, max_size=1)(nothing)
    app.aggregate("d", max_size=100_000)(nothing)
    assert [(one.grace, one.max_size) for one in app.aggregations[2:]] == [(1.0, 1), (60.0, 100_000)]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"pattern": ""}, "pattern"),
        ({"pattern": " "}, "pattern"),
        ({"pattern": "a*b"}, "pattern"),
        ({"pattern": None}, "pattern"),
        ({"queue": ""}, "queue"),
        ({"queue": "}x"}, "queue"),
        ({"grace": 0.5}, "grace"),
        ({"grace": 0}, "grace"),
        ({"grace": "60"}, "grace"),
        ({"grace": True}, "grace"),
        ({"grace": float("inf")}, "grace"),
        ({"grace": float("nan")}, "grace"),
        ({"max_delay": 0.9}, "max_delay"),
        ({"max_size": 0}, "max_size"),
        ({"max_size": 1.5}, "max_size"),
        ({"max_size": 10**9}, "max_size"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: got "):
        App().aggregate(**{"pattern": "a", **settings})


def test_the_same_pattern_twice_is_refused() -> None:
    app = App()
    app.aggregate("a")(nothing)
    app.aggregate("a", queue="q")(nothing)
    with pytest.raises(ConfigError, match="no other aggregator"):
        app.aggregate("a")


def one_parameter(jobs: list[Job]) -> None: ...
def three(group: str, jobs: list[Job], more: int) -> None: ...
def starred(group: str, *jobs: Job) -> None: ...
def a_dict(group: str, jobs: dict[str, Any]) -> None: ...
def no_list(group: str, jobs: Item) -> None: ...


@pytest.mark.parametrize("function", [one_parameter, three, starred, a_dict, no_list])
def test_functions_that_cannot_be_called_with_a_group_and_a_list_are_refused(function: Any) -> None:
    app = App()
    with pytest.raises(ConfigError):
        app.aggregate("a")(function)
    assert app.aggregations == []


def unsaid(group, jobs): ...  # type: ignore[no-untyped-def]
def bare(group: str, jobs: list) -> None: ...  # type: ignore[type-arg]
def anything(group: str, jobs: list[Any]) -> None: ...
def injected(group: str, jobs: list[Job], db: object = Depends(object)) -> None: ...
def sequence(group: str, jobs: Sequence[Job]) -> None: ...


@pytest.mark.parametrize("function", [unsaid, bare, anything, injected, sequence, nothing])
def test_jobs_as_they_are(function: Any) -> None:
    given = job(b"not json")
    assert member_decoder_for(function)(given) is given


def test_members_as_types() -> None:
    def of_items(group: str, items: list[Item]) -> None: ...
    def of_structs(group: str, items: list[Struct]) -> None: ...
    def of_models(group: str, items: list[Model]) -> None: ...
    def of_bytes(group: str, items: list[bytes]) -> None: ...
    def of_dicts(group: str, items: list[dict[str, int]]) -> None: ...

    given = job(b'{"user": 7}')
    assert member_decoder_for(of_items)(given) == Item(7)
    assert member_decoder_for(of_structs)(given) == Struct(7)
    assert member_decoder_for(of_models)(given) == Model(user=7)
    assert member_decoder_for(of_bytes)(given) == b'{"user": 7}'
    assert member_decoder_for(of_dicts)(given) == {"user": 7}
    with pytest.raises(PayloadError, match="user"):
        member_decoder_for(of_items)(job(b'{"user": "x"}'))
    with pytest.raises(PayloadError):
        member_decoder_for(of_models)(job(b'{"user": "x"}'))


def test_the_back_off_doubles_up_to_a_minute() -> None:
    assert [backoff(n) for n in (1, 2, 3, 6, 7, 8, 5000)] == [1, 2, 4, 32, 60, 60, 60]


def test_the_id_of_an_aggregated_task_depends_on_its_set_and_place_alone() -> None:
    one, other = "75bf7014-b0cb-4bb1-aa40-608afbc41212", "75bf7014-b0cb-4bb1-aa40-608afbc41213"
    ids = [aggregated_id(one, 0), aggregated_id(one, 1), aggregated_id(other, 0)]
    assert ids == [aggregated_id(one, 0), aggregated_id(one, 1), aggregated_id(other, 0)]
    assert len(set(ids)) == 3


def test_the_agenda_gives_out_what_is_due_once_and_in_order() -> None:
    agenda = Agenda()
    agenda.put(("q", "late"), 9.0)
    agenda.put(("q", "b"), 2.0)
    agenda.put(("q", "a"), 5.0)
    agenda.put(("q", "a"), 1.0)
    assert agenda.next() == 1.0
    assert agenda.take(0.5, 10) == []
    assert agenda.take(5.0, 1) == [("q", "a")]
    assert agenda.take(5.0, 10) == [("q", "b")]
    assert (len(agenda), agenda.next()) == (1, 9.0)
    agenda.put(("q", "a"), 5.0)
    assert agenda.take(5.0, 10) == [("q", "a")]


def test_the_agenda_forgets_what_is_gone() -> None:
    agenda = Agenda()
    for queue, group in [("q", "a"), ("q", "b"), ("r", "a")]:
        agenda.put((queue, group), 1.0)
    agenda.keep("q", {"b"})
    assert ("q", "a") not in agenda
    assert sorted(agenda.take(1.0, 10)) == [("q", "b"), ("r", "a")]
    assert agenda.next() is None


def test_an_app_that_only_aggregates_is_not_said_to_have_no_tasks() -> None:
    app = App("redis://127.0.0.1:1")
    assert "this app has no tasks" in warnings(app, {"default": 1})[0]
    app.aggregate("a")(nothing)
    assert warnings(app, {"default": 1}) == []
