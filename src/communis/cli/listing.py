"""The verbs that methods, models, presets, data and devices share: list, and show NAME."""

from __future__ import annotations

from typing import Any

import click
from typer.core import TyperGroup


class Listing(TyperGroup):
    """A group that lists when nothing else is said."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_help = bool(args) and args[0] in ctx.help_option_names
        if not args or (args[0].startswith("-") and not asks_help):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class Named(Listing):
    """A group of nothing but names: one that is no verb is shown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


def begins(names: list[str], typed: str) -> list[Any]:
    """What the shell completes a word to."""
    return [name for name in names if name.startswith(typed)]
