"""The Dockerfile, the compose file, the units and the workflow, read with the eyes of a reviewer."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.files import DEPLOY, ROOT, UNITS, ours, seconds, services, stages, unit
from tests.docs.commands import accept
from veredus.gateway.config import GatewayConfig
from veredus.worker.config import WorkerConfig


def test_the_image_is_slim_and_its_process_is_not_root() -> None:
    build, image = stages()
    assert build.name == "build"
    assert build.image == image.image
    assert re.fullmatch(r"python:3\.\d+-slim", image.image)
    user, group = image.last("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    names = [name for name, _ in image.steps]
    assert names.index("USER") > max(number for number, name in enumerate(names) if name in ("COPY", "RUN"))
    assert not any(name == "RUN" for name in names), "the image has no compiler and no cache: it is copied together"


def test_the_image_starts_a_command_that_veredus_accepts() -> None:
    image = stages()[-1]
    entry = image.words("ENTRYPOINT")
    assert entry == ["veredus"]
    accept(image.words("CMD"))


def test_what_is_copied_exists() -> None:
    for stage in stages():
        for name, text in stage.steps:
            if name == "COPY" and not text.startswith("--from=build "):
                for source in text.split()[:-1]:
                    assert (ROOT / source).exists(), text


@pytest.mark.parametrize("name", ours())
def test_a_service_runs_a_command_that_veredus_accepts_with_no_rights(name: str) -> None:
    service = ours()[name]
    accept(service["command"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["environment"]["VEREDUS_REDIS_URL"] == "redis://valkey:6379/0"
    assert service["depends_on"] == {"valkey": {"condition": "service_healthy"}}


def test_the_compose_file_has_all_four_and_no_secret() -> None:
    assert set(services()) == {"valkey", "worker", "gateway", "dashboard"}
    command = services()["valkey"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--appendonly") + 1] == "yes"
    assert "ports" not in services()["valkey"]
    for service in ours().values():
        for variable, value in service["environment"].items():
            if variable.endswith(("_KEY", "_TOKEN")):
                assert re.match(r"\$\{SHOP_\w+:\?", value), f"{variable} has no value of its own"


def test_what_stops_has_the_time_it_needs() -> None:
    longest = max(WorkerConfig.make().shutdown_timeout, GatewayConfig.make().drain)
    for service in ours().values():
        assert seconds(service["stop_grace_period"]) > longest
    for path in UNITS:
        assert seconds(unit(path)["Service"]["TimeoutStopSec"]) > longest


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_command_that_veredus_accepts(path: Path) -> None:
    service = unit(path)["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == f"{service['WorkingDirectory']}/.venv/bin/veredus"
    accept(words)
    assert service["KillMode"] == "mixed"
    assert service["DynamicUser"] == "yes"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_a_unit_as_it_is(path: Path, tmp_path: Path) -> None:
    """Its program is replaced by one that is here: systemd looks whether it can be executed."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed here: the units were NOT TESTED by systemd")
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8").replace("/srv/shop/.venv/bin/veredus", sys.executable))
    for words in (["verify", "--man=no"], ["security", "--offline=true", "--no-pager", "--threshold=25"]):
        ended = subprocess.run([analyze, *words, str(copy)], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert words[0] != "verify" or ended.stderr == ""


def test_the_units_are_for_the_same_processes_as_the_compose_file() -> None:
    assert {path.stem.removeprefix("veredus-") for path in UNITS} == set(ours())


def test_the_workflow_runs_what_the_project_runs() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["run"]
    assert job["strategy"]["matrix"]["target"] == re.findall(r"^make (.*)$", script, re.MULTILINE)
    assert job["steps"][-1]["run"] == "make ${{ matrix.target }}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in job["strategy"]["matrix"]["target"]:
        assert re.search(rf"^{target.split()[0]}:.*##", makefile, re.MULTILINE), target


def test_the_workflow_tests_every_python_that_the_package_claims() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["run"]["strategy"]["matrix"]
    tested = {*matrix["python"], *(one["python"] for one in matrix["include"] if one["target"] == "test")}
    claimed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert tested == set(claimed)


def test_every_file_of_deploy_is_explained() -> None:
    page = (ROOT / "docs/deployment.md").read_text(encoding="utf-8") + (ROOT / "docs/telemetry.md").read_text()
    for path in DEPLOY.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert f"(../{path.relative_to(ROOT).as_posix()})" in page, path
