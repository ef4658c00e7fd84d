"""The token with which a QUIC client shows that it receives packets at its address."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.packet import QuicProtocolVersion, pull_quic_header

from veredus.link.transports.quic_retry import Retries

ADDRESS = ("192.0.2.1", 4433)


def _second_packet(retries: Retries, now: float, original: bytes = b"original") -> Any:
    """The header of what a client sends that was told to retry."""
    first = SimpleNamespace(version=QuicProtocolVersion.VERSION_1, destination_cid=original, source_cid=b"client")
    said = pull_quic_header(Buffer(data=retries.packet(first, ADDRESS, now)), host_cid_length=8)
    assert said.destination_cid == b"client"
    return SimpleNamespace(token=said.token, destination_cid=said.source_cid)


@pytest.mark.parametrize("original", [b"original", b"12345678901234567890", b""])
def test_a_token_names_the_connection_that_the_client_began_with(original: bytes) -> None:
    retries = Retries()
    assert retries.original_id(_second_packet(retries, 100.9, original), ADDRESS, 101.0) == original


@pytest.mark.parametrize(("now", "is_valid"), [(99.9, False), (100.0, True), (110.9, True), (111.0, False)])
def test_a_token_is_valid_for_ten_seconds(now: float, is_valid: bool) -> None:
    retries = Retries()
    assert (retries.original_id(_second_packet(retries, 100.9), ADDRESS, now) is not None) is is_valid


@pytest.mark.parametrize("address", [("192.0.2.1", 4434), ("192.0.2.2", 4433), ("192.0.2.1 4433", ""), ("", 4433)])
def test_a_token_is_valid_for_one_address(address: tuple[Any, ...]) -> None:
    retries = Retries()
    assert retries.original_id(_second_packet(retries, 100.0), address, 100.0) is None


@pytest.mark.parametrize("place", [0, 7, 8, 9, 16, -17, -16, -1])
def test_a_token_that_was_changed_is_not_valid(place: int) -> None:
    retries = Retries()
    header = _second_packet(retries, 100.0)
    changed = bytearray(header.token)
    changed[place] ^= 1
    header.token = bytes(changed)
    assert retries.original_id(header, ADDRESS, 100.0) is None


def test_a_token_is_valid_whole_for_one_connection_and_in_one_process() -> None:
    retries = Retries()
    header = _second_packet(retries, 100.0)
    assert Retries().original_id(header, ADDRESS, 100.0) is None
    for length in range(len(header.token)):
        cut = SimpleNamespace(token=header.token[:length], destination_cid=header.destination_cid)
        assert retries.original_id(cut, ADDRESS, 100.0) is None
    header.destination_cid = b"another1"
    assert retries.original_id(header, ADDRESS, 100.0) is None
