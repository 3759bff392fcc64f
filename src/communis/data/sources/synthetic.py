"""Synthetic: seeded windows with any number of clients, modalities and classes. For trials and
tests, not for claims.

Every class has a smooth waveform per modality and channel; a window is its class's waveform,
shifted in time, scaled by the client's own gain, plus white noise. Each client draws its classes
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

    clients: int = 10
    modalities: int = 3  # named m0, m1, ...
    channels: int = 3  # per modality
    classes: int = 6
    windows: int = 100  # per client
    steps: int = 64  # per window
    noise: float = 1.0  # standard deviation; waveforms have unit power
    skew: float = 1.0  # Dirichlet concentration of each client's classes; large: all alike
    missing: float = 0.0  # probability that a modality is absent from a window

    def __post_init__(self) -> None:
        for name in ("clients", "modalities", "channels", "classes", "windows", "steps"):
            if getattr(self, name) < 1:
                raise CommunisError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.noise < 0 or self.skew <= 0 or not 0 <= self.missing < 1:
            raise CommunisError("noise must be at least 0, skew positive, missing in [0, 1)")

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
        inputs, present = {}, {}
        for m in range(self.modalities):
            waves = self._waves(rng)[target]
            waves = np.take_along_axis(
                waves, (np.arange(self.steps) + shift[:, None])[:, None] % self.steps, 2
            )
            noise = rng.standard_normal(waves.shape, dtype=np.float32)
            present[f"m{m}"] = rng.random(n) >= self.missing
            inputs[f"m{m}"] = gain * waves + np.float32(self.noise) * noise
        split = np.tile(
            np.digitize(np.arange(self.windows) / self.windows, [0.6, 0.8]), self.clients
        ).astype(np.int8)
        return Windows(
            inputs, target.astype(np.int64), owner, split, Classification(self.classes), present
        )

    def _waves(self, rng: np.random.Generator) -> Array:
        """(classes, channels, steps): three low harmonics with random amplitude and phase, unit
        power."""
        t = np.arange(self.steps) / self.steps * 2 * np.pi
        amplitude = rng.standard_normal((self.classes, self.channels, 3, 1))
        phase = rng.uniform(0, 2 * np.pi, (self.classes, self.channels, 3, 1))
        waves = (amplitude * np.sin(np.arange(1, 4)[:, None] * t + phase)).sum(2)
        return np.asarray(waves / np.sqrt(np.square(waves).mean(2, keepdims=True)), np.float32)
