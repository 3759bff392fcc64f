"""HeLoRA. Fan et al., ACM Transactions on Internet Technology 25(2), 2025.
https://doi.org/10.1145/3723877

Names: A and B the factors of a low-rank update B A, rho the rank of the common model, r_n that of
client n, which holds the first r_n rows of each A and the first r_n columns of each B.
Deviation: this is the form in which RELIEF compares it: slices are padded with zeros, then averaged
    over all holders. The paper's own variants pad by context with weights by rank, or distil.
    Padding dilutes the high ranks: a row that a share q of the holders (by weight) has is cut to q
    of its value in every round, whether or not anybody learns there.
Deviation: ranks follow the devices' speed in a forward pass: one less than rho for every halving
    of the fastest's, rounded, and not below `least`. The factor in front of B A stays that of rho.
Deviation: what is not LoRA is averaged as in FedAvg; a model without LoRA makes this FedAvg.
Deviation: a client computes at rank rho, with zeros beyond r_n. Neither mode of the device clock
    knows of ranks: a low rank saves bytes, and with them time to send, but no computing.
Beyond the paper: with `whole` every client has the fleet's whole model, as in FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from communis.core.contract import Card, Client, FleetView, Method, Needs, Sent, UpMessage
from communis.core.errors import CommunisError
from communis.core.replies import Replies, samples, uniform
from communis.core.state import State
from communis.methods.fedavg import Averaging
from communis.methods.parts.sharing import sound

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Server:
    w: State  # LoRA at rank rho
    r: Tensor  # (clients,) int64


@dataclass(frozen=True)
class Down:
    w: State  # what is not LoRA
    lora: dict[str, Tensor]  # slices of rank r_n


@dataclass(frozen=True)
class Up(UpMessage):
    w: State
    lora: dict[str, Tensor]

    def check(self, card: Card, method: HeLoRA) -> None:
        """The slices are those of one rank; which it must be, the card does not tell."""
        expected = lora_of(method.shared(card.params))
        if sorted(self.lora) != sorted(expected):
            odd = sorted(set(self.lora) ^ set(expected))
            raise CommunisError(f"lora must hold every LoRA path and no other; see {odd[0]}")
        sizes = [n for path, t in self.lora.items() for n in t.shape[rank_axis(path) :][:1]]
        for path, t in self.lora.items():
            shape = at_rank(max([1, *sizes]), path, card.params[path])
            if tuple(t.shape) != shape or t.dtype is not torch.float32:
                raise CommunisError(
                    f"lora/{path} is {t.dtype} {tuple(t.shape)}, expected torch.float32 {shape}"
                )


@dataclass(frozen=True)
class HeLoRA(Averaging, Method[Server, State, Down, Up]):
    """Slow devices train and send LoRA of a lower rank; the server pads with zeros and averages."""

    whole: bool = False  # clients have branches for all of the fleet's sensors, owned or not
    least: int = 2  # no client has a lower rank, unless the model itself has

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least < 1:
            raise CommunisError(f"helora needs least >= 1, got {self.least}")
        if self.ema != "none":
            raise CommunisError("helora knows no ema of LoRA slices: set ema = 'none'")

    @property
    def needs(self) -> Needs:
        return Needs(all_branches=self.whole)

    def sends(self, card: Card) -> Sent:
        return Sent([path for path in self.travels(card) if rank_axis(path) < 0])

    def start_server(self, fleet: FleetView) -> Server:
        w = self.initial(fleet)
        rho = max((w[path].shape[rank_axis(path)] for path in lora_of(w)), default=0)
        seconds = [fleet.pace(card).forward for card in fleet.cards]
        r = [self.rank(rho, own / min(seconds)) for own in seconds]
        return Server(w=w, r=torch.tensor(r))

    def rank(self, rho: int, slowness: float) -> int:
        """r_n of a device that takes so many times as long as the fastest."""
        return max(min(self.least, rho), rho - round(math.log2(slowness)))

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Server, card: Card) -> Down:
        w, r = server.w.pick(card.shapes), int(server.r[card.id])
        lora = {path: first(w[path], at_rank(r, path, w[path].shape)) for path in lora_of(w)}
        return Down(w=w.pick(self.sends(card).paths), lora=lora)

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.w | padded(down.lora, client.card.params)).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        self.train(client)  # beyond r_n A and B are both zero, so neither has a gradient there
        w = self.send(client)
        lora = {path: first(w[path], slice_.shape) for path, slice_ in down.lora.items()}
        return self.keep(client), Up(w=w.pick(self.sends(client.card).paths), lora=lora)

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        shapes = {path: tuple(t.shape) for path, t in server.w.items()}
        by = uniform if self.uniform else samples
        mean = ups.mean(lambda up: up.w | padded(up.lora, shapes), by=by)
        return Server(w=server.w | sound(mean), r=server.r)


def rank_axis(path: str) -> int:
    """The axis of a LoRA matrix along which its ranks lie: rows of A, columns of B; -1: no LoRA."""
    parts = path.split(".")
    return 0 if "lora_A" in parts else 1 if "lora_B" in parts else -1


def lora_of(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if rank_axis(path) >= 0]


def at_rank(r: int, path: str, shape: Sequence[int]) -> Shape:
    """The shape of a LoRA matrix that is cut to rank r."""
    return tuple(min(r, n) if i == rank_axis(path) else n for i, n in enumerate(shape))


def first(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The corner of a tensor that has this shape."""
    return tensor[tuple(slice(n) for n in shape)].contiguous()


def padded(slices: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> State:
    """The slices in the corners of zeros of these shapes."""
    whole = {path: t.new_zeros(shapes[path]) for path, t in slices.items()}
    for path, t in slices.items():
        whole[path][tuple(slice(n) for n in t.shape)] = t
    return State(whole)
