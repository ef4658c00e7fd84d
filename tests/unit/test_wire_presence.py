"""Records of servers, workers and schedulers: the bytes are Asynq's."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.support import golden
from veredus.model.message import TaskMessage
from veredus.wire.messages import as_dict
from veredus.wire.presence import ServerRecord, encode_server, encode_worker
from veredus.wire.schema import MESSAGES, message_class

VECTORS = golden.load("vectors")
KINDS = {
    "server_info": "ServerInfo",
    "worker_info": "WorkerInfo",
    "scheduler_entry": "SchedulerEntry",
    "scheduler_enqueue_event": "SchedulerEnqueueEvent",
}
CASES = [(kind, vector) for kind in KINDS for vector in VECTORS[kind]]
IDS = [f"{kind}-{vector['name']}" for kind, vector in CASES]
CONTRACT = {
    "ServerInfo": "0a05686f73743110d2091a057369642d31200a2a0b0a0764656661756c74100130013a06616374697665420b0880e2cfaa"
    "0610959aef3a4802",
    "WorkerInfo": "0a05686f73743110d2091a057369642d3122067461736b2d312a0a656d61696c3a73656e643201703a0764656661756c74"
    "420b0880e2cfaa0610959aef3a4a0b0888f0cfaa0610959aef3a",
    "SchedulerEntry": "0a07656e7472792d31120a406576657279203330731a047469636b2201702a0c517565756528226c6f7722292a0b4d"
    "617852657472792833293206089ee2cfaa063a0b088092b8c398feffffff01",
    "SchedulerEnqueueEvent": "0a067461736b2d31120b0880e2cfaa0610959aef3a",
}


def built(kind: str, fields: dict[str, Any]) -> Any:
    record = message_class(KINDS[kind])()
    for name, value in fields.items():
        _, wire_type = MESSAGES[KINDS[kind]][name]
        if wire_type == "Timestamp":
            getattr(record, name).seconds = value["seconds"]
            getattr(record, name).nanos = value["nanos"]
            getattr(record, name).SetInParent()
        elif wire_type == "bytes":
            setattr(record, name, golden.raw(value))
        elif wire_type.startswith("map"):
            getattr(record, name).update(value or {})
        elif wire_type.startswith("repeated"):
            getattr(record, name).extend(value or [])
        else:
            setattr(record, name, value)
    return record


@pytest.mark.parametrize(("kind", "vector"), CASES, ids=IDS)
def test_gos_bytes(kind: str, vector: dict[str, Any]) -> None:
    record = built(kind, vector["fields"])
    assert record.SerializeToString(deterministic=True) == base64.b64decode(vector["encoded_b64"])


@pytest.mark.parametrize("name", CONTRACT)
def test_the_vectors_of_the_contract_are_read_whole(name: str) -> None:
    data = bytes.fromhex(CONTRACT[name])
    record = message_class(name)()
    record.ParseFromString(data)
    assert record.SerializeToString(deterministic=True) == data
    assert set(as_dict(name, data)) == set(MESSAGES[name])


@pytest.mark.parametrize("vector", VECTORS["server_info"], ids=lambda vector: vector["name"])
def test_a_server_record_has_gos_bytes(vector: dict[str, Any]) -> None:
    fields = dict(vector["fields"])
    started = fields.pop("start_time")
    record = ServerRecord(
        started_at=started["seconds"] + started["nanos"] / 1e9, **{**fields, "queues": fields["queues"] or {}}
    )
    mine = as_dict("ServerInfo", encode_server(record))
    gos = as_dict("ServerInfo", base64.b64decode(vector["encoded_b64"]))
    assert abs(mine.pop("start_time").ToNanoseconds() - gos.pop("start_time").ToNanoseconds()) < 1000
    assert mine == gos
    if not started["nanos"]:
        assert encode_server(record) == base64.b64decode(vector["encoded_b64"])


@pytest.mark.parametrize("vector", VECTORS["worker_info"], ids=lambda vector: vector["name"])
def test_a_worker_record_has_gos_bytes(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    message = TaskMessage(
        type=fields["task_type"],
        payload=golden.raw(fields["task_payload"]),
        id=fields["task_id"],
        queue=fields["queue"],
    )
    start, deadline = (fields[name]["seconds"] + fields[name]["nanos"] / 1e9 for name in ("start_time", "deadline"))
    data = encode_worker(fields["host"], fields["pid"], fields["server_id"], message, start, deadline)
    mine, gos = as_dict("WorkerInfo", data), as_dict("WorkerInfo", base64.b64decode(vector["encoded_b64"]))
    for name in ("start_time", "deadline"):
        assert abs(mine.pop(name).ToNanoseconds() - gos.pop(name).ToNanoseconds()) < 1000
    assert mine == gos


def test_timestamps_are_always_written_even_at_the_epoch() -> None:
    message = TaskMessage(type="t", id="1", queue="q")
    found = as_dict("WorkerInfo", encode_worker("h", 1, "s", message, 0.0, 0.0))
    assert {"start_time", "deadline"} <= set(found)


def test_a_record_shows_the_beginning_of_a_large_payload() -> None:
    message = TaskMessage(type="t", id="1", queue="q", payload=b"x" * 1001)
    assert as_dict("WorkerInfo", encode_worker("h", 1, "s", message, 0.0, 0.0))["task_payload"] == b"x" * 1000


def test_records_that_go_stored_are_read_whole() -> None:
    seen = set()
    for scenario in golden.scenarios():
        for key in golden.load(scenario)["redis"]["keys"]:
            values = [key["value"]] if "value" in key else key.get("fields", []) + key.get("items", [])
            for value in values + key.get("members", []):
                name = value.get("protobuf", "").removeprefix("asynq.") if isinstance(value, dict) else ""
                if name:
                    seen.add(name)
                    assert set(as_dict(name, golden.raw(value))) == set(value["decoded"]), (scenario, key["key"])
    assert seen == {"TaskMessage", "ServerInfo", "WorkerInfo", "SchedulerEntry", "SchedulerEnqueueEvent"}
