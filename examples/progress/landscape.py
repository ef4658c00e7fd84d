"""A picture out of arithmetic: the colour of every tile of a landscape at dusk."""

from __future__ import annotations

import math
import random

COLUMNS, LINES = 48, 24
TITLES = ("Dusk on the post road", "The courier's last hill", "Evening relay", "Waiting for the horse")


class Landscape:
    """The same seed is the same picture, so a job that runs again repeats itself exactly."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.title = chance.choice(TITLES)
        self._sun = (chance.uniform(0.2, 0.8), chance.uniform(0.3, 0.5))
        self._sky = chance.choice(((38, 28, 84), (18, 44, 92), (70, 24, 70)))
        self._glow = chance.choice(((255, 176, 92), (255, 140, 104), (250, 196, 120)))
        self._hills = [(chance.uniform(0, 6), chance.uniform(5, 9), 0.55 + depth * 0.14) for depth in range(3)]

    def colour(self, column: int, line: int) -> str:
        x, y = (column + 0.5) / COLUMNS, (line + 0.5) / LINES
        for depth, (phase, waves, height) in reversed(list(enumerate(self._hills))):
            ridge = height + 0.07 * math.sin(waves * x + phase) + 0.03 * math.sin(2.7 * waves * x + 2 * phase)
            if y > ridge:
                shade = 0.78 - 0.24 * depth
                return _hex(tuple(int(shade * part) for part in _mix(self._sky, self._glow, 0.25)))
        distance = math.hypot((x - self._sun[0]) * 2, y - self._sun[1])
        if distance < 0.12:
            return "#fff1cf"
        return _hex(_mix(self._sky, self._glow, min(1.0, y * 0.9 + max(0.0, 0.5 - distance) * 0.9)))


def _mix(one: tuple[int, ...], other: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple(round(a + (b - a) * share) for a, b in zip(one, other, strict=True))


def _hex(colour: tuple[int, ...]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)
