"""Unimodal. One classifier per sensor on pooled data, to measure the effect of a temperature.

This is the experiment of FedDUET's Appendix F.1 ("Uncertainty as temperature" against
cross-entropy; no public address).
Branches share no parameters, so training all of them at once equals training each by itself, and
one run scores every sensor alone.
Messages: Down(w, buffers); Up(w, buffers). They stay on the server, as in centralized.py.
Deviation: a step uses the windows of a batch that have the sensor, so steps differ in size.
Deviation: the joint prediction of several sensors is the sum of their tempered logits, which is not
    in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from communis.core import requirements
from communis.core.contract import Batch, Card, Client, FleetView, Model, Output, Task, modality_of
from communis.core.state import State
from communis.methods.centralized import Centralized, Down, Server, Up
from communis.methods.parts import uncertainty


@dataclass(frozen=True)
class Unimodal(Centralized):
    """One pooled client trains a separate classifier for every sensor on the windows of all
    clients."""

    ut: bool = True  # divide logits by sigma in training and prediction; false: plain cross-entropy

    def equip(self, model: Model, task: Task) -> None:
        uncertainty.add_heads(model, task)

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "unimodal", "a temperature flattens class probabilities")
        return super().start_server(fleet)

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        def loss(output: Output, batch: Batch) -> Tensor:
            y = client.task.labels(batch.target)
            return uncertainty.losses(self._unimodal(client, output, batch), y)

        self.train(client, loss=loss, paths=[p for p in client.card.params if modality_of(p)])
        return state, Up(w=State.of(client.model), buffers=State.buffers(client.model))

    def needs_to_predict(self, card: Card) -> list[str]:
        return [path for path in super().needs_to_predict(card) if modality_of(path)]

    def predict(self, client: Client, state: State, batch: Batch) -> Tensor:
        unimodal = self._unimodal(client, client.model(batch), batch)
        return (unimodal.a[..., None] * unimodal.tempered).sum(0)

    def _unimodal(self, client: Client, output: Output, batch: Batch) -> uncertainty.Unimodal:
        """Returns the outputs of all heads; without `ut`, sigma = 1."""
        unimodal = uncertainty.unimodal(client.model, output, batch.present)
        return unimodal if self.ut else replace(unimodal, s=torch.zeros_like(unimodal.s))
