"""FedBN. Li et al., ICLR 2021, Algorithm 1.
https://arxiv.org/abs/2102.07623

Messages: Down(w); Up(w). w is the model without its normalisation layers.
Deviation: all normalisation layers stay on the client, including LayerNorm; the paper has only
    BatchNorm. A layer is a normalisation layer if the name of its module begins with `norm`.
Deviation: the mean is weighted by samples, as in FedAvg; the mean of the paper is not (`uniform`).
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core.contract import FleetView
from communis.core.errors import CommunisError
from communis.methods.fedavg import FedAvg, Server


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg without the normalisation layers, which stay on the client and adapt to its
    sensors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffers == "average":
            raise CommunisError(
                "fedbn keeps normalisation layers on the client, but buffers = 'average' shares "
                "their statistics: set buffers = 'private' or 'recalibrate', or choose fedavg"
            )

    def shares(self, path: str) -> bool:
        return super().shares(path) and not is_norm(path)

    def start_server(self, fleet: FleetView) -> Server:
        if len(self.shared(fleet.params)) == len(fleet.params):
            raise CommunisError(
                "no client has a normalisation layer, so fedbn would equal fedavg: choose a model "
                "with one, such as models = ['cnn_norm']"
            )
        return super().start_server(fleet)


def is_norm(path: str) -> bool:
    """Returns whether the path belongs to a normalisation layer. A modality whose name begins with
    "norm" does not count."""
    parts = path.split(".")
    if parts[0] == "encoders":
        parts = parts[2:]
    elif parts[:2] == ["fusion", "blocks"]:
        parts = parts[3:]
    return any(part.startswith("norm") for part in parts)
