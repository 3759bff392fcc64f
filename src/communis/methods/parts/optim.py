"""SGD, Adam and AdamW on a list of parameters, with multi-tensor operations.

The updates equal those of `torch.optim` (a test compares them). They are written out here because
the first use of `torch.optim` imports the compiler stack, which costs every process time and
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

OptimizerName = Literal["sgd", "adam", "adamw"]


class Optimizer(Protocol):
    def step(self) -> None:
        """Applies the gradients. A parameter without a gradient is unchanged."""

    def memory(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Returns the optimiser's state. names: one name per parameter."""

    def recall(self, names: Sequence[str], memory: Mapping[str, Tensor]) -> None:
        """Restores the state that `memory` returned. Parameters that it lacks start without
        state."""


class SGD:
    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        rates: Sequence[float] = (),
    ) -> None:
        """rates: factors on the learning rate, one per parameter; empty: 1."""
        self.params = list(params)
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._rates = dict(zip(map(id, self.params), rates, strict=True)) if rates else {}
        self._velocity: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        params, grads = _with_gradients(self.params, self.weight_decay)
        if not params:
            return
        if self.momentum:
            for p, grad in zip(params, grads, strict=True):
                if id(p) not in self._velocity:
                    self._velocity[id(p)] = torch.zeros_like(grad)
            velocity = [self._velocity[id(p)] for p in params]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, grads)
            grads = velocity
        if self._rates:
            grads = list(torch._foreach_mul(grads, [self._rates[id(p)] for p in params]))
        torch._foreach_add_(params, grads, alpha=-self.lr)

    def memory(self, names: Sequence[str]) -> dict[str, Tensor]:
        memory = {}
        for name, p in zip(names, self.params, strict=True):
            if id(p) in self._velocity:
                memory[f"velocity/{name}"] = self._velocity[id(p)]
        return memory

    def recall(self, names: Sequence[str], memory: Mapping[str, Tensor]) -> None:
        for name, p in zip(names, self.params, strict=True):
            if f"velocity/{name}" in memory:
                self._velocity[id(p)] = memory[f"velocity/{name}"].clone()


class Adam:
    """Adam, or with `decoupled` weight decay AdamW."""

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        rates: Sequence[float] = (),
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        """rates: factors on the learning rate, one per parameter; empty: 1."""
        self.params = list(params)
        self.weight_decay = weight_decay
        self.decoupled = decoupled
        self.betas = betas
        self.eps = eps
        lrs = [lr * rate for rate in rates] if rates else [lr] * len(self.params)
        self._lr = dict(zip(map(id, self.params), lrs, strict=True))
        self._moments: dict[int, tuple[Tensor, Tensor]] = {}
        self._steps: dict[int, int] = {}

    @torch.no_grad()
    def step(self) -> None:
        l2 = 0.0 if self.decoupled else self.weight_decay
        params, grads = _with_gradients(self.params, l2)
        if not params:
            return
        if self.decoupled and self.weight_decay:
            torch._foreach_mul_(params, [1 - self._lr[id(p)] * self.weight_decay for p in params])
        first = []
        second = []
        for p in params:
            if id(p) not in self._moments:
                self._moments[id(p)] = torch.zeros_like(p), torch.zeros_like(p)
            self._steps[id(p)] = self._steps.get(id(p), 0) + 1
            m, v = self._moments[id(p)]
            first.append(m)
            second.append(v)
        beta1, beta2 = self.betas
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
        steps = [self._steps[id(p)] for p in params]
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, [(1 - beta2**t) ** 0.5 for t in steps])
        torch._foreach_add_(denominators, self.eps)
        factors = [-self._lr[id(p)] / (1 - beta1**t) for p, t in zip(params, steps, strict=True)]
        torch._foreach_addcdiv_(params, first, denominators, factors)

    def memory(self, names: Sequence[str]) -> dict[str, Tensor]:
        memory = {}
        for name, p in zip(names, self.params, strict=True):
            if id(p) in self._moments:
                first, second = self._moments[id(p)]
                memory[f"first/{name}"] = first
                memory[f"second/{name}"] = second
                memory[f"steps/{name}"] = torch.tensor(self._steps[id(p)])
        return memory

    def recall(self, names: Sequence[str], memory: Mapping[str, Tensor]) -> None:
        for name, p in zip(names, self.params, strict=True):
            if f"steps/{name}" in memory:
                first = memory[f"first/{name}"].clone()
                second = memory[f"second/{name}"].clone()
                self._moments[id(p)] = first, second
                self._steps[id(p)] = int(memory[f"steps/{name}"])


def make_optimizer(
    name: OptimizerName,
    params: Sequence[Tensor],
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    rates: Sequence[float] = (),
) -> Optimizer:
    """Returns the optimiser of this name. rates: factors on the learning rate, one per parameter;
    empty: 1."""
    if name == "sgd":
        return SGD(params, lr, momentum, weight_decay, rates)
    return Adam(params, lr, weight_decay, name == "adamw", rates)


@torch.no_grad()
def clip_gradients(params: Sequence[Tensor], norm: float) -> None:
    """Scales the gradients of these parameters, as one vector, down to this Euclidean norm if they
    exceed it. Gradients that are not finite are unchanged: scaling would turn all of them into NaN,
    while now the run can name the parameters that become invalid."""
    grads = [p.grad for p in params if p.grad is not None]
    if not grads:
        return
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    if not bool(torch.isfinite(total)):  # the squares of finite gradients may overflow in float32
        squares = torch.stack([g.double().square().sum() for g in grads])
        total = squares.sum().sqrt()
    if total > norm and bool(torch.isfinite(total)):
        torch._foreach_mul_(grads, float(norm / total))


def _with_gradients(
    params: Sequence[Tensor], weight_decay: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the parameters that have gradients, and these gradients including weight decay."""
    trained = [p for p in params if p.grad is not None]
    grads = [p.grad for p in trained if p.grad is not None]
    if weight_decay and trained:
        grads = list(torch._foreach_add(grads, trained, alpha=weight_decay))
    return trained, grads
