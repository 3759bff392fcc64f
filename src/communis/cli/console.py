"""Standard output and standard error: plain text, tables that fit the width, and JSON lines."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from communis.core.errors import readable, visible
from communis.core.finite import strict

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]
UNKNOWN_WIDTH = 110  # columns if the output is no terminal and COLUMNS is not set
LONGEST = 3000  # characters of a refusal
LEAST_TEXT = 30  # columns below which a sentence is hard to read
LEAST_NAME = 10  # columns below which a name is hard to read
GAP = 2  # columns between two columns of a table
ITEM = re.compile(r"[A-Z][\w ]*: ")  # how an item of a docstring begins, such as a deviation
SOURCE_WIDTH = 97  # columns of a docstring's first line, after its quotes


class Terminal(Console):
    """A console that prints text unchanged: a pip command such as .[edf] is not taken for markup,
    and control characters in names do not reach the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


_width_is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
out = Terminal(width=None if _width_is_known else UNKNOWN_WIDTH)
err = Terminal(stderr=True, soft_wrap=True)


def mistake(what: str, trace: str) -> str:
    """Returns the words for a mistake of ours. Its traceback goes into a file."""
    return (
        f"failed with {readable(what)}; this should not happen, please report it with "
        f"{_kept(trace)}"
    )


def _kept(trace: str) -> str:
    """Returns the file that holds a traceback, or why there is none."""
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="communis-traceback-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",  # of a name that is not UTF-8
        ) as file:
            file.write(trace)
    except OSError as error:
        return f"what you did (its traceback could not be written: {error.strerror or error})"
    return file.name


class LogToStderr(logging.Handler):
    """Prints log messages of the library, such as warnings about data, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "communis":
            style = "yellow" if record.levelno >= logging.WARNING else None
            err.print(record.getMessage(), style=style)


class Stacked:
    """A table without rules. Columns that do not fit beside the first one go into a further table
    below, so that no name and no number is cut. `text` columns hold sentences, which may be
    wrapped; `numbers` columns are aligned to the right. The first column is wrapped only where a
    further column does not fit beside its longest name."""

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
            yield self._table(part, options.max_width)

    def _parts(self, width: int) -> list[list[int]]:
        """The columns of each table; every table begins with the first column."""
        parts = [[0]]
        for i in range(1, len(self.heads)):
            part = parts[-1]
            if len(part) > 1 and self._width_of([*part, i]) > width:
                parts.append([0, i])
            else:
                part.append(i)
        return parts

    def _width_of(self, part: Sequence[int]) -> int:
        """The least width of a table of these columns."""
        return sum(self._least(column) for column in part) + GAP * (len(part) - 1)

    def _least(self, column: int) -> int:
        """The least width of a column, in characters of the terminal."""
        widest = max(map(cell_len, self._lines(column)))
        return min(widest, LEAST_TEXT) if self.heads[column] in self._text else widest

    def _lines(self, column: int) -> Iterable[str]:
        cells = [self.heads[column], *(row[column] for row in self._rows)]
        return (line for cell in cells for line in (cell.splitlines() or [""]))

    def _table(self, part: Sequence[int], width: int) -> Table:
        shows_heads = any(self.heads[i] for i in part)
        table = Table(box=None, header_style="bold", pad_edge=False, show_header=shows_heads)
        for i in part:
            head = self.heads[i]
            table.add_column(
                head,
                justify="right" if head in self._numbers else "left",
                overflow="fold",
                width=None if head in self._text else self._least(i),
            )
        if self._width_of(part) > width:
            others = self._width_of(part) - self._least(0)
            table.columns[0].width = max(LEAST_NAME, width - others)
        for row in self._rows:
            table.add_row(*(row[i] for i in part))
        return table


def listing(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()
) -> Stacked:
    """A table whose last column holds sentences."""
    table = Stacked(*heads, text=heads[-1:], numbers=numbers)
    for row in rows:
        table.add_row(*row)
    return table


def rewrapped(text: str, width: int) -> str:
    """Returns a docstring whose lines fit the width. A line goes on with the next one if that one
    is indented, or if its first word had no space left in the source and begins no item."""
    paragraphs: list[list[str]] = []
    full = False  # whether the last line had no space left for the first word of this one
    for line in text.splitlines():
        words = line.split()
        if paragraphs and paragraphs[-1] and words:
            least = len(paragraphs[-1][-1]) + 1 + len(words[0])
            full = least > SOURCE_WIDTH and not ITEM.match(line)
        if paragraphs and words and paragraphs[-1] and (full or line[0].isspace()):
            paragraphs[-1].append(line)
        else:
            paragraphs.append([line] if words else [])
    filled = []
    for lines in paragraphs:
        hanging = "    " if any(line[0].isspace() for line in lines[1:]) else ""
        filled.append(
            textwrap.fill(
                " ".join(" ".join(lines).split()),
                width,
                subsequent_indent=hanging,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return "\n".join(filled)


def say(event: Mapping[str, Any]) -> None:
    """Prints one line of strict JSON on standard output."""
    print(json.dumps(strict(event), default=str), flush=True)
