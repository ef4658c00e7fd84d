"""A lease: valid until its deadline, moved only while valid, told once, safe between threads."""

from __future__ import annotations

import threading

import pytest

from veredus.model.lease import Lease


def test_it_is_valid_up_to_and_including_its_deadline() -> None:
    lease = Lease(10.0)
    assert lease.deadline == 10.0
    assert lease.is_valid(9.9)
    assert lease.is_valid(10.0)
    assert not lease.is_valid(10.001)
    assert not lease.done.is_set()


def test_reset_moves_the_deadline_of_a_valid_lease_only() -> None:
    lease = Lease(10.0)
    assert lease.reset(20.0, 10.0)
    assert lease.deadline == 20.0
    assert not lease.reset(40.0, 20.5)
    assert lease.deadline == 20.0


def test_an_expiration_is_told_once_and_not_before() -> None:
    lease = Lease(10.0)
    assert not lease.notify_expiration(10.0)
    assert not lease.done.is_set()
    assert lease.notify_expiration(10.1)
    assert lease.done.is_set()
    assert not lease.notify_expiration(10.2)
    assert not lease.is_valid(5.0), "told is told, whatever the clock says"


@pytest.mark.parametrize("asked_before", [True, False])
def test_whoever_waits_hears_of_it(asked_before: bool) -> None:
    lease = Lease(1.0)
    done = lease.done if asked_before else None
    lease.notify_expiration(2.0)
    assert (done or lease.done).is_set()
    assert lease.done is lease.done


def test_an_expired_lease_that_nobody_claimed_can_be_revived_until_told() -> None:
    lease = Lease(10.0)
    assert not lease.is_valid(15.0)
    assert lease.revive(30.0)
    assert lease.is_valid(15.0)
    assert lease.notify_expiration(31.0)
    assert not lease.revive(50.0)
    assert not lease.reset(50.0, 5.0)
    assert lease.deadline == 30.0


def test_a_lost_lease_ends_at_once() -> None:
    lease = Lease(100.0)
    assert lease.lose(5.0)
    assert not lease.is_valid(5.0)
    assert lease.done.is_set()
    assert lease.deadline < 5.0
    assert not lease.lose(6.0)


def test_of_many_threads_one_tells() -> None:
    for _ in range(50):
        lease, told, start = Lease(1.0), [], threading.Barrier(8)

        def tell(lease: Lease = lease, told: list[bool] = told, start: threading.Barrier = start) -> None:
            start.wait()
            told.append(lease.notify_expiration(2.0))

        threads = [threading.Thread(target=tell) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told.count(True) == 1
