"""FedAvg. McMahan et al., AISTATS 2017, Algorithm 1.
https://arxiv.org/abs/1602.05629

Names follow the paper: w is the model, n_k the number of samples of client k.
Of the functions called here, parts/sharing.py has `shares` (whether a path is federated), `initial`
(the common model before the first round), `keep` (the part of a client's model that stays on the
client: private parameters and BatchNorm's statistics) and `send` (the part that is sent);
parts/training.py has `train` (the epochs of local training). State, Card and Replies are explained
in docs/contract.md.
Messages: Down(w); Up(w). w is the federated part of the model: all parameters but those under
    `private.`, and with `buffers` = "average" the means and variances of BatchNorm.
Deviation: the server takes the mean of each path over the clients that own it, so clients may lack
    modalities.
Beyond the paper: `buffers` defines the treatment of BatchNorm's statistics, which the paper does
    not mention. By default they stay on the client; "average" averages the whole state.
Beyond the paper: `ema` smooths the encoders, as FedDUET's Algorithm 1 does for every method.
Beyond the paper: with `whole` every client has the complete model of the fleet, as in multimodal
    papers that use FedAvg. `mask_mode` is the treatment of a branch whose sensor is absent, which
    RELIEF discusses. With "feature" the client sends this branch back unchanged, except for weight
    decay.
Beyond the paper: with `by_model` each architecture has its own mean, over the clients that use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from communis.core.contract import Card, Client, FleetView, Method, Model, Needs, Task, modality_of
from communis.core.errors import CommunisError
from communis.core.replies import Replies, Weight, presence, samples, uniform
from communis.core.state import State
from communis.methods.parts.sharing import Sharing, nonnegative_variances


@dataclass(frozen=True)
class Server:
    w: State


@dataclass(frozen=True)
class Down:
    w: State  # the paths that the client owns


@dataclass(frozen=True)
class Up:
    w: State  # the same paths after training


@dataclass(frozen=True)
class Averaging(Sharing):
    """The common part of methods that average parameters. FedAvg itself is the class at the end of
    the file."""

    uniform: bool = False  # give all clients equal weight instead of weighting them by samples
    ema: Literal["none", "coverage", "const"] = "none"  # step of encoders towards their mean; none:
    # the mean replaces them; coverage: the share of the cohort's samples that belongs to clients
    # with the encoder; const: r
    r: float = 0.9  # step of encoders towards their mean with ema = "const", in (0, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.r <= 1:
            raise CommunisError(f"r must be in (0, 1], got {self.r}")

    def merge(self, w: State, ups: Replies[Any]) -> State:
        """Returns the mean of the `w` that clients sent. Paths that no client sent are unchanged.

        With `ema`, the paths of modality m become (1 - r_m) old + r_m mean. Unless `uniform` is
        set, this mean weights client k by n_{k,m}, its windows that have m.
        """
        means = nonnegative_variances(ups.mean(w_of, by=self._weight()))
        if self.ema == "none":
            return w | means
        coverage = ups.coverage(w_of)
        smoothed = {}
        for path, mean in means.items():
            r_m = self.r if self.ema == "const" else coverage[path]
            smoothed[path] = torch.lerp(w[path], mean, r_m) if modality_of(path) else mean
        return w | smoothed

    def _weight(self) -> Weight:
        """Returns the weight of a client in the mean."""
        if self.uniform:
            return uniform
        return samples if self.ema == "none" else presence

    def common(self, server: Any) -> State:
        w: State = server.w
        return w


def w_of(up: Any) -> State:
    w: State = up.w
    return w


@dataclass(frozen=True)
class FedAvg(Averaging, Method[Server, State, Down, Up]):
    """Every client trains the common model; the server averages the models, weighted by samples."""

    by_model: bool = False  # in a fleet with several architectures, average each of them over its
    # own clients; false: such a fleet is refused if shapes differ
    whole: bool = False  # clients have branches for all of the fleet's sensors, owned or not
    mask_mode: Literal["feature", "input_zero"] = "feature"  # treatment of an absent sensor;
    # feature: its features are masked; input_zero: its encoder gets zeros, so its biases have an
    # effect
    private_lr: float = 0.0  # learning rate of the parameters that stay on the client; 0: `lr`

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.private_lr < math.inf:
            raise CommunisError(f"private_lr must be finite and at least 0, got {self.private_lr}")
        if self.whole and self.ema != "none":
            raise CommunisError(
                "ema depends on which clients have a branch, but with whole = true all clients "
                "have all branches: set ema = 'none' or whole = false"
            )

    @property
    def needs(self) -> Needs:
        return Needs(all_branches=self.whole, same_model=self.by_model)

    @property
    def plain_training(self) -> bool:
        return type(self).local is FedAvg.local  # methods that derive from FedAvg train otherwise

    def equip(self, model: Model, task: Task) -> None:
        model.zero_fill = self.mask_mode == "input_zero"

    def rates(self, client: Client) -> Mapping[str, float]:
        """Returns the factors on `lr` that `train` uses, here of the paths that are not sent."""
        if not self.private_lr:
            return {}
        private = [path for path in client.card.params if not self.shares(path)]
        return dict.fromkeys(private, self.private_lr / self.lr)

    def start_server(self, fleet: FleetView) -> Server:
        if self.private_lr and all(self.shares(path) for path in fleet.params):
            raise CommunisError(
                f"private_lr = {self.private_lr}, but with these settings {type(self).__name__} "
                "shares all parameters: remove private_lr"
            )
        return Server(w=self.initial(fleet))

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Server, card: Card) -> Down:
        return Down(w=server.w.pick(card.shapes))

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        self.train(client)  # ClientUpdate(k, w)
        return self.keep(client), Up(w=self.send(client))

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        return Server(w=self.merge(server.w, ups))  # sum_k n_k/n w_k
