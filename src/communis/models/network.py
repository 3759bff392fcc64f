"""The multimodal network: encoders -> mask -> fusion -> embedding -> head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.core.contract import Batch, Model, Output
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.models.encoders import Encoder
from communis.models.fusion import Fusion


class MLP(nn.Module):
    """Linear layers with ReLU between them; without hidden sizes, one linear layer."""

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
    """Encoders, fusion and head. Its paths are encoders.<modality>.*, fusion.blocks.<modality>.*,
    fusion.shared.*, head.*, and what a method adds in `equip`: unimodal.<modality>.*, private.*"""

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        fusion: Fusion,
        hidden: Sequence[int],
        outputs: int,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """sizes: the number of features of every encoder, if the encoders do not say it."""
        super().__init__()
        self.encoders = nn.ModuleDict(dict(sorted(encoders.items())))
        self.fusion = fusion
        self.embedding_size = fusion.features
        self.head_sizes = (self.embedding_size, *hidden, outputs)
        self.head = MLP(self.head_sizes)
        if sizes is None:
            sizes = {m: cast(Encoder, e).features for m, e in self.encoders.items()}
        self.feature_sizes = dict(sizes)
        self.open_to_any = fusion.open_to_any
        self.unimodal = nn.ModuleDict()
        self.private = nn.ModuleDict()

    def forward(self, batch: Batch) -> Output:
        features = {m: self.encode(m, batch.inputs[m], batch.present[m]) for m in self.encoders}
        return self.join(features, batch.present)

    def encode(self, modality: str, x: Tensor, present: Tensor) -> Tensor:
        """Returns the features (B, d_m) of a modality."""
        encoder = self.encoders[modality]
        if self.zero_fill:
            return _encode_zeros(encoder, x, present)
        return encoded(encoder, x, present, self.feature_sizes[modality])

    def join(self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Output:
        fused, embedding = self.fusion(features, present)
        return Output(features, fused, embedding, self.head(embedding))

    def branch(self, modality: str) -> Branch:
        fusion = self.fusion.fresh({modality: self.feature_sizes[modality]})
        return Branch(modality, fusion, self.head_sizes)


class Branch(nn.Module):
    """The fusion and head of a network of one modality, which all samples have."""

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


def encoded(encoder: nn.Module, x: Tensor, present: Tensor, size: int) -> Tensor:
    """Returns the features (B, size) of present samples, and zeros for the others. The values of a
    masked sample reach neither the encoder nor its BatchNorm nor its gradients."""
    if torch.compiler.is_compiling():  # a traced graph has no branch on values
        all_features: Tensor = encoder(x)
        return torch.where(present[:, None], all_features, torch.zeros_like(all_features))
    if bool(present.all()):
        features: Tensor = encoder(x)
        return features
    rows = present.nonzero().squeeze(1)
    if not len(rows):  # zeros that depend on the parameters, so that gradients are zero, not None
        trained = [p for p in encoder.parameters() if p.requires_grad]
        zero = sum((p.sum() * 0 for p in trained), start=x.new_zeros(()))
        return x.new_zeros(len(x), size) + zero
    of_present: Tensor = encoder(x[rows])
    return x.new_zeros(len(x), of_present.shape[1]).index_copy(0, rows, of_present)


def _encode_zeros(encoder: nn.Module, x: Tensor, present: Tensor) -> Tensor:
    """Returns the features of all samples, with zeros as the values of absent ones. Absent sensors
    therefore also train the encoder, through its biases."""
    features: Tensor = encoder(x * present.view(-1, *[1] * (x.ndim - 1)))
    return features


def initialise(model: nn.Module, streams: Streams) -> None:
    """Initialises every module from a random stream named by its path. Frozen weights keep the
    values that their module set, and so do the modules that `Model.started` names.

    Clients that share a path therefore start from the same values, whatever other paths they own,
    and a method that adds modules does not change the initial values of the others.
    """
    started = model.started if isinstance(model, Model) else ()
    for path, module in model.named_modules():
        if module in started or not any(p.requires_grad for p in module.parameters(recurse=False)):
            continue
        reset = getattr(module, "reset_parameters", None)
        if reset is None:
            raise CommunisError(
                f"{path} ({type(module).__name__}) has parameters but no reset_parameters(), which "
                "sets them before the first round: give it one"
            )
        with streams.torch(f"init/{path}"), torch.no_grad():
            reset()
