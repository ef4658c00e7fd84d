"""The ordered queue: three paths, counters, sent cache, cumulative acks, retransmission, clean-up, statistics.

Tests named o1, o2, ... are for defects of an earlier design in which the queue itself gave out the numbers.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from veredus.link.ordered_queue import Enqueued, OrderedMessage, OrderedMessageQueue, QueueOutcome
from veredus.model.frames import FrameError


class Wire:
    """A transport that can be told to fail."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.broken = False
        self.raises = False

    def __call__(self, message: OrderedMessage) -> bool:
        if self.broken:
            if self.raises:
                raise ConnectionResetError
            return False
        self.sent.append(message.server_seq)
        return True


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def queue(wire: Wire) -> OrderedMessageQueue:
    return OrderedMessageQueue("s", wire)


def put(queue: OrderedMessageQueue, *seqs: int, now: float = 0.0) -> list[QueueOutcome]:
    return [queue.enqueue_message(seq, b"%d" % seq, now).outcome for seq in seqs]


def test_the_expected_number_is_sent_a_later_one_waits_an_earlier_one_is_a_duplicate(
    queue: OrderedMessageQueue, wire: Wire
) -> None:
    assert put(queue, 1, 3, 2) == [QueueOutcome.SENT, QueueOutcome.WAITING, QueueOutcome.SENT]
    assert wire.sent == [1, 2, 3]
    assert queue.enqueue_message(2, b"", 0) == Enqueued(QueueOutcome.DUPLICATE, 2, 4)


def test_the_eight_statistics(queue: OrderedMessageQueue) -> None:
    put(queue, 1, 2, 5)
    queue.ack_messages_up_to(1)
    assert queue.get_queue_stats() == {
        "session_id": "s",
        "queue_size": 1,
        "pending_count": 1,
        "max_queue_size": 1000,
        "next_expected_seq": 3,
        "last_sent_seq": 2,
        "last_acked_seq": 1,
        "stopped": False,
    }


def test_fifty_senders_at_once_leave_in_order(queue: OrderedMessageQueue, wire: Wire) -> None:
    numbers = list(range(1, 1001))
    chance = random.Random(7)
    lanes = [numbers[lane::50] for lane in range(50)]
    while any(lanes):
        lane = chance.choice([lane for lane in lanes if lane])
        put(queue, lane.pop(0))
    assert wire.sent == numbers


def test_a_message_waits_once_however_often_it_comes(queue: OrderedMessageQueue) -> None:
    assert put(queue, 3, 3, 3) == [QueueOutcome.WAITING, QueueOutcome.DUPLICATE, QueueOutcome.DUPLICATE]
    assert queue.queue_size == 1


@pytest.mark.parametrize("raises", [False, True])
def test_o1_a_failed_write_changes_no_counter_and_the_message_stays_first(
    queue: OrderedMessageQueue, wire: Wire, raises: bool
) -> None:
    put(queue, 1)
    wire.broken, wire.raises = True, raises
    before = queue.get_queue_stats()
    assert put(queue, 2, 3) == [QueueOutcome.WAITING, QueueOutcome.WAITING]
    after = queue.get_queue_stats()
    assert after == {**before, "queue_size": 2}
    assert put(queue, 2) == [QueueOutcome.DUPLICATE]
    wire.broken = False
    assert queue.process_waiting_messages(1.0) == 2
    assert wire.sent == [1, 2, 3]


def test_o2_clean_up_never_makes_a_gap_permanent(queue: OrderedMessageQueue, wire: Wire) -> None:
    put(queue, 1, 3, 4, now=0.0)
    assert queue.clean_up(31.0).dropped == 2  # they are in the log, and will be read again
    assert queue.next_expected_seq == 2
    assert put(queue, 2, 3, 4, now=31.0) == [QueueOutcome.SENT] * 3
    assert wire.sent == [1, 2, 3, 4]


def test_o3_a_full_queue_never_refuses_the_message_that_unblocks_it(wire: Wire) -> None:
    queue = OrderedMessageQueue("s", wire, max_queue_size=3)
    assert put(queue, 2, 3, 4, 5) == [QueueOutcome.WAITING] * 3 + [QueueOutcome.FULL]
    assert put(queue, 1) == [QueueOutcome.SENT]
    assert wire.sent == [1, 2, 3, 4]
    wire.broken = True
    assert put(queue, 6, 7, 8, 9) == [QueueOutcome.WAITING] * 3 + [QueueOutcome.FULL]
    assert put(queue, 5) == [QueueOutcome.WAITING]


