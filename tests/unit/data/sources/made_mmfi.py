"""Small MM-Fi recordings in the official layout: one file per frame and sensor."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from scipy.io import savemat

FRAMES = 6
HEIGHT, WIDTH = 24, 32


def recording(root: Path, name: str = "E01/S01/A01", frames: int = FRAMES) -> Path:
    """A recording whose every value is known: see the functions below."""
    folder = root / name
    for sensor in ("wifi-csi", "mmwave", "lidar", "depth", "rgb", "infra1", "infra2"):
        (folder / sensor).mkdir(parents=True)
    np.save(folder / "ground_truth.npy", joints(frames))
    for f in range(frames):
        frame = f"frame{f + 1:03d}"
        savemat(folder / f"wifi-csi/{frame}.mat", {"CSIamp": csi(f), "CSIphase": -csi(f)})
        (folder / f"mmwave/{frame}.bin").write_bytes(cloud(f, f, 5).tobytes())
        (folder / f"lidar/{frame}.bin").write_bytes(cloud(f, 20 + f, 3).tobytes())
        (folder / f"depth/{frame}.png").write_bytes(png(depth(f)))
        for k, sensor in enumerate(("rgb", "infra1", "infra2")):
            np.save(folder / f"{sensor}/{frame}.npy", keypoints(f) + 1000 * k)
    return folder


def joints(frames: int) -> np.ndarray:
    """(frames, 17, 3): frame . joint axis."""
    f, j, axis = np.ogrid[:frames, :17, :3]
    return f + j / 100 + axis / 1000


def csi(frame: int) -> np.ndarray:
    """(3, 114, 10): the packet's number within the recording, antenna, subcarrier."""
    antenna, carrier, packet = np.ogrid[:3, :114, :10]
    return 1000.0 * antenna + carrier + (10 * frame + packet) / 100


def cloud(frame: int, points: int, features: int) -> np.ndarray:
    """(points, features) float64."""
    p, feature = np.ogrid[:points, :features]
    return np.asarray(100.0 * frame + p + feature / 10)


def keypoints(frame: int) -> np.ndarray:
    j, axis = np.ogrid[:17, :2]
    return np.asarray(100.0 * frame + j + axis / 10)


def depth(frame: int) -> np.ndarray:
    """(HEIGHT, WIDTH) uint16 millimetres with noise in both bytes, and a hole."""
    rng = np.random.default_rng(frame)
    slope = np.add.outer(np.arange(HEIGHT) * 300, np.arange(WIDTH) * 7)
    image = (slope + rng.integers(1, 3000, (HEIGHT, WIDTH))).astype(np.uint16)
    image[8, 16] = 0
    return image


def png(image: np.ndarray, filters: tuple[int, ...] = (0, 1, 2, 3, 4)) -> bytes:
    """A PNG file of 16 bit grey whose rows take turns with the filters (there is no 5), in three
    IDAT chunks."""
    height, width = image.shape
    x = np.zeros((height + 1, width + 1, 2), np.int64)  # a border of zeros above and at the left
    x[1:, 1:] = image.astype(">u2")[..., None].view(np.uint8).reshape(height, width, 2)
    here, left, up, corner = x[1:, 1:], x[1:, :-1], x[:-1, 1:], x[:-1, :-1]
    away = np.abs(np.stack([left, up, corner]) - (left + up - corner))
    nearest = np.choose(away.argmin(0), [left, up, corner])  # the first of equals, as in the norm
    guesses = [np.zeros_like(left), left, up, (left + up) // 2, nearest]
    data = b""
    for row in range(height):
        kind = filters[row % len(filters)]
        delta = (here[row] - guesses[kind % 5][row]) & 255
        data += bytes([kind]) + delta.astype(np.uint8).tobytes()
    packed = zlib.compress(data)
    third = len(packed) // 3
    header = struct.pack(">IIBBBBB", width, height, 16, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", packed[:third])
        + chunk(b"IDAT", packed[third : 2 * third])
        + chunk(b"IDAT", packed[2 * third :])
        + chunk(b"IEND", b"")
    )


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
