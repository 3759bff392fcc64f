"""Rooms: boxes with static reflectors and mounted sensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communis.data.world.body import Array

SIZE = (6.0, 5.0, 2.8)  # metres, of the reference room; other rooms are variations of it
SMALLEST = (3.6, 3.6, 2.5)  # metres
MARGIN = 0.7  # metres between people and the walls
MOST_SHIFT = 2.0  # between rooms: with larger shifts most rooms would be at the limits below
CLEARANCE = 0.1  # metres between hands or heads and the walls
ALONG = (0.42, 0.62, 0.5, 0.5)  # share of the wall: transmitter, receiver, radar, camera
HEIGHT = (1.2, 1.7, 1.3, 1.6, 1.5)  # metres: transmitter, receiver, radar, LiDAR, camera
FURNITURE = ((0.15, 0.85, 0.7), (0.85, 0.15, 0.9), (0.5, 0.95, 1.2), (0.9, 0.8, 1.8))  # x, y: share


@dataclass(frozen=True)
class Mount:
    """A sensor on a wall."""

    position: Array  # (3,) metres
    axes: Array  # (3, 3): ahead, left and up of the sensor as columns

    def local(self, points: Array) -> Array:
        """Returns points of the room in the coordinates of the sensor; components first."""
        shape = (3,) + (1,) * (points.ndim - 1)
        away = points - self.position.astype(points.dtype).reshape(shape)
        return np.tensordot(self.axes.T.astype(points.dtype), away, 1)


@dataclass(frozen=True)
class Room:
    """A room and its sensors; positions are in metres."""

    size: Array  # (3,) metres
    north: float  # radians from the x axis to magnetic north
    transmitter: Array  # (3,)
    receiver: Array  # (3,) centre of the antennas, which are in a line along y
    reflectors: Array  # (R, 3): furniture that scatters radio
    cross_sections: Array  # (R,) m²
    radar: Mount
    lidar: Mount
    camera: Mount

    def floor(self, share: Array, low: Array, high: Array) -> Array:
        """Maps points (2, P) of the unit square to the usable part of the floor, for people whose
        bodies reach from `low` to `high`, (2, P) metres from their position."""
        near = np.maximum(MARGIN, CLEARANCE - low)
        far = self.size[:2, None] - np.maximum(MARGIN, CLEARANCE + high)
        return np.asarray(near + share * (far - near))


def room(rng: np.random.Generator, shift: float) -> Room:
    """Draws a room that differs from the reference room by `shift`; 0: all rooms are equal."""
    size = np.array(SIZE) * (1 + shift * rng.uniform(-0.3, 0.3, 3) * (1, 1, 0.3))
    size = np.maximum(size, SMALLEST)
    along = np.clip(np.array(ALONG) + shift * rng.uniform(-0.35, 0.35, 4), 0.05, 0.95)
    height = np.clip(np.array(HEIGHT) + shift * rng.uniform(-0.5, 0.5, 5), 0.5, size[2] - 0.2)
    reflectors = np.array(FURNITURE) + shift * rng.uniform(-0.4, 0.4, (4, 3)) * (1, 1, 0)
    reflectors = np.clip(reflectors, (0.05, 0.05, 0.3), (0.95, 0.95, 2.0)) * (*size[:2], 1)
    centre = size * (0.5, 0.5, 0) + (0, 0, 1.0)
    return Room(
        size=size,
        north=float(0.4 + shift * rng.uniform(-np.pi, np.pi)),
        transmitter=np.array([0.1, size[1] * along[0], height[0]]),
        receiver=np.array([size[0] - 0.1, size[1] * along[1], height[1]]),
        reflectors=reflectors,
        cross_sections=np.exp(shift * rng.uniform(-1, 1, 4)),
        radar=mount([size[0] * along[2], 0.05, height[2]], centre),
        lidar=mount([0.1, 0.1, height[3]], centre),
        camera=mount([0.05, size[1] * along[3], height[4]], centre),
    )


def mount(position: list[float], towards: Array) -> Mount:
    """Returns the mount of a sensor that faces a point, without sideways tilt."""
    ahead = towards - np.asarray(position)
    ahead = ahead / np.linalg.norm(ahead)
    left = np.cross([0.0, 0.0, 1.0], ahead)
    left = left / np.linalg.norm(left)
    return Mount(np.asarray(position), np.stack([ahead, left, np.cross(ahead, left)], 1))
