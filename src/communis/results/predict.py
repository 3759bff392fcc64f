"""Predictions for new recordings: resampled, cut and normalised as in training."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.diagnostics import UNCERTAINTY
from communis.core.errors import CommunisError
from communis.core.samples import Scale, measured
from communis.data.own.joined import excluded
from communis.data.own.manifest import NAME, Manifest, load
from communis.data.own.reading import unlabelled
from communis.data.recordings.cut import Cut, Piece, pieces
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.resample import resampled
from communis.data.recordings.source import Recorded
from communis.data.sources.own import Own
from communis.fleet.window_format import WindowFormat
from communis.results.predictor import Inputs, Predictor
from communis.results.trained import Trained

Normalise = Literal["", "own", "fleet"]
LEAST_WINDOWS = 8  # of a newcomer's own recordings, for a scale of its own
BATCH = 256
ALIKE = 1e-3  # rates that differ by less, relative to each other, are equal
ELSE = (
    "It is read as the run's own data are; recordings in another form or at another rate go into a "
    "folder with a communis.toml of their own (`communis data init FOLDER`; no [label] is needed)"
)
log = logging.getLogger("communis")


@dataclass(frozen=True)
class Cuttings:
    """The windows of new recordings."""

    names: list[str]  # of the recordings
    pieces: list[Piece]
    form: WindowFormat

    def __len__(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    @property
    def sensors(self) -> list[Modality]:
        return sorted({m for piece in self.pieces for m in piece.inputs})

    def scales(self) -> dict[Modality, Scale]:
        """The scale of every sensor over all of these windows."""
        scales = {}
        for m in self.sensors:
            those = [piece for piece in self.pieces if m in piece.inputs]
            parts = [np.moveaxis(p.inputs[m][p.present[m]], 1, -1) for p in those]
            scale = measured(np.concatenate([part for part in parts if part.size] or parts[:1]))
            if scale is not None:
                scales[m] = scale
        return scales

    def inputs(self) -> dict[Modality, Tensor]:
        """All windows, NaN where nothing was sensed."""
        return {
            m: torch.from_numpy(np.concatenate([self._of(piece, m) for piece in self.pieces]))
            for m in self.sensors
        }

    def _of(self, piece: Piece, m: Modality) -> Array:
        if m in piece.inputs:
            return piece.inputs[m]
        return np.full((len(piece), *self.form.shapes[m]), np.nan, np.float32)


@dataclass(frozen=True)
class Predicted:
    """What a model says of recordings."""

    table: pd.DataFrame  # see `table`
    predictor: Predictor
    normalised_by: str  # what the windows were normalised by, in words


def predicted(
    trained: Trained,
    paths: Sequence[Path],
    client: str = "",
    normalise: Normalise = "",
    model: str = "",
    round: int | str = "last",
) -> Predicted:
    """The predictions of the model of a client for recordings. Without a client those of the common
    model, for somebody new: normalised by these recordings (own), by the fleet's training windows
    (fleet), or as in training."""
    if normalise not in get_args(Normalise):
        raise CommunisError(f"normalise: expected own or fleet, got {normalise!r}")
    if not paths:
        raise CommunisError("no recordings are given")
    if client and (normalise or model):
        raise CommunisError(
            "normalise and model are for a newcomer; a client of the run has its own model and "
            "scale"
        )
    if client:
        predictor = trained.model(trained.client(client), round)
        windows = cut(trained, paths)
        how = trained.normalised_by(predictor)
    else:
        trained.common(model, round)  # refused before any file is read
        windows = cut(trained, paths)
        predictor, how = _for_newcomer(trained, windows, normalise, model, round)
    return Predicted(table(predictor, windows), predictor, how)


def _for_newcomer(
    trained: Trained, windows: Cuttings, normalise: Normalise, model: str, round: int | str
) -> tuple[Predictor, str]:
    """Returns the common model, prepared for these recordings, and how it normalises them."""
    recorded = windows.inputs()
    usual = "own" if trained.normalises == "client" else "fleet"
    chosen = normalise or usual
    if chosen == "own" and not normalise and len(windows) < LEAST_WINDOWS:
        chosen = "fleet"
    if chosen == "own" and trained.normalises != "none":
        scales = windows.scales()
        predictor = trained.common(model, round, scales, recorded)
        return predictor, f"the {len(windows)} windows of these recordings, without labels"
    predictor = trained.common(model, round, recorded=recorded)
    return predictor, trained.normalised_by(predictor)


def cut(trained: Trained, paths: Sequence[Path]) -> Cuttings:
    """Reads recordings as the run's dataset is read, and cuts windows as in training. Windows that
    no sensor saw are left out."""
    form = trained.format
    found = _recordings(trained, paths)
    source = trained.config.make_source()
    stride = source.stride if isinstance(source, Recorded) else 0.0
    dataset = Dataset(_resampled(found, form), form.task)
    names = []
    parts = []
    for recording, piece in pieces(dataset, Cut(form.seconds, stride)):
        _refuse_others(recording.name, piece, form)
        if len(piece):
            names.append(recording.name)
            parts.append(piece)
    if not parts:
        raise CommunisError(
            f"{', '.join(map(str, paths))}: no window of {form.seconds:g} s in which a sensor of "
            f"the run ({', '.join(form.shapes)}) has values"
        )
    return Cuttings(names, parts, form)


def table(predictor: Predictor, windows: Cuttings) -> pd.DataFrame:
    """One row per window: its recording, begin and end in seconds, the sensors that it has, and
    what is predicted: the class with its probability and those of all classes; or numbers. Windows
    that no sensor of the model saw are left out."""
    frames = []
    for name, piece in zip(windows.names, windows.pieces, strict=True):
        own = [m for m in sorted(piece.inputs) if m in predictor.modalities]
        seen = np.any([piece.present[m] for m in own], axis=0) if own else np.zeros(0, bool)
        if not seen.any():
            continue
        inputs = {m: predictor.format.sensed(m, piece.inputs[m][seen]) for m in own}
        present = {m: piece.present[m][seen] for m in own}
        frame = pd.DataFrame(
            {
                "recording": name,
                "start": piece.start[seen],
                "end": piece.start[seen] + windows.form.seconds,
                "sensors": ["+".join(m for m in own if present[m][i]) for i in range(seen.sum())],
            }
        )
        predicted = _predicted(
            predictor,
            {m: torch.from_numpy(x) for m, x in inputs.items()},
            {m: torch.from_numpy(flags) for m, flags in present.items()},
        )
        frames.append(pd.concat([frame, predicted], axis=1))
    if not frames:
        raise CommunisError(
            f"the recordings have {', '.join(windows.sensors)}, and the model takes "
            f"{', '.join(predictor.modalities)}: choose another client, or --newcomer"
        )
    return pd.concat(frames, ignore_index=True)


def _predicted(predictor: Predictor, inputs: Inputs, present: Inputs) -> pd.DataFrame:
    scores = []
    uncertainty = []
    with torch.no_grad():
        count = len(next(iter(inputs.values())))
        for rows in torch.split(torch.arange(count), BATCH):
            part = {m: x[rows] for m, x in inputs.items()}
            there = {m: x[rows] for m, x in present.items()}
            scores.append(predictor(part, there))
            views = predictor.views(part, there)
            if UNCERTAINTY.name in views:
                uncertainty.append(views[UNCERTAINTY.name])
    found = torch.cat(scores)
    task = predictor.task
    if not predictor.format.classes:
        values = task.metres(found) if hasattr(task, "metres") else found
        columns = {f"value_{i}": values[:, i].numpy() for i in range(values.shape[1])}
        return pd.DataFrame(columns)
    probabilities = found.softmax(1)
    best = probabilities.argmax(1)
    names = predictor.format.classes
    frame = pd.DataFrame(
        {
            "label": [names[int(number)] for number in best],
            "probability": probabilities.max(1).values.numpy(),
        }
    )
    if uncertainty:
        frame["uncertainty"] = torch.cat(uncertainty).numpy()
    for number, name in enumerate(names):
        frame[f"p_{name}"] = probabilities[:, number].numpy()
    return frame


def _recordings(trained: Trained, paths: Sequence[Path]) -> Iterable[Recording]:
    """Returns the recordings in files, or in a folder of the run's dataset."""
    source = trained.config.make_source()
    if not isinstance(source, Recorded):
        raise CommunisError(
            f"{trained.path}: was trained on generated data ({trained.config.data['name']}), of "
            "which there are no recordings; from Python, call `model` of communis.open(...)"
        )
    for path in paths:
        if not path.exists():
            raise CommunisError(f"{path}: no such file or folder")
    if isinstance(source, Own):
        return _own(source, paths)
    if len(paths) != 1 or not paths[0].is_dir():
        raise CommunisError(
            f"expected one folder with files in the format of {source.name}, as the run was "
            f"trained on; got {', '.join(map(str, paths))}"
        )
    elsewhere = replace(source, folder=str(paths[0]))
    return elsewhere.open().recordings


