"""`veredus demo`: the demonstration of `make demo`."""

from __future__ import annotations

import click


@click.command()
def demo() -> int:
    """See it work, under a minute: thousands of tasks, exact delays, retries, clients, a worker and a gateway killed.

    \b
    Example:
      veredus demo
    """
    from veredus.demo.show import run_demo

    return run_demo()
