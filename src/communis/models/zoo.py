"""Named architectures. All that fuse by blocks, but for the wide one, share the embedding size, and
so do the three ConvNets: one fleet can mix them and still exchange prototypes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from torch import nn

from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.models import convnet, encoders, moment, temporal, tiny
from communis.models.fusion import Attention, Blocks, Fusion, Mean
from communis.models.graph import GraphLayer, SoftmaxLayer
from communis.models.lora import LoRABlocks
from communis.models.network import Network
from communis.models.own import Own, named
from communis.models.sglt import Sglt, SgltLayer, TokenFusion
from communis.models.tokens import tokenizer

Of = Literal[
    "cnn1d", "cnn2d", "gru", "transformer", "tpn", "tpn_mini", "lite", "wide", "tiny", "moment",
    "grid", "strided", "tiny_convnet4", "middle_convnet4", "large_convnet4", "tokens",
]  # fmt: skip
Fused = Literal[
    "blocks", "attention", "mean", "lora", "time_gru", "channel_gru", "sglt", "softmax", "graph"
]


@dataclass(frozen=True)
class Architecture:
    """An architecture, from which networks for given sensors are built."""

    encoder: Of = "cnn1d"  # encoder of time series; images, point clouds, short series have others
    # Half of the features per modality; with grid and strided: per step. With the fusion `mean` it
    # is half of the embedding instead.
    width: int = 32
    fusion: Fused = "blocks"
    embedding: int = (
        128  # embedding size, and width of tokens; with attention 4 contexts x features
    )
    hidden: tuple[int, ...] = ()  # sizes of the hidden layers of the head
    norm: bool = False  # BatchNorm in cnn1d and cnn2d; its statistics: `buffers` of the method
    units: int = 128  # hidden units of the attention scores
    weights: str = ""  # path of pretrained encoder weights; "random": untrained
    sglt: Sglt = field(default_factory=Sglt)  # settings of transformers on tokens

    @property
    def name(self) -> str:
        """The shortest name in the zoo, with the embedding size and the settings of tokens that
        differ; the repr if no named architecture matches."""
        bare = replace(self, weights="")
        names = [
            [name, *self._unlike(kind)]
            for name, kind in ZOO.items()
            if replace(kind, embedding=self.embedding, sglt=self.sglt) == bare
        ]
        shortest = min(names, key=len, default=[repr(self)])
        return "-".join(shortest)

    def _unlike(self, kind: Architecture) -> list[str]:
        size = [str(self.embedding)] if self.embedding != kind.embedding else []
        return size + [f"{key}={value}" for key, value in changed(self.sglt, kind.sglt).items()]

    @property
    def embedding_size(self) -> int:
        """The embedding size of the networks that it builds."""
        return 4 * 2 * self.width if self.fusion == "attention" else self.embedding

    @property
    def pretrained(self) -> bool:
        return self.encoder in PRETRAINED

    @property
    def follows(self) -> tuple[str, ...]:
        """The settings of tokens that it uses."""
        return TOKENS.get(self.fusion, ())

    def tuned(self, given: Mapping[str, Any]) -> Architecture:
        """Returns the architecture with those of the given settings of tokens that it uses."""
        used = {key: value for key, value in given.items() if key in self.follows}
        return replace(self, sglt=replace(self.sglt, **used))

    def check(self) -> None:
        """Raises an error if it cannot be built."""
        if (self.encoder == "tokens") != (self.fusion in TOKENS):
            raise CommunisError(
                f"encoder {self.encoder!r} and fusion {self.fusion!r} do not go together: "
                f"tokens are fused by {', '.join(TOKENS)}"
            )
        if self.fusion in TOKENS:
            with Streams().torch("build"):  # the heads may not divide the embedding
                self._layer(0)
        if self.pretrained and not self.weights:
            raise CommunisError(
                f"{self.name} needs pretrained weights: {PRETRAINED[self.encoder]}; for a trial, "
                f'set weights = "{tiny.RANDOM}", which are untrained'
            )

    @property
    def digest(self) -> str:
        """Identifies the pretrained weights: a hash of the file, or of the files in the folder; of
        the name if there are no files."""
        place = Path(self.weights).expanduser()
        files = [p for p in (place, *sorted(place.glob("*"))) if self.weights and p.is_file()]
        digest = hashlib.sha256(b"" if files else self.weights.encode())
        for file in files:
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def build(
        self,
        shapes: Mapping[str, Sequence[int]],
        outputs: int,
        kinds: Mapping[str, str] = MappingProxyType({}),
    ) -> Network:
        """Returns a network for modalities with windows of these shapes (channels first) and kinds.
        Its parameters are not initialised yet."""
        self.check()
        parts = {
            m: self._encoder(m, shape, kinds.get(m, "series"))
            for m, shape in sorted(shapes.items())
        }
        sizes = {m: e.features for m, e in parts.items()}
        if self.fusion == "mean" and any(size != self.embedding for size in sizes.values()):
            raise CommunisError(
                f"{self.name}: the mean needs encoders with as many features as the embedding, "
                f"{self.embedding}, which must be even; they have {sizes}: choose another encoder, "
                "embedding or fusion"
            )
        network = Network(parts, self._fusion(sizes), self.hidden, outputs)
        network.shapes = {m: tuple(shape) for m, shape in sorted(shapes.items())}
        return network

    def _layer(self, number: int) -> nn.Module:
        if self.fusion == "sglt":
            return SgltLayer(self.embedding, self.sglt, number)
        if self.fusion == "graph":
            return GraphLayer(self.embedding, self.sglt.heads, self.sglt.knn)
        return SoftmaxLayer(self.embedding, self.sglt.heads)

    def _fusion(self, sizes: Mapping[str, int]) -> Fusion:
        if self.fusion in TOKENS:
            return TokenFusion(sizes, self.embedding, self._layer, self.sglt.layers)
        if self.fusion == "attention":
            return Attention(sizes, units=self.units)
        if self.fusion == "mean":
            return Mean(sizes)
        if self.fusion in RECURRENT:
            return RECURRENT[self.fusion](sizes, 2 * self.width, self.embedding)
        if self.fusion == "blocks":
            return Blocks(sizes, self.embedding)
        return LoRABlocks(sizes, self.embedding)

    def _encoder(self, modality: str, shape: Sequence[int], kind: str) -> encoders.Encoder:
        """Returns the encoder of a modality. Images, point clouds and series too short for the
        encoder have encoders of their own, with as many features as the others."""
        if len(shape) not in (2, 3) or min(shape) < 1:
            expected = "(channels, steps), (features, points) or (channels, rows, columns)"
            raise CommunisError(
                f"{self.name} takes windows of {expected}; {modality} has {tuple(shape)}"
            )
        if self.encoder == "tokens":
            return tokenizer(modality, shape, kind, self.embedding, self.sglt.knn)
        width = self.embedding // 2 if self.fusion == "mean" else self.width
        if kind == "points":
            return encoders.Points(shape[0], width)
        if self.encoder in CONVNETS:
            chosen_convnet = CONVNETS[self.encoder]
            if len(shape) == 3:
                return chosen_convnet(shape[0], width, 2)
            if shape[1] == 1:  # one row of features
                return chosen_convnet(shape[0], width, 0)
            return chosen_convnet(shape[0], width, 1)
        if len(shape) == 3 or self.encoder == "cnn2d":
            return encoders.CNN2d(shape[0] if len(shape) == 3 else 1, width, norm=self.norm)
        chosen = OF_SERIES["cnn1d_norm" if self.norm and self.encoder == "cnn1d" else self.encoder]
        if shape[1] < chosen.shortest:
            return encoders.Dense(shape[0] * shape[1], width)
        if self.pretrained:
            return chosen(shape[0], shape[1], self.weights)
        if issubclass(chosen, temporal.Timed):
            return chosen(shape[0], shape[1], width)
        return chosen(shape[0], width)


CONVNETS: Mapping[str, type[convnet.ConvNet]] = {
    "tiny_convnet4": convnet.TinyConvNet4,
    "middle_convnet4": convnet.MiddleConvNet4,
    "large_convnet4": convnet.LargeConvNet4,
}
OF_SERIES: Mapping[str, type[encoders.Encoder]] = {
    "cnn1d": encoders.CNN1d,
    "cnn1d_norm": encoders.CNN1dNorm,
    "gru": encoders.GRU,
    "transformer": encoders.Transformer,
    "tpn": encoders.TPN,
    "tpn_mini": encoders.TPNMini,
    "lite": encoders.Lite,
    "wide": encoders.Wide,
    "tiny": tiny.Tiny,
    "moment": moment.Moment,
    "grid": temporal.Grid,
    "strided": temporal.Strided,
}
RECURRENT: Mapping[str, type[temporal.Temporal]] = {
    "time_gru": temporal.TimeGRU,
    "channel_gru": temporal.ChannelGRU,
}
TOKENS: Mapping[str, tuple[str, ...]] = {  # fusions of tokens, and the settings that they use
    "sglt": tuple(f.name for f in fields(Sglt)),
    "softmax": ("layers", "heads", "knn"),
    "graph": ("layers", "heads", "knn"),
}
PRETRAINED: Mapping[str, str] = {"tiny": tiny.HELP, "moment": moment.HELP}  # how to get weights


ZOO: Mapping[str, Architecture] = {
    "cnn_small": Architecture(width=16),
    "cnn": Architecture(width=32),
    "cnn_large": Architecture(width=64),
    "cnn_norm": Architecture(width=32, norm=True),
    "cnn2d": Architecture("cnn2d", width=16),
    "gru": Architecture("gru", width=32),
    "transformer": Architecture("transformer", width=32),
    "cnn_attention": Architecture(width=32, fusion="attention", hidden=(256, 128)),
    "tpn": Architecture("tpn", 48, "attention", hidden=(256, 128), units=512),
    "tpn_mini": Architecture("tpn_mini", 32, "attention", hidden=(256, 128), units=512),
    "lite": Architecture("lite", width=32),
    "wide": Architecture("wide", width=256, embedding=512, hidden=(128,)),
    "tiny_lora": Architecture("tiny", width=32, fusion="lora", embedding=64),
    "moment_lora": Architecture("moment", width=256, fusion="lora", embedding=512),
    "cnn_gru": Architecture("grid", width=8, fusion="channel_gru"),
    "cnn_gru_lite": Architecture("strided", width=32, fusion="time_gru"),
    "cnn_gru_lite96": Architecture("strided", width=32, fusion="time_gru", embedding=96),
    "tiny_convnet4": Architecture("tiny_convnet4", fusion="mean", embedding=256),
    "middle_convnet4": Architecture("middle_convnet4", fusion="mean", embedding=256),
    "large_convnet4": Architecture("large_convnet4", fusion="mean", embedding=256),
    "sglt": Architecture("tokens", fusion="sglt", embedding=64),
    "sglt_paper": Architecture("tokens", fusion="sglt", embedding=256, sglt=Sglt(heads=8)),
    "lat": Architecture(
        "tokens", fusion="sglt", embedding=64, sglt=Sglt(gate="none", operator="none")
    ),
    "self_attention": Architecture("tokens", fusion="softmax", embedding=64),
    "gat": Architecture("tokens", fusion="graph", embedding=64),
}

PURPOSE: Mapping[str, str] = {
    "cnn_small": "cnn with half of its channels, for small devices and quick trials",
    "cnn": "the usual choice: two convolutions over time per sensor",
    "cnn_large": "cnn with twice its channels, for fleets with many windows",
    "cnn_norm": "cnn with BatchNorm, which fedbn and others leave with their clients",
    "cnn2d": "two convolutions over rows and columns: images, depth, CSI",
    "gru": "a recurrent layer over every second step of time",
    "transformer": "self-attention over patches of eight steps of time",
    "cnn_attention": "cnn whose sensors are weighed by attention instead of by blocks",
    "tpn": "long kernels over time and attention over sensors, as in FedDUET",
    "tpn_mini": "tpn with short kernels, for slow sampling and small machines",
    "lite": "two strided convolutions over time, without BatchNorm: RELIEF's CNN",
    "wide": "lite with a million parameters that keeps eight steps of time",
    "tiny_lora": "adapters on a small frozen backbone; weights by `communis pretrain`",
    "moment_lora": "adapters on frozen MOMENT; needs its weights and the extra `moment`",
    "cnn_gru": "recurrent layers after the fusion of sensors: Harmony's network",
    "cnn_gru_lite": "the same idea with strided convolutions and one recurrent layer",
    "cnn_gru_lite96": "cnn_gru_lite with a smaller embedding, for mixed fleets",
    "tiny_convnet4": "FedAPA's smallest: one block, 7,956 parameters for CSI",
    "middle_convnet4": "FedAPA's second: two blocks, the least work for CSI",
    "large_convnet4": "FedAPA's own choice: five blocks, for CSI and other images or series",
    "sglt": "tokens of any number, attention through a gated spectrum: UMEDA's network",
    "sglt_paper": "sglt in UMEDA's own size: four times as wide, eight heads",
    "lat": "sglt without its gate and its shared operator: a Performer",
    "self_attention": "the same tokens through ordinary attention, for comparison with sglt",
    "gat": "the same tokens through graph attention to the eight nearest",
}  # the purpose of each architecture


def changed(settings: Sglt, other: Sglt) -> dict[str, Any]:
    """Returns the settings that differ from those of the other."""
    names = (f.name for f in fields(Sglt))
    return {n: getattr(settings, n) for n in names if getattr(settings, n) != getattr(other, n)}


def description(chosen: str | Architecture | Own) -> Architecture | Own:
    """Returns what networks are built from: of a name, the architecture or the network of the user
    (package.module:Class)."""
    if not isinstance(chosen, str):
        return chosen
    return named(chosen, {}) if ":" in chosen else architecture(chosen)


def architecture(name: str, **changes: object) -> Architecture:
    """Returns the named architecture, with fields changed."""
    if name not in ZOO:
        raise CommunisError(f"no architecture {name!r}; there are {', '.join(ZOO)}")
    return replace(ZOO[name], **changes)  # type: ignore[arg-type]
