"""The moves that scripts make with tasks, compared with the table in `model/lifecycle.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veredus.model.lifecycle import ANY_VERB, TRANSITIONS, State
from veredus.store.connection.connection import Argument
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import Script

Move = tuple[State | None, State | None]
_MOST = 500
_STATES = """
if redis.call('DBSIZE') > tonumber(ARGV[1]) then return false end
local found = {}
for _, key in ipairs(redis.call('KEYS', '*:t:*')) do
  local prefix, id = string.match(key, '^(.-}:)t:(.*)$')
  local state = redis.pcall('HGET', key, 'state')
  local is_listed = state == 'aggregating'
  if state == 'pending' or state == 'active' then
    is_listed = type(redis.pcall('LPOS', prefix .. state, id)) == 'number'
  elseif type(state) == 'string' and not is_listed then
    is_listed = type(redis.pcall('ZSCORE', prefix .. state, id)) == 'string'
  end
  found[#found + 1] = key
  found[#found + 1] = is_listed and state or 'damaged'
end
return found
"""
_KNOWN: dict[str, State | str] = {state.value: state for state in State}
_DAMAGED = "damaged"
"""Of a task that is not where its state says: what a script makes of it is no move."""


class WatchedRedis:
    """A Redis that fails when a script moves a task in a way that is not in the table; `moves` has what was seen."""

    def __init__(self, inner: Redis) -> None:
        self._inner = inner
        self.is_watching = True
        self.moves: set[tuple[str, Move]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        before = await self._states()
        try:
            return await self._inner.run(script, keys, args)
        finally:
            self._compare(script, before, await self._states())

    async def run_each(self, calls: Sequence[ScriptCall]) -> list[Any]:
        if len(calls) != 1:
            return await self._inner.run_each(calls)
        before = await self._states()
        replies = await self._inner.run_each(calls)
        self._compare(calls[0].script, before, await self._states())
        return replies

    async def _states(self) -> dict[bytes, State | str] | None:
        """None for more tasks than a test should read twice for each call."""
        if not self.is_watching:
            return None
        flat = await self._inner.command("EVAL", _STATES, 0, _MOST, key="")
        if flat is None:
            return None
        return {flat[i]: _KNOWN.get(flat[i + 1].decode(), _DAMAGED) for i in range(0, len(flat), 2)}

    def _compare(
        self, script: Script, before: dict[bytes, State | str] | None, after: dict[bytes, State | str] | None
    ) -> None:
        if before is None or after is None:
            return
        verbs = [name.rpartition("/")[2] for name in script.name.split("+")]
        allowed = {move for verb in verbs for move in TRANSITIONS.get(verb, ())} | set(ANY_VERB)
        for key in before.keys() | after.keys():
            start, end = before.get(key), after.get(key)
            if start is end or start == _DAMAGED or end == _DAMAGED:
                continue
            move: Any = (start, end)
            self.moves.add((verbs[0], move))
            assert move in allowed, f"{script.name} moved {key!r} from {start} to {end}: no row of TRANSITIONS"