def test_o4_retransmission_is_in_ascending_order(queue: OrderedMessageQueue, wire: Wire) -> None:
    put(queue, *range(1, 13))
    wire.sent.clear()
    assert queue.retry_timed_out_messages(14.9) == 0
    assert queue.retry_timed_out_messages(15.0) == 12
    assert wire.sent == list(range(1, 13))


def test_the_time_of_a_message_counts_from_when_it_left_not_from_when_it_came(
    queue: OrderedMessageQueue, wire: Wire
) -> None:
    put(queue, 2, now=0.0)
    put(queue, 1, now=20.0)
    assert queue.retry_timed_out_messages(34.0) == 0
    assert queue.retry_timed_out_messages(35.0) == 2
    assert wire.sent == [1, 2, 1, 2]


def test_o5_what_was_retried_in_vain_is_reported_and_kept_not_forgotten(queue: OrderedMessageQueue, wire: Wire) -> None:
    put(queue, 1, 2)
    for round_ in range(1, 4):
        assert not queue.clean_up(15.0 * round_).exhausted
        assert queue.retry_timed_out_messages(15.0 * round_) == 2
    assert queue.retry_timed_out_messages(60.0) == 0
    assert queue.clean_up(60.0).exhausted
    assert queue.pending_count == 2
    assert queue.last_acked_seq == 0
    assert wire.sent == [1, 2] * 4


def test_after_a_retransmission_that_fails_no_later_one_is_tried(queue: OrderedMessageQueue, wire: Wire) -> None:
    put(queue, 1, 2, 3)
    tried: list[int] = []

    def send(message: OrderedMessage) -> bool:
        tried.append(message.server_seq)
        return message.server_seq != 2

    queue.send = send
    assert queue.retry_timed_out_messages(queue.message_timeout) == 1
    assert tried == [1, 2]


def test_a_retransmission_that_fails_is_not_counted(queue: OrderedMessageQueue, wire: Wire) -> None:
    put(queue, 1)
    wire.broken = True
    assert queue.retry_timed_out_messages(20.0) == 0
    wire.broken = False
    assert queue.retry_timed_out_messages(20.0) == 1


def test_o6_o7_resync_jumps_forgets_and_sends_what_was_waiting_for_it(queue: OrderedMessageQueue, wire: Wire) -> None:
    put(queue, 11, 12, 14, 7)
    assert queue.resync_sequence(10) == 2
    assert wire.sent == [11, 12]
    assert queue.get_queue_stats()["next_expected_seq"] == 13
    assert queue.get_queue_stats()["last_acked_seq"] == 10
    assert put(queue, 13) == [QueueOutcome.SENT]
    assert wire.sent == [11, 12, 13, 14]


def test_resync_behind_what_was_sent_is_a_plain_ack(queue: OrderedMessageQueue) -> None:
    put(queue, 1, 2, 3)
    assert queue.resync_sequence(2) == 0
    assert queue.get_queue_stats()["next_expected_seq"] == 4
    assert queue.pending_count == 1
    queue.resync_sequence(1)
    assert queue.last_acked_seq == 2


def test_o9_an_ack_beyond_what_was_sent_is_refused_and_an_old_one_changes_nothing(queue: OrderedMessageQueue) -> None:
    put(queue, 1, 2, 3)
    before = queue.get_queue_stats()
    with pytest.raises(FrameError, match="1000000"):
        queue.ack_messages_up_to(1_000_000)
    assert queue.get_queue_stats() == before
    assert queue.ack_messages_up_to(2) == 2
    assert queue.ack_messages_up_to(1) == 0
    assert queue.last_acked_seq == 2


def test_o11_an_ack_costs_what_it_acknowledges(queue: OrderedMessageQueue) -> None:
    looked_at = 0

    class Counted(OrderedMessage):
        @property
        def server_seq(self) -> int:
            nonlocal looked_at
            looked_at += 1
            return self._seq

        @server_seq.setter
        def server_seq(self, value: int) -> None:
            self._seq = value

    put(queue, *range(1, 1001))
    for index, message in enumerate(list(queue.in_flight)):
        queue.in_flight[index] = Counted(message.server_seq, None, message.data, 0.0)
    looked_at = 0
    assert queue.ack_messages_up_to(10) == 10
    assert looked_at == 12  # the first that stays, and the last that goes once more
    assert queue.pending_bytes == sum(len(str(seq)) for seq in range(11, 1001))


