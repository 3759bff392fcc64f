"""Networks of the user: an encoder per sensor, or a whole model.

    fleet.models = ["package.module:Class"]   # in a configuration; [fleet.own] holds its settings
    Fleet(windows, suites, models=(Class,))   # in Python

An encoder is any `nn.Module` that maps windows (B, channels, ...) to features (B, d). Every sensor
gets one of its own; fusion and head are those of the architectures in the zoo. A whole model
derives from `Model` (core/contract.py). The constructor is called with those of the offered values
whose names it has as parameters.

What a constructor sets is where training starts. Its random draws come from the seed, by sensor:
clients that share a path start from the same values, whatever other sensors they own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from communis.core import plugins
from communis.core.contract import Model
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.models import own_checks, own_sources
from communis.models.fusion import Attention, Blocks, Fusion, Mean
from communis.models.network import Network

EMBEDDING = 128  # as in the zoo
OF_ENCODERS = ("modality", "kind", "shape", "channels", "steps", "rows", "columns")
OF_MODELS = ("shapes", "kinds", "outputs", "embedding")
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_CHECKED: dict[tuple[object, ...], Mapping[str, int]] = {}  # sizes by network and windows


@dataclass(frozen=True)
class Own:
    """A class of the user, from which networks for given sensors are built."""

    network: type[nn.Module]
    settings: Any = ()  # arguments of the constructor by name; kept as sorted pairs
    embedding: int = 0  # embedding size; 0: 128, or what a whole model chooses
    hidden: tuple[int, ...] = ()  # sizes of the hidden layers of the head; of encoders only
    fusion: Literal["blocks", "attention", "mean"] = "blocks"  # of encoders only

    def __post_init__(self) -> None:
        refuse_others(self.network)
        settings = tuple(
            sorted((name, _frozen(value)) for name, value in dict(self.settings).items())
        )
        object.__setattr__(self, "settings", settings)
        offered = OF_MODELS if self.whole else OF_ENCODERS
        for name in dict(settings):
            if name in offered:
                raise self.refusal(f"its setting {name} is given by the fleet: leave it out")
            if not self.accepts(name):
                raise self.refusal(f"its constructor has no {name}; it has {self.parameters()}")
        try:
            hash(settings)
        except TypeError:
            raise self.refusal(
                "its settings may be numbers, texts, true or false, and lists of these"
            ) from None
        if self.whole and (self.hidden or self.fusion != "blocks"):
            raise self.refusal("a whole model brings its own fusion and head: leave them out")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by the dotted name, which another process has to be able to import."""
        found: Any = sys.modules.get(self.network.__module__)
        for name in self.network.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is not self.network:
            raise self.refusal(
                "a process that is not forked cannot import it: define the class at the top of a "
                "module, or set run.workers = 1"
            )
        return Own, (self.network, self.settings, self.embedding, self.hidden, self.fusion)

    @property
    def whole(self) -> bool:
        """Whether the class is a whole model rather than an encoder."""
        return issubclass(self.network, Model)

    @property
    def dotted(self) -> str:
        # A process that is not forked imports the user's script under another name.
        module = self.network.__module__.replace("__mp_main__", "__main__")
        return f"{module}:{self.network.__qualname__}"

    @property
    def name(self) -> str:
        """The dotted name with all that is not a default."""
        parts = [self.dotted]
        if self.embedding:
            parts.append(str(self.embedding))
        if self.hidden:
            parts.append(f"hidden={self.hidden}")
        if self.fusion != "blocks":
            parts.append(self.fusion)
        return "-".join([*parts, *(f"{name}={value!r}" for name, value in self.settings)])

    @cached_property
    def digest(self) -> str:
        """Identifies the source of the class: a checkpoint is continued only with the same."""
        return own_sources.digest(self.network)

    def refusal(self, why: str) -> CommunisError:
        return CommunisError(f"models: {self.dotted}: {why}")

    def parameters(self) -> str:
        """Returns the names of the constructor's parameters in words."""
        return ", ".join(self._signature) or "no parameters"

    def takes(self, name: str) -> bool:
        """Returns whether the constructor has a parameter of this name."""
        found = self._signature.get(name)
        return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)

    def accepts(self, name: str) -> bool:
        """Returns whether the constructor can be called with an argument of this name."""
        return self.takes(name) or any(p.kind is p.VAR_KEYWORD for p in self._signature.values())

    @property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.network).parameters

    def build(
        self,
        shapes: Mapping[str, Sequence[int]],
        outputs: int,
        kinds: Mapping[str, str] = MappingProxyType({}),
    ) -> Model:
        """Returns a network for modalities with windows of these shapes (channels first) and kinds.
        All draws follow from the state of torch's generator."""
        # One stream per sensor, so that a client with fewer sensors gets the same encoders.
        streams = Streams(int(torch.randint(2**62, ())))
        windows = {m: tuple(shape) for m, shape in sorted(shapes.items())}
        if self.whole:
            return self._built_whole(windows, outputs, kinds, streams)
        parts: dict[str, nn.Module] = {}
        sizes: dict[str, int] = {}
        for m, shape in windows.items():
            kind = kinds.get(m, "series")
            sizes[m] = self._features(m, shape, kind)
            parts[m] = self._encoder(m, shape, kind, streams)
        network = OwnNetwork(parts, self._fusion(sizes), self.hidden, outputs, sizes)
        network.shapes = windows
        network.paths = _paths(network)
        network.started = frozenset(network.encoders.modules())
        return network

    def check_equipped(self, model: Model) -> None:
        """Refuses what a method asks of a whole model that does not know it."""
        knows = any("zero_fill" in vars(c) for c in self.network.__mro__ if c not in Model.__mro__)
        if self.whole and model.zero_fill and not knows:
            raise self.refusal(
                'mask_mode = "input_zero" feeds zeros to the encoders of absent sensors: let '
                "forward do so where self.zero_fill is set, and state zero_fill: bool = False in "
                "the class; or choose another mask_mode"
            )

    def _encoder(
        self, modality: str, shape: tuple[int, ...], kind: str, streams: Streams
    ) -> nn.Module:
        offered = {"modality": modality, "kind": kind, "shape": shape, "channels": shape[0]}
        offered |= zip(
            ("steps",) if len(shape) == 2 else ("rows", "columns"), shape[1:], strict=True
        )
        encoder = self._constructed(offered, f"encoders/{modality}", modality, shape, streams)
        own_checks.materialise(self, encoder, own_checks.windows(shape, 2), streams)
        return encoder

    def _features(self, modality: str, shape: tuple[int, ...], kind: str) -> int:
        """Returns the number of features of an encoder, after it was tried."""
        key = (self, modality, shape, kind)
        if key not in _CHECKED:
            one, other = (self._encoder(modality, shape, kind, Streams(0)) for _ in range(2))
            self._compare(one, other)
            _CHECKED[key] = {"": own_checks.of_encoder(self, one, modality, shape)}
        return _CHECKED[key][""]

    def _compare(self, one: nn.Module, other: nn.Module) -> None:
        with own_checks.code_of(self, "when its parameters are read"):
            own_checks.alike(self, one, other)

    def _fusion(self, sizes: Mapping[str, int]) -> Fusion:
        if self.fusion == "blocks":
            return Blocks(sizes, self.embedding or EMBEDDING)
        if len(set(sizes.values())) > 1:
            raise self.refusal(
                f"fusion = {self.fusion!r} needs as many features from every sensor, got {sizes}: "
                'choose fusion = "blocks"'
            )
        fusion = Attention(sizes) if self.fusion == "attention" else Mean(sizes)
        if self.embedding not in (0, fusion.features):
            raise self.refusal(
                f"with fusion = {self.fusion!r} the embedding has {fusion.features} numbers: leave "
                f"embedding = {self.embedding} out"
            )
        return fusion

    def _built_whole(
        self,
        windows: Mapping[str, tuple[int, ...]],
        outputs: int,
        kinds: Mapping[str, str],
        streams: Streams,
    ) -> Model:
        key = (self, tuple(windows.items()), outputs, tuple(sorted(kinds.items())))
        if key not in _CHECKED:
            one, other = (self._model(windows, outputs, kinds, Streams(0)) for _ in range(2))
            self._compare(one, other)
            _CHECKED[key] = own_checks.of_model(self, one, windows, outputs)
        sizes = dict(_CHECKED[key])
        model = self._model(windows, outputs, kinds, streams)
        model.embedding_size = sizes.pop("")
        model.feature_sizes = sizes
        if not hasattr(model, "head_sizes"):
            model.head_sizes = (model.embedding_size, outputs)
        return model

    def _model(
        self,
        windows: Mapping[str, tuple[int, ...]],
        outputs: int,
        kinds: Mapping[str, str],
        streams: Streams,
    ) -> Model:
        """Returns the model with the attributes of the contract that need no forward pass."""
        of_windows = {m: kinds.get(m, "series") for m in windows}
        offered: dict[str, Any] = {"shapes": dict(windows), "kinds": of_windows, "outputs": outputs}
        if self.embedding:
            if not self.takes("embedding"):
                raise self.refusal(
                    f"embedding = {self.embedding} would change nothing: leave it out, or give the "
                    "constructor a parameter embedding"
                )
            offered["embedding"] = self.embedding
        sensors = ", ".join(windows)
        model = self._constructed(offered, "model", sensors, windows, streams)
        assert isinstance(model, Model)
        own_checks.refuse_hidden(self, model)
        model.shapes = windows
        for name in ("unimodal", "private"):
            if not hasattr(model, name):
                setattr(model, name, nn.ModuleDict())
        if not hasattr(model, "open_to_any"):
            model.open_to_any = False
        own_checks.materialise(self, model, own_checks.batch(windows, 2), streams)
        model.paths = _paths(model)
        model.started = frozenset(model.modules())
        return model

    def _constructed(
        self,
        offered: Mapping[str, Any],
        stream: str,
        sensors: str,
        shape: object,
        streams: Streams,
    ) -> nn.Module:
        """Calls the constructor with the settings and with what it takes of the offered values."""
        given = {name: value for name, value in offered.items() if self.takes(name)}
        given |= dict(self.settings)
        for name, parameter in self._signature.items():
            optional = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if not optional and parameter.default is parameter.empty and name not in given:
                raise self.refusal(
                    f"its constructor needs {name}, which is not offered for {sensors} with "
                    f"windows {shape} (there are {', '.join(offered)}): give it a default, or a "
                    "value in [fleet.own]"
                )
        with own_checks.code_of(self, f"when it is built for {sensors}"), streams.torch(stream):
            made = self.network(**given)
        if not isinstance(made, nn.Module):  # __new__ may return anything
            raise self.refusal(f"building it gave {type(made).__name__}, not an nn.Module")
        return made


