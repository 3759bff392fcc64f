"""Command groups for methods, models, presets, data and devices, with the common verbs `list` and
`show NAME`, and shell completion of names."""

from __future__ import annotations

from typing import Any

import click

from communis.cli.help import Group


class Listing(Group):
    """A group whose default command is `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        help_requested = bool(args) and args[0] in ctx.help_option_names
        if not args or (args[0].startswith("-") and not help_requested):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class Named(Listing):
    """A group that takes any word other than a verb for a name and shows it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


def begins(names: list[str], typed: str) -> list[Any]:
    """The names to which the shell can complete the typed word."""
    return [name for name in names if name.startswith(typed)]
