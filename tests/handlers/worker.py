"""A worker as people start it from a script: `python -m tests.handlers.worker URL SETTINGS`, the settings as JSON."""

from __future__ import annotations

import json
import sys

import tests.handlers.tasks  # noqa: F401 - declares them
from tests.handlers.work import app
from veredus.cli.logs import configure

if __name__ == "__main__":
    configure("info", "json")
    app.use(sys.argv[1])
    sys.exit(app.worker(**json.loads(sys.argv[2])).run())
