"""What the files in deploy/ say, as values."""

from __future__ import annotations

import configparser
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@dataclass
class Stage:
    image: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    """Instruction and the rest of its line, in order."""

    def last(self, instruction: str) -> str:
        return [text for name, text in self.steps if name == instruction][-1]

    def words(self, instruction: str) -> list[str]:
        """The list form of ENTRYPOINT or CMD."""
        found: list[str] = json.loads(self.last(instruction))
        return found


def stages() -> list[Stage]:
    found: list[Stage] = []
    for line in (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image, name))
        elif line and not line.startswith("#"):
            found[-1].steps.append((instruction, rest))
    return found


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    """The services that run Veredus."""
    return {name: service for name, service in services().items() if service["image"] == "shop"}


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def seconds(text: str) -> float:
    (number,) = re.findall(r"^(\d+)s?$", text)
    return float(number)
