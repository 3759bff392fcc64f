"""A trained model with its preprocessing, as one network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from communis.core.contract import Batch, Client, Modality, Prediction
from communis.core.errors import CommunisError
from communis.core.samples import Scale, TensorSamples
from communis.core.tasks import CONSTANT
from communis.data.recordings.cut import LEAST_PRESENT
from communis.data.recordings.recording import Kind
from communis.exchange import wire
from communis.fleet.fleet import AnyMethod
from communis.fleet.window_format import WindowFormat

Inputs = Mapping[Modality, Tensor]


class Predictor(nn.Module):
    """Takes windows as they were recorded and returns what the method predicts.

    `forward(inputs)` takes raw windows by modality, (n, channels, ...) as in `format.shapes`, NaN
    where nothing was sensed. A sensor may be left out; `present` (n,) bool says for which windows a
    sensor counts, if not by its values. The result has one row per window: for classification the
    scores of the classes before the softmax, see `probabilities`.
    """

    def __init__(
        self,
        method: AnyMethod,
        client: Client,
        state: Any,
        form: WindowFormat,
        scales: Mapping[Modality, Scale],
        own_scales: bool,
    ) -> None:
        """client: with the trained model, and without windows. state: its private state. form: of
        its windows, with the shapes that its sensors have. own_scales: they are the client's own;
        otherwise those of a recording or of the fleet."""
        super().__init__()
        self.method = method
        self.format = form
        self.modalities = client.card.modalities
        self.own_scales = own_scales
        self.network = client.model
        self._client = client
        self._state = state
        # Some methods give a client encoders of sensors that it lacks.
        self._encoded = tuple(client.model.shapes)
        self._scales = nn.ModuleDict({m: _Scaling(scales.get(m)) for m in self._encoded})
        self.requires_grad_(False)
        self.eval()

    @property
    def task(self) -> Any:
        return self.format.task

    @property
    def labels(self) -> tuple[str, ...]:
        return self.format.labels

    @property
    def client(self) -> int:
        """The number of the client whose model this is; -1: the common model."""
        return self._client.card.id

    def scale(self, modality: Modality) -> tuple[Tensor, Tensor]:
        """The mean and the divisor by which the channels of a modality are normalised."""
        scaling = self._scales[modality]
        assert isinstance(scaling, _Scaling)
        return scaling.mean, scaling.divisor

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that predictions depend on: the network, the scales, and the method's own state."""
        state = wire.flatten(self._state)
        return {**self.state_dict(), **{f"state.{key}": tensor for key, tensor in state.items()}}

    def forward(self, inputs: Inputs, present: Inputs | None = None) -> Tensor:
        batch = self.batch(inputs, present or {})
        predicted = self.method.predict(self._client, self._state, batch)
        return Prediction.of(predicted).scored

    def prepare(self, recorded: Inputs) -> None:
        """Prepares a newcomer's model with its own windows, which have no labels, as the method
        does for newcomers of a run."""
        batch = self.batch(recorded, {})
        inputs = {m: x.movedim(1, -1) for m, x in batch.inputs.items()}
        samples = TensorSamples(inputs, batch.present, batch.target)
        client = replace(self._client, unlabelled=samples)
        self._state = self.method.prepare(client, self._state)
        self.eval()

    def views(self, inputs: Inputs, present: Inputs | None = None) -> Mapping[str, Tensor]:
        """What else the method says of these windows, such as their uncertainty, by name."""
        batch = self.batch(inputs, present or {})
        return Prediction.of(self.method.predict(self._client, self._state, batch)).views

    def probabilities(self, inputs: Inputs, present: Inputs | None = None) -> Tensor:
        """The probability of each class, (n, classes)."""
        scores: Tensor = self(inputs, present)
        return scores.softmax(1)

    def batch(self, inputs: Inputs, present: Inputs) -> Batch:
        """The windows as the network takes them: normalised, with zeros where nothing was sensed,
        and with which sensors each window has."""
        own = {m: x for m, x in inputs.items() if m in self.modalities}
        given = next(iter(own.values()), None)
        if given is None:
            raise CommunisError(
                f"the model takes windows of {', '.join(self.modalities)}; got "
                f"{', '.join(inputs) or 'none'}"
            )
        values = {}
        there = {}
        for m in self._encoded:
            shape = self.format.shapes[m]
            x = own.get(m)
            if x is None:
                x = torch.full((given.shape[0], *shape), torch.nan, device=given.device)
            elif tuple(x.shape[1:]) != tuple(shape):
                raise CommunisError(
                    f"windows of {m} have shape {tuple(x.shape[1:])}; the model takes "
                    f"{tuple(shape)}, channels first"
                )
            x = x.movedim(1, -1)  # channels last, as in training
            kind = self.format.kinds[m]
            known = torch.isfinite(x)
            sensed = _sensed(known, kind)
            if m in present:
                sensed = sensed & present[m]
            values[m] = _filled(self._scales[m](x), known, sensed, kind).movedim(-1, 1)
            there[m] = sensed
        return Batch(
            values, there, torch.zeros(given.shape[0], dtype=torch.long, device=given.device)
        )


class _Scaling(nn.Module):
    """Z-scores by a scale, in double precision as in training; the identity without a scale."""

    mean: Tensor
    divisor: Tensor

    def __init__(self, scale: Scale | None) -> None:
        super().__init__()
        self.applies = scale is not None
        mean = torch.as_tensor(scale.mean if scale else 0.0, dtype=torch.float64)
        deviation = torch.as_tensor(scale.deviation if scale else 1.0, dtype=torch.float64)
        varies = deviation > CONSTANT * mean.abs()  # constants are centred only
        self.register_buffer("mean", mean)
        self.register_buffer("divisor", torch.where(varies, deviation, torch.ones_like(deviation)))

    def forward(self, x: Tensor) -> Tensor:
        if not self.applies:
            return x.float()
        return ((x.double() - self.mean) / self.divisor).float()


def _sensed(known: Tensor, kind: Kind) -> Tensor:
    """Returns (n,) bool: whether a sensor has enough values in a window, as windows are cut."""
    flat = known.flatten(1)
    if kind == "points":  # clouds are padded: the share of finite points has no meaning
        return flat.any(1)
    return flat.float().mean(1) >= LEAST_PRESENT


def _filled(x: Tensor, known: Tensor, sensed: Tensor, kind: Kind) -> Tensor:
    """Returns windows (n, ..., channels) with zeros where nothing was sensed; the padding of a
    cloud repeats its first point."""
    if kind == "points":
        whole = known.all(2)
        first = whole.to(torch.int64).argmax(1)
        point = x.gather(1, first[:, None, None].expand(-1, 1, x.shape[2]))
        x = torch.where(whole[:, :, None], x, point)
        known = torch.isfinite(x)
    there = sensed.view(-1, *[1] * (x.ndim - 1))
    return torch.where(known & there, x, torch.zeros_like(x)).contiguous()
