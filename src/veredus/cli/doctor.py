"""`veredus doctor`: check the server and every queue, and repair damage."""

from __future__ import annotations

from collections import Counter

import click

from veredus.cli.common import confirm, console, echo_json, inspecting, json_option, plain, progress_bar
from veredus.inspector.findings import KINDS
from veredus.inspector.inspector import Inspector

SHOWN = 5
"""Findings of one kind per queue that are shown; the rest is counted. `--json` prints all."""
_MARKS = {"ok": "[green]ok[/]  ", "warn": "[yellow]warn[/]", "bad": "[red]bad[/] "}


@click.command()
@click.option("-q", "--queue", help="Only this queue.")
@click.option("--repair", is_flag=True, help="Repair damage. No repair loses a payload.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@inspecting
async def doctor(inspector: Inspector, queue: str | None, repair: bool, yes: bool, as_json: bool) -> int:
    """Check the server and every queue. Exits with 1 if something is broken.

    \b
    Examples:
      veredus doctor
      veredus doctor --repair
    """
    findings = await inspector.doctor.diagnose(queue)
    if repair:
        broken = [finding for finding in findings if finding.repairable]
        if broken:
            confirm(f"Repair {len(broken)} findings?", yes)
            with progress_bar("repairing") as progress:
                repaired = await inspector.doctor.repair_all(queue, progress=progress)
            click.echo(f"repaired {len(repaired)}", err=as_json)
        findings = await inspector.doctor.diagnose(queue)
    if as_json:
        echo_json([finding.as_dict() for finding in findings])
    else:
        out = console()
        alike: Counter[tuple[str, str]] = Counter()
        for finding in findings:
            alike[finding.queue, finding.kind] += 1
            if alike[finding.queue, finding.kind] <= SHOWN or not finding.repairable:
                text = finding.text + (f" -> {finding.advice}" if finding.advice else "")
                out.print(_MARKS[finding.level], plain(text), soft_wrap=True)
        for (name, kind), count in alike.items():
            if count > SHOWN and kind in KINDS:
                text = f"queue {name!r}: {count - SHOWN:,} more of kind {kind} -> {KINDS[kind][2]}"
                out.print(_MARKS[KINDS[kind][0]], plain(text), soft_wrap=True)
        if not any(finding.repairable for finding in findings):
            out.print("no damage found in the queues")
    return 1 if any(finding.level == "bad" for finding in findings) else 0
