"""Its settings; where Redis is comes from the environment."""

from __future__ import annotations

import django

SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = ["veredus.contrib.django"] + (["django_tasks"] if django.VERSION < (6,) else [])
DATABASES = {name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"} for name in ("default", "other")}
TASKS = {
    "default": {
        "BACKEND": "veredus.contrib.django.VeredusBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"app": "tests.contrib.site.jobs:app", "max_retry": 2},
    },
    "later": {
        "BACKEND": "veredus.contrib.django.VeredusBackend",
        "OPTIONS": {"app": "tests.contrib.site.jobs:app", "on_commit": True},
    },
}
