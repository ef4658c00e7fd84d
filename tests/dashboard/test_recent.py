"""Rates of the last minutes, from counters that only grow."""

from __future__ import annotations

from veredus.dashboard.recent import SAMPLES, Recent
from veredus.model.info import SECOND, QueueInfo


def _info(queue: str, second: float, processed: int, failed: int = 0) -> QueueInfo:
    names = "pending active scheduled retry archived completed aggregating groups processed failed latency_ns"
    zero = dict.fromkeys(names.split(), 0)
    return QueueInfo(
        queue=queue,
        processed_total=processed,
        failed_total=failed,
        paused=False,
        timestamp_ns=int(second * SECOND),
        **zero,
    )


def test_rates_are_differences_over_time() -> None:
    recent = Recent()
    for second, processed, failed in ((100, 50, 5), (102, 70, 6), (103, 99, 9), (106, 110, 6), (108, 4, 1)):
        recent.note([_info("mail", second, processed, failed)])  # the third comes too soon; the last two were reset
    assert recent.rates("mail") == [(102_000, 10.0, 0.5), (106_000, 10.0, 0.0), (108_000, 0.0, 0.0)]
    assert recent.rates("other") == []


def test_queues_are_added_up_and_old_samples_go() -> None:
    recent = Recent()
    for n in range(SAMPLES + 50):
        recent.note([_info("a", 100 + 2 * n, 10 * n), _info("b", 100 + 2 * n, 4 * n, n)])
    total = recent.total(["a", "b"])
    assert len(total) == SAMPLES - 1
    assert total[-1][1:] == (7.0, 0.5)
