"""The command `veredus`. An error is one line on stderr and an exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from veredus import __version__
from veredus.cli.groups import Group
from veredus.errors import (
    AuthError,
    ConfigError,
    ConnectionLost,
    EmbeddedError,
    NotReady,
    PayloadError,
    Unreachable,
    VeredusError,
)

EXIT_CODES = """\b
Exit codes:
  0  success
  1  a command failed: no such queue or task, the doctor found damage, no server runs
  2  wrong usage: an unknown option, a bad value, an app that cannot be loaded
  3  Redis or the gateway cannot be reached, or refuses the password or token
"""

# name -> (module, attribute); a module is imported only when its command is used
_COMMANDS = {
    "worker": ("veredus.cli.worker", "worker"),
    "dev": ("veredus.cli.dev", "dev"),
    "gateway": ("veredus.cli.gateway", "gateway_group"),
    "scheduler": ("veredus.cli.scheduler", "scheduler"),
    "peer": ("veredus.cli.peer", "peer"),
    "stats": ("veredus.cli.stats", "stats"),
    "errors": ("veredus.cli.errors", "errors"),
    "queue": ("veredus.cli.queue", "queue_group"),
    "emit": ("veredus.cli.emit", "emit"),
    "task": ("veredus.cli.task", "task_group"),
    "group": ("veredus.cli.views", "group_group"),
    "server": ("veredus.cli.views", "server_group"),
    "cron": ("veredus.cli.views", "cron_group"),
    "doctor": ("veredus.cli.doctor", "doctor"),
    "top": ("veredus.cli.top", "top"),
    "dash": ("veredus.cli.dash", "dash"),
    "metrics": ("veredus.cli.metrics", "metrics"),
    "redis": ("veredus.cli.redis", "redis_group"),
    "demo": ("veredus.cli.demo", "demo"),
    "completion": ("veredus.cli.completion", "completion"),
}


class LazyGroup(Group):
    """Imports a command when it is used, so that `veredus worker` does not import all others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not ctx.resilient_parsing and args[0] not in _COMMANDS and not args[0].startswith("-"):
            raise ConfigError("command", args[0], f"one of {', '.join(_COMMANDS)}", known=_COMMANDS)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="veredus")
def cli() -> None:
    """Tasks and messages on Redis that are never lost, never late, never out of order.

    \b
    Try it in a folder with a file shop.py that has `app = veredus.App()`:
      veredus worker shop:app
    """


def main(argv: list[str] | None = None) -> Any:
    """Run the command line. Known errors become one line on stderr."""
    try:
        # Without argv the command is the whole process: nothing runs after it.
        sys.exit(cli.main(args=argv, standalone_mode=False, obj=argv is None) or 0)
    except click.exceptions.Abort:
        fail("interrupted", 130)
    except click.ClickException as exc:
        if isinstance(exc, click.UsageError) and exc.ctx is not None:
            fail(f"{exc.format_message()} (see: {exc.ctx.command_path} --help)", 2)
        fail(exc.format_message(), 2)
    except (ConfigError, PayloadError) as exc:
        fail(str(exc), 2)
    except (ConnectionLost, AuthError, NotReady, EmbeddedError, Unreachable) as exc:
        fail(str(exc), 3)
    except VeredusError as exc:
        fail(str(exc), 1)
    except BrokenPipeError:
        sys.exit(0)


def fail(text: str, code: int) -> None:
    click.echo(f"veredus: {' '.join(text.splitlines())}", err=True)
    sys.exit(code)
