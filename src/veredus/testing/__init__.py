"""For users' tests: run an app's tasks inline, by the test's clock."""

from veredus.testing.clock import ManualClock
from veredus.testing.records import Run, Sent
from veredus.testing.rehearsal import BlockingRehearsal, Rehearsal

__all__ = ["BlockingRehearsal", "ManualClock", "Rehearsal", "Run", "Sent"]
