"""What a run has learned, in its folder, for use without the data that it was trained on.

    learned.json                       the models of every scored client, after the last round and
                                       after the best one; the scales of its sensors
    learned/DIGEST.safetensors         a model as it predicts, with the state that its predictions
                                       depend on; equal ones share a file
    learned/predictions-000025.parquet the predictions for test windows after a round

The index `learned.json` names the digest of every file. It comes last, and files that it does not
name are removed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from communis.core import disk
from communis.core.contract import Modality
from communis.core.disk import DamagedError
from communis.core.errors import readable
from communis.core.samples import Scale
from communis.data.recordings.windows import Windows
from communis.exchange import wire
from communis.exchange.messages import Answer
from communis.run.backends.executor import MODEL, PREDICTIONS, SCALE, STATE, WINDOWS

INDEX = "learned.json"
FOLDER = "learned"
WAY_OUT = "put back a copy, or run it again"
PREDICTION_COLUMNS = ("client", "window", "recording", "start", "target", "scores")
# The names of files that are written, read and removed here.
MODEL_NAME = re.compile(r"[0-9a-f]{32}\.safetensors")
PREDICTIONS_NAME = re.compile(r"predictions-\d{6,}\.parquet")


@dataclass(frozen=True)
class Learned:
    """What was learned for one client, as it lies in the folder."""

    file: str  # of the model
    scales: Mapping[Modality, Scale]


@dataclass(frozen=True)
class RoundLearned:
    """What was learned up to one round."""

    round: int
    clients: Mapping[int, Learned]
    predictions: str  # file; empty: no client has test windows
    predictions_digest: str
    # Files of the common model, by architecture; empty: there is none.
    common: Mapping[str, str] = field(default_factory=dict)
    lacking: str = ""  # why there is no common model, or none of some architecture


@dataclass(frozen=True)
class Index:
    """The content of learned.json."""

    last: int  # the last round
    best: int  # the best round by validation, which may be lost; 0: there is none
    scales: Mapping[Modality, Scale]  # over the training windows of all clients
    rounds: Mapping[int, RoundLearned] = field(default_factory=dict)
    # The digest of the source of every network of the user, by its name.
    networks: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The digest of every file, by its name."""
        models: list[str] = []
        digests: dict[str, str] = {}
        for learned in self.rounds.values():
            if learned.predictions:
                digests[learned.predictions] = learned.predictions_digest
            models += learned.common.values()
            models += (client.file for client in learned.clients.values())
        return digests | {name: _digest_in(name) for name in models}


