"""Authentication: tokens, the login cookie, the check that a write comes from our own page, wrong tokens."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from veredus.dashboard.config import DashboardConfig
from veredus.errors import VeredusError

DAYS = 7
CSRF_HEADER = "x-veredus-csrf"
WRONG_TOKEN_DELAY = 0.5
MOST_WRONG = 5
"""Wrong tokens of one address that wait for their answer at once: 10 tries per second."""
BEARER, HOOK = "bearer", "hook"


class TooManyTokens(VeredusError):
    """Too many wrong tokens of one address wait for their answer."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks, and what they may do."""

    holder: str
    """How the request is authenticated: "bearer", "hook", or its cookie."""
    views: bool = False
    """Sees no payloads and changes nothing."""


class WrongTokens:
    """Slows down those who try tokens. Cookies are not slowed down: nobody can guess their signature."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()

    def refuses(self, address: str) -> bool:
        """Whether too many wrong tokens of this address wait for their answer, so that no more are checked."""
        return self._waiting[address] >= MOST_WRONG

    async def wait(self, address: str) -> None:
        self._waiting[address] += 1
        try:
            await asyncio.sleep(WRONG_TOKEN_DELAY)
        finally:
            self._waiting[address] -= 1
            self._waiting += Counter()  # forget addresses without any


class Authenticator:
    """Stateless: cookies are signed with a key derived from the token. They are valid in every process with the same
    token, and a new token ends them."""

    def __init__(self, config: DashboardConfig) -> None:
        self._token, self._viewer_token = config.token, config.viewer_token
        self._origins = config.origins
        self._key = hashlib.sha256(b"veredus dashboard\0" + config.token.encode()).digest()
        # Cookies ignore ports: two dashboards on one machine need different names.
        self.cookie_name = "veredus_" + hashlib.sha256(b"name\0" + self._key).hexdigest()[:8]

    def by_token(self, given: str) -> Visitor | None:
        """Who a token belongs to. Takes as long for a wrong one."""
        found = given.encode("utf-8", "replace")
        full = hmac.compare_digest(found, self._token.encode())
        views = bool(self._viewer_token) and hmac.compare_digest(found, self._viewer_token.encode())
        return Visitor(BEARER, views=not full) if full or views else None

    def cookie(self, now: float, *, views: bool = False) -> str:
        ends = str(int(now) + DAYS * 86_400)
        return f"{ends}.{self._sign(self._purpose(views), ends)}"

    def _purpose(self, views: bool) -> str:
        """A new viewer token ends the cookies of viewers."""
        return f"viewer cookie\0{self._viewer_token}" if views else "cookie"

    def csrf(self, cookie: str) -> str:
        """The CSRF token that our page sends with every write. Another site can neither read nor guess it."""
        return self._sign("csrf", cookie)

    def bearer(self, headers: Mapping[str, str]) -> str:
        """The token that a program sends; empty if there is none."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return given.strip() if scheme.lower() == "bearer" else ""

    def by_cookie(self, headers: Mapping[str, str], now: float) -> Visitor | None:
        cookie = self._cookie_in(headers.get("cookie", ""))
        ends, _, signature = cookie.partition(".")
        if not ends.isascii() or not ends.isdigit() or int(ends) <= now:
            return None
        for views in (False, True) if self._viewer_token else (False,):
            if hmac.compare_digest(signature.encode(), self._sign(self._purpose(views), ends).encode()):
                return Visitor(cookie, views=views)
        return None

    def refusal(self, holder: str, headers: Mapping[str, str]) -> str:
        """Why a write is refused; empty if it is allowed. A browser never adds a bearer token by itself, so a request
        with one needs no CSRF token, but it must still have our own origin or none."""
        origin = headers.get("origin", "")
        if origin:
            own = urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
            if not own and origin.lower() not in self._origins:
                return f"origin: got {origin!r}, expected this dashboard's own address"
        elif holder != BEARER and headers.get("sec-fetch-site", "") != "same-origin":
            return "origin: a write from a browser needs the Origin header"
        given = headers.get(CSRF_HEADER, "")
        if holder != BEARER and not hmac.compare_digest(given.encode("utf-8", "replace"), self.csrf(holder).encode()):
            return f"{CSRF_HEADER}: missing or wrong; GET api/me returns it"
        return ""

    def _cookie_in(self, header: str) -> str:
        try:
            found = SimpleCookie(header).get(self.cookie_name)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()
