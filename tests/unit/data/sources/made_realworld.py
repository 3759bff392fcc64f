"""Archives in the official format of RealWorld (HAR), with values that tell where they belong."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

SITES = ("chest", "forearm", "head", "shin", "thigh", "upperarm", "waist")
PREFIX = {"acc": "acc", "gyr": "Gyroscope", "mag": "MagneticField"}  # of tables, by archive
START = 1435988684240  # milliseconds since 1970
Files = dict[str, bytes]


def value(sensor: str, site: str, axis: str, row: int) -> float:
    return 10 * SITES.index(site) + 100 * "agm".index(sensor[0]) + "xyz".index(axis) + row / 100


def table(sensor: str, site: str, times: list[int]) -> bytes:
    """One table: a header, then number, time in milliseconds, and three values."""
    lines = ["id,attr_time,attr_x,attr_y,attr_z"]
    for row, time in enumerate(times):
        values = ",".join(f"{value(sensor, site, axis, row):.7g}" for axis in "xyz")
        lines.append(f"{row + 1},{START + time},{values}")
    return ("\n".join(lines) + "\n").encode()


def tables(sensor: str, activity: str, times: list[int], sites: tuple[str, ...] = SITES) -> Files:
    """The tables of an archive, by name; activity may carry a number: walking_2."""
    named = {f"{PREFIX[sensor]}_{activity}_{site}.csv": site for site in sites}
    return {name: table(sensor, site, times) for name, site in named.items()}


def archive(files: Files) -> bytes:
    content = BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as out:
        for name, data in files.items():
            out.writestr(name, data)
    return content.getvalue()


def write(folder: Path, subject: int, name: str, content: bytes) -> Path:
    path = folder / "realworld2016_dataset" / f"proband{subject}" / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def whole(folder: Path, subject: int, activity: str, times: list[int]) -> None:
    """All three motion sensors of an activity, and what else the owner puts beside them."""
    for sensor in PREFIX:
        files = {"readMe": b"text", **tables(sensor, activity, times)}
        write(folder, subject, f"{sensor}_{activity}_csv.zip", archive(files))
        write(folder, subject, f"{sensor}_{activity}_sqlite.zip", b"not read")
    write(folder, subject, f"gps_{activity}_csv.zip", b"not read")
