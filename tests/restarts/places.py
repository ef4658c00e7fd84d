"""Every place in the source that starts an asyncio task or a thread, and what brings that back when it ends."""

from __future__ import annotations

KEPT = "kept"
"""It lives as long as its process: `veredus.process.restarts` starts it again."""
SHORT = "short"
"""It does one thing; whoever started it sees or logs its failure."""
CALLER = "caller"
"""A tool or a client library: it ends with the call, and the caller gets its failure."""

PLACES = {
    ("app_server.py", "leave"): SHORT,
    ("app_server.py", "resolve"): SHORT,
    ("client/blocking_portal.py", "_running_loop"): CALLER,
    ("client/batches.py", "_start"): SHORT,
    ("client/task_listener.py", "_listening"): KEPT,
    ("dashboard/jobs.py", "start"): SHORT,
    ("gateway/background.py", "start"): SHORT,
    ("gateway/push_api.py", "start"): KEPT,
    ("gateway/supervisor.py", "main"): SHORT,
    ("gateway/gateway.py", "start"): KEPT,
    ("gateway/maintenance.py", "start"): KEPT,
    ("link/transports/tcp_acceptor.py", "_accept"): SHORT,
    ("peer/reconnector.py", "_refresh"): SHORT,
    ("peer/peer.py", "_start"): CALLER,
    ("scheduler/providers.py", "start"): KEPT,
    ("scheduler/providers.py", "_ask"): SHORT,
    ("scheduler/service.py", "start"): KEPT,
    ("process/signals.py", "done_unless"): SHORT,
    ("store/connection/batching.py", "_landed"): SHORT,
    ("store/connection/redis.py", "_connect"): SHORT,
    ("store/connection/redis.py", "_silent"): SHORT,
    ("store/connection/sentinels.py", "listen"): KEPT,
    ("store/connection/slot_map.py", "_learn"): SHORT,
    ("worker/canceller.py", "cancel"): SHORT,
    ("handlers/durable_run.py", "read"): SHORT,
    ("handlers/eager_runner.py", "start"): SHORT,
    ("handlers/executors/processes.py", "_write_result"): SHORT,
    ("handlers/executors/threads.py", "submit"): SHORT,
    ("handlers/reports.py", "_send"): SHORT,
    ("worker/liveness.py", "run"): KEPT,
    ("worker/role.py", "start"): KEPT,
    ("worker/roles/aggregator.py", "_follow"): SHORT,
    ("worker/roles/forwarder.py", "_forward"): SHORT,
    ("worker/roles/forwarder.py", "_forward_each"): SHORT,
    ("worker/roles/heartbeater.py", "__init__"): KEPT,
    ("worker/roles/heartbeater.py", "_beat_on"): KEPT,
    ("worker/roles/heartbeater.py", "stop"): SHORT,
    ("worker/roles/pending_watcher.py", "run"): KEPT,
    ("worker/roles/processor.py", "_send"): SHORT,
    ("worker/roles/wake_listener.py", "step"): KEPT,
    ("worker/settler.py", "_flush"): SHORT,
    ("worker/settler.py", "_release_children"): SHORT,
    ("worker/worker.py", "_begin"): KEPT,
    ("worker/shutdown.py", "finish"): SHORT,
    ("worker/worker.py", "_overran"): KEPT,
}
