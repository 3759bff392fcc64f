"""The clients of a fleet under one method: cards for the server, and clients on demand."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from communis.core import requirements
from communis.core.contract import (
    Card,
    Client,
    Modality,
    Model,
    Path,
    Public,
    Task,
    TrainingCost,
)
from communis.core.errors import CommunisError
from communis.core.groups import groups
from communis.core.samples import joined
from communis.core.state import State
from communis.core.streams import Streams
from communis.data.recordings.windows import TRAIN
from communis.fleet.device import Clock, FullModel, of_fleet
from communis.fleet.external_files import external_files
from communis.fleet.fleet import AnyMethod, Fleet, Splits
from communis.fleet.public import public_client
from communis.fleet.window_format import WindowFormat
from communis.models.flops import Meter, StepFlops, forward_flops
from communis.models.network import initialise
from communis.models.own import Own
from communis.models.zoo import Architecture, description

_Shapes = tuple[tuple[Modality, tuple[int, ...]], ...]
CACHE_BYTES = 32 << 20  # materialised windows kept per process, on a CPU


@dataclass(frozen=True)
class _Kit:
    """The model shared by all clients of one architecture, sensor suite and detail."""

    model: Model  # scratch: its parameters are overwritten for each client
    initial: State  # parameters and buffers before the first round
    shapes: dict[str, tuple[int, ...]]
    statistics: dict[str, tuple[int, ...]]
    sizes: dict[str, int]
    name: str
    groups: int  # of the architecture alone, without what the method adds in `equip`


class FleetClients:
    """The clients of a fleet under one method: what the server may see (cards, initial parameters)
    and the clients themselves."""

    noised = False  # the run adds privacy; see exchange/privacy

    def __init__(self, fleet: Fleet, method: AnyMethod, device: str = "cpu") -> None:
        self.fleet = fleet
        self.method = method
        self.device = torch.device(device)
        self._kits: dict[tuple[Architecture | Own, _Shapes], _Kit] = {}
        self._kit_like: dict[tuple[Any, ...], _Kit] = {}  # by model, suite and detail
        self._cache: OrderedDict[int, Splits] = OrderedDict()  # least recently used first
        self._cached_bytes = 0
        self._costs: dict[Model, StepFlops] = {}
        # Paths that begin with random values although the fleet has a start, by architecture.
        self._new_paths: dict[str, set[Path]] = {}

    def __reduce__(self) -> tuple[type[FleetClients], tuple[Fleet, AnyMethod, str]]:
        """Pickles without models: a process with its own memory builds them again."""
        return FleetClients, (self.fleet, self.method, str(self.device))

    def on(self, device: str) -> FleetClients:
        """Returns the same clients with models on another device."""
        same = self.device == torch.device(device)
        return self if same else FleetClients(self.fleet, self.method, device)

    @property
    def streams(self) -> Streams:
        return self.fleet.streams

    @property
    def task(self) -> Task:
        return self.fleet.windows.task

    @cached_property
    def trainers(self) -> Sequence[int]:
        """The clients that may be sampled: those with training windows, or only the pooled one."""
        if self.fleet.pooled:
            return (len(self.fleet),)
        return tuple(card.id for card in self.cards if card.samples)

    @cached_property
    def cards(self) -> Sequence[Card]:
        fleet = self.fleet
        counts, by_modality = fleet.counts
        cards = [
            self._card(i, suite, int(counts[i]), {m: int(by_modality[m][i]) for m in suite})
            for i, suite in enumerate(fleet.suites)
        ]
        if fleet.pooled:
            windows = {m: sum(c.samples_by_modality.get(m, 0) for c in cards) for m in fleet.union}
            samples = sum(c.samples for c in cards)
            cards.append(self._card(len(fleet), fleet.union, samples, windows))
        return cards

    @cached_property
    def params(self) -> State:
        """The initial value of every path that some client owns. Raises an error if clients have
        different shapes for one path."""
        initial: dict[str, torch.Tensor] = {}
        names: dict[str, str] = {}  # of the models
        for kit in self._own_kits():
            for path in kit.shapes:
                if path in initial:
                    shape = tuple(initial[path].shape)
                    if names[path] == kit.name and ":" in kit.name:
                        _refuse_by_sensors(kit.name, path, shape, kit.shapes[path])
                    requirements.same_shapes(self.method, path, shape, kit.shapes[path])
                initial[path] = kit.initial[path]
                names[path] = kit.name
        return State({path: initial[path] for path in sorted(initial)})

    @cached_property
    def statistics(self) -> State:
        """The initial value of every statistic that some client has."""
        initial: dict[str, torch.Tensor] = {}
        for kit in self._own_kits():
            initial |= kit.initial.pick(kit.statistics)
        return State({path: initial[path] for path in sorted(initial)})

    def _own_kits(self) -> list[_Kit]:
        """Returns the distinct kits of the clients, without those of `whole`, which no client
        has."""
        distinct: dict[int, _Kit] = {}
        for card in self.cards:
            kit = self._kit(card.id)
            distinct[id(kit)] = kit
        return list(distinct.values())

    def describe(self) -> dict[str, Any]:
        """Returns the description of the fleet that a run's folder keeps."""
        coarse = self.fleet.coarse
        names = self.fleet.names
        return {
            "labels": list(self.fleet.windows.labels),
            "format": WindowFormat.of(self.fleet.windows).written(),
            "notes": self.notes,
            "pooled": self.fleet.pooled,
            "brought": self._brought(),
            "attackers": list(self.fleet.attack.attackers),
            "public": public_client(self.fleet) if self.method.needs.public_windows else None,
            "clients": [
                {
                    "id": card.id,
                    "sensors": card.modalities,
                    "windows": card.samples,
                    "windows_by_sensor": dict(card.samples_by_modality),
                    "model": card.model,
                    "parameters": _numbers(card, ""),
                    "private": _numbers(card, "private."),
                    "device": card.device,
                    "detail": "coarse" if card.id < len(coarse) and coarse[card.id] else "dense",
                    **({"name": names[card.id]} if card.id < len(names) else {}),
                }
                for card in self.cards
            ],
        }

    def _brought(self) -> dict[str, Any]:
        fleet = self.fleet
        return external_files(fleet.devices, fleet.profiles, fleet.chosen, fleet.start)

    @property
    def notes(self) -> list[str]:
        """What readers of the scores must know of the data and of what models begin with."""
        notes = list(self.fleet.windows.notes)
        start = self.fleet.start
        if start is None:
            return notes
        caution = ""
        if start.same_data:
            caution += (
                ", which learned from the same dataset: scores are fair only if it did not train "
                "on what are test windows here"
            )
        if list(start.labels) != list(self.fleet.windows.labels):
            caution += f"; its classes were {', '.join(start.labels)}"
        for name in dict.fromkeys(card.model for card in self.cards):
            new = sorted(self._new_paths[name])
            rest = f"; new are {', '.join(new)}" if new else ""
            notes.append(f"{name} begins with the common model of {start.run}{rest}{caution}")
        return notes

    def holders(self, path: str) -> int:
        """Returns the number of trainers that own a path."""
        return sum(path in self.cards[i].params for i in self.trainers)

    @cached_property
    def clock(self) -> Clock | None:
        """The clock of the clients' devices; None if the devices are not known, or if one pooled
        client trains for all."""
        profiles = of_fleet(self.fleet.devices, self.fleet.profiles)
        if not profiles or self.fleet.pooled:
            return None
        shapes = self.fleet.shapes(len(self.fleet))
        kits = {card.model: self._kit(card.id, whole=True) for card in self.cards}
        models = {
            name: FullModel(forward_flops(kit.model, shapes), kit.groups)
            for name, kit in kits.items()
        }
        return Clock(self.fleet.clock, profiles, models)

    def pace(self, card: Card) -> TrainingCost:
        """Returns the time that a client's device needs to train. Without profiles all devices are
        equal: time is counted in forward passes of the model with all sensors."""
        if self.clock is None:
            return TrainingCost(1.0, 2.0 / self._kit(card.id, whole=True).groups)
        cost = self._cost(card) if self.fleet.clock.mode == "exact" else StepFlops(0.0, 0.0)
        return self.clock.pace(card.device, cost, self._kit(card.id).groups, card.model)

    def _cost(self, card: Card) -> StepFlops:
        """Returns the FLOPs per window of training all parameters of the client."""
        model = self._kit(card.id).model
        if model not in self._costs:
            client = self.client(card.id, 0, fresh=True)
            with self.fleet.streams.torch("clock"):
                self._costs[model] = Meter().per_window(
                    model,
                    lambda output, batch: self.task.loss(output.prediction, batch.target),
                    client.train,
                    key="",
                )
        return self._costs[model]

    def client(self, id: int, round: int, fresh: bool = False) -> Client:
        """Returns the client with a scratch model. `fresh`: the model holds its initial parameters
        and buffers."""
        kit = self._kit(id)
        if fresh:
            kit.initial.load_into(kit.model)
        train, val, test = self._splits(id)
        new = self.cards[id].newcomer
        client = Client(
            self.cards[id],
            kit.model,
            self.task,
            train.at(np.arange(0)) if new else train,
            val,
            test,
            round,
            self.fleet.streams,
            timed=self.fleet.clock.mode if self.fleet.devices else "",
            public=self._public() if self.method.needs.public_windows else None,
            unlabelled=train if new else None,
        )
        return self.fleet.attack.spoiled(client)

    @cached_property
    def class_counts(self) -> torch.Tensor:
        """(classes,) training windows of each class, over all clients."""
        windows = self.fleet.windows
        train = (windows.split == TRAIN) & (self.fleet.clients_of >= 0)
        return torch.bincount(torch.from_numpy(windows.classes[train]), minlength=self.task.classes)

    @cached_property
    def trained_paths(self) -> frozenset[str]:
        """The paths that some trainer owns."""
        distinct = {id(params): params for i in self.trainers for params in [self.cards[i].params]}
        return frozenset(path for params in distinct.values() for path in params)

    def _public(self) -> Public:
        owner = public_client(self.fleet)
        return Public(owner, self._splits(owner)[0])

    def whole(self, id: int) -> Card:
        """Returns the card that the client would have with all of the fleet's sensors."""
        kit = self._kit(id, whole=True)
        return replace(
            self.cards[id],
            modalities=self.fleet.union,
            params=kit.shapes,
            sizes=kit.sizes,
            statistics=kit.statistics,
        )

    def whole_client(self, id: int, round: int) -> Client:
        """Returns the client as it would be with all of the fleet's sensors, which only a
        simulation can provide. Its model holds the initial parameters."""
        kit = self._kit(id, whole=True)
        kit.initial.load_into(kit.model)
        train, val, test = (x.to(self.device) for x in self.fleet.samples(id, whole=True))
        streams = self.fleet.streams
        return Client(self.whole(id), kit.model, self.task, train, val, test, round, streams)

    def _card(
        self, id: int, suite: tuple[Modality, ...], samples: int, by_modality: dict[Modality, int]
    ) -> Card:
        kit = self._kit(id)
        device = self.fleet.devices[id] if id < len(self.fleet.devices) else ""
        return Card(
            id,
            suite,
            kit.shapes,
            samples,
            by_modality,
            kit.sizes,
            kit.name,
            device,
            kit.statistics,
            id in self.fleet.newcomers,
        )

    def _chosen(self, id: int) -> str | Architecture | Own:
        """Returns the architecture of a client as the fleet names it."""
        models = self.fleet.chosen
        one_each = len(models) > 1 and id < len(models)  # the pooled client has the first model
        return models[id] if one_each else models[0]

    def _kit(self, id: int, whole: bool = False) -> _Kit:
        """Returns the kit of a client. It is looked up by what the fleet says of the client: to
        work out architecture and shapes each time would dominate the start of large fleets."""
        fleet = self.fleet
        like: tuple[Any, ...] = (self._chosen(id),)
        if not whole and id < len(fleet):
            like = (*like, fleet.suites[id], bool(fleet.coarse and fleet.coarse[id]))
        if like not in self._kit_like:
            self._kit_like[like] = self._made_kit(id, whole)
        return self._kit_like[like]

    def _made_kit(self, id: int, whole: bool) -> _Kit:
        needs = self.method.needs
        everything = whole or needs.all_branches
        if needs.all_branches and any(self.fleet.coarse):
            raise CommunisError("whole = true needs clients with sensors of one detail")
        kind = description(self._chosen(id))
        shapes = self.fleet.shapes(len(self.fleet) if everything else id)
        key = kind, tuple(shapes.items())
        like = None
        if isinstance(kind, Own) and kind.whole and not everything:
            like = self._kit(id, whole=True)
        if key not in self._kits:
            mixed = len(set(self.fleet.models)) > 1
            form = WindowFormat.of(self.fleet.windows)
            model, bare = equipped(kind, shapes, form, self.method, mixed, self.fleet.streams)
            initialise(model, self.fleet.streams)
            if like is not None:
                _start_alike(model, like)
            if self.fleet.start is not None:
                new = self.fleet.start.fill(model, kind.name)
                self._new_paths.setdefault(kind.name, set()).update(new)
            model.to(self.device)
            sizes = sizes_of(model, self.task, self.fleet.union)
            paths = {path: tuple(p.shape) for path, p in model.by_path[0].items()}
            buffers = model.by_path[1].items()
            # Integer counters affect no output, so they stay with their client.
            statistics = {path: tuple(t.shape) for path, t in buffers if t.is_floating_point()}
            self._kits[key] = _Kit(
                model,
                State.all(model),
                paths,
                statistics,
                sizes,
                kind.name,
                len(groups(bare)),
            )
        return self._kits[key]

    def _splits(self, id: int) -> Splits:
        if id not in self._cache:
            is_pooled = self.fleet.pooled and id == len(self.fleet)
            splits = self.fleet.all_samples() if is_pooled else self.fleet.samples(id)
            if id in self.fleet.newcomers:  # in place of training windows, which it has none of
                splits = (self.fleet.unlabelled_samples(id), *splits[1:])
            if self.method.needs.all_branches:
                train, val, test = (joined([samples], self._no_windows) for samples in splits)
                splits = train, val, test
            train, val, test = (samples.to(self.device) for samples in splits)
            self._cache[id] = train, val, test
            self._cached_bytes += sum(samples.nbytes for samples in self._cache[id])
            while len(self._cache) > 1 and self._cached_bytes > self._room:
                _, oldest = self._cache.popitem(last=False)
                self._cached_bytes -= sum(samples.nbytes for samples in oldest)
        self._cache.move_to_end(id)
        return self._cache[id]

    @cached_property
    def _room(self) -> int:
        """Bytes of windows that are kept. On an accelerator these are half of its free memory, so
        that windows move there once and not in every round."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            return max(CACHE_BYTES, free // 2)
        if self.device.type == "mps":
            return max(CACHE_BYTES, torch.mps.recommended_max_memory() // 2)
        return CACHE_BYTES

    @cached_property
    def _no_windows(self) -> dict[Modality, torch.Tensor]:
        """Empty tensors in the layout of samples, for every modality of the fleet."""
        shapes = self.fleet.shapes(len(self.fleet))
        return {m: torch.empty(0, *shape[1:], shape[0]) for m, shape in shapes.items()}


def equipped(
    kind: Architecture | Own,
    shapes: Mapping[Modality, tuple[int, ...]],
    form: WindowFormat,
    method: AnyMethod,
    mixed: bool,
    streams: Streams,
) -> tuple[Model, list[Path]]:
    """Returns a model for windows of these shapes with the modules that the method adds, and the
    paths of the parameters that it had before. Its parameters are not initialised. mixed: clients
    of the fleet have different models."""
    with streams.torch("build"):  # constructors draw too, before `initialise`
        model: Model = kind.build(shapes, form.task.outputs, form.kinds)
        named = model.named_parameters()
        bare = [model.path_of(name) for name, p in named if p.requires_grad]
        method.equip(model, form.task)
    if isinstance(kind, Own):
        kind.check_equipped(model)
    if method.needs.same_model and mixed:
        model.mark = "@" + re.sub(r"[^\w-]+", "_", kind.name)
    return model, bare


def sizes_of(model: Model, task: Task, union: Sequence[Modality]) -> dict[str, int]:
    """Returns the named dimensions of payload tensors. union: all of the fleet's modalities."""
    return {
        "classes": task.classes,
        "outputs": task.outputs,
        "embedding": model.embedding_size,
        "modalities": len(union),
        "features": max(model.feature_sizes.values()),
    }


