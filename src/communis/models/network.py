"""The multimodal network: encoders -> mask -> fusion -> embedding -> head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.core.contract import Batch, Model, Output
from communis.core.streams import Streams
from communis.models.encoders import Encoder
from communis.models.fusion import Fusion


class MLP(nn.Module):
    """Linear layers with ReLU between them; without hidden sizes one linear layer."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(sizes))
        self.hidden = nn.ModuleList([nn.Linear(a, b) for a, b in pairs[:-1]])
        self.out = nn.Linear(*pairs[-1])

    @property
    def layers(self) -> list[nn.Linear]:
        return [*cast(Iterable[nn.Linear], self.hidden), self.out]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = F.relu(layer(x))
        scores: Tensor = self.out(x)
        return scores


class Network(Model):
    """Paths: encoders.<modality>.*, fusion.blocks.<modality>.*, fusion.shared.*, head.*, and what a
    method adds in `equip`: unimodal.<modality>.*, private.*"""

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        fusion: Fusion,
        hidden: Sequence[int],
        outputs: int,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict(dict(sorted(encoders.items())))
        self.fusion = fusion
        self.embedding_size = fusion.features
        self.head_sizes = (self.embedding_size, *hidden, outputs)
        self.head = MLP(self.head_sizes)
        self.feature_sizes = {m: cast(Encoder, e).features for m, e in self.encoders.items()}
        self.open_to_any = fusion.open_to_any
        self.unimodal = nn.ModuleDict()
        self.private = nn.ModuleDict()

    def forward(self, batch: Batch) -> Output:
        encode = _encode_zeros if self.zero_fill else _encode
        features = {
            m: encode(cast(Encoder, encoder), batch.inputs[m], batch.present[m])
            for m, encoder in self.encoders.items()
        }
        return self.join(features, batch.present)

    def join(self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Output:
        fused, embedding = self.fusion(features, present)
        return Output(features, fused, embedding, self.head(embedding))

    def branch(self, modality: str) -> Branch:
        fusion = self.fusion.fresh({modality: self.feature_sizes[modality]})
        return Branch(modality, fusion, self.head_sizes)


class Branch(nn.Module):
    """What a network of one modality has behind its encoder. All of its samples are there."""

    def __init__(self, modality: str, fusion: Fusion, head_sizes: Sequence[int]) -> None:
        super().__init__()
        self.modality = modality
        self.fusion = fusion
        self.head = MLP(head_sizes)

    def forward(self, features: Tensor) -> Tensor:
        here = torch.ones(len(features), dtype=torch.bool, device=features.device)
        _, embedding = self.fusion({self.modality: features}, {self.modality: here})
        prediction: Tensor = self.head(embedding)
        return prediction


def _encode(encoder: Encoder, x: Tensor, present: Tensor) -> Tensor:
    """Features of the samples that are there, zeros for the others: an encoder, its BatchNorm and
    its gradients never meet what a masked sample holds."""
    if bool(present.all()):
        whole: Tensor = encoder(x)
        return whole
    rows = present.nonzero().squeeze(1)
    if not len(rows):  # a graph to what trains, so that gradients are zero and not missing
        trained = [p for p in encoder.parameters() if p.requires_grad]
        nothing = sum((p.sum() * 0 for p in trained), start=x.new_zeros(()))
        return x.new_zeros(len(x), encoder.features) + nothing
    some: Tensor = encoder(x[rows])
    return x.new_zeros(len(x), some.shape[1]).index_copy(0, rows, some)


def _encode_zeros(encoder: Encoder, x: Tensor, present: Tensor) -> Tensor:
    """Features of all samples, absent ones as if zeros had been measured: an encoder's biases make
    something of them, and absent sensors train it."""
    features: Tensor = encoder(x * present.view(-1, *[1] * (x.ndim - 1)))
    return features


def initialise(model: nn.Module, streams: Streams) -> None:
    """Every module draws its parameters from a stream named by its own path; frozen weights keep
    what their module gave them.

    So clients that share a path start from the same values whatever else they own, and a method
    that adds modules changes no other module's start.
    """
    for path, module in model.named_modules():
        if not any(p.requires_grad for p in module.parameters(recurse=False)):
            continue
        reset = getattr(module, "reset_parameters", None)
        if reset is None:
            raise TypeError(
                f"{path} ({type(module).__name__}) has parameters but no reset_parameters()"
            )
        with streams.torch(f"init/{path}"), torch.no_grad():
            reset()
