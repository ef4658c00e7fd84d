"""Names and addresses of machines."""

from __future__ import annotations

import ipaddress


def is_address(host: str) -> bool:
    """Whether this is an address or localhost: a name that no resolver can point elsewhere."""
    try:
        return host == "localhost" or bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
