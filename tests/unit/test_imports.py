"""The import graph: who may import whom, one wall per foreign library, and a light front door."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import veredus

ROOT = Path(veredus.__file__).parent
HEIGHTS = {
    "errors": 0, "clock": 0, "process": 0.5,
    "model": 1,
    "wire": 2, "lua": 2, "events": 2,
    "store": 3, "link": 3,
    "client": 4,
    "handlers": 4.5,
    "worker": 5, "scheduler": 5, "inspector": 5, "gateway": 5, "peer": 5, "embedded": 5,
    "testing": 5.7, "router": 5.8, "app_server": 5.8,
    "app": 6, "dashboard": 6, "telemetry": 6.5,
    "contrib": 7, "demo": 7, "cli": 8, "__main__": 9, "__init__": 9,
}  # fmt: skip
WALLS = {
    "hiredis": ("store",),
    "google": ("wire",),
    "msgspec": ("wire",),
    "click": ("cli",),
    "rich": ("cli", "demo"),
    "subprocess": ("embedded", "demo", "handlers"),
    "picows": ("link",),
    "aioquic": ("link",),
    "cryptography": ("link",),
    "starlette": ("gateway", "dashboard", "contrib"),
    "uvicorn": ("gateway", "dashboard"),
    "jwt": ("gateway",),
    "prometheus_client": ("telemetry",),
    "opentelemetry": ("telemetry",),
    "sentry_sdk": ("telemetry",),
    "fastapi": ("contrib",),
    "django": ("contrib",),
    "django_tasks": ("contrib",),
    "pytest": ("testing",),
    "redis": (),
}
FILES = sorted(path for path in ROOT.rglob("*.py"))


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted names of everything a file imports when it runs; what only type checkers see does not count."""
    hidden: set[int] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            hidden |= {id(inner) for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_below_and_through_the_walls(path: Path) -> None:
    room = _room(path)
    assert room in HEIGHTS, f"give {room} a height"
    breaches = []
    for name, line in _imports(path):
        parts = name.split(".")
        if parts[0] == "veredus" and len(parts) > 1:
            other = parts[1] if parts[1] in HEIGHTS else "__version__"
            if other not in (room, "__version__") and HEIGHTS[other] >= HEIGHTS[room]:
                breaches.append(f"{line}: {room} ({HEIGHTS[room]}) imports {name} ({HEIGHTS[other]})")
            elif other == "__version__" and HEIGHTS[room] < 7 and name != "veredus.__version__":
                breaches.append(f"{line}: {room} imports {name} through the front door")
        elif parts[0] in WALLS and room not in WALLS[parts[0]]:
            breaches.append(f"{line}: {parts[0]} is only for {', '.join(WALLS[parts[0]]) or 'tests'}")
        elif room == "model" and parts[0] not in sys.stdlib_module_names:
            breaches.append(f"{line}: the model has nothing but the standard library, not {name}")
        carries = path.is_relative_to(ROOT / "link" / "transports")
        pure = room in ("model", "wire") or (room == "link" and not carries)
        if pure and (parts[0] in ("asyncio", "time", "socket") or name.startswith("veredus.clock")):
            breaches.append(f"{line}: {room} knows no {name}")
        if parts[0] in ("picows", "aioquic", "cryptography") and not carries:
            breaches.append(f"{line}: {parts[0]} is only for link/transports")
    assert breaches == []


def test_importing_the_package_loads_next_to_nothing() -> None:
    heavy = "hiredis google.protobuf msgspec click rich asyncio ssl multiprocessing subprocess uvloop pydantic redis"
    heavy += " picows aioquic cryptography starlette uvicorn jwt"
    program = f"import sys, veredus; print([name for name in {heavy.split()!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "[]"


def test_a_peer_needs_no_redis_and_loads_no_transport_before_it_connects() -> None:
    rooms = ("store", "client", "worker", "scheduler", "inspector", "gateway", "embedded", "app")
    unwanted = {"hiredis", "picows", "aioquic", *(f"veredus.{room}" for room in rooms)}
    program = f"import sys, veredus.peer; print(sorted({unwanted!r} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "[]"


def test_every_public_name_resolves_and_the_list_is_this_one() -> None:
    assert sorted(veredus.__all__) == NAMES
    for name in veredus.__all__:
        assert getattr(veredus, name).__name__ == name
    assert set(NAMES) <= set(dir(veredus))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = veredus.no_such_name


def test_every_file_says_what_it_is_for() -> None:
    assert [path for path in FILES if not (ast.get_docstring(ast.parse(path.read_text())) or "").strip()] == []


def test_the_date_is_read_in_one_place() -> None:
    """Elsewhere it comes from a Clock, which follows the server and which tests can set."""
    own = ("clock.py", "embedded/", "cli/", "demo/", "testing/")
    names = {path: path.relative_to(ROOT).as_posix() for path in FILES}
    others = [path for path in FILES if not names[path].startswith(own)]
    assert [names[path] for path in others if re.search(r"\btime\.time(_ns)?\(", path.read_text())] == []


BROAD = re.compile(r"except .*\b(BaseException|Exception)\b")


def test_a_broad_except_logs_raises_or_says_why() -> None:
    silent = []
    for path in FILES:
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(node, ast.ExceptHandler) or not BROAD.match(lines[node.lineno - 1].strip()):
                continue
            handled = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if not re.search(r"  # |\braise\b|\blogger\.", handled):
                silent.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert silent == []


NAMES = [
    "App",
    "ArchiveFull",
    "AttemptInfo",
    "AuthError",
    "Call",
    "CancelOutcome",
    "CommandRefused",
    "ConfigError",
    "ConnectionLost",
    "Context",
    "Depends",
    "DuplicateTask",
    "EmbeddedError",
    "Entry",
    "GatewayError",
    "GroupNotFound",
    "Handle",
    "Inspector",
    "Job",
    "LeaseLost",
    "Limit",
    "NotConfirmed",
    "NotReady",
    "Notifier",
    "NotifyItem",
    "OrderKeyNotHeld",
    "OutboxFull",
    "PayloadError",
    "PayloadTooLarge",
    "Progress",
    "PushResult",
    "Query",
    "QueueClosed",
    "QueueError",
    "QueueFull",
    "QueueNotEmpty",
    "QueueNotFound",
    "QueueUnserved",
    "Refused",
    "ResultError",
    "ResultGone",
    "Retry",
    "RevokeTask",
    "Router",
    "ScheduleNotFound",
    "Sensitive",
    "ServerFull",
    "ServerNotFound",
    "SkipRetry",
    "Spread",
    "Status",
    "StoreError",
    "SyncHint",
    "Task",
    "TaskCancelled",
    "TaskError",
    "TaskFailed",
    "TaskIdConflict",
    "TaskNotFound",
    "TaskTimeout",
    "Unauthorized",
    "VeredusError",
    "Worker",
    "WorkerSilent",
    "WorkerStopped",
    "WrongState",
    "current",
    "exponential",
]
