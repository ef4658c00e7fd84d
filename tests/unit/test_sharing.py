"""How much is left for Go, when nothing is, and how it is found out what Go can run."""

from __future__ import annotations

import pytest

from veredus.model.go_share import FIRST_BREAK, LONGEST_BREAK, GoShare

NO_HANDLER = b'..\x3a\x23handler not found for task "t"..'


def shared(go: int = 1, ours: int = 1, most: int = 10) -> GoShare:
    share = GoShare()
    share.serve([f"go{number}" for number in range(go)], ours, most)
    return share


def tried(share: GoShare, task_id: str = "trial") -> GoShare:
    """Go has taken one of type t."""
    share.answered([], [(task_id, "t")], 0.0)
    share.answered([], [], 0.0)
    return share


def test_nothing_is_left_without_a_go_server() -> None:
    assert GoShare().terms(0.0) == ""
    assert shared(0).terms(0.0) == ""


def test_gos_part_is_its_part_of_the_processes() -> None:
    assert shared().terms(0.0) == "50 2000 10"
    assert shared(1, 3, 8).terms(0.0) == "25 2000 8"
    assert shared(2, 1, 20).terms(0.0) == "67 2000 20"


def test_after_go_took_nothing_there_is_a_break_that_grows() -> None:
    share, now = shared(), 100.0
    for seconds in (FIRST_BREAK, 2 * FIRST_BREAK, 4 * FIRST_BREAK, LONGEST_BREAK, LONGEST_BREAK):
        share.answered([], [("a", "t"), ("b", "u")], now)
        assert share.terms(now)
        share.answered([("a", b"")], [("b", "u")], now)
        assert share.terms(now + seconds - 1) == ""
        assert share.terms(now + seconds)
        now += seconds
        share.answered([], [], now)
        assert share.trials == {}, "nobody knows who took what was left before the break"


def test_a_task_that_go_took_ends_the_growing() -> None:
    share = shared()
    share.answered([], [("a", "t")], 0.0)
    share.answered([("a", b"")], [], 0.0)
    share.answered([], [("b", "t"), ("c", "t")], 20.0)
    share.answered([("mine", b"")], [("c", "t")], 20.0)
    share.answered([("c", b"")], [], 20.0)
    assert share.terms(20.0 + FIRST_BREAK)


def test_while_a_trial_is_left_it_is_named_so_that_no_other_one_is() -> None:
    share = tried(shared(), "first")
    share.found("t", "first", "", b"")
    share.answered([], [("known", "t"), ("trial", "u"), ("odd\0", "v")], 0.0)
    assert share.terms(0.0) == "50 2000 10\1t\0\3u\0trial\0"
    share.answered([], [], 0.0)
    assert share.terms(0.0).startswith("50 2000 10\1t\0\2")


def test_what_is_taken_before_go_had_its_time_is_no_reason_for_a_break() -> None:
    """A second trial was left in the call that saw the first one gone; while the first is looked at, none is left."""
    share = shared()
    share.answered([], [("trial", "t"), ("other", "u")], 0.0)
    share.answered([], [("second", "t"), ("other", "u")], 0.0)
    assert share.trials == {"t": "trial"}
    share.answered([("second", b"")], [("other", "u")], 0.0)
    assert share.terms(0.0)
    share.answered([("other", b"")], [], 0.0)
    assert share.terms(0.0) == "", "this one was left for its time"


def test_a_type_that_is_left_no_more_is_no_reason_for_a_break() -> None:
    share = shared()
    share.answered([], [("a", "t"), ("b", "t")], 0.0)
    share.answered([("failed", NO_HANDLER)], [("b", "t")], 0.0)
    share.answered([("b", b"")], [], 0.0)
    assert share.terms(0.0) == "50 2000 10\2t\0"


def test_another_part_for_go_is_no_reason_for_a_break() -> None:
    share = shared()
    share.answered([], [("a", "t")], 0.0)
    share.serve(["go0"], 2, 10)
    share.answered([("a", b"")], [], 0.0)
    assert share.terms(0.0) == "33 2000 10"


def test_while_a_trial_is_looked_at_no_other_of_its_type_is_left() -> None:
    share = tried(shared())
    assert share.trials == {"t": "trial"}
    assert share.terms(0.0) == "50 2000 10\2t\0"


@pytest.mark.parametrize(
    ("state", "message", "terms"),
    [
        ("", b"", "\1t\0"),
        ("completed", b"", "\1t\0"),
        ("retry", b"its handler failed", "\1t\0"),
        ("archived", b"its handler failed", "\1t\0"),
        ("retry", NO_HANDLER, "\2t\0"),
        ("archived", NO_HANDLER, "\2t\0"),
        ("pending", b"", ""),
        ("scheduled", b"", ""),
    ],
)
def test_what_became_of_a_trial_says_whether_go_has_a_handler(state: str, message: bytes, terms: str) -> None:
    share = tried(shared())
    share.found("t", "trial", state, message)
    assert (share.trials, share.terms(0.0)) == ({}, f"50 2000 10{terms}")


def test_a_trial_that_stays_active_is_being_run() -> None:
    share = tried(shared())
    share.found("t", "trial", "active", b"")
    assert share.terms(0.0) == "50 2000 10\2t\0", "it may be given up at once"
    share.found("t", "trial", "active", b"")
    assert share.terms(0.0) == "50 2000 10\1t\0"


def test_a_trial_that_came_back_is_no_proof_although_it_is_gone_by_now() -> None:
    """Go had no handler, it was retried soon, and was run here before anybody looked at it."""
    share = tried(shared())
    share.answered([("trial", NO_HANDLER)], [], 0.0)
    share.found("t", "trial", "", b"")
    assert share.terms(0.0) == "50 2000 10\2t\0"


def test_a_trial_that_was_run_here_is_no_proof() -> None:
    share = tried(shared())
    share.answered([("trial", b"")], [], 0.0)
    share.found("t", "trial", "", b"")
    assert share.terms(0.0) == "50 2000 10", "the next one is another trial"


def test_what_go_takes_of_a_type_that_it_runs_is_no_trial() -> None:
    share = tried(shared())
    share.found("t", "trial", "", b"")
    tried(share, "another")
    assert share.trials == {}


def test_a_type_that_go_had_no_handler_for_is_not_left_until_there_is_another_go_server() -> None:
    share = tried(shared())
    share.found("t", "trial", "", b"")
    share.answered([("a", NO_HANDLER)], [], 0.0)
    assert share.terms(0.0) == "50 2000 10\2t\0"
    share.serve(["go0"], 1, 10)
    assert share.terms(0.0) == "50 2000 10\2t\0"
    share.serve(["another"], 1, 10)
    assert share.terms(0.0) == "50 2000 10"
