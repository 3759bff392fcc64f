"""Synthetic: generated windows with any number of clients, modalities and classes. They are for
trials and tests, not for claims.

Every class has a smooth waveform per modality and channel; a window is the waveform of its class,
shifted in time, scaled by the gain of the client, plus white noise. Each client draws its classes
from a Dirichlet distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communis.core import memory
from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.core.tasks import Classification
from communis.data.recordings.about import About
from communis.data.recordings.windows import Windows

ABOUT = About(licence="none needed: generated")


@dataclass(frozen=True)
class Synthetic:
    """Settings of `[data] name = "synthetic"`."""

    clients: int = 10  # number of clients
    modalities: int = 3  # number of modalities, named m0, m1, ...
    channels: int = 3  # channels per modality
    classes: int = 6  # number of classes
    windows: int = 100  # windows per client
    steps: int = 64  # steps per window
    noise: float = 1.0  # standard deviation of the noise, at least 0; waveforms have unit power
    skew: float = 1.0  # Dirichlet concentration of each client's classes, above 0; large: equal
    missing: float = 0.0  # probability that a modality is absent from a window, in [0, 1)

    def __post_init__(self) -> None:
        for name in ("clients", "modalities", "channels", "classes", "windows", "steps"):
            if getattr(self, name) < 1:
                raise CommunisError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.noise < 0 or self.skew <= 0 or not 0 <= self.missing < 1:
            raise CommunisError(
                "noise must be at least 0, skew positive and missing in [0, 1), got "
                f"{self.noise:g}, {self.skew:g} and {self.missing:g}"
            )

    def load(self, streams: Streams) -> Windows:
        values = self.modalities * self.channels * self.steps * (self.windows * self.clients + 3)
        classes = self.classes * (self.clients + 24 * self.channels * self.steps + self.classes)
        memory.require(
            4 * values + 24 * values / self.modalities + 8 * classes,
            f"data: {self.windows:,} windows for each of {self.clients:,} clients",
            "data.clients, windows, modalities, channels, steps or classes",
        )
        rng = streams.generator("data")
        n = self.clients * self.windows
        owner = np.repeat(np.arange(self.clients), self.windows)
        shares = rng.dirichlet([self.skew] * self.classes, self.clients)
        target = np.concatenate([rng.choice(self.classes, self.windows, p=p) for p in shares])
        gain = rng.uniform(0.7, 1.3, self.clients).astype(np.float32)[owner, None, None]
        shift = rng.integers(0, max(1, self.steps // 8), n)
        shifted = (np.arange(self.steps) + shift[:, None]) % self.steps
        inputs = {}
        present = {}
        for m in range(self.modalities):
            waves = self._waves(rng)[target]
            waves = np.take_along_axis(waves, shifted[:, None], 2)
            noise = rng.standard_normal(waves.shape, dtype=np.float32)
            present[f"m{m}"] = rng.random(n) >= self.missing
            inputs[f"m{m}"] = gain * waves + np.float32(self.noise) * noise
        position = np.arange(self.windows) / self.windows
        split_of_client = np.digitize(position, [0.6, 0.8])  # 0: training, 1: validation, 2: test
        split = np.tile(split_of_client, self.clients).astype(np.int8)
        return Windows(
            inputs, target.astype(np.int64), owner, split, Classification(self.classes), present
        )

    def _waves(self, rng: np.random.Generator) -> Array:
        """Returns (classes, channels, steps): sums of three low harmonics with random amplitudes
        and phases, and unit power."""
        t = np.arange(self.steps) / self.steps * 2 * np.pi
        amplitude = rng.standard_normal((self.classes, self.channels, 3, 1))
        phase = rng.uniform(0, 2 * np.pi, (self.classes, self.channels, 3, 1))
        waves = (amplitude * np.sin(np.arange(1, 4)[:, None] * t + phase)).sum(2)
        return np.asarray(waves / np.sqrt(np.square(waves).mean(2, keepdims=True)), np.float32)