class OwnNetwork(Network):
    """A network with encoders of the user."""

    def encode(self, modality: str, x: Tensor, present: Tensor) -> Tensor:
        # Windows are stored channels-last, and not every encoder takes such strides.
        features = super().encode(modality, x.contiguous(), present)
        expected = (len(x), self.feature_sizes[modality])
        if features.shape != expected:
            raise CommunisError(
                f"models: {type(self.encoders[modality]).__name__} returned features of shape "
                f"{tuple(features.shape)} for {modality}, expected {expected}: the number of "
                "features may not depend on the windows"
            )
        return features


def _paths(model: Model) -> dict[str, str]:
    """Returns the beginnings of names and paths such that normalisation layers can be told by their
    paths: a part of each begins with "norm", as in the architectures of the zoo."""
    paths = dict(model.paths)
    for name, module in model.named_modules():
        if not isinstance(module, _NORMS):
            continue
        path = model.path_of(name)
        if not any(part.startswith("norm") for part in _within(path)):
            paths[name] = f"{path}.norm"
    return paths


def _within(path: str) -> list[str]:
    """Returns the parts of a path after the modality."""
    parts = path.split(".")
    if parts[0] in ("encoders", "unimodal"):
        return parts[2:]
    return parts[3:] if parts[:2] == ["fusion", "blocks"] else parts[1:]


