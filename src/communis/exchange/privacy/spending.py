"""How a privacy budget is distributed over the rounds of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spending:
    """The share of the budget that each round gets; the mean over all rounds is 1."""

    rounds: int = 0  # rounds over which the share grows from 0.5 to 1.5; 0: it is constant

    def weight(self, round: int) -> float:
        """The factor by which mu^2 of a round differs from the mean. The standard deviation of the
        noise is divided by its square root."""
        if not self.rounds:
            return 1.0
        return min(1.5, 0.5 + (round - 0.5) / self.rounds)
