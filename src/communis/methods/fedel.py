"""FedEL. Zhang et al., NeurIPS 2025, Section 4: elastic training in a sliding window.
https://arxiv.org/abs/2509.16902

Names follow the paper: T_th the deadline, which is the fastest device's time for the whole model;
B blocks from input to output; end and front the edges of the window; I the importance.
The window starts as the first blocks that fill the time until T_th. Every round the front edge
takes in as many more and the end edge leaves behind what was not chosen the last time; once the
front has reached the output, the window starts anew. Its most important blocks are trained.
A device whose forward pass alone takes T_th cannot meet it: it trains one block, and all wait.
Deviation: a block is a group of groups.py and is chosen as a whole, not tensor by tensor. All cost
    a device the same, so the paper's dynamic programme is to take the k most important.
Deviation: no early exits: the whole model runs, and its head gives the loss. Time for gradients
    that only pass through untrained blocks is not budgeted. On a fleet as uneven as RELIEF's
    (13 and 55 times) this degenerates: the forward pass alone exceeds T_th on both slower kinds of
    device, so each trains one block per round (of 11 with three sensors), one after the other.
Deviation: branches are parallel: first layers of all encoders come first, then second ones, ...
    Whose sensor a branch is does not matter, nor whether the client has it (`whole`).
Deviation: a client's own I is that of one batch before training, with the step of plain SGD for any
    optimiser: gradient g times lr g. This pass is not on the clock.
Deviation: the common I compares with the model last received, in whatever round that was.
Deviation: T_th is per window, so a slower device with more windows than the fastest is late.
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
    budget: Tensor  # (clients,) float64: blocks that the device can train until T_th


@dataclass(frozen=True)
class Private:
    kept: State  # what is not federated
    w: State  # the model last received
    end: int  # of the last window: its first block that was trained
    front: int  # of the last window: the block after it; 0: there was none yet


@dataclass(frozen=True)
class Down:
    w: State
    budget: float


@dataclass(frozen=True)
class FedEL(Averaging, Method[Server, Private, Down, Up]):
    """Slow devices train the most important layers of a window that slides through the model."""

    uniform: bool = True  # weigh all who trained a block alike instead of by samples
    whole: bool = True  # clients have branches for all of the fleet's sensors, owned or not
    beta: float = 0.6  # weight of the client's own importance against that of the common model

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta <= 1:
            raise CommunisError(f"fedel needs beta in [0, 1], got {self.beta}")
        if self.whole and self.ema != "none":
            raise CommunisError("ema goes by who has a branch, but with whole = true everybody has")

    @property
    def needs(self) -> Needs:
        return Needs(all_branches=self.whole)

    def sends(self, card: Card) -> Sent:
        """Of parameters only what was trained."""
        return Sent(self.travels(card), optional=self.shared(card.params))

    def start_server(self, fleet: FleetView) -> Server:
        paces = {card.id: fleet.pace(card) for card in fleet.cards if card.samples}
        blocks = {card.id: len(groups(card.params)) for card in fleet.cards}
        T_th = min(pace.forward + blocks[n] * pace.group for n, pace in paces.items())
        budget = torch.zeros(len(fleet.cards), dtype=torch.float64)
        for n, pace in paces.items():
            # Rounded, or a device as fast as the fastest might miss a block by the last bit.
            budget[n] = round((T_th - pace.forward) / pace.group, 6)
        return Server(self.initial(fleet), budget)

    def notes(self, server: Server, node: int) -> dict[str, float]:
        return {
            diagnostics.BUDGET.of(i): float(fitting(b))
            for i, b in enumerate(server.budget.tolist())
        }

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
        told = self.statistics(client.card)
        return state, Up(self.send(client).pick([*paths, *told]))

    def importance(self, client: Client, before: State, w: State) -> dict[str, float]:
        """beta * own + (1 - beta) * common, by path. Own: g * lr g; common: (w - before)^2 / lr."""
        order = client.generator("importance").permutation(len(client.train))
        batch = client.train.batch(torch.from_numpy(order[: self.batch]))
        own = client.model.eval().by_path[0]
        loss = client.task.loss(client.model(batch).prediction, batch.target)
        slopes = torch.autograd.grad(loss, list(own.values()), materialize_grads=True)
        I_n = {}
        for path, g in zip(own, slopes, strict=True):
            moved = w[path] - before.get(path, w[path])
            common = moved.square().sum() / self.lr
            I_n[path] = float(torch.lerp(common, self.lr * g.square().sum(), self.beta))
        return I_n

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        return Server(self.merge(server.w, ups), server.budget)


def by_depth(paths: Iterable[str]) -> list[list[str]]:
    """The paths of all blocks from input to output."""
    found, depth, rank = groups(paths), Counter[str](), {}
    for block in found:
        m = modality_of(block)
        rank[block] = depth[m] if m else math.inf  # what joins the branches comes after them
        depth[m] += 1
    return [found[block] for block in sorted(found, key=lambda block: rank[block])]


def slide(end: int, front: int, blocks: int, budget: float) -> tuple[int, int]:
    """The edges of the next window."""
    if front == blocks:
        end = front = 0
    return end, min(blocks, front + max(1, math.ceil(budget)))


def fitting(budget: float) -> int:
    """How many blocks are trained: at least one."""
    return max(1, math.floor(budget))
