"""OrderedMessageQueue: sends the messages of one session in order and keeps them until they are acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypedDict

from veredus.model.delivery import CLEANUP_INTERVAL, MAX_QUEUE_SIZE, MAX_RETRIES, MESSAGE_TIMEOUT
from veredus.model.frames import FrameError


class QueueOutcome(StrEnum):
    """The result of adding a message to the queue."""

    SENT = "sent"
    WAITING = "waiting"
    """An earlier message is missing, or the transport refused it: it is kept and sent later."""
    DUPLICATE = "duplicate"
    FULL = "full"
    """Too many messages wait. Never returned for the expected number."""
    STOPPED = "stopped"


class Enqueued(NamedTuple):
    """The outcome; for a duplicate also its number and the expected one."""

    outcome: QueueOutcome
    seq: int = 0
    expected: int = 0


class QueueStats(TypedDict):
    """The state of a queue, for display and metrics."""

    session_id: str
    queue_size: int
    pending_count: int
    max_queue_size: int
    next_expected_seq: int
    last_sent_seq: int
    last_acked_seq: int
    stopped: bool


class CleanedUp(NamedTuple):
    """How many messages were dropped because they waited too long (the log still has them), and whether the oldest
    message in flight has used all its retries, so that the connection must be closed."""

    dropped: int
    exhausted: bool


class OrderedMessage:
    """A message with its number, source (`push`), bytes, time of the last send and number of repeats."""

    __slots__ = ("data", "push", "retries", "sent", "server_seq", "timestamp")

    def __init__(self, server_seq: int, push: object, data: bytes, timestamp: float) -> None:
        self.server_seq = server_seq
        self.push = push
        self.data = data
        self.timestamp = timestamp
        self.retries = 0
        self.sent = False

    def __lt__(self, other: OrderedMessage) -> bool:
        return self.server_seq < other.server_seq


SendCallback = Callable[[OrderedMessage], bool | None]

_SENT = Enqueued(QueueOutcome.SENT)
_WAITING = Enqueued(QueueOutcome.WAITING)
_FULL = Enqueued(QueueOutcome.FULL)
_STOPPED = Enqueued(QueueOutcome.STOPPED)


class OrderedMessageQueue:
    """The expected number is sent, a later one waits in a min-heap, an earlier one is a duplicate.

    `send` passes the message to the transport. If it returns False or raises OSError, no counter changes and the
    message stays first; `process_waiting_messages` tries again. The queue has one owner and needs no lock.
    """

    __slots__ = (
        "_waiting",
        "_waiting_seqs",
        "acked_push",
        "cleanup_interval",
        "in_flight",
        "last_acked_seq",
        "last_sent_seq",
        "max_queue_size",
        "max_retries",
        "message_timeout",
        "next_expected_seq",
        "pending_bytes",
        "send",
        "session_id",
        "stopped",
        "waiting_bytes",
    )

    def __init__(
        self,
        session_id: str,
        send: SendCallback,
        *,
        max_queue_size: int = MAX_QUEUE_SIZE,
        message_timeout: float = MESSAGE_TIMEOUT,
        max_retries: int = MAX_RETRIES,
        cleanup_interval: float = CLEANUP_INTERVAL,
    ) -> None:
        self.session_id = session_id
        self.send = send
        self.max_queue_size = max_queue_size
        self.message_timeout = message_timeout
        self.max_retries = max_retries
        self.cleanup_interval = cleanup_interval
        self.next_expected_seq = 1
        self.last_sent_seq = 0
        self.last_acked_seq = 0
        self.acked_push: object = None
        """The source of message `last_acked_seq`; None if no message was sent under this number."""
        self.pending_bytes = 0
        self.waiting_bytes = 0
        self.stopped = False
        self._waiting: list[OrderedMessage] = []
        self._waiting_seqs: set[int] = set()
        self.in_flight: deque[OrderedMessage] = deque()

    # ---- in

    def enqueue_message(self, server_seq: int, data: bytes, now: float, push: object = None) -> Enqueued:
        """Add a message with its number."""
        if self.stopped:
            return _STOPPED
        expected = self.next_expected_seq
        if server_seq == expected and server_seq not in self._waiting_seqs:
            message = OrderedMessage(server_seq, push, data, now)
            if not self._send_message_directly(message):
                self._wait(message)
                return _WAITING
            if self._waiting:
                self.process_waiting_messages(now)
            return _SENT
        if server_seq < expected or server_seq in self._waiting_seqs:
            return Enqueued(QueueOutcome.DUPLICATE, server_seq, expected)
        if len(self._waiting) >= self.max_queue_size:
            return _FULL
        self._wait(OrderedMessage(server_seq, push, data, now))
        return _WAITING

    def process_waiting_messages(self, now: float) -> int:
        """Send waiting messages while their numbers are consecutive. Returns how many were sent."""
        waiting = self._waiting
        count = 0
        while waiting and not self.stopped:
            message = waiting[0]
            if message.server_seq < self.next_expected_seq:  # skipped by a jump
                self._remove_first_waiting()
            elif message.server_seq == self.next_expected_seq:
                message.timestamp = now
                if not self._send_message_directly(message):
                    break
                self._remove_first_waiting()
                count += 1
            else:
                break
        return count

    # ---- acknowledged

    def ack_messages_up_to(self, seq: int) -> int:
        """Remove what the client has acknowledged. Returns how many messages; 0 for an old ack.

        Raises FrameError for an ack of a message that was never sent.
        """
        if seq > self.last_sent_seq:
            raise FrameError(f"ack of {seq}, but the last message sent is {self.last_sent_seq}")
        if seq <= self.last_acked_seq:
            return 0
        self.last_acked_seq = seq
        return self._forget_up_to(seq)

    def resync_sequence(self, cursor: int, now: float = 0.0) -> int:
        """Continue after a cursor that the log has confirmed: everything up to it counts as sent and acknowledged.

        Returns how many waiting messages were sent.
        """
        self._forget_up_to(cursor)
        self.last_acked_seq = max(self.last_acked_seq, cursor)
        return self._jump(cursor, now)

    def skip_to(self, seq: int, now: float) -> int:
        """Continue after this number, because the policy dropped the messages before. Messages in flight stay."""
        return self._jump(seq, now)

    # ---- time

    def retry_timed_out_messages(self, now: float) -> int:
        """Repeat, in ascending order, what was not acknowledged within half of `message_timeout`. Returns how many.

        Call it only while the transport has no unsent bytes, otherwise a slow reader gets copies of what it has not
        read yet.
        """
        overdue = now - self.message_timeout / 2
        count = 0
        for message in self.in_flight:
            if message.timestamp <= overdue and message.retries < self.max_retries:
                if not self._write(message):
                    break
                message.retries += 1
                message.timestamp = now
                count += 1
        return count

    def clean_up(self, now: float) -> CleanedUp:
        """Drop messages that have waited for `message_timeout`, and check whether the retries are used up."""
        stale = now - self.message_timeout
        kept = [message for message in self._waiting if message.timestamp > stale]
        dropped = len(self._waiting) - len(kept)
        if dropped:
            heapify(kept)
            self._waiting = kept
            self._waiting_seqs = {message.server_seq for message in kept}
            self.waiting_bytes = sum(len(message.data) for message in kept)
        oldest = self.in_flight[0] if self.in_flight else None
        exhausted = (
            oldest is not None
            and oldest.retries >= self.max_retries
            and oldest.timestamp <= now - self.message_timeout / 2
        )
        return CleanedUp(dropped, exhausted)

    # ---- state

    @property
    def pending_count(self) -> int:
        """Messages sent and not acknowledged."""
        return len(self.in_flight)

    @property
    def queue_size(self) -> int:
        """Messages that wait for an earlier one."""
        return len(self._waiting)

    @property
    def first_waiting_seq(self) -> int | None:
        return self._waiting[0].server_seq if self._waiting else None

    def get_queue_stats(self) -> QueueStats:
        return {
            "session_id": self.session_id,
            "queue_size": len(self._waiting),
            "pending_count": len(self.in_flight),
            "max_queue_size": self.max_queue_size,
            "next_expected_seq": self.next_expected_seq,
            "last_sent_seq": self.last_sent_seq,
            "last_acked_seq": self.last_acked_seq,
            "stopped": self.stopped,
        }

    def stop(self) -> None:
        """Accept nothing more and drop everything: the log has it."""
        self.stopped = True
        self._waiting.clear()
        self._waiting_seqs.clear()
        self.in_flight.clear()
        self.pending_bytes = self.waiting_bytes = 0

    # ---- internal

    def _send_message_directly(self, message: OrderedMessage) -> bool:
        try:
            if self.send(message) is False:
                return False
        except OSError:
            return False
        message.sent = True
        self.in_flight.append(message)
        self.pending_bytes += len(message.data)
        self.last_sent_seq = message.server_seq
        self.next_expected_seq = message.server_seq + 1
        return True

    def _write(self, message: OrderedMessage) -> bool:
        try:
            return self.send(message) is not False
        except OSError:
            return False

    def _wait(self, message: OrderedMessage) -> None:
        heappush(self._waiting, message)
        self._waiting_seqs.add(message.server_seq)
        self.waiting_bytes += len(message.data)

    def _remove_first_waiting(self) -> None:
        message = heappop(self._waiting)
        self._waiting_seqs.discard(message.server_seq)
        self.waiting_bytes -= len(message.data)

    def _forget_up_to(self, seq: int) -> int:
        sent = self.in_flight
        count = size = 0
        last = None
        while sent and sent[0].server_seq <= seq:
            last = sent.popleft()
            size += len(last.data)
            count += 1
        self.acked_push = last.push if last is not None and last.server_seq == seq else None
        self.pending_bytes -= size
        return count

    def _jump(self, seq: int, now: float) -> int:
        if seq < self.next_expected_seq:
            return 0
        self.next_expected_seq = seq + 1
        self.last_sent_seq = seq
        return self.process_waiting_messages(now) if self._waiting else 0
