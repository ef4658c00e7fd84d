"""Who a client is: the hook that turns a token into an identity, and one for JSON Web Tokens ready made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from veredus.errors import ConfigError, Unauthorized
from veredus.model.failure import drop_older_raises

if TYPE_CHECKING:
    from veredus.worker.executors.threads import ThreadPool

LIMITS = ("request_rate", "request_burst", "open_requests")
"""What an identity may be given of its own."""

_FAMILIES = {"HS": ("HS256", "HS384", "HS512"), "RS": ("RS256", "RS384", "RS512"), "ES": ("ES256", "ES384", "ES512")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who stands behind a connection."""

    user: str
    """Empty for nobody in particular: such a session belongs to whoever has its secret."""
    groups: tuple[str, ...] = ()
    """Joined when the session begins."""
    expires_at: float | None = None
    """Unix seconds at which the connection is closed, to be resumed with a new token."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits of this client's own, by the names of the gateway's settings."""
    issued_at: float | None = None
    """Unix seconds at which the token was issued, which `app.revoke` compares; None: when it was shown."""

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or len(self.user.encode("utf-8", "replace")) > 256:
            raise ConfigError("user", self.user, "a text of at most 256 bytes")
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
"""An attribute of synchronous hooks that only compute for microseconds: a thread would cost more than they do."""


async def call_hook(threads: ThreadPool | None, hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's: on the loop if it is async, else in a thread, where it may take its time."""
    is_async = inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)
    if is_async or threads is None or hasattr(hook, _QUICK):
        found = hook(*arguments)
    else:
        found = await threads.submit(functools.partial(hook, *arguments))
    return await found if inspect.isawaitable(found) else found


async def identify(
    authenticate: Authenticate | None, token: str, now: float, threads: ThreadPool | None = None
) -> Identity:
    """Ask the hook. Whatever it raises means no; without a hook the token is the user's name, on loopback only."""
    if authenticate is None:
        return Identity(user=token)
    try:
        identity = await call_hook(threads, authenticate, token)
    except Unauthorized as exc:
        drop_older_raises(exc)
        raise
    except Exception as exc:
        drop_older_raises(exc)
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
    """An authenticator for JSON Web Tokens: `sub` is the user, `exp` is required and ends the connection, `iat` is what
    `app.revoke` compares.

    `key` is the shared secret (HS...), or the public key as PEM (RS..., ES...). All algorithms are of one family: a
    public key must never be taken for a shared secret.
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
            raise Unauthorized(f"token refused: {groups_claim} is not a list of texts")
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
