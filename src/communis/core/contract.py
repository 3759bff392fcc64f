"""The contract defines what a method, its clients and its server may know of each other. The page
to start with is docs/contract.md.

A round, in the order in which these types meet:

    Method.down(server, card)             -> Down       server side, one per client
    Method.adopt(client, state, down)     -> state      on the client: fills the model
    Method.local(client, state, down)     -> state, Up  on the client: trains
    Method.aggregate(server, Replies[Up]) -> server     server side, or on every node of a graph
    Method.prepare(client, state)         -> state      on the client, after adopt, if it is scored
    Method.predict(client, state, batch)  -> Tensor     on the client, after that

Every message between the two sides is a declared dataclass and passes the codec in
`exchange/wire.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
from torch import Tensor, nn

from communis.core import names
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.core.streams import Streams

if TYPE_CHECKING:
    from communis.core.replies import Replies

SERVER = names.SERVER
Modality = names.Modality
Path = names.Path
S = TypeVar("S")  # server state
C = TypeVar("C")  # private client state
D = TypeVar("D")  # Down
U = TypeVar("U")  # Up


@dataclass(frozen=True)
class Batch:
    inputs: Mapping[Modality, Tensor]  # (B, channels, ...) float32
    present: Mapping[Modality, Tensor]  # (B,) bool: whether the sample has this modality
    target: Tensor  # (B,) int64 classes or counts, or (B, columns) float32; see tasks.py

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True)
class Output:
    features: Mapping[Modality, Tensor]  # (B, d_m) per encoder, zero where the modality is absent
    fused: Tensor  # (B, f)
    embedding: Tensor  # (B, e): the layer that prototypes and contrastive losses use
    prediction: Tensor  # (B, task.outputs)
    extra: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """The result of `predict` for a method that records more than the scored prediction."""

    scored: Tensor  # (B, outputs)
    # By name: other predictions (B, outputs), scored as `metric@name`, and measures (B,), whose
    # mean is `mean@name`.
    views: Mapping[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(predicted: Tensor | Prediction) -> Prediction:
        return Prediction(predicted) if isinstance(predicted, Tensor) else predicted


class Model(nn.Module):
    """A multimodal network. The names of its parameters are paths (`models/network.py`), or `paths`
    leads from the names to the paths. docs/start/own-network.md shows how to write one."""

    # Beginnings of names -> beginnings of paths, such as {"towers": "encoders"}; the longest
    # beginning counts.
    paths: Mapping[str, Path] = MappingProxyType({})
    embedding_size: int
    head_sizes: tuple[int, ...]
    shapes: Mapping[Modality, tuple[int, ...]]  # window shapes, channels first
    feature_sizes: Mapping[Modality, int]  # output sizes of the encoders
    open_to_any: bool  # `join` accepts features of modalities that the client does not own
    zero_fill: bool = False  # the encoder of an absent sensor gets zeros; else its output is masked
    mark: str = ""  # suffix of all paths, which keeps the paths of different models apart
    unimodal: nn.ModuleDict  # modules that a method adds for single modalities, by modality
    private: nn.ModuleDict  # modules that stay on the client
    started: Collection[nn.Module] = ()  # modules that keep the values of their constructors

    def forward(self, batch: Batch) -> Output:
        raise NotImplementedError

    def join(
        self, features: Mapping[Modality, Tensor], present: Mapping[Modality, Tensor]
    ) -> Output:
        """Computes the second half of `forward`: from the encoders' features to the prediction."""
        raise CommunisError(self._lacks("join(features, present)"))

    def branch(self, modality: Modality) -> nn.Module:
        """A new module that predicts from one modality: (B, d_m) features -> (B, outputs)."""
        raise CommunisError(self._lacks("branch(modality)"))

    def _lacks(self, function: str) -> str:
        return (
            f"this method needs {function} of a model, and {type(self).__name__} has none: "
            "add it as in docs/start/own-network.md, or choose another method"
        )

    def path_of(self, name: str) -> Path:
        """The path of a module, parameter or buffer, without the mark."""
        beginnings = [
            begin for begin in self.paths if name == begin or name.startswith(f"{begin}.")
        ]
        if not beginnings:
            return name
        longest = max(beginnings, key=len)
        return self.paths[longest] + name[len(longest) :]

    @cached_property
    def by_path(self) -> tuple[dict[Path, nn.Parameter], dict[Path, Tensor]]:
        """Parameters and persistent buffers by path. The result is cached: add no modules
        afterwards. Frozen weights are in neither mapping: they belong to the architecture and are
        never sent."""
        parameters: dict[Path, nn.Parameter] = {}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                parameters[self.path_of(name) + self.mark] = parameter
        buffers: dict[Path, Tensor] = {}
        for name, tensor in self.state_dict(keep_vars=True).items():
            if not isinstance(tensor, nn.Parameter):
                buffers[self.path_of(name) + self.mark] = tensor
        return parameters, buffers

    if TYPE_CHECKING:

        def __call__(self, batch: Batch) -> Output: ...


