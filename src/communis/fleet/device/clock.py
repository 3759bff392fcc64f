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
from communis.models.flops import StepFlops

Mode = Literal["flop_prop", "exact"]


@dataclass(frozen=True)
class ClockConfig:
    """How the time of devices is computed."""

    mode: Mode = "flop_prop"  # in proportion to the groups that train, as in RELIEF; exact: by the
    # FLOPs that are computed
    share: float = 1.0  # share of a profile's FLOP/s that training reaches

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            options = ", ".join(map(repr, get_args(Mode)))
            raise CommunisError(f"mode must be one of {options}, got {self.mode!r}")
        if not 0 < self.share <= 1:
            raise CommunisError(f"share must be in (0, 1], got {self.share}")


@dataclass(frozen=True)
class Used:
    """The work and traffic of a client in a round."""

    client: int
    device: str  # name of its profile
    log: Mapping[str, float]  # diagnostics that its training logged
    down: int  # bytes received
    up: int  # bytes sent
    model: str = ""  # its architecture, where there are several


@dataclass(frozen=True)
class DeviceCost:
    """The seconds by activity, and the energy, of a client in a round."""

    client: int
    compute: float
    down: float
    up: float
    idle: float  # until the slowest client was done
    joules: float


@dataclass(frozen=True)
class FullModel:
    """The cost of a model with all of the fleet's sensors."""

    forward: float  # FLOPs per window
    groups: int

    @property
    def group(self) -> float:
        """FLOPs per window of the backward pass for one group, in `flop_prop`."""
        return 2 * self.forward / self.groups


class Clock:
    """Computes the seconds and joules of training and transmission on the devices of a fleet.

    models: the cost of each architecture with all sensors.
    """

    def __init__(
        self,
        config: ClockConfig,
        profiles: Mapping[str, DeviceProfile],
        models: Mapping[str, FullModel],
    ) -> None:
        self._mode = config.mode
        self._share = config.share
        self._profiles = profiles
        self._models = models

    def compute(self, device: str, log: Mapping[str, float], model: str = "") -> float:
        """Returns the seconds of training."""
        if self._mode == "exact":
            flops = log.get(diagnostics.FLOPS_FORWARD.name, 0.0)
            flops += log.get(diagnostics.FLOPS_BACKWARD.name, 0.0)
        else:
            full = self._models[model]
            flops = full.forward * log.get(diagnostics.WINDOWS.name, 0.0)
            flops += full.group * log.get(diagnostics.GROUP_WINDOWS.name, 0.0)
        return flops / self._speed(device)

    def round(self, used: Sequence[Used]) -> list[DeviceCost]:
        """Returns the seconds and joules of every client in a round."""
        busy = []
        for client in used:
            profile = self._profiles[client.device]
            compute = self.compute(client.device, client.log, client.model)
            down = 8 * client.down / profile.down
            up = 8 * client.up / profile.up
            busy.append((compute, down, up))
        end = max((sum(seconds) for seconds in busy), default=0.0)
        spent = []
        for client, (compute, down, up) in zip(used, busy, strict=True):
            profile = self._profiles[client.device]
            idle = end - sum((compute, down, up))
            joules = profile.power_active * compute + profile.power_radio * (down + up)
            joules += profile.power_idle * idle
            spent.append(DeviceCost(client.client, compute, down, up, idle, joules))
        return spent

    def pace(self, device: str, cost: StepFlops, groups: int, model: str = "") -> TrainingCost:
        """Returns the seconds per window of a device. `exact` uses the cost of training all
        `groups`, `flop_prop` the cost of the model with all sensors."""
        if self._mode == "exact":
            forward, group = cost.forward, cost.backward / groups
        else:
            forward, group = self._models[model].forward, self._models[model].group
        return TrainingCost(forward / self._speed(device), group / self._speed(device))

    def _speed(self, device: str) -> float:
        return self._share * self._profiles[device].flops
