"""Types that no worker serves: what is remembered of them."""

from __future__ import annotations

import asyncio

from veredus.process.outage_log import OutageLog
from veredus.worker.roles import unserved_reporter


class _Nobody:
    """Workers that know no type at all."""

    async def unserved(self, queue: str, types: list[str]) -> list[str]:
        return types


def test_a_type_per_task_does_not_fill_the_memory() -> None:
    async def main() -> None:
        role = unserved_reporter.UnservedReporter(_Nobody(), 1.0, OutageLog())  # type: ignore[arg-type]
        for round_ in range(3):
            role.met("q", [f"{round_}:{number}" for number in range(unserved_reporter.MOST)])
            await role.step()
            await role.step()
        assert len(role._met) + len(role._reported) <= unserved_reporter.MOST

    asyncio.run(main())
