"""FLOPs of training and of a forward pass, counted while a few windows pass through a model.

The count includes the matrix products, convolutions and attention that are carried out, with 2 per
multiply-add. Elementwise operations (activations, normalisation, pooling, the optimiser step) are
not counted. The backward pass consists of the weight gradients of trained parameters and the
gradients that they depend on. Optionally, a forward pass is counted as in many papers:
normalisation as 2 per value, an activation as 1, pooling as 1 per input value.
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
WINDOWS = 4  # windows by which FLOPs are counted
_aten = torch.ops.aten
_FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,  # torch's formulas, which lack products in place and attention on CPUs
    _aten.addmm_: flop_registry[_aten.addmm],
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        _aten._scaled_dot_product_flash_attention
    ],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}


def _per_value(flops: int) -> Callable[..., int]:
    """Returns a formula: `flops` per value of the first argument, 0 for masks and counts."""
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
class StepFlops:
    """FLOPs per window of a training step."""

    forward: float
    backward: float


class Meter:
    """Counts the cost of a training step of a model once, and keeps it."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Model, dict[Hashable, StepFlops]] = WeakKeyDictionary()

    def per_window(
        self, model: Model, loss: Loss, samples: Samples, key: Hashable, without: Modality = ""
    ) -> StepFlops:
        """Returns the FLOPs per window of a training step, with all sensors or all but `without`.
        Parameters that require gradients now are trained; `key` identifies them and the loss."""
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
        """Returns the forward and backward FLOPs of `passes` passes over the samples. A window that
        lacks one of the client's sensors (`owned`; by default all) saves the cost of its branch;
        savings of several sensors add up. The branch of a sensor that the client does not own is
        counted, because padding with zeros costs as much."""
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
    """Returns the FLOPs of one window with all sensors in evaluation. shapes: of the windows,
    channels first. elementwise: also counts normalisation, activations and pooling."""
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
    """Sets all values to zero. A model that was just built holds uninitialised memory, on which a
    decomposition may not converge. The count does not depend on values."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.zero_()


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts like torch's FlopCounterMode, but not by module, which would need slow imports in
    every process."""

    def __init__(self, elementwise: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self._formulas = {**_FORMULAS, **_ELEMENTWISE} if elementwise else _FORMULAS

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no compiler is used here, so it need not be loaded

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if formula := self._formulas.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _counted(model: Model, loss: Loss, samples: Samples, without: Modality) -> StepFlops:
    batch = _with_all(_first_windows(samples), without)
    trained = [p for p in model.parameters() if p.requires_grad]
    with _untouched(model), torch.enable_grad(), _Counter() as counter:
        model.train()
        value = loss(model(batch), batch)
        forward = counter.flops
        if trained and value.requires_grad:
            torch.autograd.grad(value, trained, allow_unused=True)
    return StepFlops(forward / len(batch), (counter.flops - forward) / len(batch))


def _first_windows(samples: Samples) -> Batch:
    """Returns the first windows, repeated if there are few, and zeros if there are none: the cost
    of a step must not depend on the client by which it is counted."""
    batch = samples.batch(torch.arange(WINDOWS if len(samples) else 0) % max(1, len(samples)))
    if len(batch):
        return batch
    inputs, present, target = (
        {m: x.new_zeros(WINDOWS, *x.shape[1:]) for m, x in tensors.items()}
        for tensors in (batch.inputs, batch.present, {"": batch.target})
    )
    return Batch(inputs, present, target[""])


def _with_all(batch: Batch, without: Modality = "") -> Batch:
    """Returns the batch with all sensors except `without` marked present."""
    here = torch.ones(len(batch), dtype=torch.bool, device=batch.target.device)
    return replace(batch, present={m: ~here if m == without else here for m in batch.present})


@contextmanager
def _untouched(model: Model) -> Iterator[None]:
    """Restores parameters, buffers and modes afterwards. cuDNN is disabled in this context: its
    recurrent layers are a single kernel that has no formula."""
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
