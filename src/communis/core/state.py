"""State: an immutable mapping from parameter paths to tensors, with arithmetic.

Paths (`encoders.acc.conv1.weight`, `head.out.bias`) name what clients share. Clients own different
paths, so arithmetic is key-wise, and the result has the keys of the left operand:

* `a + b`, `a - b`: a path that `b` lacks keeps the value of `a`; a path that only `b` has is an
  error.
* `a * b`, `a / b`: `b` is a number, or a State with every path of `a`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor


class HasPaths(Protocol):
    """A model with parameters and buffers by path (`contract.Model`)."""

    @property
    def by_path(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]: ...


class State(Mapping[str, Tensor]):
    """Tensors by path. Operations return a new State and change nothing in place."""

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        self._tensors = dict(tensors) if tensors else {}

    @classmethod
    def of(cls, model: HasPaths, paths: Iterable[str] | None = None) -> State:
        """A copy of the model's parameters, or of its parameters and buffers at `paths`."""
        parameters, buffers = model.by_path
        chosen = parameters if paths is None else paths
        tensors = {**parameters, **buffers}
        return cls({path: tensors[path].detach().clone() for path in chosen})

    @classmethod
    def buffers(cls, model: HasPaths) -> State:
        """A copy of the model's persistent buffers, such as BatchNorm statistics."""
        return cls({path: buffer.detach().clone() for path, buffer in model.by_path[1].items()})

    @classmethod
    def all(cls, model: HasPaths) -> State:
        """A copy of the model's parameters and buffers."""
        return cls.of(model) | cls.buffers(model)

    @torch.no_grad()
    def load_into(self, model: HasPaths) -> None:
        """Writes these values into the model's parameters and buffers; other tensors stay."""
        parameters, buffers = model.by_path
        unknown = [path for path in self if path not in parameters and path not in buffers]
        if unknown:
            raise KeyError(f"the model has no tensor at {', '.join(unknown)}")
        for path, tensor in self._tensors.items():
            own = parameters[path] if path in parameters else buffers[path]
            if own.shape != tensor.shape:
                raise ValueError(f"{path} is {tuple(own.shape)}, got {tuple(tensor.shape)}")
        for path, tensor in self._tensors.items():
            own = parameters[path] if path in parameters else buffers[path]
            own.copy_(tensor)

    def pick(self, paths: Iterable[str]) -> State:
        """The tensors at those of `paths` that this State has, in the order of `paths`."""
        return State({path: self._tensors[path] for path in paths if path in self._tensors})

    def zeros(self) -> State:
        return self.map(torch.zeros_like)

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        return State({path: function(tensor) for path, tensor in self._tensors.items()})

    def norm(self) -> Tensor:
        """The Euclidean norm of all tensors together, taken as one vector."""
        if not self._tensors:
            return torch.zeros(())
        total: Tensor = torch.stack([t.norm() for t in self._tensors.values()]).norm()
        return total

    def __getitem__(self, path: str) -> Tensor:
        return self._tensors[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __or__(self, other: Mapping[str, Tensor]) -> State:
        """The tensors of both; `other` wins where both have a path."""
        return State({**self._tensors, **other})

    def __add__(self, other: State | float) -> State:
        return self._shift(other, operator.add)

    def __sub__(self, other: State | float) -> State:
        return self._shift(other, operator.sub)

    def __mul__(self, other: State | float) -> State:
        return self._scale(other, operator.mul)

    def __truediv__(self, other: State | float) -> State:
        return self._scale(other, operator.truediv)

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        numbers = sum(tensor.numel() for tensor in self._tensors.values())
        return f"State({len(self)} paths, {numbers} numbers)"

    def _shift(self, other: State | float, op: Callable[[Tensor, Tensor | float], Tensor]) -> State:
        if not isinstance(other, State):
            return self.map(lambda tensor: op(tensor, other))
        unknown = [path for path in other if path not in self._tensors]
        if unknown:
            raise KeyError(f"the left State has no tensor at {', '.join(unknown)}")
        return State({k: op(v, other[k]) if k in other else v for k, v in self._tensors.items()})

    def _scale(self, other: State | float, op: Callable[[Tensor, Tensor | float], Tensor]) -> State:
        if not isinstance(other, State):
            return self.map(lambda tensor: op(tensor, other))
        missing = [path for path in self._tensors if path not in other]
        if missing:
            raise KeyError(f"the right State has no tensor at {', '.join(missing)}")
        return State({k: op(v, other[k]) for k, v in self._tensors.items()})
