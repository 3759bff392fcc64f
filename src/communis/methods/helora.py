"""HeLoRA. Fan et al., ACM Transactions on Internet Technology 25(2), 2025.
https://doi.org/10.1145/3723877

Names: A and B are the factors of a low-rank update B A, rho is the rank of the common model, r_n
the rank of client n, which has the first r_n rows of each A and the first r_n columns of each B.
Messages: Down(w, lora); Up(w, lora). lora holds the client's slices of A and B, w the parameters
    without LoRA.
Deviation: this is the variant with which RELIEF compares: slices are padded with zeros and then
    averaged over all holders. The variants of the paper pad by context with weights by rank, or
    distil. Zero padding dilutes the high ranks: if a share q of the holders (by weight) has a row,
    the mean multiplies the row by q in every round, whether or not any client trains it.
Deviation: ranks depend on the devices' speed in a forward pass: rho minus one for every halving of
    the speed of the fastest device, rounded, and not below `least`. The factor of B A is that of
    rank rho for all clients.
Deviation: parameters without LoRA are averaged as in FedAvg. With a model without LoRA the method
    equals FedAvg.
Deviation: a client computes at rank rho, with zeros beyond r_n. Neither mode of the device clock
    takes ranks into account: a low rank saves bytes and the time to send them, but no computation.
Beyond the paper: with `whole` every client has the complete model of the fleet, as in FedAvg.
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
from communis.methods.parts.sharing import nonnegative_variances

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Server:
    w: State  # the common model; LoRA matrices at rank rho
    r: Tensor  # (clients,) int64: r_n


@dataclass(frozen=True)
class Down:
    w: State  # paths without LoRA
    lora: dict[str, Tensor]  # slices of rank r_n


@dataclass(frozen=True)
class Up(UpMessage):
    w: State
    lora: dict[str, Tensor]

    def check(self, card: Card, method: HeLoRA) -> None:
        """Refuses slices that are not all of one rank. The card does not define which rank."""
        expected = lora_of(method.shared(card.params))
        if sorted(self.lora) != sorted(expected):
            differing = sorted(set(self.lora) ^ set(expected))
            raise CommunisError(
                f"lora must hold every LoRA path and no other path; see {differing[0]}"
            )
        r = 1
        for path, t in self.lora.items():
            axis = rank_axis(path)
            if t.ndim > axis:
                r = max(r, t.shape[axis])
        for path, t in self.lora.items():
            shape = at_rank(r, path, card.params[path])
            if tuple(t.shape) != shape or t.dtype is not torch.float32:
                raise CommunisError(
                    f"lora/{path} is {t.dtype} {tuple(t.shape)}, expected torch.float32 {shape}"
                )


@dataclass(frozen=True)
class HeLoRA(Averaging, Method[Server, State, Down, Up]):
    """Slow devices train and send LoRA matrices of a lower rank; the server pads them with zeros
    and averages."""

    whole: bool = False  # clients have branches for all of the fleet's sensors, owned or not
    least: int = 2  # lowest rank of a client, unless the rank of the model is lower

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least < 1:
            raise CommunisError(f"helora needs least >= 1, got {self.least}")
        if self.ema != "none":
            raise CommunisError("helora has no ema of LoRA slices: set ema = 'none'")

    @property
    def needs(self) -> Needs:
        return Needs(all_branches=self.whole)

    def sends(self, card: Card) -> Sent:
        return Sent([path for path in self.travels(card) if rank_axis(path) < 0])

    def start_server(self, fleet: FleetView) -> Server:
        w = self.initial(fleet)
        rho = max((w[path].shape[rank_axis(path)] for path in lora_of(w)), default=0)
        seconds = [fleet.pace(card).forward for card in fleet.cards]
        fastest = min(seconds[card.id] for card in fleet.cards if not card.newcomer)
        r = [self.rank(rho, own / fastest) for own in seconds]
        return Server(w=w, r=torch.tensor(r))

    def rank(self, rho: int, slowness: float) -> int:
        """Returns r_n of a device. slowness: its time relative to that of the fastest device."""
        return max(min(self.least, rho), rho - round(math.log2(slowness)))

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Server, card: Card) -> Down:
        w = server.w.pick(card.shapes)
        r = int(server.r[card.id])
        lora = {path: corner(w[path], at_rank(r, path, w[path].shape)) for path in lora_of(w)}
        return Down(w=w.pick(self.sends(card).paths), lora=lora)

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.w | padded(down.lora, client.card.params)).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        # Beyond rank r_n both A and B are zero, so both gradients are zero there.
        self.train(client)
        w = self.send(client)
        lora = {path: corner(w[path], received.shape) for path, received in down.lora.items()}
        return self.keep(client), Up(w=w.pick(self.sends(client.card).paths), lora=lora)

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        shapes = {path: tuple(t.shape) for path, t in server.w.items()}
        by = uniform if self.uniform else samples
        mean = ups.mean(lambda up: up.w | padded(up.lora, shapes), by=by)
        return Server(w=server.w | nonnegative_variances(mean), r=server.r)


def rank_axis(path: str) -> int:
    """Returns the axis of a LoRA matrix that has the size of the rank: 0 for A, 1 for B, and -1 for
    a path without LoRA."""
    parts = path.split(".")
    if "lora_A" in parts:
        return 0
    return 1 if "lora_B" in parts else -1


def lora_of(paths: Iterable[str]) -> list[str]:
    """Returns the paths of LoRA matrices."""
    return [path for path in paths if rank_axis(path) >= 0]


def at_rank(r: int, path: str, shape: Sequence[int]) -> Shape:
    """Returns the shape of a LoRA matrix that is cut to rank r."""
    return tuple(min(r, n) if i == rank_axis(path) else n for i, n in enumerate(shape))


def corner(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns the first entries of a tensor along each axis, in this shape."""
    return tensor[tuple(slice(n) for n in shape)].contiguous()


def padded(slices: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> State:
    """Returns the slices, padded with zeros at the end of each axis to these shapes."""
    tensors = {path: t.new_zeros(shapes[path]) for path, t in slices.items()}
    for path, t in slices.items():
        tensors[path][tuple(slice(n) for n in t.shape)] = t
    return State(tensors)
