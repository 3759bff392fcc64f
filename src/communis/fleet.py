"""Fleet: windows + who owns them + which sensors and model each client has -> cards and clients.

`Fleet` is a small description that can be sent to worker processes. `bind` joins it with a method;
the result makes clients when they are needed and keeps only a few of them in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from communis.core import Card, Client, CommunisError, Method, Modality, Model, Task
from communis.data.recording import Array
from communis.data.samples import TensorSamples, joined, prepared
from communis.data.windows import TEST, TRAIN, VAL, Windows
from communis.models.network import initialise
from communis.models.zoo import Architecture, architecture
from communis.partition.natural import by_owner
from communis.state import State
from communis.streams import Streams

CACHE_BYTES = 32 << 20  # materialised windows kept per process
Splits = tuple[TensorSamples, TensorSamples, TensorSamples]
AnyMethod = Method[Any, Any, Any, Any]


@dataclass(frozen=True)
class Fleet:
    windows: Windows
    suites: Sequence[tuple[Modality, ...]]  # sorted modalities of every client
    models: Sequence[str | Architecture] = ("cnn",)  # one for all, or one per client
    client_of: Array | None = None  # (N,) client of each window, -1: nobody; None: one per owner
    streams: Streams = field(default_factory=Streams)
    normalise: Literal["client", "none"] = "client"  # z-scores from its own training windows
    pooled: bool = False  # only one more client trains, which holds everybody's windows

    def __post_init__(self) -> None:
        if self.client_of is None:
            object.__setattr__(self, "client_of", by_owner(self.windows))
        object.__setattr__(self, "suites", [tuple(suite) for suite in self.suites])
        for suite in dict.fromkeys(self.suites):
            unknown = [m for m in suite if m not in self.windows.inputs]
            if unknown or not suite or list(suite) != sorted(set(suite)):
                raise CommunisError(
                    f"sensors {list(suite)} of a client: expected a sorted choice of "
                    f"{list(self.windows.modalities)}"
                )
        if len(self._client_of) != len(self.windows):
            raise CommunisError(
                f"client_of has {len(self._client_of)} entries for {len(self.windows)} windows"
            )
        clients = int(self._client_of.max(initial=-1)) + 1
        if clients > len(self.suites):
            raise CommunisError(
                f"windows belong to {clients} clients, but sensors are given for {len(self.suites)}"
            )
        if len(self.models) not in (1, len(self.suites)):
            raise CommunisError(
                f"{len(self.models)} models for {len(self.suites)} clients: "
                "give one, or one per client"
            )

    @classmethod
    def of(cls, windows: Windows, seed: int = 0, **changes: Any) -> Fleet:
        """One client per owner of the windows, each with every modality unless `suites` says
        otherwise."""
        clients = len(np.unique(windows.owner))
        changes.setdefault("suites", [windows.modalities] * clients)
        return cls(windows, streams=Streams(seed), **changes)

    @property
    def _client_of(self) -> Array:
        assert self.client_of is not None
        return self.client_of

    def __len__(self) -> int:
        return len(self.suites)

    def pool(self) -> Fleet:
        return replace(self, pooled=True)

    def bind(self, method: AnyMethod, device: str = "cpu") -> BoundFleet:
        return BoundFleet(self, method, torch.device(device))

    @cached_property
    def _rows(self) -> tuple[Array | None, Array]:
        """(order, offsets): client i has rows order[offsets[i]:offsets[i + 1]]; no order if they
        already lie together."""
        client = self._client_of
        sorted_already = bool((np.diff(client) >= 0).all())
        order = None if sorted_already else np.argsort(client, kind="stable")
        ranked = client if order is None else client[order]
        return order, np.searchsorted(ranked, np.arange(len(self) + 1))

    def rows(self, client: int) -> slice | Array:
        order, offsets = self._rows
        here = slice(int(offsets[client]), int(offsets[client + 1]))
        return here if order is None else np.sort(order[here])

    def training_bytes(self) -> dict[int, int]:
        """The size of every client's raw training windows with their targets."""
        sizes = {m: a.itemsize * int(np.prod(a.shape[1:])) for m, a in self.windows.inputs.items()}
        target = self.windows.target.itemsize * int(np.prod(self.windows.target.shape[1:]))
        train = self._client_of[(self.windows.split == TRAIN) & (self._client_of >= 0)]
        counts = np.bincount(train, minlength=len(self))
        return {
            i: int(counts[i]) * (target + sum(sizes[m] for m in suite))
            for i, suite in enumerate(self.suites)
        }


