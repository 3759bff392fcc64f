"""Survey: the files of a folder by their columns, and which of them are recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from communis.core.errors import CommunisError
from communis.data.own.columns import END, FILE, START, FileGuess, column_like, file_format
from communis.data.own.columns import guess_columns as guess
from communis.data.own.manifest import NAME, Files
from communis.data.own.tables import TEXT, header

FORMATS = (TEXT, (".parquet",), (".npy",))
MOST_KINDS = 30  # kinds of files whose columns are looked at, the largest ones
SAMPLES = 5  # files of a kind whose columns are looked at
FEWEST_ROWS = 20  # of a recording, beside others that have more
FEW_FILES = 0.1  # a kind with a smaller share of the files of the largest one is no sensor
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Kind:
    """Files with the same columns."""

    files: tuple[str, ...]  # paths below the folder, sorted
    how: Files
    columns: tuple[str, ...]
    size: int  # bytes of all files
    guess: FileGuess  # of the largest file

    @property
    def suffix(self) -> str:
        return Path(self.files[0]).suffix

    @property
    def start(self) -> str | None:
        """The column with the begin of intervals."""
        return column_like(self.columns, START) if self.how.header else None

    @property
    def end(self) -> str | None:
        return column_like(self.columns, END) if self.how.header else None

    @property
    def file(self) -> str | None:
        """The column with names of files."""
        return column_like(self.columns, FILE) if self.how.header else None

    @property
    def is_table_of_labels(self) -> bool:
        """Whether its rows say from when to when, or in which file, a class was there."""
        if "label" not in self.guess.keys or self.guess.time is not None:
            return False
        return bool((self.start and self.end) or self.file)


@dataclass(frozen=True)
class Survey:
    """The files of a folder."""

    recordings: tuple[Kind, ...]  # the largest first
    labels: tuple[Kind, ...]  # tables of intervals, or of the classes of files
    side: tuple[Kind, ...]  # other tables
    unread: tuple[tuple[str, str], ...]  # files that are no tables, with the reason
    json: tuple[str, ...]

    @property
    def others(self) -> Iterator[str]:
        """All tables and texts that are no recordings."""
        for kind in (*self.labels, *self.side):
            yield from kind.files
        yield from (file for file, _ in self.unread)


def survey(folder: Path, progress: Progress) -> Survey:
    """Looks at the head of every file, and at the columns of some of every kind."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and not _hidden(p, folder))
    suffixes = _main_format(folder, paths)
    tables = [p for p in paths if p.suffix.lower() in suffixes]
    heads: dict[tuple[str, Files, tuple[str, ...]], list[Path]] = {}
    unread: list[tuple[str, str]] = []
    for number, path in enumerate(tables):
        progress("looking at files", number, len(tables))
        try:
            how = file_format(path)
            heads.setdefault((path.suffix, how, header(path, how)), []).append(path)
        except CommunisError as error:
            unread.append((path.relative_to(folder).as_posix(), str(error)))
    progress("looking at files", len(tables), len(tables))
    kinds = _kinds(folder, _comparable(heads), unread, progress)
    if not kinds:
        unknown = len(paths) > len(tables)
        raise _no_tables(folder, paths) if unknown else CommunisError(unread[0][1])
    jsons = tuple(p.relative_to(folder).as_posix() for p in paths if p.suffix.lower() == ".json")
    return _sorted(kinds, tuple(unread), jsons)


def _hidden(path: Path, folder: Path) -> bool:
    return path.name == NAME or any(p.startswith(".") for p in path.relative_to(folder).parts)


def _main_format(folder: Path, paths: Sequence[Path]) -> tuple[str, ...]:
    """Returns the endings of the format that holds most bytes."""
    sizes = {}
    for suffixes in FORMATS:
        files = [path for path in paths if path.suffix.lower() in suffixes]
        if files:
            sizes[suffixes] = sum(path.stat().st_size for path in files)
    if not sizes:
        raise _no_tables(folder, paths)
    return max(sizes, key=lambda suffixes: sizes[suffixes])


