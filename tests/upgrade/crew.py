"""Processes of the previous version and of this one, on one server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.crash.fleet import Fleet, Process, die_with_test
from tests.support.processes import end
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE

OLD, NEW = "old", "new"
HERE = Path(__file__).parent


class Failed(Exception):
    """What a side answered instead of a value: `name` of the error and its text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Side:
    """A process of one version that does what it is told: `side("enqueue", type="job")`."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str], number: int) -> None:
        with (folder / f"side.{number}").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_test,
            )

    def __call__(self, do: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the side has ended, exit code {self._process.wait(PATIENCE)}"
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"], answer["text"])
        return answer["value"]

    def leave(self) -> None:
        """Close what it has open, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Crew(Fleet):
    """Starts workers, schedulers and sides of either version."""

    def __init__(self, server: RealServer, folder: Path, previous: Path) -> None:
        super().__init__(server, folder)
        self._previous = previous
        self._sides: list[Side] = []
        for name in ("shop.py", "side.py"):
            shutil.copy(HERE / name, folder / name)

    def worker(self, version: str, *, wait: bool = True, **settings: Any) -> Process:
        """With a lease that no busy machine lets run out, and without a limit for how often a task may be killed."""
        given = {"lease": 12.0, "shutdown_timeout": 20.0, **settings}
        if version == NEW:
            given["max_crashes"] = 0  # the previous version has none
        process = self._run(version, "worker", given)
        if wait:
            self.wait(lambda: process.is_ready, "the worker's start")
        return process

    def scheduler(self, version: str, **settings: Any) -> Process:
        return self._run(version, "scheduler", settings)

    def side(self, version: str) -> Side:
        command = [sys.executable, "side.py", "side", self.server.url, "{}"]
        side = Side(command, self.folder, self.environment(version), len(self._sides))
        self._sides.append(side)
        is_old = side("version").startswith(str(self._previous))
        assert is_old == (version == OLD), "the process imports the version that it is meant to"
        return side

    def environment(self, version: str) -> dict[str, str]:
        return self.inherited({"PYTHONPATH": str(self._previous)} if version == OLD else {})

    def summaries(self) -> list[list[int]]:
        path = self.folder / "summaries"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        for side in self._sides:
            side.close()
        super().close()

    def _run(self, version: str, role: str, settings: dict[str, Any]) -> Process:
        command = [sys.executable, "side.py", role, self.server.url, json.dumps(settings)]
        process = Process(command, self.folder, len(self.processes), 1, self.environment(version))
        self.processes.append(process)
        return process
