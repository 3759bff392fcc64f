"""The networks of RELIEF's CNN: their size, their layers, their groups, and that the fast way to
compute them is the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Streams
from communis.core.groups import groups
from communis.models.encoders import Lite, Wide
from communis.models.network import initialise
from communis.models.zoo import ZOO
from tests.pairwise import pairwise
from tests.unit.small import random

PAMAP2 = {"acc": 9, "gyro": 9, "hr": 1, "mag": 9}
MHEALTH = {"acc": 9, "ecg": 2, "gyro": 6, "mag": 6}


@pytest.mark.parametrize(
    ("name", "channels", "expected"),
    [("lite", PAMAP2, 80_268), ("lite", MHEALTH, 79_468), ("wide", PAMAP2, 1_162_124)],
)
def test_sizes_are_those_of_the_specification(
    name: str, channels: dict[str, int], expected: int
) -> None:
    model = ZOO[name].build({m: (c, 256) for m, c in channels.items()}, 12)
    assert sum(p.numel() for p in model.parameters()) == expected
    assert not list(model.buffers())


def test_lite_has_the_layers_of_the_specification() -> None:
    model = ZOO["lite"].build({m: (c, 256) for m, c in PAMAP2.items()}, 12)
    found = model.by_path[0]
    sizes = {g: sum(found[path].numel() for path in of) for g, of in groups(found).items()}
    for m, c in PAMAP2.items():
        assert sizes[f"encoders.{m}.conv1"] == 160 * c + 32
        assert sizes[f"encoders.{m}.conv2"] == 10_304
        assert sizes[f"fusion.blocks.{m}"] == 8_192
    assert sizes["fusion.shared"] == 128
    assert sizes["head.out"] == 1_548
    assert len(sizes) == 4 + 1 + 8 + 1


def plain(encoder: Lite, x: Tensor) -> Tensor:
    """With torch's own layers in the plain layout."""
    for conv in (encoder.conv1, encoder.conv2):
        x = F.relu(F.conv1d(x, conv.weight.squeeze(2), conv.bias, stride=2, padding=2))
    return F.adaptive_avg_pool1d(x, encoder.steps).flatten(1)


@pairwise(
    {
        "made": [Lite, Wide],
        "channels": [1, 9],
        "size, steps": [(1, 1), (3, 7), (1, 25), (4, 128)],
    }
)
def test_they_are_two_plain_strided_convolutions(
    made: type[Lite], channels: int, size: int, steps: int
) -> None:
    """Values and all gradients, also of windows as samples store them: channels last."""
    encoder = made(channels, 16)
    initialise(encoder, Streams(0))
    x = random(size, steps, channels).movedim(-1, 1)
    results = []
    for function in (encoder, lambda t: plain(encoder, t)):
        encoder.zero_grad()
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        (out * random(*out.shape, seed=50)).sum().backward()
        grads = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
        assert leaf.grad is not None
        results.append([out.detach(), leaf.grad, *grads])
    ours, theirs = results
    assert len(ours) == len(theirs) == 6
    assert ours[0].shape == (size, encoder.features) == (size, 32)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_wide_keeps_when_things_happen() -> None:
    """A burst in the first eighth of the window reaches the first step of every channel alone, but
    for what the kernels see across the border."""
    encoder = Wide(1, 32)
    initialise(encoder, Streams(0))
    quiet, burst = torch.zeros(1, 1, 256), torch.zeros(1, 1, 256)
    burst[..., 4:20] = random(16)
    moved = (encoder(burst) - encoder(quiet)).view(8, 8).abs().amax(0)
    assert float(moved[0].detach()) > 0
    assert not moved[1:].any()