class LearnedFolder:
    """Reads and writes what a run has learned. owner: what digests depend on."""

    def __init__(self, run: Path, owner: str = "") -> None:
        self.run = run
        self.owner = owner
        self.folder = run / FOLDER
        self._written: set[str] = set()  # files of models, by this object

    @property
    def exists(self) -> bool:
        return (self.run / INDEX).exists()

    def write_round(
        self, round: int, answers: Iterable[Answer], common: Mapping[str, Answer], windows: Windows
    ) -> RoundLearned:
        """Writes what the answers to `keep` hold, in the order of the clients. common: the answers
        to `common`, by architecture."""
        disk.make_folder(self.folder)
        clients: dict[int, Learned] = {}
        columns: list[tuple[int, np.ndarray, np.ndarray]] = []
        for answer in answers:
            tensors = wire.load(answer.up, max_bytes=len(answer.up))
            predictions = tensors.pop(PREDICTIONS, None)
            rows = tensors.pop(WINDOWS, None)
            if predictions is not None and rows is not None:
                columns.append((answer.client, rows.numpy(), predictions.numpy()))
            scales = _scales(tensors)
            model = {k: t for k, t in tensors.items() if k.startswith((MODEL, STATE))}
            clients[answer.client] = Learned(self._write_model(model), scales)
        columns.sort(key=lambda of_client: of_client[0])
        name, digest = self._write_predictions(round, columns, windows) if columns else ("", "")
        files = {}
        for architecture, answer in common.items():
            files[architecture] = self._write_model(wire.load(answer.up, max_bytes=len(answer.up)))
        return RoundLearned(round, dict(sorted(clients.items())), name, digest, files)

    def write_index(self, index: Index) -> None:
        """Puts the index in place once its files are synced, and removes files that it does not
        name."""
        disk.sync(self.run)
        disk.write_json(self.run / INDEX, _as_table(index), self.owner)
        needed = index.files
        for path in self.folder.iterdir():
            name = path.name.removesuffix(".partial")
            written = MODEL_NAME.fullmatch(name) or PREDICTIONS_NAME.fullmatch(name)
            if written and path.name not in needed:
                disk.remove(path)

    def holds(self, last: int, best: int) -> bool:
        """Returns whether what was learned up to these rounds is there, undamaged."""
        if not self.exists:
            return False
        try:
            index = self.index()
            for name, digest in index.files.items():
                self._read(name, digest)
        except DamagedError:
            return False
        return (index.last, index.best) == (last, best)

    def index(self) -> Index:
        """Returns what is there; refuses an index that is damaged or another run's."""
        table = disk.read_json(self.run / INDEX, self.owner)
        try:
            return _from_table(table)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(
                f"{self.run / INDEX}: not as this version writes it ({type(error).__name__}: "
                f"{error}); {WAY_OUT}"
            ) from None

    def model(self, file: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns the tensors of a model by path, and those of its state by name."""
        data = self._read(file, _digest_in(file))
        try:
            tensors = wire.load(data, max_bytes=len(data))
        except wire.WireError as error:
            raise self._strange(file, error) from None
        model = {k.removeprefix(MODEL): t for k, t in tensors.items() if k.startswith(MODEL)}
        state = {k.removeprefix(STATE): t for k, t in tensors.items() if k.startswith(STATE)}
        return model, state

    def predictions(self, learned: RoundLearned) -> pa.Table:
        """Returns the predictions for test windows, one row per window."""
        data = self._read(learned.predictions, learned.predictions_digest)
        try:
            table: pa.Table = pq.read_table(io.BytesIO(data), columns=list(PREDICTION_COLUMNS))
        except (pa.ArrowException, OSError) as error:
            raise self._strange(learned.predictions, error) from None
        return table

    def _write_model(self, tensors: dict[str, Tensor]) -> str:
        data = wire.encode(tensors).data
        name = f"{disk.digest_of(data)}.safetensors"
        # A file of this name from before a power cut may be empty.
        if name not in self._written:
            disk.write_file(self.folder / name, data)
            self._written.add(name)
        return name

    def _write_predictions(
        self,
        round: int,
        columns: Sequence[tuple[int, np.ndarray, np.ndarray]],
        windows: Windows,
    ) -> tuple[str, str]:
        rows = np.concatenate([rows for _, rows, _ in columns])
        clients = np.repeat([c for c, _, _ in columns], [len(rows) for _, rows, _ in columns])
        scores = np.concatenate([scores for _, _, scores in columns])
        values = pa.array(scores.ravel())
        outputs = scores.shape[1]
        target = windows.target[rows]
        if target.ndim == 1:
            targets = pa.array(target)
        else:
            targets = pa.FixedSizeListArray.from_arrays(pa.array(target.ravel()), target.shape[1])
        content = [
            pa.array(clients.astype(np.int32)),
            pa.array(rows.astype(np.int64)),
            pa.array(windows.recording[rows].astype(np.int64)),
            pa.array(windows.start[rows].astype(np.float64)),
            targets,
            pa.FixedSizeListArray.from_arrays(values, outputs),
        ]
        out = io.BytesIO()
        pq.write_table(pa.table(content, names=list(PREDICTION_COLUMNS)), out, compression="zstd")
        name = f"predictions-{round:06d}.parquet"
        disk.write_file(self.folder / name, out.getvalue())
        return name, disk.digest_of(out.getvalue())

    def _read(self, name: str, digest: str) -> bytes:
        path = self.folder / name
        try:
            data = disk.regular(path).read_bytes()
        except OSError as error:
            raise DamagedError(f"{path}: is gone ({error.strerror}); {WAY_OUT}") from None
        if disk.digest_of(data) != digest:
            raise DamagedError(
                f"{path}: is damaged, or another run's: its content does not have the digest that "
                f"{INDEX} names; {WAY_OUT}"
            )
        return data

    def _strange(self, name: str, error: Exception) -> DamagedError:
        return DamagedError(
            f"{self.folder / name}: not as this version writes it ({readable(str(error))}); "
            f"{WAY_OUT}"
        )


def _digest_in(name: str) -> str:
    """Returns the digest in the name of a model's file."""
    return name.partition(".")[0]


def _scales(tensors: Mapping[str, Tensor]) -> dict[Modality, Scale]:
    modalities = [
        key.removeprefix(SCALE).removesuffix("/mean")
        for key in tensors
        if key.startswith(SCALE) and key.endswith("/mean")
    ]
    return {
        m: Scale(tensors[f"{SCALE}{m}/mean"].numpy(), tensors[f"{SCALE}{m}/deviation"].numpy())
        for m in sorted(modalities)
    }


def _as_table(index: Index) -> dict[str, Any]:
    rounds = {
        str(learned.round): {
            "predictions": learned.predictions,
            "predictions_digest": learned.predictions_digest,
            "common": dict(learned.common),
            "lacking": learned.lacking,
            "clients": {
                str(client): {
                    "file": own.file,
                    "scales": _written(own.scales),
                }
                for client, own in learned.clients.items()
            },
        }
        for learned in index.rounds.values()
    }
    scales = _written(index.scales)
    return {
        "last": index.last,
        "best": index.best,
        "scales": scales,
        "rounds": rounds,
        "networks": dict(index.networks),
    }


def _from_table(table: Mapping[str, Any]) -> Index:
    rounds = {}
    for round, entry in table["rounds"].items():
        clients = {
            int(client): Learned(
                _name(own["file"], MODEL_NAME),
                _read(own["scales"]),
            )
            for client, own in entry["clients"].items()
        }
        rounds[int(round)] = RoundLearned(
            int(round),
            clients,
            _name(entry["predictions"], PREDICTIONS_NAME) if entry["predictions"] else "",
            str(entry["predictions_digest"]),
            {model: _name(file, MODEL_NAME) for model, file in entry["common"].items()},
            str(entry["lacking"]),
        )
    scales = _read(table["scales"])
    return Index(int(table["last"]), int(table["best"]), scales, rounds, dict(table["networks"]))


def _written(scales: Mapping[Modality, Scale]) -> dict[str, Any]:
    return {
        m: {"mean": scale.mean.tolist(), "deviation": scale.deviation.tolist()}
        for m, scale in scales.items()
    }


def _read(table: Mapping[str, Any]) -> dict[Modality, Scale]:
    return {
        m: Scale(np.array(scale["mean"], np.float64), np.array(scale["deviation"], np.float64))
        for m, scale in table.items()
    }


def _name(text: str, kind: re.Pattern[str]) -> str:
    """Returns the name of a file; refuses others than are written, such as ../model."""
    if not kind.fullmatch(text):
        raise ValueError(f"no name of a file: {readable(text, 80)}")
    return text
