"""Named architectures. All that fuse by blocks share the embedding size, so one fleet can mix them
and still exchange prototypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from communis.core import CommunisError
from communis.models import encoders
from communis.models.fusion import Attention, Blocks
from communis.models.network import Network


@dataclass(frozen=True)
class Architecture:
    # Of time series; images, point clouds and series too short for it have their own.
    encoder: Literal["cnn1d", "cnn2d", "gru", "transformer", "tpn", "tpn_mini"] = "cnn1d"
    width: int = 32  # features per modality are twice that
    fusion: Literal["blocks", "attention"] = "blocks"
    embedding: int = 128  # with blocks; attention gives 4 contexts x features
    hidden: tuple[int, ...] = ()  # hidden layers of the head
    norm: bool = False  # BatchNorm in cnn1d and cnn2d; its statistics stay local
    units: int = 128  # of the attention's scores

    @property
    def name(self) -> str:
        """Its name in the zoo, or its own description."""
        return next((name for name, kind in ZOO.items() if kind == self), repr(self))

    def build(
        self,
        shapes: Mapping[str, Sequence[int]],
        outputs: int,
        kinds: Mapping[str, str] = MappingProxyType({}),
    ) -> Network:
        """A network for modalities with windows of these shapes (channels first) and kinds; its
        parameters are not initialised yet."""
        parts = {
            m: self._encoder(m, shape, kinds.get(m, "series"))
            for m, shape in sorted(shapes.items())
        }
        sizes = {m: e.features for m, e in parts.items()}
        fusion = (
            Blocks(sizes, self.embedding)
            if self.fusion == "blocks"
            else Attention(sizes, units=self.units)
        )
        return Network(parts, fusion, self.hidden, outputs)

    def _encoder(self, modality: str, shape: Sequence[int], kind: str) -> encoders.Encoder:
        """Images, point clouds and series too short for the encoder have encoders of their own,
        with as many features as the others."""
        if len(shape) not in (2, 3) or min(shape) < 1:
            expected = "(channels, steps), (features, points) or (channels, rows, columns)"
            raise CommunisError(
                f"{self.name} takes windows of {expected}; {modality} has {tuple(shape)}"
            )
        if kind == "points":
            return encoders.Points(shape[0], self.width)
        if len(shape) == 3 or self.encoder == "cnn2d":
            return encoders.CNN2d(shape[0] if len(shape) == 3 else 1, self.width, norm=self.norm)
        chosen = OF_SERIES["cnn1d_norm" if self.norm and self.encoder == "cnn1d" else self.encoder]
        if shape[1] < chosen.shortest:
            return encoders.Dense(shape[0] * shape[1], self.width)
        return chosen(shape[0], self.width)


OF_SERIES: Mapping[str, type[encoders.Encoder]] = {
    "cnn1d": encoders.CNN1d,
    "cnn1d_norm": encoders.CNN1dNorm,
    "gru": encoders.GRU,
    "transformer": encoders.Transformer,
    "tpn": encoders.TPN,
    "tpn_mini": encoders.TPNMini,
}


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
}


def architecture(name: str, **changes: object) -> Architecture:
    """The named architecture, with fields changed."""
    if name not in ZOO:
        raise CommunisError(f"no architecture {name!r}; there are {', '.join(ZOO)}")
    return replace(ZOO[name], **changes)  # type: ignore[arg-type]
