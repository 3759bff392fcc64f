"""FedSA-LoRA. Guo et al., ICLR 2025.
https://arxiv.org/abs/2410.01463

Names follow the paper: A and B the factors of a low-rank update B A; A is shared, B is kept.
Deviation: what is trained besides A and B, such as the head, is averaged as in FedAvg.
Deviation: of a fusion without LoRA the blocks play A and the bias plays B, as in RELIEF's
    comparison on a CNN; the CNN's other layers are averaged.
Deviation: buffers and missing modalities as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core.contract import FleetView
from communis.core.errors import CommunisError
from communis.methods.fedavg import FedAvg, Server


@dataclass(frozen=True)
class FedSALoRA(FedAvg):
    """The A matrices of LoRA are averaged, the B matrices never leave the client."""

    def shares(self, path: str) -> bool:
        parts = path.partition("@")[0].split(".")
        is_B = "lora_B" in parts or parts == ["fusion", "shared", "bias"]
        return super().shares(path) and not is_B

    def start_server(self, fleet: FleetView) -> Server:
        if len(self.shared(fleet.params)) == len(fleet.params):
            raise CommunisError(
                "fedsa_lora keeps B matrices with their clients, but the model has none (no path "
                "with lora_B, no fusion.shared.bias), so it would be fedavg: choose a model with "
                "LoRA or one whose fusion is 'blocks' in [fleet] models"
            )
        return super().start_server(fleet)
