"""Tries networks of the user on a few windows before anything is trained, and refuses by name what
cannot work: in federated training, with missing sensors, with several processes or after a resume.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import communis
from communis.core import memory
from communis.core.contract import Batch, Model, Output
from communis.core.errors import CommunisError
from communis.core.names import PARTS
from communis.core.streams import Streams

WINDOWS = 3  # of most trials
_ONE_VALUE = "Expected more than 1 value per channel"  # of torch's BatchNorm
_COMMUNIS = Path(str(communis.__file__)).parent
Passed = Mapping[str, Tensor]  # what a forward pass gave, by name


class Named(Protocol):
    """The description of a network of the user (`own.Own`)."""

    @property
    def dotted(self) -> str: ...
    def refusal(self, why: str) -> CommunisError: ...


def windows(shape: Sequence[int], count: int) -> Tensor:
    """Returns windows of noise."""
    noise = Streams().generator("trial").standard_normal((count, *shape), "float32")
    return torch.from_numpy(noise)


def batch(shapes: Mapping[str, Sequence[int]], count: int, absent: Sequence[int] = ()) -> Batch:
    """Returns a batch of noise. absent: one number per sensor; the sensor's first so many windows
    lack it."""
    here = {}
    inputs = {}
    for m, missing in zip(shapes, absent or [0] * len(shapes), strict=True):
        here[m] = torch.arange(count) >= missing
        inputs[m] = windows(shapes[m], count) * here[m].view(-1, *[1] * len(shapes[m]))
    return Batch(inputs, here, torch.zeros(count, dtype=torch.long))


@contextmanager
def code_of(own: Named, when: str) -> Iterator[None]:
    """Names the network, the place and the occasion in whatever its code raises."""
    try:
        yield
    except (CommunisError, KeyboardInterrupt):
        raise
    except BaseException as error:  # it may raise anything, SystemExit included
        if memory.is_short(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        users = [f for f in frames if not _is_foreign(Path(f.filename))]
        place = f" ({Path(users[-1].filename).name}, line {users[-1].lineno})" if users else ""
        mend = ""
        if _ONE_VALUE in str(error):
            mend = (
                ". The last batch of a client may be one window, for which BatchNorm has no "
                "statistics: normalise before the mean over time, take LayerNorm or GroupNorm, or "
                "call normed() of communis.models.temporal"
            )
        what = f"{type(error).__name__}: {error}"
        raise own.refusal(f"it fails {when}: {what}{place}{mend}") from error


def _is_foreign(file: Path) -> bool:
    return "site-packages" in file.parts or file.is_relative_to(_COMMUNIS)


def materialise(own: Named, network: nn.Module, given: object, streams: Streams) -> None:
    """Passes windows through a network with lazy layers, which have no sizes before."""
    if not any(is_lazy(p) for p in (*network.parameters(), *network.buffers())):
        return
    when = "on the first windows, which give lazy layers their sizes"
    with code_of(own, when), streams.torch("lazy"), torch.no_grad():
        network.eval()
        network(given)
    network.train()
    for name, p in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(p):
            raise own.refusal(
                f"its lazy layer {name.rpartition('.')[0]} is not used by the first windows, so "
                "its size stays unknown: give it its size"
            )


def alike(own: Named, one: nn.Module, other: nn.Module) -> None:
    """Requires that two networks of one seed have the same values and share no memory, and that
    their parameters can be trained and sent."""
    first = {**dict(one.named_parameters()), **dict(one.named_buffers())}
    second = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    if {n: t.shape for n, t in first.items()} != {n: t.shape for n, t in second.items()}:
        raise own.refusal(
            "two networks for the same windows have different parameters: they may depend on the "
            "arguments of the constructor alone"
        )
    persistent = one.state_dict(keep_vars=True)
    for name, value in persistent.items():
        if not isinstance(value, Tensor):
            raise own.refusal(
                f"its state has {name}, which is no tensor: leave get_extra_state out"
            )
    for name, tensor in first.items():
        if any(character in name for character in "@/"):
            raise own.refusal(f"the name {name!r} has a character that paths cannot have (@ or /)")
        if isinstance(tensor, nn.Parameter) or name in persistent:
            if (
                tensor.is_floating_point() or tensor.is_complex()
            ) and tensor.dtype != torch.float32:
                raise own.refusal(
                    f"{name} is {str(tensor.dtype).removeprefix('torch.')}; models are trained and "
                    "sent as float32: create it so"
                )
            if tensor.numel() and tensor.data_ptr() == second[name].data_ptr():
                raise own.refusal(
                    f"two networks share {name}, but every client has its own: create it in "
                    "__init__, not outside of it"
                )
        if not torch.equal(_bits(tensor), _bits(second[name])):
            raise own.refusal(
                f"its constructor sets {name} to other values each time although the seed is the "
                "same: draw from torch, not from numpy or random, without a Generator of your own, "
                "and leave no torch.empty unfilled"
            )


def _bits(tensor: Tensor) -> Tensor:
    """Returns the values such that NaN equals NaN."""
    flat = tensor.detach().contiguous().flatten()
    return (
        torch.view_as_real(flat).view(torch.uint8) if flat.is_complex() else flat.view(torch.uint8)
    )


def of_encoder(own: Named, encoder: nn.Module, modality: str, shape: Sequence[int]) -> int:
    """Returns the number of features of an encoder that can be trained."""
    sizes = set()

    def passed(count: int, zeros: bool = False) -> Passed:
        given = torch.zeros(count, *shape) if zeros else windows(shape, count)
        before = given.clone()
        features = encoder(given)
        if not isinstance(features, Tensor):
            raise own.refusal(
                f"it returned {type(features).__name__} for {modality}, expected a tensor of shape "
                "(windows, features)"
            )
        _refuse_type(own, features, "features")
        if features.ndim != 2 or len(features) != count or not features.shape[1]:
            raise own.refusal(
                f"it returned shape {tuple(features.shape)} for {count} windows of {modality} "
                f"{tuple(given.shape)}, expected ({count}, features): end with a mean over time or "
                "with flatten(1)"
            )
        _refuse_written(own, before, given, modality)
        sizes.add(features.shape[1])
        return {"features": features}

    on = f"on windows of {modality} {tuple(shape)}"
    _repeatable(own, encoder, passed, on)
    if len(sizes) > 1:
        raise own.refusal(f"its features have different sizes, {sorted(sizes)}, {on}: fix one")
    return int(sizes.pop())


def of_model(
    own: Named, model: Model, shapes: Mapping[str, Sequence[int]], outputs: int
) -> dict[str, int]:
    """Returns the number of features of every sensor of a whole model that can be trained, and the
    size of the embedding as ""."""
    if not any(p.requires_grad for p in model.parameters()):
        raise own.refusal("it has no parameters to train: create layers in __init__")
    _refuse_paths(own, model, shapes)
    sizes: dict[str, set[int]] = defaultdict(set)

    def passed(count: int, zeros: bool = False) -> Passed:
        given: dict[str, Tensor] = {}
        for number, absent in enumerate(_absences(len(shapes), count)):
            made = batch(shapes, count, absent)
            if zeros:
                made = Batch({m: x * 0 for m, x in made.inputs.items()}, made.present, made.target)
            before = {m: x.clone() for m, x in made.inputs.items()}
            output = model(made)
            for m, x in made.inputs.items():
                _refuse_written(own, before[m], x, m)
            for name, tensor in _tensors(own, output, made, outputs).items():
                sizes[name].add(tensor.shape[1])
                given[f"{name}/{number}"] = tensor
        return given

    _repeatable(own, model, passed, f"on windows of {', '.join(shapes)}")
    for name, found in sizes.items():
        if len(found) > 1:
            raise own.refusal(f"{name} of its output has different sizes, {sorted(found)}: fix one")
    features = {m: sizes[f"features of {m}"].pop() for m in shapes}
    return {**features, "": sizes["embedding"].pop()}


def _absences(sensors: int, count: int) -> list[list[int]]:
    """Returns how many windows lack each sensor: none, some, all of one sensor, all of all."""
    none = [0] * sensors
    some = [(i + 1) % 2 * (count // 2) for i in range(sensors)]
    one = [count, *none[1:]]
    return [none, some, one, [count] * sensors]


def _tensors(own: Named, output: object, given: Batch, outputs: int) -> Passed:
    """Returns the tensors of an output, each (B, size)."""
    if not isinstance(output, Output):
        raise own.refusal(
            f"forward returned {type(output).__name__}, expected communis.Output(features, fused, "
            "embedding, prediction); a class that maps windows to features derives from "
            "torch.nn.Module instead"
        )
    if {*output.features} != {*given.inputs}:
        raise own.refusal(
            f"its output has features of {sorted(output.features)}, expected one entry for each of "
            f"{sorted(given.inputs)}"
        )
    tensors = {f"features of {m}": h for m, h in output.features.items()}
    tensors |= {"fused": output.fused, "embedding": output.embedding}
    tensors["prediction"] = output.prediction
    for name, tensor in tensors.items():
        _refuse_type(own, tensor, name)
        size = outputs if name == "prediction" else None
        if tensor.ndim != 2 or len(tensor) != len(given) or size not in (None, tensor.shape[1]):
            raise own.refusal(
                f"{name} of its output has shape {tuple(tensor.shape)} for {len(given)} windows, "
                f"expected ({len(given)}, {size or 'numbers'})"
            )
    for m, h in output.features.items():
        if bool((h[~given.present[m]] != 0).any()):
            raise own.refusal(
                f"features of {m} are not zero where the sensor is absent: encode with "
                "communis.models.network.encoded(encoder, x, present, size)"
            )
    return tensors


def _repeatable(own: Named, network: nn.Module, passed: Callable[..., Passed], on: str) -> None:
    """Requires that a network computes and trains, and that its outputs follow from its parameters,
    its buffers, the windows and, in training only, torch's generator."""
    held = [(t, t.detach().clone()) for t in (*network.parameters(), *network.buffers())]
    trained = [p for p in network.parameters() if p.requires_grad]

    def once(count: int, stream: str, zeros: bool = False) -> Passed:
        with torch.no_grad():
            for tensor, value in held:
                tensor.copy_(value)
        with Streams().torch(stream):
            return passed(count, zeros)

    network.eval()
    with code_of(own, f"in evaluation {on}"), torch.no_grad():
        for count in (1, WINDOWS):
            once(count, "trial")
        for tensor in once(WINDOWS, "trial", zeros=True).values():
            if not bool(torch.isfinite(tensor).all()):
                raise own.refusal(
                    f"it gives NaN or infinity {on} that are zero throughout, as where a signal "
                    "does not change: add a small number before a division, root or logarithm"
                )
        if not _same(once(WINDOWS, "one"), once(WINDOWS, "other")):
            raise own.refusal(
                f"its outputs in evaluation {on} are random: draw in training only, as nn.Dropout "
                "does, or F.dropout with training=self.training"
            )
    network.train()
    with code_of(own, f"in training {on}"), torch.enable_grad():
        for count in (1, WINDOWS):
            made = once(count, "trial")
            total = torch.stack([t.sum() for t in made.values()]).sum()
            if trained and not total.requires_grad:
                raise own.refusal(
                    f"no gradient reaches its parameters {on}: leave detach() and no_grad() out of "
                    "forward"
                )
            if trained:
                torch.autograd.grad(total, trained, allow_unused=True)
        if not _same(once(WINDOWS, "trial"), once(WINDOWS, "trial")):
            raise own.refusal(
                f"its outputs in training {on} follow neither from its parameters and buffers nor "
                "from torch's generator: draw from torch, not from numpy or random, and keep no "
                "values between calls outside of buffers"
            )


