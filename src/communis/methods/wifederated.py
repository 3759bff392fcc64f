"""WiFederated. Hernandez and Bulut, IEEE Internet of Things Journal 2021.
https://doi.org/10.1109/JIOT.2021.3137793

Names: w the common model, of FedAvg; every client fine-tunes it on its own training windows.
Deviation: follows the paper's abstract and what FedAPA says of it (Section VI-C). These leave open
    for how long is tuned: `tune` epochs are our decision, with the settings of local training.
Deviation: the paper tunes once, at the end. Here every evaluated round is scored as if it were the
    last one; nothing of the tuning is kept, so that training goes on from the common model.
Deviation: the paper's ways to select clients and its continuous annotation are not offered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from communis.core import requirements
from communis.core.contract import Client
from communis.core.state import State
from communis.methods.fedavg import FedAvg


@dataclass(frozen=True)
class WiFederated(FedAvg):
    """FedAvg whose clients are scored after fine-tuning the common model. tune = 0 is FedAvg."""

    tune: int = 5  # passes over a client's training windows before it is scored

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, tune=0)

    def prepare(self, client: Client, state: State) -> State:
        """Trains as the client would in the next round, for `tune` epochs, whatever max_steps is;
        BatchNorm statistics follow, or are estimated anew afterwards."""
        replace(self, max_steps=0).train(replace(client, round=client.round + 1), epochs=self.tune)
        super().prepare(client, state)
        return state
