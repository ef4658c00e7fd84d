"""Rates of the last seconds, from counters that only grow."""

from __future__ import annotations

from veredus.dashboard.recent import Recent
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
    recent.note([_info("mail", 100, 50, 5)])
    assert recent.rate("mail") == {"processed": 0, "failed": 0}
    for second, processed, failed in ((102, 70, 6), (103, 99, 9), (106, 110, 8)):  # the second comes too soon
        recent.note([_info("mail", second, processed, failed)])
    assert recent.rate("mail") == {"processed": 10.0, "failed": 0.5}
    recent.note([_info("mail", 108, 4, 1)])  # the counters were reset
    assert recent.rate("mail") == {"processed": 0, "failed": 0}
    recent.note([_info("mail", 110, 10, 1)])
    assert recent.rate("mail") == {"processed": 3.0, "failed": 0}
    assert recent.rate("other") == {"processed": 0, "failed": 0}


def test_queues_are_added_up_and_old_samples_go() -> None:
    recent = Recent()
    for n in range(20):
        counted = 10 * n if n > 9 else 0
        recent.note([_info("a", 100 + 2 * n, counted), _info("b", 100 + 2 * n, 4 * n, n)])
    assert recent.rate("a", "b") == {"processed": 7.0, "failed": 0.5}
