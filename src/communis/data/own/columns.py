"""Look: what the columns of a file seem to be, from their names and the first rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.data.own.manifest import Column, Files, Part
from communis.data.own.tables import PLAIN, TEXT, WHOLE, header, parquet, rows_of
from communis.data.own.units import unit_name
from communis.data.recordings.files import reading

if TYPE_CHECKING:
    import pandas as pd

ROWS = 20_000  # that are looked at
UNKNOWN_RATE = 50.0  # stands in the manifest until the user has mended it
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


@dataclass(frozen=True)
class Look:
    """What a file seems to hold."""

    modalities: Mapping[str, Part]
    keys: Mapping[str, Column]  # subject, session, trial, scene and label: their columns
    time: Column | None = None
    time_unit: str = "s"
    rate: float = UNKNOWN_RATE
    remarks: tuple[str, ...] = field(default=())


def written(path: Path) -> Files:
    """How a text file is written: delimiter, decimal mark, header."""
    if path.suffix.lower() not in TEXT:
        return Files(header=path.suffix.lower() != ".npy")
    with reading(path, "text file", PLAIN):
        with path.open(encoding="utf-8-sig", newline="") as lines:
            start = [line for line, _ in zip(lines, range(50), strict=False) if line.strip()]
        if not start:
            raise CommunisError(f"{path}: empty")
        return _way_of_writing(start)


def _way_of_writing(start: list[str]) -> Files:
    """As the first lines of a file tell it."""

    def cells(mark: str) -> int:
        """Columns with this delimiter; 0 if lines differ."""
        counts = {len(row) for row in csv.reader(start, delimiter=mark)}
        return counts.pop() if len(counts) == 1 else 0

    delimiter = max(";\t|, ", key=lambda mark: (cells(mark) > 1, mark != " ", cells(mark)))
    rows = list(csv.reader(start, delimiter=delimiter))
    comma = delimiter != "," and any(re.fullmatch(r"-?\d+,\d+", c) for r in rows for c in r)
    named = not any(_is_number(cell.replace(",", ".")) for cell in rows[0])
    return Files(delimiter=delimiter, decimal="," if comma else ".", header=named)


def look(path: Path, how: Files) -> Look:
    """The columns by what they seem to be."""
    frame = _sample(path, how)
    keys: dict[str, Column] = {}
    clocks: list[Column] = []
    sensors: list[Column] = []
    left_out: list[str] = []
    twice = set(frame.columns[frame.columns.duplicated()])
    for place, column in enumerate(frame.columns):
        values, name = frame.iloc[:, place], _tidy(str(column)) if how.header else ""
        key = next((k for k, w in WORDS.items() if name and _means(name, w)), "")
        key = "label" if name == "y" and "x" not in frame.columns else key  # not of x, y, z
        numeric = values.dtype.kind in "iufb"
        if column in twice:
            left_out.append(f"{column!r} (more than one column has this name)")
        elif how.header and not clocks and re.fullmatch(TIME, name) and _rises(values):
            clocks.append(column)
        elif key and key not in keys:
            keys[key] = column
        elif name in ("", "index", "index_level_0", "row", "no", "nr") and how.header:
            left_out.append(f"{column!r} (a row number)")
        elif numeric and not how.header and "label" not in keys and _holds_classes(values):
            keys["label"] = column
        elif numeric:
            sensors.append(column)
        elif "label" not in keys and values.astype(str).nunique() <= 50:
            keys["label"] = column
        else:
            left_out.append(f"{column!r} (text)")
    remarks = [f"columns left out: {', '.join(dict.fromkeys(left_out))}"] if left_out else []
    unit, rate = _clock(frame[clocks[0]], str(clocks[0])) if clocks else ("s", 0.0)
    if clocks:
        remarks.append(f"time is column {clocks[0]!r} in {unit}, about {rate:g} samples a second")
    else:
        rate = UNKNOWN_RATE
        remarks.append(f"CHECK rate: no time column tells it; {rate:g} Hz stands for it")
    if not how.header and "label" in keys:
        remarks.append(f"CHECK label: column {keys['label']} holds few whole numbers")
    found = _modalities(frame, sensors, rate, named=how.header)
    return Look(found, keys, clocks[0] if clocks else None, unit, rate, tuple(remarks))


def _sample(path: Path, how: Files) -> pd.DataFrame:
    import pandas as pd

    names = header(path, how)
    keys: list[Any] = list(names) if how.header else list(range(len(names)))
    if path.suffix.lower() == ".npy":
        found = pd.DataFrame(np.asarray(rows_of(path)[:ROWS]))
    elif path.suffix.lower() == ".parquet":
        with reading(path, "Parquet file", WHOLE):
            batches = (b.to_pandas(ignore_metadata=True) for b in parquet(path).iter_batches(ROWS))
            found = next(batches, pd.DataFrame(columns=keys))
    else:
        with reading(path, "table", PLAIN):
            found = pd.read_csv(
                path,
                sep=how.delimiter,
                decimal=how.decimal,
                header=None,
                skiprows=how.skip + how.header,
                nrows=ROWS,
                names=list(range(len(keys))),
                index_col=False,
            )
    if not len(found):
        raise CommunisError(f"{path}: holds no rows")
    return found.set_axis(keys, axis=1)


def _tidy(name: str) -> str:
    """A column's name in small letters without units and signs."""
    bare = re.sub(r"\s*[\[(].*?[\])]", "", name)
    return re.sub(r"\W+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", bare).strip().lower()).strip("_")


