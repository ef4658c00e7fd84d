"""Every place in the source that starts an asyncio task or a thread, and what brings that back when it ends."""

from __future__ import annotations

KEPT = "kept"
"""It lives as long as its process: `veredus.restarts` starts it again."""
SHORT = "short"
"""It does one thing; whoever started it sees or logs its failure."""
CALLER = "caller"
"""A tool or a client library: it ends with the call, and the caller gets its failure."""

PLACES = {
    ("app.py", "resolve"): SHORT,
    ("client/blocking.py", "_running_loop"): CALLER,
    ("client/client.py", "_start"): SHORT,
    ("client/waiting.py", "_listening"): KEPT,
    ("dashboard/jobs.py", "start"): SHORT,
    ("gateway/errands.py", "start"): SHORT,
    ("gateway/http.py", "start"): KEPT,
    ("gateway/processes.py", "main"): SHORT,
    ("gateway/server.py", "start"): KEPT,
    ("gateway/upkeep.py", "start"): KEPT,
    ("link/transports/door.py", "_accept"): SHORT,
    ("peer/line.py", "_refresh"): SHORT,
    ("peer/peer.py", "_start"): CALLER,
    ("scheduler/providers.py", "start"): KEPT,
    ("scheduler/providers.py", "_ask"): SHORT,
    ("scheduler/service.py", "start"): KEPT,
    ("signals.py", "done_unless"): SHORT,
    ("store/batching.py", "_landed"): SHORT,
    ("store/redis.py", "_connect"): SHORT,
    ("store/redis.py", "_silent"): SHORT,
    ("store/sentinel.py", "listen"): KEPT,
    ("store/slots.py", "_learn"): SHORT,
    ("worker/canceller.py", "told"): SHORT,
    ("worker/carrier.py", "carry"): SHORT,
    ("worker/carrier.py", "_go_on"): SHORT,
    ("worker/executors/processes.py", "_write_result"): SHORT,
    ("worker/executors/threads.py", "submit"): SHORT,
    ("worker/reports.py", "_send"): SHORT,
    ("worker/role.py", "start"): KEPT,
    ("worker/roles/aggregator.py", "_follow"): SHORT,
    ("worker/roles/forwarder.py", "_look"): SHORT,
    ("worker/roles/forwarder.py", "_look_at_each"): SHORT,
    ("worker/roles/heartbeater.py", "__init__"): KEPT,
    ("worker/roles/heartbeater.py", "_beat_on"): KEPT,
    ("worker/roles/heartbeater.py", "stop"): SHORT,
    ("worker/roles/processor.py", "run"): KEPT,
    ("worker/settlement.py", "_flush"): SHORT,
    ("worker/worker.py", "_begin"): KEPT,
    ("worker/worker.py", "_finish_running"): SHORT,
    ("worker/worker.py", "_overran"): KEPT,
}
