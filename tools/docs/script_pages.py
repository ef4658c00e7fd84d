"""A page per Lua script: purpose, keys, arguments, answer, callers, steps and why, a sequence diagram, source."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tools.docs.lua_tree import Node, Tree, commands
from tools.docs.sequence import draw
from veredus.store.connection.script_header import read_header

ROOT = Path(__file__).parents[2]
LUA = ROOT / "src/veredus/lua"


def pages() -> dict[str, str]:
    """All pages, by their path below `reference/`."""
    found = {f"scripts/{name.replace('/', '-')}.md": page(name) for name in names()}
    found["scripts/index.md"] = _index()
    return found


def names() -> list[str]:
    """`task/retry`, ...; includes are no scripts of their own."""
    files = sorted(LUA.glob("*/*.lua"))
    return [f"{path.parent.name}/{path.stem}" for path in files if path.parent.name != "include"]


def page(name: str) -> str:
    source = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    header = read_header(source)
    tree = Tree(source, _known(header.includes))
    returns = _line(source, "RETURNS")
    callers = callers_of(name)
    first = callers[0].partition("`")[2].partition(" ")[0].strip("`") if callers else "Python"
    picture = draw(
        Path(first).name, f"{name}.lua", f"EVALSHA, {len(header.keys.split())} keys", tree.nodes, returns or "nothing"
    )
    parts = [
        f"# {name}",
        f"`lua/{name}.lua`: {purpose(source)} ([all scripts](index.md))",
        "| | |\n|---|---|\n"
        + "\n".join(
            f"| {what} | {text} |"
            for what, text in (
                ("KEYS", _code(header.keys) or "none"),
                ("ARGV", _code(header.args) or "none"),
                ("returns", _cell(returns) or "nothing"),
                ("called by", "<br>".join(callers) or "other scripts"),
                ("includes", ", ".join(f"[{one}](index.md#{one})" for one in header.includes) or "none"),
                ("tests", ", ".join(f"`{path}`" for path in tests_of(name)) or "through its callers"),
            )
        ),
    ]
    if why := _prose(source):
        parts += ["## Why", why]
    if keys := _keys(header.keys):
        parts += ["## Keys", keys]
    parts += ["## Sequence", picture, "## Steps", _steps(tree.nodes) or "It reads and answers in one expression."]
    parts += ["## Source", f"```lua\n{source.rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def purpose(source: str) -> str:
    """The first prose lines, up to the header."""
    said = []
    for line in re.sub(r"^-- NEEDS.*\n\n", "", source).splitlines():
        if re.match(r"-- (KEYS|ARGV|RETURNS|include:)", line) or not line.startswith("--"):
            break
        said.append(line.removeprefix("--").strip())
    return _escape(" ".join(said).partition(": ")[2] or " ".join(said))


def callers_of(name: str) -> list[str]:
    """Modules of the store that load the script, with the methods in which it is run."""
    found = []
    for path in sorted((ROOT / "src/veredus/store").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        bound = re.search(rf'^(\w+) = load\(\s*"{re.escape(name)}"', source, re.MULTILINE)
        if bound is None:
            continue
        methods = _users(ast.parse(source), bound[1])
        found.append(f"`store/{path.name}`" + (" " + ", ".join(f"`{one}`" for one in methods) if methods else ""))
    return found


def tests_of(name: str) -> list[str]:
    room, verb = name.split("/")
    return [
        str(path.relative_to(ROOT))
        for pattern in (f"lua/test_{verb}.py", f"lua/test_{room}_{verb}.py", f"{room}*/test_{verb}.py")
        for path in sorted((ROOT / "tests").glob(pattern))
    ]


@cache
def _includes() -> dict[str, Tree]:
    """Includes may use each other, so each is read with what is known of all others."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted((LUA / "include").glob("*.lua"))}
    known: dict[str, str] = {}
    trees: dict[str, Tree] = {}
    for _ in range(3):  # deep enough for what calls what
        trees = {name: Tree(source, known) for name, source in sources.items()}
        known = {name: commands(body) for tree in trees.values() for name, body in tree.functions.items()}
    return trees


