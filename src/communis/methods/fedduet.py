"""FedDUET. Anonymous, "Bridging modality gaps with decoupled uncertainty-enhanced training",
under review, no public address; Algorithm 1 and Equations 3 to 7.

Names follow the paper: h_f the fused representation (the model's embedding), z_m and s_m what the
uncertainty head U_m says (`uncertainty.py`), sigma_f the fused uncertainty, G-Head the model's own
head, P-Head the private one.
Deviation: sigma_f is detached in the private loss too, as in the paper's figure though not in its
    algorithm, or the private objective would train shared parts.
Deviation: s_m is clamped to [-4, 4] and starts at zero. `penalty` and `rescale` are not in the
    paper.
Deviation: r_m is not given: by default the share of the cohort's samples whose clients own m.
Deviation: the counts n_k and n_{k,m} are on the client's card and are not sent every round.
Deviation: clients hold and exchange only the branches of sensors they own; the others would come
    back unchanged.
Deviation: an absent modality has no unimodal loss, and L_UT,m is the mean over the windows of a
    batch that have m; 1/M keeps M, the modalities that some client of the fleet owns.
Deviation: private heads of all clients start from the same values; the optimiser's state starts
    afresh every round. Widths are ours, the paper gives none.
Deviation: without any sensor sigma_f = e^2, the largest sigma_m.
Deviation: the paper does not say what it trains without DT. Here the shared parts train as before
    (Equation 6) and G-Head predicts alone; with `shared_temperature` G-Head trains by the
    multimodal loss, Equation 5 in place of CE(z_G, y), and nothing is detached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import requirements
from communis.core.contract import Batch, Client, FleetView, Model, Output, Prediction, Task
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.fedavg import Down, FedAvg, Server, Up
from communis.methods.parts import uncertainty
from communis.models.network import MLP


@dataclass(frozen=True)
class FedDUET(FedAvg):
    """The uncertainty of each sensor is a temperature, and a private head learns on the shared
    features without touching them."""

    ema: Literal["none", "coverage", "const"] = "coverage"  # how far encoders and uncertainty heads
    # move towards their mean; see fedavg
    ut: bool = True  # uncertainty as temperature; without it sigma = 1 and there are no U_m
    dt: bool = True  # decoupled training; without it there is no private head
    shared_temperature: bool = False  # without dt: the shared head's logits are z_G / sigma_f
    ensemble: Literal["literal", "tempered"] = "literal"  # predict z_G + z_P or z_G + z_P / sigma_f
    penalty: float = 0.0  # weight of s_m^2 in the loss; 0.001 holds sigma near 1
    rescale: bool = False  # weigh the private loss by sigma_f: its gradient is 1 / sigma_f times
    # that of plain cross-entropy, and sigma_f shrinks with every sensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty < 0:
            raise CommunisError(f"fedduet needs penalty >= 0, got {self.penalty}")
        if self.shared_temperature and (self.dt or not self.ut):
            raise CommunisError(
                "shared_temperature is a way to do without DT and needs the uncertainty heads of "
                "UT: set dt = false and ut = true"
            )

    def equip(self, model: Model, task: Task) -> None:
        super().equip(model, task)
        if self.ut:
            uncertainty.add_heads(model, task)
        if self.dt:
            model.private["head"] = MLP(model.head_sizes)

    def start_server(self, fleet: FleetView) -> Server:
        if self.ut or self.dt:
            requirements.classes(fleet, "fedduet", "a temperature flattens class probabilities")
        if self.ut:
            requirements.held_modalities(fleet, "its uncertainty head")
        if self.dt:
            requirements.local_data(fleet, "fedduet's private head", "set its dt = false")
        return super().start_server(fleet)

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        def loss(output: Output, batch: Batch) -> Tensor:
            L_G, sigma_f = self.shared_loss(client, output, batch)
            if not self.dt:
                return L_G
            # They have no parameter in common, so one step of their sum is a step of each.
            return L_G + self.private_loss(client, output, batch, sigma_f)

        self.train(client, loss=loss)
        return self.keep(client), Up(w=self.send(client))

    def shared_loss(self, client: Client, output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_G, Equation 6, and sigma_f (B,)."""
        z_G = output.prediction
        if not self.ut:
            L_G = client.task.loss(z_G, batch.target)
            return L_G, torch.ones_like(batch.target, dtype=L_G.dtype)
        said = uncertainty.unimodal(client.model, output, batch.present)
        sigma_f = uncertainty.fused(said)
        if self.shared_temperature:
            z_G = z_G / sigma_f[:, None]  # Equation 5
        L_G = client.task.loss(z_G, batch.target)  # CE(z_G, y)
        y, M = client.task.labels(batch.target), client.card.sizes["modalities"]
        return L_G + uncertainty.losses(said, y, self.penalty) / M, sigma_f

    def private_loss(self, client: Client, output: Output, batch: Batch, sigma_f: Tensor) -> Tensor:
        """L_P, Equation 7."""
        z_P = client.model.private["head"](output.embedding.detach())
        sigma_f, y = sigma_f.detach(), client.task.labels(batch.target)
        each = F.cross_entropy(z_P / sigma_f[:, None], y, reduction="none")
        return (sigma_f * each if self.rescale else each).mean()

    def predict(self, client: Client, state: State, batch: Batch) -> Prediction:
        """The ensemble; beside it the other one, each head alone, P-Head at its temperature;
        sigma_f and the share of sensors whose s_m is at a bound."""
        output = client.model(batch)
        z_G = scored = output.prediction
        views: dict[str, Tensor] = {}
        if self.dt:
            z_P = client.model.private["head"](output.embedding)
            scored = z_G + z_P
            views |= {"shared": z_G, "private": z_P}
        if self.ut:
            unimodal = uncertainty.unimodal(client.model, output, batch.present)
            sigma_f = uncertainty.fused(unimodal)
            views |= {"sigma_f": sigma_f, "clamped": uncertainty.clamped(unimodal)}
            if self.shared_temperature:
                scored = z_G / sigma_f[:, None]
                views["shared"] = z_G
            if self.dt:
                cool = z_P / sigma_f[:, None]
                both = {"literal": z_G + z_P, "tempered": z_G + cool}
                scored = both.pop(self.ensemble)
                views |= {**both, "private_tempered": cool}
        return Prediction(scored, views)
