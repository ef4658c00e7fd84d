"""Sequence diagrams as SVG, drawn from the tree of a script: three lifelines, arrows, boxes for loops and branches."""

from __future__ import annotations

from xml.sax.saxutils import escape

from tools.docs.lua_tree import Node

_ROW = 26
_WIDTH = 860
_CALLER, _SCRIPT, _REDIS = 90, 330, 770
_LONGEST = 62


def draw(caller: str, script: str, passed: str, nodes: list[Node], returns: str) -> str:
    """One picture; the colours suit light and dark pages alike."""
    drawing = _Drawing()
    drawing.arrow(_CALLER, _SCRIPT, passed)
    drawing.walk(nodes, 0)
    drawing.arrow(_SCRIPT, _CALLER, returns, dashed=True)
    return drawing.finish([(_CALLER, caller), (_SCRIPT, script), (_REDIS, "Redis")])


class _Drawing:
    def __init__(self) -> None:
        self._y = 64
        self._parts: list[str] = []

    def arrow(self, start: int, end: int, text: str, *, dashed: bool = False) -> None:
        self._y += _ROW
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        tip = end - 7 if end > start else end + 7
        lean = -6 if end > start else 6
        self._parts.append(
            f'<path d="M{start} {self._y}H{tip}" stroke="#b45309" fill="none"{dash}/>'
            f'<path d="M{end} {self._y}l{lean} -4v8z" fill="#b45309"/>'
        )
        self._text(min(start, end) + 10, self._y - 5, text, size=12)

    def walk(self, nodes: list[Node], depth: int) -> None:
        last = ""
        for node in nodes:
            if node.kind in ("loop", "branch"):
                self._box(node, depth)
            elif node.kind in ("return", "note"):
                continue
            elif node.text != last:
                shown = node.text if node.kind == "call" else "{}({})".format(*_split(node.text))
                if node.kind == "call" or node.text.partition(": ")[2]:
                    self.arrow(_SCRIPT, _REDIS, shown)
            last = node.text

    def _box(self, node: Node, depth: int) -> None:
        if not _has_calls(node):
            return
        self._y += _ROW
        left, top = _SCRIPT - 60 + depth * 9, self._y - 15
        self._text(left + 6, self._y - 1, node.text, size=11, colour="#64748b")
        self.walk(node.children, depth + 1)
        self._y += 10
        right = _REDIS + 70 - depth * 9
        self._parts.append(
            f'<rect x="{left}" y="{top}" width="{right - left}" height="{self._y - top}" rx="4" fill="none"'
            ' stroke="#94a3b8"/>'
        )

    def _text(
        self, x: int, y: int, text: str, *, size: int, colour: str = "currentColor", anchor: str = "start"
    ) -> None:
        shown = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
        self._parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{escape(shown)}</text>'
        )

    def finish(self, lifelines: list[tuple[int, str]]) -> str:
        height = self._y + 30
        heads = []
        for x, name in lifelines:
            wide = max(80, 8 * len(name) + 16)
            heads.append(
                f'<rect x="{x - wide // 2}" y="14" width="{wide}" height="28" rx="5" fill="none"'
                ' stroke="currentColor"/>'
                f'<text x="{x}" y="33" font-size="13" font-weight="bold" text-anchor="middle" fill="currentColor">'
                f"{escape(name)}</text>"
                f'<path d="M{x} 42V{height - 8}" stroke="#94a3b8" stroke-dasharray="2 4" fill="none"/>'
            )
        return (
            f'<svg class="sequence" role="img" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
            ' font-family="sans-serif">' + "".join(heads + self._parts) + "</svg>"
        )


def _has_calls(node: Node) -> bool:
    return any(
        child.kind == "call" or (child.kind == "use" and child.text.partition(": ")[2]) or _has_calls(child)
        for child in node.children
    )


def _split(text: str) -> tuple[str, str]:
    name, _, commands = text.partition(": ")
    return name, commands