def _same(one: Passed, other: Passed) -> bool:
    return all(torch.equal(_bits(one[name]), _bits(other[name])) for name in one)


def _refuse_type(own: Named, tensor: object, what: str) -> None:
    if not isinstance(tensor, Tensor):
        raise own.refusal(f"{what} is {type(tensor).__name__}, expected a tensor")
    if tensor.dtype != torch.float32:
        raise own.refusal(
            f"{what} is {str(tensor.dtype).removeprefix('torch.')}, expected float32: leave "
            "conversions out of forward"
        )


def _refuse_written(own: Named, before: Tensor, after: Tensor, modality: str) -> None:
    if not torch.equal(before, after):
        raise own.refusal(
            f"forward changes the windows of {modality} in place, which others read after it: "
            "compute a new tensor (x = x * 2 in place of x *= 2)"
        )


def refuse_hidden(own: Named, model: Model) -> None:
    """Refuses parts whose names mean something else in every model."""
    for name in (*model._modules, *model._parameters, *model._buffers):
        if hasattr(type(model), name):
            raise own.refusal(f"its part {name} has a name that communis.Model uses: rename it")


def _refuse_paths(own: Named, model: Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuses names of parameters that methods cannot tell apart by what they belong to."""
    named = dict(model.named_parameters(remove_duplicate=False))
    persistent = model.state_dict(keep_vars=True)
    part_of: dict[int, tuple[str, str]] = {}  # by tensor: its part and its name
    name_of: dict[str, str] = {}  # by path
    for name, tensor in {**named, **persistent}.items():
        path = model.path_of(name)
        part = _part(path, shapes)
        if not part:
            raise own.refusal(
                f"{name} has the path {path}, which belongs to no part of a model: rename it, or "
                "say in the class where it belongs, as in paths = {"
                f'"{name.partition(".")[0]}": "head"}}; there are encoders.SENSOR, fusion.shared, '
                f"fusion.blocks.SENSOR, head and private, with SENSOR in {', '.join(shapes)}"
            )
        if path in name_of:
            raise own.refusal(f"{name_of[path]} and {name} both have the path {path}: rename one")
        name_of[path] = name
        known, other = part_of.setdefault(id(tensor), (part, name))
        if known != part:
            raise own.refusal(
                f"{other} and {name} are one tensor in two parts of the model, {known} and {part}, "
                "which methods share apart from each other: make two, or move it to one part"
            )


def _part(path: str, shapes: Mapping[str, Sequence[int]]) -> str:
    """Returns the part of a model that a path belongs to; empty if it belongs to none."""
    first, *inner = path.split(".")
    if first not in PARTS or not inner:
        return ""
    if first in ("encoders", "unimodal"):
        return f"{first}.{inner[0]}" if inner[0] in shapes and len(inner) > 1 else ""
    if first == "fusion":
        if inner[0] == "blocks":
            known = len(inner) > 2 and inner[1] in shapes
            return f"fusion.blocks.{inner[1]}" if known else ""
        return "fusion" if len(inner) > 1 else ""
    return first
