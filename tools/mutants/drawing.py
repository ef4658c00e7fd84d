"""`python -m tools.mutants.drawing 60 --seed 7 > list.toml`: small random changes of the source, as a list for
`make mutants LIST=list.toml`. It shows what the tests notice of changes that nobody chose.

Some of them change nothing that anybody could observe; whoever reads what survived tells these apart.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
AREAS = ("lua", "store", "worker", "gateway", "link", "peer")

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_LUA = (
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" == ", " ~= "),
    (r" ~= ", " == "),
    (r" and ", " or "),
    (r" or ", " and "),
    (r"\bnot ", ""),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r"math\.min", "math.max"),
    (r"math\.max", "math.min"),
    (r"\bmath\.floor", "math.ceil"),
)
_CALL = re.compile(r"^ *(redis\.call\(.*\)|[a-z_]+\(.*\))$")


class Change(NamedTuple):
    start: int
    end: int
    """Of the text that goes."""
    new: str


def draw(root: Path, count: int, seed: int, areas: Sequence[str] = AREAS) -> list[dict[str, str]]:
    """`count` entries, spread evenly over the areas as far as they have any."""
    rng, entries = random.Random(seed), list[dict[str, str]]()
    for number, area in enumerate(areas):
        share = count // len(areas) + (number < count % len(areas))
        found = [
            entry
            for path in sorted((root / "src/veredus" / area).rglob("*"))
            if path.suffix in (".py", ".lua")
            for entry in _entries(path, path.relative_to(root).as_posix())
        ]
        entries += rng.sample(found, min(share, len(found)))
    return entries


def _entries(path: Path, name: str) -> Iterator[dict[str, str]]:
    text = path.read_text(encoding="utf-8")
    for change in _python(text) if path.suffix == ".py" else _lua(text):
        first = text.rfind("\n", 0, change.start) + 1
        last = (text.find("\n", change.end) + len(text)) % len(text) + 1
        while text.count(text[first:last]) > 1 and first:  # one line more, until it is the only place
            first = text.rfind("\n", 0, first - 1) + 1
        new = text[first : change.start] + change.new + text[change.end : last]
        line = text.count("\n", 0, change.start) + 1
        was = " ".join(text[change.start : change.end].split())[:60]
        yield {
            "file": name,
            "old": text[first:last],
            "new": new,
            "breaks": f"line {line}: {was!r} becomes {change.new!r}",
        }


def _python(text: str) -> Iterator[Change]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines(keepends=True)

    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            old, new = _COMPARED[type(node.ops[0])]
            yield from _between(text, span(node.left)[1], span(node.comparators[0])[0], old, new)
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from _between(text, span(node.values[0])[1], span(node.values[1])[0], old, new)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start = span(node)[0]
            yield Change(start, start + len("not "), "")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            if not any(isinstance(side, ast.Constant | ast.JoinedStr | ast.List) for side in (node.left, node.right)):
                yield from _between(text, span(node.left)[1], span(node.right)[0], old, new)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            yield Change(*span(node.func), "max" if node.func.id == "min" else "min")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
            call = text[slice(*span(node))]
            if not call.startswith(("logger.", "log.", "console.")):
                yield Change(*span(node), "pass")
        elif isinstance(node, ast.Continue):
            yield Change(*span(node), "break")


def _between(text: str, start: int, end: int, old: str, new: str) -> Iterator[Change]:
    for found in re.finditer(rf"(?<!\w){re.escape(old)}(?!\w)", text[start:end]):
        yield Change(start + found.start(), start + found.end(), new)
        return


def _lua(text: str) -> Iterator[Change]:
    place = 0
    for line in text.splitlines(keepends=True):
        code = line.partition("--")[0].rstrip()
        for pattern, new in _LUA:
            for found in re.finditer(pattern, code):
                yield Change(place + found.start(), place + found.end(), new)
        if _CALL.match(code):
            yield Change(place + len(code) - len(code.lstrip()), place + len(code), "")
        place += len(line)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.drawing", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("count", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other changes")
    parser.add_argument("--area", action="append", choices=AREAS, help="only from there; may be given several times")
    options = parser.parse_args(argv)
    for entry in draw(ROOT, options.count, options.seed, options.area or AREAS):
        print("[[mutant]]")
        for key, value in entry.items():
            print(f"{key} = {json.dumps(value, ensure_ascii=False)}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
