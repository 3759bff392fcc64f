"""Fleet: windows + who owns them + which sensors, model and device each client has.

A fleet is a small description that can be sent to worker processes; the windows of a client become
tensors when it is asked for them. `bind` joins it with a method.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

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
from communis.data.recordings.windows import TEST, TRAIN, VAL, Windows
from communis.fleet.attack import Attack
from communis.fleet.availability.detail import coarse_shape, coarsen
from communis.fleet.availability.online import Online
from communis.fleet.availability.outages import Outages
from communis.fleet.device import ClockConfig, DeviceProfile
from communis.fleet.external_files import brought
from communis.fleet.partition.natural import by_owner
from communis.models.zoo import Architecture

Normalise = Literal["client", "fleet", "none"]
Splits = tuple[TensorSamples, TensorSamples, TensorSamples]
AnyMethod = Method[Any, Any, Any, Any]


@dataclass(frozen=True)
class Fleet:
    windows: Windows
    suites: Sequence[tuple[Modality, ...]]  # sorted modalities of every client
    models: Sequence[str | Architecture] = ("cnn",)  # one for all, or one per client
    client_of: Array | None = None  # (N,) client of each window, -1: nobody; None: one per owner
    streams: Streams = field(default_factory=Streams)
    normalise: Normalise = "client"  # z-scores by own training windows, or by the whole fleet's
    pooled: bool = False  # only one more client trains, which holds everybody's windows
    coarse: Sequence[bool] = ()  # per client: its sensors see less detail; none do if empty
    devices: Sequence[str] = ()  # per client: name of a device profile
    profiles: Mapping[str, DeviceProfile] = field(default_factory=dict)  # beside the known ones
    clock: ClockConfig = field(default_factory=ClockConfig)  # how devices' time is reckoned
    outages: Outages | None = None  # what drops out of the windows
    redraws: Sequence[Outages] = ()  # validation and test are also scored under these draws
    online: Online = field(default_factory=Online)  # who can be reached in a round
    attack: Attack = field(default_factory=Attack)  # who lies, and how
    public: int = -1  # whose training windows everybody has, if a method needs such; see public.py
    dealt_by_size: bool = False  # who has which model follows from how many windows clients have

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
        if len(self.clients_of) != len(self.windows):
            raise CommunisError(
                f"client_of has {len(self.clients_of)} entries for {len(self.windows)} windows"
            )
        clients = int(self.clients_of.max(initial=-1)) + 1
        if clients > len(self.suites):
            raise CommunisError(
                f"windows belong to {clients} clients, but sensors are given for {len(self.suites)}"
            )
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
        """One client per owner of the windows, each with every modality unless `suites` says
        otherwise."""
        clients = len(np.unique(windows.owner))
        changes.setdefault("suites", [windows.modalities] * clients)
        return cls(windows, streams=Streams(seed), **changes)

    @property
    def clients_of(self) -> Array:
        """(N,) the client of each window, -1: nobody."""
        assert self.client_of is not None
        return self.client_of

    def __len__(self) -> int:
        return len(self.suites)

    def pool(self) -> Fleet:
        """With one more client that holds everybody's windows, all in full detail."""
        return replace(self, pooled=True, coarse=())

    @cached_property
    def digest(self) -> str:
        """What tells one fleet from another: a run is only continued with its own."""
        windows, outages = self.windows, self.outages
        parts = (self.normalise, list(self.coarse), self.online, list(self.suites))
        found = hashlib.sha256(repr(parts).encode())
        for values in (windows.target, windows.split, self.clients_of):
            found.update(np.ascontiguousarray(values).tobytes())
        some = [0, len(windows) // 2, len(windows) - 1]
        for m in windows.modalities:
            found.update(np.ascontiguousarray(windows.inputs[m][some]).tobytes())
        if other := brought(self.devices, self.profiles, self.models):
            found.update(repr((list(self.devices), other, self.clock)).encode())
        if scaled(windows.task):
            found.update(repr(windows.task).encode())
        if self.attack.attackers or self.public >= 0:
            found.update(repr((self.attack, self.public)).encode())
        if outages:
            found.update(repr(list(outages.drop)).encode())
            found.update(outages.trace.digest().encode() if outages.trace else b"")
        if self.redraws:
            found.update(repr(len(self.redraws)).encode())
        return found.hexdigest()

    @cached_property
    def _rows(self) -> tuple[Array | None, Array]:
        """(order, offsets): client i has rows order[offsets[i]:offsets[i + 1]]; no order if they
        already lie together."""
        client = self.clients_of
        sorted_already = bool((np.diff(client) >= 0).all())
        order = None if sorted_already else np.argsort(client, kind="stable")
        ranked = client if order is None else client[order]
        return order, np.searchsorted(ranked, np.arange(len(self) + 1))

    def rows(self, client: int) -> Array:
        """Where a client's windows lie, in order."""
        order, offsets = self._rows
        first, last = int(offsets[client]), int(offsets[client + 1])
        return np.arange(first, last) if order is None else np.sort(order[first:last])

    def training_bytes(self) -> dict[int, int]:
        """The size of what every client's sensors have seen for training, with its targets."""
        sizes = {m: a.itemsize * int(np.prod(a.shape[1:])) for m, a in self.windows.inputs.items()}
        target = self.windows.target.itemsize * int(np.prod(self.windows.target.shape[1:]))
        samples, by_modality = self.counts
        return {
            i: target * int(samples[i]) + sum(sizes[m] * int(by_modality[m][i]) for m in suite)
            for i, suite in enumerate(self.suites)
        }

    def shapes(self, client: int) -> dict[Modality, tuple[int, ...]]:
        """The shape of a window of each of its modalities; the client after the last holds all."""
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
        """(clients,) training windows that a sensor has seen, and those that have a modality."""
        windows, clients, owner = self.windows, len(self), self.clients_of
        train = (windows.split == TRAIN) & (owner >= 0)
        flags = self._flags
        some = np.any(list(flags.values()), axis=0) & train
        by_modality = {
            m: np.bincount(owner[some & flags[m]], minlength=clients) for m in windows.modalities
        }
        return np.bincount(owner[some], minlength=clients), by_modality

    @property
    def borrowed(self) -> list[Modality]:
        """With normalise = "client": the modalities of which some client has windows but none to
        train on, so that these are normalised by the training windows of others."""
        if self.normalise != "client":
            return []
        _, by_modality = self.counts
        owner = self.clients_of
        later = (owner >= 0) & np.isin(self.windows.split, (VAL, TEST))
        found = []
        for m, trained in by_modality.items():
            judged = np.bincount(owner[later & self._flags[m]], minlength=len(self))
            if trained.any() and (judged[trained == 0] > 0).any():
                found.append(m)
        return found

    def samples(self, client: int, whole: bool = False) -> Splits:
        """A client's windows as tensors: what dropped out is zero, the rest is normalised.
        Training windows in which none of its sensors was at work are left out. `whole`: as all of
        the fleet's sensors recorded them, whether the client owns these or not."""
        rows = self.rows(client)
        struck = self._recorded(rows, self.union) if whole else self._struck(client, rows)
        sensed = {m: self._measured(client, m, rows, *struck[m], whole) for m in struck}
        train_rows = self.windows.split[rows] == TRAIN
        scales = {m: self._scale(m, x[train_rows & here]) for m, (x, here) in sensed.items()}
        train, val, test = self._tensors(rows, sensed, scales)
        vals, tests = [val], [test]
        for outages in () if whole else self.redraws:
            held_out = rows[~train_rows]
            struck = self._struck(client, held_out, outages)
            sensed = {m: self._measured(client, m, held_out, *struck[m]) for m in struck}
            _, val, test = self._tensors(held_out, sensed, scales)
            vals.append(val)
            tests.append(test)
        self.windows.release()
        if len(vals) > 1:
            val, test = joined(vals, train.inputs), joined(tests, train.inputs)
        return train, val, test

    def _measured(
        self,
        client: int,
        m: Modality,
        rows: Array,
        there: Array | None,
        flags: Array,
        whole: bool = False,
    ) -> tuple[Array, Array]:
        """What a sensor measured in these windows, channels last, and which windows have it."""
        x = self._sensed(m, rows, there)
        if self.coarse and self.coarse[client] and not whole:
            x = coarsen(x, self._kind(m))
        return finite(np.moveaxis(x, 1, -1), flags)

    def _tensors(
        self,
        rows: Array,
        sensed: Mapping[Modality, tuple[Array, Array]],
        scales: Mapping[Modality, Scale | None],
    ) -> Splits:
        """What was measured in these windows, normalised and by split."""
        split = self.windows.split[rows]
        inputs, present = {}, {}
        for m, (raw, here) in sensed.items():
            scale = scales[m]
            x = scale.apply(raw) if scale else raw
            inputs[m] = filled_cloud(x, here) if self._kind(m) == "points" else filled(x, here)
            present[m] = here
        kept = np.any(list(present.values()), axis=0) | (split != TRAIN)
        kind = np.int64 if np.issubdtype(self.windows.target.dtype, np.integer) else np.float32
        every = kept.all()
        found = TensorSamples(
            {m: torch.from_numpy(x if every else x[kept]) for m, x in inputs.items()},
            {m: torch.from_numpy(p[kept]) for m, p in present.items()},
            torch.from_numpy(np.array(self.windows.target[rows[kept]], kind)),
        )
        train, val, test = (found.at(np.flatnonzero(split[kept] == s)) for s in (TRAIN, VAL, TEST))
        return train, val, test

    def all_samples(self) -> Splits:
        """Everybody's windows side by side."""
        parts = [self.samples(i) for i in range(len(self))]
        like = {m: x for three in parts for m, x in three[0].inputs.items()}
        train, val, test = (joined([three[s] for three in parts], like) for s in (TRAIN, VAL, TEST))
        return train, val, test

    def _struck(
        self, client: int, rows: Array, redraw: Outages | None = None
    ) -> dict[Modality, tuple[Array | None, Array]]:
        """Per modality: which samples are there (None: all), and which windows have it; by a
        further draw of what drops out if one is given."""
        suite, outages = self.suites[client], redraw or self.outages
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
        """(N,) bool per modality: the window has it, and its client the sensor."""
        if self.outages is not None:
            return self._struck_flags()
        windows, owner = self.windows, self.clients_of
        owned = {m: np.array([m in suite for suite in self.suites]) for m in windows.modalities}
        return {
            m: windows.present[m] & owned[m][owner] if m in windows.present else owned[m][owner]
            for m in windows.modalities
        }

    def _struck_flags(self) -> dict[Modality, Array]:
        """(N,) bool per modality: the window has it, after outages."""
        found = {m: np.zeros(len(self.windows), bool) for m in self.windows.modalities}
        for i in range(len(self)):
            rows = self.rows(i)
            for m, (_, flags) in self._struck(i, rows).items():
                found[m][rows] = flags
        return found

    def _sensed(self, m: Modality, rows: Array, there: Array | None) -> Array:
        """Windows as recorded, NaN where the sensor was silent."""
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        together = last - first == len(rows)  # a slice maps what an index would copy
        x = np.asarray(
            self.windows.inputs[m][first:last] if together else self.windows.inputs[m][rows]
        )
        if there is None or there.ndim == 1 or there.all():
            return x
        return np.where(there.reshape(len(x), *(1,) * (x.ndim - 2), -1), x, np.float32(np.nan))

    def _kind(self, m: Modality) -> Kind:
        return self.windows.kinds.get(m, "series")

    def _scale(self, m: Modality, trained: Array) -> Scale | None:
        """By a client's own training windows; by the fleet's if it is asked for, or has none."""
        if self.normalise == "none":
            return None
        own = measured(trained) if self.normalise == "client" else None
        return own or self._fleet_scale(m)

    def _fleet_scale(self, m: Modality) -> Scale | None:
        """By all that was sensed of a modality for training, by those who own it."""
        if m not in self._scales:
            self._scales[m] = summed(self._trained(m))
            self.windows.release()
        return self._scales[m]

    def _trained(self, m: Modality) -> Iterator[Array]:
        for i, suite in enumerate(self.suites):
            if m in suite:
                rows = self.rows(i)
                there, here = self._struck(i, rows)[m]
                yield self._sensed(m, rows, there)[here & (self.windows.split[rows] == TRAIN)]

    @cached_property
    def _scales(self) -> dict[Modality, Scale | None]:
        return {}
