"""Tasks in several modules: routers, modules that are included by name, and what a task is called wherever it runs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from veredus import App, ConfigError, Router


def _send(user_id: int) -> int:
    return user_id


def test_a_routers_tasks_are_those_of_the_app_that_includes_it() -> None:
    router = Router(queue="mail", max_retry=3)
    send = router.task(timeout=30)(_send)
    urgent = send.using(queue="high")
    app = App(defaults={"retention": 60, "max_retry": 9, "retry_delay": 7})
    app.include(router)
    app.include(router)  # a second time is no other
    assert app.tasks == {f"{__name__}._send": send}
    assert send.app is app
    options = send.options
    assert (options.queue, options.max_retry, options.timeout, options.retention) == ("mail", 3, 30, 60)
    assert send.retry_delay is not None
    assert send.retry_delay(0, ValueError(), None) == 7
    assert (urgent.options.queue, urgent.options.max_retry, urgent.options.retention) == ("high", 3, 60)
    assert urgent.call(1).options.retention == 60
    late = router.task(name="late")(_send)
    assert app.tasks["late"] is late


def test_everything_that_an_app_declares_a_router_declares() -> None:
    router = Router()
    router.topic("orders")(lambda order: None)
    router.handler("go:*")(_send)
    router.cron("@daily", name="nightly")(lambda: None)
    router.action("render", deadline=5)(_send)
    app = App()
    app.include(router)
    assert sorted(app.tasks) == ["nightly", "orders", "render"]
    assert list(app.patterns) == ["go:*"]
    assert [entry.call.type for entry in app.schedules.entries.values()] == ["nightly"]
    assert app.tasks["orders"].options.queue == "orders"
    assert (app.actions["render"].deadline, app.tasks["render"].options.max_retry) == (5, 0)


def test_a_task_that_is_in_no_app_can_be_called_and_not_sent() -> None:
    task = Router().task(_send)
    assert task(4) == 4
    for send in (task.call, task.enqueue_sync):
        with pytest.raises(ConfigError, match="include its router first"):
            send(4)


def test_a_router_that_cannot_be_included_as_a_whole_is_not_included() -> None:
    app, router = App(), Router()
    app.task(name="b")(_send)
    first, second = router.task(name="a")(_send), router.task(name="b")(_send)
    with pytest.raises(ConfigError, match="no other task of this app has"):
        app.include(router)
    assert list(app.tasks) == ["b"]
    assert app.tasks["b"] is not second
    other = App()
    other.include(router)
    assert other.tasks["a"] is first
    with pytest.raises(ConfigError, match="in no other app"):
        App().include(router)


def _first() -> None: ...
def _second() -> None: ...


def test_a_router_may_include_others() -> None:
    app, shop, mail, late = App(), Router(queue="shop"), Router(queue="mail"), Router()

    @shop.task(name="order")
    async def order() -> None: ...

    @mail.task(name="send")
    async def send() -> None: ...

    @late.task(name="late")
    async def later() -> None: ...

    shop.include(mail)
    app.include(shop)
    app.include(mail, shop)
    shop.include(late)
    assert {name: task.options.queue for name, task in app.tasks.items()} == {
        "order": "shop",
        "send": "mail",
        "late": "default",
    }
    assert mail.app is late.app is app
    for wrong in ("shop.mail", shop):
        with pytest.raises(ConfigError, match="a Router that does not include this one"):
            mail.include(wrong)  # type: ignore[arg-type]


def test_routers_of_which_one_cannot_be_included_are_not_included() -> None:
    app, outer, inner = App(), Router(), Router()

    @app.task(name="send")
    async def send() -> None: ...

    @outer.task(name="order")
    async def order() -> None: ...

    @inner.task(name="send")
    async def send_too() -> None: ...

    outer.include(inner)
    with pytest.raises(ConfigError, match="no other task of this app"):
        app.include(outer)
    assert list(app.tasks) == ["send"]
    assert outer.app is inner.app is None


def test_two_tasks_with_one_name_are_refused_with_both_places() -> None:
    for owner in (App(), Router()):
        owner.task(name="same")(_first)
        with pytest.raises(ConfigError) as raised:
            owner.task(name="same")(_second)
        lines = [function.__code__.co_firstlineno for function in (_first, _second)]
        text = str(raised.value)
        assert f"{__name__}._first ({__file__}:{lines[0]})" in text
        assert f"{__name__}._second ({__file__}:{lines[1]})" in text


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"defaults": {"max_retyr": 1}}, "did you mean 'max_retry'"),
        ({"defaults": {"retry_dely": 1}}, "did you mean 'retry_delay'"),
        ({"defaults": {"task_id": "x"}}, "task_id"),
        ({"defaults": {"run_in": "loop"}}, "run_in"),
        ({"defaults": {"retry_delay": -1}}, "retry_delay"),
        ({"include": [5]}, "include"),
        ({"include": ".tasks"}, "include"),
    ],
)
def test_wrong_defaults_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        App(**settings)


def test_defaults_are_for_all_tasks_and_what_a_task_says_wins() -> None:
    app = App(defaults={"queue": "slow", "run_in": "thread", "check_arguments": False, "headers": {"a": "1"}})
    plain: Any = app.task(name="plain")(_send)
    own: Any = app.task(name="own", queue="fast", headers={"b": "2"}, check_arguments=True)(_send)

    async def on_loop() -> None: ...

    assert (plain.options.queue, plain.run_in, own.options.queue) == ("slow", "thread", "fast")
    assert own.options.headers == {"a": "1", "b": "2"}
    assert app.task(name="loop")(on_loop).run_in == "loop"
    assert app.call("a type of Go").options.queue == "slow"
    plain.call("no number")
    with pytest.raises(ValueError, match="user_id"):
        own.call("no number")


class _Shop:
    def send(self, user_id: int) -> None: ...

    @classmethod
    def make(cls) -> None: ...

    @staticmethod
    def fine(user_id: int) -> None: ...


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        (_Shop, "not a class"),
        (_Shop.send, "move it out of its class"),
        (_Shop().send, "move it out of its class"),
        (_Shop.make, "move it out of its class"),
        (_Shop.__dict__["make"], "move it out of its class"),
        (_Shop.__dict__["fine"], "move it out of its class"),
        ("send", "at the top of a module"),
    ],
)
def test_methods_and_classes_are_refused_with_a_hint(what: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        App().task(name="t")(what)


def test_a_static_function_of_a_class_is_a_function() -> None:
    assert App().task(_Shop.fine).name == f"{__name__}._Shop.fine"


FILES = {
    "shop/__init__.py": "",
    "shop/app.py": """
        from veredus import App
        app = App("redis://localhost:1", include=["shop.mail", "shop.tasks"])
        """,
    "shop/mail.py": """
        from veredus import Router
        router = Router(queue="mail")
        @router.task
        def send(n: int) -> None: ...
        if __name__ == "__main__":
            from shop.app import app
            app.load()
            print(sorted(app.tasks), app.tasks["shop.mail.send"] is send, send.call(1).options.queue)
        """,
    "shop/tasks.py": """
        from shop.app import app
        from shop.mail import send
        @app.task
        def pay(n: int) -> None: ...
        @app.task(run_in="process")
        def invoice(n: int) -> None: ...
        def show() -> None:
            app.load()
            print(sorted(app.tasks), app.tasks["shop.mail.send"] is send, send.call(1).options.queue)
        if __name__ == "__main__":
            show()
        """,
    "shop/__main__.py": "from shop.tasks import show; show()",
    "script.py": "from shop.tasks import show; show()",
}
NAMES = "['shop.mail.send', 'shop.tasks.invoice', 'shop.tasks.pay'] True mail\n"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    return folder


WORKER = (
    "from veredus.cli.loading import load_app; import sys; sys.argv = []; app = load_app('shop.app:app'); "
    "sys.modules['shop.tasks'].show()"
)


@pytest.mark.parametrize(
    "words",
    [["-m", "shop.tasks"], ["-m", "shop.mail"], ["shop/tasks.py"], ["-m", "shop"], ["script.py"], ["-c", WORKER]],
    ids=["module", "router", "file", "package", "script", "worker"],
)
def test_a_task_has_one_name_wherever_its_module_runs(shop: Path, words: list[str]) -> None:
    environment = {"PYTHONPATH": str(shop), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        [sys.executable, *words], cwd=shop, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == (NAMES, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("import nothing_like_it", "nothing_like_it"), ("1 / 0", "ZeroDivisionError"), (None, "found no 'broken'")],
)
def test_an_included_module_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, problem: str
) -> None:
    from veredus.cli.loading import load_app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("whole_app", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "whole_app.py").write_text("from veredus import App\napp = App(include=['broken'])\n")
    if text is not None:
        (tmp_path / "broken.py").write_text(text)
    for _ in range(2):  # it is tried again
        with pytest.raises(ConfigError, match=problem):
            load_app("whole_app:app")
