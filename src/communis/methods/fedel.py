"""FedEL. Zhang et al., NeurIPS 2025, Section 4: elastic training in a sliding window.
https://arxiv.org/abs/2509.16902

Names follow the paper: T_th is the deadline, which is the time that the fastest device needs for
the whole model; B is the list of blocks from input to output; end and front are the edges of the
window; I is the importance.
The first window consists of the fewest first blocks whose training takes until T_th. In every round
the front edge moves forward by as many blocks, and the end edge moves to the first block that was
trained the last time. When the front has reached the output, the window starts again at the input.
The client trains the most important blocks of the window. A device whose forward pass alone takes
longer than T_th cannot meet the deadline: it trains one block, and the round waits for it.
Messages: Down(w, budget); Up(w). Down has the federated part of the model, Up the blocks of it that
    were trained.
Deviation: a block is a group of groups.py and is selected as a whole, not tensor by tensor. All
    blocks take the same time on a device, so the paper's dynamic programme reduces to the selection
    of the k most important blocks.
Deviation: there are no early exits. The whole model runs, and its head gives the loss. The budget
    does not include the time for gradients that only pass through untrained blocks. On a fleet as
    uneven as RELIEF's (13 and 55 times) the method degenerates: the forward pass alone exceeds T_th
    on both slower kinds of device, so each of them trains one block per round (of 11 with three
    sensors), one after the other.
Deviation: branches are parallel. The first layers of all encoders come first, then the second
    layers, and so on, independently of the sensor of a branch and of whether the client has this
    sensor (`whole`).
Deviation: a client's own I is computed on one batch before training, with the step of plain SGD for
    any optimiser: gradient g times lr g. The clock does not count this pass.
Deviation: the common I compares with the model that the client received last, in whatever round.
Deviation: T_th is a time per window, so a slower device with more windows than the fastest device
    exceeds the deadline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from communis.core import diagnostics
from communis.core.contract import Card, Client, FleetView, Method, Needs, Sent, modality_of
from communis.core.errors import CommunisError
from communis.core.groups import groups
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.fedavg import Averaging, Up


@dataclass(frozen=True)
class Server:
    w: State
    budget: Tensor  # (clients,) float64: number of blocks that the device can train within T_th


@dataclass(frozen=True)
class Private:
    kept: State  # the tensors that stay on the client
    w: State  # the model last received
    end: int  # the first block of the last window that was trained
    front: int  # the block after the last window; 0: there was no window yet


@dataclass(frozen=True)
class Down:
    w: State
    budget: float


@dataclass(frozen=True)
class FedEL(Averaging, Method[Server, Private, Down, Up]):
    """Slow devices train the most important layers of a window that slides through the model."""

    uniform: bool = True  # give all clients that trained a block equal weight instead of weighting
    # them by samples
    whole: bool = True  # clients have branches for all of the fleet's sensors, owned or not
    beta: float = 0.6  # weight, from 0 to 1, of the client's own importance; that of the common
    # model has weight 1 - beta

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta <= 1:
            raise CommunisError(f"fedel needs beta in [0, 1], got {self.beta}")
        if self.whole and self.ema != "none":
            raise CommunisError(
                "ema depends on which clients have a branch, but with whole = true all clients "
                "have all branches: set ema = 'none' or whole = false"
            )

    @property
    def needs(self) -> Needs:
        return Needs(all_branches=self.whole)

    def sends(self, card: Card) -> Sent:
        """Allows a message to lack parameters, as clients send only those that they trained."""
        return Sent(self.travels(card), optional=self.shared(card.params))

    def start_server(self, fleet: FleetView) -> Server:
        costs = {card.id: fleet.pace(card) for card in fleet.cards if card.samples}
        blocks = {card.id: len(groups(card.params)) for card in fleet.cards}
        T_th = min(cost.forward + blocks[n] * cost.group for n, cost in costs.items())
        budget = torch.zeros(len(fleet.cards), dtype=torch.float64)
        for n, cost in costs.items():
            # Without rounding, a device as fast as the fastest might miss a block by the last bit.
            budget[n] = round((T_th - cost.forward) / cost.group, 6)
        return Server(self.initial(fleet), budget)

    def notes(self, server: Server, node: int) -> dict[str, float]:
        notes = {}
        for n, budget in enumerate(server.budget.tolist()):
            notes[diagnostics.BUDGET.of(n)] = float(fitting(budget))
        return notes

    def start_client(self, client: Client) -> Private:
        return Private(self.keep(client), w=State(), end=0, front=0)

    def down(self, server: Server, card: Card) -> Down:
        return Down(server.w.pick(card.shapes), float(server.budget[card.id]))

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.kept | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        blocks = by_depth(client.card.params)
        end, front = slide(state.end, state.front, len(blocks), down.budget)
        I_n = self.importance(client, state.w, down.w)
        ranked = sorted(range(end, front), key=lambda b: -sum(I_n[path] for path in blocks[b]))
        chosen = sorted(ranked[: fitting(down.budget)])
        paths = [path for b in chosen for path in blocks[b]]
        self.train(client, paths=paths)
        state = Private(self.keep(client), down.w, end=chosen[0], front=front)
        sent = [*paths, *self.statistics(client.card)]
        return state, Up(self.send(client).pick(sent))

    def importance(self, client: Client, before: State, w: State) -> dict[str, float]:
        """Returns I by path: beta * own + (1 - beta) * common, with own = g * lr g and
        common = (w - before)^2 / lr, each summed over the elements."""
        order = client.generator("importance").permutation(len(client.train))
        batch = client.train.batch(torch.from_numpy(order[: self.batch]))
        parameters = client.model.eval().by_path[0]
        loss = client.task.loss(client.model(batch).prediction, batch.target)
        gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        I_n = {}
        for path, g in zip(parameters, gradients, strict=True):
            change = w[path] - before.get(path, w[path])
            common = change.square().sum() / self.lr
            own = self.lr * g.square().sum()
            I_n[path] = float(torch.lerp(common, own, self.beta))
        return I_n

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        return Server(self.merge(server.w, ups), server.budget)


def by_depth(paths: Iterable[str]) -> list[list[str]]:
    """Returns the paths of each block, from input to output."""
    blocks = groups(paths)
    depth = Counter[str]()
    rank = {}
    for block in blocks:
        m = modality_of(block)
        rank[block] = depth[m] if m else math.inf  # fusion and head come after the branches
        depth[m] += 1
    return [blocks[block] for block in sorted(blocks, key=lambda block: rank[block])]


def slide(end: int, front: int, blocks: int, budget: float) -> tuple[int, int]:
    """Returns the edges of the next window."""
    if front == blocks:
        end = 0
        front = 0
    return end, min(blocks, front + max(1, math.ceil(budget)))


def fitting(budget: float) -> int:
    """Returns the number of blocks that are trained, at least one."""
    return max(1, math.floor(budget))
