"""What is expected of each kind of caller when a call fails. All that is not DONE stands here, with its reason."""

from __future__ import annotations

from tests.faults.scenario import Answer, Expect, Site
from tests.support.faults import NOSCRIPT, OOM, REPLY_LATE, SILENT, Fault
from veredus.store.connection import repeats

INTRODUCTION = "setname"
"""The first call on every connection. A server that is ready and refuses it is used all the same: not everybody may
name himself."""


def always_done(site: Site, fault: Fault) -> Expect:
    """Of workers and schedulers: promises.md says "not lost", "one owner", "every tick once", whatever a call meets."""
    return Expect.DONE


def producer(site: Site, fault: Fault) -> Expect:
    """promises.md: "not lost" from when "enqueue has returned"; an enqueue that raises has stored nothing. A client
    tries again while the server is away or not ready; a server without memory is neither, so the caller is told. When
    the client looks for a worker that keeps what was asked for, the task is stored already."""
    if fault is OOM and site.label not in (INTRODUCTION, "zrange", "get"):
        return Expect.TOLD
    if fault.then is OOM and site.label == "sadd":
        return Expect.EITHER  # queues of a batch are registered before anything of it is sent
    return Expect.DONE


def producer_of_many(site: Site, fault: Fault) -> Expect:
    """The tasks of one queue are stored together or not at all; those of several queues are not one step."""
    return Expect.PARTLY if site.label == "task-enqueue" and fault is OOM else producer(site, fault)


def asked_once(site: Site, fault: Fault) -> Expect:
    """Of tools: a change that a person asks for is asked of the server once, and the person is told. promises.md:
    "cancel stays" from when "cancel has answered": without an answer it may or may not have happened. What only reads
    is asked again if its connection broke."""
    if fault is NOSCRIPT or (fault is OOM and site.label == INTRODUCTION):
        return Expect.DONE
    if _only_reads(site.label) and fault.breaks:
        # A fresh connection answers before or after the timeout of the silent one.
        return Expect.EITHER if fault in (SILENT, REPLY_LATE) else Expect.DONE
    return Expect.UNKNOWN if fault.executed and site.label != INTRODUCTION else Expect.TOLD


def _only_reads(label: str) -> bool:
    return label.upper() in repeats.COMMANDS or label in {name.replace("/", "-") for name in repeats.SCRIPTS}


GROWS = ("sadd", "hgetall")
"""Registering queues and reading limits: a worker begins on a full server, or nobody could drain it."""


def starting(*labels: str) -> Answer:
    """What is expected of something that makes these calls before it begins."""
    return lambda site, fault: _starting(labels, site, fault)


def _starting(labels: tuple[str, ...], site: Site, fault: Fault) -> Expect:
    """A worker or scheduler that cannot reach the server as it begins says so and ends, as its `start` documents: it
    has taken nothing, and whoever started it starts it again. It waits for a server that is not ready yet or takes no
    more connections, and what only reads is asked again. Once it has begun, promises.md holds, and what a call meets is
    nobody's business but its own."""
    if site == Site(INTRODUCTION, 1, site.position):
        return Expect.TOLD if fault.breaks else Expect.DONE
    if site.label not in labels or (fault.is_error and fault is not OOM) or (fault is OOM and site.label in GROWS):
        return Expect.DONE
    if _only_reads(site.label) and fault is not OOM:
        return Expect.EITHER if fault in (SILENT, REPLY_LATE) else Expect.DONE
    return Expect.TOLD


def waiting(site: Site, fault: Fault) -> Expect:
    """Waiting for a result goes on through outages. A server that refuses the look itself is told to the caller; the
    task goes on."""
    return Expect.TOLD if fault is OOM and site.label == "result-await" else Expect.DONE


def in_steps(site: Site, fault: Fault) -> Expect:
    """Of tools that work in portions, as their docs say: what an error interrupts may be half done. Asked for again, it
    goes on."""
    expected = asked_once(site, fault)
    return expected if expected in (Expect.DONE, Expect.EITHER) else Expect.PARTLY
