"""Frames in a byte stream: each is preceded by its length as a varint. And the splitter that finds them again."""

from __future__ import annotations

from veredus.model.frames import CloseCode, FrameError
from veredus.wire.varint import varint

NO_LIMIT = 2**31
_LONGEST_LENGTH = 4  # maximum bytes of a length: 2**28 - 1 is far beyond every limit


def with_length(frame: bytes) -> bytes:
    return varint(len(frame)) + frame


class TooManyFrames(FrameError):
    """One read contains more frames than are allowed at once."""

    def __init__(self, allowed: int) -> None:
        super().__init__(f"more than {allowed:,} frames at once", CloseCode.RATE_LIMITED)


class Splitter:
    """Splits received bytes into frames. A frame's length is checked before its bytes are awaited, and memory is
    used only for bytes that were received."""

    __slots__ = ("_held", "_max", "_need", "max_frames")

    def __init__(self, max_frame: int, max_frames: int) -> None:
        self._max = max_frame
        self.max_frames = max_frames
        self._held = bytearray()
        self._need = 0

    @property
    def held(self) -> int:
        """The number of bytes of an incomplete frame."""
        return len(self._held)

    def split(self, data: bytes) -> list[bytes]:
        held = self._held
        if held:
            held += data
            if len(held) < self._need:
                return []
            data = bytes(held)
            held.clear()
        frames: list[bytes] = []
        position, end, most = 0, len(data), self._max
        while position < end:
            length = data[position]
            start = position + 1
            if length > 127:
                length &= 127
                shift = 7
                while True:
                    if start - position == _LONGEST_LENGTH:
                        raise FrameError("a length of more than four bytes")
                    if start == end:
                        self._hold(data, position, 0)
                        return frames
                    digit = data[start]
                    start += 1
                    length |= (digit & 127) << shift
                    if digit < 128:
                        break
                    shift += 7
            if length > most:
                raise FrameError(f"a frame of {length:,} bytes, allowed are {most:,}", CloseCode.TOO_LARGE)
            if length == 0:
                raise FrameError("a frame of no bytes")
            stop = start + length
            if stop > end:
                self._hold(data, position, stop - position)
                return frames
            frames.append(data[start:stop])
            position = stop
            if len(frames) > self.max_frames:
                raise TooManyFrames(self.max_frames)
        return frames

    def _hold(self, data: bytes, position: int, need: int) -> None:
        self._held += data[position:] if position else data
        self._need = need
