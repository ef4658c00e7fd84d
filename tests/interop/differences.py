"""The differences that show in a dump: each turns what Asynq wrote into what Veredus is to write instead.

Every name here is a row of docs/asynq-differences.md; whatever differs beyond these fails the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from tests.interop.golden import Picture, golden_dump, golden_run, picture, seconds
from tests.support.golden import load

Rule = Callable[[Picture, Any], None]
RULES: dict[str, Rule] = {}


def expected(name: str, allowed: Collection[str] | None = None) -> Picture:
    """The golden picture with the allowed differences (all by default) applied."""
    result = picture(golden_dump(name), golden_run(name))
    for row, rule in RULES.items():
        if allowed is None or row in allowed:
            rule(result, load(name))
    return result


def rule(row: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES[row] = function
        return function

    return register


def _replace(found: Picture, old: Any, new: Any) -> None:
    for path, token in found.items():
        if token == old:
            found[path] = new


def _tasks(found: Picture, name: str, value: Any) -> list[str]:
    """Keys of the task hashes with this hash field."""
    return [path[0] for path, token in list(found.items()) if path[1:] == ("field", name) and token == value]


def _of_type(found: Picture, task_type: str) -> list[str]:
    return [path[0] for path, token in list(found.items()) if path[1:] == ("msg", "type") and token == task_type]


def _calls(golden: Any) -> list[Any]:
    return [call for call in golden["inputs"] if call["call"].startswith("Client.")]


@rule("due-rounded-up")
def due_rounded_up(found: Picture, golden: Any) -> None:
    _replace(found, "due, rounded down", "due, rounded up")


@rule("due-index")
def due_index(found: Picture, golden: Any) -> None:
    for path in list(found):
        prefix, _, name = path[0].rpartition(":")
        if path[1:2] == ("score",) and name in ("scheduled", "retry"):
            index = f"{prefix}:due"
            found[(index, "type")], found[(index, "ttl")] = "zset", "none"
            found[(index, "score", path[2])] = f"the millisecond in {name}"


@rule("wakeup-channel")
def wakeup_channel(found: Picture, golden: Any) -> None:
    for path, queues in list(found.items()):
        if path[-1] == "queues" and "asynq:cancel" in found[("channels",)]:
            found[("channels",)] |= {f"asynq:{{{queue}}}:delay_wakeup" for queue in queues}


@rule("batch-memory")
def batch_memory(found: Picture, golden: Any) -> None:
    servers = [call["config"]["queues"] for call in golden["inputs"] if call["call"] == "Server.Start"]
    served = {item.split("=")[0] for queues in servers for item in queues.split(",")}
    for queue in served & {call["given"].get("queue", "default") for call in _calls(golden)}:
        key = f"asynq:{{{queue}}}:batch:<worker>"
        found |= {(key, "type"): "string", (key, "ttl"): "10 min", (key, "value"): "a number"}


@rule("served-queue-registered")
def served_queue_registered(found: Picture, golden: Any) -> None:
    servers = [call["config"]["queues"] for call in golden["inputs"] if call["call"] == "Server.Start"]
    served = {item.split("=")[0] for queues in servers for item in queues.split(",")}
    if served:
        key = "asynq:queues"
        registered = frozenset(found.get((key, "members"), frozenset()))
        found |= {(key, "type"): "set", (key, "ttl"): "none", (key, "members"): registered | served}


@rule("worker-types")
def worker_types(found: Picture, golden: Any) -> None:
    for path in list(found):
        if path[0].startswith("asynq:servers:{") and path[1:] == ("ttl",):
            key = path[0].replace("asynq:servers:", "asynq:types:")
            found |= {(key, "type"): "string", (key, "ttl"): "10 s", (key, "value"): "types"}


@rule("worker-details")
def worker_details(found: Picture, golden: Any) -> None:
    for path in list(found):
        if path[0].startswith("asynq:servers:{") and path[1:] == ("ttl",):
            key = path[0].replace("asynq:servers:", "asynq:details:")
            found |= {(key, "type"): "hash", (key, "ttl"): "10 s"}
            found |= {(key, "field", "version"): "numbers", (key, "field", "memory"): "numbers"}


@rule("held-field")
def held_field(found: Picture, golden: Any) -> None:
    for key in _tasks(found, "state", "active"):
        found[(key, "field", "held")] = "a batch of a worker, and the end of the lease"


@rule("lease-length")
def lease_length(found: Picture, golden: Any) -> None:
    _replace(found, "30 s after the beat", "12 s after the beat")


@rule("losses-field")
def losses_field(found: Picture, golden: Any) -> None:
    for path, token in list(found.items()):
        if path[1:] == ("msg", "error_msg") and token == "asynq: task lease expired":
            found[(path[0], "field", "losses")] = "1"


@rule("recovery-at-once")
def recovery_at_once(found: Picture, golden: Any) -> None:
    if golden["scenario"] == "server-killed-recovered":
        _replace(found, "15 to 44 s after the failure", "0 to 0 s after the failure")


@rule("requeue-pending-since")
def requeue_pending_since(found: Picture, golden: Any) -> None:
    for key in _tasks(found, "state", "pending"):
        found[(key, "field", "pending_since")] = "a nanosecond of the run"


@rule("fractions-rounded-up")
def fractions_rounded_up(found: Picture, golden: Any) -> None:
    for call in _calls(golden):
        for name in ("timeout", "retention"):
            exact = seconds(call["given"].get(name, ""))
            if exact != int(exact):
                for key in _of_type(found, call["type"]):
                    found[(key, "msg", name)] = math.ceil(exact)


@rule("batch-headers")
def batch_headers(found: Picture, golden: Any) -> None:
    for call in _calls(golden):
        headers = call["given"].get("header")
        if call["call"] == "Client.BatchEnqueueContext" and headers:
            for key in _of_type(found, call["type"]):
                found[(key, "msg", "headers")] = dict(text.split("=", 1) for text in headers)
                found[(key, "msg", "field order")] += (15,)


@rule("scheduled-group")
def scheduled_group(found: Picture, golden: Any) -> None:
    for key in _tasks(found, "state", "scheduled"):
        if (key, "msg", "group_key") in found:
            found[(key, "field", "due_group")] = found[(key, "msg", "group_key")]


@rule("group-order")
def group_order(found: Picture, golden: Any) -> None:
    for key in _tasks(found, "state", "aggregating"):
        found[(key, "field", "group_seq")] = "an arrival in the run"


@rule("group-unique-key")
def group_unique_key(found: Picture, golden: Any) -> None:
    for key in _tasks(found, "state", "aggregating"):
        if (key, "msg", "unique_key") in found:
            found[(key, "field", "unique_key")] = found[(key, "msg", "unique_key")]


@rule("id-conflict-lock")
def id_conflict_lock(found: Picture, golden: Any) -> None:
    if golden["scenario"] != "unique-id-conflict":
        return
    prefix, second = "asynq:{default}:", golden["inputs"][2]
    lock = f"{prefix}unique:u:a:a9f0e61a137d86aa9db53465e0801612"
    for path, token in list(found.items()):
        if path[0] == f"{prefix}t:fixed-id-1":  # the third call, refused by Asynq, is a task like the first
            found[(f"{prefix}t:<task 0>", *path[1:])] = token
    new = f"{prefix}t:<task 0>"
    found[(lock, "value")] = found[(new, "msg", "id")] = "<task 0>"
    found[(new, "msg", "payload")] = second["given"]["payload"].encode()
    found[(new, "msg", "unique_key")] = found[(new, "field", "unique_key")] = lock
    found[(f"{prefix}pending", "items")] = ("<task 0>", "fixed-id-1")


@rule("error-text")
def error_text(found: Picture, golden: Any) -> None:
    """Of the errors that the handlers of the replay raise; Asynq's own texts stay."""
    for path, token in list(found.items()):
        if path[1:] == ("msg", "error_msg") and token.startswith(("intentional failure", "no use: ")):
            found[path] = f"RuntimeError: {token}"


@rule("traceback-field")
def traceback_field(found: Picture, golden: Any) -> None:
    for path, token in list(found.items()):
        # Where no handler raised it, there is nothing to say.
        nobodys = ("asynq: task lease expired", "context canceled", "handler not found")
        had_begun = (path[0], "msg", "deadline") not in found  # those with one are too late
        if path[1:] == ("msg", "error_msg") and had_begun and not token.startswith(nobodys):
            found[(path[0], "field", "traceback")] = "where the last failure was raised"


@rule("attempt-fields")
def attempt_fields(found: Picture, golden: Any) -> None:
    for path, token in list(found.items()):
        ran = path[1:] in (("msg", "error_msg"), ("msg", "completed_at"))
        is_given_back = golden["scenario"] == "shutdown-requeue" and (path[1:], token) == (("msg", "type"), "sleep")
        if ran or is_given_back:
            found[(path[0], "field", "attempts")] = "the number of records"


@rule("deferrals-field")
def deferrals_field(found: Picture, golden: Any) -> None:
    if golden["scenario"] == "retry-not-failure":
        for key in _tasks(found, "state", "retry"):
            found[(key, "field", "deferrals")] = "1"
