"""Small Wi-Fi CSI recordings as people have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def esp32_line(imaginary: list[int], real: list[int], secondary: int = 0, more: int = 0) -> str:
    """A line of the ESP32-CSI-Tool: 64 pairs, imaginary first, and `more` pairs of other fields."""
    pairs = " ".join(f"{i} {r}" for i, r in zip(imaginary, real, strict=True))
    tail = " 99 99" * more
    fields = "CSI_DATA,AP,00:11:22:33:44:55,-73,11,1,0,1,1,1,0,0,0,0,-93,0,1"
    return f"{fields},{secondary},80272146,0,101,0,0,80.36,{128 + 2 * more},[{pairs}{tail}]\n"


def esp_csi_line(imaginary: list[int], real: list[int]) -> str:
    """A line of Espressif's esp-csi: quoted, separated by commas."""
    pairs = ",".join(f"{i},{r}" for i, r in zip(imaginary, real, strict=True))
    fields = "CSI_DATA,7,00:11:22:33:44:55,-40,11,1,0,0,1,1,0,0,0,0,-93,0,6,0"
    return f'{fields},12345,0,89,0,128,1,"[{pairs}]"\n'


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def save(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)
    return path
