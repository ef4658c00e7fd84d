"""Which server wrote the data of a folder, and which program may therefore open it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from veredus.embedded.binary import Binary, candidates, version_key
from veredus.embedded.folder import Folder, write_whole
from veredus.errors import EmbeddedError


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecord:
    """The content of server.json. Product and version are valid for good, the rest while that server lives."""

    product: str
    version: str
    binary: str
    socket: str
    pid: int


def write(folder: Folder, record: DataRecord) -> None:
    """Write the record."""
    write_whole(folder.record, json.dumps(asdict(record), indent=2) + "\n")


def read(folder: Folder) -> DataRecord | None:
    """Read the record; None for a folder without one."""
    try:
        values = json.loads(folder.record.read_text())
        version_key(values["version"])
        return DataRecord(
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
    """The first program on this machine that may open the folder's data; raises if there is none.

    A server that cannot read the files may start *empty* on them instead of failing (Redis 6.2 does so on the files of
    Valkey 9), and the data would seem to be gone. So only the same product, in the same or a newer version, is
    accepted.
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
