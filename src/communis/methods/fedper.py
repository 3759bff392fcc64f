"""FedPer. Arivazhagan et al., 2019, Algorithms 1 and 2.
https://arxiv.org/abs/1912.00818

Deviation: the personalisation layers are named by path prefix; by default the head.
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedPer(FedAvg):
    """Base layers are averaged, personalisation layers never leave the client."""

    personal: tuple[str, ...] = ("head.",)  # path prefixes that stay with the client

    def shares(self, path: str) -> bool:
        return super().shares(path) and not path.startswith(self.personal)
