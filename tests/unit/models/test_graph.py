"""Self-attention and graph attention on tokens: by hand, under masks, in any order; and the zoo's
models on tokens as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis import Batch, CommunisError, Streams
from communis.models.flops import forward_flops
from communis.models.graph import GraphLayer, SoftmaxLayer, gathered, nearest
from communis.models.network import initialise
from communis.models.sglt import Sglt
from communis.models.zoo import TOKENS, ZOO, Architecture, architecture
from tests.unit.small import random

D, HEADS = 8, 2
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: SoftmaxLayer(D, HEADS),
    "graph": lambda: GraphLayer(D, HEADS, knn=4),
}
WINDOWS: dict[str, tuple[int, ...]] = {
    "acc": (3, 20),
    "csi": (2, 16, 5),
    "depth": (1, 8, 6),
    "lidar": (4, 12),
}
KINDS = {"acc": "series", "csi": "csi", "depth": "image", "lidar": "points"}
NAMES = [name for name, kind in ZOO.items() if kind.fusion in TOKENS]


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> Any:
    made = LAYERS[request.param]()
    initialise(nn.ModuleDict({"layer": made}), Streams(1))
    return made


def everything(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


def test_tokens_keep_their_shape(layer: Any) -> None:
    for length in (1, 3, 50):
        x = random(2, length, D)
        assert layer(x, everything(x)).shape == x.shape


def test_masked_tokens_are_inert(layer: Any) -> None:
    x, mask = random(2, 10, D), everything(random(2, 10, D))
    mask[0, [2, 7]] = False
    mask[1, 1:] = False  # fewer than the neighbours that a graph looks for
    other = x.masked_fill(~mask[..., None], 33.0)
    found, again = layer(x, mask), layer(other, mask)
    torch.testing.assert_close(found[mask], again[mask], rtol=0, atol=0)
    without = x[:1, mask[0]]
    torch.testing.assert_close(found[:1, mask[0]], layer(without, everything(without)))


def test_a_sample_without_tokens_gives_finite_numbers_and_gradients(layer: Any) -> None:
    x = random(2, 6, D).requires_grad_()
    mask = torch.tensor([[True] * 6, [False] * 6])
    out = layer(x, mask)
    assert bool(out.isfinite().all())
    out[0].sum().backward()
    assert x.grad is not None
    assert bool(x.grad[0].any())
    assert not x.grad[1].any()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())


def test_tokens_in_another_order_come_out_in_that_order(layer: Any) -> None:
    x, order = random(2, 9, D), torch.tensor([4, 2, 8, 0, 1, 7, 6, 3, 5])
    out = layer(x, everything(x))
    torch.testing.assert_close(layer(x[:, order], everything(x)), out[:, order])


def test_heads_must_divide_the_width() -> None:
    for make in (SoftmaxLayer, GraphLayer):
        with pytest.raises(CommunisError, match=r"heads = 3 does not divide an embedding of 8"):
            make(8, 3)


def test_self_attention_by_hand() -> None:
    layer = SoftmaxLayer(D, HEADS)
    x, mask = random(1, 5, D), torch.tensor([[True, True, False, True, True]])
    q, k, v = layer.qkv(x[0]).detach().split(D, 1)
    heard = []
    for part in (slice(0, 4), slice(4, 8)):
        scores = (q[:, part] @ k[:, part].T / 2).masked_fill(~mask, -torch.inf)
        heard.append(scores.softmax(1) @ v[:, part])
    expected = layer.out(torch.cat(heard, 1))
    torch.testing.assert_close(layer.mixed(x, mask)[0], expected)


def test_graph_attention_by_hand() -> None:
    layer = GraphLayer(D, HEADS, knn=3)
    layer.reset_parameters()
    x, mask = random(1, 6, D), torch.tensor([[True, True, False, True, True, True]])
    tokens, heard = x[0], []
    for token in tokens:
        distances = (tokens - token).norm(dim=1).masked_fill(~mask[0], torch.inf)
        near = distances.topk(3, largest=False).indices
        there = layer.there(tokens[near]).view(3, HEADS, -1)
        here = layer.here(token).view(HEADS, -1)
        scores = (F.leaky_relu(here + there, 0.2) * layer.score).sum(-1)
        heard.append((scores.softmax(0)[..., None] * there).sum(0).flatten())
    torch.testing.assert_close(layer.mixed(x, mask)[0], layer.out(torch.stack(heard)))


def test_a_graph_with_all_neighbours_still_differs_from_one_with_few() -> None:
    few, many = GraphLayer(D, HEADS, knn=2), GraphLayer(D, HEADS, knn=100)
    for one in (few, many):
        initialise(nn.ModuleDict({"layer": one}), Streams(1))
    x = random(1, 6, D)
    assert not torch.allclose(few(x, everything(x)), many(x, everything(x)))
    x = x[:, :2]
    torch.testing.assert_close(few(x, everything(x)), many(x, everything(x)))


def test_the_nearest_are_found() -> None:
    x, mask = random(3, 20, 5), random(3, 20, seed=1) > -0.5
    index, real = nearest(x, mask, 4)
    distances = torch.cdist(x, x).masked_fill(~mask[:, None], torch.inf)
    expected = distances.topk(4, largest=False)
    assert torch.equal(index.sort(2).values, expected.indices.sort(2).values)
    assert bool(real.all())
    index, real = nearest(x, mask & (torch.arange(20) < 2), 4)
    assert bool((real.sum(2) == (mask[:, :2].sum(1))[:, None]).all())
    assert nearest(x, mask, 50)[0].shape == (3, 20, 20)


def test_gathering_picks_by_sample() -> None:
    x, index = random(2, 4, 3), torch.tensor([[[1, 0]] * 4, [[3, 3]] * 4])
    found = gathered(x, index)
    assert found.shape == (2, 4, 2, 3)
    assert torch.equal(found[0, 2], x[0, [1, 0]])
    assert torch.equal(found[1, 0], x[1, [3, 3]])


def window_batch(size: int = 4) -> Batch:
    inputs = {m: random(size, *shape, seed=i) for i, (m, shape) in enumerate(WINDOWS.items())}
    here = torch.ones(size, dtype=torch.bool)
    present = {m: here.clone() for m in WINDOWS}
    for i, m in enumerate(WINDOWS):
        present[m][i] = False
    return Batch(inputs, present, torch.arange(size) % 3)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_all_kinds_of_windows_lowers_the_loss(name: str) -> None:
    model = architecture(name).build(WINDOWS, 3, KINDS)
    initialise(model, Streams(0))
    batch = window_batch()
    losses = []
    for _ in range(4):
        loss = F.cross_entropy(model(batch).prediction, batch.target)
        losses.append(float(loss.detach()))
        for p, grad in zip(
            model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
        ):
            assert bool(grad.isfinite().all())
            p.data -= 0.01 * grad
    assert losses[-1] < losses[0]
    assert model.embedding_size == ZOO[name].embedding_size


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_without_sensors_gets_zeros(name: str) -> None:
    model = architecture(name).build(WINDOWS, 3, KINDS)
    initialise(model, Streams(0))
    batch = window_batch()
    for here in batch.present.values():
        here[2] = False
    embedding = model(batch).embedding
    assert not embedding[2].any()
    assert bool(embedding[[0, 1, 3]].any(1).all())


def test_lat_is_sglt_without_gate_and_operator() -> None:
    plain, lat = (architecture(name).build(WINDOWS, 3, KINDS) for name in ("sglt", "lat"))
    more = {*plain.by_path[0]} - {*lat.by_path[0]}
    assert more == {f"fusion.shared.layers.{i}.operator.theta" for i in range(2)}
    assert {*lat.by_path[0]} < {*plain.by_path[0]}


def test_umeda_s_own_size() -> None:
    model = architecture("sglt_paper").build({"acc": (3, 20)}, 3)
    theta = model.by_path[0]["fusion.shared.layers.1.operator.theta"]
    assert theta.shape == (256, 256)
    assert (ZOO["sglt_paper"].sglt.heads, model.embedding_size) == (8, 256)


def test_names_say_what_differs() -> None:
    named = {
        "sglt-tau=0.1": architecture("sglt", sglt=Sglt(tau=0.1)),
        "sglt-32-gate=hard": architecture("sglt", embedding=32, sglt=Sglt(gate="hard")),
        "lat-128": architecture("lat", embedding=128),
        "sglt_paper-layers=1": architecture("sglt_paper", sglt=Sglt(heads=8, layers=1)),
        "sglt_paper": architecture("sglt", embedding=256, sglt=Sglt(heads=8)),
        "lat": architecture("sglt", sglt=Sglt(gate="none", operator="none")),
        "gat-knn=4": architecture("gat", sglt=Sglt(knn=4)),
    }
    assert {name: kind.name for name, kind in named.items()} == {name: name for name in named}
    assert "fusion='graph'" in architecture("gat", hidden=(3,)).name


def test_settings_are_heeded_where_they_make_a_difference() -> None:
    given = {"tau": 0.2, "layers": 3, "knn": 2}
    assert architecture("sglt").tuned(given).sglt == Sglt(tau=0.2, layers=3, knn=2)
    for name in ("self_attention", "gat"):
        assert architecture(name).tuned(given).sglt == Sglt(layers=3, knn=2)
    assert architecture("lat").tuned(given).sglt.gate == "none"
    assert architecture("cnn").tuned(given) == ZOO["cnn"]
    deep = architecture("gat").tuned(given).build(WINDOWS, 3, KINDS)
    assert len(deep.fusion.shared["layers"]) == 3
    assert {layer.knn for layer in deep.fusion.shared["layers"]} == {2}


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(CommunisError, match="heads = 4 does not divide an embedding of 30"):
        architecture("sglt", embedding=30).check()
    with pytest.raises(CommunisError, match="operator_rank = 16 exceeds the rank"):
        architecture("sglt", embedding=8, sglt=Sglt(operator="factored")).check()
    with pytest.raises(CommunisError, match=r"'cnn1d' and fusion 'graph' do not go .* by sglt, so"):
        Architecture(fusion="graph").build({"a": (3, 20)}, 3)
    with pytest.raises(CommunisError, match="'tokens' and fusion 'mean' do not go together"):
        Architecture("tokens", fusion="mean").build({"a": (3, 20)}, 3)


def test_attention_to_all_costs_more_and_more() -> None:
    """Four times the tokens: four times the work in a linear model, but not in one that compares
    all with all."""

    def ratio(name: str) -> float:
        model = architecture(name)
        costs = [
            forward_flops(model.build({"a": (3, steps)}, 3), {"a": (3, steps)})
            for steps in (1024, 4096)
        ]
        return costs[1] / costs[0]

    assert ratio("sglt") < 4.1
    assert ratio("self_attention") > 8
