"""What another process needs to go on with a session."""

from __future__ import annotations

import json
from typing import NamedTuple

from veredus.errors import ConfigError
from veredus.model.delivery import Cursor


class SavedSession(NamedTuple):
    """Whoever has it can take the session over: keep it secret."""

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
            raise ConfigError("resume", text[:40], "what SavedSession.to_json() wrote") from None
        return found
