"""ClientLink: the client's end of a session, without I/O, over many connections: order, acks, repeats, losses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from veredus.errors import ConfigError
from veredus.link.events import (
    Accepted,
    ClientEvent,
    Discontinued,
    Ended,
    Going,
    Lost,
    Received,
    Rejected,
    TokenExpiring,
    VolatileReceived,
    Welcomed,
)
from veredus.link.output import Output
from veredus.link.resync import UnansweredRequests
from veredus.model.delivery import NO_CURSOR, Cursor
from veredus.model.frames import (
    MAX_FRAME_FROM_SERVER,
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
    Resume,
    Volatile,
    Welcome,
    close_reason,
)
from veredus.wire.frames import codec

IDLE, HELLO, OPEN, CLOSED = "idle", "hello", "open", "closed"
ACK_MESSAGES = 32
ACK_BYTES = 16 * 1024
ACK_DELAY = 0.1
HELLO_TIMEOUT = 10.0
SILENCE_MARGIN = 2.0  # seconds after heartbeat and pong before a silent server counts as dead
STALL_TIMEOUT = 5.0  # seconds without a message although a ping announced one


class ClientLink:
    """One per session: `connected`, `receive`..., `disconnected`, `connected` again.

    States: `idle` without a connection, `hello` waits for the welcome, `open`, and `closed` from Ended to
    `disconnected`. After every call, the owner handles the events, sends the result of `take_output`, and calls `tick`
    at `deadline()`.
    """

    def __init__(
        self,
        encoding: str = "protobuf",
        *,
        token: str = "",
        client: str = "",
        window_messages: int = 0,
        window_bytes: int = 0,
        whole_messages: bool = False,
    ) -> None:
        """`whole_messages` is for WebSocket, where a message has whole frames only. With windows of 0 the server
        chooses."""
        self.state = IDLE
        self.session_id = ""
        self.secret = ""
        self.duplicates = 0
        self._token = token
        self._client = client
        self._windows = window_messages, window_bytes
        self._whole_messages = whole_messages
        self._codec = codec(encoding)
        self._decoder = self._codec.decoder(MAX_FRAME_FROM_SERVER)
        self._output = Output(64, 16 * 1024)
        self._requests = UnansweredRequests()
        self._received = NO_CURSOR
        self._done = NO_CURSOR
        # The position up to which this connection's server has shown that its log is the one we know. We acknowledge up
        # to here only, because a failover may have given later numbers to other messages.
        self._confirmed = NO_CURSOR
        self._unconfirmed: deque[tuple[int, int]] = deque()  # seq, ts of messages received after it
        self._acked = 0
        self._acked_floor = 0
        # received and not yet handled: seq, ts, bytes, rid of the request that it answers
        self._unhandled: deque[tuple[int, int, int, int]] = deque()
        self._unacked_bytes = 0
        self._ack_due: float | None = None
        self._limits = Limits()
        self._silence_limit = 0.0
        self._last_in = self._state_since = 0.0
        self._top = 0
        self._top_at = 0.0

    # ---- connections

    @property
    def cursor(self) -> Cursor:
        """The last message handled. With `session_id`, `secret` and `next_rid`, another process can resume."""
        return self._done

    @property
    def received(self) -> Cursor:
        """The last message passed to the application."""
        return self._received

    @property
    def next_rid(self) -> int:
        return self._requests.next_rid

    @property
    def unanswered(self) -> int:
        """Requests without an answer."""
        return len(self._requests)

    def restore(self, sid: str, secret: str, cursor: Cursor, next_rid: int = 1) -> None:
        """Resume the session of another process."""
        self.session_id, self.secret = sid, secret
        self._received = self._done = self._confirmed = cursor
        self._acked = cursor.seq
        self._requests = UnansweredRequests(next_rid)

    def connected(
        self, now: float, *, token: str | None = None, encoding: str | None = None, whole_messages: bool | None = None
    ) -> None:
        """A transport is open: send HELLO, with a resume if there is a session. None keeps the previous value."""
        if token is not None:
            self._token = token
        if encoding is not None:
            self._codec = codec(encoding)
        if whole_messages is not None:
            self._whole_messages = whole_messages
        self._decoder = self._codec.decoder(MAX_FRAME_FROM_SERVER)
        self._output.clear()
        self._ack_due = None
        self.state = HELLO
        self._state_since = self._last_in = now
        self._confirmed = self._done  # provided that the welcome confirms it
        self._unconfirmed = deque(item[:2] for item in self._unhandled)
        resume = Resume(self.session_id, self.secret, self._done) if self.session_id else None
        messages, size = self._windows
        floor = self._requests.floor
        self._send(Hello(token=self._token, resume=resume, window_messages=messages, window_bytes=size,
                         client=self._client, rid_floor=floor))  # fmt: skip
        self._acked_floor = floor

    def disconnected(self, now: float) -> None:
        """The transport has closed. Unanswered requests are sent again after the next welcome."""
        self.state = IDLE
        self._output.clear()
        self._ack_due = None

    # ---- from the server

    def receive(self, data: bytes | str, now: float) -> list[ClientEvent]:
        if self.state not in (HELLO, OPEN):
            return []
        events: list[ClientEvent] = []
        try:
            frames = self._decoder.feed(data.encode() if isinstance(data, str) else data)
            if self._whole_messages:
                self._decoder.end_of_message()
            for frame in frames:
                self._handle(frame, now, events)
                if self.state == CLOSED:
                    break
        except FrameError as error:
            events += self._end(error.code, error.reason)
            return events
        if frames:
            self._last_in = now
        return events

    def _handle(self, frame: Frame, now: float, events: list[ClientEvent]) -> None:
        if isinstance(frame, Message) and self.state == OPEN:
            self._handle_message(frame, now, events)
        elif isinstance(frame, Close):
            self.state = CLOSED
            events.append(Ended(frame.code, frame.reason, frame.retry_after_ms))
        elif self.state == HELLO:
            if not isinstance(frame, Welcome):
                raise FrameError(f"got {type(frame).__name__.lower()}, expected welcome")
            self._handle_welcome(frame, now, events)
        elif isinstance(frame, Ping):
            self._handle_ping(frame, now, events)
        elif isinstance(frame, Gap):
            self._handle_gap(frame, now, events)
        elif isinstance(frame, Accept):
            if self._requests.accepted(frame.rid):
                events.append(Accepted(frame.rid))
        elif isinstance(frame, Reject):
            known = self._requests.rejected if frame.retryable else self._requests.answered
            if known(frame.rid):
                events.append(Rejected(*frame))
        elif isinstance(frame, GoAway):
            events.append(Going(*frame))
        elif isinstance(frame, Volatile):
            events.append(VolatileReceived(*frame))
        else:
            raise FrameError(f"a server may not send {type(frame).__name__.lower()} now")

    def _handle_message(self, message: Message, now: float, events: list[ClientEvent]) -> None:
        seq, ts = message.seq, message.ts
        if seq <= self._received.seq and not self._is_fork(seq, ts, events):
            if not seq:
                raise FrameError("a message without a number")
            self.duplicates += 1
            if seq > self._confirmed.seq:
                self._confirm(seq, ts, now)
            if seq <= self._done.seq:  # the server missed our ack: send it again
                self._acked = min(self._acked, seq - 1)
                self._ack_due = now
            return
        epoch, last, last_ts = self._received
        if seq != last + 1:
            raise FrameError(f"got message {seq}, expected {last + 1}", CloseCode.INSUFFICIENT_STATE)
        if ts <= last_ts:
            raise FrameError(f"message {seq} is older than {last}", CloseCode.INSUFFICIENT_STATE)
        cursor = self._received = self._confirmed = Cursor(epoch, seq, ts)
        self._top_at = now
        if message.kind == Kind.TOMBSTONE:
            self._unhandled.append((seq, ts, 0, 0))
            events.append(Lost(seq, seq, "expired", cursor))
            return
        rid = message.rid if message.kind == Kind.RESPONSE else 0
        self._unhandled.append((seq, ts, len(message.body) + 64, rid))
        events.append(Received(message, cursor))

    def _is_fork(self, seq: int, ts: int, events: list[ClientEvent]) -> bool:
        """Whether this number now has another message than the one we received. The server checks only the cursor we
        resume with; a failover may have replaced the messages after it."""
        if all(number != seq or known == ts for number, known in self._known()):
            return False
        self._rewind(seq - 1, events)
        return True

    def _confirm(self, seq: int, ts: int, now: float) -> None:
        """The server's log contains what we received up to here."""
        while self._unconfirmed and self._unconfirmed[0][0] <= seq:
            self._unconfirmed.popleft()
        self._confirmed = Cursor(self._received.epoch, seq, ts)
        self._top_at = now

    def _rewind(self, seq: int, events: list[ClientEvent]) -> None:
        """Forget what we received after this number, handled or not: the log no longer contains it."""
        while self._unhandled and self._unhandled[-1][0] > seq:
            self._unhandled.pop()
        while self._unconfirmed and self._unconfirmed[-1][0] > seq:
            self._unconfirmed.pop()
        epoch, cursors = self._done.epoch, (self._confirmed, self._done)
        earlier = (one for one in (*self._known(), *(cursor[1:] for cursor in cursors)) if one[0] <= seq)
        last = max(earlier, default=self._done[1:])
        self._received = Cursor(epoch, *last)
        self._confirmed, self._done = (self._received if one.seq > seq else one for one in cursors)
        events.append(Discontinued("fork"))

    def _known(self) -> Iterator[tuple[int, int]]:
        """Number and time of the received messages that can be compared with the log."""
        yield from self._unconfirmed
        for item in self._unhandled:
            yield item[:2]

    def _handle_gap(self, gap: Gap, now: float, events: list[ClientEvent]) -> None:
        if any(seq == gap.last and gap.ts and ts != gap.ts for seq, ts in self._unconfirmed):
            self._rewind(max(gap.first - 1, self._confirmed.seq), events)
        last = self._received.seq
        if gap.first > last + 1:
            raise FrameError(f"got a gap from {gap.first}, expected {last + 1}", CloseCode.INSUFFICIENT_STATE)
        if gap.last > self._confirmed.seq:
            self._confirm(gap.last, gap.ts, now)
        if gap.last <= last:
            return
        self._received = self._confirmed
        self._unhandled.append((gap.last, gap.ts, 0, 0))
        events.append(Lost(last + 1, gap.last, gap.reason, self._received))

    def _handle_ping(self, ping: Ping, now: float, events: list[ClientEvent]) -> None:
        if ping.top > self._top:
            self._top, self._top_at = ping.top, now
        self._acked = max(self._acked, self._to_ack)
        self._send(Pong(ping.echo, self._to_ack))
        self._ack_due = None if self._acked_floor == self._requests.floor else self._ack_due
        self._unacked_bytes = 0
        if ping.token_expires_ms:
            events.append(TokenExpiring(ping.token_expires_ms))

    def _handle_welcome(self, welcome: Welcome, now: float, events: list[ClientEvent]) -> None:
        had, changed = bool(self.session_id), welcome.sid != self.session_id
        self.state = OPEN
        self.session_id, self.secret, self._limits = welcome.sid, welcome.secret, welcome.limits
        self._silence_limit = (welcome.heartbeat_ms + welcome.pong_ms) / 1000 + SILENCE_MARGIN
        self._top, self._top_at = welcome.top, now
        self._acked = self._confirmed.seq
        events.append(Welcomed(welcome))
        if welcome.result != "resumed" or changed:
            self._received = self._done = self._confirmed = welcome.cursor
            self._acked = welcome.cursor.seq
            self._unhandled.clear()
            self._unconfirmed.clear()
            self._unacked_bytes = 0
            if had:
                events.append(Discontinued(welcome.reason or "unknown"))
        elif welcome.top < self._received.seq:
            self._rewind(welcome.top, events)
        if had and changed:
            for request in self._requests.abandon_sent():
                events.append(
                    Rejected(
                        request.rid, ErrorCode.WORKER_LOST, False, 0, "the session is lost; the outcome is unknown"
                    )
                )
        for rid, state in welcome.open:
            if state == "done" and self._requests.accepted(rid):
                events.append(Accepted(rid))
        for request in self._requests.to_send(welcome.open):
            self._send(request)
            self._requests.sent(request.rid)

    # ---- from the application

    def request(
        self,
        action: str,
        body: bytes = b"",
        *,
        deadline_ms: int = 0,
        no_reply: bool = False,
        serial: bool = False,
        encoding: str = "json",
    ) -> int:
        """Send a request now or after the next welcome. Returns its number."""
        if not 1 <= len(action) <= 256:
            raise ConfigError("action", action[:40], "a name of 1 to 256 characters")
        if len(body) > self._limits.max_frame - 1024:
            raise ConfigError("body", f"{len(body):,} bytes", f"at most {self._limits.max_frame - 1024:,} bytes")
        request = self._requests.new(
            action, body, deadline_ms=deadline_ms, no_reply=no_reply, serial=serial, encoding=encoding
        )
        if self.state == OPEN:
            self._send(request)
            self._requests.sent(request.rid)
        return request.rid

    def send_again(self, rid: int) -> None:
        """Repeat a request that was rejected as retryable, under the same number. Without a connection it is sent after
        the next welcome anyway."""
        if self.state == OPEN and rid in self._requests:
            self._send(self._requests[rid])
            self._requests.sent(rid)

    def give_up(self, rid: int) -> None:
        """Do not repeat a request that was rejected as retryable."""
        self._requests.answered(rid)

    def cancel(self, rid: int) -> None:
        """Ask to cancel a request; it is still answered. Without a connection, nothing is sent."""
        self._send_if_open(Cancel(rid))

    def join(self, group: str) -> None:
        self._send_if_open(Join(group))

    def leave(self, group: str) -> None:
        self._send_if_open(Leave(group))

    def authenticate(self, token: str) -> None:
        """Use a new token for this connection and the next ones."""
        self._token = token
        self._send_if_open(Auth(token))

    def bye(self, code: int = 0) -> None:
        """End the session: the server deletes it."""
        self._send_if_open(Bye(code))

    def done(self, cursor: Cursor, now: float) -> None:
        """The application has handled everything up to this cursor. The ack is sent within 100 ms."""
        if cursor.epoch != self._done.epoch or cursor.seq <= self._done.seq:
            return
        unhandled = self._unhandled
        # ignore an unknown cursor: a failover has replaced its message since
        if not unhandled or (unhandled[0][:2] != cursor[1:] and all(item[:2] != cursor[1:] for item in unhandled)):
            return
        self._done = cursor
        while unhandled and unhandled[0][0] <= cursor.seq:
            _, _, size, rid = unhandled.popleft()
            self._unacked_bytes += size
            if rid:
                self._requests.answered(rid)
        unacked = cursor.seq - self._acked
        if (
            unacked >= ACK_MESSAGES
            or self._unacked_bytes >= ACK_BYTES
            or self._received.seq - self._acked >= self._limits.window_messages * 3 // 4
        ):
            self._ack()
        elif self._ack_due is None:
            self._ack_due = now + ACK_DELAY

    @property
    def _to_ack(self) -> int:
        return min(self._done.seq, self._confirmed.seq)

    def _ack(self) -> None:
        self._ack_due = None
        if self.state != OPEN:
            return
        seq, floor = self._to_ack, self._requests.floor
        if seq > self._acked or floor > self._acked_floor:
            self._send(Ack(seq, floor))
            self._acked, self._acked_floor = seq, floor
            self._unacked_bytes = 0

    # ---- time

    def tick(self, now: float) -> list[ClientEvent]:
        """Send due acks, and check that the server is alive and delivers."""
        if self.state == HELLO and now - self._state_since >= HELLO_TIMEOUT:
            return self._end(CloseCode.NO_PONG, f"no welcome within {HELLO_TIMEOUT:g} s")
        if self.state != OPEN:
            return []
        if self._ack_due is not None and now >= self._ack_due:
            self._ack()
        if now - self._last_in >= self._silence_limit:
            return self._end(CloseCode.NO_PONG, f"nothing received for {self._silence_limit:g} s")
        if self._behind and now - self._top_at >= STALL_TIMEOUT:
            return self._end(
                CloseCode.INSUFFICIENT_STATE,
                f"the log reaches {self._top}, nothing received after {self._confirmed.seq}",
            )
        return []

    @property
    def _behind(self) -> bool:
        """Whether the server has more messages, and is not waiting for our acks."""
        return self._top > self._confirmed.seq and self._confirmed.seq == self._acked

    def deadline(self) -> float:
        """When `tick` is due next."""
        if self.state == HELLO:
            return self._state_since + HELLO_TIMEOUT
        if self.state != OPEN:
            return float("inf")
        due = self._last_in + self._silence_limit
        if self._behind:
            due = min(due, self._top_at + STALL_TIMEOUT)
        return due if self._ack_due is None else min(due, self._ack_due)

    # ---- output

    @property
    def has_output(self) -> bool:
        return bool(self._output.frames)

    def take_output(self) -> list[bytes]:
        """All output, in chunks."""
        return self._output.take_all()

    def _end(self, code: CloseCode, reason: str) -> list[ClientEvent]:
        self.state = CLOSED
        self._output.clear()
        return [Ended(int(code), close_reason(reason))]

    def _send_if_open(self, frame: Frame) -> None:
        if self.state == OPEN:
            self._send(frame)

    def _send(self, frame: Frame) -> None:
        self._output.control(self._codec.encode(frame))
