"""The cutter of the Redis protocol: whole messages, wherever the stream is cut."""

from __future__ import annotations

import hiredis
import pytest

from tests.support.resp import Frames, words

MESSAGES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":12\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$4\r\n\r\n$1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n*0\r\n",
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_messages_come_out_whole(size: int) -> None:
    stream, frames = b"".join(MESSAGES), Frames()
    found = [frame for at in range(0, len(stream), size) for frame in frames.feed(stream[at : at + size])]
    assert found == MESSAGES


def test_the_words_of_a_request() -> None:
    request = [b"EVALSHA", b"", b"a\r\nb", b"\x00"]
    assert words(hiredis.pack_command(tuple(request))) == request  # type: ignore[arg-type]
