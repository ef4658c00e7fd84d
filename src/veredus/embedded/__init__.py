"""The embedded server: find, start, share and stop a real Redis or Valkey on this machine."""

from veredus.embedded.binary import Binary, find_binary
from veredus.embedded.foreground import run_foreground
from veredus.embedded.server import EmbeddedServer, ensure, status, stop

__all__ = ["Binary", "EmbeddedServer", "ensure", "find_binary", "run_foreground", "status", "stop"]
