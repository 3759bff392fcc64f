"""Fleet: the windows, the client of each window, and the sensors, model and device of each client.

A fleet is a small description that can be sent to worker processes; `samples` turns the windows of
a client into tensors on demand. `FleetClients` joins a fleet with a method.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn

from communis.core.arrays import Array
from communis.core.contract import Method, Modality
from communis.core.errors import CommunisError
from communis.core.samples import (
    Scale,
    TensorSamples,
    filled,
    filled_cloud,
    finite,
    joined,
    measured,
    summed,
)
from communis.core.streams import Streams
from communis.core.tasks import scaled
from communis.data.recordings.recording import Kind
from communis.data.recordings.windows import TEST, TRAIN, UNUSED, VAL, Windows
from communis.fleet.attack import Attack
from communis.fleet.availability.detail import coarse_shape, coarsen
from communis.fleet.availability.online import Online
from communis.fleet.availability.outages import Outages
from communis.fleet.device import ClockConfig, DeviceProfile
from communis.fleet.external_files import external_files
from communis.fleet.partition.natural import by_owner, client_names
from communis.fleet.start import Start
from communis.models.own import Own
from communis.models.zoo import Architecture

Normalise = Literal["client", "fleet", "none"]
Splits = tuple[TensorSamples, TensorSamples, TensorSamples]
AnyMethod = Method[Any, Any, Any, Any]


@dataclass(frozen=True)
class Fleet:
    windows: Windows
    suites: Sequence[tuple[Modality, ...]]  # sorted modalities of every client
    # One for all, or one per client: names, descriptions, or classes of your own.
    models: Sequence[str | Architecture | Own | type[nn.Module]] = ("cnn",)
    client_of: Array | None = None  # (N,) client of each window, -1: none; None: one per owner
    streams: Streams = field(default_factory=Streams)
    normalise: Normalise = "client"  # z-scores by the client's own training windows, or the fleet's
    pooled: bool = False  # only one additional client trains, which holds the windows of all
    coarse: Sequence[bool] = ()  # per client: its sensors have less detail; empty: none do
    devices: Sequence[str] = ()  # per client: name of a device profile
    profiles: Mapping[str, DeviceProfile] = field(default_factory=dict)  # beside the presets
    clock: ClockConfig = field(default_factory=ClockConfig)  # how device time is computed
    outages: Outages | None = None  # sensor data missing from the windows
    redraws: Sequence[Outages] = ()  # validation and test are also scored under these draws
    online: Online = field(default_factory=Online)  # which clients are reachable in a round
    attack: Attack = field(default_factory=Attack)  # which clients attack, and how
    public: int = -1  # client whose training windows are public; -1: see public.py
    dealt_by_size: bool = False  # models were dealt by the number of training windows
    newcomers: tuple[int, ...] = ()  # clients that are scored, but take no part in training
    # (N,) bool: windows of newcomers that would have been training windows; None: there are none
    unlabelled: Array | None = None
    names: Sequence[str] = ()  # per client: its own name, such as the subject's; empty: not known
    start: Start | None = None  # what models begin with; None: random values

    def __post_init__(self) -> None:
        if self.client_of is None:
            object.__setattr__(self, "client_of", by_owner(self.windows))
            names = client_names(self.windows, "subject", self.clients_of)
            object.__setattr__(self, "names", names)
        object.__setattr__(self, "suites", [tuple(suite) for suite in self.suites])
        for suite in dict.fromkeys(self.suites):
            if not suite:
                raise CommunisError(
                    f"client {list(self.suites).index(())} has no sensor: give it at least one of "
                    f"{list(self.windows.modalities)}, or leave the client and its windows out"
                )
            unknown = [m for m in suite if m not in self.windows.inputs]
            if unknown or list(suite) != sorted(set(suite)):
                raise CommunisError(
                    f"sensors {list(suite)} of a client: expected a sorted choice of "
                    f"{list(self.windows.modalities)}"
                )
        if len(self.clients_of) != len(self.windows):
            raise CommunisError(
                f"client_of has {len(self.clients_of)} entries for {len(self.windows)} windows"
            )
        clients = int(self.clients_of.max(initial=-1)) + 1
        if clients > len(self.suites):
            raise CommunisError(
                f"windows belong to {clients} clients, but sensors are given for "
                f"{len(self.suites)} clients"
            )
        known = (str, Architecture, Own)
        if not all(isinstance(kind, known) for kind in self.models):
            models = [kind if isinstance(kind, known) else Own(kind) for kind in self.models]
            object.__setattr__(self, "models", models)
        if len(self.models) not in (1, len(self.suites)):
            raise CommunisError(
                f"{len(self.models)} models for {len(self.suites)} clients: "
                "give one, or one per client"
            )
        self.attack.check(self.suites, self.windows.task)
        for name in ("coarse", "devices"):
            if len(getattr(self, name)) not in (0, len(self.suites)):
                raise CommunisError(f"{name}: give one per client, or none at all")

    @classmethod
    def of(cls, windows: Windows, seed: int = 0, **changes: Any) -> Fleet:
        """Returns a fleet with one client per owner of the windows. Each client has every modality
        unless `suites` is given."""
        clients = len(np.unique(windows.owner))
        changes.setdefault("suites", [windows.modalities] * clients)
        return cls(windows, streams=Streams(seed), **changes)

    @property
    def clients_of(self) -> Array:
        """(N,) the client of each window; -1: none."""
        assert self.client_of is not None
        return self.client_of

    def __len__(self) -> int:
        return len(self.suites)

    @property
    def chosen(self) -> Sequence[str | Architecture | Own]:
        """The models, with classes of the user described."""
        return cast(Sequence[str | Architecture | Own], self.models)

    def called(self, client: int) -> str:
        """Returns what pages call a client: its own name, or its number."""
        own = self.names[client] if client < len(self.names) else ""
        return own or f"client {client}"

    def pool(self) -> Fleet:
        """Returns the fleet with one additional client that holds the windows of all clients, in
        full detail."""
        return replace(self, pooled=True, coarse=())

    @cached_property
    def digest(self) -> str:
        """Identifies the fleet: a run can only be continued with the fleet it began with."""
        windows = self.windows
        outages = self.outages
        parts = (self.normalise, list(self.coarse), self.online, list(self.suites))
        digest = hashlib.sha256(repr(parts).encode())
        for values in (windows.target, windows.split, self.clients_of):
            digest.update(np.ascontiguousarray(values).tobytes())
        sampled = [0, len(windows) // 2, len(windows) - 1]
        for m in windows.modalities:
            digest.update(np.ascontiguousarray(windows.inputs[m][sampled]).tobytes())
        if external := external_files(self.devices, self.profiles, self.chosen, self.start):
            digest.update(repr((list(self.devices), external, self.clock)).encode())
        if scaled(windows.task):
            digest.update(repr(windows.task).encode())
        if self.newcomers:
            digest.update(repr(self.newcomers).encode())
        if self.attack.attackers or self.public >= 0:
            digest.update(repr((self.attack, self.public)).encode())
        if outages:
            digest.update(repr(list(outages.drop)).encode())
            digest.update(outages.trace.digest().encode() if outages.trace else b"")
        if self.redraws:
            digest.update(repr(len(self.redraws)).encode())
        return digest.hexdigest()

    @cached_property
    def _rows(self) -> tuple[Array | None, Array]:
        """(order, offsets): client i has rows order[offsets[i]:offsets[i + 1]]. The order is None
        if the rows are already sorted by client."""
        client = self.clients_of
        sorted_already = bool((np.diff(client) >= 0).all())
        order = None if sorted_already else np.argsort(client, kind="stable")
        ranked = client if order is None else client[order]
        return order, np.searchsorted(ranked, np.arange(len(self) + 1))

    def rows(self, client: int) -> Array:
        """Returns the sorted row numbers of a client's windows."""
        order, offsets = self._rows
        first, last = int(offsets[client]), int(offsets[client + 1])
        return np.arange(first, last) if order is None else np.sort(order[first:last])

    def training_bytes(self) -> dict[int, int]:
        """Returns the bytes of the training windows of every client that takes part, with their
        targets."""
        sizes = {m: a.itemsize * int(np.prod(a.shape[1:])) for m, a in self.windows.inputs.items()}
        target = self.windows.target.itemsize * int(np.prod(self.windows.target.shape[1:]))
        samples, by_modality = self.counts
        total = {}
        for i, suite in enumerate(self.suites):
            if i in self.newcomers:
                continue
            inputs = sum(sizes[m] * int(by_modality[m][i]) for m in suite)
            total[i] = target * int(samples[i]) + inputs
        return total

    def shapes(self, client: int) -> dict[Modality, tuple[int, ...]]:
        """Returns the shape of a window for each modality of the client. The client number
        `len(self)` has all modalities."""
        if client == len(self):
            return {m: self.windows.inputs[m].shape[1:] for m in self.union}
        shapes = {m: self.windows.inputs[m].shape[1:] for m in self.suites[client]}
        if self.coarse and self.coarse[client]:
            return {m: coarse_shape(shape, self._kind(m)) for m, shape in shapes.items()}
        return shapes

    @property
    def union(self) -> tuple[Modality, ...]:
        return tuple(sorted({m for suite in self.suites for m in suite}))

    @cached_property
    def counts(self) -> tuple[Array, dict[Modality, Array]]:
        """(clients,) training windows with at least one modality, and those with each modality."""
        client = self.clients_of
        train = (self.windows.split == TRAIN) & (client >= 0)
        flags = self._flags
        sensed = np.any(list(flags.values()), axis=0) & train
        by_modality = {
            m: np.bincount(client[sensed & flags[m]], minlength=len(self))
            for m in self.windows.modalities
        }
        return np.bincount(client[sensed], minlength=len(self)), by_modality

    @property
    def borrowed(self) -> list[Modality]:
        """With normalise = "client": the modalities of which some client has validation or test
        windows but no training windows. They are normalised by the fleet's training windows."""
        if self.normalise != "client":
            return []
        _, by_modality = self.counts
        client = self.clients_of
        held_out = (client >= 0) & np.isin(self.windows.split, (VAL, TEST))
        own = (client >= 0) & self._scaling(np.arange(len(client)))
        modalities = []
        for m, trained in by_modality.items():
            scored = np.bincount(client[held_out & self._flags[m]], minlength=len(self))
            scaling = np.bincount(client[own & self._flags[m]], minlength=len(self))
            if trained.any() and (scored[scaling == 0] > 0).any():
                modalities.append(m)
        return modalities

    def _scaling(self, rows: Array) -> Array:
        """Returns (n,) bool: which of these windows the client's own scale is computed from. Those
        of a newcomer need no labels for it."""
        scaling: Array = self.windows.split[rows] == TRAIN
        return scaling if self.unlabelled is None else scaling | self.unlabelled[rows]

    def samples(self, client: int, whole: bool = False) -> Splits:
        """Returns a client's windows as tensors. Missing values are zero, the rest is normalised.
        Training windows without any modality are left out. `whole`: with all of the fleet's
        sensors as they were recorded, whether the client owns them or not."""
        rows, sensed, scales = self._normalised(client, whole)
        train, val, test = self._tensors(rows, sensed, scales)
        vals, tests = [val], [test]
        for outages in () if whole else self.redraws:
            held_out = rows[self.windows.split[rows] != TRAIN]
            struck = self._struck(client, held_out, outages)
            sensed = {m: self._measured(client, m, held_out, *struck[m]) for m in struck}
            _, val, test = self._tensors(held_out, sensed, scales)
            vals.append(val)
            tests.append(test)
        self.windows.release()
        if len(vals) > 1:
            val, test = joined(vals, train.inputs), joined(tests, train.inputs)
        return train, val, test

    def scales(self, client: int) -> dict[Modality, Scale]:
        """Returns the scale by which each modality of a client is normalised; empty if none is."""
        _, _, scales = self._normalised(client)
        self.windows.release()
        return {m: scale for m, scale in scales.items() if scale is not None}

    def common_scales(self) -> dict[Modality, Scale]:
        """Returns the scale of each modality over the training windows of all clients; empty if
        none is normalised."""
        if self.normalise == "none":
            return {}
        scales = {m: self._fleet_scale(m) for m in self.union}
        return {m: scale for m, scale in scales.items() if scale is not None}

    def test_rows(self, client: int) -> Array:
        """Returns the rows of a client's test windows, once for every draw of the outages."""
        rows = self.rows(client)
        test = rows[self.windows.split[rows] == TEST]
        return np.tile(test, 1 + len(self.redraws))

    def unlabelled_samples(self, client: int) -> TensorSamples:
        """Returns the windows that a newcomer has recorded before it is scored, with targets of
        zero: nobody has labelled them."""
        rows, sensed, scales = self._normalised(client)
        own = self._scaling(rows)
        samples, _, _ = self._tensors(rows, sensed, scales, np.where(own, TRAIN, UNUSED))
        self.windows.release()
        return replace(samples, target=torch.zeros_like(samples.target))

    def _normalised(
        self, client: int, whole: bool = False
    ) -> tuple[Array, dict[Modality, tuple[Array, Array]], dict[Modality, Scale | None]]:
        """Returns a client's rows, what was measured in them, and the scale of every modality."""
        rows = self.rows(client)
        struck = self._recorded(rows, self.union) if whole else self._struck(client, rows)
        sensed = {m: self._measured(client, m, rows, *struck[m], whole) for m in struck}
        own = self._scaling(rows)
        scales = {m: self._scale(m, x, own & here) for m, (x, here) in sensed.items()}
        return rows, sensed, scales

    def _measured(
        self,
        client: int,
        m: Modality,
        rows: Array,
        there: Array | None,
        flags: Array,
        whole: bool = False,
    ) -> tuple[Array, Array]:
        """Returns the values of a modality in these windows, channels last, and which of the
        windows have it."""
        x = self._sensed(m, rows, there)
        if self.coarse and self.coarse[client] and not whole:
            x = coarsen(x, self._kind(m))
        return finite(np.moveaxis(x, 1, -1), flags)

    def _tensors(
        self,
        rows: Array,
        sensed: Mapping[Modality, tuple[Array, Array]],
        scales: Mapping[Modality, Scale | None],
        split: Array | None = None,
    ) -> Splits:
        """Returns the measured values of these windows, normalised and by split: their own, unless
        another one is given."""
        split = self.windows.split[rows] if split is None else split
        inputs, present = {}, {}
        for m, (raw, here) in sensed.items():
            scale = scales[m]
            x = scale.apply(raw) if scale else raw
            inputs[m] = filled_cloud(x, here) if self._kind(m) == "points" else filled(x, here)
            present[m] = here
        kept = np.any(list(present.values()), axis=0) | (split != TRAIN)
        kind = np.int64 if np.issubdtype(self.windows.target.dtype, np.integer) else np.float32
        all_kept = kept.all()
        samples = TensorSamples(
            {m: torch.from_numpy(x if all_kept else x[kept]) for m, x in inputs.items()},
            {m: torch.from_numpy(p[kept]) for m, p in present.items()},
            torch.from_numpy(np.array(self.windows.target[rows[kept]], kind)),
        )
        train, val, test = (
            samples.at(np.flatnonzero(split[kept] == s)) for s in (TRAIN, VAL, TEST)
        )
        return train, val, test

    def all_samples(self) -> Splits:
        """Returns the windows of all clients, one client after the other."""
        parts = [self.samples(i) for i in range(len(self))]
        like = {m: x for splits in parts for m, x in splits[0].inputs.items()}
        train, val, test = (
            joined([splits[s] for splits in parts], like) for s in (TRAIN, VAL, TEST)
        )
        return train, val, test

    def _struck(
        self, client: int, rows: Array, redraw: Outages | None = None
    ) -> dict[Modality, tuple[Array | None, Array]]:
        """Returns, for each modality, which samples are present (None: all) and which windows have
        the modality. `redraw`: a further draw of the outages, used instead of the first one."""
        suite = self.suites[client]
        outages = redraw or self.outages
        if outages is None:
            return self._recorded(rows, suite)
        return dict(outages.strike(self.windows, rows, client, suite, self.streams))

    def _recorded(
        self, rows: Array, suite: Sequence[Modality]
    ) -> dict[Modality, tuple[Array | None, Array]]:
        flags = self.windows.present
        everything = np.ones(len(rows), bool)
        return {m: (None, flags[m][rows] if m in flags else everything) for m in suite}

    @cached_property
    def _flags(self) -> dict[Modality, Array]:
        """(N,) bool per modality: the window has it, and its client owns the sensor."""
        if self.outages is not None:
            return self._struck_flags()
        flags = {}
        for m in self.windows.modalities:
            owners = np.array([m in suite for suite in self.suites])
            owned = owners[self.clients_of]
            recorded = self.windows.present.get(m)
            flags[m] = owned if recorded is None else recorded & owned
        return flags

    def _struck_flags(self) -> dict[Modality, Array]:
        """(N,) bool per modality: the window has it, after outages."""
        flags = {m: np.zeros(len(self.windows), bool) for m in self.windows.modalities}
        for i in range(len(self)):
            rows = self.rows(i)
            for m, (_, present) in self._struck(i, rows).items():
                flags[m][rows] = present
        return flags

    def _sensed(self, m: Modality, rows: Array, there: Array | None) -> Array:
        """Returns the windows as recorded, NaN where the sensor dropped out."""
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        contiguous = last - first == len(rows)  # a slice is memory-mapped, an index copies
        x = np.asarray(
            self.windows.inputs[m][first:last] if contiguous else self.windows.inputs[m][rows]
        )
        if there is None or there.ndim == 1 or there.all():
            return x
        return np.where(there.reshape(len(x), *(1,) * (x.ndim - 2), -1), x, np.float32(np.nan))

    def _kind(self, m: Modality) -> Kind:
        return self.windows.kinds.get(m, "series")

    def _scale(self, m: Modality, x: Array, trained: Array) -> Scale | None:
        """Returns the scale of those of a client's windows that are `trained`; that of the fleet if
        it is configured or if the client has no such windows."""
        if self.normalise == "none":
            return None
        own = measured(x[trained]) if self.normalise == "client" else None
        return own or self._fleet_scale(m)

    def _fleet_scale(self, m: Modality) -> Scale | None:
        """Returns the scale over the training windows of all clients that own the modality."""
        if m not in self._scales:
            self._scales[m] = summed(self._trained(m))
            self.windows.release()
        return self._scales[m]

    def _trained(self, m: Modality) -> Iterator[Array]:
        """Yields the training windows of each client that owns the modality."""
        for i, suite in enumerate(self.suites):
            if m in suite:
                rows = self.rows(i)
                there, here = self._struck(i, rows)[m]
                yield self._sensed(m, rows, there)[here & (self.windows.split[rows] == TRAIN)]

    @cached_property
    def _scales(self) -> dict[Modality, Scale | None]:
        return {}
