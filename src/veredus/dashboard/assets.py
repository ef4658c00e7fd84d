"""The static files, read once. Their addresses change with their content, so that browsers can cache them forever."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
}
FOREVER = "public, max-age=31536000, immutable"
_DIGEST = b"{{digest}}"


@dataclass(frozen=True, slots=True)
class Asset:
    data: bytes
    kind: str
    etag: str


@dataclass(frozen=True, slots=True)
class Assets:
    digest: str
    """Hash of all files. It is part of every address, because modules import each other by relative paths."""
    files: dict[str, Asset]
    page: Asset


@functools.cache
def assets() -> Assets:
    found = dict(_files(resources.files("veredus.dashboard") / "static", ""))
    digest = hashlib.sha256(b"".join(name.encode() + found[name] for name in sorted(found))).hexdigest()[:12]
    page = _asset("index.html", found.pop("index.html").replace(_DIGEST, digest.encode()))
    return Assets(digest, {name: _asset(name, data) for name, data in found.items()}, page)


def _files(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for one in folder.iterdir():
        if one.is_dir():
            found += _files(one, f"{prefix}{one.name}/")
        elif one.name[one.name.rfind(".") :] in KINDS:
            found.append((prefix + one.name, one.read_bytes()))
    return found


def _asset(name: str, data: bytes) -> Asset:
    return Asset(data, KINDS[name[name.rfind(".") :]], f'"{hashlib.sha256(data).hexdigest()[:16]}"')
