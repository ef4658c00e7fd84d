"""The lists of mutants: TOML files with one `[[mutant]]` per change that a test must catch; read and checked."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REQUIRED = ("file", "old", "new", "breaks")
_ALLOWED = (*_REQUIRED, "tests")


@dataclass(frozen=True)
class Mutant:
    """One change of one file, the behaviour that it takes away and the tests that must fail."""

    source: str
    number: int
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def area(self) -> str:
        """The room that it is in, e.g. `lua` for src/veredus/lua/task/done.lua."""
        parts = Path(self.file).parts
        inside = parts[2:] if parts[0] == "src" and len(parts) > 2 else parts
        return inside[0].removesuffix(".py")


def read(root: Path, lists: list[Path]) -> tuple[list[Mutant], list[str]]:
    """All mutants of these lists, and what is wrong with them: one line each, with list, entry and field."""
    found: list[Mutant] = []
    problems: list[str] = []
    for path in lists:
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
            problems.append(f"{name}: cannot be read: {exc}")
            continue
        entries = content.get("mutant", [])
        if set(content) - {"mutant"} or not isinstance(entries, list):
            problems.append(f"{name}: holds {sorted(content)}; a list holds [[mutant]] tables and nothing else")
            continue
        for number, entry in enumerate(entries, 1):
            mutant, wrong = _check(root, name, number, entry)
            problems += [f"{name}: entry {number}{_says(entry)}: {text}" for text in wrong]
            if mutant is not None:
                found.append(mutant)
    seen: dict[tuple[str, str, str], Mutant] = {}
    for mutant in found:
        first = seen.setdefault((mutant.file, mutant.old, mutant.new), mutant)
        if first is not mutant:
            problems.append(
                f"{mutant.source}: entry {mutant.number}: is the same change as {first.source}, entry {first.number}"
            )
    return found, problems


def _says(entry: Any) -> str:
    breaks = entry.get("breaks") if isinstance(entry, dict) else None
    return f" ({breaks})" if isinstance(breaks, str) else ""


def _check(root: Path, source: str, number: int, entry: Any) -> tuple[Mutant | None, list[str]]:
    if not isinstance(entry, dict):
        return None, [f"is {entry!r}, not a table"]
    wrong = [f"{key}: unknown; allowed are {', '.join(_ALLOWED)}" for key in entry if key not in _ALLOWED]
    for key in _REQUIRED:
        if not isinstance(entry.get(key), str):
            wrong.append(f"{key}: is {entry.get(key)!r}, a string is needed")
        elif key != "new" and not entry[key].strip():
            wrong.append(f"{key}: is empty")
    tests = entry.get("tests", [])
    if (
        not isinstance(tests, list)
        or not all(isinstance(test, str) for test in tests)
        or ("tests" in entry and not tests)
    ):
        wrong.append(f"tests: is {tests!r}, a list of pytest's names is needed; leave it out to use the likely ones")
        tests = []
    for test in tests:
        if not (root / test.partition("::")[0]).exists():
            wrong.append(f"tests: {test}: there is no such file")
    if wrong:
        return None, wrong
    file, old, new = entry["file"], entry["old"], entry["new"]
    path = (root / file).resolve()
    if not path.is_relative_to(root.resolve()) or not path.is_file():
        return None, [f"file: {file}: there is no such file in the project"]
    text = path.read_text(encoding="utf-8")
    times = text.count(old)
    if times != 1:
        how = "no longer occurs" if times == 0 else f"occurs {times} times"
        return None, [f"old: {how} in {file}; it must occur exactly once: {short(old)}"]
    if old == new:
        return None, ["new: is the same as old"]
    if path.suffix == ".py":
        try:
            compile(text.replace(old, new), file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as exc:
            return None, [f"new: what results is not Python: {exc}"]
    line = text.count("\n", 0, text.index(old) + len(old) - len(old.lstrip())) + 1
    return Mutant(source, number, file, old, new, entry["breaks"], tuple(tests), line), []


def short(text: str, most: int = 60) -> str:
    """In one line."""
    plain = " ".join(text.split())
    return plain if len(plain) <= most else plain[: most - 3] + "..."
