"""Compares the model in a file with the trained one, on windows of the data or on made ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from communis.core.errors import CommunisError
from communis.results.export.files import Kind, Sample, outputs_of
from communis.results.predictor import Predictor
from communis.results.trained import Trained

LARGEST = 1e-5  # difference of scores, relative to the largest score or to 1 if that is larger
WINDOWS = 256


@dataclass(frozen=True)
class Check:
    windows: int
    real: bool  # test windows of the data; otherwise made ones
    difference: float

    @property
    def line(self) -> str:
        what = "test windows" if self.real else "made windows, because the data are not here"
        return f"largest difference {self.difference:.1e} on {self.windows} {what}"


def checked(trained: Trained, predictor: Predictor, path: Path, kind: Kind) -> str:
    """Compares what lies in a file with the trained model, and says in words how they agree."""
    if kind != "safetensors":
        return compared(trained, predictor, path, kind).line
    found = load_file(path)
    expected = predictor.tensors
    if found.keys() != expected.keys() or any(
        not torch.equal(found[key], tensor) for key, tensor in expected.items()
    ):
        raise CommunisError(f"{path}: its tensors would differ from those of the trained model")
    return f"all {len(found)} tensors are equal, to the bit"


def compared(trained: Trained, predictor: Predictor, path: Path, kind: Kind) -> Check:
    """Refuses a file whose model does not predict what the trained one predicts."""
    inputs, real = _windows(trained, predictor)
    present = {m: torch.isfinite(x).flatten(1).any(1) for m, x in inputs.items()}
    expected = predictor(inputs, present)
    found = outputs_of(path, kind, inputs, present)
    scale = max(1.0, float(expected.abs().max()))
    difference = float((found - expected).abs().max()) / scale
    if not difference <= LARGEST:  # NaN is refused too
        raise CommunisError(
            f"{path}: its model would differ from the trained one by {difference:.1e}, relative to "
            f"the largest score; at most {LARGEST:g} is accepted"
        )
    return Check(len(expected), real, difference)


def _windows(trained: Trained, predictor: Predictor) -> tuple[Sample, bool]:
    """Returns raw windows by modality, and whether they are test windows of the client."""
    try:
        fleet = trained.config.make_fleet()
    except CommunisError:
        return _made(predictor), False
    client = predictor.client if predictor.client >= 0 else 0
    rows = fleet.test_rows(client)[:WINDOWS]
    if not len(rows):
        return _made(predictor), False
    windows = fleet.windows
    inputs = {}
    for m in predictor.modalities:
        x = np.array(windows.inputs[m][rows], np.float32)
        if m in windows.present:
            x[~windows.present[m][rows]] = np.nan
        inputs[m] = torch.from_numpy(predictor.format.sensed(m, x))
    return inputs, True


def _made(predictor: Predictor) -> Sample:
    """Returns windows with values around the sensors' means, with gaps."""
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Tensor] = {}
    for m in predictor.modalities:
        x = torch.randn(64, *predictor.format.shapes[m], generator=generator)
        mean, spread = predictor.scale(m)
        x = x.movedim(1, -1) * spread + mean
        x[:4] = torch.nan
        inputs[m] = x.movedim(-1, 1).float()
    return inputs
