"""Each row of the pages about Go is checked beside live Go, or has a reason why it cannot be."""

from __future__ import annotations

import ast
import re
from pathlib import Path

LIVE = Path(__file__).parent / "live"
DOCS = Path(__file__).parents[2] / "docs"

GO_AND_PYTHON = {
    "test_fair_share.py::test_go_gets_its_share_of_a_queue_that_is_mostly_empty": ("The share depends on the live",),
    "test_outcomes.py::test_both_sides_work_on_one_queue_and_each_task_runs_once": ("Tasks are left only in a short",),
    "test_fair_share.py::test_a_go_server_that_takes_nothing_holds_tasks_up_once": ("A task waits for Go at most 2",),
    "test_fair_share.py::test_one_task_of_a_type_that_go_does_not_know_is_left_to_it_at_most": (
        "Go does not announce",
    ),
    "not checkable: there is no Go server": ("If no Go server serves the queue, none of this happens.",),
    "test_payloads.py::test_go_gets_what_python_sends": (
        "`task.enqueue(7, ",
        "`app.enqueue(type, value)`",
        "`app.produce(topic, value)`",
    ),
    "test_payloads.py::test_structs_with_added_fields_nils_and_floats_reach_python_handlers_and_misfits_are_retried": (
        "a field that the signature",
        "`null` (a nil slice",
        "no payload, or `null`",
        "`1e+06` or `3.0` for an `int`",
        "`1.5` for an `int`",
    ),
    "test_go_alone.py::test_an_order_key_is_kept_in_go_while_any_veredus_worker_is_alive": ("`order_key`",),
    "test_row_groups.py::test_order_keys_and_limits_in_a_queue_that_go_serves": ("`limit_key`, `limit=`",),
    "test_verbs.py::test_a_group_of_both_clients_is_aggregated_by_go": ("`group`",),
    "test_go_alone.py::test_a_delayed_task_of_a_group_that_go_forwards_runs_alone": ("`group` with `delay`",),
    "test_row_servers.py::test_what_a_server_shows_and_keeps_of_what_it_runs": ("`expires`",),
}
"""Where the rows and items of docs/go-and-python.md are checked, by how they begin."""


def check_place(place: str, *, names: str = "") -> None:
    """There is such a live test, and it says that it checks this row."""
    if re.fullmatch(r"not checkable: .{10,}", place):
        return
    file, _, name = place.partition("::")
    text = (LIVE / file).read_text(encoding="utf-8")
    tests = [node for node in ast.parse(text).body if getattr(node, "name", "") == name]
    assert len(tests) == 1, f"there is no {place}"
    assert names in (ast.get_source_segment(text, tests[0]) or ""), f"{place} does not mention {names}"


def test_each_row_of_the_differences_is_checked_beside_live_go_or_says_why_it_cannot_be() -> None:
    lines = (DOCS / "asynq-differences.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| <a id=")]
    assert len(rows) > 70
    for line in rows:
        row, place = line.partition('"')[2].partition('"')[0], line.removesuffix(" |").rpartition(" | ")[2]
        check_place(place.strip("`"), names=row)


def test_each_row_of_go_and_python_is_checked_beside_live_go_or_has_a_reason() -> None:
    text = (DOCS / "go-and-python.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\|-.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [line.strip("| ").partition(" | ")[0] for table in tables for line in table.splitlines()]
    rows += re.findall(r"^- (.*)$", text, re.MULTILINE)
    assert len(rows) == sum(map(len, GO_AND_PYTHON.values()))
    for place, beginnings in GO_AND_PYTHON.items():
        check_place(place)
        for begins in beginnings:
            found = [row for row in rows if row == begins] or [row for row in rows if row.startswith(begins)]
            assert len(found) == 1, begins