class Task(Protocol):
    """The prediction task: output size, loss and scores (`tasks.py`)."""

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
    label: int = -1  # the class that is scored; -1: all classes
    support: int = 0  # number of samples behind the value


class Samples(Protocol):
    """One split of one client's windows."""

    @property
    def target(self) -> Tensor: ...
    @property
    def missing(self) -> Mapping[Modality, int]: ...  # number of windows that lack each modality
    def __len__(self) -> int: ...
    def batch(self, indices: Tensor) -> Batch: ...


@dataclass(frozen=True)
class Card:
    """All that the server may know of a client."""

    id: int
    modalities: tuple[Modality, ...]  # sorted
    params: Mapping[Path, tuple[int, ...]]  # shapes of the parameters that the client owns
    samples: int  # number of training windows
    samples_by_modality: Mapping[Modality, int]  # training windows in which the modality is present
    sizes: Mapping[str, int]  # named dimensions of payload tensors: classes, outputs, embedding
    model: str = ""  # architecture, as named in models/zoo.py
    device: str = ""  # device profile
    # Shapes of the means and variances of the client's BatchNorm layers.
    statistics: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)
    newcomer: bool = False  # takes no part in training, and is only scored

    @property
    def shapes(self) -> Mapping[Path, tuple[int, ...]]:
        """Shapes of all tensors that a message may hold: parameters and statistics."""
        return {**self.params, **self.statistics} if self.statistics else self.params


@dataclass(frozen=True)
class Public:
    """Public windows, which all clients hold: the training windows of one client."""

    owner: int
    samples: Samples  # with all of the fleet's modalities


@dataclass(frozen=True)
class Trained:
    """The result of local training."""

    steps: int
    loss: float  # mean over all windows of all steps; NaN without steps


@dataclass(frozen=True)
class Client:
    """A client in one round. It never leaves the device. The content of `model` is undefined until
    `adopt` has filled it."""

    card: Card
    model: Model
    task: Task
    train: Samples
    val: Samples
    test: Samples
    round: int
    streams: Streams
    log: dict[str, float] = field(default_factory=dict)  # diagnostics; on no wire
    timed: str = ""  # how the device clock measures computation; empty: it does not
    memory: dict[str, Tensor] = field(default_factory=dict)  # optimiser state kept between rounds
    public: Public | None = None  # for methods that need `public_windows`
    # Of a newcomer: what it recorded before it is scored, with targets of zero. It has no training
    # windows.
    unlabelled: Samples | None = None
    # The result of the local training, if it was done together with that of other clients before
    # `local` is called: `model` is then trained already.
    trained: Trained | None = None

    def generator(self, name: str) -> np.random.Generator:
        """The client's random stream of this name in this round."""
        return self.streams.generator(name, self.round, self.card.id)


@dataclass(frozen=True)
class TrainingCost:
    """The training time of a device, in seconds per window."""

    forward: float  # of the forward pass
    group: float  # of the backward pass, for each group that is trained (groups.py)


class FleetView(Protocol):
    """All that the server may know of the fleet."""

    @property
    def cards(self) -> Sequence[Card]: ...
    @property
    def task(self) -> Task: ...
    @property
    def params(self) -> State: ...  # the initial value of every path of the fleet
    @property
    def statistics(self) -> State: ...  # the initial means and variances of BatchNorm layers
    @property
    def streams(self) -> Streams: ...  # the server's random streams
    @property
    def noised(self) -> bool: ...  # messages of clients carry privacy noise
    def holders(self, path: Path) -> int: ...  # number of clients that own a path
    def pace(self, card: Card) -> TrainingCost: ...  # of the device; equal without device profiles


def modality_of(path: Path) -> Modality:
    """The modality of a path of an encoder or of a unimodal module; empty for other paths."""
    first, _, rest = path.partition(".")
    return rest.partition(".")[0] if first in ("encoders", "unimodal") else ""


@dataclass(frozen=True)
class Sent:
    """The paths that a client sends."""

    paths: Sequence[Path]
    optional: Collection[Path] = ()  # the paths among them that a message may lack


class DownMessage:
    """Base class of a `Down` that restricts privacy noise to a subspace."""

    def subspace(self, method: Any) -> Mapping[Path, Tensor]:
        """An orthonormal basis (rows, r) of the subspace that matters, for tensors of an `Up` by
        path. It depends only on values that all clients received."""
        return {}


