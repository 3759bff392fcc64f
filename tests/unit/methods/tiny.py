"""Fleets so small that a test can work out a round by itself, and the plain arithmetic to do it.

Nothing here calls the training loop or the server maths of a method: `Game` only carries messages
(through the real codec), and the reference is autograd on a copy of the model with steps written
out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Batch, Card, Client, Fleet, Model, Plan, Replies, Run, State, Windows
from communis.core.contract import AfterExchange, Prediction
from communis.core.tasks import Classification
from communis.data.recordings.windows import TEST, TRAIN
from communis.exchange.wire import check, decode, encode, flatten, payload_types, receive
from communis.fleet.clients import FleetClients
from communis.models.zoo import Architecture

SMALL = Architecture(width=4, embedding=6)
NORMED = Architecture(width=4, embedding=6, norm=True)
MIXED = (("a", "b"), ("a",), ("b",))
TWO = ((0, 1, 2, 0), (1, 2, 0, 1, 1, 2))  # targets of two clients with 4 and 6 windows
THREE = (
    (0, 1, 2, 0),
    (1, 0, 1, 0, 1, 1),
    (2, 2),
)  # the second never saw class 2, the third only it
Values = Mapping[str, Tensor]
Slope = Callable[[Model, Batch], Values]


def windows(
    targets: Sequence[Sequence[int]] = TWO, *, held_out: int = 0, classes: int = 3, **changes: Any
) -> Windows:
    """Noise with a trace of the class in it; `held_out` test windows per client after the others.
    Inputs are (2, 16) per modality."""
    rng = np.random.default_rng(5)
    target = np.array([y for own in targets for y in (*own, *range(held_out))], np.int64)
    split = [s for own in targets for s in (*[TRAIN] * len(own), *[TEST] * held_out)]
    owner = [i for i, own in enumerate(targets) for _ in range(len(own) + held_out)]
    trace = np.float32(0.5) * target[:, None, None].astype(np.float32)
    inputs = {
        m: rng.standard_normal((len(target), 2, 16), dtype=np.float32) + trace for m in ("a", "b")
    }
    made: dict[str, Any] = {
        "inputs": inputs,
        "target": target,
        "owner": np.array(owner),
        "split": np.array(split, np.int8),
        "task": Classification(classes),
    }
    return Windows(**(made | changes))


def fleet(
    targets: Sequence[Sequence[int]] = TWO,
    suites: Sequence[tuple[str, ...]] | None = None,
    models: Sequence[str | Architecture] = (SMALL,),
    **changes: Any,
) -> Fleet:
    return Fleet.of(
        windows(targets, **changes),
        seed=1,
        suites=suites or [("a", "b")] * len(targets),
        models=models,
    )


def mixed(**changes: Any) -> Fleet:
    """Three clients with both modalities, only `a` and only `b`; 4, 6 and 2 windows."""
    return fleet(THREE, MIXED, **changes)


def ran(fleet: Fleet, method: Any, rounds: int = 1, **plan: Any) -> Run:
    """A finished run in this process."""
    with Run(fleet, method, Plan(rounds=rounds, workers=1, **({"eval_every": 0} | plan))) as run:
        for _ in run:
            pass
    return run


@dataclass
class Game:
    """A run whose messages and private states lie open. Every message passes the codec."""

    bound: FleetClients
    method: Any
    server: Any
    states: dict[int, Any] = field(default_factory=dict)
    memories: dict[int, Any] = field(default_factory=dict)  # of the optimisers
    downs: list[dict[int, Any]] = field(default_factory=list)  # by round, by client
    ups: list[dict[int, Any]] = field(default_factory=list)
    models: dict[int, Values] = field(default_factory=dict)  # after the last local training

    def receive(self, id: int, round: int, after: bool = False) -> tuple[Client, Any, Any]:
        """A client that has adopted the downlink of a round (or the one after its exchange), with
        its state and that downlink."""
        client = self.bound.client(id, round, fresh=id not in self.states)
        state = self.states[id] if id in self.states else self.method.start_client(client)
        _, _, down_type, _ = payload_types(type(self.method))
        sent = (self.method.down_after if after else self.method.down)(self.server, client.card)
        down = decode(encode(sent).data, down_type)
        client.memory.update(self.memories.get(id, {}))
        return client, self.method.adopt(client, state, down), down

    def round(self, cohort: Iterable[int] | None = None) -> None:
        _, _, _, up_type = payload_types(type(self.method))
        number, downs, ups = len(self.ups) + 1, {}, {}
        for id in cohort if cohort is not None else self.bound.trainers:
            client, state, downs[id] = self.receive(id, number)
            self.states[id], up = self.method.local(client, state, downs[id])
            self.memories[id] = dict(client.memory)
            received = receive(encode(up).data, up_type)
            check(received, client.card)
            ups[id] = received.payload
            self.models[id] = values(client.model)
        self.downs.append(downs)
        self.ups.append(ups)
        replies = Replies([(self.bound.cards[id], ups[id]) for id in sorted(ups)])
        self.server = self.method.aggregate(self.server, replies)
        for id in ups if isinstance(self.method, AfterExchange) else ():
            client, state, down = self.receive(id, number, after=True)
            self.states[id] = self.method.after_exchange(client, state, down)
            self.memories[id] = dict(client.memory)


def play(
    fleet: Fleet,
    method: Any,
    rounds: int = 1,
    cohorts: Sequence[Sequence[int] | None] | None = None,
) -> Game:
    bound = FleetClients(fleet, method)
    game = Game(bound, method, method.start_server(bound))
    for cohort in cohorts or [None] * rounds:
        game.round(cohort)
    return game


def starting(game_or_bound: Game | FleetClients, id: int, round: int = 1) -> tuple[Client, Model]:
    """A client of a round and a copy of its freshly initialised model."""
    bound = game_or_bound.bound if isinstance(game_or_bound, Game) else game_or_bound
    client = bound.client(id, round, fresh=True)
    return client, copy.deepcopy(client.model).train()


def batches(client: Client, size: int = 32, epochs: int = 1) -> list[Batch]:
    """The batches of a round: the order comes from the client's stream "batches"."""
    order = client.generator("batches")
    shuffled = [torch.from_numpy(order.permutation(len(client.train))) for _ in range(epochs)]
    return [client.train.batch(part) for whole in shuffled for part in torch.split(whole, size)]


