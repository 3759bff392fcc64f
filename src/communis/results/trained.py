"""What a run has learned, read from its folder: models that predict, and test predictions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import torch

from communis.core.arrays import Array
from communis.core.contract import Card, Client, Modality, Model
from communis.core.disk import DamagedError
from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.core.samples import Scale, TensorSamples
from communis.core.state import State
from communis.core.streams import Streams
from communis.exchange import wire
from communis.fleet.clients import equipped, fix_alike, sizes_of
from communis.fleet.window_format import WindowFormat
from communis.models.own import Own
from communis.results.predictor import Inputs, Predictor
from communis.run.config import Config, load
from communis.run.folder import RunFolder
from communis.run.learned import FOLDER, INDEX, WAY_OUT, Index, Learned, LearnedFolder, RoundLearned

log = logging.getLogger("communis")
COMMON = -1  # the client's number of the common model
HAVE_ONE = "fedavg, fedprox, scaffold, relief and other methods that send the whole model have one"


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
        try:
            return WindowFormat.read(fleet["format"], tuple(fleet["labels"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(
                f"{self.path / 'fleet.json'}: does not describe the windows as this version does "
                f"({type(error).__name__}: {error}); {WAY_OUT}"
            ) from None

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
            # Of methods that send the whole model, a setting decides.
            others = "" if "would complete" in learned.lacking else f" ({HAVE_ONE})"
            raise CommunisError(
                f"{self.path}: {self.config.method_name} has no common model for somebody who took "
                f"no part: {learned.lacking or 'nobody was scored'}{others}"
            )
        chosen = model or next(iter(learned.common))
        if chosen not in learned.common:
            raise CommunisError(
                f"{self.path}: no common model {chosen!r}; there are {', '.join(learned.common)}"
            )
        client = self._client(COMMON, _newcomer(chosen, self._union), self.format, learned.round)
        private = self._load(client, learned.common[chosen])
        own = scales is not None
        of_fleet = self._fitting(self.index.scales) if scales is None else scales
        predictor = Predictor(self._method, client, private, self.format, of_fleet, own)
        if recorded:
            predictor.prepare(recorded)
        return predictor

    @property
    def normalises(self) -> str:
        """How windows are normalised: by the client's own scale, the fleet's, or not at all."""
        return str(self.config.fleet.normalise)

    def normalised_by(self, predictor: Predictor) -> str:
        """By what a model of this run normalises windows, in words."""
        if self.normalises == "none":
            return "nothing, as in training"
        if self.normalises == "client" and predictor.own_scales:
            return "the client's own training windows"
        return "the fleet's training windows"

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
            lost = ""
            if index.best not in (0, *index.rounds):
                lost = (
                    f"; those after round {index.best}, the best, were lost, because their file "
                    "was damaged or gone when the run was resumed"
                )
            raise CommunisError(
                f"{self.path}: models are kept after round {kept} (last, best), not after "
                f"{round!r}{lost}"
            ) from None

    def _predictor(self, client: int, learned: Learned, round: int) -> Predictor:
        about = self._about(client)
        form = self._form(about)
        shell = self._client(client, about, form, round)
        private = self._load(shell, learned.file)
        scales = self._fitting(learned.scales)
        return Predictor(self._method, shell, private, form, scales, own_scales=True)

    @cached_property
    def _method(self) -> Any:
        return self.config.make_method()

    def _about(self, client: int) -> Mapping[str, Any]:
        """Returns the entry of a client in fleet.json."""
        entries = {int(entry["id"]): entry for entry in self._folder.fleet()["clients"]}
        if client not in entries:
            raise DamagedError(f"{self.path / 'fleet.json'}: has no client {client}; {WAY_OUT}")
        return dict(entries[client])

    def _form(self, about: Mapping[str, Any]) -> WindowFormat:
        """Returns the format of a client's windows: its sensors may have less detail."""
        return self.format.coarse if about["detail"] == "coarse" else self.format

    def _client(self, id: int, about: Mapping[str, Any], form: WindowFormat, round: int) -> Client:
        """Returns a client with an untrained model and without windows."""
        union = self._union
        owned = union if self._method.needs.all_branches else about["sensors"]
        model = self._untrained(about["model"], {m: form.shapes[m] for m in owned})
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
        streams = Streams(self.config.seed)
        return Client(card, model, form.task, none, none, none, round, streams)

    def _untrained(self, name: str, shapes: Mapping[Modality, tuple[int, ...]]) -> Model:
        """Returns a model for these sensors, with the frozen weights that it had in training."""
        kinds = self.config.fleet.architectures()
        if name not in kinds:
            raise DamagedError(
                f"{self.path / 'config.toml'}: has no model {name}, which was trained; put back "
                "the configuration of the run"
            )
        kind = kinds[name]
        if isinstance(kind, Own) and kind.digest != self.index.networks.get(name):
            log.warning(
                "%s: the source of %s has changed since it was trained; predictions may differ",
                self.path,
                name,
            )
        mixed = len({entry["model"] for entry in self._folder.fleet()["clients"]}) > 1
        streams = Streams(self.config.seed)
        model, _ = equipped(kind, shapes, self.format, self._method, mixed, streams)
        if isinstance(kind, Own) and kind.whole:
            union = {m: self.format.shapes[m] for m in self._union}
            whole, _ = equipped(kind, union, self.format, self._method, mixed, streams)
            fix_alike(model, whole)
        return model

    def _load(self, client: Client, file: str) -> Any:
        """Fills the model of a client and returns its private state; refuses tensors of another
        model."""
        tensors, state = self._learned.model(file)
        parameters, buffers = client.model.by_path
        own = {path: tensor.shape for path, tensor in {**parameters, **buffers}.items()}
        _, kind, *_ = wire.payload_types(type(self._method))
        try:
            if {path: tensor.shape for path, tensor in tensors.items()} != own:
                raise wire.WireError("its tensors are others")
            State(tensors).load_into(client.model)
            return wire.unflatten(state, kind)
        except wire.WireError as error:
            raise DamagedError(
                f"{self.path / FOLDER / file}: holds another model than config.toml describes "
                f"({error}); put back the configuration of the run"
            ) from None

    def _fitting(self, scales: Mapping[Modality, Scale]) -> Mapping[Modality, Scale]:
        """Refuses scales of other channels than the windows have."""
        for m, scale in scales.items():
            channels = self.format.shapes.get(m, (0,))[0]
            if not scale.mean.shape == scale.deviation.shape == (channels,):
                raise DamagedError(
                    f"{self.path / INDEX}: its scale of {m} is not one of {channels} channels; "
                    f"{WAY_OUT}"
                )
        return scales


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
