"""SGLT: its settings, what its layers depend on and what not, the kinds of theta_M, and the fusion
of tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from communis import CommunisError, Streams
from communis.models import favor
from communis.models.gate import Gate, gated_ranks, twice_differentiable
from communis.models.network import initialise
from communis.models.sglt import Operator, Sglt, SgltLayer, TokenFusion
from tests.unit.small import random, same_bits

WIDTH, HEADS, FEATURES = 12, 3, 10
SMALL: dict[str, Any] = {"heads": HEADS, "features": FEATURES, "operator_rank": 2}
LAT: dict[str, Any] = {**SMALL, "gate": "none", "operator": "none"}


def layer(number: int = 0, **settings: Any) -> SgltLayer:
    """Freshly initialised, in float64."""
    made = SgltLayer(WIDTH, Sglt(**{**SMALL, **settings}), number)
    initialise(made, Streams(0))
    return made.double()


def operator(of: SgltLayer) -> Operator:
    assert of.operator is not None
    return of.operator


def tokens(batch: int = 4, length: int = 7, seed: int = 0) -> Tensor:
    return random(batch, length, WIDTH, seed=seed, dtype=torch.float64)


def some(x: Tensor) -> Tensor:
    """A mask: sample i lacks its last i tokens."""
    length = torch.arange(x.shape[1], 0, -1)
    return length > torch.arange(len(x))[:, None]


def every(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


def by_head(made: SgltLayer, x: Tensor) -> list[Tensor]:
    """Queries, keys and values (B, H, L, d / H), written out head by head."""
    parts = made.qkv(x).split(WIDTH, -1)
    return [torch.stack(part.split(WIDTH // HEADS, -1), 1) for part in parts]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gate": "sharp"}, r"no gate 'sharp'; there are soft, hard, topr, none"),
        ({"operator": "mean"}, r"no operator 'mean'; there are none, learned, ema, factored"),
        ({"rank": 0}, "rank must be at least 1, got 0"),
        ({"gate_every": 0}, "gate_every must be at least 1"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"heads": 0}, "heads must be at least 1"),
        ({"operator_rank": 0}, "operator_rank must be at least 1"),
        ({"knn": 0}, "knn must be at least 1"),
        ({"features": -1}, "features must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"operator_std": -0.1}, "operator_std must be at least 0"),
        ({"tau": -0.1}, "tau must be at least 0"),
        ({"tau": float("nan")}, "tau must be at least 0"),
        ({"tau": 1.0}, "with relative = true, tau is a share of it, below 1"),
        ({"beta": 0.0}, 'beta must be positive, got 0.0; gate = "hard" has none'),
        ({"ema": 1.0}, "ema must be a share from 0 to below 1"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CommunisError, match=said):
        Sglt(**settings)


def test_settings_that_do_not_fit_the_embedding() -> None:
    assert Sglt(relative=False, tau=3.0).tau == 3
    with pytest.raises(CommunisError, match="heads = 5 does not divide an embedding of 12"):
        SgltLayer(12, Sglt(heads=5))
    with pytest.raises(CommunisError, match=r"operator_rank = 11 .* 10 x 12: choose at most 10"):
        SgltLayer(12, Sglt(heads=3, features=10, operator="factored", operator_rank=11))


def test_as_many_features_as_the_embedding_unless_told() -> None:
    made = SgltLayer(12, Sglt(heads=3))
    assert made.directions.shape == (4, 12)
    assert operator(made).theta.shape == (12, 12)
    assert operator(layer()).theta.shape == (FEATURES, WIDTH)


def test_without_gate_and_operator_it_is_linear_attention_written_out() -> None:
    made, x = layer(**LAT), tokens()
    mask = some(x)
    q, k, v = by_head(made, x)
    q, k = (favor.features(favor.normalised(t), made.directions) for t in (q, k))
    weights = (q @ k.mT) * mask[:, None, None]
    mean = (k * mask[:, None, :, None]).sum(2).mean(-1)[..., None, None]
    heard = weights @ v / (weights.sum(-1, keepdim=True) + favor.EPSILON * mean)
    expected = made.out(torch.cat(list(heard.unbind(1)), -1))
    assert torch.allclose(made.mixed(x, mask), expected, rtol=0, atol=1e-12)


def test_a_layer_adds_what_is_heard_and_then_what_is_made_of_it() -> None:
    made, x = layer(), tokens()
    heard = x + made.mixed(made.norm1(x), some(x))
    assert torch.equal(made(x, some(x)), heard + made.ffn(made.norm2(heard)))
    assert [tuple(p.shape) for p in made.ffn.parameters()] == [(48, 12), (48,), (12, 48), (12,)]


def test_the_gated_kernel_is_that_of_each_head_with_its_columns_of_theta() -> None:
    made, x = layer(operator_std=0.3, tau=0.2, beta=0.1), tokens()
    q, k, v = by_head(made, x)
    q, k = (favor.features(favor.normalised(t), made.directions) for t in (q, k))
    theta = operator(made).theta
    heard = []
    for head in range(HEADS):
        matrix, z = favor.kernel(k[:, head], v[:, head])
        columns = theta[:, head * 4 : head * 4 + 4]
        gated = Gate(tau=0.2, beta=0.1)(matrix + columns)
        heard.append(favor.attend(q[:, head], gated, z))
    expected = made.out(torch.cat(heard, -1))
    assert torch.allclose(made.mixed(x, every(x)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gate", ["none", "soft", "hard", "topr"])
def test_doubled_tokens_change_nothing(gate: str) -> None:
    made, x = layer(gate=gate, rank=2, tau=0.3, operator_std=0.3), tokens()
    mask = some(x)
    twice = made(torch.cat([x, x], 1), torch.cat([mask, mask], 1))
    assert torch.allclose(twice, torch.cat([made(x, mask)] * 2, 1), rtol=0, atol=1e-11)


def test_tokens_in_another_order_give_the_same_in_that_order() -> None:
    made, x = layer(), tokens()
    mask, order = some(x), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    found = made(x[:, order], mask[:, order])
    assert torch.allclose(found, made(x, mask)[:, order], rtol=0, atol=1e-11)


def test_masked_tokens_are_inert() -> None:
    made, x = layer(), tokens().requires_grad_()
    mask = some(x)
    seen = made(x, mask)[mask]
    other = torch.where(mask[..., None], x, 100 * tokens(seed=1))
    assert same_bits(made(other, mask)[mask], seen)
    (found,) = torch.autograd.grad(seen.square().sum(), x)
    assert not found[~mask].any()
    assert found[mask].all()


@pytest.mark.parametrize("kind", ["learned", "ema", "factored", "none"])
def test_without_any_token_all_is_finite(kind: str) -> None:
    made, x = layer(operator=kind), tokens().requires_grad_()
    mask = every(x)
    mask[1] = False
    out = made(x, mask)
    assert out.isfinite().all()
    out[mask].square().sum().backward()
    assert all(p.grad.isfinite().all() for p in made.parameters() if p.grad is not None)
    assert x.grad is not None
    assert not x.grad[1].any()


def test_features_come_from_the_seed_and_the_number_of_the_layer() -> None:
    first = layer().directions
    assert torch.equal(layer().directions, first)
    assert not torch.equal(layer(seed=1).directions, first)
    assert not torch.equal(layer(number=1).directions, first)


@pytest.mark.parametrize("kind", ["learned", "ema", "factored", "none"])
@pytest.mark.parametrize("gate_every", [1, 3])
def test_only_parameters_are_state(kind: str, gate_every: int) -> None:
    made = layer(operator=kind, gate_every=gate_every)
    assert set(made.state_dict()) == {name for name, _ in made.named_parameters()}
    assert all(p.requires_grad for p in made.parameters())
    assert ("operator.theta" in made.state_dict()) == (kind != "none")


def test_theta_starts_small_and_learns() -> None:
    theta = operator(layer(features=500)).theta.detach()
    assert float(theta.std()) == pytest.approx(0.01, rel=0.05)
    made, x = layer(), tokens()
    made(x, every(x)).square().sum().backward()
    grad = operator(made).theta.grad
    assert grad is not None
    assert grad.abs().sum(0).all()  # every head's columns


def moved(made: SgltLayer, x: Tensor, mask: Tensor) -> Tensor:
    before = operator(made).theta.detach().clone()
    made(x, mask)
    return operator(made).theta.detach() - before


def test_a_moving_theta_follows_the_mean_kernel_of_training_passes() -> None:
    made, x = layer(operator="ema", ema=0.8), tokens()
    mask = every(x)
    mask[2] = False  # a sample without tokens has no kernel
    start = operator(made).theta.detach().clone()
    _, k, v = by_head(made, made.norm1(x))
    k = favor.features(favor.normalised(k), made.directions)
    matrix = favor.kernel(k, v)[0][[0, 1, 3]].mean(0)
    expected = 0.8 * start + 0.2 * torch.cat(list(matrix), -1)
    out = made(x, mask)
    assert torch.allclose(operator(made).theta, expected, rtol=0, atol=1e-12)
    out.sum().backward()
    assert operator(made).theta.grad is None


def test_a_moving_theta_rests_in_evaluation_without_tokens_and_where_it_is_frozen() -> None:
    made, x = layer(operator="ema"), tokens()
    assert moved(made, x, every(x)).any()
    assert not moved(made, x, ~every(x)).any()
    assert not moved(made.eval(), x, every(x)).any()
    operator(made).theta.requires_grad_(False)
    assert not moved(made.train(), x, every(x)).any()


def test_a_factored_theta_trains_its_core_alone() -> None:
    made, x = layer(operator="factored", operator_std=0.3), tokens()
    own = operator(made)
    start = own.matrix().detach()
    assert own.theta.shape == (2, 2)
    assert not own.theta.any()
    assert float(start.std()) == pytest.approx(0.3, rel=0.2)
    assert [name for name, _ in own.named_parameters()] == ["theta"]
    made(x, every(x)).square().sum().backward()
    assert own.theta.grad is not None
    assert own.theta.grad.all()
    with torch.no_grad():
        own.theta += random(2, 2, seed=5)
    change = own.matrix() - start
    assert int(torch.linalg.matrix_rank(change, rtol=1e-6)) == 2
    assert float(change.detach().norm()) == pytest.approx(float(own.theta.detach().norm()))


def test_frozen_parts_of_a_factored_theta_are_alike_everywhere_but_by_seed_and_layer() -> None:
    first = operator(layer(operator="factored")).matrix()
    assert torch.equal(operator(layer(operator="factored")).matrix(), first)
    assert not torch.equal(operator(layer(operator="factored", seed=1)).matrix(), first)
    assert not torch.equal(operator(layer(1, operator="factored")).matrix(), first)


def test_gradients_of_a_layer_in_both_ways() -> None:
    made, x = layer(operator_std=0.3, beta=0.1), tokens(2, 5).requires_grad_()
    own = [x, *made.parameters()]
    once = torch.autograd.grad(made(x, some(x)).square().sum(), own)
    with twice_differentiable():
        value = made(x, some(x)).square().sum()
    again = torch.autograd.grad(value, own, create_graph=True)
    for a, b in zip(once, again, strict=True):
        assert torch.allclose(a, b, rtol=1e-7, atol=1e-9)
    (second,) = torch.autograd.grad(again[0].square().sum(), operator(made).theta)
    assert second.isfinite().all()
    assert second.any()


def test_one_projector_for_several_passes_keeps_no_memory_of_another_training() -> None:
    made, x = layer(gate_every=4), tokens()
    first = made.train()(x, every(x))
    made(tokens(seed=1), every(x))
    assert not torch.equal(made(x, every(x)), made.eval()(x, every(x)))
    assert torch.equal(made.train()(x, every(x)), first)


def test_ranks_of_a_network() -> None:
    net = fusion({"a": 5 * WIDTH}, gate="topr", rank=2)
    with gated_ranks(net) as ranks:
        net({"a": tokens(4, 5).flatten(1)}, {"a": torch.ones(4, dtype=torch.bool)})
    assert [tuple(r.shape) for r in ranks] == [(4, HEADS)] * 2
    assert all((r > 1).all() and (r <= 2 + 1e-9).all() for r in ranks)


def fusion(features: dict[str, int], **settings: Any) -> TokenFusion:
    chosen = Sglt(**{**SMALL, **settings})
    made = TokenFusion(features, WIDTH, lambda i: SgltLayer(WIDTH, chosen, i), chosen.layers)
    initialise(made, Streams(0))
    return made.double()


def test_the_embedding_is_the_mean_of_all_tokens_that_are_there() -> None:
    net, x = fusion({"a": 2 * WIDTH, "b": 5 * WIDTH}), tokens()
    here = {"a": torch.tensor([1, 1, 0, 0]).bool(), "b": torch.tensor([1, 0, 1, 0]).bool()}
    _, found = net({"a": x[:, :2].flatten(1), "b": x[:, 2:].flatten(1)}, here)

    def alone(row: int, columns: slice) -> Tensor:
        y = x[row : row + 1, columns]
        for one in net.shared["layers"]:  # type: ignore[attr-defined]
            y = one(y, every(y))
        mean: Tensor = net.shared["norm"](y).mean(1)[0]
        return mean

    assert found.shape == (4, net.features)
    expected = [alone(0, slice(7)), alone(1, slice(2)), alone(2, slice(2, 7))]
    assert torch.allclose(found[:3], torch.stack(expected), rtol=0, atol=1e-11)
    assert not found[3].any()


def test_what_an_absent_sensor_holds_is_never_looked_at() -> None:
    net, x = fusion({"a": 2 * WIDTH, "b": 5 * WIDTH}), tokens()
    here = {"a": torch.ones(4).bool(), "b": torch.tensor([1, 0, 0, 1]).bool()}
    b = x[:, 2:].flatten(1).clone()
    _, first = net({"a": x[:, :2].flatten(1), "b": b}, here)
    b[1:3] = torch.nan
    b.requires_grad_()
    _, second = net({"a": x[:, :2].flatten(1), "b": b}, here)
    assert same_bits(first, second)
    second.square().sum().backward()
    assert b.grad is not None
    assert not b.grad[1:3].any()
    assert b.grad[[0, 3]].all()


def test_clients_with_coarse_and_dense_sensors_share_every_parameter() -> None:
    coarse, dense = fusion({"a": 2 * WIDTH}), fusion({"a": 9 * WIDTH, "b": WIDTH})
    mine, yours = coarse.state_dict(), dense.state_dict()
    assert mine.keys() == yours.keys()
    assert all(torch.equal(mine[path], yours[path]) for path in mine)
    assert "shared.layers.1.operator.theta" in mine


def test_a_fresh_one_is_of_the_same_kind_with_parameters_of_its_own() -> None:
    net = fusion({"a": 2 * WIDTH})
    other = net.fresh({"b": 3 * WIDTH})
    assert isinstance(other, TokenFusion)
    assert other.open_to_any
    shapes = [[(n, p.shape) for n, p in f.named_parameters()] for f in (net, other)]
    assert shapes[0] == shapes[1]
    assert not set(map(id, net.parameters())) & set(map(id, other.parameters()))


def test_features_that_are_no_whole_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens of 12 numbers .* \{'b': 13\}"):
        TokenFusion({"a": 12, "b": 13}, 12, lambda _: nn.Identity(), 1)


def test_it_learns() -> None:
    """Which of two tokens comes with the larger first number: needs what tokens tell each other."""
    net, head = fusion({"a": 2 * WIDTH}).float(), nn.Linear(WIDTH, 2)
    with Streams(1).torch("head"):
        head.reset_parameters()
    x = random(64, 2, WIDTH)
    x[:, :, -1] = torch.tensor([0.0, 2.0])  # which is which
    target = (x[:, 0, 0] > x[:, 1, 0]).long()
    here = {"a": torch.ones(64, dtype=torch.bool)}
    own = [*net.parameters(), *head.parameters()]
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(head(net({"a": x.flatten(1)}, here)[1]), target)
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for p, g in zip(own, torch.autograd.grad(loss, own), strict=True):
                p.sub_(g, alpha=0.2)
    assert losses[-1] < 0.5 * losses[0]
