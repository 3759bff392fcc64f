"""Reader of PNG images of 16 bit grey, as depth cameras write them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from communis.core.arrays import Array
from communis.core.memory import room
from communis.data.recordings.files import reading

BYTES_PER_PIXEL = 16  # memory for undoing the filters, including the slanted copies


def grey16(path: Path) -> Array:
    """Returns the pixels of a PNG image of 16 bit grey, (height, width) uint16."""
    with reading(path, "PNG image"):
        chunks = _chunks(path.read_bytes())
        width, height, *form = struct.unpack(">IIBBBBB", chunks[0][1])
        if form != [16, 0, 0, 0, 0]:
            raise ValueError("expected 16 bit grey without interlacing")
        room(path, BYTES_PER_PIXEL * height * (width + height), f"an image of {width} x {height}")
        packed = b"".join(body for name, body in chunks if name == b"IDAT")
        size = height * (1 + 2 * width)
        data = zlib.decompressobj().decompress(packed, size + 1)  # limited to the expected size
        rows = np.frombuffer(data, np.uint8).reshape(height, 1 + 2 * width)
        pixels = _unfiltered(rows[:, 1:].reshape(height, width, 2), rows[:, 0])
    return np.ascontiguousarray(pixels).view(">u2")[..., 0]


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the names and bodies of the chunks."""
    chunks = []
    at = 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        chunks.append((name, data[at + 8 : at + 8 + length]))
        at += 12 + length
    return chunks


def _unfiltered(filtered: Array, kinds: Array) -> Array:
    """Undoes the filters of PNG, which predict a byte from its left, upper and upper left
    neighbours. All pixels of a diagonal are computed at once: row r is shifted r columns to the
    right, so that the neighbours are in the one or two columns before."""
    height, width, lanes = filtered.shape
    slanted = np.zeros((height, width + height, lanes), np.int16)
    slanted[:, :width] = filtered
    slanted = slanted.reshape(-1, lanes)[:-height].reshape(height, -1, lanes)
    pixels = np.zeros((width + height + 1, height + 1, lanes), np.int16)  # column, 1 + row
    kind = kinds[:, None]
    for column, delta in enumerate(slanted.swapaxes(0, 1), start=2):
        left = pixels[column - 1, 1:]
        up = pixels[column - 1, :-1]
        corner = pixels[column - 2, :-1]
        to_left = np.abs(up - corner)
        to_up = np.abs(left - corner)
        to_corner = np.abs(left + up - 2 * corner)
        nearest = np.where(to_up <= to_corner, up, corner)
        nearest = np.where((to_left <= to_up) & (to_left <= to_corner), left, nearest)
        guess = np.choose(kind, [np.zeros_like(left), left, up, (left + up) // 2, nearest])
        pixels[column, 1:] = (delta + guess) & 255
    straight = np.zeros((height * (width + height), lanes), np.uint8)
    straight[:-height] = pixels[2:, 1:].swapaxes(0, 1).reshape(-1, lanes)
    return straight.reshape(height, -1, lanes)[:, :width]
