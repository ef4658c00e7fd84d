"""`veredus emit`."""

from __future__ import annotations

import json

from tests.cli.support import Command
from tests.support.servers import raw
from veredus.wire import keys


def test_the_first_event_of_a_name_counts(veredus: Command) -> None:
    first = veredus("emit", "approved:7", '{"by": "ada"}', "--ttl", "1h")
    assert (first.code, first.out) == (0, "emitted approved:7\n")
    again = veredus("emit", "approved:7", "--json")
    assert json.loads(again.out) == {"event": "approved:7", "first": False}
    assert veredus("emit", "approved:7").out == "approved:7 was emitted before: that one counts\n"
    stored = raw(veredus.redis.get(keys.event("approved:7")))
    assert stored[16:] == b'+{"by":"ada"}'
    assert 3590 < veredus.redis.ttl(keys.event("approved:7")) <= 3600


def test_what_is_refused(veredus: Command) -> None:
    bad = veredus("emit", "approved:7", "{by: ada}")
    assert (bad.code, bad.out) == (2, "")
    assert "payload: got '{by: ada}', expected JSON" in bad.err
    assert veredus("emit", "veredus:mine").code == 2
    assert veredus.redis.dbsize() == 0
