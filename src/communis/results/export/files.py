"""Writes a trained model with its preprocessing as one file.

    onnx         the network as an ONNX model, for onnxruntime and others (the extra `export`)
    pt2          the network as an exported program, for `torch.export.load`
    safetensors  its tensors alone

The inputs of a network are the raw windows of every sensor, (n, channels, ...), NaN where nothing
was sensed, and for every sensor `NAME_present`, (n,) bool: whether it counts. The output `scores`
is (n, outputs); for classification `probabilities` is their softmax. All three kinds of file have
the same metadata, in which `communis` is a table in JSON.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from torch import Tensor, nn

from communis.core import disk, extras
from communis.core.errors import CommunisError, readable
from communis.results.predictor import Predictor

Kind = Literal["onnx", "pt2", "safetensors"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OPSET = 18
Sample = dict[str, Tensor]
log = logging.getLogger("communis")


class Graph(nn.Module):
    """A predictor as a function of tensors alone."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor
        self.classifies = bool(predictor.format.classes)

    @property
    def outputs(self) -> list[str]:
        return ["scores", "probabilities"] if self.classifies else ["scores"]

    def forward(self, inputs: Sample, present: Sample) -> tuple[Tensor, ...]:
        scores = self.predictor(inputs, present)
        return (scores, scores.softmax(1)) if self.classifies else (scores,)


def write(predictor: Predictor, kind: Kind, path: Path, about: Mapping[str, Any]) -> None:
    """Writes the file, whole or not at all. about: its metadata."""
    metadata = {"communis": json.dumps(about, ensure_ascii=False)}
    if kind == "safetensors":
        tensors = {key: t.contiguous().clone() for key, t in predictor.tensors.items()}
        disk.replace_file(path, safetensors.torch.save(tensors, metadata))
        return
    graph = Graph(predictor)
    program = _traced(graph)
    out = io.BytesIO()
    if kind == "pt2":
        with _quiet():
            torch.export.save(program, out, extra_files=metadata)
        disk.replace_file(path, out.getvalue())
        return
    disk.replace_file(path, _as_onnx(graph, program, metadata))


def metadata_of(path: Path, kind: Kind) -> dict[str, Any]:
    """Returns the metadata of a file that `write` wrote."""
    if kind == "safetensors":
        with safetensors.safe_open(path, framework="pt") as file:
            text = file.metadata()["communis"]
    elif kind == "pt2":
        extra = {"communis": ""}
        with _quiet():
            torch.export.load(path, extra_files=extra)
        text = extra["communis"]
    else:
        session = _session(path)
        text = session.get_modelmeta().custom_metadata_map["communis"]
    found: dict[str, Any] = json.loads(text)
    return found


def outputs_of(path: Path, kind: Kind, inputs: Sample, present: Sample) -> Tensor:
    """Returns the scores that the model in a file computes."""
    if kind == "pt2":
        with _quiet():
            model = torch.export.load(path).module()
        scores, *_ = model(inputs, present)
        return torch.as_tensor(scores).detach()
    session = _session(path)
    feed = {m: x.numpy() for m, x in inputs.items()}
    feed |= {f"{m}_present": x.numpy() for m, x in present.items()}
    return torch.from_numpy(session.run(["scores"], feed)[0])


def example(predictor: Predictor, windows: int = 7) -> tuple[Sample, Sample]:
    """Returns inputs of the right shapes. windows: a number that no other size has, because the
    tracer takes equal sizes for the same, and 1 for a constant."""
    shapes = predictor.format.shapes
    inputs = {m: torch.zeros(windows, *shapes[m]) for m in predictor.modalities}
    present = {m: torch.ones(windows, dtype=torch.bool) for m in predictor.modalities}
    return inputs, present


def _traced(graph: Graph) -> torch.export.ExportedProgram:
    inputs, present = example(graph.predictor)
    several = {0: torch.export.Dim("windows", min=1)}
    shapes = (dict.fromkeys(inputs, several), dict.fromkeys(present, several))
    # Without gradients, some layers take a way that depends on the number of windows.
    graph.requires_grad_(True)
    try:
        with _quiet():
            return torch.export.export(
                graph, (inputs, present), dynamic_shapes=shapes, strict=False
            )
    except Exception as error:  # whatever an architecture makes torch raise
        raise CommunisError(
            f"{graph.predictor.network.__class__.__name__} of "
            f"{type(graph.predictor.method).__name__} cannot be exported as a graph "
            f"({readable(str(error))[:200]}); --to safetensors writes its tensors"
        ) from None
    finally:
        graph.requires_grad_(False)


def _as_onnx(
    graph: Graph, program: torch.export.ExportedProgram, metadata: Mapping[str, str]
) -> bytes:
    extras.require("export")
    import onnx

    modalities = graph.predictor.modalities
    names = [*modalities, *(f"{m}_present" for m in modalities)]
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                input_names=names,
                output_names=graph.outputs,
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # an operation that ONNX does not have
        made = None
        log.debug("ONNX: %s", error)
    if made is None:
        raise CommunisError(
            "the model has an operation that ONNX does not have, such as the eigendecomposition in "
            "the gate of sglt; choose --to pt2"
        )
    model = made.model_proto
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, dict(metadata))
    return bytes(model.SerializeToString())


def _session(path: Path) -> Any:
    extras.require("export")
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporters' remarks on their own work from the terminal."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
