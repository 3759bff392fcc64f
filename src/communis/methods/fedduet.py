"""FedDUET. Anonymous, "Bridging modality gaps with decoupled uncertainty-enhanced training",
under review, no public address; Algorithm 1 and Equations 3 to 7.

Names follow the paper: h_f is the fused representation (the model's embedding), z_m and s_m are the
outputs of the uncertainty head U_m (`uncertainty.py`), sigma_f is the fused uncertainty, G-Head is
the model's own head, P-Head the private head. UT is uncertainty as temperature, DT is decoupled
training. The server's half (lines 24 to 29: the mean of each part, and the moving average of
encoders and uncertainty heads) is `merge` in fedavg.py, with `ema`.
Messages: Down(w); Up(w). w is the model without P-Head: encoders, uncertainty heads, fusion and
    G-Head.
Deviation: sigma_f is detached in the private loss too, as in the paper's figure but not in its
    algorithm. Otherwise the private objective would train shared parts.
Deviation: s_m is clamped to [-4, 4] and starts at zero. `penalty` and `rescale` are not in the
    paper.
Deviation: the paper does not define r_m. The default is the share of the cohort's samples that
    belongs to clients with sensor m.
Deviation: the counts n_k and n_{k,m} are on the client's card and are not sent every round.
Deviation: clients hold and exchange only the branches of sensors that they own. The others would be
    sent back unchanged.
Deviation: an absent modality has no unimodal loss, and L_UT,m is the mean over the windows of a
    batch that have m. The factor 1/M keeps M, the number of modalities that some client of the
    fleet owns.
Deviation: the private heads of all clients start from the same values. The optimiser's state is
    reset every round. The widths of heads are ours, as the paper gives none.
Deviation: for a window without any sensor, sigma_f = e^2, the largest sigma_m.
Deviation: the paper does not state what is trained without DT. Here the shared parts train as
    before (Equation 6) and G-Head alone predicts. With `shared_temperature` G-Head trains with the
    multimodal loss (Equation 5) in place of CE(z_G, y), and nothing is detached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import diagnostics, requirements
from communis.core.contract import Batch, Card, Client, FleetView, Model, Output, Prediction, Task
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.fedavg import Down, FedAvg, Server, Up
from communis.methods.parts import uncertainty
from communis.models.network import MLP


@dataclass(frozen=True)
class FedDUET(FedAvg):
    """The uncertainty of each sensor is a temperature for its logits, and a private head trains on
    the shared features without changing them."""

    ema: Literal["none", "coverage", "const"] = "coverage"  # step of encoders and uncertainty heads
    # towards their mean; none: the mean replaces them; coverage: the share of the cohort's samples
    # that belongs to clients with the sensor; const: r
    ut: bool = True  # uncertainty as temperature; false: no uncertainty heads, sigma = 1
    dt: bool = True  # decoupled training; false: no private head
    shared_temperature: bool = False  # divide the logits of the shared head by sigma_f; needs
    # dt = false and ut = true
    ensemble: Literal["literal", "tempered"] = "literal"  # logits of both heads together;
    # literal: z_G + z_P; tempered: the sum z_G + z_P / sigma_f
    penalty: float = 0.0  # weight of s_m^2 in the loss; 0.001 keeps sigma near 1
    rescale: bool = False  # multiply the private loss by sigma_f; without it, its gradient is
    # 1 / sigma_f times that of plain cross-entropy, and sigma_f decreases with every sensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty < 0:
            raise CommunisError(f"fedduet needs penalty >= 0, got {self.penalty}")
        if self.shared_temperature and (self.dt or not self.ut):
            raise CommunisError(
                "shared_temperature replaces DT and uses the uncertainty heads of UT: set "
                "dt = false and ut = true"
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
            # The losses train different parameters, so one step on their sum is a step on each.
            return L_G + self.private_loss(client, output, batch, sigma_f)

        self.train(client, loss=loss)
        return self.keep(client), Up(w=self.send(client))

    def shared_loss(self, client: Client, output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns L_G and sigma_f (B,)."""
        z_G = output.prediction
        if not self.ut:
            L_G = client.task.loss(z_G, batch.target)
            return L_G, torch.ones_like(batch.target, dtype=L_G.dtype)
        unimodal = uncertainty.unimodal(client.model, output, batch.present)
        sigma_f = uncertainty.fused(unimodal)  # Equation 4
        if self.shared_temperature:
            z_G = z_G / sigma_f[:, None]  # Equation 5
        L_G = client.task.loss(z_G, batch.target)  # CE(z_G, y)
        y = client.task.labels(batch.target)
        M = client.card.sizes["modalities"]
        L_UT = uncertainty.losses(unimodal, y, self.penalty)  # sum over m, Equation 3
        return L_G + L_UT / M, sigma_f  # Equation 6

    def private_loss(self, client: Client, output: Output, batch: Batch, sigma_f: Tensor) -> Tensor:
        """Returns L_P."""
        z_P = client.model.private["head"](output.embedding.detach())
        sigma_f = sigma_f.detach()
        y = client.task.labels(batch.target)
        losses = F.cross_entropy(z_P / sigma_f[:, None], y, reduction="none")  # Equation 5
        return (sigma_f * losses if self.rescale else losses).mean()  # Equation 7

    def needs_to_predict(self, card: Card) -> list[str]:
        return self.shared(super().needs_to_predict(card))

    def predict(self, client: Client, state: State, batch: Batch) -> Prediction:
        """Scores the ensemble of both heads. It also records the other ensemble, each head alone,
        P-Head with its temperature, sigma_f, and the share of sensors whose s_m is at a bound. A
        newcomer has no P-Head, so that G-Head alone predicts."""
        output = client.model(batch)
        z_G = output.prediction
        scored = z_G
        views: dict[str, Tensor] = {}
        personal = self.dt and not client.card.newcomer
        if personal:
            z_P = client.model.private["head"](output.embedding)
            scored = z_G + z_P  # inference, Appendix A; the formula has no number
            views |= {"shared": z_G, "private": z_P}
        if self.ut:
            unimodal = uncertainty.unimodal(client.model, output, batch.present)
            sigma_f = uncertainty.fused(unimodal)
            views[diagnostics.UNCERTAINTY.name] = sigma_f
            views["clamped"] = uncertainty.clamped(unimodal)
            if self.shared_temperature:
                scored = z_G / sigma_f[:, None]
                views["shared"] = z_G
            if personal:
                tempered = z_P / sigma_f[:, None]
                if self.ensemble == "literal":
                    views["tempered"] = z_G + tempered
                else:
                    scored = z_G + tempered
                    views["literal"] = z_G + z_P
                views["private_tempered"] = tempered
        return Prediction(scored, views)
