"""`App(unserved=...)`, and what workers show of themselves, by which it is judged."""

from __future__ import annotations

from typing import Any

import pytest

from veredus import App, ConfigError
from veredus.wire.types import aggregates, knows, shown, startable


async def test_a_test_of_the_app_needs_no_worker() -> None:
    app = App(unserved="refuse")

    @app.task
    async def work() -> str:
        return "done"

    async with app.test() as q:
        await work.using(order_key="k").enqueue()
        assert len(await q.drain()) == 1


@pytest.mark.parametrize("value", ["refused", None, True])
def test_another_choice_is_refused_with_what_is_allowed(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"unserved: got .*, expected one of 'warn', 'refuse', 'ignore'"):
        App(unserved=value)


def test_what_a_worker_shows_of_its_types_and_groups() -> None:
    types = startable({"a": "loop"}, {"b:*": "thread"})
    text = shown(types, [("digest:*", ""), ("all", "mail")])
    assert knows(text, "a")
    assert knows(text, "b:1")
    assert not knows(text, "digest:1")
    assert aggregates(text, "any", "digest:7")
    assert aggregates(text, "mail", "all")
    assert not aggregates(text, "other", "all")
    assert not aggregates(shown(types, []), "mail", "all")
    assert aggregates(types, "mail", "all"), "an older version does not say"
