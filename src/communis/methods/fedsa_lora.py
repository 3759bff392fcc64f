"""FedSA-LoRA. Guo et al., ICLR 2025.
https://arxiv.org/abs/2410.01463

Names follow the paper: A and B are the factors of a low-rank update B A. A is shared, B stays on
the client.
Messages: Down(w); Up(w). w is the model without its B matrices.
Deviation: other trained parameters, such as the head, are averaged as in FedAvg.
Deviation: in a fusion without LoRA the blocks take the role of A and the bias that of B, as in
    RELIEF's comparison on a CNN. The other layers of the CNN are averaged.
Deviation: buffers and missing modalities are treated as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core.contract import FleetView
from communis.core.errors import CommunisError
from communis.methods.fedavg import FedAvg, Server


@dataclass(frozen=True)
class FedSALoRA(FedAvg):
    """The server averages the A matrices of LoRA; the B matrices never leave the client."""

    def shares(self, path: str) -> bool:
        parts = path.partition("@")[0].split(".")
        is_B = "lora_B" in parts or parts == ["fusion", "shared", "bias"]
        return super().shares(path) and not is_B

    def start_server(self, fleet: FleetView) -> Server:
        if len(self.shared(fleet.params)) == len(fleet.params):
            raise CommunisError(
                "fedsa_lora keeps B matrices on the client, but the model has none (no path with "
                "lora_B, no fusion.shared.bias), so it would equal fedavg: in [fleet] models "
                "choose a model with LoRA or one whose fusion is 'blocks'"
            )
        return super().start_server(fleet)
