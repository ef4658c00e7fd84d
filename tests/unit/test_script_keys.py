"""Key names inside scripts: the same as `wire/` gives, by another way."""

from __future__ import annotations

import pytest

from veredus.store.connection.script_keys import expand
from veredus.wire import keys, session_keys


def lua(source: str) -> str:
    return expand(source, has_task_prefix=False)


def test_a_queue_key_begins_with_the_prefix_of_the_queue() -> None:
    assert lua("ZREM(keys.lane(order_key), keys.lanes())") == (
        "ZREM((queue_prefix .. 'lane:' .. order_key), (queue_prefix .. 'lanes'))"
    )


def test_an_argument_may_be_any_expression_even_another_key() -> None:
    assert lua("keys.slots(a or b(1, 2))") == "(queue_prefix .. 'slots:' .. (a or b(1, 2)))"
    assert lua("keys.missing(keys.full())") == "(((queue_prefix .. 'full')) .. ':absent')"


def test_a_task_key_begins_with_the_prefix_of_tasks_where_the_script_has_it() -> None:
    assert expand("keys.task(id)", has_task_prefix=True) == "(task_prefix .. id)"
    assert lua("keys.task(id)") == "(queue_prefix .. 't:' .. id)"


def test_a_key_of_a_partition_a_user_or_a_session_begins_with_what_is_given_first() -> None:
    assert lua("session_keys.attached(partition, node)") == "(partition .. 'n:' .. node)"
    assert lua("session_keys.mailbox(partition, user)") == "(partition .. 'mail:' .. user)"
    assert lua("session_keys.meta(s.base)") == "(s.base .. 'm')"
    assert lua("session_keys.session_prefix(partition, sid)") == "(partition .. 's:' .. sid .. ':')"


def test_other_keys_take_what_python_takes() -> None:
    assert lua("session_keys.prefix(tag)") == f"('{session_keys.ROOT}:{{' .. tag .. '}}:')"
    assert lua("session_keys.hints(node)") == f"('{session_keys.hints('')}' .. node)"
    assert lua("keys.QUEUES") == f"'{keys.QUEUES}'"


def test_the_prefix_of_a_session_is_as_python_spells_it() -> None:
    assert session_keys.session_prefix("p0a3-x") == session_keys.prefix("p0a3") + "s:p0a3-x:"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("keys.lain(x)", "no function lain"),
        ("keys.lane()", "keys.lane takes 1 arguments in Lua, the script passes 0"),
        ("keys.lane .. x", "keys.lane is a function"),
        ("keys.lane(x", "no closing bracket"),
    ],
)
def test_a_wrong_use_is_refused(source: str, error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        lua(source)


def test_what_only_looks_like_it_stays() -> None:
    assert lua("task_keys.lane(x) keys[1] some.keys.x") == "task_keys.lane(x) keys[1] some.keys.x"
