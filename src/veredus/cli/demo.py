"""`veredus demo`."""

from __future__ import annotations

import click


@click.command()
def demo() -> int:
    """Watch it work for a minute: thousands of tasks, exact delays, retries, clients, a killed worker and gateway.

    \b
    Example:
      veredus demo
    """
    from veredus.demo.show import run_demo

    return run_demo()
