"""The `[fleet]` table of a configuration, and how a fleet is built from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from communis.core import memory
from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.core.streams import Streams
from communis.core.tasks import standardised
from communis.data.recordings.windows import TRAIN, Windows
from communis.fleet import device, newcomers
from communis.fleet.availability import timeline
from communis.fleet.availability.draw import draw
from communis.fleet.availability.dropout import Dropout
from communis.fleet.availability.online import Online
from communis.fleet.availability.outages import Outages
from communis.fleet.availability.presence import IN_TIME
from communis.fleet.availability.roles import Role, cast, client_types
from communis.fleet.availability.suites import Suites
from communis.fleet.availability.trace import Trace
from communis.fleet.external_files import external_files
from communis.fleet.fleet import Fleet, Normalise
from communis.fleet.partition.settings import Partition
from communis.fleet.start import Start
from communis.models.own import Own, named
from communis.models.sglt import Sglt
from communis.models.zoo import ZOO, Architecture, architecture, changed, description

log = logging.getLogger("communis")


@dataclass(frozen=True)
class FleetConfig:
    """The sensors, model, device and availability of every client."""

    models: tuple[str, ...] = ("cnn",)  # architectures (see `communis models`), or networks of
    # your own as "package.module:Class"; several are distributed over the clients by `deal`
    deal: Literal["seed", "size", "device"] = "seed"  # how several models are distributed: drawn
    # by seed; or in equal shares, the first model to the clients with the fewest training windows
    # (size; newcomers, which have none, get it too) or the slowest devices (device)
    embedding: int = 0  # embedding size of all models; 0: the default of the architecture
    weights: str = ""  # file of pretrained weights, for models that need them; "random": untrained
    start: str = ""  # folder of a finished run: models begin with its common model
    sglt: Sglt = field(default_factory=Sglt)  # settings of models on tokens; a setting at its
    # default keeps the value of the architecture
    own: dict[str, Any] = field(default_factory=dict)  # arguments for the constructors of networks
    # of your own; each gets those that it has parameters for
    normalise: Normalise = "client"  # z-scores by training windows of the client or of the fleet
    # Unit in which models predict poses and positions: metres, or standard deviations from the mean
    # over all training windows.
    targets: Literal["metres", "standard"] = "metres"
    roles: tuple[Role, ...] = ()  # groups of clients with given sensors; without roles, suites or
    # types a client has the sensors that occur in its data
    suites: Suites = field(default_factory=Suites)  # sensors drawn for each client
    types: tuple[float, ...] = ()  # shares of clients with one coarse, one dense, all sensors
    type_drop: float = 0.3  # with types: probability that a window of a client with all sensors
    # lacks a modality
    dropout: Dropout = field(default_factory=Dropout)  # sensor dropout in training windows
    dropout_test: Dropout | None = None  # sensor dropout in validation and test windows; not given:
    # the same as in training
    test_draws: int = 1  # number of dropout draws under which validation and test are scored
    trace: str = ""  # file of a saved trace to replay instead of drawing dropout
    online: Online = field(default_factory=Online)  # which clients are reachable in a round
    profiles: str = ""  # TOML file with device profiles in addition to the presets
    public: int = -1  # client whose training windows are public, for methods that need public
    # windows; -1: the first client with all of the fleet's sensors

    def __post_init__(self) -> None:
        self._check_models()
        sources = [bool(self.roles), self.suites != Suites(), bool(self.types)]
        if sum(sources) > 1:
            raise CommunisError(
                "roles, suites and types each define the sensors of the clients: give only one"
            )
        if self.types and (len(self.types) != 3 or min(self.types) < 0 or not any(self.types)):
            raise CommunisError(
                f"types must be three shares, such as [0.4, 0.3, 0.3], got {list(self.types)}"
            )
        if not 0 <= self.type_drop < 1:
            raise CommunisError(f"type_drop must be a probability below 1, got {self.type_drop}")
        if self.trace and (self.dropout.kind != "none" or self.dropout_test):
            raise CommunisError("trace and dropout both define sensor dropout: give only one")
        if self.test_draws < 1:
            raise CommunisError(f"test_draws must be at least 1, got {self.test_draws}")
        if self.test_draws > 1 and self.trace:
            raise CommunisError("test_draws: a saved trace is one draw; set test_draws = 1")

    def _check_models(self) -> None:
        chosen = (*self.models, *(role.model for role in self.roles if role.model))
        own = [name for name in chosen if ":" in name]
        built_in = [name for name in chosen if ":" not in name]
        if not self.models:
            raise CommunisError(f"models: give at least one of {', '.join(ZOO)}")
        if self.embedding < 0:
            raise CommunisError(
                "embedding must be at least 0 (0: the default of the architecture), got "
                f"{self.embedding}"
            )
        for name in built_in:
            if name not in ZOO:
                hint = nearest(name, list(ZOO))
                raise CommunisError(f"models: no architecture {name!r}{hint}; see {', '.join(ZOO)}")
            if self.embedding and ZOO[name].fusion == "attention":
                raise CommunisError(
                    f"embedding = {self.embedding}: the embedding size of {name} follows from its "
                    "features; set 0, or choose a model without attention"
                )
            if self.embedding % 2 and ZOO[name].fusion == "mean":
                raise CommunisError(f"embedding = {self.embedding}: {name} needs an even number")
            kind = self._architecture(name)
            self._require_memory(name, kind)
            kind.check()
        self._check_own(own)
        if self.weights and not any(ZOO[name].pretrained for name in built_in):
            raise CommunisError(
                f"weights: none of the models ({', '.join(chosen)}) uses pretrained weights"
            )
        follows = (ZOO[name].follows for name in built_in)
        unused = {*changed(self.sglt, Sglt())}.difference(*follows)
        if unused:
            users = ", ".join(name for name, kind in ZOO.items() if unused <= {*kind.follows})
            raise CommunisError(
                f"sglt: {', '.join(sorted(unused))} would change nothing in {', '.join(chosen)}; "
                f"leave it out, or choose a model that uses it: {users}"
            )

    def _check_own(self, names: Sequence[str]) -> None:
        """Loads networks of the user, and refuses settings that none of them takes."""
        kinds = [self._described(name) for name in names]
        for setting in self.own:
            if not kinds:
                raise CommunisError(
                    f"own: {setting} would change nothing, because none of the models is of your "
                    "own (package.module:Class): leave it out"
                )
            if not any(kind.accepts(setting) for kind in kinds):
                had = "; ".join(f"{kind.dotted} has {kind.parameters()}" for kind in kinds)
                raise CommunisError(f"own: no constructor has a parameter {setting}: {had}")

    def _described(self, name: str) -> Own:
        return named(name, self.own, self.embedding)

    def _require_memory(self, name: str, kind: Architecture) -> None:
        """Raises an error if four copies of the model (parameters, gradients, message, server)
        exceed the memory. A layer on tokens has twelve square matrices and its random features."""
        width = float(kind.embedding_size)
        sglt = kind.sglt
        numbers = 1024 * width + (4 * width**2 if kind.fusion == "mean" else 0)
        if kind.follows:
            features = sglt.features or width
            numbers = sglt.layers * (12 * width**2 + 6 * features * width + 1000)
            numbers += sglt.operator_rank * width
        memory.require(
            16 * numbers, f"models: {name}", "fleet.embedding, or layers and features in fleet.sglt"
        )

    def make(
        self,
        windows: Windows,
        partition: Partition,
        streams: Streams,
        asked: newcomers.Asked = 0.0,
    ) -> Fleet:
        """Returns the fleet: the partition assigns the windows to clients, this table the rest.
        asked: the clients that take no part in training, by share or by number."""
        requested = max(partition.clients, partition.per_owner)
        if requested > len(windows):
            raise CommunisError(
                f"partition: {requested:,} clients, but there are {len(windows):,} windows in all: "
                "lower partition.clients or per_owner"
            )
        memory.require(
            8.0 * self.test_draws * len(windows) * len(windows.modalities),
            f"fleet.test_draws = {self.test_draws:,}",
            "it, or data.windows",
        )
        client_of = partition.clients_of(windows, streams)
        clients = int(client_of.max()) + 1
        roles = self._cast(windows, client_of, clients, streams)
        suites = [role.suite for role in roles]
        new = newcomers.chosen(asked, windows, client_of, suites, streams)
        complete = windows
        windows, unlabelled = newcomers.without_labels(windows, client_of, new)
        if self.targets == "standard":
            train = windows.target[(windows.split == TRAIN) & (client_of >= 0)]
            task = standardised(windows.task, torch.from_numpy(np.asarray(train)))
            windows = replace(windows, task=task)
        profiles = device.of_fleet([role.device for role in roles], self._measured())
        if self.profiles and not profiles:
            raise CommunisError(
                f"profiles = {self.profiles!r}, but no role names a device: give the roles devices,"
                " or leave profiles out"
            )
        coarse = [role.detail == "coarse" for role in roles]
        devices = [role.device for role in roles]
        outages = self._outages(windows, complete, client_of, suites, roles, streams)
        fleet = Fleet(
            windows,
            suites,
            client_of=client_of,
            streams=streams,
            normalise=self.normalise,
            coarse=coarse if any(coarse) else (),
            devices=devices if any(devices) else (),
            profiles=profiles,
            outages=outages[0] if outages else None,
            redraws=outages[1:],
            online=self.online,
            public=self.public,
            newcomers=new,
            unlabelled=unlabelled,
            names=partition.names_of(windows, client_of),
        )
        role_models = [role.model for role in roles]
        by_size = self.deal == "size" and len(set(self.models)) > 1 and not all(role_models)
        return replace(fleet, models=self._models(fleet, role_models), dealt_by_size=by_size)

    def external_files(self, start: Start | None = None) -> dict[str, Any]:
        """Returns the content of the external files that the fleet uses; see external_files.py.
        start: the models in the folder `self.start`."""
        filled_roles = [role for role in self.roles if role.count]
        names = {role.model for role in filled_roles if role.model}
        if not filled_roles or not all(role.model for role in filled_roles):
            names |= {*self.models}
        devices = [role.device for role in filled_roles]
        models = [self._kind(name) for name in sorted(names)]
        return external_files(devices, self._measured(), models, start)

    def architectures(self) -> dict[str, Architecture | Own]:
        """Returns the architectures of the fleet's models, by the names on clients' cards."""
        names = (*self.models, *(role.model for role in self.roles if role.model))
        kinds = [description(self._kind(name)) for name in dict.fromkeys(names)]
        return {kind.name: kind for kind in kinds}

    def _measured(self) -> Mapping[str, device.DeviceProfile]:
        return device.load(Path(self.profiles)) if self.profiles else {}

    def _kind(self, name: str) -> str | Architecture | Own:
        """Returns the architecture, or its name alone if no setting changes it; or a network of the
        user."""
        if ":" in name:
            return self._described(name)
        kind = self._architecture(name)
        return name if kind == ZOO[name] else kind

    def _architecture(self, name: str) -> Architecture:
        changes: dict[str, Any] = {}
        if ZOO[name].pretrained:
            changes["weights"] = self.weights
        if self.embedding:
            changes["embedding"] = self.embedding
        return architecture(name, **changes).tuned(changed(self.sglt, Sglt()))

    def _cast(
        self, windows: Windows, client_of: Array, clients: int, streams: Streams
    ) -> list[Role]:
        modalities = windows.modalities
        if self.suites != Suites():
            drawn = self.suites.draw(clients, modalities, streams)
            unowned = [m for m in modalities if not any(m in suite for suite in drawn)]
            if unowned:
                log.warning("no client drew %s: no client has it", ", ".join(unowned))
            return [Role(suite, 1) for suite in drawn]
        roles = self.roles
        if not roles and not self.types:
            return [Role(suite, 1) for suite in natural_suites(windows, client_of, clients)]
        if self.types:
            first, second, third = self.types
            roles = client_types(modalities, clients, (first, second, third), self.type_drop)
        return cast(roles, clients, modalities, streams)

    def _models(self, fleet: Fleet, role_models: Sequence[str]) -> list[str | Architecture | Own]:
        """Returns the model of every client, or one for all. A role's model has precedence over
        the model that is dealt; role_models: one per client, empty where the role names none."""
        if len(self.models) == 1 and not any(role_models):
            return [self._kind(self.models[0])]
        if len(self.models) == 1 or self.deal == "seed":
            order = fleet.streams.generator("models").permutation(len(fleet))
            dealt = {client: self.models[i % len(self.models)] for client, i in enumerate(order)}
        elif self.deal == "size":
            # A newcomer has no training windows, and must not change who of the others has few.
            of_newcomers = dict.fromkeys(fleet.newcomers, self.models[0])
            given = [name or of_newcomers.get(i, "") for i, name in enumerate(role_models)]
            dealt = of_newcomers | self._shares(given, fleet.counts[0])
        elif fleet.profiles:
            speeds = [fleet.profiles[name].flops for name in fleet.devices]
            dealt = self._shares(role_models, speeds)
        else:
            raise CommunisError(
                'deal = "device", but no client has a device: give every role of [[fleet.roles]] '
                'one, or choose deal = "size" or "seed"'
            )
        return [self._kind(name or dealt[client]) for client, name in enumerate(role_models)]

    def _shares(self, role_models: Sequence[str], key: Sequence[float] | Array) -> dict[int, str]:
        """Sorts the clients without a model from their role by `key`, then by number, and divides
        them into as many shares as there are models. The first shares are larger by one if the
        shares cannot be equal."""
        without = [client for client, name in enumerate(role_models) if not name]
        order = sorted(without, key=lambda client: key[client])
        shares = zip(self.models, np.array_split(order, len(self.models)), strict=True)
        return {int(client): name for name, share in shares for client in share}

    def _outages(
        self,
        windows: Windows,
        complete: Windows,
        client_of: Array,
        suites: Sequence[tuple[Modality, ...]],
        roles: Sequence[Role],
        streams: Streams,
    ) -> list[Outages]:
        """Returns the outages of all windows, followed by further draws for validation and test.
        The list is empty if nothing drops out. complete: the windows before newcomers lost theirs
        for training; a saved trace covers them."""
        test = self.dropout if self.dropout_test is None else self.dropout_test
        drop = [role.drop for role in roles]
        drawn = self.dropout.kind != "none" or test.kind != "none"
        if not drawn and not self.trace and not any(drop):
            if self.test_draws > 1:
                raise CommunisError(
                    f"test_draws = {self.test_draws}, but there is no dropout to draw: set "
                    "[fleet.dropout], or leave test_draws out"
                )
            return []
        if self.test_draws > 1 and test.kind == "none" and not any(drop):
            raise CommunisError(
                f"test_draws = {self.test_draws}, but nothing drops out of validation and test "
                "windows: set [fleet.dropout_test], or leave test_draws out"
            )
        place = timeline.timeline(windows, client_of)
        seconds = timeline.durations(windows, client_of, place, len(suites))
        dropping = drop if any(drop) else ()
        if self.trace:
            trace = Trace.load(Path(self.trace))
            recorded = timeline.durations(complete, client_of, place, len(suites))
            self._check(trace, windows, recorded)
            return [Outages(place, trace, dropping)]
        if not drawn:
            return [Outages(place, None, dropping, number) for number in range(self.test_draws)]
        single = [m for m in windows.modalities if windows.kinds.get(m, "series") not in IN_TIME]
        rates = {}
        for m in windows.modalities:
            steps = 1 if m in single else windows.inputs[m].shape[-1]
            rates[m] = steps / windows.seconds
        spacing = timeline.spacing(windows, client_of, place)
        outages = []
        for number in range(self.test_draws):
            train = Dropout() if number else self.dropout
            phases = (train, test, test)
            trace = draw(phases, suites, seconds, rates, streams, spacing, single, number)
            outages.append(Outages(place, trace, dropping, number))
        return outages

    def _check(self, trace: Trace, windows: Windows, seconds: Array) -> None:
        if len(trace.seconds) != len(seconds) or trace.modalities != windows.modalities:
            raise CommunisError(
                f"trace {self.trace} is of {len(trace.seconds)} clients with "
                f"{', '.join(trace.modalities)}; this fleet has {len(seconds)} clients with "
                f"{', '.join(windows.modalities)}"
            )
        if not np.allclose(trace.seconds, seconds):
            raise CommunisError(
                f"the timelines of trace {self.trace} have {trace.seconds.sum():.0f} s in all, "
                f"those of this fleet {seconds.sum():.0f} s: the trace was drawn for other windows "
                "or splits"
            )


def natural_suites(windows: Windows, client_of: Array, clients: int) -> list[tuple[Modality, ...]]:
    """Returns the sensors of every client according to the data: those that occur in any of its
    windows. A client without windows has all."""
    used = client_of >= 0
    owned = np.ones((clients, len(windows.modalities)), bool)
    for i, m in enumerate(windows.modalities):
        if m in windows.present:
            seen = np.bincount(client_of[used & windows.present[m]], minlength=clients)
            owned[:, i] = seen > 0
    owned[~owned.any(1)] = True
    return [
        tuple(m for m, own in zip(windows.modalities, row, strict=True) if own) for row in owned
    ]
