"""The contract: what a method, a client, the server, the topology and a backend may know of each other.

Start here. A round of a run, in the order in which these types meet:

    Method.down(server, card)           -> Down      server side, one per client
    Method.adopt(client, state, down)   -> state     on the client: the model is filled
    Method.local(client, state, down)   -> state, Up on the client: it trains
    Method.aggregate(server, Replies)   -> server    server side (or on every node of a graph)
    Method.settle(client, state, down)  -> state     on the client, only if the method has work after the exchange
    Method.predict(client, state, batch)             on the client, after adopt

Everything that crosses between the two sides is a declared dataclass and passes the codec in `wire.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from communis.state import State
from communis.streams import Streams

Modality = str  # a sensor stream: "acc", "csi", ...
Path = str  # a parameter's name in the model: "encoders.acc.conv1.weight"
S, C, D, U = (TypeVar(name) for name in "SCDU")  # server state, client state, Down, Up
V = TypeVar("V", State, Tensor, float)  # what Replies can sum


class CommunisError(Exception):
    """A refusal that names what was found, what was expected and what mends it."""


@dataclass(frozen=True)
class Batch:
    inputs: Mapping[Modality, Tensor]  # (B, channels, ...) float32
    present: Mapping[Modality, Tensor]  # (B,) bool: was this sensor there for this sample?
    target: Tensor  # (B,) int64 classes or counts, or (B, columns) float32; see tasks.py

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True)
class Output:
    features: Mapping[Modality, Tensor]  # (B, d_m) per encoder, zero where the modality is absent
    fused: Tensor  # (B, f)
    embedding: Tensor  # (B, e): the tap that prototypes and contrastive losses use
    prediction: Tensor  # (B, task.outputs)
    extra: Mapping[str, Tensor] = field(default_factory=dict)


class Model(nn.Module):
    """A multimodal network whose parameter names are the library's paths (`models/network.py`)."""

    embedding_size: int
    head_sizes: tuple[int, ...]
    private: nn.ModuleDict  # modules that stay on the client

    def forward(self, batch: Batch) -> Output:
        raise NotImplementedError

    __call__: Callable[[Batch], Output]


class Task(Protocol):
    """What is predicted: output size, loss and scores (`tasks.py`)."""

    @property
    def outputs(self) -> int: ...
    @property
    def classes(self) -> int: ...  # 0 where the target is not a class
    def loss(self, prediction: Tensor, target: Tensor) -> Tensor: ...
    def labels(self, target: Tensor) -> Tensor: ...  # (B,) int64 class of each sample
    def scores(self, prediction: Tensor, target: Tensor) -> Sequence[Score]: ...


@dataclass(frozen=True)
class Score:
    metric: str
    value: float
    label: int = -1  # the class it speaks of; -1: all of them
    support: int = 0  # samples behind the value


class Samples(Protocol):
    """One split of one client's windows."""

    @property
    def target(self) -> Tensor: ...
    def __len__(self) -> int: ...
    def batch(self, indices: Tensor) -> Batch: ...


@dataclass(frozen=True)
class Card:
    """All that the server may know of a client."""

    id: int
    modalities: tuple[Modality, ...]  # sorted
    params: Mapping[Path, tuple[int, ...]]  # the paths it owns, with their shapes
    samples: int  # training windows
    samples_by_modality: Mapping[Modality, int]  # training windows in which the modality is present
    sizes: Mapping[str, int]  # named dimensions of payload tensors: classes, outputs, embedding
    model: str = ""  # architecture, as named in models/zoo.py
    device: str = ""  # device profile


@dataclass(frozen=True)
class Client:
    """A client at work in one round. It never leaves the device; `model` is scratch until `adopt` has filled it."""

    card: Card
    model: Model
    task: Task
    train: Samples
    val: Samples
    test: Samples
    round: int
    streams: Streams
    log: dict[str, float] = field(default_factory=dict)  # diagnostics for the record (training loss, ...); on no wire

    def generator(self, name: str) -> np.random.Generator:
        """This client's random stream of that name in this round."""
        return self.streams.generator(name, self.round, self.card.id)


class FleetView(Protocol):
    """All that the server may know of the fleet."""

    @property
    def cards(self) -> Sequence[Card]: ...
    @property
    def task(self) -> Task: ...
    @property
    def params(self) -> State: ...  # the initial value of every path of the fleet
    def holders(self, path: Path) -> int: ...  # clients that own a path


