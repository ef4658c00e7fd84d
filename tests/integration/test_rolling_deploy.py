"""A rolling deploy of an application: fields are added, removed and renamed as docs/upgrades.md says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from veredus import App, Handle

pytestmark = VALKEY_ONLY

NAME = "mail.welcome"
Release = Callable[..., Any]


async def before(to: str) -> str:
    return f"to {to}"


async def added(to: str, lang: str = "en") -> str:
    return f"to {to} in {lang}"


async def added_without_default(to: str, lang: str) -> str:
    return f"to {to} in {lang}"


async def both_names(address: str = "", to: str = "") -> str:
    return f"to {address or to}"


async def renamed(address: str) -> str:
    return f"to {address}"


async def may_be_left_out(to: str, lang: str = "en") -> str:
    return f"to {to}"


@dataclass
class Old:
    to: str


@dataclass
class New:
    to: str
    lang: str = "en"


async def old_struct(mail: Old) -> str:
    return f"to {mail.to}"


async def new_struct(mail: New) -> str:
    return f"to {mail.to} in {mail.lang}"


async def sent_by_another(url: str, payload: dict[str, Any]) -> Handle[Any]:
    """By a release with other fields, so that nothing is checked here."""
    async with App(url) as app:
        return await app.enqueue(NAME, payload, max_retry=100, retention=60)


async def run(url: str, handler: Release, payload: dict[str, Any]) -> str:
    """The result of one task that another release has sent, in a worker of this one."""
    async with App(url) as app:
        app.task(name=NAME)(handler)
        handle = await sent_by_another(url, payload)
        async with app.worker(**FAST):
            return str(await app.handle(handle.id, queue="default").result(timeout=20))


@pytest.mark.parametrize(
    ("change", "sent", "handler", "result"),
    [
        ("added: old task, new worker", {"to": "ada"}, added, "to ada in en"),
        ("added: new task, old worker", {"to": "ada", "lang": "zh"}, before, "to ada"),
        ("added: new task, new worker", {"to": "ada", "lang": "zh"}, added, "to ada in zh"),
        ("removed: old task, new worker", {"to": "ada", "lang": "zh"}, before, "to ada"),
        ("removed: new task, worker of the release before", {"to": "ada"}, may_be_left_out, "to ada"),
        ("renamed: task before, release 1", {"to": "ada"}, both_names, "to ada"),
        ("renamed: task of release 1, worker before", {"to": "ada"}, before, "to ada"),
        ("renamed: task of release 2, release 1", {"address": "ada"}, both_names, "to ada"),
        ("renamed: task of release 1, release 2", {"to": "ada"}, both_names, "to ada"),
        ("renamed: task of release 2, release 3", {"address": "ada"}, renamed, "to ada"),
        ("renamed: task of release 3, release 2", {"address": "ada"}, both_names, "to ada"),
        ("a struct's field added: old task", {"to": "ada"}, new_struct, "to ada in en"),
        ("a struct's field added: old worker", {"to": "ada", "lang": "zh"}, old_struct, "to ada"),
    ],
    ids=lambda value: value if isinstance(value, str) and ":" in value else "",
)
async def test_each_pair_of_neighbouring_releases(
    url: str, change: str, sent: dict[str, Any], handler: Release, result: str
) -> None:
    assert await run(url, handler, sent) == result


@pytest.mark.parametrize(
    ("change", "sent", "handler", "strict", "field"),
    [
        ("added without a default", {"to": "ada"}, added_without_default, False, "lang"),
        ("added, strict old worker", {"to": "ada", "lang": "zh"}, before, True, "lang"),
        ("removed at once", {}, before, False, "to"),
        ("renamed at once", {"address": "ada"}, before, False, "to"),
        ("a struct's field removed at once", {}, old_struct, False, "to"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
async def test_what_does_not_fit_fails_with_the_name_of_the_field_and_runs_in_the_other_release(
    url: str, look: Look, change: str, sent: dict[str, Any], handler: Release, strict: bool, field: str
) -> None:
    async with App(url) as here:
        here.task(name=NAME, strict=strict, retry_delay=0.05)(handler)
        handle = await sent_by_another(url, sent)
        async with here.worker(**FAST):
            await look.ends(handle.id, "retry")
        error = (await here.handle(handle.id, queue="default").status()).error
        assert field in error
        assert "PayloadError" in error

    async def other_release(to: str = "", address: str = "", lang: str = "") -> str:
        return "fits"

    async with App(url) as there:
        there.task(name=NAME)(other_release)
        async with there.worker(**FAST):
            assert await there.handle(handle.id, queue="default").result(timeout=20) == "fits"
