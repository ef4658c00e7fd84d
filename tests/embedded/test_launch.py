"""How the server process is started."""

from __future__ import annotations

import pytest

from veredus.embedded.launch import environment


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, "glibc.malloc.tcache_count=127"),
        ("glibc.malloc.mxfast=64", "glibc.malloc.mxfast=64:glibc.malloc.tcache_count=127"),
        ("glibc.malloc.tcache_count=9", "glibc.malloc.tcache_count=9"),
    ],
)
def test_it_keeps_more_freed_memory_at_hand_unless_told_otherwise(
    given: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if given is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", given)
    monkeypatch.setenv("OTHER", "kept")
    found = environment()
    assert (found["GLIBC_TUNABLES"], found["OTHER"]) == (wanted, "kept")
