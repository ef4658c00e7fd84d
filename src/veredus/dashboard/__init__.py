"""The dashboard: queues, tasks and workers in a browser, and the JSON API behind it, as one mountable ASGI app."""

from __future__ import annotations

from veredus.dashboard.config import DashboardConfig
from veredus.dashboard.site import Dashboard, asgi

__all__ = ["Dashboard", "DashboardConfig", "asgi"]
