"""Files in the official format of Opportunity, with values that tell where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np

ACCELEROMETERS = [
    "RKN^",
    "HIP",
    "LUA^",
    "RUA_",
    "LH",
    "BACK",
    "RKN_",
    "RWR",
    "RUA^",
    "LUA_",
    "LWR",
    "RH",
]
INERTIAL = ["BACK", "RUA", "RLA", "LUA", "LLA"]
OBJECTS = [
    "CUP",
    "SALAMI",
    "WATER",
    "CHEESE",
    "BREAD",
    "KNIFE1",
    "MILK",
    "SPOON",
    "SUGAR",
    "KNIFE2",
    "PLATE",
    "GLASS",
]
FURNITURE = [
    "DOOR1",
    "LAZYCHAIR",
    "DOOR2",
    "DISHWASHER",
    "UPPERDRAWER",
    "LOWERDRAWER",
    "MIDDLEDRAWER",
    "FRIDGE",
]
SHOE = (
    *(f"{kind}{axis}" for kind in ("Eu", "Nav_A", "Body_A") for axis in "xyz"),
    *(f"AngVel{frame}Frame{axis}" for frame in ("Body", "Nav") for axis in "xyz"),
    "Compass",
)
COLUMNS = [
    "MILLISEC",
    *(f"acc {site} {axis}" for site in ACCELEROMETERS for axis in "xyz"),
    *(
        f"imu {site} {name}"
        for site in INERTIAL
        for name in (
            *(f"{kind}{axis}" for kind in ("acc", "gyro", "magnetic") for axis in "xyz"),
            *(f"Quaternion{n}" for n in range(1, 5)),
        )
    ),
    *(f"{shoe} {name}" for shoe in ("L-SHOE", "R-SHOE") for name in SHOE),
    *(f"object {o} {n}" for o in OBJECTS for n in ("accX", "accY", "accZ", "gyroX", "gyroY")),
    *(f"reed {n}" for n in range(13)),
    *(f"ambient {o} {axis}" for o in FURNITURE for axis in "xyz"),
    *(f"location {tag} {axis}" for tag in range(4) for axis in "xyz"),
    "Locomotion",
    "HL_Activity",
    "LL_Left_Arm",
    "LL_Left_Arm_Object",
    "LL_Right_Arm",
    "LL_Right_Arm_Object",
    "ML_Both_Arms",
]  # in the order of the owner's column_names.txt


def value(column: str, row: int) -> int:
    """What a made file holds in a row of a sensor's column: whole numbers, as in the original."""
    return 1000 * row - COLUMNS.index(column)


def rows(n: int, **labels: list[int]) -> np.ndarray:
    """(n, 250) at 30 Hz; labels that are not given are 0."""
    table = np.array([[float(value(c, row)) for c in COLUMNS] for row in range(n)])
    table[:, 0] = np.round(np.arange(n) * 1000 / 30)
    table[:, 243:] = 0
    for name, codes in labels.items():
        table[:, COLUMNS.index(name)] = codes
    return table


def write(folder: Path, table: np.ndarray, name: str = "S1-ADL1") -> Path:
    path = folder / "OpportunityUCIDataset" / "dataset" / f"{name}.dat"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [" ".join("NaN" if np.isnan(x) else f"{x:.0f}" for x in row) for row in table]
    path.write_text("\n".join(lines) + "\n")
    return path
