"""What a run has learned, read from its folder: models that predict, and test predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import torch

from communis.core.arrays import Array
from communis.core.contract import Card, Client, Modality
from communis.core.disk import DamagedError
from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.core.samples import Scale, TensorSamples
from communis.core.state import State
from communis.core.streams import Streams
from communis.exchange import wire
from communis.fleet.availability.detail import coarse_shape
from communis.fleet.clients import equipped, sizes_of
from communis.fleet.window_format import WindowFormat
from communis.results.predictor import Inputs, Predictor
from communis.run.config import Config, load
from communis.run.folder import RunFolder
from communis.run.learned import FOLDER, Index, Learned, LearnedFolder, RoundLearned

COMMON = -1  # the client's number of the common model


class Trained:
    """The models and test predictions that a run keeps (`run.keep`)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._folder = RunFolder(self.path)
        self._learned = LearnedFolder(self.path, self._folder.owner)
        if not self._learned.exists:
            raise CommunisError(
                f"{self.path}: no models are kept here: the run is not finished (`communis resume "
                f"{self.path}` ends it), or run.keep was false, or an earlier version made it; "
                "then run it again"
            )

    @cached_property
    def config(self) -> Config:
        return load(str(self.path / "config.toml"))

    @cached_property
    def index(self) -> Index:
        return self._learned.index()

    @cached_property
    def format(self) -> WindowFormat:
        """The format of the windows that the fleet's models take."""
        fleet = self._folder.fleet()
        if "format" not in fleet:
            raise DamagedError(f"{self.path / 'fleet.json'}: does not describe the windows")
        return WindowFormat.read(fleet["format"], tuple(fleet["labels"]))

    @property
    def clients(self) -> list[int]:
        """The clients whose models are kept after the last round."""
        return sorted(self._of_round("last").clients)

    def predictions(self, round: int | str = "last") -> pd.DataFrame:
        """One row per test window of every client: its row in the data, its recording and start in
        seconds, the target, and the scores of the method, in half precision."""
        learned = self._of_round(round)
        if not learned.predictions:
            return pd.DataFrame()
        table = pd.DataFrame(self._learned.predictions(learned).to_pandas())
        table.insert(0, "round", learned.round)
        return table

    def arrays(self, round: int | str = "last") -> tuple[Array, Array, Array] | None:
        """Clients, targets and scores of `predictions`; None where the targets are no classes."""
        learned = self._of_round(round)
        if not learned.predictions:
            return None
        table = self._learned.predictions(learned).combine_chunks()
        columns = {name: table[name].combine_chunks() for name in ("client", "target", "scores")}
        if not pa.types.is_integer(columns["target"].type):
            return None
        scores = columns["scores"].flatten().to_numpy(zero_copy_only=False)
        return (
            columns["client"].to_numpy(),
            columns["target"].to_numpy(),
            scores.reshape(len(table), -1),
        )

    def model(self, client: int, round: int | str = "last") -> Predictor:
        """The model of a client as it predicts, with its preprocessing. round: `last`, `best` (by
        validation), or the number of one of these."""
        learned = self._of_round(round)
        if client not in learned.clients:
            raise CommunisError(
                f"{self.path}: no model of client {client} is kept after round {learned.round}; "
                f"there are {_listed(sorted(learned.clients))}"
            )
        return self._predictor(client, learned.clients[client], learned.round)

    def common(
        self,
        model: str = "",
        round: int | str = "last",
        scales: Mapping[Modality, Scale] | None = None,
        recorded: Inputs | None = None,
    ) -> Predictor:
        """The model that somebody gets who took no part in training, for any of the fleet's
        sensors. model: which architecture, if there are several. scales: those of the newcomer's
        own recording; otherwise those of the fleet. recorded: its raw windows, by which some
        methods prepare a model."""
        learned = self._of_round(round)
        if not learned.common:
            raise CommunisError(
                f"{self.path}: {self.config.method_name} has no common model for somebody who took "
                "no part: a part of it stays with the clients. fedavg, fedprox, scaffold, relief "
                "and others have one (`communis compare ... run.newcomers=0.2` scores it)"
            )
        chosen = model or next(iter(learned.common))
        if chosen not in learned.common:
            raise CommunisError(
                f"{self.path}: no common model {chosen!r}; there are {', '.join(learned.common)}"
            )
        tensors, state = self._learned.model(learned.common[chosen])
        client = self._client(COMMON, _newcomer(chosen, self._union), self.format, learned.round)
        self._load(client, State(tensors), learned.common[chosen])
        _, kind, *_ = wire.payload_types(type(self._method))
        private = wire.unflatten(state, kind)
        own = scales is not None
        of_fleet = self.index.scales if scales is None else scales
        predictor = Predictor(self._method, client, private, self.format, of_fleet, own)
        if recorded:
            predictor.prepare(recorded)
        return predictor

    @property
    def normalises(self) -> str:
        """How windows are normalised: by the client's own scale, the fleet's, or not at all."""
        return str(self.config.fleet.normalise)

    @cached_property
    def _newcomers(self) -> frozenset[int]:
        """The clients that took no part in training, and whoever gets the common model."""
        entries = self._folder.fleet().get("newcomers") or ()
        return frozenset({COMMON, *(int(entry["id"]) for entry in entries)})

    @cached_property
    def _union(self) -> tuple[Modality, ...]:
        entries = self._folder.fleet()["clients"]
        return tuple(sorted({m for entry in entries for m in entry["sensors"]}))

    def number(self, round: int | str) -> int:
        """The number of a round: `last`, `best`, or one of these numbers."""
        return self._of_round(round).round

    def client(self, name: str) -> int:
        """The number of a client, given as a number or by its name."""
        entries = self._folder.fleet()["clients"]
        for entry in entries:
            if name in (str(entry["id"]), str(entry.get("name", ""))):
                return int(entry["id"])
        names = [str(entry.get("name") or entry["id"]) for entry in entries]
        raise CommunisError(
            f"{self.path}: no client {name!r}{nearest(name, names)}; there are {_listed(names)}"
        )

    def _of_round(self, round: int | str) -> RoundLearned:
        index = self.index
        number = {"last": index.last, "best": index.best or index.last}.get(str(round), round)
        try:
            return index.rounds[int(number)]
        except (KeyError, ValueError):
            kept = ", ".join(map(str, sorted(index.rounds)))
            raise CommunisError(
                f"{self.path}: models are kept after round {kept} (last, best), not after {round!r}"
            ) from None

    def _predictor(self, client: int, learned: Learned, round: int) -> Predictor:
        tensors, state = self._learned.model(learned.file)
        about = self._about(client)
        form = self._form(about)
        shell = self._client(client, about, form, round)
        self._load(shell, State(tensors), learned.file)
        _, kind, *_ = wire.payload_types(type(self._method))
        private = wire.unflatten(state, kind)
        return Predictor(self._method, shell, private, form, learned.scales, own_scales=True)

    @cached_property
    def _method(self) -> Any:
        return self.config.make_method()

    def _about(self, client: int) -> Mapping[str, Any]:
        """Returns the entry of a client in fleet.json."""
        entries = {int(entry["id"]): entry for entry in self._folder.fleet()["clients"]}
        return dict(entries[client])

    def _form(self, about: Mapping[str, Any]) -> WindowFormat:
        """Returns the format of a client's windows: its sensors may have less detail."""
        form = self.format
        if about["detail"] != "coarse":
            return form
        shapes = {m: coarse_shape(shape, form.kinds[m]) for m, shape in form.shapes.items()}
        return replace(form, shapes=shapes)

    def _client(self, id: int, about: Mapping[str, Any], form: WindowFormat, round: int) -> Client:
        """Returns a client with an untrained model and without windows."""
        method = self._method
        kinds = self.config.fleet.architectures()
        entries = self._folder.fleet()["clients"]
        union = self._union
        mixed = len({entry["model"] for entry in entries}) > 1
        owned = union if method.needs.all_branches else about["sensors"]
        shapes = {m: form.shapes[m] for m in owned}
        streams = Streams(self.config.seed)
        model, _ = equipped(kinds[about["model"]], shapes, form, method, mixed, streams)
        parameters, buffers = model.by_path
        card = Card(
            id,
            tuple(about["sensors"]),
            {path: tuple(p.shape) for path, p in parameters.items()},
            int(about["windows"]),
            {m: int(n) for m, n in about["windows_by_sensor"].items()},
            sizes_of(model, form.task, union),
            str(about["model"]),
            str(about["device"]),
            {path: tuple(t.shape) for path, t in buffers.items() if t.is_floating_point()},
            newcomer=id in self._newcomers,
        )
        none = _no_windows(form, card.modalities)
        return Client(card, model, form.task, none, none, none, round, streams)

    def _load(self, client: Client, tensors: State, file: str) -> None:
        """Fills the model of a client; refuses tensors of another model."""
        parameters, buffers = client.model.by_path
        if set(tensors) != {*parameters, *buffers}:
            raise DamagedError(
                f"{self.path / FOLDER / file}: holds another model than config.toml describes; put "
                "back the configuration of the run"
            )
        tensors.load_into(client.model)


def _newcomer(model: str, sensors: Sequence[Modality]) -> dict[str, Any]:
    """Returns what fleet.json would say of a newcomer with these sensors."""
    return {
        "sensors": sensors,
        "windows": 0,
        "windows_by_sensor": dict.fromkeys(sensors, 0),
        "model": model,
        "device": "",
    }


def _no_windows(form: WindowFormat, modalities: Sequence[Modality]) -> TensorSamples:
    inputs = {m: torch.empty(0, *form.shapes[m][1:], form.shapes[m][0]) for m in modalities}
    present = {m: torch.empty(0, dtype=torch.bool) for m in modalities}
    target = torch.empty(0, dtype=torch.int64)
    return TensorSamples(inputs, present, target)


def _listed(numbers: Sequence[object]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown} and {len(numbers) - 10} more" if len(numbers) > 10 else shown or "none"