def _refuse_by_sensors(model: str, path: str, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Refuses a network of the user whose shared parameters depend on a client's sensors."""
    if one != other:
        raise CommunisError(
            f"models: {model}: {path} has shape {one} for some clients and {other} for others, "
            "whose sensors or windows differ, so they cannot be averaged: let its shape not depend "
            "on them (a mean over time, features added up instead of concatenated), or choose a "
            f"method for mixed models ({requirements.mixed()})"
        )


def _start_alike(model: Model, whole: _Kit) -> None:
    """Gives a model of the user the initial values of the one with all of the fleet's sensors,
    where both have a tensor. Its own values depend on its sensors, because the constructor draws
    them in order."""
    own = State.all(model)
    same = {
        path: tensor
        for path, tensor in whole.initial.items()
        if path in own and own[path].shape == tensor.shape
    }
    State(same).load_into(model)
    fix_alike(model, whole.model)


@torch.no_grad()
def fix_alike(model: Model, whole: Model) -> None:
    """Gives a model of the user the frozen weights and buffers of the one with all of the fleet's
    sensors that are in no state, and so never change."""
    in_state = {id(t) for tensors in model.by_path for t in tensors.values()}
    others = _tensors(whole)
    for name, tensor in _tensors(model).items():
        other = others.get(name)
        if id(tensor) not in in_state and other is not None and other.shape == tensor.shape:
            tensor.copy_(other)


def _tensors(model: Model) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _numbers(card: Card, prefix: str) -> int:
    """Returns the number of parameters of the paths with this prefix."""
    return sum(math.prod(shape) for path, shape in card.params.items() if path.startswith(prefix))
