"""The client's end of a session, without I/O, over many connections: order, acks, requests sent again, losses told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from veredus.errors import ConfigError
from veredus.link.events import (
    Accepted,
    ClientEvent,
    Discontinuity,
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
from veredus.link.resync import OpenRequests
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
)
from veredus.wire.frames import codec

IDLE, HELLO, OPEN, CLOSED = "idle", "hello", "open", "closed"
ACK_MESSAGES = 32
ACK_BYTES = 16 * 1024
ACK_DELAY = 0.1
HELLO_TIMEOUT = 10.0
SLACK = 2.0  # seconds beyond heartbeat and pong before a silent server counts as dead
STALL = 5.0  # seconds without a message although a ping said that there is one


class ClientLink:
    """One for the life of a session: `connected`, `receive`..., `disconnected`, `connected` again.

    States: `idle` without a connection, `hello` waits for the welcome, `open`, `closed` after Ended until
    `disconnected`. After every call: handle the events, send what `take_output` gives, and see that `tick` is called at
    `deadline()`.
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
        """`whole_messages` for WebSocket, where no frame may be cut in two. Windows of 0 leave the choice to the
        server."""
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
        self._requests = OpenRequests()
        self._received = NO_CURSOR
        self._done = NO_CURSOR
        # How far this connection's server has shown that its log is the one we know. Only so far may we acknowledge: a
        # failover may have given the numbers behind it to other messages.
        self._confirmed = NO_CURSOR
        self._unconfirmed: deque[tuple[int, int]] = deque()  # seq, ts of what was received behind it
        self._acked = 0
        self._acked_floor = 0
        # received and not yet done: seq, ts, bytes, rid of the request that it answers
        self._handed: deque[tuple[int, int, int, int]] = deque()
        self._unacked_bytes = 0
        self._ack_due: float | None = None
        self._limits = Limits()
        self._patience = 0.0
        self._last_in = self._since = 0.0
        self._top = 0
        self._top_at = 0.0

    # ---- connections

    @property
    def cursor(self) -> Cursor:
        """The last message handled: kept with `session_id`, `secret` and `next_rid`, it resumes in another process."""
        return self._done

    @property
    def received(self) -> Cursor:
        """The last message handed out."""
        return self._received

    @property
    def next_rid(self) -> int:
        return self._requests.next_rid

    @property
    def unanswered(self) -> int:
        """Requests without an answer."""
        return len(self._requests)

    def restore(self, sid: str, secret: str, cursor: Cursor, next_rid: int = 1) -> None:
        """Take up a session that another process has left."""
        self.session_id, self.secret = sid, secret
        self._received = self._done = self._confirmed = cursor
        self._acked = cursor.seq
        self._requests = OpenRequests(next_rid)

    def connected(
        self, now: float, *, token: str | None = None, encoding: str | None = None, whole_messages: bool | None = None
    ) -> None:
        """A transport is up: HELLO goes out, with the resume if there is a session. The others if they changed."""
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
        self._since = self._last_in = now
        self._confirmed = self._done  # if the welcome says so
        self._unconfirmed = deque(item[:2] for item in self._handed)
        resume = Resume(self.session_id, self.secret, self._done) if self.session_id else None
        messages, size = self._windows
        floor = self._requests.floor
        self._send(Hello(token=self._token, resume=resume, window_messages=messages, window_bytes=size,
                         client=self._client, rid_floor=floor))  # fmt: skip
        self._acked_floor = floor

    def disconnected(self, now: float) -> None:
        """The transport is gone. Requests without an answer are kept and sent again after the next welcome."""
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
                self._take(frame, now, events)
                if self.state == CLOSED:
                    break
        except FrameError as error:
            events += self._end(error.code, error.reason)
            return events
        if frames:
            self._last_in = now
        return events

    def _take(self, frame: Frame, now: float, events: list[ClientEvent]) -> None:
        if isinstance(frame, Message) and self.state == OPEN:
            self._take_message(frame, now, events)
        elif isinstance(frame, Close):
            self.state = CLOSED
            events.append(Ended(frame.code, frame.reason, frame.retry_after_ms))
        elif self.state == HELLO:
            if not isinstance(frame, Welcome):
                raise FrameError(f"{type(frame).__name__.lower()} came, expected was welcome")
            self._take_welcome(frame, now, events)
        elif isinstance(frame, Ping):
            self._take_ping(frame, now, events)
        elif isinstance(frame, Gap):
            self._take_gap(frame, now, events)
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
            raise FrameError(f"{type(frame).__name__.lower()} is not for a server to send now")

    def _take_message(self, message: Message, now: float, events: list[ClientEvent]) -> None:
        seq, ts = message.seq, message.ts
        if seq <= self._received.seq and not self._is_fork(seq, ts, events):
            if not seq:
                raise FrameError("a message without a number")
            self.duplicates += 1
            if seq > self._confirmed.seq:
                self._confirm(seq, ts, now)
            if seq <= self._done.seq:  # the server does not know that this was handled: say it again
                self._acked = min(self._acked, seq - 1)
                self._ack_due = now
            return
        epoch, last, last_ts = self._received
        if seq != last + 1:
            raise FrameError(f"message {seq} came, expected was {last + 1}", CloseCode.INSUFFICIENT_STATE)
        if ts <= last_ts:
            raise FrameError(f"message {seq} is older than {last}", CloseCode.INSUFFICIENT_STATE)
        cursor = self._received = self._confirmed = Cursor(epoch, seq, ts)
        self._top_at = now
        if message.kind == Kind.TOMBSTONE:
            self._handed.append((seq, ts, 0, 0))
            events.append(Lost(seq, seq, "expired", cursor))
            return
        rid = message.rid if message.kind == Kind.RESPONSE else 0
        self._handed.append((seq, ts, len(message.body) + 64, rid))
        events.append(Received(message, cursor))

    def _is_fork(self, seq: int, ts: int, events: list[ClientEvent]) -> bool:
        """Whether another message than the one we were given has this number now. The server checks only the cursor
        that we resume with; a failover may have replaced what we received beyond it."""
        if all(number != seq or known == ts for number, known in self._known()):
            return False
        self._rewind(seq - 1, events)
        return True

    def _confirm(self, seq: int, ts: int, now: float) -> None:
        """The server's log has what we received up to here."""
        while self._unconfirmed and self._unconfirmed[0][0] <= seq:
            self._unconfirmed.popleft()
        self._confirmed = Cursor(self._received.epoch, seq, ts)
        self._top_at = now

    def _rewind(self, seq: int, events: list[ClientEvent]) -> None:
        """What we received behind this number is not in the log any more, handled or not."""
        while self._handed and self._handed[-1][0] > seq:
            self._handed.pop()
        while self._unconfirmed and self._unconfirmed[-1][0] > seq:
            self._unconfirmed.pop()
        epoch, cursors = self._done.epoch, (self._confirmed, self._done)
        earlier = (one for one in (*self._known(), *(cursor[1:] for cursor in cursors)) if one[0] <= seq)
        last = max(earlier, default=self._done[1:])
        self._received = Cursor(epoch, *last)
        self._confirmed, self._done = (self._received if one.seq > seq else one for one in cursors)
        events.append(Discontinuity("fork"))

    def _known(self) -> Iterator[tuple[int, int]]:
        """Number and time of what a later message can be compared with."""
        yield from self._unconfirmed
        for item in self._handed:
            yield item[:2]

    def _take_gap(self, gap: Gap, now: float, events: list[ClientEvent]) -> None:
        if any(seq == gap.last and gap.ts and ts != gap.ts for seq, ts in self._unconfirmed):
            self._rewind(max(gap.first - 1, self._confirmed.seq), events)
        last = self._received.seq
        if gap.first > last + 1:
            raise FrameError(f"gap from {gap.first}, expected was {last + 1}", CloseCode.INSUFFICIENT_STATE)
        if gap.last > self._confirmed.seq:
            self._confirm(gap.last, gap.ts, now)
        if gap.last <= last:
            return
        self._received = self._confirmed
        self._handed.append((gap.last, gap.ts, 0, 0))
        events.append(Lost(last + 1, gap.last, gap.reason, self._received))

    def _take_ping(self, ping: Ping, now: float, events: list[ClientEvent]) -> None:
        if ping.top > self._top:
            self._top, self._top_at = ping.top, now
        self._acked = max(self._acked, self._to_ack)
        self._send(Pong(ping.echo, self._to_ack))
        self._ack_due = None if self._acked_floor == self._requests.floor else self._ack_due
        self._unacked_bytes = 0
        if ping.token_expires_ms:
            events.append(TokenExpiring(ping.token_expires_ms))

    def _take_welcome(self, welcome: Welcome, now: float, events: list[ClientEvent]) -> None:
        had, changed = bool(self.session_id), welcome.sid != self.session_id
        self.state = OPEN
        self.session_id, self.secret, self._limits = welcome.sid, welcome.secret, welcome.limits
        self._patience = (welcome.heartbeat_ms + welcome.pong_ms) / 1000 + SLACK
        self._top, self._top_at = welcome.top, now
        self._acked = self._confirmed.seq
        events.append(Welcomed(welcome))
        if welcome.result != "resumed" or changed:
            self._received = self._done = self._confirmed = welcome.cursor
            self._acked = welcome.cursor.seq
            self._handed.clear()
            self._unconfirmed.clear()
            self._unacked_bytes = 0
            if had:
                events.append(Discontinuity(welcome.reason or "unknown"))
        elif welcome.top < self._received.seq:
            self._rewind(welcome.top, events)
        if had and changed:
            for request in self._requests.abandon_sent():
                events.append(
                    Rejected(
                        request.rid, ErrorCode.WORKER_LOST, False, 0, "the session is gone; the outcome is unknown"
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
        """Send a request, at once or after the next welcome, and return its number."""
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
        """A request that was rejected as retryable, under the same number. Without a connection it leaves after the
        next welcome anyway."""
        if self.state == OPEN and rid in self._requests:
            self._send(self._requests[rid])
            self._requests.sent(rid)

    def give_up(self, rid: int) -> None:
        """A request that was rejected as retryable is not sent again."""
        self._requests.answered(rid)

    def cancel(self, rid: int) -> None:
        """Ask to stop a request; it is still answered. Nothing is sent without a connection."""
        self._send_if_open(Cancel(rid))

    def join(self, group: str) -> None:
        self._send_if_open(Join(group))

    def leave(self, group: str) -> None:
        self._send_if_open(Leave(group))

    def authenticate(self, token: str) -> None:
        """A new token, for this connection and the next ones."""
        self._token = token
        self._send_if_open(Auth(token))

    def bye(self, code: int = 0) -> None:
        """End the session: the server deletes it."""
        self._send_if_open(Bye(code))

    def done(self, cursor: Cursor, now: float) -> None:
        """The application has handled everything up to this cursor; the ack leaves with others, within 100 ms."""
        if cursor.epoch != self._done.epoch or cursor.seq <= self._done.seq:
            return
        handed = self._handed
        # a cursor that is not (or no longer) among what was received: a failover has replaced it in the meantime
        if not handed or (handed[0][:2] != cursor[1:] and all(item[:2] != cursor[1:] for item in handed)):
            return
        self._done = cursor
        while handed and handed[0][0] <= cursor.seq:
            _, _, size, rid = handed.popleft()
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
        """Acks that are due, and whether the server is still there and still delivers."""
        if self.state == HELLO and now - self._since >= HELLO_TIMEOUT:
            return self._end(CloseCode.NO_PONG, f"no welcome within {HELLO_TIMEOUT:g} s")
        if self.state != OPEN:
            return []
        if self._ack_due is not None and now >= self._ack_due:
            self._ack()
        if now - self._last_in >= self._patience:
            return self._end(CloseCode.NO_PONG, f"nothing came for {self._patience:g} s")
        if self._behind and now - self._top_at >= STALL:
            return self._end(
                CloseCode.INSUFFICIENT_STATE, f"the log reaches {self._top}, nothing came after {self._confirmed.seq}"
            )
        return []

    @property
    def _behind(self) -> bool:
        """The server has more, and it is not our own slowness that keeps it from sending."""
        return self._top > self._confirmed.seq and self._confirmed.seq == self._acked

    def deadline(self) -> float:
        """When `tick` is due next."""
        if self.state == HELLO:
            return self._since + HELLO_TIMEOUT
        if self.state != OPEN:
            return float("inf")
        due = self._last_in + self._patience
        if self._behind:
            due = min(due, self._top_at + STALL)
        return due if self._ack_due is None else min(due, self._ack_due)

    # ---- out

    @property
    def has_output(self) -> bool:
        return bool(self._output.frames)

    def take_output(self) -> list[bytes]:
        """Everything that is to leave, in chunks."""
        return self._output.take_all()

    def _end(self, code: CloseCode, reason: str) -> list[ClientEvent]:
        self.state = CLOSED
        self._output.clear()
        return [Ended(int(code), reason[:120])]

    def _send_if_open(self, frame: Frame) -> None:
        if self.state == OPEN:
            self._send(frame)

    def _send(self, frame: Frame) -> None:
        self._output.control(self._codec.encode(frame))
