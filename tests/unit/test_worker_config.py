"""Worker settings: validated, with the field, the value and what is allowed."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from veredus import App, ConfigError, current
from veredus.testing.rehearsal import RehearsalSettings
from veredus.worker.config import WorkerConfig, WorkerSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, value) for name in ("concurrency", "threads", "processes") for value in (0, -1, 1.5, True, "3")],
        *[(name, value) for name in ("process_pool", "max_tasks", "max_memory") for value in (-1, 1.5, True, "3")],
        *[(name, value) for name in ("lease", "sweep", "forward_interval") for value in (0, -1, True, "3")],
        *[("lease", value) for value in (float("nan"), float("inf"))],
        *[("shutdown_timeout", value) for value in (-1, True, "x", float("inf"))],
        *[(name, 5) for name in ("health_check", "is_failure", "on_error")],
        ("retry_delay", -1),
        ("retry_delay", "soon"),
        ("queues", ""),
        ("queues", {"a": 0}),
    ],
)
def test_a_wrong_setting_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerConfig.make(**{name: value})
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize(
    ("typo", "meant"), [("concurency", "concurrency"), ("on_eror", "on_error"), ("leases", "lease")]
)
def test_an_unknown_setting_suggests_the_nearest(typo: str, meant: str) -> None:
    worker: Any = App().worker
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        worker(None, **{typo: 1})


def test_the_defaults_keep_the_promise_of_fifteen_seconds() -> None:
    config = WorkerConfig.make()
    assert config.lease + config.sweep < 15
    assert config.beat * 3 == pytest.approx(config.lease)
    assert config.process_pool >= 1


def test_durations_may_be_timedeltas() -> None:
    config = WorkerConfig.make(lease=timedelta(seconds=3), shutdown_timeout=timedelta(0))
    assert (config.lease, config.lease_ms, config.shutdown_timeout) == (3.0, 3000, 0.0)


def test_there_is_no_current_attempt_outside_of_a_handler() -> None:
    with pytest.raises(LookupError, match="only inside a handler"):
        current()


def test_the_typed_settings_are_those_that_there_are() -> None:
    assert set(WorkerSettings.__annotations__) | {"queues"} == {one.name for one in fields(WorkerConfig)}
    given = set(RehearsalSettings.__annotations__)
    assert given == set(WorkerSettings.__annotations__) | {"queues", "start", "url"}
