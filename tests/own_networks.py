"""Networks as a user may write them: nothing here knows the library's own layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from communis import Batch, Model, Output
from communis.models.network import encoded


class Tower(nn.Module):
    """An encoder with a parameter of its own, a layer with an initialisation of its own, BatchNorm
    and dropout."""

    def __init__(self, channels: int, width: int = 6) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(channels, 1))
        self.conv = nn.Conv1d(channels, width, 3, padding=1)
        nn.init.zeros_(self.conv.bias)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(self.scale * x)))
        return self.dropout(h).mean(2)


class Sized(Tower):
    """An encoder whose number of features is chosen by the number of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, width=2 * channels)


class Summed(Model):
    """A whole model with names of its own: towers, whose gated sum a linear layer classifies."""

    paths: Mapping[str, str] = {
        "towers": "encoders",
        "gate": "fusion.shared.gate",
        "classifier": "head",
    }

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], outputs: int, width: int = 6) -> None:
        super().__init__()
        self.width = width
        self.towers = nn.ModuleDict({m: Tower(shape[0], width) for m, shape in shapes.items()})
        self.gate = nn.Parameter(torch.randn(width))
        self.classifier = nn.Linear(width, outputs)

    def forward(self, batch: Batch) -> Output:
        features = {
            m: encoded(tower, batch.inputs[m], batch.present[m], self.width)
            for m, tower in self.towers.items()
        }
        return self.join(features, batch.present)

    def join(self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Output:
        fused = torch.stack(list(features.values())).sum(0)
        embedding = torch.sigmoid(self.gate) * fused
        return Output(features, fused, embedding, self.classifier(embedding))

    def branch(self, modality: str) -> nn.Module:
        return nn.Linear(self.width, self.classifier.out_features)


class Blocks(Model):
    """A whole model whose names are paths already: a block of the fusion for every sensor."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], outputs: int, embedding: int = 8
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({m: Tower(shape[0]) for m, shape in shapes.items()})
        self.fusion = nn.ModuleDict(
            {
                "blocks": nn.ModuleDict({m: nn.Linear(6, embedding, bias=False) for m in shapes}),
                "shared": nn.LayerNorm(embedding),
            }
        )
        self.head = nn.Linear(embedding, outputs)

    def forward(self, batch: Batch) -> Output:
        features = {
            m: encoded(encoder, batch.inputs[m], batch.present[m], 6)
            for m, encoder in self.encoders.items()
        }
        return self.join(features, batch.present)

    def join(self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Output:
        blocks = self.fusion["blocks"]
        assert isinstance(blocks, nn.ModuleDict)
        fused = torch.stack([blocks[m](h) for m, h in features.items()]).sum(0)
        embedding = torch.relu(self.fusion["shared"](fused))
        return Output(features, fused, embedding, self.head(embedding))


class Partly(Blocks):
    """A whole model with weights and buffers that are in no state: frozen, drawn for all sensors in
    turn, and not persistent."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], outputs: int) -> None:
        super().__init__(shapes, outputs)
        for encoder in self.encoders.values():
            encoder.norm = nn.GroupNorm(2, 6)
            encoder.conv.requires_grad_(False)
        self.register_buffer("shift", torch.randn(8), persistent=False)

    def join(self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Output:
        output = super().join(features, present)
        embedding = torch.tanh(output.embedding + self.shift)
        return Output(features, output.fused, embedding, self.head(embedding))


class Frozen(nn.Module):
    """An encoder with a frozen layer and a buffer that is not persistent."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fixed = nn.Conv1d(channels, 6, 3).requires_grad_(False)
        self.conv = nn.Conv1d(6, 6, 3)
        self.register_buffer("shift", torch.randn(6, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(torch.relu(self.fixed(x) + self.shift))).mean(2)