def _means(name: str, words: str) -> bool:
    return bool(re.fullmatch(f"(?:{words})(?:_?(?:id|no|nr|number|name|code|label))?", name))


def _rises(values: pd.Series[Any]) -> bool:
    """Time rises, but for few starts anew; dates are text or dates."""
    if values.dtype.kind == "M" or bool(re.match(r"\d{4}-\d\d-\d\d", str(values.iloc[0]))):
        return True
    if values.dtype.kind not in "iuf" or values.isna().any():
        return False
    return (
        bool((np.diff(values.to_numpy(np.float64)) >= 0).mean() > 0.95) if len(values) > 1 else True
    )


def _holds_classes(values: pd.Series[Any]) -> bool:
    """Few whole numbers that seldom change."""
    array = values.to_numpy(np.float64)
    if not np.isfinite(array).all() or (array != np.rint(array)).any():
        return False
    changes = (np.diff(array) != 0).mean() if len(array) > 1 else 0.0
    return bool(len(np.unique(array)) <= 50 and changes < 0.1)


def _clock(values: pd.Series[Any], name: str) -> tuple[str, float]:
    """The unit of time stamps, and the rate that they tell."""
    if values.dtype.kind not in "iuf":
        import pandas as pd

        dates = pd.to_datetime(values, format="ISO8601", errors="coerce", utc=True)
        nanos = dates.dt.tz_localize(None).to_numpy("datetime64[ns]").astype(np.int64)
        return "date", _rate(np.diff(nanos) * 1e-9)
    array = values.to_numpy(np.float64)
    steps = np.diff(array)
    said = re.search(r"(?:^|[_\W])(ms|us|ns|s)(?:$|[_\W])", name.lower())
    if said:
        unit = said[1]
    elif array[0] > 1e8:  # since 1970, in what unit is told by the size
        unit = next(
            u
            for u, least in (("ns", 1e17), ("us", 1e14), ("ms", 1e11), ("s", 0))
            if array[0] > least
        )
    else:
        usual = np.median(steps[steps > 0]) if (steps > 0).any() else 1.0
        unit = next(
            u for u, most in (("s", 2), ("ms", 2e3), ("us", 2e6), ("ns", np.inf)) if usual < most
        )
    return unit, _rate(steps * {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit])


def _rate(steps: Array) -> float:
    """Samples per second, rounded where it is nearly a whole number."""
    steps = steps[steps > 0]
    if not len(steps):
        return UNKNOWN_RATE
    rate = 1 / float(steps[steps <= 3 * np.median(steps)].mean())
    return float(round(rate)) if abs(rate - round(rate)) < 0.02 * rate else float(f"{rate:.4g}")


def _modalities(
    frame: pd.DataFrame, columns: list[Column], rate: float, *, named: bool
) -> dict[str, Part]:
    """Columns that differ by x, y, z or a number at the end (or before it) are one modality."""
    groups: dict[str, list[Column]] = {}
    for column in columns:
        groups.setdefault(_base(str(column)) if named else "sensor", []).append(column)
    found: dict[str, Part] = {}
    for base, members in groups.items():
        name = ALIASES.get(base, base) if len(members) > 1 or not named else _tidy(str(members[0]))
        name = name if name.isidentifier() else f"sensor_{name}"
        name = f"{name}_" if hasattr(nn.ModuleDict(), name) or name in found else name
        values = frame[members].to_numpy(np.float64)
        own_rate = rate * _share(values)
        found[name] = Part(tuple(members), float(f"{own_rate:.4g}"), _unit(name, members, values))
    return found


def _base(column: str) -> str:
    """The name without its axis (at the end, in front, or between) or number."""
    name = _tidy(column)
    shapes = (r"(.*?)_?[xyzw]()", r"[xyz]_(.+)()", r"(.+)_[xyz](_.+)", r"(.*?)_?\d+()")
    found = next((m for m in (re.fullmatch(shape, name) for shape in shapes) if m), None)
    return found[1] + found[2] if found else name


def _share(values: Array) -> float:
    """The share of rows with a value where these come regularly: a slower sensor; else 1."""
    rows = np.flatnonzero(np.isfinite(values).any(1))
    steps = np.diff(rows)
    slow = len(steps) > 2 and np.median(steps) >= 2 and (steps == np.median(steps)).mean() > 0.9
    return 1 / float(np.median(steps)) if slow else 1.0


def _unit(name: str, columns: list[Column], values: Array) -> str:
    """From brackets in the header, from gravity, or unknown."""
    said = re.search(r"[\[(](.+?)[\])]", str(columns[0]))
    if said:
        return unit_name(said[1], name)
    if "acc" in name and len(columns) == 3 and np.isfinite(values).all(1).any():
        with np.errstate(over="ignore"):  # a damaged value
            length = float(np.nanmedian(np.linalg.norm(values, axis=1)))
        return "g" if 0.8 < length < 1.25 else "m/s2" if 8 < length < 12 else "a.u."
    return UNITS.get(name, "a.u.")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() != "nan"
