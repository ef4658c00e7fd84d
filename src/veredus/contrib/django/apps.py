"""The Django application, which registers the management command."""

from __future__ import annotations

from django.apps import AppConfig


class VeredusConfig(AppConfig):  # type: ignore[misc]
    name = "veredus.contrib.django"
    label = "veredus"
    verbose_name = "Veredus"
