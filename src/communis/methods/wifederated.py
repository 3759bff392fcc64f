"""WiFederated. Hernandez and Bulut, IEEE Internet of Things Journal 2021.
https://doi.org/10.1109/JIOT.2021.3137793

Names: w is the common model, trained with FedAvg; every client fine-tunes it on its own training
windows.
Messages: Down(w); Up(w). w is the federated part of the model, before the fine-tuning.
Deviation: the implementation follows the paper's abstract and its description in FedAPA (Section
    VI-C). The texts do not state the length of the fine-tuning. Our decision: `tune` epochs, with
    the settings of local training.
Deviation: the paper fine-tunes once, at the end. Here every evaluated round is scored as if it were
    the last one. The fine-tuned model is discarded, so training continues from the common model.
Deviation: the paper's client selection and its continuous annotation are not offered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from communis.core import requirements
from communis.core.contract import Client
from communis.core.state import State
from communis.methods.fedavg import FedAvg


@dataclass(frozen=True)
class WiFederated(FedAvg):
    """FedAvg in which every client fine-tunes the common model before it is scored. tune = 0 is
    FedAvg."""

    tune: int = 5  # epochs of fine-tuning on a client's training windows before it is scored

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, tune=0)

    def prepare(self, client: Client, state: State) -> State:
        """Trains as in the client's next round, for `tune` epochs; max_steps does not apply.
        BatchNorm statistics are updated, or with buffers = "recalibrate" estimated afterwards."""
        next_round = replace(client, round=client.round + 1)
        replace(self, max_steps=0).train(next_round, epochs=self.tune)
        super().prepare(client, state)
        return state