def named(name: str, settings: Mapping[str, Any], embedding: int = 0) -> Own:
    """Returns the network `package.module:Class`, with those of the settings that it takes."""
    bare = Own(_class(name))
    taken = {key: value for key, value in settings.items() if bare.accepts(key)}
    return replace(bare, settings=taken, embedding=embedding)


def _class(name: str) -> type[nn.Module]:
    found = plugins.network(name)
    if not isinstance(found, type):
        raise CommunisError(
            f"models: {name!r} is no class, but {type(found).__name__}: name a class"
        )
    return found


def refuse_others(network: object) -> None:
    """Refuses what is not a class of networks."""
    if isinstance(network, nn.Module):
        raise CommunisError(
            f"models: got a network ({type(network).__name__}); give its class, because every "
            "client trains a network of its own"
        )
    if not (isinstance(network, type) and issubclass(network, nn.Module)):
        what = getattr(network, "__name__", repr(network))
        raise CommunisError(
            f"models: {what} is no class that derives from torch.nn.Module (an encoder) or from "
            "communis.Model (a whole model)"
        )


def _frozen(value: Any) -> Any:
    """Returns a setting that can be hashed: a list becomes a tuple."""
    if isinstance(value, Mapping):
        raise CommunisError(
            "fleet.own: a setting of a network is a number, a text or a list, no table"
        )
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return value
