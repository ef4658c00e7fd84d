"""Two versions measured in turns: what is compared, and which way is better."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.turns import compared, source_of


@pytest.mark.parametrize(
    ("before", "after", "unit", "ratio"),
    [
        ([100.0, 1.0, 110.0], [50.0, 55.0, 1000.0], "/s", 0.55),
        ([10.0, 12.0, 11.0], [22.0, 20.0, 99.0], "us", 0.5),
        ([2.0], [1.0], "ms", 2.0),
        ([0.0], [0.0], "%", 1.0),
    ],
)
def test_the_medians_are_compared_and_below_one_is_worse(
    before: list[float], after: list[float], unit: str, ratio: float
) -> None:
    assert compared(before, after, unit) == pytest.approx(ratio)


def test_the_source_comes_from_the_history(tmp_path: Path) -> None:
    assert (source_of("HEAD", tmp_path) / "veredus" / "__init__.py").is_file()


def test_a_commit_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no commit 'nonsense'"):
        source_of("nonsense", tmp_path)


def test_a_part_that_does_not_exist_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "drain,nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no part is called nonsense; there are enqueue, latency" in done.stderr
