"""Command groups: accept the command names of Asynq's own tool, and suggest the nearest name for a typo."""

from __future__ import annotations

import difflib
from typing import Any

import click

from veredus.errors import ConfigError


class Group(click.Group):
    """Without arguments, prints its help on stderr and exits with 2, with every version of click."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True, color=ctx.color)
            ctx.exit(2)
        return super().parse_args(ctx, args)


class Commands(Group):
    """`aliases` are additional names of commands, which the help does not list."""

    def __init__(self, *args: Any, aliases: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aliases = aliases or {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if (
            args
            and not ctx.resilient_parsing
            and not args[0].startswith("-")
            and self.get_command(ctx, args[0]) is None
        ):
            names = self.list_commands(ctx)
            raise ConfigError(f"{ctx.info_name} command", args[0], f"one of {', '.join(names)}", known=names)
        return super().resolve_command(ctx, args)


class StartGroup(Group):
    """`veredus worker shop:app` runs the command `starts` of the group; other names are its commands."""

    def __init__(self, *args: Any, starts: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.starts = starts

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            if ":" not in args[0] and difflib.get_close_matches(args[0], self.commands, n=1, cutoff=0.8):
                raise ConfigError("command", args[0], "MODULE:APP or a command", known=self.commands)
            args = [self.starts, *args]
        return super().parse_args(ctx, args)
