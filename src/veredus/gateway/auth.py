"""Authentication: Identity, the hook that returns it for a token, and `jwt`, a hook for JSON Web Tokens."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from veredus.errors import ConfigError, Unauthorized
from veredus.model.failure import drop_older_raises
from veredus.model.names import is_utf8

if TYPE_CHECKING:
    from veredus.handlers.executors.threads import ThreadPool

LIMITS = ("request_rate", "request_burst", "open_requests")
"""Settings that an identity may override."""

_FAMILIES = {"HS": ("HS256", "HS384", "HS512"), "RS": ("RS256", "RS384", "RS512"), "ES": ("ES256", "ES384", "ES512")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The user of a connection, with groups and limits."""

    user: str
    """Empty for an anonymous client: its session belongs to the holder of the session's secret."""
    groups: tuple[str, ...] = ()
    """Joined when the session begins."""
    expires_at: float | None = None
    """Unix seconds at which the connection is closed. The client may resume with a new token."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits for this client, by the names of the gateway's settings."""
    issued_at: float | None = None
    """Unix seconds at which the token was issued, for `app.revoke`. None means: when the client presented it."""

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or len(self.user.encode("utf-8", "replace")) > 256:
            raise ConfigError("user", self.user, "a string of at most 256 bytes")
        if not is_utf8(self.user):
            raise ConfigError("user", self.user, "a text that can be written as UTF-8")
        if not isinstance(self.groups, tuple | list | set | frozenset):
            raise ConfigError("groups", self.groups, "a tuple of names")
        ends = self.expires_at
        if ends is not None and (not isinstance(ends, int | float) or isinstance(ends, bool) or ends != ends):
            raise ConfigError("expires_at", ends, "Unix seconds, or None")
        if not _is_instant(self.issued_at):
            raise ConfigError("issued_at", self.issued_at, "Unix seconds, or None")
        for name, value in self.limits.items():
            if name not in LIMITS:
                raise ConfigError("limit", name, f"one of {', '.join(LIMITS)}", known=LIMITS)
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise ConfigError(name, value, "a number above 0")


def _is_instant(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**38)


Authenticate = Callable[[str], Identity | Awaitable[Identity]]
MayJoin = Callable[[Identity, str], bool | Awaitable[bool]]


_QUICK = "veredus_quick"
"""Marks synchronous hooks that take microseconds and run on the loop, because a thread would cost more."""


async def call_hook(threads: ThreadPool | None, hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function: on the loop if it is async, otherwise in a thread, where it may block. What would end the
    process or this coroutine becomes a RuntimeError."""
    is_async = inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)
    try:
        if is_async or threads is None or hasattr(hook, _QUICK):
            found = hook(*arguments)
        else:
            found = await threads.submit(functools.partial(hook, *arguments))
        return await found if inspect.isawaitable(found) else found
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as exc:
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # it is over for us, not for the hook alone
        drop_older_raises(exc)
        raise RuntimeError(f"it raised {exc!r}") from exc


async def identify(
    authenticate: Authenticate | None,
    token: str,
    now: float,
    threads: ThreadPool | None = None,
    failed: Callable[[Exception], None] | None = None,
) -> Identity:
    """Call the hook. Any exception means unauthorized; `failed` is called with one that is no Unauthorized. Without a
    hook the token is the user's name (loopback only)."""
    if authenticate is None:
        return Identity(user=token)
    try:
        identity = await call_hook(threads, authenticate, token)
    except Unauthorized as exc:
        drop_older_raises(exc)
        raise
    except Exception as exc:  # a user's function may raise anything
        drop_older_raises(exc)
        if failed is not None:
            failed(exc)
        raise Unauthorized(f"the authenticator failed: {type(exc).__name__}") from exc
    if not isinstance(identity, Identity):
        raise Unauthorized("the authenticator did not return an Identity")
    if identity.expires_at is not None and identity.expires_at <= now:
        raise Unauthorized("the token has expired")
    return identity


def jwt(
    key: str | bytes,
    *,
    algorithms: Sequence[str] = ("HS256",),
    audience: str | None = None,
    issuer: str | None = None,
    leeway: float = 0.0,
    groups_claim: str = "groups",
    limits_claim: str = "limits",
) -> Authenticate:
    """An authenticator for JSON Web Tokens. `sub` is the user. `exp` is required and ends the connection. `app.revoke`
    compares `iat`.

    `key` is the shared secret (HS...) or the public key as PEM (RS..., ES...). All algorithms must be of one family,
    because a public key must never be used as a shared secret.
    """
    known = [name for family in _FAMILIES.values() for name in family]
    for name in algorithms:
        if name not in known:
            raise ConfigError("algorithms", name, f"some of {', '.join(known)}", known=known)
    if not algorithms or len({name[:2] for name in algorithms}) != 1:
        raise ConfigError("algorithms", tuple(algorithms), "one or more of a single family: HS..., RS... or ES...")
    if algorithms[0].startswith("HS") and len(key) < 32:
        raise ConfigError("key", f"{len(key)} bytes", "a shared secret of at least 32 bytes")
    try:
        import jwt as pyjwt
    except ImportError as exc:
        raise ConfigError("authenticate", "jwt", "the package PyJWT: pip install 'veredus[gateway]'") from exc

    def authenticate(token: str) -> Identity:
        try:
            claims: dict[str, Any] = pyjwt.decode(
                token,
                key,
                algorithms=list(algorithms),
                audience=audience,
                issuer=issuer,
                leeway=leeway,
                options={"require": ["exp", "sub"], "verify_aud": audience is not None},
            )
        except pyjwt.PyJWTError as exc:
            raise Unauthorized(f"token refused: {exc}") from None
        groups = claims.get(groups_claim) or ()
        limits = claims.get(limits_claim) or {}
        if not isinstance(groups, list | tuple) or not all(isinstance(group, str) for group in groups):
            raise Unauthorized(f"token refused: {groups_claim} is not a list of strings")
        if not isinstance(limits, dict):
            raise Unauthorized(f"token refused: {limits_claim} is not an object")
        try:
            return Identity(
                user=str(claims["sub"]),
                groups=tuple(groups),
                expires_at=float(claims["exp"]) + leeway,
                limits=limits,
                issued_at=float(claims["iat"]) if "iat" in claims else None,
            )
        except (ConfigError, TypeError, ValueError, OverflowError) as exc:
            raise Unauthorized(f"token refused: {exc}") from None

    setattr(authenticate, _QUICK, True)
    return authenticate
