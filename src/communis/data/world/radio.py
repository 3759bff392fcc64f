"""Radio: Wi-Fi channel state over antennas and subcarriers as a sum of paths.

    H(f) = Σ gain exp(-2πi f d / c)

with gain 1/d for the line of sight, Γ/d for the mirror image in a wall and √(σ/4π) / (d₁ d₂) for a
scatterer of cross-section σ at d₁ from the transmitter and d₂ from the receiver. Gains are relative
to the line of sight at one metre; power falls with the square of the distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communis.data.world.body import AT, Array, Motion
from communis.data.world.people import Crowd
from communis.data.world.rooms import Room

LIGHT = 299_792_458.0  # m/s
CARRIER = 5.2e9  # Hz
BANDWIDTH = 40e6  # Hz, divided evenly among the subcarriers
WALL = 0.35  # Γ: share of the amplitude that a wall reflects
NOISE = 0.02  # share of the channel's root mean square
SCATTERERS = {  # m², cross-sections of joints
    "pelvis": 0.3, "thorax": 0.4, "head": 0.1, "left_wrist": 0.06, "right_wrist": 0.06,
    "left_knee": 0.12, "right_knee": 0.12, "left_ankle": 0.06, "right_ankle": 0.06,
}  # fmt: skip


@dataclass(frozen=True)
class Band:
    """The receiver's antennas and subcarriers."""

    antennas: int
    subcarriers: int
    carrier: float = CARRIER
    bandwidth: float = BANDWIDTH

    @property
    def spacing(self) -> float:
        return self.bandwidth / self.subcarriers

    @property
    def lowest(self) -> float:
        return self.carrier - self.spacing * (self.subcarriers - 1) / 2

    def array(self, centre: Array) -> Array:
        """Returns (antennas, 3): positions with a distance of half a wavelength along y."""
        offset = (np.arange(self.antennas) - (self.antennas - 1) / 2) * LIGHT / self.carrier / 2
        return np.asarray(centre + offset[:, None] * (0.0, 1.0, 0.0))


def response(gain: Array, distance: Array, band: Band) -> Array:
    """Returns (..., subcarriers, times) complex64: the sum over paths (paths, ..., times)."""
    cycles = distance * (band.lowest / LIGHT)
    wave = gain.astype(np.float32) * _unit(cycles - np.floor(cycles))
    step = _unit(distance * (band.spacing / LIGHT))
    total = np.empty((*wave.shape[1:-1], band.subcarriers, wave.shape[-1]), np.complex64)
    for k in range(band.subcarriers):
        wave.sum(0, out=total[..., k, :])
        wave *= step  # at the next subcarrier, the phase of a path changes by its delay
    return total


def channel(crowd: Crowd, room: Room, times: Array, band: Band) -> Array:
    """Returns (windows, antennas, subcarriers, packets) complex64 at times (packets,) of each
    window."""
    empty = still(room, band)
    total = np.empty((crowd.windows, *empty.shape[:2], len(times)), np.complex64)
    total[:] = empty
    for rows, people in crowd.members:
        selected = rows if len(rows) < crowd.windows else slice(None)  # a slice does not copy
        total[selected] += moving(people.at(times), room, band)
    return total


def still(room: Room, band: Band) -> Array:
    """Returns (antennas, subcarriers, 1): the channel of an empty room: line of sight, six walls,
    furniture."""
    receivers = band.array(room.receiver)  # (A, 3)
    sources = np.concatenate([room.transmitter[None], mirrored(room.transmitter, room.size)])
    direct = np.linalg.norm(sources[:, None] - receivers, axis=2)
    gain = np.array([1.0, *[WALL] * 6])[:, None] / direct
    far = np.linalg.norm(room.reflectors - room.transmitter, axis=1)[:, None]
    near = np.linalg.norm(room.reflectors[:, None] - receivers, axis=2)
    scattered = scattering(room.cross_sections[:, None], far, near)
    gains = np.concatenate([gain, scattered])
    distances = np.concatenate([direct, far + near])
    return response(gains[..., None], distances[..., None], band)


def moving(motion: Motion, room: Room, band: Band) -> Array:
    """Returns (people, antennas, subcarriers, times): the contribution of every person."""
    joints = motion.joints[[AT[name] for name in SCATTERERS]]  # (S, 3, people, times)
    far = _distance(joints, room.transmitter)[:, :, None]
    near = np.stack([_distance(joints, spot) for spot in band.array(room.receiver)], 2)
    section = np.array(list(SCATTERERS.values()), np.float32).reshape(-1, 1, 1, 1)
    section = section * (motion.scale**2)[:, None, None]
    return response(scattering(section, far, near), far + near, band)


def scattering(section: Array, far: Array, near: Array) -> Array:
    """Returns the gain of a scattered path. Distances are at least 10 cm, because the formula holds
    for the far field only."""
    distances = np.maximum(far, 0.1) * np.maximum(near, 0.1)
    return np.asarray(np.sqrt(section / (4 * np.pi)) / distances)


def mirrored(point: Array, size: Array) -> Array:
    """Returns (6, 3): the images of a point in the walls, floor and ceiling of a box."""
    low = np.where(np.eye(3, dtype=bool), -point, point)
    high = np.where(np.eye(3, dtype=bool), 2 * size - point, point)
    return np.concatenate([low, high])


def received(rng: np.random.Generator, channel: Array, noise: float, phase: bool) -> Array:
    """Returns (N, antennas or 2 antennas - 1, subcarriers, packets) float32, from (N, A, K, T)
    complex: amplitudes after gain control, which sets the root mean square of every window to one;
    with `phase` also the phases of the other antennas relative to the first, in radians."""
    power = np.square(channel.real).mean((1, 2, 3)) + np.square(channel.imag).mean((1, 2, 3))
    level = np.sqrt(power)[:, None, None, None]
    error = rng.standard_normal((*channel.shape, 2), np.float32).view(np.complex64)[..., 0]
    signal = channel / level + np.float32(noise * NOISE / np.sqrt(2)) * error
    amplitude = np.sqrt(signal.real**2 + signal.imag**2)  # values are near one: np.abs is slower
    if not phase:
        return np.asarray(amplitude)
    return np.concatenate([amplitude, np.angle(signal[:, 1:] * signal[:, :1].conj())], 1)


def _unit(cycles: Array) -> Array:
    """Returns exp(-2πi cycles) as complex64."""
    angle = (cycles * (2 * np.pi)).astype(np.float32)
    unit = np.empty(angle.shape, np.complex64)
    np.cos(angle, out=unit.real)
    np.negative(np.sin(angle), out=unit.imag)
    return unit


def _distance(points: Array, origin: Array) -> Array:
    """Returns distances (S, R, T) of points (S, 3, R, T)."""
    squares = sum((points[:, i] - float(origin[i])) ** 2 for i in range(3))
    return np.asarray(np.sqrt(squares))
