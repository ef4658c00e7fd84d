"""Output: the frames to send on one connection, in order, joined into one chunk per flush."""

from __future__ import annotations

from veredus.link.ordered_queue import OrderedMessage


class Control:
    """A frame without a sequence number."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Output:
    """Frames in sending order. A flush takes at most `flush_messages` frames or `flush_bytes` bytes as one chunk."""

    __slots__ = ("_flush_bytes", "_flush_messages", "frames")

    def __init__(self, flush_messages: int, flush_bytes: int) -> None:
        self.frames: list[OrderedMessage | Control] = []
        self._flush_messages = flush_messages
        self._flush_bytes = flush_bytes

    def __len__(self) -> int:
        return len(self.frames)

    def control(self, data: bytes) -> None:
        self.frames.append(Control(data))

    def clear(self) -> None:
        self.frames.clear()

    def take(self) -> list[bytes]:
        """One chunk, or none. The rest stays for the next flush."""
        frames = self.frames
        if not frames:
            return []
        few = frames[: self._flush_messages]
        chunk = b"".join([frame.data for frame in few])
        if len(chunk) > self._flush_bytes:
            return [self._take_smaller(few)]
        if len(few) == len(frames):
            frames.clear()
        else:
            del frames[: len(few)]
        return [chunk]

    def take_all(self) -> list[bytes]:
        """Everything, at the end of a connection."""
        chunks = []
        while self.frames:
            chunks += self.take()
        return chunks

    def _take_smaller(self, few: list[OrderedMessage | Control]) -> bytes:
        size = count = 0
        for frame in few:
            size += len(frame.data)
            if count and size > self._flush_bytes:
                break
            count += 1
        chunk = b"".join([frame.data for frame in self.frames[:count]])
        del self.frames[:count]
        return chunk
