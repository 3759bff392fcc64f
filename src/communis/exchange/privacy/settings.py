"""The `[privacy]` table: what a run promises, to whom, and how much noise it takes.

Nothing here imports torch, so that a bad value is refused at once. `guard.py` and `central.py` make
the mechanisms from these settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal

from communis.core.errors import CommunisError
from communis.exchange.privacy import accountant
from communis.exchange.privacy.digits import downward
from communis.exchange.privacy.spending import Spending

Mode = Literal["none", "paper", "local", "central"]
LEAST_NOISE = 1e-30  # far below any use; with less, the cost of a round overflows
OWNERS = {  # settings that apply to some modes only
    "clips": ("paper", "local"),
    "mechanism": ("local",),
    "kappa": ("paper", "local"),
    "participations": ("local",),
    "spend": ("local", "central"),
    "accountant": ("central",),
    "adaptive": ("central",),
    "quantile": ("central",),
    "clip_rate": ("central",),
}


@dataclass(frozen=True)
class PrivacyConfig:
    """Differential privacy for a client's whole data; see docs/guides/privacy.md.

    local: every client clips and noises its message itself; the server is not trusted. central: a
    trusted server adds noise to sums. paper: the mechanism of the method's own paper, which noises
    one field of the message and leaves the rest in clear: not private, and the verdict says so.
    """

    mode: Mode = "none"  # who adds the noise; paper: the mechanism of the method's own paper
    epsilon: float = 0.0  # of the whole run (paper: of every round); 0: it follows from the noise
    delta: float = 1e-5  # of the whole run; below 1 / clients
    noise: float = 0.0  # standard deviation over sensitivity, per round; 0: it follows from
    # epsilon; with epsilon as well, a client that has spent epsilon stops
    clip: float = 1.0  # C: bound on the length of a message, or of each of its fields
    clips: dict[str, float] = field(default_factory=dict)  # bounds of single fields of the message
    mechanism: Literal["gaussian", "subspace"] = "gaussian"  # subspace: kappa times the noise
    # outside the method's subspace
    kappa: float = 4.0  # noise outside the subspace over noise inside it
    participations: int = 0  # rounds over which a client's budget is spread; 0: the number expected
    # by run.participation or run.cohort, if all clients are online
    spend: Literal["even", "late"] = "even"  # late: half of the even share at first, then up to 1.5
    accountant: accountant.Kind = "rdp"  # how epsilon is computed; pld is tighter
    adaptive: bool = False  # C follows a quantile of the lengths of updates
    quantile: float = 0.5  # that quantile
    clip_rate: float = 0.2  # step size with which C follows it

    def __post_init__(self) -> None:
        if self.mode not in ("none", "paper", "local", "central"):
            raise CommunisError(f"mode must be none, paper, local or central, got {self.mode!r}")
        self._refuse_foreign()
        if self.mode != "none":
            self._check_values()

    @property
    def planned(self) -> bool:
        """Whether the noise of a round depends on how many rounds there are."""
        return self.mode != "none" and (not self.noise or self.spend == "late")

    def _refuse_foreign(self) -> None:
        """Refuses settings that do not apply to the mode."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            owners = OWNERS.get(setting.name, ("paper", "local", "central"))
            if setting.name == "mode" or value == _default(setting.name):
                continue
            if self.mode not in owners:
                raise CommunisError(
                    f"{setting.name} = {value} has no meaning with mode = {self.mode!r}, "
                    f"only with {', '.join(owners)}"
                )

    def _check_values(self) -> None:
        if self.epsilon < 0 or self.noise < 0 or not (self.epsilon or self.noise):
            raise CommunisError(
                f"epsilon and noise must be positive, one of them or both, got epsilon = "
                f"{self.epsilon}, noise = {self.noise}; `communis privacy plan` computes one from "
                "the other"
            )
        if 0 < self.noise < LEAST_NOISE:
            raise CommunisError(
                f"noise = {self.noise} is practically none, and nothing can be computed with it; "
                f"at least {LEAST_NOISE:g} is needed"
            )
        if not 0 < self.delta < 1:
            raise CommunisError(f"delta must be in (0, 1), got {self.delta}")
        for name, value in {"clip": self.clip, "kappa": self.kappa, **self.clips}.items():
            if not 0 < value < math.inf:
                raise CommunisError(f"{name} must be positive, got {value}")
        if self.kappa < 1 and self.mode == "local":
            raise CommunisError(
                f"kappa = {self.kappa}: the guarantee depends on the direction with the least "
                "noise, so less noise in any direction weakens it; at least 1 is needed"
            )
        if self.participations < 0 or not 0 < self.quantile < 1 or self.clip_rate <= 0:
            raise CommunisError(
                "participations must not be negative, quantile must be in (0, 1) and clip_rate "
                f"positive, got {self.participations}, {self.quantile}, {self.clip_rate}"
            )

    def check(self, clients: int) -> None:
        """Raises an error if the promise is empty for this number of clients."""
        if self.mode != "none" and self.delta >= 1 / clients:
            raise CommunisError(
                f"delta = {self.delta:g} with {clients} clients: from 1/{clients} on, handing out "
                "one of them in clear would be allowed; choose delta below "
                f"{downward(1 / clients, 2)}"
            )

    def times(self, rounds: int, share: float) -> int:
        """The number of rounds over which a client's budget is spread; by default the expected
        number. A client that is drawn more often stops when its budget is spent."""
        return self.participations or max(1, math.ceil(round(share * rounds, 9)))

    def spending(self, rounds: int) -> Spending:
        return Spending(rounds if self.spend == "late" else 0)


@dataclass(frozen=True)
class Setting:
    """The properties of a run on which its privacy depends."""

    rounds: int
    participation: float  # with central: the probability that a client is sampled
    share: float  # of the clients in a round, if their number is fixed
    by_number: bool  # the number of clients in a round is given by run.cohort
    star: bool
    rule: bool  # a robust rule replaces means


def _default(name: str) -> object:
    return {} if name == "clips" else getattr(PrivacyConfig, name)
