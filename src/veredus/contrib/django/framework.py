"""Django's Tasks: `django.tasks` since Django 6, the package `django-tasks` before."""

from __future__ import annotations

try:
    from django import tasks
    from django.tasks import base, signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.utils.json import normalize_json
except ImportError:
    import django_tasks as tasks
    from django_tasks import base, signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.utils import normalize_json

__all__ = ["BaseTaskBackend", "TaskResultDoesNotExist", "base", "normalize_json", "signals", "tasks"]
