"""What we rely on beyond what picows, aioquic and uvicorn promise. A new version that fails here needs a look at the
adapter; until then the upper bounds in pyproject.toml keep it away."""

from __future__ import annotations

import ast
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import uvicorn
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionId
from aioquic.quic.stream import QuicStream
from picows.picows import WSProtocol  # type: ignore[attr-defined]
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

ROOT = Path(__file__).parents[2]
TRANSPORTS = ROOT / "src/veredus/link/transports"


def test_the_private_parts_of_aioquic_that_the_adapter_needs() -> None:
    client = QuicConnection(configuration=QuicConfiguration(is_client=True))
    client.connect(("127.0.0.1", 1), now=0.0)
    assert client._streams == {}
    assert client._handshake_complete is False
    assert client._close_event is None
    assert isinstance(client._peer_cid, QuicConnectionId)
    assert client._peer_cid_available == []
    assert isinstance(client._host_cids[0], QuicConnectionId)
    assert {"cid", "stateless_reset_token", "was_sent"} <= set(QuicConnectionId.__dataclass_fields__)
    assert callable(QuicConnection._replenish_connection_ids)
    sender = QuicStream(stream_id=0).sender
    sender.write(b"abc")
    assert sender._buffer_stop - sender._buffer_start == 3
    wanted = {"original_destination_connection_id", "retry_source_connection_id"}
    assert wanted <= set(inspect.signature(QuicConnection.__init__).parameters)


def test_nothing_but_the_adapter_touches_private_parts_of_aioquic() -> None:
    for path in sorted((ROOT / "src/veredus").rglob("*.py")):
        if path.name == "quic_library.py" or "aioquic" not in path.read_text():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                owner = ast.unparse(node.value).rpartition(".")[2]
                assert owner not in ("_quic", "quic", "sender", "stream"), f"{path}:{node.lineno} {ast.unparse(node)}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aioquic"):
                assert "._" not in (node.module or ""), f"{path}:{node.lineno}"


def test_the_private_parts_of_picows_that_the_listener_needs() -> None:
    assert issubclass(WSProtocol, object)
    for name in ("connection_made", "connection_lost"):
        assert callable(getattr(WSProtocol, name))
    source = (TRANSPORTS / "websocket.py").read_text()
    given = ast.parse(source[source.index("class _Protocol(") : source.index("class WebSocketListener")])
    calls = [node for node in ast.walk(given) if isinstance(node, ast.Call) and node.keywords]
    assert {one.arg for one in calls[0].keywords} == {
        "host_port", "ws_path", "is_client_side", "ws_listener_factory", "logger", "disconnect_on_exception",
        "websocket_handshake_timeout", "enable_auto_ping", "auto_ping_idle_timeout", "auto_ping_reply_timeout",
        "auto_ping_strategy", "enable_auto_pong", "max_frame_size", "extra_headers", "read_buffer_init_size",
    }  # fmt: skip
    assert version("picows").split(".")[:2] == ["2", "3"]


def test_the_parts_of_uvicorn_that_the_http_server_needs() -> None:
    assert {"more_body", "response_complete"} <= set(RequestResponseCycle.__init__.__code__.co_names)
    assert list(inspect.signature(uvicorn.Server.startup).parameters) == ["self", "sockets"]


def test_libraries_whose_private_parts_are_used_have_an_upper_bound() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gateway"]
    for name in ("aioquic", "picows"):
        (bound,) = [one for one in extras if one.startswith(name)]
        assert ",<" in bound