def _own(source: Own, paths: Sequence[Path]) -> Iterator[Recording]:
    """Yields the recordings in files of one's own, which the manifest of the run's data describes,
    or the one in the folder that is given."""
    files = []  # those of the sensors of one recording may be given in any order
    for path in paths:
        if (path / NAME).is_file():
            manifest = load(path, labelled=False)
            yield from unlabelled(_files(path, manifest), manifest)
        else:
            files.append(path)
    if files:
        manifest = load(source.place)
        try:
            found = [file for path in files for file in _files(path, manifest)]
            yield from unlabelled(found, manifest)
        except CommunisError as error:
            raise CommunisError(f"{error}. {ELSE}") from None


def _files(path: Path, manifest: Manifest) -> list[Path]:
    """Returns the recordings in a folder, or the one that is given."""
    if not path.is_dir():
        return [path]
    kinds = {Path(pattern).suffix for pattern in manifest.unlabelled.patterns}
    aside = excluded(manifest)
    files = [file for kind in sorted(kinds) for file in sorted(path.rglob(f"*{kind}"))]
    there = [file for file in files if not aside(file.relative_to(path))]
    if not there:
        raise CommunisError(f"{path}: holds no {' or '.join(sorted(kinds))} file")
    return there


def _resampled(found: Iterable[Recording], form: WindowFormat) -> Iterator[Recording]:
    """Yields recordings with the run's sensors at the rates of training. Their class is 0, so that
    no window is left out for want of a label."""
    for recording in found:
        unknown = [m for m in recording.streams if m not in form.shapes]
        if unknown:
            log.info("%s: no model knows %s", recording.name, ", ".join(unknown))
        streams = {}
        for m, stream in recording.streams.items():
            if m in form.shapes:
                streams[m] = _at_rate(m, stream, form)
        if streams:
            yield replace(recording, streams=streams, target=0)


def _at_rate(m: Modality, stream: Stream, form: WindowFormat) -> Stream:
    rate = form.rates[m]
    if stream.kind == "series" and abs(stream.rate - rate) > ALIKE * rate:
        return resampled(stream, rate)
    return stream


def _refuse_others(name: str, piece: Piece, form: WindowFormat) -> None:
    """Refuses windows of another shape than those that the models were trained on."""
    for m, x in piece.inputs.items():
        if tuple(x.shape[1:]) != tuple(form.shapes[m]):
            raise CommunisError(
                f"{name}: windows of {m} have shape {tuple(x.shape[1:])}, and "
                f"{tuple(form.shapes[m])} in training"
            )
