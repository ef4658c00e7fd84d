"""The front door of the embedded server: find, start, share and stop a real Redis or Valkey on this machine."""

from veredus.embedded.binary import Binary, find_binary
from veredus.embedded.foreground import run_foreground
from veredus.embedded.server import Server, ensure, status, stop

__all__ = ["Binary", "Server", "ensure", "find_binary", "run_foreground", "status", "stop"]
