"""Help texts that are shown as they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

WHOLE = 1000  # characters of a first sentence, which click would cut to what is left of a line


class Command(TyperCommand):
    """A command whose first sentence is wrapped in the list of its group."""

    def get_short_help_str(self, limit: int = WHOLE) -> str:
        return super().get_short_help_str(WHOLE)

    def get_help(self, ctx: click.Context) -> str:
        """Typer writes brackets for rich markup, with a backslash, also where there is none."""
        return super().get_help(ctx).replace("\\[", "[")


class Group(TyperGroup):
    """A group whose first sentence is wrapped in the list of the group above."""

    def get_short_help_str(self, limit: int = WHOLE) -> str:
        return super().get_short_help_str(WHOLE)


class Commands(typer.Typer):
    """A part of the command line whose commands are of the class `Command`."""

    def __init__(self, cls: type[Group] = Group, **options: Any) -> None:
        super().__init__(cls=cls, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=Command, **options)
