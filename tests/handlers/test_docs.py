"""The page about handlers shows the table as it is."""

from __future__ import annotations

from pathlib import Path

from tests.handlers.table import ROWS, as_markdown

PAGE = Path(__file__).parents[2] / "docs" / "handlers.md"


def test_the_page_shows_every_row_of_the_table() -> None:
    assert as_markdown() in PAGE.read_text(), f"docs/handlers.md must have this table:\n\n{as_markdown()}"


def test_no_two_rows_have_the_same_task() -> None:
    assert len({row.slug for row in ROWS}) == len(ROWS)


def test_every_difference_has_a_reason_and_changes_something() -> None:
    for row in ROWS:
        for one in row.differs:
            assert one.reason, row.name
            assert all(row.expects(executor, mode) != row.expected for executor in one.executors for mode in one.modes)
