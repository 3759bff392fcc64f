"""The device clock: seconds and joules that a round would take on the devices of the fleet.

A round is synchronous: every client receives, trains and sends, and then waits for the slowest one.
docs/guides/devices.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from communis.core import diagnostics
from communis.core.contract import TrainingCost
from communis.core.errors import CommunisError
from communis.fleet.device.profiles import DeviceProfile
from communis.models.flops import Cost

Mode = Literal["flop_prop", "exact"]


@dataclass(frozen=True)
class ClockConfig:
    mode: Mode = "flop_prop"  # by groups that train, as RELIEF; exact: by FLOPs really computed
    share: float = 1.0  # of a profile's FLOP/s that training reaches

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            options = ", ".join(map(repr, get_args(Mode)))
            raise CommunisError(f"mode must be one of {options}, got {self.mode!r}")
        if not 0 < self.share <= 1:
            raise CommunisError(f"share is a share in (0, 1], got {self.share}")


@dataclass(frozen=True)
class Used:
    """What a client did in a round."""

    client: int
    device: str  # name of its profile
    log: Mapping[str, float]  # what its training noted (local.py)
    down: int  # bytes received
    up: int  # bytes sent
    model: str = ""  # its architecture, where there are several


@dataclass(frozen=True)
class Spent:
    """What that took: seconds by activity, and energy."""

    client: int
    compute: float
    down: float
    up: float
    idle: float  # until the slowest client was done
    joules: float


@dataclass(frozen=True)
class Whole:
    """A model with all of the fleet's sensors."""

    forward: float  # FLOPs per window
    groups: int

    @property
    def group(self) -> float:
        """FLOPs per window of the backward pass for one group, in `flop_prop`."""
        return 2 * self.forward / self.groups


class Clock:
    """models: by architecture."""

    def __init__(
        self,
        config: ClockConfig,
        profiles: Mapping[str, DeviceProfile],
        models: Mapping[str, Whole],
    ) -> None:
        self._mode, self._share, self._profiles = config.mode, config.share, profiles
        self._models = models

    def compute(self, device: str, log: Mapping[str, float], model: str = "") -> float:
        """Seconds of training."""
        if self._mode == "exact":
            flops = log.get(diagnostics.FLOPS_FORWARD.name, 0.0)
            flops += log.get(diagnostics.FLOPS_BACKWARD.name, 0.0)
        else:
            whole = self._models[model]
            flops = whole.forward * log.get(diagnostics.WINDOWS.name, 0.0)
            flops += whole.group * log.get(diagnostics.GROUP_WINDOWS.name, 0.0)
        return flops / self._speed(device)

    def round(self, used: Sequence[Used]) -> list[Spent]:
        """What a round took of each of its clients."""
        busy = []
        for one in used:
            link = self._profiles[one.device]
            down, up = 8 * one.down / link.down, 8 * one.up / link.up
            busy.append((self.compute(one.device, one.log, one.model), down, up))
        end = max((sum(seconds) for seconds in busy), default=0.0)
        found = []
        for one, (compute, down, up) in zip(used, busy, strict=True):
            power, idle = self._profiles[one.device], end - sum((compute, down, up))
            joules = power.power_active * compute + power.power_radio * (down + up)
            joules += power.power_idle * idle
            found.append(Spent(one.client, compute, down, up, idle, joules))
        return found

    def pace(self, device: str, cost: Cost, groups: int, model: str = "") -> TrainingCost:
        """Of a device whose training of all its groups has this cost per window; `flop_prop` does
        not look at either."""
        if self._mode == "exact":
            forward, group = cost.forward, cost.backward / groups
        else:
            forward, group = self._models[model].forward, self._models[model].group
        return TrainingCost(forward / self._speed(device), group / self._speed(device))

    def _speed(self, device: str) -> float:
        return self._share * self._profiles[device].flops