def _known(includes: tuple[str, ...]) -> dict[str, str]:
    return {
        name: ran for one in includes for name, body in _includes()[one].functions.items() if (ran := commands(body))
    }


def _index() -> str:
    parts = [
        "# Scripts",
        "Every change of state is one of these: atomic, checked before it writes, by the clock of Redis. The pages are"
        " made from the files in `src/veredus/lua`; diagrams and steps follow the source line by line.",
    ]
    rooms: dict[str, list[str]] = {}
    for name in names():
        rooms.setdefault(name.split("/")[0], []).append(name)
    for room, scripts in rooms.items():
        rows = "\n".join(
            f"| [{name}]({name.replace('/', '-')}.md) | {purpose((LUA / f'{name}.lua').read_text())} |"
            for name in scripts
        )
        parts += [f"## {room}", f"| script | what it does |\n|---|---|\n{rows}"]
    parts += ["## Included", "Functions that several scripts share; the loader puts them in front."]
    for name, tree in _includes().items():
        source = (LUA / f"include/{name}.lua").read_text(encoding="utf-8")
        used = [f"[{one}]({one.replace('/', '-')}.md)" for one in names() if name in _included(one)]
        functions = ", ".join(
            f"`{function}`" + (f" ({ran})" if (ran := commands(body)) else "")
            for function, body in tree.functions.items()
        )
        parts += [
            f"### {name}",
            purpose(source),
            f"Functions: {functions or 'none'}. Used by {', '.join(used) or 'none'}.",
        ]
    return "\n\n".join(parts) + "\n"


def _included(name: str) -> tuple[str, ...]:
    return read_header((LUA / f"{name}.lua").read_text(encoding="utf-8")).includes


def _users(tree: ast.Module, constant: str) -> list[str]:
    found = []
    for outer in tree.body:
        for inner in outer.body if isinstance(outer, ast.ClassDef) else [outer]:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                isinstance(node, ast.Name) and node.id == constant for node in ast.walk(inner)
            ):
                found.append(f"{outer.name}.{inner.name}" if isinstance(outer, ast.ClassDef) else inner.name)
    return found


def _line(source: str, kind: str) -> str:
    found = re.search(rf"^-- {kind}[ \t]*(.*)$", source, re.MULTILINE)
    return found[1].strip() if found else ""


def _prose(source: str) -> str:
    """What the head says beyond its fixed lines."""
    said, fixed = [], False
    for line in source.splitlines():
        if not line.startswith("--"):
            break
        if re.match(r"-- (KEYS|ARGV|RETURNS|NEEDS|include:)", line):
            fixed = True
        elif fixed:
            said.append(line.removeprefix("--").strip())
    return _escape(" ".join(said))


def _keys(named: str) -> str:
    from tools.docs.key_pages import meaning

    rows = [f"| `{key}` | {text} |" for key in re.findall(r"\w+", named) if (text := meaning(key))]
    return "| key | what it is |\n|---|---|\n" + "\n".join(dict.fromkeys(rows)) if rows else ""


def _steps(nodes: list[Node], depth: int = 0) -> str:
    lines = []
    for node, following in zip(nodes, [*nodes[1:], None], strict=True):
        has_else = following is not None and following.kind == "branch" and following.text.startswith("else")
        if node.kind in ("loop", "branch") and not node.children and not node.why and not has_else:
            continue
        if node.kind == "note":
            text = _escape(node.text)
        elif node.kind == "use":
            name, _, ran = node.text.partition(": ")
            text = f"`{name}` ({ran})" if ran else f"`{name}`"
        elif node.kind == "return":
            text = f"return `{node.text}`" if node.text else "return"
        else:
            text = f"`{node.text}`"
        lines.append("    " * depth + f"- {text}" + (f": {_escape(node.why)}" if node.why else ""))
        if node.children and (inside := _steps(node.children, depth + 1)):
            lines.append(inside)
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("|", "\\|")
