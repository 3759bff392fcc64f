"""Guesses what the columns of a file are, from their names and the first rows."""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.data.own.batches import batch_rate
from communis.data.own.filenames import WORDS
from communis.data.own.manifest import Column, Files, Part, TimeUnit
from communis.data.own.tables import (
    PLAIN,
    SECONDS,
    TEXT,
    WHOLE,
    header,
    lines_above,
    parquet,
    rows_of,
)
from communis.data.own.units import unit_name
from communis.data.recordings.files import reading

if TYPE_CHECKING:
    import pandas as pd

ROWS = 20_000  # number of rows that are read
UNKNOWN_RATE = 50.0  # placeholder in the manifest, which the user must correct
MANY_CLASSES = 50  # a column with more different values is not a label
TIME = r"t|ts|date|epoch|seconds|millis|.*time.*|.*elapsed.*|.*(?:^|_)stamp.*"
FILE = "file.*|.*file_?name|path|recording|recording_(?:id|name)|name"
START = "start.*|begin.*|onset|from|t0|t_?start|.*_start"
END = "end.*|stop.*|offset|to|t1|t_?(?:end|stop)|.*_(?:end|stop)|finish.*"
ALIASES = {"a": "acc", "g": "gyro", "m": "mag", "": "sensor"}
UNITS = {"hr": "bpm", "heart": "bpm", "heart_rate": "bpm", "heartrate": "bpm", "bpm": "bpm"}
FEWEST_STAMPS = 10  # rows from which a column without a name can be time, or constant
ROW_NUMBERS = ("", "index", "index_level_0", "row", "no", "nr")  # names of columns without meaning
HEAD = 1 << 16  # characters from which the format of a text file is guessed
FORMAT_LINES = 50  # lines of them, below comments
MOST_ABOVE = 30  # lines of a preamble without a sign for comments
COMMENTS = "%#"  # signs at the beginning of comments above the rows
REGULAR = 0.8  # share of lines with the same number of columns, at least
SINCE_1970 = (9e8, 2.5e9)  # seconds, of the years 1998 to 2049
LARGEST_STEPS: dict[TimeUnit, float] = {"s": 2, "ms": 2e3, "us": 2e6, "ns": np.inf}
USUAL_RATES = (0.2, 999.0)  # Hz; a unit of time stamps with another rate is not likely
UNITS_OF_TIME: dict[str, TimeUnit] = {"s": "s", "ms": "ms", "us": "us", "ns": "ns"}
SPELLED = {"milli": "ms", "micro": "us", "nano": "ns", "second": "s"}  # in names, in this order


@dataclass(frozen=True)
class Timing:
    """What the column of time stamps tells."""

    column: Column | None = None  # None: there is none
    unit: TimeUnit = "s"
    rate: float = UNKNOWN_RATE  # samples per second
    batched: bool = False  # whether many rows share a time stamp
    unit_named: bool = True  # whether the name of the column says its unit
    ends: tuple[float, float] = (0.0, 0.0)  # first and last time stamp, in seconds


@dataclass(frozen=True)
class FileGuess:
    """The guessed roles of the columns of a file."""

    modalities: Mapping[str, Part]
    keys: Mapping[str, Column]  # columns of subject, session, trial, scene and label
    timing: Timing = field(default_factory=Timing)
    remarks: tuple[str, ...] = ()
    by_values: tuple[str, ...] = ()  # keys that no name tells, only the values
    rows: int = 0  # those that were looked at
    doubtful: Mapping[str, str] = field(default_factory=dict)  # modality -> doubt about its unit

    @property
    def time(self) -> Column | None:
        return self.timing.column

    @property
    def rate(self) -> float:
        return self.timing.rate


