"""An app on an empty server, and a look behind it."""

from __future__ import annotations

from tests.integration.conftest import app, look
from tests.lua.conftest import q

__all__ = ["app", "look", "q"]
