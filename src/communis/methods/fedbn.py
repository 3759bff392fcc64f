"""FedBN. Li et al., ICLR 2021, Algorithm 1.
https://arxiv.org/abs/2102.07623

Deviation: every normalisation layer stays local (its module is called `norm...`), LayerNorm
    included; the paper has BatchNorm only.
Deviation: the mean is weighted by samples, as in FedAvg; the paper's is plain (`uniform`).
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core.contract import FleetView
from communis.core.errors import CommunisError
from communis.methods.fedavg import FedAvg, Server


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg of everything but the normalisation layers, which hold what is particular to a
    client's sensors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffers == "average":
            raise CommunisError(
                "fedbn keeps normalisation layers with their client, buffers = 'average' would "
                "share their statistics: set buffers = 'private' or 'recalibrate', or take fedavg"
            )

    def shares(self, path: str) -> bool:
        return super().shares(path) and not is_norm(path)

    def start_server(self, fleet: FleetView) -> Server:
        if len(self.shared(fleet.params)) == len(fleet.params):
            raise CommunisError(
                "no client has a normalisation layer, so fedbn would be fedavg: "
                "use e.g. models = ['cnn_norm']"
            )
        return super().start_server(fleet)


def is_norm(path: str) -> bool:
    """Whether the path belongs to a normalisation layer; a modality's own name does not count."""
    parts = path.split(".")
    if parts[0] == "encoders":
        parts = parts[2:]
    elif parts[:2] == ["fusion", "blocks"]:
        parts = parts[3:]
    return any(part.startswith("norm") for part in parts)
