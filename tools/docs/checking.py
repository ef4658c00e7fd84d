"""What may be wrong with a built site: links that lead nowhere, and anything that a page would load from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}
_HARMLESS = {"canonical", "prev", "next", "alternate"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        for name in ("id", "name"):
            if name in given:
                self.anchors.add(given[name])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        for wanted, name in _LOADS:
            if tag == wanted and name in given and given.get("rel", "") not in _HARMLESS:
                self.loads.append(given[name])


def problems(site: Path) -> list[str]:
    """One line each; empty for a good site."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
        pages[path.resolve()] = page
    return [problem for path, page in pages.items() for problem in _of_page(site.resolve(), path, page, pages)]


def _of_page(site: Path, path: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    name = path.relative_to(site)
    for loaded in page.loads:
        if urlsplit(loaded).netloc:
            yield f"{name}: loads {loaded} from another host"
        elif not _file(site, path, loaded).exists():
            yield f"{name}: loads {loaded}, which is not there"
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = _file(site, path, link) if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.exists():
            yield f"{name}: {link} leads nowhere"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{name}: {link} leads to no such place on the page"


def _file(site: Path, path: Path, link: str) -> Path:
    plain = unquote(urlsplit(link).path)
    return (site / plain.lstrip("/") if plain.startswith("/") else path.parent / plain).resolve()
