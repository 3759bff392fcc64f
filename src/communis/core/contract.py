"""The contract: what a method, its clients and its server may know of each other. Start here.

A round, in the order in which these types meet:

    Method.down(server, card)             -> Down       server side, one per client
    Method.adopt(client, state, down)     -> state      on the client: fills the model
    Method.local(client, state, down)     -> state, Up  on the client: trains
    Method.aggregate(server, Replies[Up]) -> server     server side, or on every node of a graph
    Method.prepare(client, state)         -> state      on the client, after adopt, if it is scored
    Method.predict(client, state, batch)  -> Tensor     on the client, after that

Whatever crosses between the two sides is a declared dataclass and passes the codec in `wire.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
from torch import Tensor, nn

from communis.core.state import State
from communis.core.streams import Streams

if TYPE_CHECKING:
    from communis.core.replies import Replies

SERVER = -1  # the aggregator of a star, where clients are numbered from 0
Modality = str  # a sensor stream: "acc", "csi", ...
Path = str  # a parameter's name in the model: "encoders.acc.conv1.weight"
S = TypeVar("S")  # server state
C = TypeVar("C")  # private client state
D = TypeVar("D")  # Down
U = TypeVar("U")  # Up


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


@dataclass(frozen=True)
class Prediction:
    """What a method says of a batch, if it is more than the prediction that is scored."""

    scored: Tensor  # (B, outputs)
    # By name: other predictions (B, outputs), scored as `metric@name`, and measures (B,), whose
    # mean is `mean@name`.
    views: Mapping[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(said: Tensor | Prediction) -> Prediction:
        return Prediction(said) if isinstance(said, Tensor) else said


class Model(nn.Module):
    """A multimodal network whose parameter names are the library's paths (`models/network.py`)."""

    embedding_size: int
    head_sizes: tuple[int, ...]
    shapes: Mapping[Modality, tuple[int, ...]]  # of windows, channels first
    feature_sizes: Mapping[Modality, int]  # of the encoders
    open_to_any: bool  # `join` takes features of modalities that the client does not own
    zero_fill: bool = False  # an absent sensor is fed to its encoder as zeros, not masked behind it
    mark: str = ""  # ends all paths, if paths of another model must not be taken for the same ones
    unimodal: nn.ModuleDict  # modules that a method adds for single modalities, by modality
    private: nn.ModuleDict  # modules that stay on the client

    def forward(self, batch: Batch) -> Output:
        raise NotImplementedError

    def join(
        self, features: Mapping[Modality, Tensor], present: Mapping[Modality, Tensor]
    ) -> Output:
        """The second half of `forward`: from the encoders' features to the prediction."""
        raise NotImplementedError

    def branch(self, modality: Modality) -> nn.Module:
        """A second half for one modality alone, of its own: (B, d_m) features -> (B, outputs)."""
        raise NotImplementedError

    @cached_property
    def by_path(self) -> tuple[dict[Path, nn.Parameter], dict[Path, Tensor]]:
        """Parameters and persistent buffers by path. Looked up once: add no modules afterwards.
        Frozen weights are neither: they belong to the architecture and never travel."""
        held = {path + self.mark: t for path, t in self.state_dict(keep_vars=True).items()}
        named = ((path + self.mark, p) for path, p in self.named_parameters())
        trained = {path: p for path, p in named if p.requires_grad}
        return trained, {path: t for path, t in held.items() if not isinstance(t, nn.Parameter)}

    if TYPE_CHECKING:

        def __call__(self, batch: Batch) -> Output: ...


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
    @property
    def missing(self) -> Mapping[Modality, int]: ...  # windows that lack a sensor, if any do
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
    statistics: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)  # of its BatchNorm
    # layers: means and variances, with their shapes

    @property
    def shapes(self) -> Mapping[Path, tuple[int, ...]]:
        """Of all that a message may hold: parameters and statistics."""
        return {**self.params, **self.statistics} if self.statistics else self.params


@dataclass(frozen=True)
class Public:
    """Windows that everybody has: the training windows of one client."""

    owner: int
    samples: Samples  # with all of the fleet's modalities


@dataclass(frozen=True)
class Client:
    """A client at work in one round. It never leaves the device; `model` is scratch until `adopt`
    has filled it."""

    card: Card
    model: Model
    task: Task
    train: Samples
    val: Samples
    test: Samples
    round: int
    streams: Streams
    log: dict[str, float] = field(default_factory=dict)  # diagnostics; on no wire
    timed: str = ""  # how the device clock reckons what it computes; empty: nobody asks
    memory: dict[str, Tensor] = field(default_factory=dict)  # of its optimiser, if it is carried on
    public: Public | None = None  # for methods that need `public_windows`

    def generator(self, name: str) -> np.random.Generator:
        """This client's random stream of that name in this round."""
        return self.streams.generator(name, self.round, self.card.id)


@dataclass(frozen=True)
class TrainingCost:
    """What a device takes to train, in seconds per window."""

    forward: float  # the forward pass
    group: float  # the backward pass, for every group that trains (groups.py)


