"""A small person of Stress-Predict: the wristband's files, the tags and the log of times."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

BEGIN = 1644226080  # 7 February 2022, 09:28:00 UTC
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
# Columns of the official log, first row; the second says Start and End.
HEADS = {
    "A": "S. ID.", "B": "Start Time", "C": "End Time", "D": "Session ID", "E": "Consent",
    "G": "Baseline/Questionniare", "I": "Stroop Test", "K": "Relax", "M": "Interview",
    "O": "Relax", "Q": "Hyperventilation", "S": "Relax", "U": "Questionniare",
    "W": "Relax/Baseline", "Z": "Date",
}  # fmt: skip


def person(folder: Path, name: str, begin: float = BEGIN, seconds: int = 600) -> Path:
    """Sensors whose values tell their file and place."""
    home = folder / "Raw_data" / name
    home.mkdir(parents=True)
    acc = [f"{n % 128 - 64},32,{64}" for n in range(32 * seconds)]
    head = [", ".join([f"{begin:.6f}"] * 3), ", ".join(["32.000000"] * 3)]
    (home / "ACC.csv").write_text("\n".join([*head, *acc]) + "\n", "utf-8")
    sensors = (("BVP", 64, 0, 1000), ("EDA", 4, 0, 2000), ("TEMP", 4, 0, 3000), ("HR", 1, 10, 4000))
    for file, rate, late, base in sensors:
        values = [f"{base + n % 100:.2f}" for n in range(rate * (seconds - late))]
        lines = [f"{begin + late:.6f}", f"{rate:.6f}", *values]
        (home / f"{file}.csv").write_text("\n".join(lines) + "\n", "utf-8")
    (home / "IBI.csv").write_text(f"{begin:.6f}, IBI\n35.484375,0.890625\n", "utf-8")
    return home


def tags(folder: Path, name: str, moments: Sequence[float]) -> None:
    path = folder / "Raw_data" / name / f"tags_{name}.csv"
    path.write_text("".join(f"{moment:.0f}\n" for moment in moments), "utf-8")


def log(folder: Path, rows: dict[str, dict[str, float]]) -> Path:
    """The workbook; times as shares of a day, the date as a number of days."""
    texts = [*HEADS.values(), "Start", "End", *rows]
    first = "".join(_text(f"{c}1", n) for n, c in enumerate(HEADS))
    lines = [f'<row r="1">{first}</row>', '<row r="2"/>']
    for n, (name, cells) in enumerate(rows.items(), start=3):
        values = "".join(f'<c r="{c}{n}" s="4"><v>{v!r}</v></c>' for c, v in cells.items())
        lines.append(
            f'<row r="{n}">{_text(f"A{n}", texts.index(name))}{values}<c r="AA{n}"/></row>'
        )
    path = folder / "Processed_data" / "Time_logs.xlsx"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as parts:
        shared = "".join(f"<si><t>{text}</t></si>" for text in texts)
        parts.writestr("xl/sharedStrings.xml", f'<sst xmlns="{MAIN}">{shared}</sst>')
        sheet = f'<worksheet xmlns="{MAIN}"><sheetData>{"".join(lines)}</sheetData></worksheet>'
        parts.writestr("xl/worksheets/sheet1.xml", sheet)
    return path


def times(
    stroop: tuple[str, str], interview: tuple[str, str], last: tuple[str, str]
) -> dict[str, float]:
    """The cells of a row, from clock times such as 9:29."""
    clock = [*stroop, *interview, *last]
    parts = [moment.split(":") for moment in clock]
    shares = [(60 * int(h) + int(m)) / 1440 for h, m in parts]
    return {**dict(zip("IJMNQR", shares, strict=True)), "Z": 44599.0}


def _text(place: str, number: int) -> str:
    return f'<c r="{place}" t="s"><v>{number}</v></c>'