@dataclass(frozen=True)
class Mechanism:
    """The privacy mechanism that a method's paper describes (`privacy.mode = "paper"`)."""

    field: str  # the field of Up and Down that is noised
    symbol: str  # its name in the paper
    mend: str  # the setting to change if the fleet's models have no such parameters


class UpMessage:
    """Base class of an `Up` that no honest client may send although it is well-formed, or that has
    a privacy mechanism of its own."""

    mechanism: ClassVar[Mechanism | None] = None

    def check(self, card: Card, method: Any) -> None:
        """Raises CommunisError if no honest client can send this message. The run then refuses the
        client."""

    def repaired(self) -> Self:
        """The noised message, projected onto what `check` accepts. It is a function of the message
        alone, and a valid message keeps its bits."""
        return self


@dataclass(frozen=True)
class Needs:
    """What a method with its present settings needs of the fleet and of the exchange."""

    raw_data: bool = False  # clients hand over their windows, and one pooled client trains
    public_windows: bool = False  # all clients hold the training windows of one client
    all_branches: bool = False  # clients have branches for all of the fleet's sensors, owned or not
    # Clients are averaged only with clients of the same model. The setting for it, if there is one,
    # is called `by_model`.
    same_model: bool = False
    exchange: bool = True  # False: clients do not communicate; each has an aggregator of its own
    # Client models that may be mixed: alike: equal shapes only; one_embedding: any models with
    # embeddings of one size; any: any models.
    models: Literal["alike", "one_embedding", "any"] = "alike"


class Method(Generic[S, C, D, U]):
    """A federated method: a frozen dataclass of hyper-parameters without state."""

    @property
    def needs(self) -> Needs:
        """The requirements that the run has to meet. They may depend on the method's settings."""
        return Needs()

    def equip(self, model: Model, task: Task) -> None:
        """Adds the method's modules to a model, personal ones under `private`. The run initialises
        them afterwards."""

    def start_server(self, fleet: FleetView) -> S:
        """The state of one aggregator before the first round."""
        raise NotImplementedError

    def start_client(self, client: Client) -> C:
        """The private state of a client before its first round. The client's model is freshly
        initialised."""
        raise NotImplementedError

    def down(self, server: S, card: Card) -> D:
        """The message from the aggregator to one client."""
        raise NotImplementedError

    def adopt(self, client: Client, state: C, down: D) -> C:
        """Fills every tensor of `client.model` from the received message and the private state."""
        raise NotImplementedError

    def local(self, client: Client, state: C, down: D) -> tuple[C, U]:
        """Trains `client.model` and returns the new private state and the client's message."""
        raise NotImplementedError

    def aggregate(self, server: S, ups: Replies[U]) -> S:
        """The state of the aggregator after the clients' messages."""
        raise NotImplementedError

    def sends(self, card: Card) -> Sent:
        """The paths that every State in a client's `Up` holds; other paths are refused."""
        return Sent([path for path in card.params if not path.startswith("private.")])

    def prepare(self, client: Client, state: C) -> C:
        """Prepares the client for predictions, for example by fine-tuning. The run discards the
        changes after scoring."""
        return state

    def predict(self, client: Client, state: C, batch: Batch) -> Tensor | Prediction:
        """The prediction that is scored, (B, outputs); a `Prediction` records other values too."""
        return client.model(batch).prediction

    def needs_to_predict(self, card: Card) -> Collection[Path]:
        """The paths that a newcomer must have received to be scored: `adopt`, `prepare` and
        `predict` follow, with a private state that has never seen a training window. If some of
        them stay with the clients, the method has no common model for newcomers."""
        return card.shapes

    def common(self, server: S) -> Mapping[str, Tensor]:
        """The part of an aggregator's state that is meant for all clients, such as the common
        model. The run compares it between the nodes of a graph, and with and without Byzantine
        clients. Keys that one side lacks are not compared."""
        return {}

    def notes(self, server: S, node: int) -> Mapping[str, float]:
        """Diagnostics of an aggregator's state after a round. node: the aggregator's client in a
        graph; -1 for a server."""
        return {}


class AfterExchange(Method[S, C, D, U]):
    """A method whose clients compute a second time in each round, after the exchange. It derives
    from `AfterExchange[Server, Private, Down, Up]` in place of `Method[...]`."""

    def down_after(self, server: S, card: Card) -> D:
        """The message to one client after the exchange. The next `down` need not repeat what the
        client keeps of it."""
        return self.down(server, card)

    def after_exchange(self, client: Client, state: C, down: D) -> C:
        """The client's computation after the exchange. `adopt` has been called before."""
        raise NotImplementedError
