"""Sensors: which there are, how finely and how cleanly they measure, and what they make of a scene.

Every sensor draws from a stream of its own, so that one can be left out, or noise turned up,
without changing what the others see.
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
MOST_SHIFT = 1.5  # between people: further apart some could not walk
CHUNK = 100  # windows made at a time: little memory, and the arrays stay in the processor's cache


@dataclass(frozen=True)
class Sensors:
    seconds: float = 4.0  # per window
    sensors: tuple[Sensor, ...] = get_args(Sensor)  # what is sensed
    sites: tuple[SiteName, ...] = ("wrist", "pocket")  # where acc, gyro and mag are worn
    imu_rate: float = 25.0  # Hz of acc, gyro and mag
    heart_rate: float = 1.0  # Hz at which the heart rate is reported
    csi_rate: float = 10.0  # packets per second
    csi_antennas: int = 3  # of the receiver
    csi_subcarriers: int = 16  # over 40 MHz
    csi_phase: bool = False  # add phases against the first antenna to the amplitudes
    mmwave_rate: float = 2.0  # frames per second
    mmwave_points: int = 48  # most detections in a window
    lidar_points: int = 64  # most points in a window
    depth_size: tuple[int, int] = (12, 16)  # height and width in pixels
    noise: float = 1.0  # factor on the noise of every sensor; 0: none
    subject_shift: float = 1.0  # how much people and the way they wear sensors differ; 0: not

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
                "csi_phase gives phases against the first antenna and needs a second one, got "
                "csi_antennas = 1; raise it, or leave csi_phase out"
            )
        if len(self.depth_size) != 2:
            raise CommunisError(f"depth_size is height and width, got {list(self.depth_size)}")
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
        """Refuses more windows than fit. What is made of them in between takes more than they do:
        whole bodies at every step of CHUNK windows, CSI as complex numbers, rays of images."""
        steps = [self._steps(rate) for rate in (self.imu_rate, self.csi_rate, self.mmwave_rate)]
        antennas = self.csi_antennas * self.csi_subcarriers * (1 + self.csi_phase)
        points = 6 * (self.mmwave_points + self.lidar_points) + int(
            np.prod(self.depth_size, dtype=object)
        )
        kept = 9 * len(self.sites) * steps[0] + antennas * steps[1] + points
        kept += self._steps(self.heart_rate)
        made = 600 * (steps[0] + steps[2]) + 16 * antennas * steps[1] + 60 * points
        memory.require(
            4.0 * windows * kept + 8.0 * min(windows, CHUNK) * made,
            f"data: {windows:,} windows",
            "data.clients, windows, seconds, rates, points, antennas, subcarriers or depth_size",
        )

    def sense(self, random: Generators, scene: Scene) -> Iterator[tuple[int, Reading]]:
        """First window and reading, piece by piece. random: a new generator by name."""
        known = cache(random)  # one for all pieces
        if "heart" in self.sensors:
            yield 0, ("heart", self._heart(known("heart"), scene))
        mounts = {site: inertial.mounting(known(f"{site}.mounting"), self.subject_shift)
                  for site in self.sites}  # fmt: skip
        for begin in range(0, scene.crowd.windows, CHUNK):
            crowd = scene.crowd.part(begin, min(begin + CHUNK, scene.crowd.windows))
            if any(sensor in inertial.NOISE for sensor in self.sensors):
                for reading in self._inertial(known, crowd, scene.room, mounts):
                    yield begin, reading
            for reading in self._remote(known, crowd, scene.room):
                yield begin, reading

    def _heart(self, rng: np.random.Generator, scene: Scene) -> Array:
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
        steps = self._steps(self.imu_rate)
        times = np.arange(steps) / self.imu_rate
        worn = [(rows, self._worn(subject, times)) for rows, subject in crowd.members[:1]]
        for site in self.sites:
            for sensor in (sensor for sensor in inertial.NOISE if sensor in self.sensors):
                values = np.full((crowd.windows, 3, steps), np.nan, np.float32)
                for rows, spots in worn:  # none while nobody is in the room
                    true = inertial.measured(sensor, spots[site], room.north)
                    values[rows] = np.tensordot(mounts[site].T, true, 1).transpose(1, 0, 2)
                error = random(f"{site}_{sensor}").standard_normal(values.shape, np.float32)
                yield f"{site}_{sensor}", values + self.noise * inertial.NOISE[sensor] * error

    def _worn(self, subject: People, times: Array) -> dict[SiteName, list[inertial.Spot]]:
        """Of every site, where it is at the three moments around each time."""
        spots: dict[SiteName, list[inertial.Spot]] = {site: [] for site in self.sites}
        for moment in inertial.MOMENTS:  # one after the other: whole bodies take much memory
            motion = subject.at(times + moment)
            for site in self.sites:
                spots[site].append(inertial.worn(motion, inertial.SITES[site]))
        return spots

    def _remote(self, random: Generators, crowd: Crowd, room: Room) -> Iterator[Reading]:
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
        bad = [word for word in chosen if word not in choices]
        if bad or not chosen or len(set(chosen)) < len(chosen):
            raise CommunisError(
                f"{name} must be some of {', '.join(choices)}, each once; got {list(chosen)}"
            )
