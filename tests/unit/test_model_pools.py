"""Progress through a queue: nothing is missed, nothing that was passed over is looked at twice."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from veredus.model.pools import CUT_LOOKS, FreeSlots, QueueScan, ScanPosition

ALL = FreeSlots(5, 5, 5)
SCAN = 4


def look(queue: list[str], at: ScanPosition, wanted: int) -> tuple[list[str], list[str], int]:
    """What dequeue.lua does, with a smaller bound. A task is named by its pool (0 if its type is unknown)."""
    start = queue.index(at.cursor) + 1 if at.cursor in queue else 0
    cursor = at.cursor if at.cursor in queue else ""
    room, cursors = list(at.rooms), [cursor if room else "" for room in at.rooms]
    blocked = [room == 0 for room in at.rooms]
    taken: list[str] = []
    passed, seen = 0, start
    for task in queue[start:]:
        if len(taken) >= min(wanted, sum(at.rooms)) or passed >= SCAN:
            break
        seen += 1
        pool = int(task[0]) - 1
        if pool >= 0 and room[pool] > 0:
            room[pool] -= 1
            taken.append(task)
            continue
        passed += 1
        if pool >= 0:
            blocked[pool] = True
        for place in range(3):
            if not blocked[place]:
                cursors[place] = task
    behind = len(queue) - seen
    for task in taken:
        queue.remove(task)
    return taken, cursors, behind


def test_while_everything_can_be_started_all_pools_look_at_the_front() -> None:
    progress = QueueScan()
    assert progress.next(ALL) == ScanPosition(ALL)
    progress.answered(ScanPosition(ALL), ["", "", ""], 3, 10)
    assert progress.next(ALL) == ScanPosition(ALL)
    assert not progress.is_at_end


def test_without_room_there_is_nothing_to_look_for() -> None:
    progress = QueueScan()
    assert progress.next(FreeSlots()) is None
    progress.arrivals(at_front=True)
    assert progress.next(FreeSlots()) is None


def test_at_the_end_of_the_queue_it_waits_for_arrivals() -> None:
    progress = QueueScan()
    progress.answered(ScanPosition(ALL), ["x", "x", "x"], 0, 0)
    assert progress.is_at_end
    assert progress.next(ALL) is None
    progress.arrivals(at_front=False)
    assert progress.next(ALL) == ScanPosition(ALL, "x")


def test_something_taken_or_something_behind_is_not_the_end() -> None:
    for taken, behind in ((1, 0), (0, 1)):
        progress = QueueScan()
        progress.answered(ScanPosition(ALL), ["x", "x", "x"], taken, behind)
        assert progress.next(ALL) == ScanPosition(ALL, "x")


def test_pools_that_begin_at_different_places_look_in_turns() -> None:
    progress = QueueScan()
    progress.answered(ScanPosition(ALL), ["x", "y", "y"], 1, 9)
    assert progress.next(ALL) == ScanPosition(FreeSlots(loop=5), "x")
    progress.answered(ScanPosition(FreeSlots(loop=5), "x"), ["z", "", ""], 1, 9)
    assert progress.next(ALL) == ScanPosition(FreeSlots(thread=5, process=5), "y")
    progress.answered(ScanPosition(FreeSlots(thread=5, process=5), "y"), ["", "y", "y"], 1, 9)
    assert progress.next(ALL) == ScanPosition(FreeSlots(loop=5), "z")


def test_a_look_at_the_front_leaves_the_cursors_and_is_repeated_while_it_finds_something() -> None:
    progress = QueueScan()
    progress.answered(ScanPosition(ALL), ["x", "x", "x"], 0, 0)
    progress.arrivals(at_front=True)
    front = ScanPosition(ALL, again=True)
    assert progress.next(ALL) == front
    progress.answered(front, ["f", "f", "f"], 1, 5)
    assert progress.next(ALL) == front
    progress.answered(front, ["f", "f", "f"], 0, 5)
    assert progress.next(ALL) == ScanPosition(ALL, "x")


def test_looks_at_the_front_that_do_not_get_through_start_over_in_the_end() -> None:
    progress = QueueScan()
    progress.answered(ScanPosition(ALL), ["x", "x", "x"], 0, 0)
    for _ in range(CUT_LOOKS):
        progress.arrivals(at_front=True)
        assert progress.next(ALL) == ScanPosition(ALL, again=True)
        progress.answered(ScanPosition(ALL, again=True), ["f", "f", "f"], 0, 5)
    assert progress.next(ALL) == ScanPosition(ALL)


def test_an_answer_without_cursors_changes_nothing() -> None:
    progress = QueueScan()
    progress.answered(ScanPosition(ALL), ["x", "x", "x"], 0, 3)
    progress.answered(ScanPosition(ALL, "x"), [], 0, 0)
    assert progress.next(ALL) == ScanPosition(ALL, "x")


def test_an_empty_queue_starts_over() -> None:
    progress = QueueScan()
    progress.answered(ScanPosition(ALL), ["x", "x", "x"], 0, 0)
    progress.start_over()
    assert progress.next(ALL) == ScanPosition(ALL)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("arrive"), st.integers(0, 3)),
            st.tuples(st.just("give back"), st.integers(0, 3)),
            st.tuples(st.just("go takes"), st.integers(0, 3)),
            st.tuples(st.just("look"), st.integers(1, 4)),
            st.tuples(st.just("room"), st.integers(1, 3)),
        ),
        max_size=60,
    )
)
def test_whatever_happens_everything_that_can_be_started_is_found_in_order(steps: list[tuple[str, int]]) -> None:
    progress, queue, room = QueueScan(), list[str](), [2, 2, 2]
    taken: dict[int, list[str]] = {1: [], 2: [], 3: []}
    number = 0

    def ask(wanted: int) -> bool:
        at = progress.next(FreeSlots(*room))
        if at is None:
            return False
        got, cursors, behind = look(queue, at, wanted)
        for task in got:
            room[int(task[0]) - 1] -= 1
            taken[int(task[0])].append(task)
        if queue:
            progress.answered(at, cursors, len(got), behind)
        else:
            progress.start_over()
        return bool(queue)

    for what, value in steps:
        if what == "arrive":
            number += 1
            queue.append(f"{value}:{number:03}")
        elif what == "give back":
            number += 1
            queue.insert(0, f"{value}:{number:03}-front")
        elif what == "go takes":
            del queue[:1]
        elif what == "room":
            room[value - 1] += 1
        else:
            ask(value)
    for at_front in (*[True] * CUT_LOOKS, False):  # more than one look can pass over may have been put in front
        progress.arrivals(at_front=at_front)
        looks = 0
        while ask(3):
            looks += 1
            assert looks < 500, "it looks for ever"
    assert [task for task in queue if task[0] != "0" and room[int(task[0]) - 1] > 0] == []
    for mine in taken.values():
        arrived = [task for task in mine if not task.endswith("front")]
        assert arrived == sorted(arrived)
