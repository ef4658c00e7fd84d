"""The reference of the command line: the help of every command, as it prints it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from veredus.cli.main import cli

WIDTH = 100


def pages() -> dict[str, str]:
    parts = [
        "# Command line",
        "Every command with its `--help`. Exit codes: 0 all went well, 1 the command failed, 2 wrong usage, 3 the"
        " server cannot be reached.",
    ]
    for path, command, context in commands():
        mark = "#" * min(4, 1 + len(path))
        parts += [f"{mark} {' '.join(path)}", f"```text\n{command.get_help(context).rstrip()}\n```"]
    return {"cli.md": "\n\n".join(parts) + "\n"}


def commands() -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """`veredus` itself and everything below it that is listed."""
    root = click.Context(cli, info_name="veredus", terminal_width=WIDTH, max_content_width=WIDTH)
    yield from _walk(cli, root, ("veredus",))


def _walk(
    command: click.Command, context: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    yield path, command, context
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None:
            inner = click.Context(
                below, info_name=name, parent=context, terminal_width=WIDTH, max_content_width=WIDTH,
                **{key: value for key, value in below.context_settings.items() if key == "auto_envvar_prefix"},
            )  # fmt: skip
            yield from _walk(below, inner, (*path, name))
