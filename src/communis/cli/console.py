"""Standard output and error: text as it stands, tables that fit, and lines of JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from communis.core.errors import visible
from communis.core.finite import strict

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]
UNKNOWN_WIDTH = 110  # columns of what is no terminal and does not say
LEAST_TEXT = 30  # columns that a sentence needs to be read


class Terminal(Console):
    """A console that shows text as it stands: a pip command such as .[edf] is no markup,
    and nothing in a name steers the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


_told = sys.stdout.isatty() or "COLUMNS" in os.environ
out = Terminal(width=None if _told else UNKNOWN_WIDTH)
err = Terminal(stderr=True, soft_wrap=True)


class LogToStderr(logging.Handler):
    """What the library says while it reads data, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "communis":
            style = "yellow" if record.levelno >= logging.WARNING else None
            err.print(record.getMessage(), style=style)


class Stacked:
    """A table without lines. Columns that do not fit beside the first go into a further table
    below, so that no name and no digit is cut; `text` columns are sentences, which may be broken
    into lines, and `numbers` stand at the right."""

    def __init__(self, *heads: str, text: Sequence[str] = (), numbers: Sequence[str] = ()) -> None:
        self.heads = heads
        self._text = text
        self._numbers = numbers
        self._rows: list[list[str]] = []

    def add_row(self, *cells: str) -> None:
        self._rows.append([visible(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for i, part in enumerate(self._parts(options.max_width)):
            if i:
                yield ""
            yield self._table(part)

    def _parts(self, width: int) -> list[list[int]]:
        """The columns of every table; the first column leads each."""
        parts = [[0]]
        for i in range(1, len(self.heads)):
            part = parts[-1]
            if len(part) > 1 and sum(self._least(c) + 2 for c in (*part, i)) - 2 > width:
                parts.append([0, i])
            else:
                part.append(i)
        return parts

    def _least(self, column: int) -> int:
        """How many columns of the terminal it needs at least."""
        widest = max(map(cell_len, self._lines(column)))
        return min(widest, LEAST_TEXT) if self.heads[column] in self._text else widest

    def _lines(self, column: int) -> Iterable[str]:
        cells = [self.heads[column], *(row[column] for row in self._rows)]
        return (line for cell in cells for line in (cell.splitlines() or [""]))

    def _table(self, part: Sequence[int]) -> Table:
        heads = any(self.heads[i] for i in part)
        table = Table(box=None, header_style="bold", pad_edge=False, show_header=heads)
        for i in part:
            head = self.heads[i]
            text = head in self._text
            right = head in self._numbers
            table.add_column(
                head,
                justify="right" if right else "left",
                overflow="fold",
                min_width=None if text else self._least(i),
            )
        for row in self._rows:
            table.add_row(*(row[i] for i in part))
        return table


def listing(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()
) -> Stacked:
    """A table of names whose last column is a sentence."""
    table = Stacked(*heads, text=heads[-1:], numbers=numbers)
    for row in rows:
        table.add_row(*row)
    return table


def say(event: Mapping[str, Any]) -> None:
    """One line of strict JSON on standard output."""
    print(json.dumps(strict(event), default=str), flush=True)