def test_o13_the_way_out_is_given_once_when_the_queue_is_made(wire: Wire) -> None:
    with pytest.raises(TypeError):
        OrderedMessageQueue("s")  # type: ignore[call-arg]
    assert OrderedMessageQueue("s", wire).send is wire


def test_a_stopped_queue_takes_nothing_and_holds_nothing(queue: OrderedMessageQueue) -> None:
    put(queue, 1, 3)
    queue.stop()
    assert put(queue, 2) == [QueueOutcome.STOPPED]
    stats = queue.get_queue_stats()
    assert (stats["stopped"], stats["pending_count"], stats["queue_size"]) == (True, 0, 0)
    assert queue.pending_bytes == queue.waiting_bytes == 0


class Machine(RuleBasedStateMachine):
    """Any order of arrivals, acks, failures, jumps and time: what leaves is 1, 2, 3, ... and the counters are true."""

    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire()
        self.queue = OrderedMessageQueue("s", self.wire, max_queue_size=6)
        self.now = 0.0
        self.first_time: list[int] = []
        self.skipped: set[int] = set()

    def _note(self, start: int) -> None:
        """What is new on the wire since `start`."""
        for seq in self.wire.sent[start:]:
            if not self.first_time or seq > self.first_time[-1]:
                self.first_time.append(seq)

    @rule(ahead=st.integers(-3, 8))
    def enqueue(self, ahead: int) -> None:
        seq = max(1, self.queue.next_expected_seq + ahead)
        start, expected = len(self.wire.sent), self.queue.next_expected_seq
        outcome = self.queue.enqueue_message(seq, b"x", self.now).outcome
        self._note(start)
        if seq == expected:
            assert outcome is not QueueOutcome.FULL
        if seq < expected:
            assert outcome is QueueOutcome.DUPLICATE
        if outcome is QueueOutcome.SENT:
            assert self.wire.sent[start] == seq

    @rule(back=st.integers(0, 5))
    def ack(self, back: int) -> None:
        seq = max(0, self.queue.last_sent_seq - back)
        before, pending = self.queue.last_acked_seq, self.queue.pending_count
        count = self.queue.ack_messages_up_to(seq)
        assert self.queue.last_acked_seq == max(before, seq)
        assert self.queue.pending_count == pending - count

    @rule(beyond=st.integers(1, 5))
    def ack_too_much(self, beyond: int) -> None:
        with pytest.raises(FrameError):
            self.queue.ack_messages_up_to(self.queue.last_sent_seq + beyond)

    @rule(seconds=st.floats(1, 20), idle=st.booleans())
    def wait(self, seconds: float, idle: bool) -> None:
        self.now += seconds
        self.queue.clean_up(self.now)
        if idle:
            start = len(self.wire.sent)
            self.queue.retry_timed_out_messages(self.now)
            repeated = self.wire.sent[start:]
            assert repeated == sorted(repeated)

    @rule()
    def fail(self) -> None:
        self.wire.broken = not self.wire.broken
        if not self.wire.broken:
            start = len(self.wire.sent)
            self.queue.process_waiting_messages(self.now)
            self._note(start)

    @rule(ahead=st.integers(0, 4))
    def skip(self, ahead: int) -> None:
        expected, start = self.queue.next_expected_seq, len(self.wire.sent)
        self.skipped |= set(range(expected, expected + ahead + 1))
        self.queue.skip_to(expected + ahead, self.now)
        self._note(start)

    @invariant()
    def what_left_is_in_order_and_whole(self) -> None:
        last = self.queue.last_sent_seq
        assert self.first_time == sorted(set(self.first_time))
        assert set(self.first_time) | self.skipped == set(range(1, last + 1))

    @invariant()
    def counters_fit(self) -> None:
        queue = self.queue
        assert queue.next_expected_seq == queue.last_sent_seq + 1
        assert queue.last_acked_seq <= queue.last_sent_seq
        in_flight = [message.server_seq for message in queue.in_flight]
        assert in_flight == [seq for seq in self.first_time if seq > queue.last_acked_seq]
        assert queue.pending_bytes == len(in_flight)
        assert queue.waiting_bytes == queue.queue_size <= 7
        assert queue.first_waiting_seq is None or queue.first_waiting_seq >= queue.next_expected_seq


def test_the_queue_as_a_state_machine() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
