"""The picture of a task's life, from the table in `model/lifecycle.py`; `python -m tools.docs.lifecycle` draws it."""

from __future__ import annotations

import math
from pathlib import Path

from veredus.model.lifecycle import BY_HAND, State
from veredus.model.lifecycle import TRANSITIONS as ALL_TRANSITIONS

PICTURE = Path(__file__).parents[2] / "docs/images/lifecycle.svg"
_PLACES = {
    State.SCHEDULED: (130, 150),
    State.PENDING: (430, 150),
    State.ACTIVE: (730, 150),
    State.COMPLETED: (1010, 70),
    State.ARCHIVED: (1010, 320),
    State.RETRY: (580, 320),
    State.AGGREGATING: (280, 320),
}
_HALF_WIDTH, _HALF_HEIGHT = 62, 20
TRANSITIONS = {verb: moves for verb, moves in ALL_TRANSITIONS.items() if verb not in BY_HAND}


def draw() -> str:
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1120 400" font-family="sans-serif" font-size="15"'
        ' role="img">',
        "<title>The states of a task and the verbs that lead from one to another</title>",
        '<rect width="1120" height="400" fill="#ffffff"/>',
    ]
    for (start, end), verbs in sorted(edges().items()):
        parts.append(_edge(_PLACES[start], _PLACES[end], ", ".join(verbs)))
    for state, (x, y) in _PLACES.items():
        parts.append(
            f'<rect x="{x - _HALF_WIDTH}" y="{y - _HALF_HEIGHT}" width="{2 * _HALF_WIDTH}" height="{2 * _HALF_HEIGHT}"'
            ' rx="8" fill="#f8fafc" stroke="#334155" stroke-width="1.5"/>'
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-weight="bold" fill="#1f2937">{state.value}</text>'
        )
        for verbs, mark, line in ((_made(state), "→", -32), (_deleted(state), "✕", 36)):
            if verbs:
                parts.append(
                    f'<text x="{x}" y="{y + line}" text-anchor="middle" font-size="13" fill="#64748b">'
                    f"{mark} {', '.join(verbs)}</text>"
                )
    parts.append(
        '<text x="20" y="390" font-size="14" fill="#64748b">→ made by · ✕ deleted by · cancel archives or deletes'
        " whatever has not ended</text>"
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def edges() -> dict[tuple[State, State], list[str]]:
    found: dict[tuple[State, State], list[str]] = {}
    for verb, moves in TRANSITIONS.items():
        for start, end in moves:
            if start is not None and end is not None and start is not end and verb != "cancel":
                found.setdefault((start, end), []).append(verb)
    return found


def _made(state: State) -> list[str]:
    return [verb for verb, moves in TRANSITIONS.items() if (None, state) in moves]


def _deleted(state: State) -> list[str]:
    return [verb for verb, moves in TRANSITIONS.items() if (state, None) in moves and verb != "cancel"]


def _edge(start: tuple[int, int], end: tuple[int, int], label: str) -> str:
    """A line that bends to its left, so that the way there and the way back do not meet."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    bend = 46 if abs(y2 - y1) < 10 or abs(x2 - x1) < 10 else 30
    cx, cy = (x1 + x2) / 2 + bend * (y2 - y1) / length, (y1 + y2) / 2 - bend * (x2 - x1) / length
    sx, sy = _border(start, (cx, cy))
    ex, ey = _border(end, (cx, cy))
    angle = math.degrees(math.atan2(ey - cy, ex - cx))
    lx, ly = (sx + 2 * cx + ex) / 4, (sy + 2 * cy + ey) / 4
    return (
        f'<path d="M{sx:.0f} {sy:.0f}Q{cx:.0f} {cy:.0f} {ex:.0f} {ey:.0f}" fill="none" stroke="#b45309"/>'
        f'<path d="M0 0l-9 -4v8z" transform="translate({ex:.0f} {ey:.0f}) rotate({angle:.0f})" fill="#b45309"/>'
        f'<text x="{lx:.0f}" y="{ly - 4:.0f}" text-anchor="middle" font-size="14" fill="#92400e" stroke="#ffffff"'
        f' stroke-width="4" paint-order="stroke">{label}</text>'
    )


def _border(centre: tuple[int, int], towards: tuple[float, float]) -> tuple[float, float]:
    x, y = centre
    dx, dy = towards[0] - x, towards[1] - y
    scale = min(_HALF_WIDTH / abs(dx) if dx else math.inf, _HALF_HEIGHT / abs(dy) if dy else math.inf)
    return x + dx * scale, y + dy * scale


if __name__ == "__main__":
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(draw(), encoding="utf-8")
