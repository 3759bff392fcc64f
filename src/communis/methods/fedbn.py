"""FedBN. Li et al., ICLR 2021, Algorithm 1.
https://arxiv.org/abs/2102.07623

Deviation: every normalisation layer stays local (path part `norm...`), LayerNorm included; the
paper has BatchNorm only.
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core import CommunisError, FleetView
from communis.methods.fedavg import FedAvg, Server


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg of everything but the normalisation layers, which hold what is particular to a
    client's sensors."""

    def shares(self, path: str) -> bool:
        return super().shares(path) and not any(part.startswith("norm") for part in path.split("."))

    def start_server(self, fleet: FleetView) -> Server:
        if len(self.shared(fleet.params)) == len(fleet.params):
            raise CommunisError(
                "no client has a normalisation layer, so fedbn would be fedavg: "
                "use e.g. models = ['cnn_norm']"
            )
        return super().start_server(fleet)
