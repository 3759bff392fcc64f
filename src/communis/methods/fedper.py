"""FedPer. Arivazhagan et al., 2019, Algorithms 1 and 2.
https://arxiv.org/abs/1912.00818

Messages: Down(w); Up(w). w is the model without its personalisation layers.
Deviation: path prefixes define the personalisation layers; the default is the head.
Deviation: the personalisation layers of all clients start from the same values.
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core.contract import FleetView
from communis.core.errors import CommunisError
from communis.methods.fedavg import FedAvg, Server


@dataclass(frozen=True)
class FedPer(FedAvg):
    """The server averages the base layers; the personalisation layers never leave the client."""

    personal: tuple[str, ...] = ("head.",)  # prefixes of the paths that stay on the client

    def shares(self, path: str) -> bool:
        return super().shares(path) and not path.startswith(tuple(self.personal))

    def start_server(self, fleet: FleetView) -> Server:
        shared = self.shared(fleet.params)
        if not 0 < len(shared) < len(fleet.params):
            raise CommunisError(
                f"personal = {list(self.personal)} leaves {len(shared)} of {len(fleet.params)} "
                "paths shared: name prefixes such as 'head.' or 'fusion.'"
            )
        return super().start_server(fleet)
