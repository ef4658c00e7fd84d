"""Asynq's protobuf messages, described as data and built at first use: no generated code, and any protobuf runtime."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_PACKAGE = "asynq"

# name -> (number, type); `map<string,X>` and `repeated X` as in a .proto file.
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "TaskMessage": {
        "type": (1, "string"),
        "payload": (2, "bytes"),
        "id": (3, "string"),
        "queue": (4, "string"),
        "retry": (5, "int32"),
        "retried": (6, "int32"),
        "error_msg": (7, "string"),
        "timeout": (8, "int64"),
        "deadline": (9, "int64"),
        "unique_key": (10, "string"),
        "last_failed_at": (11, "int64"),
        "retention": (12, "int64"),
        "completed_at": (13, "int64"),
        "group_key": (14, "string"),
        "headers": (15, "map<string,string>"),
    },
    "ServerInfo": {
        "host": (1, "string"),
        "pid": (2, "int32"),
        "server_id": (3, "string"),
        "concurrency": (4, "int32"),
        "queues": (5, "map<string,int32>"),
        "strict_priority": (6, "bool"),
        "status": (7, "string"),
        "start_time": (8, "Timestamp"),
        "active_worker_count": (9, "int32"),
    },
    "WorkerInfo": {
        "host": (1, "string"),
        "pid": (2, "int32"),
        "server_id": (3, "string"),
        "task_id": (4, "string"),
        "task_type": (5, "string"),
        "task_payload": (6, "bytes"),
        "queue": (7, "string"),
        "start_time": (8, "Timestamp"),
        "deadline": (9, "Timestamp"),
    },
    "SchedulerEntry": {
        "id": (1, "string"),
        "spec": (2, "string"),
        "task_type": (3, "string"),
        "task_payload": (4, "bytes"),
        "enqueue_options": (5, "repeated string"),
        "next_enqueue_time": (6, "Timestamp"),
        "prev_enqueue_time": (7, "Timestamp"),
    },
    "SchedulerEnqueueEvent": {
        "task_id": (1, "string"),
        "enqueue_time": (2, "Timestamp"),
    },
}

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "bool": _Field.TYPE_BOOL,
}


@cache
def message_class(name: str) -> Any:
    """The class of a message, from a separate pool, so that it cannot clash with another `asynq` package."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(_describe())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _describe() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="veredus/asynq.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            _add_field(message, field_name, number, kind)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("map<"):
        _, value_kind = kind[4:-1].split(",")
        entry = message.nested_type.add(name=name.title().replace("_", "") + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_TYPES["string"])
        entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL, type=_TYPES[value_kind])
        field.label = _Field.LABEL_REPEATED
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"
        return
    if kind.startswith("repeated "):
        field.label = _Field.LABEL_REPEATED
        kind = kind.removeprefix("repeated ")
    if kind == "Timestamp":
        field.type = _Field.TYPE_MESSAGE
        field.type_name = ".google.protobuf.Timestamp"
    else:
        field.type = _TYPES[kind]
