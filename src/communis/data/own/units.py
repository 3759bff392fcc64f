"""Units: other spellings of the units that the doctor knows.

Only the spelling is changed, never a value. A unit that is not listed is left as it is written.
"""

from __future__ import annotations

SIGNS = str.maketrans(
    {"²": "2", "µ": "u", "μ": "u", "°": "deg", "º": "deg", "˚": "deg", "℃": "degC"}
    | {"⁻": "-", "\u2212": "-"}
    | dict.fromkeys(" ^*·⋅")
)
SPELLINGS = {
    "g": "G",
    "m/s2": "ms-2 m/s/s m/sec2",
    "rad/s": "rads-1 rad/sec radians/s",
    "deg/s": "degs-1 deg/sec degrees/s dps",
    "uT": "microtesla",
    "gauss": "Gs",
    "bpm": "beats/min",
    "degC": "C celsius",
    "uS": "microsiemens",
    "mV": "millivolt",
    "uV": "microvolt",
    "m": "metre metres meter meters",
    "mm": "millimetre millimetres millimeter millimeters",
    "dB": "db decibel",
    "a.u.": "a.u au AU",
}


def unit_name(written: str, modality: str) -> str:
    """Returns the name of a unit in communis. G means gauss for a magnetometer, otherwise g."""
    if written.strip() == "G" and "mag" in modality.lower():
        return "gauss"
    return NAMES.get(_plain(written), written)


def _plain(written: str) -> str:
    """Returns the spelling without signs. It is lower case if it is long enough to stay unambiguous
    (uV and UV differ)."""
    bare = written.translate(SIGNS)
    return bare.lower() if len(bare) > 2 else bare


def _names() -> dict[str, str]:
    """Returns the name of the unit for each plain spelling."""
    names = {}
    for unit, spellings in SPELLINGS.items():
        for spelling in (unit, *spellings.split()):
            names[_plain(spelling)] = unit
    return names


NAMES = _names()
