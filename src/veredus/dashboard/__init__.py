"""The dashboard: queues, tasks and workers in a browser, with a JSON API, as a mountable ASGI app."""

from __future__ import annotations

from veredus.dashboard.config import DashboardConfig
from veredus.dashboard.dashboard import Dashboard, asgi

__all__ = ["Dashboard", "DashboardConfig", "asgi"]