def file_format(path: Path) -> Files:
    """Returns the format of a file: delimiter, decimal mark and header."""
    if path.suffix.lower() not in TEXT:
        return Files(header=path.suffix.lower() != ".npy")
    with reading(path, "text file", PLAIN):
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read(HEAD)
        if not text.strip():
            raise CommunisError(f"{path}: empty")
        lines = text.splitlines(keepends=True)
        if len(text) == HEAD and len(lines) > 1:
            lines.pop()  # it is cut
        sign = text.lstrip()[0]
        if sign not in COMMENTS:
            return _text_format(lines, [i for i, line in enumerate(lines) if line.strip()])
        full = [i for i, line in enumerate(lines) if line.strip(" \t\r\n;,")]
        rows = [i for i in full if not lines[i].lstrip().startswith(sign)]
        if not rows:
            raise CommunisError(f"{path}: holds no rows, only lines that begin with {sign!r}")
        how = _text_format(lines, rows)
        if not how.header and rows[0] and _names_columns(lines[rows[0] - 1], lines[rows[0]], how):
            return replace(how, header=True, skip=rows[0] - 1)
        return replace(how, skip=0, comment=sign)


def _names_columns(above: str, row: str, how: Files) -> bool:
    """Returns whether a comment has as many cells as a row, and no numbers: names of columns."""
    names = next(csv.reader([above], delimiter=how.delimiter), [])
    cells = next(csv.reader([row], delimiter=how.delimiter), [])
    return len(names) == len(cells) and not any(_is_number(name) for name in names)