class Replies(Generic[U]):
    """What the clients of a cohort sent, as an aggregator may see it: key-wise over the clients that hold a key."""

    def __init__(self, received: Sequence[tuple[Card, U]]) -> None:
        self._received = received  # in client order

    def __len__(self) -> int:
        return len(self._received)

    def each(self) -> Sequence[tuple[Card, U]]:
        """Every single message: for methods that cannot do with sums. Refused where only sums may be revealed."""
        return self._received

    def sum(self, pick: Callable[[U], V]) -> V:
        return self._fold(pick, lambda total, value, share: total + value, lambda card: 1.0)

    def mean(self, pick: Callable[[U], V], *, by_samples: bool) -> V:
        """The mean over holders, uniform or by training samples: a running mean, exact for one holder and for equal values."""
        return self._fold(pick, torch.lerp, lambda card: float(card.samples if by_samples else 1))

    def _fold(
        self, pick: Callable[[U], V], join: Callable[[Tensor, Tensor, float], Tensor], weigh: Callable[[Card], float]
    ) -> V:
        totals: dict[str, Tensor] = {}
        weights: dict[str, float] = {}
        value: Any = State()
        for card, up in self._received:
            value, weight = pick(up), weigh(card)
            for key, part in (value if isinstance(value, State) else {"": torch.as_tensor(value)}).items():
                weights[key] = weights.get(key, 0.0) + weight
                totals[key] = join(totals[key], part, weight / weights[key]) if key in totals else part
        if isinstance(value, State):
            return cast(V, State(totals))
        return cast(V, totals[""] if isinstance(value, Tensor) else float(totals[""]))


class Method(Generic[S, C, D, U]):
    """A federated method: hyper-parameters in a frozen dataclass, no state."""

    pools_data: ClassVar[bool] = False  # True: clients hand over raw data and one pooled client trains (centralized)

    def equip(self, model: Model, task: Task) -> None:
        """Adds the modules that the method needs to a model, personal ones under `private`; they are initialised afterwards."""

    def start_server(self, fleet: FleetView) -> S:
        """The state of one aggregator before the first round."""
        raise NotImplementedError

    def start_client(self, client: Client) -> C:
        """The private state of a client before its first round, from its freshly initialised model."""
        raise NotImplementedError

    def down(self, server: S, card: Card) -> D:
        raise NotImplementedError

    def adopt(self, client: Client, state: C, down: D) -> C:
        """Fills every tensor of `client.model` from what was received and what is private."""
        raise NotImplementedError

    def local(self, client: Client, state: C, down: D) -> tuple[C, U]:
        raise NotImplementedError

    def aggregate(self, server: S, ups: Replies[U]) -> S:
        raise NotImplementedError

    def settle(self, client: Client, state: C, down: D) -> C:
        """Work after the exchange, with the new downlink. Overriding it is what makes it happen."""
        raise NotImplementedError

    def predict(self, client: Client, state: C, batch: Batch) -> Tensor:
        return client.model(batch).prediction


class Topology(Protocol):
    """Who hears whom (`topology.py`). The aggregator of a star is SERVER; in a graph every client is one."""

    def aggregators(self, clients: int) -> Sequence[int]: ...
    def aggregator_of(self, client: int) -> int: ...  # whose state the client's downlink comes from
    def hears(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]: ...  # senders, in client order


@dataclass(frozen=True)
class Ask:
    """A piece of work for one client."""

    kind: Literal["train", "settle", "evaluate"]
    client: int
    round: int
    since: int  # the round of the client's last committed private state; -1: none yet
    down: bytes


@dataclass(frozen=True)
class Answer:
    client: int
    up: bytes = b""
    keeps_state: bool = False  # private state of this round was written
    loss: float = float("nan")
    scores: Sequence[tuple[str, str, Score]] = ()  # split, modality subset, score
    failure: str = ""  # why there is no answer


class Backend(Protocol):
    """The one seam to the world: carries asks to clients and brings their answers, in the order of the asks."""

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]: ...
    def commit(self, keep: Mapping[int, int]) -> None: ...  # client -> round of its state; other versions may go
    def close(self) -> None: ...


@dataclass(frozen=True)
class Link:
    """Bytes over one link in one round: `payload` is the arrays alone, `framing` what the encoding adds."""

    sender: int
    receiver: int
    payload: int
    framing: int


@dataclass(frozen=True)
class RoundRecord:
    round: int
    cohort: tuple[int, ...]
    loss: float  # mean training loss over the cohort, by samples
    bytes_down: int
    bytes_up: int
    bytes_framing: int
    seconds: float  # wall time of exchange, training and aggregation
    seconds_evaluation: float = 0.0
    refused: tuple[tuple[int, str], ...] = ()  # client, reason
    scores: Mapping[str, float] = field(default_factory=dict)  # means over clients; empty when not evaluated
