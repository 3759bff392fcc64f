"""Named architectures. All of one fusion kind share the embedding size, so one fleet can mix them
and still exchange prototypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from communis.core import CommunisError
from communis.models import encoders
from communis.models.fusion import Attention, Blocks
from communis.models.network import Network


@dataclass(frozen=True)
class Architecture:
    encoder: Literal["cnn1d", "cnn2d", "gru", "transformer"] = "cnn1d"
    width: int = 32  # of the first layer; features per modality are twice that
    fusion: Literal["blocks", "attention"] = "blocks"
    embedding: int = 128  # with blocks; attention gives 4 contexts x features
    hidden: tuple[int, ...] = ()  # hidden layers of the head
    norm: bool = False  # BatchNorm in convolutional encoders; its statistics stay local

    @property
    def name(self) -> str:
        """Its name in the zoo, or its own description."""
        return next((name for name, kind in ZOO.items() if kind == self), repr(self))

    def build(self, shapes: Mapping[str, Sequence[int]], outputs: int) -> Network:
        """A network for modalities with windows of these shapes (channels first); its parameters
        are not initialised yet."""
        parts = {m: self._encoder(m, shape) for m, shape in sorted(shapes.items())}
        sizes = {m: e.features for m, e in parts.items()}
        fusion = Blocks(sizes, self.embedding) if self.fusion == "blocks" else Attention(sizes)
        return Network(parts, fusion, self.hidden, outputs)

    def _encoder(self, modality: str, shape: Sequence[int]) -> encoders.Encoder:
        if self.encoder == "cnn2d":
            if len(shape) not in (2, 3) or min(shape) < 1:
                raise self._misfit(modality, shape, "(channels, rows, columns) or (rows, columns)")
            return encoders.CNN2d(shape[0] if len(shape) == 3 else 1, self.width, norm=self.norm)
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 4:
            raise self._misfit(modality, shape, "(channels, steps) with at least 4 steps")
        if self.encoder == "cnn1d":
            return (encoders.CNN1dNorm if self.norm else encoders.CNN1d)(shape[0], self.width)
        kind = encoders.GRU if self.encoder == "gru" else encoders.Transformer
        return kind(shape[0], self.width)

    def _misfit(self, modality: str, shape: Sequence[int], expected: str) -> CommunisError:
        return CommunisError(
            f"{self.name} takes windows of {expected}; {modality} has {tuple(shape)}"
        )


ZOO: Mapping[str, Architecture] = {
    "cnn_small": Architecture(width=16),
    "cnn": Architecture(width=32),
    "cnn_large": Architecture(width=64),
    "cnn_norm": Architecture(width=32, norm=True),
    "cnn2d": Architecture("cnn2d", width=16),
    "gru": Architecture("gru", width=32),
    "transformer": Architecture("transformer", width=32),
    "cnn_attention": Architecture(width=32, fusion="attention", hidden=(256, 128)),
}


def architecture(name: str, **changes: object) -> Architecture:
    """The named architecture, with fields changed."""
    if name not in ZOO:
        raise CommunisError(f"no architecture {name!r}; there are {', '.join(ZOO)}")
    return replace(ZOO[name], **changes)  # type: ignore[arg-type]
