"""The `[robust]` table. Nothing here imports torch before a rule is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from communis.core.errors import CommunisError

if TYPE_CHECKING:
    from communis.core.replies import Rule

RuleName = Literal["mean", "geometric_median", "median", "trimmed_mean", "krum", "multi_krum"]
OWNERS = {"liars": ("krum", "multi_krum"), "trim": ("trimmed_mean",), "keep": ("multi_krum",)}


@dataclass(frozen=True)
class RobustConfig:
    """The rule that replaces means of clients' messages."""

    rule: RuleName = "mean"  # how messages are combined
    liars: int = 1  # number of clients that may lie; with krum and multi_krum
    trim: float = 0.2  # share of the weight left out at each end; with trimmed_mean
    keep: int = 0  # number of clients that are averaged; 0: all but the liars; with multi_krum

    def __post_init__(self) -> None:
        if self.rule not in get_args(RuleName):
            raise CommunisError(f"no rule {self.rule!r}; there are {', '.join(get_args(RuleName))}")
        for name, rules in OWNERS.items():
            if getattr(self, name) != getattr(type(self), name) and self.rule not in rules:
                raise CommunisError(
                    f"{name} = {getattr(self, name)} has no meaning with rule = {self.rule!r}, "
                    f"only with {' and '.join(rules)}"
                )
        if not 0 <= self.trim <= 0.49:
            raise CommunisError(
                f'trim is a share from 0 to 0.49, got {self.trim}; rule = "median" leaves out all '
                "but the middle"
            )
        for name in ("liars", "keep"):
            if getattr(self, name) < 0:
                raise CommunisError(f"{name} must not be negative, got {getattr(self, name)}")

    def make(self) -> Rule | None:
        """Returns the rule; None for the mean."""
        if self.rule == "mean":
            return None
        from communis.core.reductions import median, rules  # here, because they import torch

        made: dict[str, Rule] = {
            "geometric_median": median.GeometricMedian(),
            "median": median.CoordinateMedian(),
            "trimmed_mean": rules.TrimmedMean(self.trim),
            "krum": rules.Krum(self.liars),
            "multi_krum": rules.MultiKrum(self.liars, self.keep),
        }
        return made[self.rule]
