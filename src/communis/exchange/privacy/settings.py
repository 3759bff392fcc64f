"""The `[privacy]` table: what is promised, to whom, and at which price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from communis.core.errors import CommunisError
from communis.exchange.privacy import accountant, gaussian
from communis.exchange.privacy.central import Central
from communis.exchange.privacy.digits import downward
from communis.exchange.privacy.guard import Block, Guard, Spending

Mode = Literal["none", "paper", "local", "central"]
ABOVE = 1 + 1e-9  # so much more noise than a budget takes: sums of floats must not exceed it
MOST_ROUNDS = 1_000_000
LEAST_NOISE = 1e-30  # far below any use; with less, the price of a round is no number
OWNERS = {  # settings that mean something in some modes only
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
    trusted server adds noise to sums. paper: UMEDA's mechanism, which noises one block of the
    message and leaves the rest in clear: not private, and the verdict says so.
    """

    mode: Mode = "none"
    epsilon: float = 0.0  # of the whole run (paper: of every round); 0: as the noise gives it
    delta: float = 1e-5
    noise: float = 0.0  # standard deviation over sensitivity, per round; with epsilon as well: the
    # noise is this, and who has spent epsilon stops
    clip: float = 1.0  # C: the longest that a message may be, or each of its fields
    clips: dict[str, float] = field(default_factory=dict)  # of single fields of the message
    mechanism: Literal["gaussian", "subspace"] = "gaussian"  # subspace: kappa times the noise
    # outside of what the method calls its subspace
    kappa: float = 4.0  # sigma_null / sigma_sig
    participations: int = 0  # rounds that a client's budget is spread over; 0: those expected of it
    # by run.participation or run.cohort, if all clients are there
    spend: Literal["even", "late"] = "even"  # late: half of the even share at first, then up to 1.5
    accountant: accountant.Kind = "rdp"
    adaptive: bool = False  # C follows a quantile of the lengths of updates
    quantile: float = 0.5  # that quantile
    clip_rate: float = 0.2  # how fast C follows

    def __post_init__(self) -> None:
        if self.mode not in ("none", "paper", "local", "central"):
            raise CommunisError(f"mode must be none, paper, local or central, got {self.mode!r}")
        given = [f.name for f in fields(self) if getattr(self, f.name) != _default(f.name)]
        for name in given:
            owners = OWNERS.get(name, ("paper", "local", "central"))
            if name != "mode" and self.mode not in owners:
                raise CommunisError(
                    f"{name} = {getattr(self, name)} has no meaning with mode = {self.mode!r}, "
                    f"only with {', '.join(owners)}"
                )
        if self.mode == "none":
            return
        if self.epsilon < 0 or self.noise < 0 or not (self.epsilon or self.noise):
            raise CommunisError(
                f"epsilon and noise must be positive, one of them or both, got epsilon = "
                f"{self.epsilon}, noise = {self.noise}; `communis privacy plan` says what one "
                "makes of the other"
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
                f"kappa = {self.kappa}: less noise in any direction weakens the guarantee, which "
                "goes by the direction with the least; at least 1 is needed"
            )
        if self.participations < 0 or not 0 < self.quantile < 1 or self.clip_rate <= 0:
            raise CommunisError(
                "participations must not be negative, quantile must be in (0, 1) and clip_rate "
                f"positive, got {self.participations}, {self.quantile}, {self.clip_rate}"
            )

    def check(self, clients: int) -> None:
        """Whether the promise means anything for so many clients."""
        if self.mode != "none" and self.delta >= 1 / clients:
            raise CommunisError(
                f"delta = {self.delta:g} with {clients} clients: from 1/{clients} on, handing out "
                "one of them in clear would be allowed; choose delta below "
                f"{downward(1 / clients, 2)}"
            )

    def guard(self, covered: Sequence[str], rounds: int, share: float) -> Guard | None:
        """What clients do to the fields that are covered; None: nothing, or nothing leaves.
        share: of the clients that are in a round."""
        if self.mode in ("none", "central") or not covered:
            return None
        unknown = sorted(self.clips.keys() - set(covered))
        if unknown:
            raise CommunisError(
                f"clips.{unknown[0]}: the message has no such field; it has {', '.join(covered)}"
            )
        clips = {name: self.clips.get(name, self.clip) for name in covered}
        if self.mode == "paper":  # Equation 9: sensitivity C, not 2 C, and the classical bound
            ratio = self.noise or gaussian.classical_sigma(1.0, self.epsilon, self.delta)
            blocks = {name: Block(clip, ratio * clip) for name, clip in clips.items()}
            return Guard(blocks, self.kappa)
        ratio = self.noise
        if not ratio:  # mu_total^2 = rounds mu^2
            times = self.times(rounds, share)
            ratio = math.sqrt(times) / gaussian.mu_of(self.epsilon, self.delta) * ABOVE
        share = math.sqrt(len(covered))  # mu^2 = sum_b (2 C_b / sigma_b)^2, in equal parts
        blocks = {name: Block(clip, ratio * 2 * clip * share) for name, clip in clips.items()}
        kappa = self.kappa if self.mechanism == "subspace" else 1.0
        return Guard(blocks, kappa, self.spending(rounds))

    def central(self, rounds: int, participation: float) -> Central | None:
        """What a trusted server does to sums."""
        if self.mode != "central":
            return None
        if not self.noise and rounds > MOST_ROUNDS:  # each is accounted for
            raise CommunisError(
                f"mode = 'central' with epsilon is reckoned for {MOST_ROUNDS:,} rounds at most, "
                f"got run.rounds = {rounds:,}: lower it, or give noise instead of epsilon"
            )
        spending = self.spending(rounds)
        z = self.noise or accountant.noise_for(
            self.epsilon,
            self.delta,
            participation,
            max(1, rounds),
            self.accountant,
            [spending.weight(round) for round in range(1, max(1, rounds) + 1)],
        )
        quantile, rate = (self.quantile, self.clip_rate) if self.adaptive else (0.0, 0.0)
        return Central(z, self.clip, participation, spending, quantile, rate)

    def times(self, rounds: int, share: float) -> int:
        """The rounds that a client's budget is spread over: by default those that are expected of
        it. Who is drawn more often stops when its budget is spent."""
        return self.participations or max(1, math.ceil(round(share * rounds, 9)))

    def spending(self, rounds: int) -> Spending:
        return Spending(rounds if self.spend == "late" else 0)


def _default(name: str) -> object:
    return {} if name == "clips" else getattr(PrivacyConfig, name)