def _text_format(lines: list[str], rows: list[int]) -> Files:
    """Returns the format of a text file that begins with these lines. rows: the numbers of lines
    that may be rows."""
    start = [lines[i] for i in rows[:FORMAT_LINES]]

    def preference(delimiter: str) -> tuple[int, bool, bool, int]:
        table = csv.reader(start, delimiter=delimiter)
        # A delimiter at the end of the lines need not be the one between columns.
        widths = [len(row) - (len(row) > 1 and not row[-1].strip()) for row in table]
        usual, count = Counter(widths).most_common(1)[0]
        below = widths[-max(1, len(widths) // 3) :]
        alike = (count == len(widths)) + (count >= REGULAR * len(widths))
        alike += len(set(below)) == 1 and below[0] > 1
        if usual == 1 and below[0] == 1:
            return 0, False, False, 0
        return alike, delimiter in ";\t|", delimiter != " ", usual

    delimiter = max(",;\t| ", key=preference)  # the first one of those that are equal
    table = list(csv.reader(start, delimiter=delimiter))
    first = _preamble([len(row) for row in table])
    cells = [cell for row in table[first:] for cell in row]
    comma = delimiter != "," and any(re.fullmatch(r"-?\d+,\d+", cell) for cell in cells)
    header = not any(_is_number(cell.replace(",", ".")) for cell in table[first])
    skip = rows[first] if first else 0
    return Files(delimiter=delimiter, decimal="," if comma else ".", header=header, skip=skip)


def _preamble(widths: list[int]) -> int:
    """Returns the number of lines at the top that have another number of columns than all lines
    below them; 0 if lines differ further below, too."""
    last = widths[-1]
    others = [i for i, width in enumerate(widths) if width != last]
    if not others or last == 1 or others[-1] >= min(MOST_ABOVE, len(widths) - 2):
        return 0
    return others[-1] + 1


def guess_columns(path: Path, how: Files) -> FileGuess:
    """Returns the guessed roles of the columns of a file."""
    frame = _sample(path, how)
    keys: dict[str, Column] = {}
    clock: Column | None = None
    sensors: list[Column] = []
    left_out: list[str] = []
    repeated = set(frame.columns[frame.columns.duplicated()])
    tidy = [_tidy(str(column)) if how.header else "" for column in frame.columns]
    said = {key for name in tidy if (key := _key_of(name, tidy))}
    unnamed_clocks = [] if how.header else _unnamed_clocks(frame)
    for position, column in enumerate(frame.columns):
        values = frame.iloc[:, position]
        name = tidy[position]
        key = _key_of(name, tidy)
        numeric = values.dtype.kind in "iufb"
        if column in repeated:
            left_out.append(f"{column!r} (more than one column has this name)")
        elif how.header and clock is None and re.fullmatch(TIME, name) and _rises(values):
            clock = column
        elif how.header and re.fullmatch(TIME, name) and numeric and _rises(values):
            left_out.append(f"{column!r} (another time)")
        elif unnamed_clocks == [position]:
            clock = column
        elif key and key not in keys:
            keys[key] = column
        elif name in ROW_NUMBERS and how.header:
            left_out.append(f"{column!r} (a row number)")
        elif numeric and not how.header and _is_constant(values):
            left_out.append(f"{column!r} (the same whole number in all rows)")
        elif numeric and not how.header and "label" not in keys and _holds_classes(values):
            keys["label"] = column
        elif numeric:
            sensors.append(column)
        elif (
            "label" not in {*keys, *said}
            and not re.fullmatch(FILE, name)
            and values.map(str).nunique() <= MANY_CLASSES  # bytes need not be UTF-8
            and not _mostly_numbers(values)
        ):
            keys["label"] = column
        else:
            left_out.append(f"{column!r} (text)")
    remarks = [f"columns left out: {', '.join(dict.fromkeys(left_out))}"] if left_out else []
    by_values = ("label",) if "label" in keys and "label" not in said else ()
    timing = _timing(frame, clock)
    modalities, doubtful = _modalities(frame, sensors, timing.rate, named=how.header)
    return FileGuess(
        modalities,
        keys,
        timing,
        tuple(remarks),
        by_values,
        len(frame),
        doubtful,
    )


def _timing(frame: pd.DataFrame, clock: Column | None) -> Timing:
    """Returns what the column of time stamps tells."""
    if clock is None:
        return Timing()
    seconds, unit, named = _seconds(frame[clock], str(clock))
    named = named and isinstance(clock, str)
    seconds = seconds[np.isfinite(seconds)]
    batched = batch_rate(seconds)
    rate = _rounded(batched) if batched else _rate(np.diff(seconds))
    ends = (float(seconds[0]), float(seconds[-1])) if len(seconds) else (0.0, 0.0)
    return Timing(clock, unit, rate, bool(batched), named, ends)


def _key_of(name: str, names: list[str]) -> str:
    """Returns the key whose words match the name of a column; empty if there is none."""
    if name == "y" and "x" not in names:  # otherwise y is an axis
        return "label"
    for key, words in WORDS.items():
        if name and _means(name, words):
            return key
    return ""


def _sample(path: Path, how: Files) -> pd.DataFrame:
    """Returns the first rows of a file."""
    import pandas as pd

    names = header(path, how)
    keys: list[Any] = list(names) if how.header else list(range(len(names)))
    if path.suffix.lower() == ".npy":
        frame = pd.DataFrame(np.asarray(rows_of(path)[:ROWS]))
    elif path.suffix.lower() == ".parquet":
        with reading(path, "Parquet file", WHOLE):
            batch = next(parquet(path).iter_batches(ROWS), None)
            if batch is None:
                frame = pd.DataFrame(columns=keys)
            else:
                frame = batch.to_pandas(ignore_metadata=True)
    else:
        with reading(path, "table", PLAIN), warnings.catch_warnings():
            # A row with another number of columns: reading the whole file names it.
            warnings.simplefilter("ignore", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                sep=how.delimiter,
                decimal=how.decimal,
                header=None,
                skiprows=lines_above(path, how) + how.header,
                nrows=ROWS,
                names=list(range(len(keys))),
                index_col=False,
            )
    if not len(frame):
        raise CommunisError(f"{path}: holds no rows")
    return frame.set_axis(keys, axis=1)


def column_like(names: Iterable[str], words: str) -> str | None:
    """Returns the first column whose name matches an expression."""
    return next((name for name in names if re.fullmatch(words, _tidy(name))), None)


def _tidy(name: str) -> str:
    """Returns the name of a column in lower case, without units and signs."""
    without_unit = re.sub(r"\s*[\[(].*?[\])]", "", name)
    with_underscores = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", without_unit)
    return re.sub(r"\W+", "_", with_underscores.strip().lower()).strip("_")


def _means(name: str, words: str) -> bool:
    return bool(re.fullmatch(f"(?:{words})(?:_?(?:id|no|nr|number|name|code|label))?", name))


def _rises(values: pd.Series[Any]) -> bool:
    """Returns whether a column can be time: dates, or numbers that rise with few exceptions."""
    if values.dtype.kind == "M" or bool(re.match(r"\d{4}-\d\d-\d\d", str(values.iloc[0]))):
        return True
    if values.dtype.kind not in "iuf" or values.isna().any():
        return False
    if len(values) <= 1:
        return True
    return bool((np.diff(values.to_numpy(np.float64)) >= 0).mean() > 0.95)


def _unnamed_clocks(frame: pd.DataFrame) -> list[int]:
    """Returns the places of columns that can be time although they have no name."""
    columns = [frame.iloc[:, i] for i in range(frame.shape[1])]
    return [i for i, c in enumerate(columns) if c.dtype.kind in "iuf" and _is_clock(c)]


def _is_clock(values: pd.Series[Any]) -> bool:
    """Returns whether a column without a name is time: numbers that rise all the time in nearly
    equal steps, and are no row numbers."""
    array = values.to_numpy(np.float64)
    if len(array) < FEWEST_STAMPS or not np.isfinite(array).all():
        return False
    steps = np.diff(array)
    usual = float(np.median(steps))
    if usual <= 0 or (steps == 1).all():
        return False
    return bool((steps >= 0).all() and (np.abs(steps - usual) <= usual).mean() > 0.9)


def _is_constant(values: pd.Series[Any]) -> bool:
    array = values.to_numpy(np.float64)
    return len(array) >= FEWEST_STAMPS and bool((array == np.rint(array[0])).all())


def _mostly_numbers(values: pd.Series[Any]) -> bool:
    """Returns whether a column of text holds numbers, but for a few cells."""
    return values.dropna().map(lambda cell: _is_number(str(cell))).mean() > 0.9


def _holds_classes(values: pd.Series[Any]) -> bool:
    """Returns whether a column holds few different whole numbers that rarely change."""
    array = values.to_numpy(np.float64)
    if not np.isfinite(array).all() or (array != np.rint(array)).any():
        return False
    changes = (np.diff(array) != 0).mean() if len(array) > 1 else 0.0
    return bool(len(np.unique(array)) <= MANY_CLASSES and changes < 0.1)


def _seconds(values: pd.Series[Any], name: str) -> tuple[Array, TimeUnit, bool]:
    """Returns time stamps in seconds, their unit, and whether it is certain."""
    if values.dtype.kind not in "iuf":
        import pandas as pd

        dates = pd.to_datetime(values, format="ISO8601", errors="coerce", utc=True)
        nanos = dates.dt.tz_localize(None).to_numpy("datetime64[ns]").astype(np.int64)
        return nanos * 1e-9, "date", True
    array = values.to_numpy(np.float64)
    steps = np.diff(array)
    in_name = re.search(r"(?:^|[_\W])(ms|us|ns|s)(?:$|[_\W])", name.lower())
    spelled = next((u for word, u in SPELLED.items() if word in name.lower()), None)
    unit: TimeUnit
    if in_name or spelled:
        unit = UNITS_OF_TIME[in_name[1]] if in_name else UNITS_OF_TIME[str(spelled)]
        return array * SECONDS[unit], unit, True
    earliest, latest = SINCE_1970
    for candidate in LARGEST_STEPS:  # since 1970: the size tells the unit
        if earliest <= array[0] * SECONDS[candidate] <= latest:
            return array * SECONDS[candidate], candidate, True
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
    unit = next((u for u, most in LARGEST_STEPS.items() if usual < most), "ns")
    slow, fast = USUAL_RATES
    possible = [u for u in LARGEST_STEPS if slow <= 1 / (usual * SECONDS[u]) <= fast]
    return array * SECONDS[unit], unit, possible == [unit]


def _rate(steps: Array) -> float:
    """Returns samples per second, rounded if it is close to a whole number."""
    steps = steps[steps > 0]
    if not len(steps):
        return UNKNOWN_RATE
    return _rounded(1 / float(steps[steps <= 3 * np.median(steps)].mean()))


def _rounded(rate: float) -> float:
    return float(round(rate)) if abs(rate - round(rate)) < 0.02 * rate else float(f"{rate:.4g}")


def _modalities(
    frame: pd.DataFrame, columns: list[Column], rate: float, *, named: bool
) -> tuple[dict[str, Part], dict[str, str]]:
    """Returns the modalities, and doubts about their units. Columns whose names differ by x, y, z
    or a number at the end (or before it) belong to one modality."""
    groups: dict[str, list[Column]] = {}
    for column in columns:
        base = _base(str(column)) if named else "sensor"
        groups.setdefault(base, []).append(column)
    modalities: dict[str, Part] = {}
    doubts: dict[str, str] = {}
    for base, members in groups.items():
        if len(members) > 1 or not named:
            name = ALIASES.get(base, base)
        else:
            name = _tidy(str(members[0]))
        if not name.isidentifier():
            name = f"sensor_{name}"
        if hasattr(nn.ModuleDict(), name) or name in modalities:
            name = f"{name}_"
        values = frame[members].to_numpy(np.float64)
        own_rate = float(f"{rate * _share(values):.4g}")
        unit, doubt = _unit(name, members, values)
        modalities[name] = Part(tuple(members), own_rate, unit)
        if doubt:
            doubts[name] = doubt
    return modalities, doubts


def _base(column: str) -> str:
    """Returns the name of a column without its axis (at the end, in front, or between) or
    number."""
    name = _tidy(column)
    for expression in (r"(.*?)_?[xyzw]()", r"[xyz]_(.+)()", r"(.+)_[xyz](_.+)", r"(.*?)_?\d+()"):
        match = re.fullmatch(expression, name)
        if match:
            return match[1] + match[2]
    return name


def _share(values: Array) -> float:
    """Returns the share of rows with a value if they are regular, as with a slower sensor;
    otherwise 1."""
    rows = np.flatnonzero(np.isfinite(values).any(1))
    steps = np.diff(rows)
    slow = len(steps) > 2 and np.median(steps) >= 2 and (steps == np.median(steps)).mean() > 0.9
    return 1 / float(np.median(steps)) if slow else 1.0


def _unit(name: str, columns: list[Column], values: Array) -> tuple[str, str]:
    """Returns the unit, or "a.u." if it is unknown, and a doubt about it: from brackets in the
    header there is none, from gravity or from the kind of sensor there is."""
    in_brackets = re.search(r"[\[(](.+?)[\])]", str(columns[0]))
    if in_brackets:
        return unit_name(in_brackets[1], name), ""
    if "acc" in name and len(columns) == 3 and np.isfinite(values).all(1).any():
        with np.errstate(over="ignore"):  # a damaged value
            length = float(np.nanmedian(np.linalg.norm(values, axis=1)))
        for unit, low, high in (("g", 0.8, 1.25), ("m/s2", 8, 12)):
            if low < length < high:
                return unit, f"a guess: the usual length of the vector is {length:.3g}"
    if name in UNITS:
        return UNITS[name], "a guess: usual for this sensor"
    return "a.u.", "a placeholder, as the files do not tell"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() != "nan"
