"""docs/gateway-protocol.md says what the code does: frames, codes, sizes and the bytes of every example."""

from __future__ import annotations

import re
from pathlib import Path

from veredus.model.frames import FRAMES, CloseCode, ErrorCode, Type
from veredus.wire.frame_json import NAMES
from veredus.wire.frames import codec
from veredus.wire.gateway_schema import MESSAGES

PAGE = (Path(__file__).parents[2] / "docs/gateway-protocol.md").read_text()


def _rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_every_frame_is_listed_with_its_number_name_and_fields() -> None:
    listed = {int(number): (name, side, fields.split(", ")) for number, name, side, fields in _rows("Frames")}
    assert listed == {
        int(number): (
            NAMES[number],
            "client" if number < Type.WELCOME else "server",
            list(MESSAGES[FRAMES[number].__name__]),
        )
        for number in Type
    }


def test_every_close_code_is_listed() -> None:
    assert [(int(code), name) for code, name, _ in _rows("Close codes")] == [
        (int(code), code.name.lower()) for code in CloseCode
    ]


def test_every_error_code_is_listed_and_whether_it_may_succeed_later() -> None:
    assert [(int(code), name, later == "yes") for code, name, later in _rows("Error codes")] == [
        (int(code), code.name.lower(), code.retryable) for code in ErrorCode
    ]


def test_sizes_are_those_of_the_schema() -> None:
    message = MESSAGES["Message"]
    for text in (
        f"token {MESSAGES['Hello']['token'].most:,} characters",
        f"title {message['title'].most:,}",
        f"content {message['content'].most:,}",
        f"error {message['error'].most:,}",
        f"metadata {message['metadata'].most} entries",
    ):
        assert text in " ".join(PAGE.split())
    assert {message[name].most for name in ("type", "group")} == {MESSAGES["Request"]["action"].most} == {256}


def test_the_bytes_of_the_examples() -> None:
    block = re.search(r"## Examples.*?```text\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    examples = [part.split("\n", 1) for part in block.group(1).strip().split("\n\n")]
    assert len(examples) >= 10
    for text, numbers in examples:
        data = bytes.fromhex(numbers)
        (from_json,) = codec("json").decoder(2**16).feed(text.encode())
        (from_protobuf,) = codec("protobuf").decoder(2**16).feed(data)
        assert from_json == from_protobuf
        assert codec("protobuf").encode(from_json) == data
        assert codec("json").encode(from_json) == text.encode() + b"\n"
