"""What a worker process shows its supervisor: whole, or not at all."""

from __future__ import annotations

import os

import pytest

from veredus.worker.shared_beat import Beat, SharedBeat, entry_of


def test_a_child_shows_what_it_runs_and_its_parent_reads_it() -> None:
    shared = SharedBeat(3)
    assert shared.read() == Beat(0.0, {}, False)
    pid = os.fork()
    if pid == 0:
        shared.publish(7.0, [(entry_of("q", "old"), 1.0), (entry_of("q", "older"), 2.0)])
        shared.publish(8.5, [(entry_of("q", "a"), 20.0)])
        shared.drain()
        os._exit(0)
    os.waitpid(pid, 0)
    assert shared.read() == Beat(8.5, {entry_of("q", "a"): 20.0}, True)
    shared.close()


def test_no_more_is_shown_than_there_is_room_for() -> None:
    shared = SharedBeat(2)
    shared.publish(1.0, [(n, float(n)) for n in range(10)])
    assert shared.read() == Beat(1.0, {0: 0.0, 1: 1.0}, False)
    shared.close()
    with pytest.raises(ValueError, match="closed"):
        shared.read()


def test_of_one_that_was_stopped_while_it_wrote_only_the_time_is_taken() -> None:
    shared = SharedBeat(2)
    shared.publish(1.0, [(1, 2.0)])
    shared._memory[8:16] = (99).to_bytes(8, "little")  # begun, and never ended
    assert shared.read() == Beat(1.0, {}, False)
    shared.drain()
    assert shared.read().is_draining
    shared.close()


def test_the_same_id_in_another_queue_is_another_task() -> None:
    assert entry_of("a", "1") != entry_of("b", "1")
