"""FLOPs of training and of a forward pass, counted by torch while a few windows pass through.

Counted are the matrix products, convolutions and attention that are really carried out, a
multiply-add as 2. What works element by element (activations, normalisation, pooling, the
optimiser's step) counts nothing. The backward pass is the weight gradients of what trains and the
gradients that must come down to it. On request, a forward pass is counted as many papers do:
normalisation as 2 per value, an activation as 1, pooling as 1 per value that goes in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from communis.core.contract import Batch, Modality, Model, Output, Samples

Loss = Callable[[Output, Batch], Tensor]
WINDOWS = 4  # are enough to count by
_aten = torch.ops.aten
_FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,  # what torch knows, and what it lacks: products in place, attention on CPUs
    _aten.addmm_: flop_registry[_aten.addmm],
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        _aten._scaled_dot_product_flash_attention
    ],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}


def _per_value(flops: int) -> Callable[..., int]:
    """Of the first argument, unless it is a mask or a count."""
    return lambda x, *_, **__: flops * x.numel() * x.is_floating_point()


_NORMALISATION = (
    _aten.native_batch_norm,
    _aten.cudnn_batch_norm,
    _aten.native_layer_norm,
    _aten.native_group_norm,
)
_ACTIVATION = (
    _aten.relu,
    _aten.relu_,
    _aten.gelu,
    _aten.tanh,
    _aten.tanh_,
    _aten.sigmoid,
    _aten.sigmoid_,
    _aten._softmax,
)
_POOLING = (
    _aten.mean,
    _aten.sum,
    _aten.amax,
    _aten.max_pool2d_with_indices,
    _aten.adaptive_max_pool2d,
    _aten._adaptive_avg_pool2d,
)
_ELEMENTWISE: Mapping[Any, Callable[..., int]] = {
    **dict.fromkeys(_NORMALISATION, _per_value(2)),
    **dict.fromkeys((*_ACTIVATION, *_POOLING), _per_value(1)),
    _aten.maximum: _per_value(2),  # of two neighbours
}


@dataclass(frozen=True)
class Cost:
    """FLOPs per window of a training step."""

    forward: float
    backward: float


class Meter:
    """Counts once what a training step of a model costs, and remembers it."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Model, dict[Hashable, Cost]] = WeakKeyDictionary()

    def per_window(
        self, model: Model, loss: Loss, samples: Samples, key: Hashable, without: Modality = ""
    ) -> Cost:
        """Of windows with all sensors, or all but `without`. The model trains what requires
        gradients now; `key` stands for that and for the loss."""
        known = self._known.setdefault(model, {})
        if (key, without) not in known:
            known[key, without] = _counted(model, loss, samples, without)
        return known[key, without]

    def spent(
        self,
        model: Model,
        loss: Loss,
        samples: Samples,
        key: Hashable,
        passes: float,
        owned: Collection[Modality] | None = None,
    ) -> tuple[float, float]:
        """FLOPs, forward and backward, of so many passes over the samples. A window without one of
        the sensors that a client owns (if not said, all) saves what its branch costs; savings of
        several add up. A branch for a sensor that it does not own is paid for as if it had one:
        that is what padding with zeros costs."""
        if not passes or not len(samples):
            return 0.0, 0.0
        full = self.per_window(model, loss, samples, key)
        forward, backward = len(samples) * full.forward, len(samples) * full.backward
        gone = {m: n for m, n in samples.missing.items() if owned is None or m in owned}
        for modality, windows in gone.items():
            less = self.per_window(model, loss, samples, key, without=modality)
            forward -= windows * (full.forward - less.forward)
            backward -= windows * (full.backward - less.backward)
        return passes * forward, passes * backward


def forward_flops(
    model: Model, shapes: Mapping[Modality, Sequence[int]], elementwise: bool = False
) -> float:
    """Of one window with all sensors, in evaluation; `shapes` of the windows, channels first.
    elementwise: with normalisation, activations and pooling, which else count nothing."""
    device = next(model.parameters()).device
    inputs = {m: torch.zeros(WINDOWS, *shape, device=device) for m, shape in shapes.items()}
    target = torch.zeros(WINDOWS, dtype=torch.long, device=device)
    batch = _with_all(Batch(inputs, dict.fromkeys(shapes, target), target))
    with _untouched(model), torch.no_grad():
        _cleared(model)
        with _Counter(elementwise) as counter:
            model.eval()
            model(batch)
    return float(counter.flops) / WINDOWS


def _cleared(model: Model) -> None:
    """Zeros in place of what a model holds that was just built: memory as it was found, on which a
    decomposition need not converge. What is counted does not depend on values."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.zero_()


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """As torch's FlopCounterMode, but does not tell modules apart, which costs it 1.4 s and 70 MB
    of imports in every process."""

    def __init__(self, elementwise: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self._formulas = {**_FORMULAS, **_ELEMENTWISE} if elementwise else _FORMULAS

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the compiler is not at work here: do not load it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if formula := self._formulas.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _counted(model: Model, loss: Loss, samples: Samples, without: Modality) -> Cost:
    batch = _with_all(_some(samples), without)
    trained = [p for p in model.parameters() if p.requires_grad]
    with _untouched(model), torch.enable_grad(), _Counter() as counter:
        model.train()
        value = loss(model(batch), batch)
        forward = counter.flops
        if trained and value.requires_grad:
            torch.autograd.grad(value, trained, allow_unused=True)
    return Cost(forward / len(batch), (counter.flops - forward) / len(batch))


def _some(samples: Samples) -> Batch:
    """The first windows, over and over if there are few, and zeros if there are none: what a step
    costs must not depend on who is looked at first."""
    batch = samples.batch(torch.arange(WINDOWS if len(samples) else 0) % max(1, len(samples)))
    if len(batch):
        return batch
    inputs, present, target = (
        {m: x.new_zeros(WINDOWS, *x.shape[1:]) for m, x in tensors.items()}
        for tensors in (batch.inputs, batch.present, {"": batch.target})
    )
    return Batch(inputs, present, target[""])


def _with_all(batch: Batch, without: Modality = "") -> Batch:
    """The batch with all sensors marked present, all but `without`."""
    here = torch.ones(len(batch), dtype=torch.bool, device=batch.target.device)
    return replace(batch, present={m: ~here if m == without else here for m in batch.present})


@contextmanager
def _untouched(model: Model) -> Iterator[None]:
    """Parameters, buffers and modes are afterwards as before. Within, cuDNN is off: its recurrent
    layers are one kernel that nobody counts."""
    modes = {module: module.training for module in model.modules()}
    held = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
    try:
        with torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for tensor, value in held:
                tensor.copy_(value)
