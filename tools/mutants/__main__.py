"""`python -m tools.mutants [LIST ...]`: apply each recorded mutation to a copy of the project and run its tests.

Ends with 0 when the tests noticed every one, 1 when some survived or could not be tried, 2 when nothing could be tried.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tools.mutants.copies import CannotCopy
from tools.mutants.entries import read, short
from tools.mutants.judging import NAMED_LIMIT, Judgement, RedBaseline, Round
from tools.mutants.running import ERROR, KILLED, SURVIVED, TIMED_OUT, Stopped

ROOT = Path(__file__).parents[2]


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    options = _arguments(argv)
    lists = [path.resolve() for path in options.lists] or sorted((root / "tests/mutants").glob("*.toml"))
    mutants, problems = read(root, lists)
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        print(f"{len(problems)} problems in the lists; nothing was run", file=sys.stderr)
        return 2
    if options.check:
        return 0
    mutants = [
        mutant for mutant in mutants if options.only in f"{mutant.place} {mutant.breaks} {' '.join(mutant.tests)}"
    ]
    if not mutants:
        print("there is no such mutant" if options.only else "the lists hold no mutants", file=sys.stderr)
        return 2
    begin = time.monotonic()
    jobs = min(options.jobs, len(mutants))
    try:
        with Round(root, jobs=jobs, whole=options.whole, limit=options.limit) as round_:
            _say(f"{len(mutants)} mutants of {len(lists)} lists; first their tests without any ...")
            _say(f"they pass, in {round_.baseline(mutants).seconds:.0f} s")
            told = _Progress(len(mutants))
            done = round_.judge(mutants, told)
    except (CannotCopy, RedBaseline) as exc:
        print(exc, file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Stopped):
        print("stopped; the copies are removed", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(_as_json(done), indent=2))
    else:
        print(_table(done, time.monotonic() - begin))
    return 1 if any(one.verdict in (SURVIVED, ERROR) for one in done) else 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lists", nargs="*", type=Path, metavar="LIST", help="TOML files; else tests/mutants/*.toml")
    parser.add_argument("--only", default="", metavar="TEXT", help="those with this text in place, breaks or tests")
    parser.add_argument("--jobs", type=_positive, default=1, metavar="N", help="copies to work in at once")
    parser.add_argument("--limit", type=float, default=NAMED_LIMIT, metavar="S", help="seconds for a mutant's tests")
    parser.add_argument("--whole", action="store_true", help="try what survives its tests on the whole suite")
    parser.add_argument("--check", action="store_true", help="only see whether the lists fit the source")
    parser.add_argument("--json", action="store_true", help="the results as JSON on stdout")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"is {number}, at least 1 is needed")
    return number


def _as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    """Progress; stdout is for the result."""
    print(text, file=sys.stderr, flush=True)


class _Progress:
    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def __call__(self, one: Judgement) -> None:
        self._done += 1
        mutant = one.mutant
        _say(
            f"[{self._done:>{len(str(self._total))}}/{self._total}] {one.verdict:<9} {one.seconds:6.1f} s  "
            f"{mutant.place.removeprefix('src/')}  {short(mutant.breaks, 90)}"
        )


def _table(done: Sequence[Judgement], seconds: float) -> str:
    lines = []
    for verdict, title in ((SURVIVED, "Survivors: no test notices"), (ERROR, "Errors: these could not be tried")):
        chosen = [one for one in done if one.verdict == verdict]
        if chosen:
            lines += ["", f"{title}"]
        for one in chosen:
            mutant = one.mutant
            lines += [
                f"  {mutant.place}  {mutant.breaks}",
                f"      {short(mutant.old)}  ->  {short(mutant.new) or '(nothing)'}",
                f"      {mutant.source}, entry {mutant.number}{': ' + one.by if one.by else ''}",
            ]
    lines += ["", f"{'area':<12}{KILLED:>10}{TIMED_OUT:>11}{SURVIVED:>10}{ERROR:>7}"]
    areas = sorted({one.mutant.area for one in done})
    for area in [*areas, "all"] if len(areas) > 1 else areas:
        count = Counter(one.verdict for one in done if area in (one.mutant.area, "all"))
        lines.append(f"{area:<12}{count[KILLED]:>10}{count[TIMED_OUT]:>11}{count[SURVIVED]:>10}{count[ERROR]:>7}")
    return "\n".join([*lines, f"{len(done)} mutants in {seconds:.0f} s"])


def _as_json(done: Sequence[Judgement]) -> dict[str, object]:
    return {
        "counts": Counter(one.verdict for one in done),
        "mutants": [
            {
                "list": one.mutant.source, "entry": one.mutant.number, "file": one.mutant.file, "line": one.mutant.line,
                "area": one.mutant.area, "breaks": one.mutant.breaks, "old": one.mutant.old, "new": one.mutant.new,
                "verdict": one.verdict, "seconds": round(one.seconds, 2), "by": one.by,
            }
            for one in done
        ],
    }  # fmt: skip


def run_as_program(argv: Sequence[str], root: Path = ROOT) -> int:
    """`main`, stopped by SIGTERM as by Ctrl-C."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    return main(argv, root)


if __name__ == "__main__":
    sys.exit(run_as_program(sys.argv[1:]))
