"""SGD, Adam and AdamW on a list of parameters, with multi-tensor operations.

The updates are those of `torch.optim` (tested to be equal). They are written out because the first
use of `torch.optim` imports the compiler stack: 1.6 s and 74 MB in every process, for
thirty lines of arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

OptimizerName = Literal["sgd", "adam", "adamw"]


class Optimizer(Protocol):
    def step(self) -> None:
        """Applies the gradients; a parameter without one is left alone."""

    def memory(self, names: Sequence[str]) -> dict[str, Tensor]:
        """What it remembers of its parameters, called by these names."""

    def recall(self, names: Sequence[str], memory: Mapping[str, Tensor]) -> None:
        """Goes on from what was remembered; what is not in there starts afresh."""


class SGD:
    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        rates: Sequence[float] = (),
    ) -> None:
        """rates: factors on the learning rate, one per parameter; none: 1."""
        self.params, self.lr, self.momentum, self.weight_decay = (
            list(params),
            lr,
            momentum,
            weight_decay,
        )
        self._rates = dict(zip(map(id, self.params), rates, strict=True)) if rates else {}
        self._velocity: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        params, grads = _with_gradients(self.params, self.weight_decay)
        if not params:
            return
        if self.momentum:
            new = [i for i, p in enumerate(params) if id(p) not in self._velocity]
            for i in new:
                self._velocity[id(params[i])] = torch.zeros_like(grads[i])
            velocity = [self._velocity[id(p)] for p in params]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, grads)
            grads = velocity
        if self._rates:
            grads = list(torch._foreach_mul(grads, [self._rates[id(p)] for p in params]))
        torch._foreach_add_(params, grads, alpha=-self.lr)

    def memory(self, names: Sequence[str]) -> dict[str, Tensor]:
        known = zip(names, map(id, self.params), strict=True)
        return {f"velocity/{n}": self._velocity[p] for n, p in known if p in self._velocity}

    def recall(self, names: Sequence[str], memory: Mapping[str, Tensor]) -> None:
        for name, p in zip(names, self.params, strict=True):
            if (key := f"velocity/{name}") in memory:
                self._velocity[id(p)] = memory[key].clone()


class Adam:
    """Adam, or AdamW with `decoupled` weight decay."""

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
        self.params, self.weight_decay, self.decoupled = list(params), weight_decay, decoupled
        own = [lr * rate for rate in rates] if rates else [lr] * len(self.params)
        self._lr = dict(zip(map(id, self.params), own, strict=True))
        self.betas, self.eps = betas, eps
        self._moments: dict[int, tuple[Tensor, Tensor]] = {}
        self._steps: dict[int, int] = {}

    @torch.no_grad()
    def step(self) -> None:
        params, grads = _with_gradients(self.params, 0.0 if self.decoupled else self.weight_decay)
        if not params:
            return
        if self.decoupled and self.weight_decay:
            torch._foreach_mul_(params, [1 - self._lr[id(p)] * self.weight_decay for p in params])
        for p in params:
            self._moments.setdefault(id(p), (torch.zeros_like(p), torch.zeros_like(p)))
            self._steps[id(p)] = self._steps.get(id(p), 0) + 1
        first, second = (list(m) for m in zip(*(self._moments[id(p)] for p in params), strict=True))
        beta1, beta2 = self.betas
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - beta2)
        steps = [self._steps[id(p)] for p in params]
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, [(1 - beta2**t) ** 0.5 for t in steps])
        torch._foreach_add_(denominators, self.eps)
        sizes = [-self._lr[id(p)] / (1 - beta1**t) for p, t in zip(params, steps, strict=True)]
        torch._foreach_addcdiv_(params, first, denominators, sizes)

    def memory(self, names: Sequence[str]) -> dict[str, Tensor]:
        found = {}
        for name, p in zip(names, map(id, self.params), strict=True):
            if p in self._moments:
                found[f"first/{name}"], found[f"second/{name}"] = self._moments[p]
                found[f"steps/{name}"] = torch.tensor(self._steps[p])
        return found

    def recall(self, names: Sequence[str], memory: Mapping[str, Tensor]) -> None:
        for name, p in zip(names, self.params, strict=True):
            if f"steps/{name}" in memory:
                first, second = memory[f"first/{name}"], memory[f"second/{name}"]
                self._moments[id(p)] = first.clone(), second.clone()
                self._steps[id(p)] = int(memory[f"steps/{name}"])


def make_optimizer(
    name: OptimizerName,
    params: Sequence[Tensor],
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    rates: Sequence[float] = (),
) -> Optimizer:
    """rates: factors on the learning rate, one per parameter; none: 1."""
    if name == "sgd":
        return SGD(params, lr, momentum, weight_decay, rates)
    return Adam(params, lr, weight_decay, name == "adamw", rates)


@torch.no_grad()
def clip_gradients(params: Sequence[Tensor], norm: float) -> None:
    """Scales the gradients of these parameters, taken as one vector, down to a Euclidean norm. A
    gradient that is not finite is left as it is: scaling would turn it all into NaN silently, and
    what it leads to is refused by name."""
    grads = [p.grad for p in params if p.grad is not None]
    if not grads:
        return
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    if not bool(torch.isfinite(total)):  # squares may overflow where the gradient does not
        squares = torch.stack([g.double().square().sum() for g in grads])
        total = squares.sum().sqrt()
    if total > norm and bool(torch.isfinite(total)):
        torch._foreach_mul_(grads, float(norm / total))


def _with_gradients(
    params: Sequence[Tensor], weight_decay: float
) -> tuple[list[Tensor], list[Tensor]]:
    live = [p for p in params if p.grad is not None]
    grads = [p.grad for p in live if p.grad is not None]
    if weight_decay and live:
        grads = list(torch._foreach_add(grads, live, alpha=weight_decay))
    return live, grads
