"""The pictures of docs/guides/world.md: `python docs/img/make_world.py` writes world-*.svg here.

Plain SVG text without any library; maps of numbers are small PNG images inside it.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from communis.core.streams import Streams
from communis.data.recordings.windows import Windows
from communis.data.sources.world import World
from communis.data.world.actions import ACTIONS, NAMES
from communis.data.world.body import BONES, JOINTS, Array
from communis.data.world.people import habits, people
from communis.data.world.rooms import Room, room

BLUE, ORANGE, GREEN, RED, GREY = "#2563eb", "#d97706", "#059669", "#dc2626", "#64748b"
COLOURS = (BLUE, ORANGE, GREEN)
FOLDER = Path(__file__).parent
STREAMS = Streams(7)


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}' font-size='{size}' text-anchor='{anchor}'>{words}</text>"


def line(xs: Array, ys: Array, colour: str, width: float = 1.5) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    return f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='{width}'/>"


def dot(x: float, y: float, colour: str, radius: float = 3) -> str:
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:.1f}' fill='{colour}'/>"


def save(name: str, width: int, height: int, parts: Sequence[str]) -> None:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"viewBox='0 0 {width} {height}' font-family='sans-serif' fill='#334155'>"
        f"<rect width='{width}' height='{height}' fill='white'/>"
    )
    content = "\n".join([head, *parts, "</svg>", ""])
    assert len(content) < 60_000, f"{name}: {len(content)} bytes"
    (FOLDER / f"world-{name}.svg").write_text(content, "utf-8")


def heat(values: Array, x: float, y: float, width: float, height: float) -> str:
    """A map of numbers from 0 (dark) to 1 (light)."""
    stops = np.array([(30, 27, 75), (37, 99, 235), (5, 150, 105), (250, 204, 21), (254, 252, 232)])
    at = np.clip(values, 0, 1) * (len(stops) - 1)
    low = np.minimum(at.astype(int), len(stops) - 2)
    share = (at - low)[..., None]
    pixels = (stops[low] * (1 - share) + stops[low + 1] * share).astype(np.uint8)
    data = base64.b64encode(png(pixels)).decode()
    return (
        f"<image x='{x}' y='{y}' width='{width}' height='{height}' preserveAspectRatio='none' "
        f"style='image-rendering:pixelated' href='data:image/png;base64,{data}'/>"
    )


def png(pixels: Array) -> bytes:
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def axes(box: tuple[float, float, float, float], low: float, high: float, unit: str) -> str:
    """A frame (x, y, width, height) with the range of its values at the left."""
    x, y, width, height = box
    frame = (
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' fill='none' stroke='#cbd5e1'/>"
    )
    return (
        frame
        + text(x - 6, y + 10, f"{high:g} {unit}", "end", 10)
        + text(x - 6, y + height, f"{low:g}", "end", 10)
    )


def load(**settings: Any) -> Windows:
    plain = {"clients": 1, "rooms": 1, "subject_shift": 0.3, "room_shift": 0.0}
    return World(**(plain | settings)).load(STREAMS)


def clearest(data: Windows, action: str) -> int:
    """The window of an action in which the camera sees most of the body."""
    image = data.inputs["depth"]
    body = (np.median(image, 0) - image > 0.3).sum((1, 2, 3))
    return int(np.argmax(np.where(data.target == data.labels.index(action), body, -1)))


def first(data: Windows, action: str) -> int:
    return int(np.flatnonzero(data.target == data.labels.index(action))[0])


def draw_body() -> None:
    """Every action from the side or the front, at five moments of its cycle."""
    parts = []
    who = habits(STREAMS.generator("picture"), len(ACTIONS), 0.0)
    rows = people(STREAMS.generator("picture"), np.arange(len(ACTIONS)), who, room_())
    frontal = {"waving", "jumping", "turning"}
    for i, action in enumerate(ACTIONS):
        one = rows.take(np.array([i]))
        start = -one.phase[0] / (2 * np.pi * one.tempo[0])
        times = start + np.arange(5) / 5 / one.tempo[0]
        motion = one.at(times)
        bodies = motion.pose[:, :, 0] + motion.root[2, 0] * np.array([0, 0, 1])[:, None]
        moment = np.zeros(5, int) if action.spin else np.arange(5)  # whose heading we look along
        ahead = motion.turns[0][action.name in frontal][:2, 0, moment]
        across = ahead / np.hypot(*ahead)
        left, top = 12 + i % 3 * 300, 26 + i // 3 * 168
        parts.append(text(left, top, action.name, size=13))
        for k in range(5):
            side = bodies[:, 0, k] * across[0, k] + bodies[:, 1, k] * across[1, k]
            x, y = left + 34 + k * 56 + 60 * side, top + 132 - 60 * bodies[:, 2, k]
            for colour, right in ((BLUE, False), (ORANGE, True)):
                bones = [bone for bone in BONES if ("right" in JOINTS[bone[1]]) == right]
                way = " ".join(f"M{x[a]:.1f},{y[a]:.1f}L{x[b]:.1f},{y[b]:.1f}" for a, b in bones)
                parts.append(f"<path d='{way}' stroke='{colour}' stroke-width='2.5'/>")
            parts.append(dot(x[10], y[10], BLUE, 4.5))
        parts.append(line(np.array([left, left + 280]), np.full(2, top + 133), "#cbd5e1", 1))
    save("body", 912, 520, parts)


def room_() -> Room:
    return room(STREAMS.generator("world.room", 0), 0.0)


def draw_room() -> None:
    """Four rooms from above."""
    parts = []
    for i in range(4):
        here = room(STREAMS.generator("world.room", i), 1.0)
        x0, y0, scale = 20 + i * 225, 250, 26

        def at(point: Array, x0: int = x0, y0: int = y0, scale: int = scale) -> tuple[float, float]:
            return x0 + scale * point[0], y0 - scale * point[1]

        width, depth = scale * here.size[:2]
        parts.append(f"<rect x='{x0}' y='{y0 - depth:.0f}' width='{width:.0f}' "
                     f"height='{depth:.0f}' fill='#f8fafc' stroke='#334155'/>")  # fmt: skip
        ends = np.array([at(here.transmitter), at(here.receiver)]).T
        parts.append(line(ends[0], ends[1], "#cbd5e1"))
        for reflector in here.reflectors:
            parts.append(dot(*at(reflector), GREY, 5))
        marks = {"T": here.transmitter, "R": here.receiver, "mmWave": here.radar.position,
                 "LiDAR": here.lidar.position, "camera": here.camera.position}  # fmt: skip
        for name, point in marks.items():
            parts.append(dot(*at(point), RED, 4))
            across, down = at(point)
            outside = name == "T"  # where no other name is
            label = (across - 6, down + 4) if outside else (across + 6, down - 5)
            parts.append(text(*label, name, "end" if outside else "start", size=10))
        size = " x ".join(f"{metres:.1f}" for metres in here.size)
        parts.append(text(x0, y0 + 34, f"room {i}: {size} m"))
    save("rooms", 912, 300, parts)


def draw_series() -> None:
    """Accelerometer, gyroscope and magnetometer of two sites."""
    data = load(windows=27, imu_rate=40.0, sensors=("acc", "gyro", "mag"))
    ranges = {"acc": (-2, 4, "g"), "gyro": (-8, 8, "rad/s"), "mag": (-50, 50, "uT")}
    parts = []
    for column, (site, action) in enumerate(
        [("wrist", "walking"), ("pocket", "walking"), ("wrist", "waving")]
    ):
        row = first(data, action)
        parts.append(text(60 + column * 290, 18, f"{site}, {action}", size=13))
        for k, (sensor, (low, high, unit)) in enumerate(ranges.items()):
            box = (60 + column * 290, 28 + k * 110, 220, 96)
            parts.append(axes(box, low, high, unit))
            values = data.inputs[f"{site}_{sensor}"][row]
            xs = box[0] + np.arange(values.shape[1]) / values.shape[1] * box[2]
            for channel, colour in zip(values, COLOURS, strict=True):
                parts.append(line(xs, box[1] + (high - channel) / (high - low) * box[3], colour, 1))
    parts.append(text(60, 376, "4 s; ahead (blue), left (orange) and up (green) of the bone"))
    save("imu", 912, 388, parts)


def draw_heart() -> None:
    data = load(windows=180, sensors=("heart",), subject_shift=0.0)
    beats = data.inputs["heart"].ravel()
    box = (60.0, 20.0, 820.0, 160.0)
    parts = [axes(box, 60, 160, "bpm")]
    xs = box[0] + np.arange(len(beats)) / len(beats) * box[2]
    parts.append(line(xs, box[1] + (160 - beats) / 100 * box[3], RED, 1))
    changes = np.flatnonzero(np.diff(data.target, prepend=-1))
    for row in changes:
        x = box[0] + row / len(data) * box[2]
        parts.append(line(np.array([x, x]), np.array([20.0, 180]), "#cbd5e1", 1))
        parts.append(text(x + 3, 196, NAMES[data.target[row]], size=10))
    parts.append(text(60, 216, "12 minutes of one subject"))
    save("heart", 912, 226, parts)


def draw_csi() -> None:
    data = load(windows=84, people=(0, 20), target="count", sensors=("csi",), csi_rate=40.0,
                csi_subcarriers=32, csi_antennas=1)  # fmt: skip
    parts = []
    for k, number in enumerate((0, 1, 5, 20)):
        row = int(np.flatnonzero(data.target == number)[0])
        parts.append(
            text(30 + k * 222, 18, f"{number} {'person' if number == 1 else 'people'}", size=13)
        )
        parts.append(heat(data.inputs["csi"][row, 0] / 2, 30 + k * 222, 28, 200, 160))
    parts.append(text(30, 206, "amplitude from 0 (dark) to 2 (light): 32 subcarriers upright, "
                      "160 packets in 4 s across"))  # fmt: skip
    save("csi", 912, 216, parts)


def draw_points() -> None:
    """Radar from above with Doppler colours; LiDAR and the depth image of the same moment."""
    data = load(windows=72, trial=1, sensors=("mmwave", "lidar", "depth"), mmwave_points=160,
                mmwave_rate=10.0, lidar_points=300, depth_size=(60, 80))  # fmt: skip
    parts = []
    for k, action in enumerate(("walking", "running", "waving", "jumping")):
        x0 = 30 + k * 222
        x, y, _, speed, _ = data.inputs["mmwave"][first(data, action)]
        parts.append(text(x0, 18, action, size=13))
        parts.append(
            f"<rect x='{x0}' y='28' width='200' height='170' fill='none' stroke='#cbd5e1'/>"
        )
        parts.append(dot(x0 + 100, 198, RED, 4))
        for ahead, left, v in zip(x, y, speed, strict=True):
            if np.isfinite(v):
                fade = 200 - int(min(abs(v) / 1.5, 1) * 200)
                colour = f"rgb(200,{fade},{fade})" if v > 0 else f"rgb({fade},{fade},200)"
                parts.append(dot(x0 + 100 - 32 * left, 198 - 32 * ahead, colour, 2))
    parts.append(text(30, 218, "4 s from above, radar at the red dot, 32 pixels per metre; moving "
                      "away is red, coming nearer blue"))  # fmt: skip
    save("mmwave", 912, 228, parts)
    clouds: list[str] = []
    images: list[str] = []
    for k, action in enumerate(("standing", "walking", "jumping", "waving")):
        row, x0 = clearest(data, action), 30 + k * 222
        _, y, z, power = data.inputs["lidar"][row]
        for part in (clouds, images):
            part.append(text(x0, 18, action, size=13))
        distance = np.nanmean(power**-0.5)
        points = np.isfinite(y).sum()
        clouds.append(text(x0, 222, f"{points} points at {distance:.1f} m", size=11))
        left, low = np.nanmean(y), np.nanmin(z)
        for across, up, p in zip(y, z, power, strict=True):
            if np.isfinite(up):
                shade = int(np.clip((p**-0.5 - distance) * 250 + 90, 0, 200))
                clouds.append(
                    dot(x0 + 90 - 85 * (across - left), 200 - 85 * (up - low),
                        f"rgb({shade},{shade},220)", 1.5)
                )  # fmt: skip
        images.append(heat(data.inputs["depth"][row, 0] / 7, x0, 28, 200, 150))
    save("lidar", 912, 232, clouds)
    images.append(text(30, 198, "0 m (dark) to 7 m (light)"))
    save("depth", 912, 208, images)


if __name__ == "__main__":
    for draw in (draw_body, draw_room, draw_series, draw_heart, draw_csi, draw_points):
        draw()