def task_loss(model: Model, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch).prediction, batch.target)


def slopes(model: Model, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of a loss by path; zero where it does not depend on a parameter."""
    named = {path: p for path, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        path: torch.zeros_like(named[path]) if g is None else g
        for path, g in zip(named, found, strict=True)
    }


@torch.no_grad()
def move(model: Model, slope: Values, lr: float) -> None:
    """One step of plain gradient descent on the paths of `slope`."""
    named = dict(model.named_parameters())
    for path, g in slope.items():
        named[path].sub_(lr * g)


def descend(
    model: Model,
    parts: Sequence[Batch],
    lr: float,
    slope: Slope = lambda m, b: slopes(m, task_loss(m, b)),
) -> dict[str, Tensor]:
    """Plain gradient descent, one step per batch; the values it ends at."""
    for part in parts:
        move(model, slope(model, part), lr)
    return values(model)


@torch.no_grad()
def fill(model: Model, with_: Values) -> Model:
    named = dict(model.named_parameters())
    for path, tensor in with_.items():
        named[path].copy_(tensor)
    return model


def told(method: Any, client: Client, state: Any, batch: Batch) -> dict[str, Tensor]:
    """All that a method says of a batch, by name; "": what is scored."""
    prediction = Prediction.of(method.predict(client, state, batch))
    return {"": prediction.scored, **prediction.views}


def values(model: Model) -> dict[str, Tensor]:
    return {path: p.detach().clone() for path, p in model.named_parameters()}


def owned(run: Run, keep: Callable[[str], bool] = lambda path: True) -> int:
    """|w| summed over the clients that trained: the numbers at the paths that `keep` picks."""
    return sum(
        int(np.prod(shape))
        for i in run.history[0].cohort
        for path, shape in run.cards[i].params.items()
        if keep(path)
    )


def paths(payload: Any) -> set[str]:
    """The parameter paths in a payload or a server state."""
    return {name.partition("/")[2] for name in flatten(payload) if "/" in name}


def same(a: Values, b: Values) -> bool:
    """The same paths with the same bits."""
    return set(a) == set(b) and all(torch.equal(a[k], b[k]) for k in a)


def near(a: Values, b: Values, rtol: float = 1e-5, atol: float = 4e-6) -> bool:
    """The same paths with the same values up to rounding. Weights are of size 1; with AVX-512 and
    with SSE4.1 alone, what is the same was 4e-7 apart at most: ten times that is allowed."""
    return set(a) == set(b) and all(torch.allclose(a[k], b[k], rtol, atol) for k in a)


def apart(a: Values, b: Values) -> float:
    """The largest difference at the paths that both have: guards against a test that is blind."""
    return max(float((a[k] - b[k]).abs().max()) for k in a if k in b)


def card(id: int = 0, samples: int = 1, **params: int) -> Card:
    """A made-up client; `params` are vectors by path."""
    shapes = {path: (size,) for path, size in params.items()}
    return Card(id, ("a",), shapes, samples, {"a": samples}, {"classes": 3, "embedding": 2})


def vectors(**params: Sequence[float]) -> State:
    return State({path: torch.tensor(list(v), dtype=torch.float32) for path, v in params.items()})
