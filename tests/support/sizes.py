"""How large a test is: small in `make test`, large in `make crash`, `make chaos` and `make full`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

FULL = bool(os.environ.get("VEREDUS_TEST_FULL"))


def size(small: T, full: T) -> T:
    return full if FULL else small
