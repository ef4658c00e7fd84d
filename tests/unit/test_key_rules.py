"""Keys that are made of arguments: templates and functions, and everything that is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from veredus import App, ConfigError, Depends, Router
from veredus.model.key_rules import KeyRule, fixed, key_or_rule
from veredus.model.options import Options


@dataclass
class Order:
    id: int
    customer: dict[str, Any]


def _order(order: Order) -> None: ...
def _send(user_id: int, lang: str = "en", note: str = "") -> None: ...
def _injected(user_id: int, db: Any = Depends(lambda: None)) -> None: ...  # noqa: B008


@pytest.mark.parametrize(
    ("function", "key", "args", "kwargs", "made"),
    [
        (_send, "user:{user_id}", (7,), {}, "user:7"),
        (_send, "{user_id}/{lang}", (7,), {}, "7/en"),
        (_send, "{lang}", (7,), {"lang": "zh"}, "zh"),
        (_send, "{{{user_id}}}", (7,), {}, "{7}"),
        (_send, "a {{fixed}} key", (7,), {}, "a {fixed} key"),
        (_send, "plain", (7,), {}, "plain"),
        (_order, "c:{order.customer.name}", (Order(1, {"name": "ada"}),), {}, "c:ada"),
        (_send, lambda lang, user_id: f"{user_id}{lang}", (7,), {}, "7en"),
        (_send, lambda user_id, **rest: user_id, (7,), {"note": "x"}, "7"),
        (_send, lambda user_id: None, (7,), {}, None),
        (_injected, "{user_id}", (7,), {}, "7"),
    ],
)
@pytest.mark.parametrize("option", ["order_key", "limit_key", "unique_key"])
def test_a_key_is_made_of_the_arguments(
    function: Any, option: str, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: str | None
) -> None:
    more: dict[str, Any] = {"unique_for": 60} if option == "unique_key" else {}
    declared: Any = App().task(**more, **{option: key})(function)
    router = Router(**more, **{option: key})
    routed: Any = router.task(function)
    App().include(router)
    used: Any = App().task(function).using(**more, **{option: key})
    for task in (declared, used, routed):
        options = task.call(*args, **kwargs).options
        assert getattr(options, option) == made
        assert not options.has_rules
        assert (options.unique_for is None) == (option != "unique_key" or made is None)
    assert used.call(*args, **kwargs).options is used.call(*args, **kwargs).options, "one object for equal keys"


@pytest.mark.parametrize("key", ["{", "}", "{}", "{0}", "{user_id!r}", "{user_id:>5}", "{user_id[0]}", "{a b}"])
def test_what_is_no_template_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r"order_key.*a template such as"):
        App().task(order_key=key)(_send)


def test_a_template_names_arguments_of_its_task() -> None:
    hint = "it has 'user_id', 'lang', 'note' .did you mean 'user_id'"
    with pytest.raises(ConfigError, match=hint):
        App().task(order_key="{usr_id}")(_send)
    with pytest.raises(ConfigError, match=hint):
        App().task(_send).using(limit_key="{usr_id}")
    with pytest.raises(ConfigError, match=hint):
        App(defaults={"order_key": "{usr_id}"}).task(_send)
    with pytest.raises(ConfigError, match="it has 'user_id'"):
        App().task(order_key="{db}")(_injected)
    with pytest.raises(ConfigError, match="an argument 'order' that has 'custmer'"):
        App().task(order_key="{order.custmer}")(_order).call(Order(1, {}))


def test_a_function_that_raises_or_makes_no_key_is_refused_where_it_is_sent() -> None:
    task: Any = App().task(_send)
    with pytest.raises(ConfigError, match="did you mean 'user_id'"):
        task.using(order_key=lambda user: user)
    with pytest.raises(ConfigError, match="it raised AttributeError"):
        task.using(order_key=lambda user_id: user_id.name).call(7)
    for wrong in ("", " x", 1.5, True, "a\nb"):
        with pytest.raises(ConfigError, match="order_key"):
            task.using(order_key=lambda user_id, wrong=wrong: wrong).call(7)


def test_a_unique_key_needs_a_time_and_goes_with_it() -> None:
    with pytest.raises(ConfigError, match="unique_for too"):
        App().task(unique_key="{user_id}")(_send)
    task: Any = App().task(unique_key="{user_id}", unique_for=60)(_send)
    assert task.using(unique_for=None).call(7).options.unique_key is None
    assert task.using(unique_key=None).call(7).options.unique_for == 60


def test_a_rule_without_arguments_is_never_taken_for_a_key() -> None:
    rule = key_or_rule("order_key", "{user_id}")
    assert isinstance(rule, KeyRule)
    assert rule == key_or_rule("order_key", "{user_id}")
    with pytest.raises(ConfigError, match="order_key"):
        fixed("order_key", rule)
    with pytest.raises(ConfigError, match="order_key"):
        Options().merged({"order_key": rule, "group": "g"})