class FleetView(Protocol):
    """All that the server may know of the fleet."""

    @property
    def cards(self) -> Sequence[Card]: ...
    @property
    def task(self) -> Task: ...
    @property
    def params(self) -> State: ...  # the initial value of every path of the fleet
    @property
    def statistics(self) -> State: ...  # the same of BatchNorm's means and variances
    @property
    def streams(self) -> Streams: ...  # the server's randomness
    @property
    def noised(self) -> bool: ...  # what clients send arrives with the noise of privacy
    def holders(self, path: Path) -> int: ...  # clients that own a path
    def pace(self, card: Card) -> TrainingCost: ...  # of its device; without profiles all are alike


def modality_of(path: Path) -> Modality:
    """The modality of an encoder's path or of a method's unimodal module; empty if none."""
    first, _, rest = path.partition(".")
    return rest.partition(".")[0] if first in ("encoders", "unimodal") else ""


@dataclass(frozen=True)
class Sent:
    """The paths that a client sends."""

    paths: Sequence[Path]
    optional: Collection[Path] = ()  # those of them that a message may lack


class DownMessage:
    """A `Down` derives from it if it names directions that privacy may spare."""

    def subspace(self, method: Any) -> Mapping[Path, Tensor]:
        """For tensors of an Up, by path, an orthonormal basis (rows, r) of the directions that
        matter, known from what everybody received."""
        return {}


@dataclass(frozen=True)
class Mechanism:
    """The privacy that a method's own paper describes (`privacy.mode = "paper"`)."""

    field: str  # of Up and Down: what is noised
    symbol: str  # its name in the paper
    mend: str  # what to set where a fleet's models have nothing of it


class UpMessage:
    """An `Up` derives from it if a well-formed message may still be one that no honest client
    sends, or if its paper noises it."""

    mechanism: ClassVar[Mechanism | None] = None

    def check(self, card: Card, method: Any) -> None:
        """Raises CommunisError if the message cannot be true; its client is then refused."""

    def repaired(self) -> Self:
        """What privacy has noised, brought back to what `check` takes for true, by looking at
        nothing but the message. A true message keeps its bits."""
        return self


@dataclass(frozen=True)
class Needs:
    """What a method needs of the fleet and of the exchange, with its settings as they are."""

    raw_data: bool = False  # clients hand over their windows, and one pooled client trains
    public_windows: bool = False  # everybody has the training windows of one client
    all_branches: bool = False  # clients have branches for all of the fleet's sensors, owned or not
    same_model: bool = False  # clients share with clients of the same model only
    exchange: bool = True  # False: nobody hears anybody; a client's aggregator hears it alone
    # Which models of clients go together: of the same shapes; any with embeddings of one size; any.
    models: Literal["alike", "one_embedding", "any"] = "alike"


class Method(Generic[S, C, D, U]):
    """A federated method: hyper-parameters in a frozen dataclass, no state."""

    @property
    def needs(self) -> Needs:
        """What the run has to provide. It may depend on the method's settings."""
        return Needs()

    def equip(self, model: Model, task: Task) -> None:
        """Adds the modules that the method needs to a model, personal ones under `private`; they
        are initialised afterwards."""

    def start_server(self, fleet: FleetView) -> S:
        """The state of one aggregator before the first round."""
        raise NotImplementedError

    def start_client(self, client: Client) -> C:
        """The private state of a client before its first round, from its freshly initialised
        model."""
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

    def sends(self, card: Card) -> Sent:
        """The paths of every State in a client's Up: no others may be in it."""
        return Sent([path for path in card.params if not path.startswith("private.")])

    def prepare(self, client: Client, state: C) -> C:
        """Work before predictions are asked for, such as fine-tuning; nothing of it is kept."""
        return state

    def predict(self, client: Client, state: C, batch: Batch) -> Tensor | Prediction:
        """What is scored, (B, outputs); with a `Prediction`, what else is recorded."""
        return client.model(batch).prediction

    def common(self, server: S) -> Mapping[str, Tensor]:
        """What an aggregator has learned for all, such as the common model: it is compared between
        the nodes of a graph, and with and without liars. Keys that one lacks are not compared."""
        return {}

    def notes(self, server: S, node: int) -> Mapping[str, float]:
        """What is worth writing down of an aggregator's state after a round; node: the client whose
        it is in a graph, -1 for a server."""
        return {}


class AfterExchange(Method[S, C, D, U]):
    """A method whose clients work once more in a round, with what the exchange brought: it derives
    from `AfterExchange[Server, Private, Down, Up]` in place of `Method[...]`."""

    def down_after(self, server: S, card: Card) -> D:
        """What clients get after the exchange. What they keep of it need not be in the next
        `down`."""
        return self.down(server, card)

    def after_exchange(self, client: Client, state: C, down: D) -> C:
        """On the client, after `adopt`: the work itself."""
        raise NotImplementedError
