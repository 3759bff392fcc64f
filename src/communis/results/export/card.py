"""The model card: what a trained model is, what it was trained on, how good it is, what it tells of
the people whose data it saw, and how to call it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from communis.core.errors import visible
from communis.core.metrics import better
from communis.results.export.files import Kind
from communis.results.finished import Finished
from communis.results.predictor import Predictor
from communis.results.verdict import privacy_verdict

SHOWN = ("accuracy", "macro_f1", "nll", "ece", "mae", "rmse", "mpjpe")


@dataclass(frozen=True)
class Card:
    """Facts about a trained model, for its metadata and for people."""

    run: Finished
    predictor: Predictor
    round: int
    whose: str  # "client 3", or "the common model"
    normalised: str  # by what: "the client's own training windows"
    about_data: Any  # the source's `ABOUT`; None where it has none
    kind: Kind

    @property
    def metadata(self) -> dict[str, Any]:
        """What a program needs to call the model."""
        form = self.predictor.format
        return {
            "method": self.run.method,
            "whose": self.whose,
            "round": self.round,
            "seed": self.run.seed,
            "classes": list(form.classes),
            "window_seconds": form.seconds,
            "sensors": {
                m: {
                    "shape": list(form.shapes[m]),
                    "rate": form.rates[m],
                    "unit": form.units[m],
                    "kind": form.kinds[m],
                }
                for m in self.predictor.modalities
            },
            "scores": dict(self.scores),
            "data": str(self.run.config["data"]["name"]),
            "data_licence": self._licence,
            "normalised_by": self.normalised,
            "privacy": privacy_verdict(self.run).line,
            "communis": str(self.run.environment.get("versions", {}).get("communis", "")),
        }

    @property
    def scores(self) -> list[tuple[str, dict[str, float]]]:
        """Test scores of this client, and the mean and spread over all clients, in this round."""
        table = self.run.rows("scores", rounds=[self.round])
        own = table[table["own"] & (table["class"] == -1) & (table["split"] == "test")]
        shown = []
        for name in SHOWN:
            values = own[own["metric"] == name].set_index("client")["value"]
            if not len(values):
                continue
            entry = {"mean": fmean(values), "clients": float(len(values))}
            if len(values) > 1:
                entry["spread"] = stdev(values)
            weakest = values.min() if better(name) > 0 else values.max()
            entry["weakest"] = float(weakest)
            if self.predictor.client in values.index:
                entry["this client"] = float(values[self.predictor.client])
            shown.append((name, entry))
        return shown

    @property
    def _licence(self) -> str:
        return str(getattr(self.about_data, "licence", "") or "not stated")

    def text(self, file: str, check: str) -> str:
        """The card in Markdown. file: the name of the model's file. check: its comparison with the
        trained model. Names may come from others, and are shown as they are."""
        form = self.predictor.format
        run = self.run
        split = run.config["data"].get("split", "not stated")
        rates = [
            f"| {_shown(m)} | {' x '.join(map(str, form.shapes[m]))} | {form.rates[m]:g} Hz | "
            f"{_shown(form.units[m] or 'not stated')} |"
            for m in self.predictor.modalities
        ]
        lines = [
            f"# {_shown(file)}",
            "",
            f"{self.whose[:1].upper()}{self.whose[1:]} of {_shown(run.method)} after round "
            f"{self.round}, seed {run.seed}, with its preprocessing.",
            "",
            "## Input and output",
            "",
            f"Windows of {form.seconds:g} s, as they were recorded, by sensor; NaN where nothing "
            "was sensed.",
            "",
            "| sensor | shape of a window | rate | unit |",
            "|---|---|---|---|",
            *rates,
            "",
            *_output(form.classes),
            "",
            "## How to call it",
            "",
            *_call(self.kind, file, self.predictor),
            "",
            f"Checked against the trained model: {check}.",
            "",
            "## Data",
            "",
            f"* Trained on {_shown(str(run.config['data']['name']))}, licence: "
            f"{_shown(self._licence)}.",
            *([f"* {_shown(self._citation)}"] if self._citation else []),
            f"* {len(run.clients)} clients: {_fleet(run)}.",
            f"* Windows are normalised by {self.normalised}.",
            "",
            "## Scores on test windows",
            "",
            "| score | mean over clients | spread | weakest client | this client |",
            "|---|---|---|---|---|",
            *[_row(name, values) for name, values in self.scores],
            "",
            "One seed. Scores say how the model does on windows of the same people, split as "
            f'`data.split = "{split}"` says, and nothing of other people.',
            "",
            "## Privacy",
            "",
            privacy_verdict(run).line,
            "",
        ]
        return "\n".join(lines)

    @property
    def _citation(self) -> str:
        return str(getattr(self.about_data, "citation", ""))


def _output(labels: Sequence[str]) -> list[str]:
    if not labels:
        return ["Output `scores`, one row per window."]
    named = ", ".join(f"{number} {_shown(name)}" for number, name in enumerate(labels))
    return [
        f"Outputs `scores` (before the softmax) and `probabilities`, one column per class: {named}."
    ]


def _call(kind: Kind, file: str, predictor: Predictor) -> list[str]:
    """A program that calls the model on windows of zeros."""
    shapes = {m: tuple(predictor.format.shapes[m]) for m in predictor.modalities}
    outputs = "scores, probabilities" if predictor.format.classes else "(scores,)"
    if kind == "onnx":
        body = [
            "import json",
            "",
            "import numpy as np",
            "import onnxruntime",
            "",
            f"session = onnxruntime.InferenceSession({file!a})",
            'about = json.loads(session.get_modelmeta().custom_metadata_map["communis"])',
            f"shapes = {shapes!a}",
            "windows = {m: np.zeros((5, *shape), np.float32) for m, shape in shapes.items()}"
            "  # yours",
            'present = {f"{m}_present": np.isfinite(x).reshape(len(x), -1).any(1) '
            "for m, x in windows.items()}",
            f"{outputs} = session.run(None, windows | present)",
        ]
    elif kind == "pt2":
        body = [
            "import json",
            "",
            "import torch",
            "",
            'extra = {"communis": ""}',
            f"model = torch.export.load({file!a}, extra_files=extra).module()",
            'about = json.loads(extra["communis"])',
            f"shapes = {shapes!a}",
            "windows = {m: torch.zeros(5, *shape) for m, shape in shapes.items()}  # yours",
            "present = {m: torch.isfinite(x).flatten(1).any(1) for m, x in windows.items()}",
            f"{outputs} = model(windows, present)",
        ]
    else:
        body = [
            "import json",
            "",
            "from safetensors import safe_open",
            "",
            f'with safe_open({file!a}, framework="pt") as opened:',
            '    about = json.loads(opened.metadata()["communis"])',
            "    tensors = {key: opened.get_tensor(key) for key in opened.keys()}",
            "# network.*: parameters by path; _scales.*: mean and divisor of the channels;",
            "# state.*: what else the method predicts with",
        ]
    return ["```python", *body, "```"]


def _shown(text: str) -> str:
    """Returns text that a page in Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", visible(text, layout=""))


def _fleet(run: Finished) -> str:
    kinds: dict[str, int] = {}
    for sensors in run.sensors.values():
        kinds["+".join(sensors)] = kinds.get("+".join(sensors), 0) + 1
    return ", ".join(f"{count} with {_shown(name)}" for name, count in kinds.items())


def _row(name: str, values: Mapping[str, float]) -> str:
    spread = f"{values['spread']:.3f}" if "spread" in values else ""
    own = f"{values['this client']:.3f}" if "this client" in values else ""
    return f"| {name} | {values['mean']:.3f} | {spread} | {values['weakest']:.3f} | {own} |"
