"""Units: other spellings of the units that the doctor knows.

Only spelling is changed, never a value; a unit that is not listed stays as it was written.
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
    """Our name of a unit. G is gauss for a magnetometer, else g."""
    if written.strip() == "G" and "mag" in modality.lower():
        return "gauss"
    return NAMES.get(_plain(written), written)


def _plain(written: str) -> str:
    """Without signs; in small letters where these tell nothing apart (uV is not UV)."""
    bare = written.translate(SIGNS)
    return bare.lower() if len(bare) > 2 else bare


NAMES = {_plain(s): unit for unit, more in SPELLINGS.items() for s in (unit, *more.split())}
