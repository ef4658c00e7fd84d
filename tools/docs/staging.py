"""All pages of the site in one folder: those of docs/, the reference, the examples and whatever files they link to."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath

from tools.docs import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROJECT = {
    f"{name}.md": f"project/{name.lower()}.md"
    for name in ("AGENTS", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
}
LINK = re.compile(r"(?<!\\)(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
_LANGUAGES = {".py": "python", ".js": "js", ".proto": "protobuf", ".lua": "lua", ".md": "markdown", ".json": "json"} | {
    ".yml": "yaml",
    ".yaml": "yaml",
    ".service": "ini",
}


def stage(folder: Path) -> set[str]:
    """Write everything; the paths of the pages."""
    shutil.rmtree(folder, ignore_errors=True)
    written = _Staging(folder)
    for path in sorted(DOCS.rglob("*")):
        if path.suffix == ".md":
            written.page(path, path.relative_to(DOCS).as_posix())
        elif path.is_file():
            written.copy(path, path.relative_to(DOCS).as_posix())
    for name, target in PROJECT.items():
        written.page(ROOT / name, target)
    for target, text in reference.pages().items():
        written.text(f"reference/{target}", text)
    written.text("examples/index.md", _examples_index())
    for path in example_files():
        written.file(path)
    written.finish()
    return written.pages


def example_files() -> list[Path]:
    return sorted(path for suffix in ("*.py", "*.go") for path in (ROOT / "examples").rglob(suffix) if path.is_file())


def opening(path: Path) -> str:
    """The first sentence of a Python or Go file."""
    text = path.read_text(encoding="utf-8")
    found = re.match(r'"""(.*?)(?:\n\n|""")', text, re.DOTALL) or re.match(r"// (?:Command \w+ )?([^\n]*)", text)
    return " ".join(found[1].split()) if found else ""


def _examples_index() -> str:
    rows = "\n".join(
        f"| [{path.relative_to(ROOT / 'examples')}](../../{path.relative_to(ROOT)}) | {opening(path)} |"
        for path in example_files()
    )
    return (
        "# Examples\n\nEach runs as it is, needs no server, and is run by the tests (the Go file is not: its half in"
        " Python is).\n\n"
        f"| file | what it shows |\n|---|---|\n{rows}\n"
    )


class _Staging:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pages: set[str] = set()
        self._files: list[Path] = []

    def page(self, source: Path, target: str) -> None:
        self._write(target, source.read_text(encoding="utf-8"), source.parent)

    def text(self, target: str, text: str) -> None:
        self._write(target, text, DOCS / PurePosixPath(target).parent)

    def copy(self, source: Path, target: str) -> None:
        (self._folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, self._folder / target)

    def file(self, path: Path) -> str:
        """The page that shows a file of the project."""
        if path not in self._files:
            self._files.append(path)
        return _page_of_file(path)

    def finish(self) -> None:
        """The pages of files; a file that is Markdown may lead to further ones."""
        for path in self._files:
            name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            if path.suffix == ".md":
                self._write(_page_of_file(path), text, path.parent)
            else:
                fence = "````" if "```" in text else "```"
                language = _LANGUAGES.get(path.suffix, "text")
                self._write(
                    _page_of_file(path), f"# {name}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n", path.parent
                )

    def _write(self, target: str, text: str, origin: Path) -> None:
        path = self._folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._relinked(text, target, origin), encoding="utf-8")
        self.pages.add(target)

    def _relinked(self, text: str, target: str, origin: Path) -> str:
        """Links as they are right in the repository, made right for the site; code stays as it is."""
        parts = re.split(r"(^ *(`{3,})[^\n]*\n.*?^ *\2 *$)", text, flags=re.MULTILINE | re.DOTALL)
        # the pattern has two groups: plain text, a fenced block, its fence, plain text, ...
        return "".join(
            LINK.sub(lambda match: f"{match[1]}({self._link(match[2], target, origin)})", part)
            if number % 3 == 0
            else part
            for number, part in enumerate(parts)
            if number % 3 != 2
        )

    def _link(self, link: str, target: str, origin: Path) -> str:
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link
        linked = Path(os.path.normpath(origin / path))
        if linked.is_relative_to(DOCS):
            to = linked.relative_to(DOCS).as_posix()
        elif linked.is_relative_to(ROOT) and linked.relative_to(ROOT).as_posix() in PROJECT:
            to = PROJECT[linked.relative_to(ROOT).as_posix()]
        elif linked.is_relative_to(ROOT) and linked.is_file():
            to = self.file(linked)
        else:
            return link  # wrong, and MkDocs says so
        return os.path.relpath(to, PurePosixPath(target).parent) + mark + anchor


def _page_of_file(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("examples/"):
        return name.replace(".", "-") + ".md"
    return f"files/{name.removesuffix('.md').replace('.', '-')}.md"
