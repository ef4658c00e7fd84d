"""Django's own tests of Tasks, run with our backend in place of Django's two; needs Django's source beside the package:

VEREDUS_DJANGO_SOURCE=django-6.1.3 python3.12 -m pytest tests/contrib/test_django_own.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = os.environ.get("VEREDUS_DJANGO_SOURCE", "")
MODULES = ("test_dummy_backend", "test_immediate_backend", "test_tasks", "test_custom_backend")
BY_DESIGN = {
    "test_clear": "forgets the dummy's own list; Redis remembers",
    "test_refresh_result": "changes the dummy's own list and expects to see it",
    "test_refresh_result_async": "the same",
    "test_cannot_get_result": "we can",
    "test_cannot_refresh_result": "we can",
    "test_cannot_pass_run_after": "we take it",
    "test_throws_keyboard_interrupt": "in a worker, that ends the attempt and not the process that enqueued",
}
SETTINGS = """
SECRET_KEY, USE_TZ, INSTALLED_APPS = "x", True, ["veredus.contrib.django"]
LITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
DATABASES = {"default": LITE, "other": {**LITE}}
"""


@pytest.mark.skipif(not SOURCE, reason="VEREDUS_DJANGO_SOURCE does not name Django's source")
def test_what_fails_fails_by_design(tmp_path: Path) -> None:
    shutil.copytree(Path(SOURCE) / "tests" / "tasks", tmp_path / "tasks")
    shutil.copy(Path(__file__).with_name("django_stand_ins.py"), tmp_path / "stand_ins.py")
    (tmp_path / "settings.py").write_text(SETTINGS)
    for path in (tmp_path / "tasks").glob("*.py"):
        path.write_text(re.sub(r"django\.tasks\.backends\.(dummy|immediate)\b", "stand_ins", path.read_text()))
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "django", "test", *(f"tasks.{module}" for module in MODULES)]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    failed = re.findall(r"^(?:FAIL|ERROR): (\w+)", ended.stderr, re.MULTILINE)
    assert set(failed) <= set(BY_DESIGN), ended.stderr
    assert int(re.findall(r"Ran (\d+) tests", ended.stderr)[0]) - len(failed) > 70
