"""Sensors: the settings of all sensors, and their readings of a scene.

Every sensor has its own stream of random numbers, so that the readings of the others stay the same
if it is left out or the noise is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np

from communis.core import memory
from communis.core.errors import CommunisError
from communis.data.world import heart, inertial, lidar, radar, radio, ranging
from communis.data.world.actions import ACTIONS
from communis.data.world.body import Array
from communis.data.world.people import Crowd, People
from communis.data.world.rooms import Room
from communis.data.world.scene import Scene

Sensor = Literal["acc", "gyro", "mag", "heart", "csi", "mmwave", "lidar", "depth"]
SiteName = Literal["wrist", "pocket", "chest", "ankle", "head"]
Generators = Callable[[str], np.random.Generator]
Reading = tuple[str, Array]  # modality and values, (windows, channels, ...)
MOST_SHIFT = 1.5  # between people: with larger shifts some could not walk
CHUNK = 100  # windows computed at once: little memory, and the arrays fit the processor's cache


@dataclass(frozen=True)
class Sensors:
    """The settings of the sensors."""

    seconds: float = 4.0  # length of a window in seconds
    sensors: tuple[Sensor, ...] = get_args(Sensor)  # sensors in use
    sites: tuple[SiteName, ...] = ("wrist", "pocket")  # sites of acc, gyro and mag on the body
    imu_rate: float = 25.0  # rate of acc, gyro and mag in Hz
    heart_rate: float = 1.0  # rate of the reported heart rate in Hz
    csi_rate: float = 10.0  # CSI packets per second
    csi_antennas: int = 3  # antennas of the receiver
    csi_subcarriers: int = 16  # subcarriers in the band of 40 MHz
    csi_phase: bool = False  # whether to add phases, relative to the first antenna, to amplitudes
    mmwave_rate: float = 2.0  # radar frames per second
    mmwave_points: int = 48  # most radar detections in a window
    lidar_points: int = 64  # most LiDAR points in a window
    depth_size: tuple[int, int] = (12, 16)  # height and width of depth images in pixels
    noise: float = 1.0  # factor of the noise of every sensor, at least 0; 0: no noise
    # size of the differences between people and between mounts of their sensors, 0 to 1.5; 0: none
    subject_shift: float = 1.0

    def __post_init__(self) -> None:
        self._at_least(
            1, "csi_antennas", "csi_subcarriers", "mmwave_points", "lidar_points", "depth_size"
        )
        self._at_least(0, "noise", "subject_shift")
        self._at_most(MOST_SHIFT, "subject_shift")
        self._positive("seconds", "imu_rate", "heart_rate", "csi_rate", "mmwave_rate")
        self._chosen("sensors", get_args(Sensor))
        if self.sites or any(sensor in inertial.NOISE for sensor in self.sensors):
            self._chosen("sites", get_args(SiteName))
        if self.csi_phase and "csi" in self.sensors and self.csi_antennas < 2:
            raise CommunisError(
                "csi_phase gives phases relative to the first antenna and needs a second one, got "
                "csi_antennas = 1; raise it, or set csi_phase = false"
            )
        if len(self.depth_size) != 2:
            raise CommunisError(
                f"depth_size: expected height and width, got {list(self.depth_size)}"
            )
        for name, users in {
            "imu_rate": ("acc", "gyro", "mag"),
            "heart_rate": ("heart",),
            "csi_rate": ("csi",),
            "mmwave_rate": ("mmwave",),
        }.items():
            used = any(sensor in users for sensor in self.sensors)
            if used and self._steps(getattr(self, name)) < 1:
                raise CommunisError(
                    f"{name} = {getattr(self, name)} gives no sample in windows of seconds = "
                    f"{self.seconds}; raise one of them"
                )

    def require_memory(self, windows: int) -> None:
        """Raises an error if the windows do not fit into memory. Intermediate values take more
        memory than windows: bodies at every step of CHUNK windows, CSI as complex numbers, rays of
        images."""
        imu_steps = self._steps(self.imu_rate)
        csi_steps = self._steps(self.csi_rate)
        mmwave_steps = self._steps(self.mmwave_rate)
        heart_steps = self._steps(self.heart_rate)
        pixels = int(np.prod(self.depth_size, dtype=object))
        points = 6 * (self.mmwave_points + self.lidar_points) + pixels
        csi = self.csi_antennas * self.csi_subcarriers * (1 + self.csi_phase) * csi_steps
        per_window = 9 * len(self.sites) * imu_steps + csi + points + heart_steps
        intermediate = 600 * (imu_steps + mmwave_steps) + 16 * csi + 60 * points
        memory.require(
            4.0 * windows * per_window + 8.0 * min(windows, CHUNK) * intermediate,
            f"data: {windows:,} windows",
            "data.clients, windows, seconds, rates, points, antennas, subcarriers or depth_size",
        )

    def sense(self, random: Generators, scene: Scene) -> Iterator[tuple[int, Reading]]:
        """Yields the first window of a piece, and a reading of the piece. random: returns a new
        generator by name."""
        generators = cache(random)  # all pieces continue the same generators
        if "heart" in self.sensors:
            yield 0, ("heart", self._heart(generators("heart"), scene))
        mounts = {}
        for site in self.sites:
            mounts[site] = inertial.mounting(generators(f"{site}.mounting"), self.subject_shift)
        for begin in range(0, scene.crowd.windows, CHUNK):
            crowd = scene.crowd.part(begin, min(begin + CHUNK, scene.crowd.windows))
            if any(sensor in inertial.NOISE for sensor in self.sensors):
                for reading in self._inertial(generators, crowd, scene.room, mounts):
                    yield begin, reading
            for reading in self._remote(generators, crowd, scene.room):
                yield begin, reading

    def _heart(self, rng: np.random.Generator, scene: Scene) -> Array:
        """Returns the heart rate in all windows; NaN in an empty room."""
        rest = heart.REST + 7 * self.subject_shift * rng.standard_normal()
        fitness = np.exp(0.2 * self.subject_shift * rng.standard_normal())
        level = rest + np.array([a.effort for a in ACTIONS])[scene.action] * fitness
        times = np.arange(self._steps(self.heart_rate)) / self.heart_rate
        beats = heart.rate(level, self.seconds, times, rest)
        beats += self.noise * heart.NOISE * rng.standard_normal(beats.shape)
        return np.where(scene.count[:, None] > 0, beats, np.nan)[:, None]

    def _inertial(
        self, random: Generators, crowd: Crowd, room: Room, mounts: dict[SiteName, Array]
    ) -> Iterator[Reading]:
        """Yields the readings of acc, gyro and mag at every site of the subject."""
        steps = self._steps(self.imu_rate)
        times = np.arange(steps) / self.imu_rate
        worn = [(rows, self._worn(subject, times)) for rows, subject in crowd.members[:1]]
        sensors = [sensor for sensor in inertial.NOISE if sensor in self.sensors]
        for site in self.sites:
            for sensor in sensors:
                values = np.full((crowd.windows, 3, steps), np.nan, np.float32)
                for rows, placements in worn:  # empty if nobody is in the room
                    true = inertial.measured(sensor, placements[site], room.north)
                    values[rows] = np.tensordot(mounts[site].T, true, 1).transpose(1, 0, 2)
                error = random(f"{site}_{sensor}").standard_normal(values.shape, np.float32)
                yield f"{site}_{sensor}", values + self.noise * inertial.NOISE[sensor] * error

    def _worn(self, subject: People, times: Array) -> dict[SiteName, list[inertial.Placement]]:
        """Returns the position and axes of every site at the three MOMENTS around each time."""
        placements: dict[SiteName, list[inertial.Placement]] = {site: [] for site in self.sites}
        for moment in inertial.MOMENTS:  # one after the other, because bodies take much memory
            motion = subject.at(times + moment)
            for site in self.sites:
                placements[site].append(inertial.worn(motion, inertial.SITES[site]))
        return placements

    def _remote(self, random: Generators, crowd: Crowd, room: Room) -> Iterator[Reading]:
        """Yields the readings of Wi-Fi, radar, LiDAR and depth camera."""
        middle = self.seconds / 2
        if "csi" in self.sensors:
            band = radio.Band(self.csi_antennas, self.csi_subcarriers)
            times = np.arange(self._steps(self.csi_rate)) / self.csi_rate
            channel = radio.channel(crowd, room, times, band)
            yield "csi", radio.received(random("csi"), channel, self.noise, self.csi_phase)
        if "mmwave" in self.sensors:
            frames = (np.arange(self._steps(self.mmwave_rate)) + 0.5) / self.mmwave_rate
            points = self.mmwave_points
            yield "mmwave", radar.detect(random("mmwave"), crowd, room, frames, points, self.noise)
        if "lidar" in self.sensors:
            points = self.lidar_points
            yield "lidar", lidar.sweep(random("lidar"), crowd, room, middle, points, self.noise)
        if "depth" in self.sensors:
            image = ranging.depth(crowd, room, middle, *self.depth_size)
            error = random("depth").standard_normal(image.shape, np.float32)
            yield "depth", (image * (1 + self.noise * ranging.NOISE * error))[:, None]

    def _steps(self, rate: float) -> int:
        return int(rate * self.seconds + 1e-6)

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            if np.min(getattr(self, name)) < least:
                raise CommunisError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def _at_most(self, most: float, *names: str) -> None:
        for name in names:
            if getattr(self, name) > most:
                raise CommunisError(f"{name} must be at most {most:g}, got {getattr(self, name)}")

    def _positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) <= 0:
                raise CommunisError(f"{name} must be positive, got {getattr(self, name)}")

    def _chosen(self, name: str, choices: tuple[str, ...]) -> None:
        chosen = getattr(self, name)
        unknown = [word for word in chosen if word not in choices]
        if unknown or not chosen or len(set(chosen)) < len(chosen):
            raise CommunisError(
                f"{name} must be some of {', '.join(choices)}, each once; got {list(chosen)}"
            )
