"""Files in the official format of UMAFall: a header block and one line per sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

POSITIONS = ("RIGHTPOCKET", "CHEST", "WAIST", "WRIST", "ANKLE")
Row = tuple[float, int, float, float, float, int, int]  # ms, sample, x, y, z, type, sensor


def samples(
    sensor: int, kind: int, stamps: Iterable[float], first: int = 1, offset: float = 0.0
) -> list[Row]:
    """Sample n, axis a holds offset + 10 sensor + kind + a / 10 + n / 1000."""
    base = offset + 10 * sensor + kind
    return [
        (ms, first + n, base + n / 1000, base + 0.1 + n / 1000, base + 0.2 + n / 1000, kind, sensor)
        for n, ms in enumerate(stamps)
    ]


def write(
    folder: Path,
    rows: Sequence[Row],
    trial: str = "Subject_04_ADL_Walking_2",
    sensors: Sequence[int] = (0, 4, 2, 3, 1),
    said: str = "",
) -> Path:
    """`said` is what the header calls the trial, if not by its name."""
    path = folder / "UMAFall_Dataset" / f"UMAFall_{trial}_2016-06-13_12-58-50.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = [
        "% Universidad de Malaga - ETSI de Telecomunicacion (Spain)",
        "% Date: 2016-06-13_12:58:50",
        f"% ID: {said or trial.replace('Fall', 'FALL', 1)}",
        "",
        f"% Number of Sensors: {len(sensors)}",
        "",
        "% MAC Address; Sensor_ID; Position; Device Model",
        *(f"%C4:BE:84:71:A5:0{n}; {n}; {POSITIONS[n]}; SensorTag" for n in sensors),
        "",
        "% Sensor_Type: ",
        "% Accelerometer = 0",
        "% Gyroscope = 1",
        "% Magnetometer = 2",
        "",
        "% TimeStamp; Sample No; X-Axis; Y-Axis; Z-Axis; Sensor Type; Sensor ID;",
    ]
    lines = [line.ljust(84) for line in header]
    lines += [";".join(f"{cell:.10g}" for cell in row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path
