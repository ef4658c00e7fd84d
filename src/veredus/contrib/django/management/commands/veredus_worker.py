"""`manage.py veredus_worker`: a worker for the tasks of one backend."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from veredus.contrib.django.backend import VeredusBackend
from veredus.contrib.django.framework import tasks
from veredus.errors import VeredusError
from veredus.telemetry.worker_metrics import metrics_for


class Command(BaseCommand):  # type: ignore[misc]
    help = "Runs tasks until stopped. SIGTERM lets running tasks finish, a second SIGTERM requeues them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="alias in TASKS (default: default)")
        parser.add_argument(
            "--queues",
            help="queues with weights, such as mail=3,default=1, each with its priority bands; mail:high is one band "
            "(default: all of the backend)",
        )
        parser.add_argument("--concurrency", type=int, help="slots: handlers that run at once (100)")
        parser.add_argument("--threads", type=int, help="slots for synchronous handlers (32)")
        parser.add_argument("--processes", type=int, help="worker processes (1)")
        parser.add_argument("--metrics", metavar="[HOST:]PORT", help="serve /metrics, /healthz and /readyz")
        parser.add_argument("--burst", action="store_true", default=None, help="stop when the queues are empty")

    def handle(self, *args: Any, **options: Any) -> None:
        backend = tasks.task_backends[options["backend"]]
        if not isinstance(backend, VeredusBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is a {type(backend).__name__}, not a VeredusBackend")
        if not logging.getLogger("veredus").hasHandlers():
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        names = ("concurrency", "threads", "processes", "burst")
        settings = {name: options[name] for name in names if options[name] is not None}
        try:
            if options["queues"]:
                settings["queues"] = options["queues"]
            if options["metrics"]:
                settings["companions"] = [metrics_for(options["metrics"], settings)]
            code = backend.worker(**settings).run()
        except VeredusError as exc:
            raise CommandError(str(exc)) from exc
        if code:
            sys.exit(code)
