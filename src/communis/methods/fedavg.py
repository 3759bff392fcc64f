"""FedAvg. McMahan et al., AISTATS 2017, Algorithm 1.
https://arxiv.org/abs/1602.05629

Names follow the paper: w the model, n_k a client's samples.
Deviation: the mean runs key-wise over the clients that own a path, so clients may lack modalities.
Beyond the paper: what becomes of BatchNorm's statistics, of which it says nothing, is `buffers`. By
    default they stay with their client; "average" is the mean of the whole state.
Beyond the paper: `ema` smooths the encoders as FedDUET's Algorithm 1 does for every method.
Beyond the paper: with `whole` every client has the fleet's whole model, as multimodal papers run
    FedAvg; a branch without a sensor then sends back what it got. `mask_mode` is RELIEF's question.
Beyond the paper: with `by_model` clients of one architecture have a mean of their own.
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
from communis.methods.parts.sharing import Sharing, sound


@dataclass(frozen=True)
class Server:
    w: State


@dataclass(frozen=True)
class Down:
    w: State


@dataclass(frozen=True)
class Up:
    w: State


@dataclass(frozen=True)
class Averaging(Sharing):
    """What methods that average parameters have in common."""

    uniform: bool = False  # weigh all clients alike instead of by samples
    ema: Literal["none", "coverage", "const"] = "none"  # how far encoders move towards their mean:
    # all the way; as far as their holders' share of the cohort's samples; or by `r`
    r: float = 0.9  # with ema = "const"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.r <= 1:
            raise CommunisError(f"r is a share in (0, 1], got {self.r}")

    def merge(self, w: State, ups: Replies[Any]) -> State:
        """The mean of the `w` that clients sent; what nobody sent stays.

        With `ema`, what belongs to modality m becomes (1 - r_m) old + r_m mean; unless `uniform`,
        that mean is weighted by the windows that have m, n_{k,m}.
        """
        by: Weight = uniform if self.uniform else samples if self.ema == "none" else presence
        means = sound(ups.mean(w_of, by=by))
        if self.ema == "none":
            return w | means
        covered = ups.coverage(w_of)
        moved = {}
        for path, mean in means.items():
            r_m = self.r if self.ema == "const" else covered[path]
            moved[path] = torch.lerp(w[path], mean, r_m) if modality_of(path) else mean
        return w | moved

    def common(self, server: Any) -> State:
        w: State = server.w
        return w


def w_of(up: Any) -> State:
    sent: State = up.w
    return sent


@dataclass(frozen=True)
class FedAvg(Averaging, Method[Server, State, Down, Up]):
    """Every client trains the common model; the server takes the mean, weighted by samples."""

    by_model: bool = False  # in a fleet of several models, a mean for each instead of a refusal
    whole: bool = False  # clients have branches for all of the fleet's sensors, owned or not
    mask_mode: Literal["feature", "input_zero"] = "feature"  # of a sensor that is absent: no
    # features; or its encoder is fed zeros and its biases leak through
    private_lr: float = 0.0  # learning rate of what stays with the client; 0: `lr`

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.private_lr < math.inf:
            raise CommunisError(f"private_lr must be finite and at least 0, got {self.private_lr}")
        if self.whole and self.ema != "none":
            raise CommunisError("ema goes by who has a branch, but with whole = true everybody has")

    @property
    def needs(self) -> Needs:
        return Needs(all_branches=self.whole, same_model=self.by_model)

    def equip(self, model: Model, task: Task) -> None:
        model.zero_fill = self.mask_mode == "input_zero"

    def rates(self, client: Client) -> Mapping[str, float]:
        if not self.private_lr:
            return {}
        private = [path for path in client.card.params if not self.shares(path)]
        return dict.fromkeys(private, self.private_lr / self.lr)

    def start_server(self, fleet: FleetView) -> Server:
        if self.private_lr and all(self.shares(path) for path in fleet.params):
            raise CommunisError(
                f"private_lr = {self.private_lr}, but {type(self).__name__} shares all parameters "
                "with these settings: leave it out"
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
