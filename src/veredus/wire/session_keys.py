"""Every key and channel of the gateway, one function each. All keys of a session and of its user have the same hash
tag."""

from __future__ import annotations

import secrets
import zlib

from veredus.errors import ConfigError
from veredus.model.names import is_utf8
from veredus.wire import keys

PARTITIONS = 256
ROOT = "gw" if keys.PREFIX == "asynq" else f"{keys.PREFIX}:gw"
"""The prefix of the gateway's keys; VEREDUS_KEY_PREFIX changes it together with the queues' prefix."""
NODES = f"{ROOT}:nodes"
"""HASH of gateway nodes: `<heartbeat ms> <json>`."""


def tag(partition: int) -> str:
    return f"p{partition:03x}"


TAGS = tuple(tag(partition) for partition in range(PARTITIONS))


def user_tag(user: str) -> str:
    """The partition of all sessions of a user; an anonymous session gets a random one."""
    if not user:
        return TAGS[secrets.randbelow(PARTITIONS)]
    return TAGS[zlib.crc32(user.encode()) % PARTITIONS]


def new_sid(user: str) -> str:
    """A session's id: its partition's tag, then 120 random bits."""
    return f"{user_tag(user)}-{secrets.token_urlsafe(15)}"


def sid_tag(sid: str) -> str:
    """The tag in a session's id. Raises ConfigError for an invalid id."""
    if not isinstance(sid, str) or not is_sid(sid):
        raise ConfigError("session", sid, "the id of a session, like p0a3-V3x...")
    return sid[:4]


def is_sid(text: str) -> bool:
    """Whether this may be the id of a session."""
    return 6 <= len(text) <= 64 and text[4] == "-" and text[:4] in _KNOWN


_KNOWN = frozenset(TAGS)


def prefix(tag: str) -> str:
    """The braces make all keys of a partition share one slot of a cluster."""
    return f"{ROOT}:{{{tag}}}:"


def session_prefix(sid: str) -> str:
    """The beginning of all keys of a session."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:"


def sessions(tag: str) -> str:
    """ZSET of all sessions of the partition, all with score 0, so that it can be walked in order."""
    return f"{ROOT}:{{{tag}}}:all"


def expiries(tag: str) -> str:
    """ZSET of detached sessions by the instant (ms) at which they end."""
    return f"{ROOT}:{{{tag}}}:x"


def deadlines(tag: str) -> str:
    """ZSET of open requests `<sid>.<rid>` by deadline (ms)."""
    return f"{ROOT}:{{{tag}}}:dl"


def early_binds(tag: str) -> str:
    """ZSET of requests `<sid>.<rid>` that have bound messages but have not been received yet, by the time (ms) at
    which the messages stop waiting."""
    return f"{ROOT}:{{{tag}}}:bd"


def emptied(tag: str) -> str:
    """ZSET of groups that may have no member left in the partition, by the time of the next check."""
    return f"{ROOT}:{{{tag}}}:ge"


def attached(tag: str, node: str) -> str:
    """SET of the sessions that are attached to a node."""
    return f"{ROOT}:{{{tag}}}:n:{node}"


def user(user: str) -> str:
    """ZSET of a user's sessions by the time (ms) of their last attach."""
    return f"{ROOT}:{{{user_tag(user)}}}:u:{user}"


def mailbox(user: str) -> str:
    """LIST of the messages that wait for a user who has no session."""
    return f"{ROOT}:{{{user_tag(user)}}}:mail:{user}"


def group(tag: str, name: str) -> str:
    """ZSET of the members of a group in this partition, all with score 0."""
    return f"{ROOT}:{{{tag}}}:g:{name}"


def group_partitions(name: str) -> str:
    """SET of the partitions where a group has, or had, members."""
    return f"{ROOT}:{{grp:{name}}}:p"


def meta(sid: str) -> str:
    """HASH of a session (see docs/gateway-log.md for its fields)."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:m"


def outbox(sid: str) -> str:
    """LIST of the entries that are not acknowledged; entry i has seq floor + 1 + i."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:o"


def requests(sid: str) -> str:
    """HASH rid -> `A:<deadline ms>[:<generation>:<arrival>]` accepted, `D:<seq>` answered, `B:<ms>` not received
    yet, with bound messages."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:r"


def befores(sid: str, rid: int) -> str:
    """LIST of the messages held for the response, to be sent right before it."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:B:{rid}"


def afters(sid: str, rid: int) -> str:
    """LIST of the messages held for the response, to be sent right after it."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:C:{rid}"


def session_groups(sid: str) -> str:
    """SET of the groups of a session."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:g"


def waiting(sid: str) -> str:
    """HASH of the messages to the user that this session got on the user's behalf: id -> `<seq> <until ms>`; it
    expires when none of them can wait any longer."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:w"


def told(sid: str) -> str:
    """HASH rid -> numbers of the notifies that the request's handler has sent, as ranges `1-7,9-9`; it exists until
    the client has seen the response, or five minutes after the last one."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:n"


def ended(sid: str) -> str:
    """STRING `<call> <reason>` of a session that was disconnected, for as long as its client may try to resume it."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:e"


def revoked(user: str) -> str:
    """STRING with a time (ms): tokens of this user that were issued before it are refused. It expires when no such
    token can be valid."""
    return f"{ROOT}:{{{user_tag(user)}}}:rv:{user}"


def dedupe(sid: str, key: str) -> str:
    """STRING with the seq of the push that used this key, for five minutes."""
    return f"{ROOT}:{{{sid[:4]}}}:s:{sid}:i:{key}"


def user_dedupe(user: str, key: str) -> str:
    """The same for pushes to a user. The length keeps `a:b` + `c` from being `a` + `b:c`."""
    return f"{ROOT}:{{{user_tag(user)}}}:d:{len(user.encode())}:{user}:{key}"


def hints(node: str) -> str:
    """Channel on which a node learns what was appended to the sessions attached to it."""
    return f"{ROOT}:w:{node}"


def sharded_hints(tag: str, node: str) -> str:
    """The same with sharded pub/sub: one channel per partition."""
    return f"{ROOT}:{{{tag}}}:w:{node}"


def check_name(field: str, name: str) -> str:
    """Checks names that become part of a key: of users, groups and nodes."""
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise ConfigError(field, name, "a text of 1 to 200 characters")
    if not is_utf8(name):
        raise ConfigError(field, name, "a text that can be written as UTF-8")
    return name
