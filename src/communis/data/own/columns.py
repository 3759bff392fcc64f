"""Guesses what the columns of a file are, from their names and the first rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.data.own.manifest import Column, Files, Part
from communis.data.own.tables import PLAIN, SECONDS, TEXT, WHOLE, header, parquet, rows_of
from communis.data.own.units import unit_name
from communis.data.recordings.files import reading

if TYPE_CHECKING:
    import pandas as pd

ROWS = 20_000  # number of rows that are read
UNKNOWN_RATE = 50.0  # placeholder in the manifest, which the user must correct
MANY_CLASSES = 50  # a column with more different values is not a label
WORDS = {
    "subject": "subject|subj|sub|person|participant|patient|user|volunteer|proband|pid|uid",
    "session": "session|sess|ses|day|visit",
    "trial": "trial|repetition|rep|run|take|recording|rec",
    "scene": "scene|room|environment|env|home|house|site",
    "label": "label|labels|activity|act|class|gesture|action|state|target|annotation",
}
TIME = r"t|ts|date|epoch|seconds|millis|.*time.*|.*(?:^|_)stamp.*"
ALIASES = {"a": "acc", "g": "gyro", "m": "mag", "": "sensor"}
UNITS = {"hr": "bpm", "heart": "bpm", "heart_rate": "bpm", "heartrate": "bpm", "bpm": "bpm"}
ROW_NUMBERS = ("", "index", "index_level_0", "row", "no", "nr")  # names of columns without meaning
FORMAT_LINES = 50  # lines from which the format of a text file is guessed
SMALLEST_STAMPS = {"ns": 1e17, "us": 1e14, "ms": 1e11, "s": 0}  # for time since 1970, by unit
LARGEST_STEPS = {"s": 2, "ms": 2e3, "us": 2e6, "ns": np.inf}  # between two samples, by unit


@dataclass(frozen=True)
class FileGuess:
    """The guessed roles of the columns of a file."""

    modalities: Mapping[str, Part]
    keys: Mapping[str, Column]  # columns of subject, session, trial, scene and label
    time: Column | None = None
    time_unit: str = "s"
    rate: float = UNKNOWN_RATE
    remarks: tuple[str, ...] = field(default=())


def file_format(path: Path) -> Files:
    """Returns the format of a file: delimiter, decimal mark and header."""
    if path.suffix.lower() not in TEXT:
        return Files(header=path.suffix.lower() != ".npy")
    with reading(path, "text file", PLAIN):
        with path.open(encoding="utf-8-sig", newline="") as lines:
            start = [line for line in islice(lines, FORMAT_LINES) if line.strip()]
        if not start:
            raise CommunisError(f"{path}: empty")
        return _text_format(start)


def _text_format(start: list[str]) -> Files:
    """Returns the format of a text file that begins with these lines."""

    def width(delimiter: str) -> int:
        """Returns the number of columns with this delimiter; 0 if lines differ."""
        counts = {len(row) for row in csv.reader(start, delimiter=delimiter)}
        return counts.pop() if len(counts) == 1 else 0

    def preference(delimiter: str) -> tuple[bool, bool, int]:
        return width(delimiter) > 1, delimiter != " ", width(delimiter)

    delimiter = max(";\t|, ", key=preference)
    rows = list(csv.reader(start, delimiter=delimiter))
    cells = [cell for row in rows for cell in row]
    comma = delimiter != "," and any(re.fullmatch(r"-?\d+,\d+", cell) for cell in cells)
    header = not any(_is_number(cell.replace(",", ".")) for cell in rows[0])
    return Files(delimiter=delimiter, decimal="," if comma else ".", header=header)


def guess_columns(path: Path, how: Files) -> FileGuess:
    """Returns the guessed roles of the columns of a file."""
    frame = _sample(path, how)
    keys: dict[str, Column] = {}
    clock: Column | None = None
    sensors: list[Column] = []
    left_out: list[str] = []
    repeated = set(frame.columns[frame.columns.duplicated()])
    for position, column in enumerate(frame.columns):
        values = frame.iloc[:, position]
        name = _tidy(str(column)) if how.header else ""
        key = _key_of(name)
        if name == "y" and "x" not in frame.columns:  # otherwise y is an axis
            key = "label"
        numeric = values.dtype.kind in "iufb"
        if column in repeated:
            left_out.append(f"{column!r} (more than one column has this name)")
        elif how.header and clock is None and re.fullmatch(TIME, name) and _rises(values):
            clock = column
        elif key and key not in keys:
            keys[key] = column
        elif name in ROW_NUMBERS and how.header:
            left_out.append(f"{column!r} (a row number)")
        elif numeric and not how.header and "label" not in keys and _holds_classes(values):
            keys["label"] = column
        elif numeric:
            sensors.append(column)
        elif (
            "label" not in keys
            and values.map(str).nunique() <= MANY_CLASSES  # bytes need not be UTF-8
        ):
            keys["label"] = column
        else:
            left_out.append(f"{column!r} (text)")
    remarks = [f"columns left out: {', '.join(dict.fromkeys(left_out))}"] if left_out else []
    unit, rate, remark = _timing(frame, clock)
    remarks.append(remark)
    if not how.header and "label" in keys:
        remarks.append(f"CHECK label: column {keys['label']} holds few different whole numbers")
    modalities = _modalities(frame, sensors, rate, named=how.header)
    return FileGuess(modalities, keys, clock, unit, rate, tuple(remarks))


def _timing(frame: pd.DataFrame, clock: Column | None) -> tuple[str, float, str]:
    """Returns the unit of time stamps, the rate of samples, and a remark on them."""
    if clock is None:
        remark = f"CHECK rate: there is no time column; {UNKNOWN_RATE:g} Hz is a placeholder"
        return "s", UNKNOWN_RATE, remark
    unit, rate = _clock(frame[clock], str(clock))
    return unit, rate, f"time is column {clock!r} in {unit}, about {rate:g} samples a second"


def _key_of(name: str) -> str:
    """Returns the key whose words match the name of a column; empty if there is none."""
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
        with reading(path, "table", PLAIN):
            frame = pd.read_csv(
                path,
                sep=how.delimiter,
                decimal=how.decimal,
                header=None,
                skiprows=how.skip + how.header,
                nrows=ROWS,
                names=list(range(len(keys))),
                index_col=False,
            )
    if not len(frame):
        raise CommunisError(f"{path}: holds no rows")
    return frame.set_axis(keys, axis=1)


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


def _holds_classes(values: pd.Series[Any]) -> bool:
    """Returns whether a column holds few different whole numbers that rarely change."""
    array = values.to_numpy(np.float64)
    if not np.isfinite(array).all() or (array != np.rint(array)).any():
        return False
    changes = (np.diff(array) != 0).mean() if len(array) > 1 else 0.0
    return bool(len(np.unique(array)) <= MANY_CLASSES and changes < 0.1)


def _clock(values: pd.Series[Any], name: str) -> tuple[str, float]:
    """Returns the unit of time stamps, and their rate."""
    if values.dtype.kind not in "iuf":
        import pandas as pd

        dates = pd.to_datetime(values, format="ISO8601", errors="coerce", utc=True)
        nanos = dates.dt.tz_localize(None).to_numpy("datetime64[ns]").astype(np.int64)
        return "date", _rate(np.diff(nanos) * 1e-9)
    array = values.to_numpy(np.float64)
    steps = np.diff(array)
    unit_in_name = re.search(r"(?:^|[_\W])(ms|us|ns|s)(?:$|[_\W])", name.lower())
    if unit_in_name:
        unit = unit_in_name[1]
    elif array[0] > 1e8:  # since 1970: the size tells the unit
        unit = next(u for u, least in SMALLEST_STAMPS.items() if array[0] > least)
    else:
        usual = np.median(steps[steps > 0]) if (steps > 0).any() else 1.0
        unit = next(u for u, most in LARGEST_STEPS.items() if usual < most)
    return unit, _rate(steps * SECONDS[unit])


def _rate(steps: Array) -> float:
    """Returns samples per second, rounded if it is close to a whole number."""
    steps = steps[steps > 0]
    if not len(steps):
        return UNKNOWN_RATE
    rate = 1 / float(steps[steps <= 3 * np.median(steps)].mean())
    return float(round(rate)) if abs(rate - round(rate)) < 0.02 * rate else float(f"{rate:.4g}")


def _modalities(
    frame: pd.DataFrame, columns: list[Column], rate: float, *, named: bool
) -> dict[str, Part]:
    """Returns the modalities. Columns whose names differ by x, y, z or a number at the end (or
    before it) belong to one modality."""
    groups: dict[str, list[Column]] = {}
    for column in columns:
        base = _base(str(column)) if named else "sensor"
        groups.setdefault(base, []).append(column)
    modalities: dict[str, Part] = {}
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
        modalities[name] = Part(tuple(members), own_rate, _unit(name, members, values))
    return modalities


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


def _unit(name: str, columns: list[Column], values: Array) -> str:
    """Returns the unit from brackets in the header, or from gravity, or "a.u." if it is unknown."""
    in_brackets = re.search(r"[\[(](.+?)[\])]", str(columns[0]))
    if in_brackets:
        return unit_name(in_brackets[1], name)
    if "acc" in name and len(columns) == 3 and np.isfinite(values).all(1).any():
        with np.errstate(over="ignore"):  # a damaged value
            length = float(np.nanmedian(np.linalg.norm(values, axis=1)))
        if 0.8 < length < 1.25:
            return "g"
        return "m/s2" if 8 < length < 12 else "a.u."
    return UNITS.get(name, "a.u.")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() != "nan"
