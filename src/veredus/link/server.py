"""ServerLink: the gateway's end of a connection, without I/O: window, heartbeat, slow readers, allowed frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from veredus.link.config import LinkConfig
from veredus.link.events import Acked, Ended, ServerEvent, SlowConsumer, Wanted
from veredus.link.ordered_queue import OrderedMessage, OrderedMessageQueue, QueueStats
from veredus.link.output import Output
from veredus.link.resync import check_read
from veredus.model.bucket import Bucket
from veredus.model.frames import (
    VERSION,
    Accept,
    Ack,
    Auth,
    Bye,
    Cancel,
    Close,
    CloseCode,
    ErrorCode,
    Frame,
    FrameError,
    Gap,
    GoAway,
    Hello,
    Join,
    Kind,
    Leave,
    Limits,
    Message,
    Ping,
    Pong,
    Reject,
    Request,
    Volatile,
    Welcome,
    close_reason,
)
from veredus.wire.frames import codec, encode_stored
from veredus.wire.framing import TooManyFrames
from veredus.wire.log_entries import LogEntry

MAX_UNREAD_ANSWERS = 4096  # frames queued for a client that does not read
NEW, ASKED, OPEN, CLOSED = "new", "asked", "open", "closed"
_EXPIRED = encode_stored(Message(kind=Kind.TOMBSTONE))
_FOR_OWNER = (Request, Cancel, Join, Leave, Auth)
_RETRYABLE = {int(code): code.retryable for code in ErrorCode}


class ServerLink:
    """One connection of one session. Times are seconds of any monotonic clock.

    States: `new` waits for HELLO, `asked` waits for the owner's `welcome`, then `open` and `closed`. After every call,
    the owner handles the events, sends the result of `take_output`, and calls `tick` at `deadline()`.
    """

    def __init__(
        self, encoding: str, config: LinkConfig, now: float, *, jitter: float = 0.0, whole_messages: bool = False
    ) -> None:
        """`encoding` is the transport's. `whole_messages` is for WebSocket, where a message has whole frames only.
        `jitter` (-0.1 to 0.1) changes the heartbeat, so that many links do not ping at once."""
        self.state = NEW
        self.top = 0
        self.duplicates = 0
        self.rtt: float | None = None
        self._config = config
        self._codec = codec(encoding)
        self._message_frame: Callable[[int, int, bytes], bytes] = self._codec.message_frame
        self._decoder = self._codec.decoder(config.max_frame, 1)  # only a hello before the welcome
        self._whole_messages = whole_messages
        self._output = Output(config.flush_messages, config.flush_bytes)
        self._queue = self._new_queue("")
        self._heartbeat = config.heartbeat * (1 + jitter)
        # a client that reads gets the time for all repeats and for the answer to the last one
        repeats = (config.max_retries + 1) * (config.message_timeout / 2 + config.cleanup_interval)
        self._max_idle = max(config.slow_close, repeats if config.max_retries else 0.0)
        self._hello = Hello()
        self._frames = Bucket(config.frame_rate, config.frame_burst, now)
        self._acks = Bucket(config.ack_rate, config.ack_burst, now)
        self._epoch = ""
        self._last_ts = 0  # of the newest message sent
        self._ts_at_last = 0  # of the entry with the last number; 0 after a gap: unknown
        self._must_verify = False
        self._asked_top = 0
        self._window_messages = config.window_messages
        self._window_bytes = config.window_bytes
        self._rid_floor = 0
        self._state_since = self._last_in = self._last_out = self._progress_at = self._cleaned_at = now
        self._pinged_at: float | None = None
        self._echo = 0
        self._warned_slow = False
        self._token_expires_at: float | None = None
        self._warned_token = False
        self._degraded = False

    # ---- from the client

    def receive(self, data: bytes | str, now: float) -> list[ServerEvent]:
        """Decode data from the client. Returns its frames Hello, Request, Cancel, Join, Leave, Auth and Bye unchanged,
        Acked and Ended. Everything after Ended is ignored."""
        if self.state == CLOSED:
            return []
        events: list[ServerEvent] = []
        try:
            frames = self._decoder.feed(data.encode() if isinstance(data, str) else data)
            if self._whole_messages:
                self._decoder.end_of_message()
            ignored = self._decoder.ignored
            if ignored or not data:
                self._ignore(ignored or 1, now)
            for frame in frames:
                self._handle(frame, now, events)
                if self.state == CLOSED:
                    break
        except FrameError as error:
            code = self._too_many_code() if isinstance(error, TooManyFrames) else error.code
            wait = 1000 if code == CloseCode.RATE_LIMITED else 0
            return events + self.close(code, error.reason, now, retry_after_ms=wait)
        except UnicodeEncodeError:
            return events + self.close(CloseCode.BAD_FRAME, "invalid Unicode", now)
        if frames:
            self._last_in = now
            self._pinged_at = None
        if len(self._output) > self._window_messages + MAX_UNREAD_ANSWERS and self.state != CLOSED:
            return events + self.close(CloseCode.RATE_LIMITED, "the client does not read its answers", now)
        return events

    def _too_many_code(self) -> CloseCode:
        """The close code for too many frames at once. On a stream, the client does not choose how reads are split."""
        if self.state != OPEN:
            return CloseCode.BAD_FRAME
        return CloseCode.TOO_LARGE if self._whole_messages else CloseCode.RATE_LIMITED

    def _ignore(self, count: int, now: float) -> None:
        """Frames of unknown types, blank lines and empty messages count as frames."""
        if self.state != OPEN:
            raise FrameError("only a hello is allowed before the welcome")
        self._count(self._frames, now, count)

    @staticmethod
    def _count(bucket: Bucket, now: float, count: int = 1) -> None:
        if bucket.take(now, count):
            raise FrameError("too many frames per second", CloseCode.RATE_LIMITED)

    def _handle(self, frame: Frame, now: float, events: list[ServerEvent]) -> None:
        if self.state != OPEN:
            if self.state != NEW or not isinstance(frame, Hello):
                expected = "hello" if self.state == NEW else "nothing before the welcome"
                raise FrameError(f"got {type(frame).__name__.lower()}, expected {expected}")
            if frame.version != VERSION:
                raise FrameError(f"got version {frame.version}, expected {VERSION}", CloseCode.VERSION_UNSUPPORTED)
            self.state, self._hello, self._state_since = ASKED, frame, now
            events.append(frame)
        elif isinstance(frame, Ack):
            self._ack(frame.seq, frame.rid_floor, now, events)
        elif isinstance(frame, Pong):
            if self._pinged_at is not None and frame.echo == self._echo:
                self.rtt = now - self._pinged_at
            self._ack(frame.seq, 0, now, events, asked_for=self._pinged_at is not None)
        elif isinstance(frame, _FOR_OWNER):
            self._count(self._frames, now)
            events.append(frame)
        elif isinstance(frame, Bye):
            events.append(frame)
            events += self.close(CloseCode.SESSION_CLOSED, "bye", now)
        else:
            raise FrameError(f"a client may not send {type(frame).__name__.lower()} now")

    def _ack(self, seq: int, rid_floor: int, now: float, events: list[ServerEvent], *, asked_for: bool = False) -> None:
        before = self._queue.last_acked_seq
        self._queue.ack_messages_up_to(seq)
        if seq > before:
            self._progress_at, self._warned_slow = now, False
        if seq > before or rid_floor > self._rid_floor:
            self._rid_floor = max(self._rid_floor, rid_floor)
            ts: Any = self._queue.acked_push
            events.append(Acked(self._queue.last_acked_seq, self._rid_floor, ts or 0))
        elif not asked_for:  # an ack with news is limited by the messages it acknowledges
            self._count(self._acks, now)

    # ---- to the client

    def welcome(
        self,
        welcome: Welcome,
        entries: Sequence[LogEntry],
        now: float,
        *,
        gap: tuple[int, int] | None = None,
        wall_ms: int = 0,
    ) -> None:
        """Answer the hello with WELCOME, GAP if the policy dropped messages, and the first missed messages.

        Delivery starts after `welcome.cursor`, which the log has confirmed. Heartbeat, pong and limits are filled in
        here.
        """
        if self.state != ASKED:
            return
        config, hello = self._config, self._hello
        self._window_messages = min(hello.window_messages or config.window_messages, config.window_messages)
        self._window_bytes = min(hello.window_bytes or config.window_bytes, config.window_bytes)
        welcome = welcome._replace(
            heartbeat_ms=int(config.heartbeat * 1000),
            pong_ms=int(config.pong * 1000),
            limits=Limits(self._window_messages, self._window_bytes, config.max_frame, config.max_open_requests),
        )
        self.state = OPEN
        self._decoder.max_frames = config.max_frames
        self.top = welcome.top
        self._epoch, start, self._last_ts = welcome.cursor
        self._ts_at_last = self._last_ts
        self._queue = self._new_queue(welcome.sid)
        self._queue.resync_sequence(start if gap is None else gap[0] - 1)
        self._queue.acked_push = self._last_ts if gap is None else None
        self._progress_at = self._cleaned_at = now
        self._send(welcome, now)
        if gap is not None:
            self._skip(gap, self._last_ts if start == gap[1] else 0, now)
        last = self._queue.last_sent_seq
        self.offer_entries([entry for entry in entries if entry[0] > last], now, wall_ms=wall_ms)

    def offer_entries(self, entries: Sequence[LogEntry], now: float, *, wall_ms: int = 0) -> list[ServerEvent]:
        """Offer log entries from a hint, in any order; duplicates and gaps are allowed. A new entry with an old number
        belongs to another log than the one we follow: Ended with 4007.

        Entries beyond the window are skipped, and `wanted` requests them later. An entry that expired before `wall_ms`
        (Unix milliseconds; 0 disables this) becomes a tombstone.
        """
        if self.state != OPEN or self._must_verify:
            for entry in entries:
                self.note_top(entry[0])
            return []
        queue, frame_of = self._queue, self._message_frame
        was_idle = not queue.pending_count
        enqueue = queue.enqueue_message
        for seq, ts, expiry, tail in entries:
            if seq > self.top:
                self.top = seq
            ahead = seq - queue.next_expected_seq
            if ahead < 0:
                self.duplicates += 1
                if ts > self._last_ts:
                    return self.close(CloseCode.INSUFFICIENT_STATE, f"{seq} is now another message", now)
                continue
            held = len(queue.in_flight)
            if ahead + held >= self._window_messages or (
                held and queue.pending_bytes + queue.waiting_bytes + len(tail) > self._window_bytes
            ):
                continue
            if expiry and 0 < expiry <= wall_ms:
                tail = _EXPIRED
            enqueue(seq, frame_of(seq, ts, tail), now, ts)
        self._last_out = now
        if was_idle:
            self._progress_at = now
        return []

    def offer_read(
        self,
        epoch: str,
        floor: int,
        policy_floor: int,
        top: int,
        entries: Sequence[LogEntry],
        now: float,
        *,
        floor_ts: int = 0,
        wall_ms: int = 0,
    ) -> list[ServerEvent]:
        """Offer the result of the read that `wanted` asked for. A range that the policy dropped becomes a GAP. If it is
        not the log we follow, the connection ends with 4007 and the client resumes."""
        if self.state != OPEN:
            return []
        last = self._queue.last_sent_seq
        times = {floor: floor_ts, **{entry[0]: entry[1] for entry in entries if last <= entry[0] <= last + 1}}
        try:
            gap = check_read(
                self._epoch,
                last,
                self._ts_at_last,
                log_epoch=epoch,
                floor=floor,
                policy_floor=policy_floor,
                top=top,
                last_ts_in_log=times.get(last, 0),
                next_ts=times.get(last + 1, 0),
            )
        except FrameError as error:
            return self.close(error.code, error.reason, now)
        # a hint may have raised `top` since the read began; but what was known before and is missing now is lost
        self.top = top if top < self._asked_top else max(self.top, top)
        self._must_verify = False
        entries = [entry for entry in entries if entry[0] > last]
        if gap is not None:
            self._skip(gap, floor_ts, now)
        return self.offer_entries(entries, now, wall_ms=wall_ms)

    def verify_log(self) -> None:
        """Ignore hints until a read shows that the log is still ours, because the store may have failed over."""
        self._must_verify = True

    def note_top(self, top: int) -> None:
        """Note that the log reaches this number, from a hint without bodies or a position check."""
        self.top = max(self.top, top)

    def wanted(self) -> Wanted | None:
        """What to read from the log now: from the first missing number, as much as fits the window; or None.

        After `verify_log`, the last message sent is read too. To avoid small reads, nothing is read while less than a
        quarter of the window is free and more is missing than would fit.
        """
        if self.state != OPEN:
            return None
        self._asked_top = self.top
        queue = self._queue
        if self._must_verify:  # include the last message sent, to compare it
            room = max(1, self._window_messages - queue.pending_count)
            return Wanted(queue.last_sent_seq, room, max(1024, self._window_bytes - queue.pending_bytes))
        expected = queue.next_expected_seq
        waiting = queue.first_waiting_seq
        missing = (self.top if waiting is None else max(waiting - 1, expected)) - expected + 1
        if missing <= 0 or self.top < expected:
            return None
        pending = queue.pending_count
        room = self._window_messages - pending
        room_bytes = self._window_bytes - queue.pending_bytes
        if pending and (
            room_bytes < self._window_bytes // 4 or room <= 0 or (room < missing and room < self._window_messages // 4)
        ):
            return None
        return Wanted(expected, min(room, missing), room_bytes)

    def allow(self, frame_rate: float, frame_burst: float, now: float) -> None:
        """Set the frame limit of this client."""
        self._frames.change(frame_rate, frame_burst, now)

    def accept(self, rid: int, now: float) -> None:
        """Confirm that the request is stored."""
        if self.state == OPEN:
            self._send(Accept(rid), now)

    def reject(self, rid: int, code: int, now: float, *, retry_after_ms: int = 0, error: str = "") -> None:
        """Refuse a request."""
        if self.state == OPEN:
            self._send(Reject(rid, code, _RETRYABLE.get(code, False), retry_after_ms, error[:1000]), now)

    def volatile(self, type: str, body: bytes, now: float, *, encoding: str = "json", unsent: int = 0) -> bool:
        """Send an unnumbered message. Returns False and drops it if output is queued here or in the transport."""
        if self.state != OPEN or unsent or len(self._output):
            return False
        self._send(Volatile(type, body, encoding), now)
        return True

    def go_away(self, reconnect_within_ms: int, reason: str, now: float, *, hint: str = "") -> None:
        """Ask the client to reconnect."""
        if self.state == OPEN:
            self._send(GoAway(reconnect_within_ms, reason, hint), now)

    def token_expires(self, at: float | None) -> None:
        """Set when the token expires, on the clock of `now`. The client is warned before; then the connection ends with
        4004."""
        self._token_expires_at, self._warned_token = at, False

    def degraded(self, yes: bool) -> None:
        """Set whether the store is unreachable, which pings report to the client."""
        self._degraded = yes

    def close(self, code: int, reason: str, now: float, *, retry_after_ms: int = 0) -> list[ServerEvent]:
        """End the connection: append a CLOSE frame to the output and return Ended."""
        if self.state == CLOSED:
            return []
        reason = close_reason(reason)
        self._send(Close(code, reason, retry_after_ms), now)
        self.state = CLOSED
        self._queue.stop()
        return [Ended(int(code), reason, retry_after_ms)]

    # ---- time

    def tick(self, now: float, *, unsent: int = 0) -> list[ServerEvent]:
        """Run heartbeat, timeouts and repeats. Repeats wait while the transport has `unsent` bytes."""
        config = self._config
        if self.state == CLOSED:
            return []
        if self.state != OPEN:
            if now - self._state_since < config.hello_timeout:
                return []
            if self.state == NEW:
                return self.close(CloseCode.HELLO_TIMEOUT, f"no hello within {config.hello_timeout:g} s", now)
            return self.close(CloseCode.BACKEND_UNAVAILABLE, "the session was not opened in time", now)
        if self._token_expires_at is not None and now >= self._token_expires_at:
            return self.close(CloseCode.TOKEN_EXPIRED, "the token has expired", now)
        if self._pinged_at is not None and now - self._pinged_at >= config.pong:
            return self.close(CloseCode.NO_PONG, f"no answer to a ping within {config.pong:g} s", now)
        events: list[ServerEvent] = []
        if self._queue.pending_count:
            events = self._watch_progress(now, unsent)
            if self.state == CLOSED:
                return events
        elif self._queue.queue_size and now - self._cleaned_at >= config.cleanup_interval:
            self._cleaned_at = now
            self._queue.clean_up(now)
        warn = self._token_expires_at is not None and not self._warned_token
        if warn and self._token_expires_at is not None and self._token_expires_at - now <= config.token_warning:
            self._warned_token = True
            self._ping(now, int((self._token_expires_at - now) * 1000))
        elif self._pinged_at is None and now - min(self._last_out, self._last_in) >= self._heartbeat:
            self._ping(now, 0)
        return events

    def _watch_progress(self, now: float, unsent: int) -> list[ServerEvent]:
        """Check that the client makes progress while messages are in flight."""
        config, queue = self._config, self._queue
        idle = now - self._progress_at
        if idle >= (config.slow_close if unsent else self._max_idle):
            return self.close(CloseCode.SLOW_CONSUMER, f"nothing acknowledged for {idle:.0f} s", now)
        if now - self._cleaned_at >= config.cleanup_interval:
            self._cleaned_at = now
            if queue.clean_up(now).exhausted:
                return self.close(CloseCode.SLOW_CONSUMER, f"not acknowledged after {config.max_retries} repeats", now)
            if not unsent and not len(self._output) and queue.retry_timed_out_messages(now):
                self._last_out = now
        if idle >= config.slow_warn and not self._warned_slow:
            self._warned_slow = True
            return [SlowConsumer(idle)]
        return []

    def deadline(self) -> float:
        """When `tick` is due next."""
        config = self._config
        if self.state != OPEN:
            return self._state_since + config.hello_timeout if self.state != CLOSED else float("inf")
        due = (
            min(self._last_out, self._last_in) + self._heartbeat
            if self._pinged_at is None
            else self._pinged_at + config.pong
        )
        if self._queue.pending_count or self._queue.queue_size:
            due = min(due, self._cleaned_at + config.cleanup_interval)
        if self._queue.pending_count:
            due = min(due, self._progress_at + (self._max_idle if self._warned_slow else config.slow_warn))
        if self._token_expires_at is not None:
            due = min(due, self._token_expires_at - (0 if self._warned_token else config.token_warning))
        return due

    def _ping(self, now: float, token_expires_ms: int) -> None:
        self._echo += 1
        self._send(Ping(self._echo, self.top, self._degraded, token_expires_ms), now)
        if self._pinged_at is None:
            self._pinged_at = now

    # ---- output

    @property
    def has_output(self) -> bool:
        return bool(self._output.frames)

    def take_output(self) -> list[bytes]:
        """One flush: at most one chunk of 64 messages or 16 KiB. Call it again in the next turn while `has_output`.

        After the end: everything that is left.
        """
        return self._output.take_all() if self.state == CLOSED else self._output.take()

    # ---- state

    @property
    def session_id(self) -> str:
        return self._queue.session_id

    @property
    def pending_count(self) -> int:
        """Messages in flight."""
        return self._queue.pending_count

    @property
    def pending_bytes(self) -> int:
        """Bytes in flight."""
        return self._queue.pending_bytes

    def get_queue_stats(self) -> QueueStats:
        """The eight statistics of the ordered queue."""
        return self._queue.get_queue_stats()

    # ---- internal

    def _new_queue(self, session_id: str) -> OrderedMessageQueue:
        config = self._config
        return OrderedMessageQueue(
            session_id,
            self._send_message,
            max_queue_size=config.max_queue_size,
            message_timeout=config.message_timeout,
            max_retries=config.max_retries,
            cleanup_interval=config.cleanup_interval,
        )

    def _send_message(self, message: OrderedMessage) -> bool:
        """Called by the queue. A message older than its predecessor is from another log: hold it back until the next
        read verifies the log."""
        ts: Any = message.push
        if not message.sent:
            if ts <= self._last_ts:
                return False
            self._last_ts = self._ts_at_last = ts
        self._output.frames.append(message)
        return True

    def _skip(self, gap: tuple[int, int], ts: int, now: float) -> None:
        first, last = gap
        self._send(Gap(first, last, "quota", ts), now)
        self._last_ts = max(self._last_ts, ts)
        self._ts_at_last = ts
        self._queue.skip_to(last, now)

    def _send(self, frame: Frame, now: float) -> None:
        self._output.control(self._codec.encode(frame))
        self._last_out = now