def _no_tables(folder: Path, paths: Sequence[Path]) -> CommunisError:
    counts = Counter(path.suffix.lower() for path in paths)
    kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))[:5]
    there = f"; there are files of {', '.join(filter(None, kinds))}" if any(kinds) else ""
    matlab = ": write their arrays to NPY files, or their columns to CSV files"
    return CommunisError(
        f"{folder}: no CSV, Parquet or NPY file in it or in its folders{there}"
        f"{matlab if '.mat' in kinds else ''}"
    )


def _comparable(
    heads: dict[tuple[str, Files, tuple[str, ...]], list[Path]],
) -> dict[tuple[str, Files, tuple[str, ...]], list[Path]]:
    """Returns the files by head. The decimal mark shows in numbers only, so a file of whole numbers
    joins those with a decimal comma."""
    joined = dict(heads)
    for (suffix, how, columns), files in heads.items():
        comma = (suffix, replace(how, decimal=","), columns)
        if how.decimal == "." and comma in heads:
            joined[comma] = sorted([*joined[comma], *files])
            del joined[suffix, how, columns]
    return joined


def _kinds(
    folder: Path,
    heads: dict[tuple[str, Files, tuple[str, ...]], list[Path]],
    unread: list[tuple[str, str]],
    progress: Progress,
) -> list[Kind]:
    """Returns the kinds of files, the largest first; what cannot be read is added to `unread`."""
    sizes = {head: [p.stat().st_size for p in files] for head, files in heads.items()}
    ordered = sorted(heads, key=lambda head: -sum(sizes[head]))
    kinds: list[Kind] = []
    for number, head in enumerate(ordered):
        progress("reading columns", number, len(ordered))
        files = heads[head]
        names = tuple(path.relative_to(folder).as_posix() for path in files)
        if len(kinds) == MOST_KINDS:
            why = f"is of one of more than {MOST_KINDS} kinds"
            unread += [(name, f"{name}: {why}") for name in names]
            continue
        largest = files[sizes[head].index(max(sizes[head]))]
        try:
            columns = guess(largest, head[1])
        except CommunisError as error:
            unread += [(name, str(error)) for name in names]
            continue
        kinds.append(Kind(names, head[1], head[2], sum(sizes[head]), columns))
    progress("reading columns", len(ordered), len(ordered))
    return kinds


def _sorted(
    kinds: Sequence[Kind],
    unread: tuple[tuple[str, str], ...],
    jsons: tuple[str, ...],
) -> Survey:
    """Returns the kinds by what they are: recordings, tables of labels, or other tables."""
    sensed = [k for k in kinds if k.guess.modalities and not k.is_table_of_labels] or kinds[:1]
    main = sensed[0]
    recordings: list[Kind] = []
    labels: list[Kind] = []
    side: list[Kind] = []
    for kind in kinds:
        if kind is main or _is_recording(kind, main):
            recordings.append(kind)
        elif kind.is_table_of_labels:
            labels.append(kind)
        else:
            side.append(kind)
    return Survey(tuple(recordings), tuple(labels), tuple(side), unread, jsons)


def _is_recording(kind: Kind, main: Kind) -> bool:
    """Returns whether these files hold another sensor, or the labels over time, of the recordings
    in the files of the main kind."""
    if kind.suffix != main.suffix or kind.is_table_of_labels or kind.guess.rows < FEWEST_ROWS:
        return False
    if len(kind.files) < FEW_FILES * len(main.files):
        return False
    if not kind.guess.modalities and "label" not in kind.guess.keys:
        return False
    return (kind.guess.time is None) == (main.guess.time is None)


def looked_at(folder: Path, files: Sequence[str], how: Files) -> list[FileGuess]:
    """Returns what the columns of some of these files seem to be, the first and the last among
    them."""
    step = max(1, len(files) // (SAMPLES - 1))
    guesses = []
    for name in dict.fromkeys([*files[::step][: SAMPLES - 1], files[-1]]):
        try:
            guesses.append(guess(folder / name, how))
        except CommunisError:
            continue  # reading them names the problem
    return guesses
