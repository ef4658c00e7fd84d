"""Arguments that a handler could not be called with are refused where they are given, by the rule of the arrival."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus import App, PayloadError
from veredus.model.job import Job
from veredus.model.message import TaskMessage
from veredus.wire.payload import codec_for

app = App("redis://127.0.0.1:1")


@dataclass
class Line:
    sku: str
    count: int = 1


class Address(msgspec.Struct):
    city: str


class Buyer(pydantic.BaseModel):
    age: Annotated[int, pydantic.Field(ge=18)]


@app.task(name="order")
async def order(number: int, lines: list[Line], day: date | None = None, *, note: str = "") -> None: ...


@app.task(name="ship")
async def ship(to: Address) -> None: ...


@app.task(name="sell")
async def sell(buyer: Buyer, code: str) -> None: ...


@app.task(name="any")
async def anything(value, other: Any = None) -> None: ...  # type: ignore[no-untyped-def]


@app.topic("prices")
async def prices(price: float) -> None: ...


@app.task(name="lenient", check_arguments=False)
async def lenient(n: int) -> None: ...


def refused(says: str) -> Any:
    return pytest.raises(PayloadError, match=says)


def test_what_fits_is_sent() -> None:
    order.call(1, [Line("a")], date(2026, 1, 1), note="x")
    order.call(1, [{"sku": "a"}], "2026-01-01")  # type: ignore[list-item, arg-type]
    ship.call(Address("Rome"))
    ship.call({"city": "Rome"})  # type: ignore[arg-type]
    sell.call(Buyer(age=18), "x")
    anything.call(object if False else 1, {"a": [1]})
    app.call("order", {"number": 1, "lines": []})
    app.call("order", b'{"number": 1, "lines": []}')
    app.call("of another program", "anything")


def test_each_refusal_names_the_task_the_argument_its_type_and_what_is_expected() -> None:
    with refused(
        r"^task 'order': argument 'number' of type str does not fit: Expected `int`, got `str` - at `\$.number`"
    ):
        order.call("1", [])  # type: ignore[arg-type]
    with refused(
        r"^task 'order': argument 'lines' of type list does not fit: Expected `str`, got `int`.*lines\[0\].sku"
    ):
        order.call(1, [{"sku": 7}])  # type: ignore[list-item]
    with refused(r"^task 'order': argument 'note' of type NoneType does not fit: Expected `str`, got `null`"):
        order.call(1, [], note=None)  # type: ignore[arg-type]
    with refused(r"^task 'ship': argument 'to' of type dict does not fit: Object missing required field `city`"):
        ship.call({})  # type: ignore[arg-type]
    with refused(r"^task 'sell': argument 'buyer' of type dict (.|\n)*age\n.*greater than or equal to 18"):
        sell.call({"age": 3}, "x")  # type: ignore[arg-type]
    with refused(r"order\(\) misses the argument 'lines'"):
        order.call(1)  # type: ignore[call-arg]
    with refused(r"order\(\) has no argument 'nots'"):
        order.call(1, [], nots="")  # type: ignore[call-arg]


def test_by_type_and_by_topic_as_well() -> None:
    with refused(r"^task 'order': argument 'number' of type str does not fit"):
        app.call("order", {"number": "1", "lines": []})
    with refused(r"^task 'order': the arguments do not fit: Object missing required field `number`"):
        app.call("order")
    with refused(r"^task 'order': the arguments do not fit: Object contains unknown field `x`"):
        app.call("order", {"number": 1, "lines": [], "x": 1})
    app.call("order", b"as they are")
    with refused(r"^task 'prices': argument 'price' of type str does not fit: Expected `float`, got `str`"):
        app.produce_sync("prices", "cheap")
    with refused(r"^task 'order'"):
        app.enqueue_sync("order", [1])
    with refused(r"^task 'order'"):
        order.enqueue_sync(None, None)  # type: ignore[arg-type]
    with refused(r"^task 'order'"):
        app.schedule("@every 1m", order.call("x", []))  # type: ignore[arg-type]


def test_it_can_be_switched_off_for_a_task_and_for_an_app() -> None:
    lenient.call("x")  # type: ignore[arg-type]
    lenient.using(queue="q").call("x")  # type: ignore[arg-type]
    free = App("redis://127.0.0.1:1", check_arguments=False)

    @free.task
    async def one(n: int) -> None: ...

    @free.task(check_arguments=True)
    async def other(n: int) -> None: ...

    one.call("x")  # type: ignore[arg-type]
    with refused("of type str does not fit"):
        other.call("x")  # type: ignore[arg-type]


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.lists(st.integers())
KINDS = [int, float, str, bool, list[int], int | None, date, dict[str, int], tuple[int, ...], bytes]


@given(VALUES, st.sampled_from(KINDS))
def test_the_rule_is_that_of_a_strict_arrival(value: Any, kind: Any) -> None:
    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = kind
    codec = codec_for(handler, strict=True)
    try:
        payload = codec.encode((value,), {})
    except PayloadError:
        return

    def refuses(how: Any) -> bool:
        try:
            how()
        except PayloadError:
            return True
        return False

    arrived = Job(TaskMessage(type="t", id="1", queue="q", payload=payload))
    assert refuses(lambda: codec.check("t", payload, (value,), {})) == refuses(lambda: codec.decode(arrived))


def test_a_schedule_above_the_classes_that_its_task_names_is_not_judged_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked up once is kept: a class that is not there yet must not be taken for any type."""
    (tmp_path / "early_names.py").write_text(
        "from __future__ import annotations\n"
        "from veredus import App\n"
        "app = App('redis://127.0.0.1:1')\n"
        "@app.task(name='later')\n"
        "async def later(line: Line, n: int) -> None: ...\n"
        "app.schedule('@every 1m', later.call({'sku': 1}, 1))\n"
        "from tests.unit.test_argument_checks import Line\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        module = importlib.import_module("early_names")
        with refused("^task 'later': argument 'line' of type dict does not fit"):
            module.later.call({"sku": 1}, 1)
        _, kwargs = module.later.codec.decode(
            Job(TaskMessage(type="t", id="1", queue="q", payload=b'{"line":{"sku":"a"},"n":1}'))
        )
        assert kwargs["line"] == Line("a")
    finally:
        sys.modules.pop("early_names", None)
