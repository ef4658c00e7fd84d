"""The pytest plugin: fixtures for tests of programs that send and handle tasks. It imports nothing until one is
used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from veredus.app import App
    from veredus.testing.rehearsal import BlockingRehearsal


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "module:attribute of the App that the fixture `veredus_queue` rehearses, unless `veredus_app` is overridden"
    parser.addini("veredus_app", text, default="")


@pytest.fixture(scope="session")
def veredus_server() -> str:
    """The URL of a real server for these tests only, started at its first use and stopped at the end."""
    from veredus.testing.stage import server_url

    return server_url()


@pytest.fixture
def veredus_app(request: pytest.FixtureRequest) -> App:
    """The app under test, from the ini option `veredus_app`. Override it in conftest.py to choose another way."""
    path = request.config.getini("veredus_app")
    if not path:
        pytest.fail("set the ini option veredus_app = module:app, or define a fixture veredus_app", pytrace=False)
    from importlib import import_module

    module, _, attribute = str(path).partition(":")
    app: App = getattr(import_module(module), attribute)
    return app


@pytest.fixture
def veredus_test() -> Iterator[Callable[..., BlockingRehearsal]]:
    """`q = veredus_test(app)` in a synchronous test: a rehearsal that ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(app: App, **settings: Any) -> BlockingRehearsal:
            return stack.enter_context(app.test(**settings))

        yield start


@pytest.fixture
def veredus_queue(veredus_app: App) -> Iterator[BlockingRehearsal]:
    """A rehearsal of `veredus_app` for synchronous tests; in async ones use `async with app.test() as q:`."""
    with veredus_app.test() as queue:
        yield queue
