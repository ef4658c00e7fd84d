"""SavedSession: what another process needs to resume a session."""

from __future__ import annotations

import json
from typing import NamedTuple

from veredus.errors import ConfigError
from veredus.model.delivery import Cursor


class SavedSession(NamedTuple):
    """Keep it secret: it gives access to the session."""

    session: str
    secret: str
    cursor: Cursor
    next_rid: int = 1

    def to_json(self) -> str:
        return json.dumps(self._asdict() | {"cursor": self.cursor._asdict()})

    @classmethod
    def from_json(cls, text: str) -> SavedSession:
        try:
            given = json.loads(text)
            found = cls(
                str(given["session"]),
                str(given["secret"]),
                Cursor(str(given["cursor"]["epoch"]), int(given["cursor"]["seq"]), int(given["cursor"]["ts"])),
                int(given["next_rid"]),
            )
        except (ValueError, KeyError, TypeError):
            raise ConfigError("resume", text[:40], "the output of SavedSession.to_json()") from None
        return found
