"""Which server wrote the data of a folder, and which program may therefore open them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from veredus.embedded.binary import Binary, candidates, version_key
from veredus.embedded.folder import Folder, write_whole
from veredus.errors import EmbeddedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Content of server.json. Product and version hold for good, the rest as long as that server lives."""

    product: str
    version: str
    binary: str
    socket: str
    pid: int


def write(folder: Folder, record: Record) -> None:
    """Remember it."""
    write_whole(folder.record, json.dumps(asdict(record), indent=2) + "\n")


def read(folder: Folder) -> Record | None:
    """What is remembered; None for a folder without a record."""
    try:
        values = json.loads(folder.record.read_text())
        version_key(values["version"])
        return Record(
            product=str(values["product"]),
            version=str(values["version"]),
            binary=str(values.get("binary", "")),
            socket=str(values.get("socket", "")),
            pid=int(values.get("pid", 0)),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise EmbeddedError(f"{folder.record} cannot be read ({exc}). {_how_to_tell(folder)}") from exc


def choose_binary(folder: Folder) -> Binary:
    """The first program on this machine that may open the folder's data; raises when none may.

    A server that does not understand the files may start *empty* on them instead of failing (Redis 6.2 does so on
    the files of Valkey 9), and the data would seem to be gone. So only the same product, not older, is let in.
    """
    found = candidates()
    record = read(folder)
    if record is None:
        if folder.has_data():
            raise EmbeddedError(
                f"{folder.path} holds data, but no {folder.record.name} to say who wrote them. {_how_to_tell(folder)}"
            )
        return found[0]
    for binary in found:
        if binary.product == record.product and version_key(binary.version) >= version_key(record.version):
            return binary
    here = ", ".join(map(str, found))
    raise EmbeddedError(
        f"the data in {folder.path} were written by {record.product} {record.version}, and here is only {here}, "
        f"which might not read them. Install {record.product} >= {record.version}, "
        "or point VEREDUS_DATA at another folder."
    )


def _how_to_tell(folder: Folder) -> str:
    return (
        f'Write e.g. {{"product": "valkey", "version": "9.1.2"}} into {folder.record} if you know who wrote the data, '
        "or point VEREDUS_DATA at another folder."
    )
