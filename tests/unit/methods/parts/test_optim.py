"""The optimisers take the steps of torch.optim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from communis.methods.parts.optim import SGD, Adam, Optimizer, make_optimizer
from tests.unit.small import random, same_bits

Peer = Callable[[Sequence[Tensor]], Any]
CASES: dict[str, tuple[Peer, Peer]] = {
    "sgd": (lambda p: SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (lambda p: SGD(p, 0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, 0.9)),
    "decay": (
        lambda p: SGD(p, 0.1, weight_decay=0.05),
        lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.05),
    ),
    "momentum and decay": (
        lambda p: SGD(p, 0.1, 0.7, 0.05),
        lambda p: torch.optim.SGD(p, 0.1, 0.7, weight_decay=0.05),
    ),
    "adam": (lambda p: Adam(p, 0.02), lambda p: torch.optim.Adam(p, 0.02)),
    "adam, decay": (
        lambda p: Adam(p, 0.02, 0.1),
        lambda p: torch.optim.Adam(p, 0.02, weight_decay=0.1),
    ),
    "adam, settings": (
        lambda p: Adam(p, 0.02, betas=(0.5, 0.9), eps=1e-3),
        lambda p: torch.optim.Adam(p, 0.02, betas=(0.5, 0.9), eps=1e-3),
    ),
    "adamw": (
        lambda p: Adam(p, 0.02, 0.1, decoupled=True),
        lambda p: torch.optim.AdamW(p, 0.02, weight_decay=0.1),
    ),
    "adamw, no decay": (
        lambda p: Adam(p, 0.02, decoupled=True),
        lambda p: torch.optim.AdamW(p, 0.02, weight_decay=0.0),
    ),
}


def parameters(dtype: torch.dtype) -> list[Tensor]:
    """Several shapes, one of them channels-last as in the image encoders."""
    image = random(2, 3, 4, 4, seed=2, dtype=dtype).to(memory_format=torch.channels_last)
    made = [random(4, 3, dtype=dtype), random(5, seed=1, dtype=dtype), image, random(1, seed=3)]
    return [p.to(dtype).requires_grad_() for p in made]


def gradient(p: Tensor, step: int, index: int) -> Tensor:
    return random(*p.shape, seed=100 * step + index, dtype=p.dtype) + 0.3 * p.detach()


def descend(optimizer: Optimizer, params: Sequence[Tensor], steps: int = 20) -> None:
    """The first parameter always has a gradient, the second from step 8 on, the third in every
    third step, the fourth never."""
    for step in range(steps):
        for i, p in enumerate(params):
            live = (True, step >= 8, step % 3 == 0, False)[i]
            p.grad = gradient(p, step, i) if live else None
        optimizer.step()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)], ids=["32", "64"]
)
def test_twenty_steps_equal_those_of_torch(case: str, dtype: torch.dtype, tolerance: float) -> None:
    ours, theirs, start = parameters(dtype), parameters(dtype), parameters(dtype)
    make, peer = CASES[case]
    descend(make(ours), ours)
    descend(peer(theirs), theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert not torch.allclose(ours[0], start[0], atol=1e-2)
    assert same_bits(ours[3], start[3])


@pytest.mark.parametrize("case", CASES)
def test_a_parameter_without_gradient_is_left_alone_in_that_step(case: str) -> None:
    """Neither decay nor old momentum may move it."""
    params = parameters(torch.float32)
    optimizer = CASES[case][0](params)
    descend(optimizer, params, 3)
    kept = params[0].detach().clone()
    params[0].grad, params[1].grad = None, torch.ones_like(params[1])
    optimizer.step()
    assert same_bits(params[0], kept)


@pytest.mark.parametrize("case", CASES)
def test_without_any_gradient_nothing_happens(case: str) -> None:
    params = parameters(torch.float32)
    CASES[case][0](params).step()
    CASES[case][0]([]).step()
    assert all(same_bits(a, b) for a, b in zip(params, parameters(torch.float32), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_read_only(case: str) -> None:
    params = parameters(torch.float32)
    grads = [gradient(p, 0, i) for i, p in enumerate(params)]
    for p, g in zip(params, grads, strict=True):
        p.grad = g.clone()
    optimizer = CASES[case][0](params)
    optimizer.step()
    optimizer.step()
    for p, g in zip(params, grads, strict=True):
        assert p.grad is not None
        assert same_bits(p.grad, g)


def test_two_optimisers_share_no_memory() -> None:
    a, b = parameters(torch.float32), parameters(torch.float32)
    first = SGD(a, 0.1, 0.9)
    descend(first, a, 5)
    second = SGD(a, 0.1, 0.9)
    with torch.no_grad():
        for p, q in zip(a, b, strict=True):
            q.copy_(p)
    descend(second, a, 5)
    descend(SGD(b, 0.1, 0.9), b, 5)
    assert all(same_bits(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("name", "same_as"),
    [("sgd", "momentum and decay"), ("adam", "adam, decay"), ("adamw", "adamw")],
)
def test_names_lead_to_optimisers(name: Any, same_as: str) -> None:
    settings = {"sgd": (0.1, 0.7, 0.05), "adam": (0.02, 0.7, 0.1), "adamw": (0.02, 0.7, 0.1)}
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    descend(make_optimizer(name, ours, *settings[name]), ours, 5)
    descend(CASES[same_as][0](theirs), theirs, 5)
    assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))
