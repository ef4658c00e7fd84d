"""An app on an empty server, a look behind it, and the queue that the script tests work on."""

from __future__ import annotations

from tests.integration.conftest import app, durable_server, look
from tests.lua.conftest import q

__all__ = ["app", "durable_server", "look", "q"]
