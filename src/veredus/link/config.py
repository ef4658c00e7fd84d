"""LinkConfig: settings of one connection's link, with the defaults of both ends."""

from __future__ import annotations

from dataclasses import dataclass, fields

from veredus.errors import ConfigError
from veredus.model.checks import rate, seconds, whole
from veredus.model.delivery import (
    CLEANUP_INTERVAL,
    MAX_OPEN_REQUESTS,
    MAX_QUEUE_SIZE,
    MAX_RETRIES,
    MESSAGE_TIMEOUT,
    WINDOW_BYTES,
    WINDOW_MESSAGES,
)
from veredus.model.frames import MAX_FRAME_FROM_CLIENT, MAX_FRAME_FROM_SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """Times in seconds."""

    window_messages: int = WINDOW_MESSAGES
    """Messages in flight; a client may ask for less."""
    window_bytes: int = WINDOW_BYTES
    heartbeat: float = 25.0
    pong: float = 10.0
    hello_timeout: float = 10.0
    slow_warn: float = 30.0
    slow_close: float = 60.0
    message_timeout: float = MESSAGE_TIMEOUT
    max_retries: int = MAX_RETRIES
    cleanup_interval: float = CLEANUP_INTERVAL
    max_queue_size: int = MAX_QUEUE_SIZE
    token_warning: float = 60.0
    max_frame: int = MAX_FRAME_FROM_CLIENT
    max_frames: int = 1024
    """Frames in one WebSocket message, or in one read of a stream."""
    frame_rate: float = 500.0
    """Frames per second except acks and pongs; more end the connection."""
    frame_burst: int = 1000
    ack_rate: float = 1000.0
    """Acks and pongs without news per second; more end the connection."""
    ack_burst: int = 2000
    max_open_requests: int = MAX_OPEN_REQUESTS
    flush_messages: int = 64
    flush_bytes: int = 16 * 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                whole(field.name, value, least=0 if field.name == "max_retries" else 1)
            elif field.name.endswith("_rate"):
                rate(field.name, value)
            else:
                object.__setattr__(self, field.name, seconds(field.name, value, endless=True))
        if self.slow_close < self.slow_warn:
            raise ConfigError("slow_close", self.slow_close, f"at least slow_warn ({self.slow_warn})")
        if self.max_frame > MAX_FRAME_FROM_SERVER:
            raise ConfigError("max_frame", self.max_frame, f"at most {MAX_FRAME_FROM_SERVER}")
