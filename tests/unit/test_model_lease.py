"""A lease: valid until its end, renewed as far as its task may run, and lost for good."""

from __future__ import annotations

import math

import pytest

from veredus.model.lease import Lease


def test_it_is_valid_until_its_end() -> None:
    lease = Lease(10.0, math.inf)
    assert lease.is_valid(9.999)
    assert not lease.is_valid(10.0)


def test_a_lease_that_ran_out_but_that_nobody_claimed_can_be_renewed() -> None:
    lease = Lease(10.0, math.inf)
    assert not lease.is_valid(15.0)
    assert not lease.lost
    lease.renew(30.0)
    assert lease.is_valid(29.9)
    assert not lease.is_valid(30.0)


@pytest.mark.parametrize(
    ("now", "bounded", "seconds"),
    [
        (0.0, True, 12.0),
        (88.0, True, 12.0),
        (90.0, True, 10.0),
        (99.5, True, 0.5),
        (100.0, True, 0.0),
        (150.0, True, 0.0),
        (90.0, False, 12.0),
        (150.0, False, 12.0),
    ],
)
def test_if_bounded_it_is_never_renewed_past_its_latest_end(now: float, bounded: bool, seconds: float) -> None:
    assert Lease(12.0, 100.0).renewal(now, 12.0, bounded=bounded) == seconds


def test_it_is_overrun_from_its_latest_end_on() -> None:
    lease = Lease(12.0, 100.0)
    assert not lease.is_overrun(99.9)
    assert lease.is_overrun(100.0)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_lost_lease_is_neither_valid_nor_renewed_whatever_time_was_left(bounded: bool) -> None:
    lease = Lease(50.0, 100.0)
    lease.lose()
    assert lease.lost
    assert not lease.is_valid(5.0)
    assert lease.renewal(5.0, 12.0, bounded=bounded) == 0.0
    lease.renew(60.0)  # a beat that was under way
    assert lease.lost
    assert not lease.is_valid(5.0)
