"""Uncertainty as temperature: closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import CommunisError
from communis.core.streams import Streams
from communis.core.tasks import Classification
from communis.methods.parts import uncertainty
from communis.methods.parts.uncertainty import (
    EPSILON,
    S_MAX,
    UncertaintyHead,
    Unimodal,
    add_heads,
    clamped,
    fused,
    losses,
    unimodal,
)
from communis.methods.unimodal import Unimodal as Unimodal_
from tests.unit.small import TINY, client, network

Y = torch.tensor([0, 2, 1, 2, 0])


def logits(seed: int = 0) -> Tensor:
    with Streams(seed).torch("logits"):
        return torch.randn(5, 3)


def there(*rows: int) -> Tensor:
    return torch.tensor([i in rows for i in range(5)])


ALL = there(0, 1, 2, 3, 4)


def said(**parts: tuple[Tensor, Tensor, Tensor]) -> Unimodal:
    """z_m, s_m and a_m of every modality."""
    z, s, a = (torch.stack(column) for column in zip(*parts.values(), strict=True))
    return Unimodal(z, s, a)


def test_sigma_one_is_cross_entropy() -> None:
    z = logits()
    found = losses(said(a=(z, torch.zeros(5), ALL)), Y)
    assert found.item() == pytest.approx(F.cross_entropy(z, Y).item(), rel=1e-5)


def test_gradient_of_s_is_half_of_what_the_true_logit_lacks() -> None:
    """dCE/ds = (u_y - E_softmax(u)[u]) / 2 with u = z / sigma, to 1e-6."""
    z = logits().double()
    s = torch.tensor([0.3, -1.2, 2.0, 0.0, -3.0], dtype=torch.double, requires_grad=True)
    u = (z * torch.exp(-s / 2)[:, None]).detach()
    (slope,) = torch.autograd.grad(losses(said(a=(z, s, ALL)), Y), s)
    expected = 0.5 * (u[torch.arange(5), Y] - (u.softmax(1) * u).sum(1)) / 5
    assert torch.allclose(slope, expected, atol=1e-6)
    assert slope.abs().max() > 1e-2


@pytest.mark.parametrize(("right", "sign"), [(True, 1), (False, -1)])
def test_sure_and_right_sharpens_sure_and_wrong_softens(right: bool, sign: int) -> None:
    s = torch.zeros(1, requires_grad=True)
    z = torch.tensor([[6.0, 0.0, 0.0]])
    y = torch.tensor([0 if right else 1])
    (slope,) = torch.autograd.grad(losses(said(a=(z, s, torch.tensor([True]))), y), s)
    assert sign * slope.item() > 0


def test_losses_count_only_windows_that_have_the_modality() -> None:
    """Each modality's mean over its own windows; changing an absent window changes no bit."""
    a, b, s = logits(1), logits(2), torch.full((5,), 0.5)
    found = losses(said(a=(a, s, there(0, 3)), b=(b, s, there(2))), Y)
    scale = math.exp(-0.25)
    expected = F.cross_entropy(a[[0, 3]] * scale, Y[[0, 3]]) + F.cross_entropy(
        b[[2]] * scale, Y[[2]]
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    other = torch.where(there(0, 3)[:, None], a, 99.0)
    assert torch.equal(losses(said(a=(other, s, there(0, 3)), b=(b, s, there(2))), Y), found)


def test_a_modality_that_no_window_has_is_no_loss() -> None:
    z = logits().requires_grad_()
    found = losses(said(a=(z, torch.zeros(5), there())), Y)
    (slope,) = torch.autograd.grad(found, z)
    assert found.item() == 0
    assert not slope.any()


def test_the_penalty_is_the_mean_square_of_s() -> None:
    s = torch.tensor([1.0, -2.0, 3.0, 0.5, -1.0])
    part = said(a=(logits(), s, there(0, 1)))
    extra = losses(part, Y, penalty=0.1) - losses(part, Y)
    assert extra.item() == pytest.approx(0.1 * (1 + 4) / 2, rel=1e-5)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_fused_uncertainty_of_equal_sensors(n: int) -> None:
    """sigma_f = sqrt((sigma^2 + epsilon) / n), strictly lower with every further sensor."""
    s = torch.full((5,), 0.7)
    parts = {f"m{i}": (logits(), s, ALL if i < n else there(1)) for i in range(n + 1)}
    found = fused(said(**parts))
    assert found[0].item() == pytest.approx(math.sqrt((math.exp(0.7) + EPSILON) / n), rel=1e-6)
    assert found[1] < found[0]


def test_fused_uncertainty_follows_the_surest_sensor() -> None:
    sure, unsure = torch.full((5,), -4.0), torch.full((5,), 4.0)
    found = fused(said(a=(logits(), sure, ALL), b=(logits(), unsure, ALL)))
    assert found[0].item() == pytest.approx((math.exp(4) + math.exp(-4)) ** -0.5, rel=1e-4)


def test_without_sensors_sigma_is_the_largest() -> None:
    s = torch.zeros(5, requires_grad=True)
    found = fused(said(a=(logits(), s, there(2))))
    assert found[0].item() == pytest.approx(math.exp(S_MAX / 2), rel=1e-6)
    assert found[2].item() == pytest.approx(1.0, rel=1e-5)
    (slope,) = torch.autograd.grad(found.sum(), s)
    assert bool(slope.isfinite().all())
    assert torch.equal(slope != 0, there(2))


@pytest.mark.parametrize(("s", "bound"), [(50.0, S_MAX), (-50.0, -S_MAX), (1.5, 1.5)])
def test_both_bounds_hold(s: float, bound: float) -> None:
    part = said(a=(logits(), torch.full((5,), s), ALL))
    assert part.log_variance.tolist() == [[bound] * 5]
    assert torch.allclose(part.tempered[0], logits() / math.exp(bound / 2))
    expected = (math.exp(bound) + EPSILON) ** 0.5
    assert fused(part)[0].item() == pytest.approx(expected, rel=1e-6)


def test_epsilon_is_added_to_the_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertainty, "EPSILON", 3.0)
    found = fused(said(a=(logits(), torch.zeros(5), ALL), b=(logits(), torch.zeros(5), ALL)))
    assert found[0].item() == pytest.approx(math.sqrt((1 + 3) / 2), rel=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_penalty_pulls_back_from_beyond_the_bounds(sign: int) -> None:
    s = torch.full((5,), sign * 6.0, requires_grad=True)
    (slope,) = torch.autograd.grad(losses(said(a=(logits(), s, ALL)), Y, penalty=0.1), s)
    assert torch.allclose(slope, torch.full((5,), sign * 0.1 * 2 * 6 / 5))


def test_clamped_is_the_share_of_present_sensors_at_a_bound() -> None:
    s = torch.tensor([4.0, -4.0, 3.9, 0.0, 4.0])
    at_bounds, other = (logits(), s, there(0, 1, 2, 3)), (logits(), torch.zeros(5), there(0, 2, 3))
    found = clamped(said(a=at_bounds, b=other))
    assert found.tolist() == [0.5, 1.0, 0.0, 0.0, 0.0]


def test_a_head_starts_at_sigma_one_and_has_the_parameters_of_the_spec() -> None:
    """96 -> 64 -> 32 -> 12 + 1: 8,717 parameters."""
    head = UncertaintyHead(96, 12)
    assert sum(p.numel() for p in head.parameters()) == 8717
    for module in head.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    with torch.no_grad():
        out = head(torch.rand(4, 96))
    assert not out[:, -1].any()
    assert out[:, :-1].abs().min() > 0


def test_heads_computed_together_say_what_each_says() -> None:
    """Values and gradients, also where features are negative; s_m is clamped."""
    made = client(method=Unimodal_(), models=(TINY,))
    torch.nn.init.constant_(made.model.unimodal["b"].out.bias, 50.0)  # type: ignore[union-attr, arg-type]
    batch = made.train.batch(torch.arange(6))
    output = made.model(batch)
    shifted = {m: h - h.detach().mean() for m, h in output.features.items()}
    output = replace(output, features=shifted)
    found = unimodal(made.model, output, batch.present)
    alone = [made.model.unimodal[m](output.features[m]) for m in ("a", "b")]
    assert torch.allclose(found.z, torch.stack([u[:, :-1] for u in alone]), atol=1e-5)
    assert torch.allclose(found.s, torch.stack([u[:, -1] for u in alone]), atol=1e-5)
    assert found.log_variance[1].tolist() == [S_MAX] * 6
    weights = list(made.model.unimodal.parameters())
    together = torch.autograd.grad(found.z.square().sum(), weights, retain_graph=True)
    each = torch.autograd.grad(sum(u[:, :-1].square().sum() for u in alone), weights)
    assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(together, each, strict=True))


def test_features_of_unequal_size_are_refused() -> None:
    model = network(TINY, {"a": 2, "b": 1})
    model.feature_sizes = {"a": 8, "b": 4}
    with pytest.raises(CommunisError, match="one size"):
        add_heads(model, Classification(3))
