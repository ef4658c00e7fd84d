"""A key of another type than a script expects: the script stops before its first write, whatever key it is.

The calls of a scenario are noted with all keys as they were; each is then made again with one damaged key after the
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from redis.exceptions import ResponseError

from tests.support.servers import RealServer
from veredus.store.connection.redis import ScriptCall, SingleServer
from veredus.store.connection.scripts import Script

DAMAGED = "no script expects a stream"
MOST = 3
"""Calls of one script that are tried, each with other keys present or other arguments empty."""

Keys = dict[bytes, tuple[bytes, bool]]
"""Every key: its value as DUMP gives it, and whether it expires."""


@dataclass(frozen=True)
class Made:
    """A call of a script, and what was there before it."""

    script: Script
    keys: Sequence[Any]
    args: Sequence[Any]
    before: Keys


@dataclass
class Calls:
    """The calls that were made meanwhile."""

    client: Any
    most: int = MOST
    made: dict[tuple[str, tuple[bool, ...]], Made] = field(default_factory=dict)

    def note(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> None:
        if not keys or sum(name == script.name for name, _ in self.made) >= self.most:
            return
        before = everything(self.client)
        kind = script.name, (*(_name(key) in before for key in keys), *(bool(arg) for arg in args))
        self.made.setdefault(kind, Made(script, tuple(keys), tuple(args), before))

    def written_by_failures(self) -> str:
        """Scripts that failed because of one damaged key, and had changed others, a line each."""
        return "\n".join(sorted({found for call in self.made.values() for found in self._try_out(call)}))

    def _try_out(self, call: Made) -> Iterator[str]:
        for damaged in dict.fromkeys([*map(_name, call.keys), *call.before]):
            self.client.flushall()
            for key, (value, expires) in call.before.items():
                if key != damaged:
                    self.client.restore(key, 3_600_000 if expires else 0, value)
            self.client.xadd(damaged, {"a": DAMAGED})
            before = everything(self.client)
            try:
                reply = self.client.eval(call.script.source, len(call.keys), *call.keys, *call.args)
            except ResponseError as exc:
                reply = [exc]
            error = (
                next((one for one in reply if isinstance(one, ResponseError)), None)
                if isinstance(reply, list)
                else None
            )
            if error is None:
                continue
            after = everything(self.client)
            changed = sorted(key.decode() for key in before.keys() | after.keys() if before.get(key) != after.get(key))
            if changed:
                yield f"{call.script.name}: {damaged.decode()} is damaged, and {changed} changed: {error}"


@contextmanager
def noted_calls(server: RealServer, most: int = MOST) -> Iterator[Calls]:
    """Notes the scripts that run inside, from whatever app of this process."""
    calls = Calls(server.client(), most)
    run, run_each = SingleServer.run, SingleServer.run_each

    async def noted_run(self: SingleServer, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        calls.note(script, keys, args)
        return await run(self, script, keys, args)

    async def noted_run_each(self: SingleServer, made: Sequence[ScriptCall]) -> list[Any]:
        for one in made:
            calls.note(one.script, one.keys, one.args)
        return await run_each(self, made)

    with patch.object(SingleServer, "run", noted_run), patch.object(SingleServer, "run_each", noted_run_each):
        yield calls


def everything(client: Any) -> Keys:
    names = sorted(client.keys("*"))
    pipe = client.pipeline(transaction=True)
    for name in names:
        pipe.dump(name)
        pipe.pttl(name)
    found = pipe.execute()
    return {name: (found[2 * at], found[2 * at + 1] >= 0) for at, name in enumerate(names) if found[2 * at] is not None}


def _name(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()