@dataclass(frozen=True)
class _Kit:
    """What the clients of one architecture and one sensor suite have in common."""

    model: Model  # scratch
    initial: State  # parameters and buffers before the first round
    shapes: dict[str, tuple[int, ...]]
    sizes: dict[str, int]
    name: str


class BoundFleet:
    """A fleet at work with one method: what the server may see (cards, initial parameters) and the
    clients themselves."""

    def __init__(self, fleet: Fleet, method: AnyMethod, device: torch.device) -> None:
        self.fleet, self.method, self.device = fleet, method, device
        self._kits: dict[tuple[Architecture, tuple[Modality, ...]], _Kit] = {}
        self._cache: OrderedDict[int, Splits] = OrderedDict()  # least recently used first
        self._cached_bytes = 0

    @property
    def task(self) -> Task:
        return self.fleet.windows.task

    @cached_property
    def trainers(self) -> Sequence[int]:
        """Clients that may be sampled: those with training windows, or the pooled one alone."""
        if self.fleet.pooled:
            return (len(self.fleet),)
        return tuple(card.id for card in self.cards if card.samples)

    @cached_property
    def cards(self) -> Sequence[Card]:
        fleet = self.fleet
        clients, train = len(fleet), fleet.windows.split == TRAIN
        owned = fleet._client_of >= 0
        counts = np.bincount(fleet._client_of[train & owned], minlength=clients)
        by_modality = {
            m: np.bincount(
                fleet._client_of[train & owned & fleet.windows.present[m]], minlength=clients
            )
            if m in fleet.windows.present
            else counts
            for m in fleet.windows.modalities
        }
        cards = [
            self._card(i, suite, int(counts[i]), {m: int(by_modality[m][i]) for m in suite})
            for i, suite in enumerate(fleet.suites)
        ]
        if fleet.pooled:
            union = tuple(sorted({m for suite in fleet.suites for m in suite}))
            windows = {m: sum(c.samples_by_modality.get(m, 0) for c in cards) for m in union}
            cards.append(self._card(clients, union, sum(c.samples for c in cards), windows))
        return cards

    @cached_property
    def params(self) -> State:
        """The initial value of every path that some client owns. An error where clients disagree on
        a path's shape."""
        assert self.cards  # they make the kits
        found: dict[str, torch.Tensor] = {}
        for kit in self._kits.values():
            for path in kit.shapes:
                if path in found and found[path].shape != kit.initial[path].shape:
                    raise CommunisError(
                        f"{type(self.method).__name__} averages parameters, but clients have "
                        f"{path} in shapes {tuple(found[path].shape)} and {kit.shapes[path]}: "
                        "give all clients one model in [fleet] models, or choose a method for "
                        "mixed models (fedproto, local)"
                    )
                found[path] = kit.initial[path]
        return State({path: found[path] for path in sorted(found)})

    def holders(self, path: str) -> int:
        """How many of the clients that train own a path."""
        return sum(path in self.cards[i].params for i in self.trainers)

    def client(self, id: int, round: int, fresh: bool = False) -> Client:
        """The client, with a scratch model; `fresh`: holding its initial parameters and buffers."""
        card = self.cards[id]
        kit = self._kit(self._architecture(id), card.modalities)
        if fresh:
            kit.initial.load_into(kit.model)
        return Client(card, kit.model, self.task, *self._splits(id), round, self.fleet.streams)

    def _card(
        self, id: int, suite: tuple[Modality, ...], samples: int, by_modality: dict[Modality, int]
    ) -> Card:
        kit = self._kit(self._architecture(id), suite)
        return Card(id, suite, kit.shapes, samples, by_modality, kit.sizes, kit.name)

    def _architecture(self, id: int) -> Architecture:
        models = self.fleet.models
        chosen = models[id] if 1 < len(models) > id else models[0]
        return chosen if isinstance(chosen, Architecture) else architecture(chosen)

    def _kit(self, kind: Architecture, suite: tuple[Modality, ...]) -> _Kit:
        if (kind, suite) not in self._kits:
            shapes = {m: self.fleet.windows.inputs[m].shape[1:] for m in suite}
            with self.fleet.streams.torch("build"):  # constructors draw too, before `initialise`
                model: Model = kind.build(shapes, self.task.outputs)
                self.method.equip(model, self.task)
            initialise(model, self.fleet.streams)
            model.to(self.device)
            sizes = {
                "classes": self.task.classes,
                "outputs": self.task.outputs,
                "embedding": model.embedding_size,
            }
            shapes = {path: tuple(p.shape) for path, p in model.by_path[0].items()}
            self._kits[kind, suite] = _Kit(
                model, State.of(model) | State.buffers(model), shapes, sizes, kind.name
            )
        return self._kits[kind, suite]

    def _splits(self, id: int) -> Splits:
        if id not in self._cache:
            pooled = self.fleet.pooled and id == len(self.fleet)
            self._cache[id] = self._pool() if pooled else self._materialise(id)
            self._cached_bytes += sum(samples.nbytes for samples in self._cache[id])
            while len(self._cache) > 1 and self._cached_bytes > CACHE_BYTES:
                _, oldest = self._cache.popitem(last=False)
                self._cached_bytes -= sum(samples.nbytes for samples in oldest)
        self._cache.move_to_end(id)
        return self._cache[id]

    def _materialise(self, id: int) -> Splits:
        windows, rows = self.fleet.windows, self.fleet.rows(id)
        split = windows.split[rows]
        inputs, present = {}, {}
        for m in self.fleet.suites[id]:
            x = np.moveaxis(np.asarray(windows.inputs[m][rows]), 1, -1)
            here = windows.present[m][rows] if m in windows.present else np.ones(len(x), bool)
            arrays = prepared(x, here, split == TRAIN, self.fleet.normalise == "client")
            inputs[m], present[m] = (torch.from_numpy(a).to(self.device) for a in arrays)
        windows.release()
        kind = np.int64 if np.issubdtype(windows.target.dtype, np.integer) else np.float32
        target = torch.from_numpy(np.array(windows.target[rows], kind))
        return _splits(TensorSamples(inputs, present, target.to(self.device)), split)

    def _pool(self) -> Splits:
        parts = [self._materialise(i) for i in range(len(self.fleet))]
        like = {m: x for three in parts for m, x in three[0].inputs.items()}
        train, val, test = (joined([three[s] for three in parts], like) for s in (TRAIN, VAL, TEST))
        return train, val, test


def _splits(samples: TensorSamples, split: Array) -> Splits:
    if bool((split == TRAIN).all()):
        none = torch.zeros(0, dtype=torch.int64)
        return samples, _at(samples, none), _at(samples, none)
    train, val, test = (
        _at(samples, torch.from_numpy(np.flatnonzero(split == s))) for s in (TRAIN, VAL, TEST)
    )
    return train, val, test


def _at(samples: TensorSamples, rows: torch.Tensor) -> TensorSamples:
    return TensorSamples(
        {m: x[rows] for m, x in samples.inputs.items()},
        {m: p[rows] for m, p in samples.present.items()},
        samples.target[rows],
    )
