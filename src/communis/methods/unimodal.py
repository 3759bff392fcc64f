"""Unimodal. Pooled data and one classifier per sensor: what does a temperature do for it?

The experiment of FedDUET's Appendix F.1 ("Uncertainty as temperature" against cross-entropy;
no public address).
Branches share no parameter, so training all of them at once is training each by itself, and one run
scores every sensor alone.
Deviation: a step sees the windows of a batch that have the sensor, so steps differ in size.
Deviation: what several sensors predict together, the sum of their tempered logits, is not in the
    paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from communis.core import requirements
from communis.core.contract import Batch, Client, FleetView, Model, Output, Task, modality_of
from communis.core.state import State
from communis.methods.centralized import Centralized, Down, Server, Up
from communis.methods.parts import uncertainty


@dataclass(frozen=True)
class Unimodal(Centralized):
    """Everybody's windows in one place; every sensor learns to predict on its own."""

    ut: bool = True  # divide logits by sigma, in training and prediction; False: cross-entropy

    def equip(self, model: Model, task: Task) -> None:
        uncertainty.add_heads(model, task)

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "unimodal", "a temperature flattens class probabilities")
        return super().start_server(fleet)

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        def loss(output: Output, batch: Batch) -> Tensor:
            y = client.task.labels(batch.target)
            return uncertainty.losses(self._said(client, output, batch), y)

        self.train(client, loss=loss, paths=[p for p in client.card.params if modality_of(p)])
        return state, Up(w=State.of(client.model), buffers=State.buffers(client.model))

    def predict(self, client: Client, state: State, batch: Batch) -> Tensor:
        said = self._said(client, client.model(batch), batch)
        return (said.a[..., None] * said.tempered).sum(0)

    def _said(self, client: Client, output: Output, batch: Batch) -> uncertainty.Unimodal:
        said = uncertainty.unimodal(client.model, output, batch.present)
        return said if self.ut else replace(said, s=torch.zeros_like(said.s))
