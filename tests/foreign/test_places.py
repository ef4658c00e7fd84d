"""The lists of this folder are complete: a new key needs an entry, and is then damaged in every way."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from tests.foreign.places import CHANNELS, GATEWAY, GLOBAL, NO_KEYS, QUEUE
from tests.foreign.readers import CLI, DASHBOARD, INSPECTOR
from veredus.dashboard.read_routes import READINGS
from veredus.inspector.inspector import Inspector
from veredus.inspector.order_and_limits import OrderAndLimits
from veredus.inspector.reader import InspectorReader
from veredus.inspector.statistics import Statistics
from veredus.wire import keys, session_keys


def _names(module: ModuleType) -> set[str]:
    made = {
        name for name, value in inspect.getmembers(module, inspect.isfunction) if value.__module__ == module.__name__
    }
    return {name for name in made | {name for name in vars(module) if name.isupper()} if not name.startswith("_")}


@pytest.mark.parametrize(("module", "tables"), [(keys, (GLOBAL, QUEUE)), (session_keys, (GATEWAY,))])
def test_every_key_and_channel_has_an_entry(module: ModuleType, tables: tuple[dict[str, object], ...]) -> None:
    listed = {name for table in tables for name in table}
    missing = _names(module) - listed - CHANNELS - NO_KEYS
    assert missing == set(), "say in tests/foreign/places.py what type it has"
    assert listed <= _names(module)


def test_every_reader_has_an_entry() -> None:
    public = {
        name
        for part in (InspectorReader, OrderAndLimits, Statistics)
        for name, value in vars(part).items()
        if not name.startswith("_") and (inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value))
    }
    changes = {"release_order_key", "remove_limit", "run_errors", "delete_errors"}
    elsewhere = {"error_group", "search", "search_page", "cluster_nodes", "server", "redis_info"}
    assert public - changes - elsewhere == set(INSPECTOR) - {"doctor.diagnose", "is_closed"}
    assert hasattr(Inspector, "is_closed")
    assert READINGS.keys() - {"job"} == set(DASHBOARD)
    assert len(CLI) == len(set(CLI))
