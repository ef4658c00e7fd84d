"""Authentication: the token, the login cookie, and the check that a write comes from our own page."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from veredus.dashboard.config import DashboardConfig

DAYS = 7
CSRF_HEADER = "x-veredus-csrf"


class Authenticator:
    """Stateless: cookies are signed with a key derived from the token. They are valid in every process with the same
    token, and a new token ends them."""

    def __init__(self, config: DashboardConfig) -> None:
        self._token = config.token
        self._origins = config.origins
        self._key = hashlib.sha256(b"veredus dashboard\0" + config.token.encode()).digest()
        # Cookies ignore ports: two dashboards on one machine need different names.
        self.cookie_name = "veredus_" + hashlib.sha256(b"name\0" + self._key).hexdigest()[:8]

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def cookie(self, now: float) -> str:
        ends = str(int(now) + DAYS * 86_400)
        return f"{ends}.{self._sign('cookie', ends)}"

    def csrf(self, cookie: str) -> str:
        """The CSRF token that our page sends with every write. Another site can neither read nor guess it."""
        return self._sign("csrf", cookie)

    def holder(self, headers: Mapping[str, str], now: float) -> str | None:
        """How this request is authenticated: "bearer" or its cookie; None if it is not."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if given and scheme.lower() == "bearer":
            return "bearer" if self.is_token(given.strip()) else None
        cookie = self._cookie_in(headers.get("cookie", ""))
        ends, _, signature = cookie.partition(".")
        if not ends.isascii() or not ends.isdigit() or int(ends) <= now:
            return None
        return cookie if hmac.compare_digest(signature.encode(), self._sign("cookie", ends).encode()) else None

    def refusal(self, holder: str, headers: Mapping[str, str]) -> str:
        """Why a write is refused; empty if it is allowed. A browser never adds a bearer token by itself, so a request
        with one needs no CSRF token, but it must still have our own origin or none."""
        origin = headers.get("origin", "")
        if origin:
            own = urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
            if not own and origin.lower() not in self._origins:
                return f"origin: got {origin!r}, expected this dashboard's own address"
        elif holder != "bearer" and headers.get("sec-fetch-site", "") != "same-origin":
            return "origin: a write from a browser needs the Origin header"
        given = headers.get(CSRF_HEADER, "")
        if holder != "bearer" and not hmac.compare_digest(given.encode("utf-8", "replace"), self.csrf(holder).encode()):
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
