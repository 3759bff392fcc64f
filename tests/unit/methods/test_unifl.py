"""UniFL: one FedAvg per modality, of a whole unimodal network; logits of several are averaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis import Batch, CommunisError, Model, State
from communis.core.contract import modality_of
from communis.core.tasks import Localisation
from communis.exchange.wire import flatten
from communis.fleet.clients import FleetClients
from communis.methods.fedavg import FedAvg
from communis.methods.harmony import unimodal_loss
from communis.methods.parts import sharing
from communis.methods.unifl import UniFL
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    NORMED,
    SMALL,
    THREE,
    Game,
    Values,
    apart,
    batches,
    descend,
    fill,
    fleet,
    mixed,
    near,
    owned,
    paths,
    play,
    ran,
    same,
    slopes,
    starting,
    values,
)

TEMPORAL = Architecture("strided", width=2, fusion="time_gru", embedding=6)


def said(model: Model, m: str, x: Tensor) -> Tensor:
    """The unimodal network written out: encoder, one layer with ReLU, head."""
    named = dict(model.named_parameters())
    layer, head = f"unimodal.{m}.fusion", f"unimodal.{m}.head.out"
    h = model.encoders[m](x)  # type: ignore[operator, index]
    z = F.relu(h @ named[f"{layer}.blocks.{m}.weight"].T + named[f"{layer}.shared.bias"])
    return z @ named[f"{head}.weight"].T + named[f"{head}.bias"]


def slope(model: Model, batch: Batch) -> Values:
    """The gradient of every modality's own cross-entropy, each for its own network alone."""
    found = {}
    for m, x in batch.inputs.items():
        every = slopes(model, F.cross_entropy(said(model, m, x), batch.target))
        found |= {k: g for k, g in every.items() if modality_of(k) == m}
    return found


def networks(found: Values) -> Values:
    return {k: t for k, t in found.items() if modality_of(k)}


@pytest.mark.parametrize(
    ("uniform", "shares"),
    [(False, {"a": (0.4, 0.6), "b": (2 / 3, 1 / 3)}), (True, {"a": (0.5, 0.5), "b": (0.5, 0.5)})],
)
def test_two_rounds_by_hand(uniform: bool, shares: dict[str, tuple[float, float]]) -> None:
    """Clients 0 and 1 (4 and 6 windows) have `a`, clients 0 and 2 (4 and 2) have `b`."""
    lr = 0.3
    game = play(mixed(), UniFL(lr=lr, batch=2, uniform=uniform), rounds=2)
    w = networks(game.bound.params)
    for round in (1, 2):
        ends = {}
        for i in range(3):
            client, model = starting(game, i, round)
            fill(model, {k: w[k] for k in w if k in client.card.params})
            ends[i] = descend(model, batches(client, 2), lr, slope)
        for path in w:
            m = modality_of(path)
            one, other = shares[m]
            w[path] = one * ends[0][path] + other * ends[1 if m == "a" else 2][path]
    assert near(game.server.w, w, atol=1e-5)
    assert apart(w, game.bound.params) > 0.01


def test_one_modality_is_fedavg() -> None:
    """With one sensor in the fleet it is FedAvg of a network that started with these values."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.5}
    one = fleet(THREE, suites=[("a",)] * 3)
    game = play(one, UniFL(**settings), rounds=0)
    bound = FleetClients(one, FedAvg(**settings))
    prefix = "unimodal.a."
    begun = State({k.removeprefix(prefix): t for k, t in game.server.w.items()})
    other = Game(bound, bound.method, replace(bound.method.start_server(bound), w=begun))
    for _ in range(3):
        game.round()
        other.round()
    assert same({k.removeprefix(prefix): t for k, t in game.server.w.items()}, other.server.w)
    assert apart(other.server.w, begun) > 0.01


def test_modalities_learn_apart() -> None:
    """What a client with both sensors sends of a network is what it would send with that alone."""
    method = UniFL(lr=0.3, batch=2, epochs=2)
    both = play(fleet([THREE[0]]), method)
    for m in ("a", "b"):
        alone = play(fleet([THREE[0]], suites=[(m,)]), method)
        shared = {k: t for k, t in both.ups[0][0].w.items() if modality_of(k) == m}
        assert near(shared, alone.ups[0][0].w)
        assert apart(shared, both.downs[0][0].w) > 0.01


def test_the_models_own_fusion_and_head_are_not_used() -> None:
    """With Adam and weight decay, which would move whatever they are handed."""
    game = play(mixed(), UniFL(optimizer="adam", weight_decay=0.1), rounds=2)
    for i in range(3):
        unused = {k: t for k, t in game.models[i].items() if not modality_of(k)}
        assert unused
        assert same(unused, {k: game.bound.params[k] for k in unused})
        assert not paths(game.ups[0][i]) & set(unused)
        assert not paths(game.downs[1][i]) & set(unused)


@pytest.mark.parametrize("buffers", ["private", "recalibrate"])
def test_bytes(buffers: Any) -> None:
    """4 |w_m| for every modality that a client holds, both ways."""
    run = ran(mixed(models=(NORMED,)), UniFL(buffers=buffers), rounds=2)
    by_hand = 4 * owned(run, lambda path: bool(modality_of(path)))
    assert {r.bytes_up for r in run.history} == {r.bytes_down for r in run.history} == {by_hand}
    whole = 4 * owned(run)
    assert by_hand < whole


def test_bytes_with_averaged_statistics() -> None:
    """Means and variances of norm1 (4 channels) and norm2 (8) per modality: 24 numbers for each of
    four held modalities, both ways."""
    run = ran(mixed(models=(NORMED,)), UniFL(buffers="average"), rounds=2)
    by_hand = 4 * owned(run, lambda path: bool(modality_of(path))) + 4 * 4 * 24
    assert [r.bytes_up for r in run.history] == [by_hand] * 2
    assert [r.bytes_down for r in run.history] == [by_hand] * 2
    assert not any(record.refused for record in run.history)


def test_prediction() -> None:
    """The mean of the logits of the sensors that are there."""
    game = play(fleet(held_out=3), UniFL(lr=0.3))
    client, state, _ = game.receive(0, 2)
    assert same(networks(values(client.model)), game.server.w)
    batch = client.test.batch(torch.arange(3))
    flags = {"a": torch.tensor([True, True, False]), "b": torch.tensor([True, False, False])}
    a, b = (said(client.model, m, batch.inputs[m]) for m in ("a", "b"))
    expected = torch.stack([(a[0] + b[0]) / 2, a[1], torch.zeros(3)])
    found = game.method.predict(client, state, Batch(batch.inputs, flags, batch.target))
    assert torch.allclose(found, expected, atol=1e-6)


def statistics(found: Values) -> Values:
    return {k: t for k, t in found.items() if k.endswith(("running_mean", "running_var"))}


def test_statistics_change_predictions_not_training() -> None:
    """Training goes by the statistics of batches: the server's weights are the same bits."""
    games = {
        buffers: play(mixed(models=(NORMED,)), UniFL(lr=0.3, buffers=buffers), rounds=3)
        for buffers in ("private", "average", "recalibrate")
    }
    found = {}
    for buffers, game in games.items():
        weights = {k: t for k, t in game.server.w.items() if k in game.bound.params}
        assert same(weights, games["private"].server.w)
        client, state, _ = game.receive(0, 4)
        game.method.prepare(client, state)
        found[buffers] = statistics(State.buffers(client.model))
    assert apart(found["private"], found["average"]) > 1e-3
    assert apart(found["private"], found["recalibrate"]) > 1e-3
    assert apart(found["average"], found["recalibrate"]) > 1e-3


def test_private_statistics() -> None:
    game = play(mixed(models=(NORMED,)), UniFL(lr=0.3), rounds=2)
    client, _, down = game.receive(0, 3)
    assert not statistics(down.w)
    assert not statistics(game.server.w)
    assert same(State.buffers(client.model), kept(game))


def kept(game: Game) -> Values:
    return {k: t for k, t in game.states[0].items() if k not in game.bound.params}


def test_averaged_statistics() -> None:
    """The mean over holders, weighted by the windows that have the modality; no counters."""
    game = play(mixed(models=(NORMED,)), UniFL(lr=0.3, buffers="average"))
    own = [statistics(networks(game.states[i])) for i in range(3)]
    a = {k: 0.4 * t + 0.6 * own[1][k] for k, t in own[0].items() if modality_of(k) == "a"}
    b = {k: (2 * t + own[2][k]) / 3 for k, t in own[0].items() if modality_of(k) == "b"}
    assert near(statistics(game.server.w), a | b)
    assert apart(own[0], own[1]) > 1e-3
    for i, expected in enumerate((a | b, a, b)):
        client, _, down = game.receive(i, 2)
        assert near(statistics(down.w), expected)
        assert near(statistics(networks(State.buffers(client.model))), expected)


def by_hand(model: Model, m: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of what comes out of the first convolution, over windows and time."""
    seen: list[Tensor] = []
    norm = model.encoders[m].norm1  # type: ignore[union-attr, index]
    handle = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model.encoders[m](x)  # type: ignore[operator, index]
    handle.remove()
    values = seen[0].transpose(0, 1).flatten(1)
    return values.mean(1), values.var(1)


def test_recalibrated_statistics() -> None:
    """Those of the client's training windows, with the weights that came down, whatever it had.
    Estimated once, before predictions."""
    game = play(mixed(models=(NORMED,)), UniFL(lr=0.3, buffers="recalibrate"), rounds=2)
    found = []
    for state in (game.states[0], game.states[0].map(torch.ones_like)):
        client = game.bound.client(0, 3)
        batch = client.train.batch(torch.arange(4))
        game.method.adopt(client, state, game.method.down(game.server, client.card))
        assert game.method.prepare(client, state) is state
        found.append(statistics(networks(State.buffers(client.model))))
        assert same(networks(values(client.model)), game.server.w)
        for m, x in batch.inputs.items():
            mean, variance = by_hand(client.model, m, x)
            norm: Any = client.model.encoders[m].norm1  # type: ignore[union-attr, index]
            assert torch.allclose(norm.running_mean, mean, atol=1e-6)
            assert torch.allclose(norm.running_var, variance, rtol=1e-5)
            assert int(norm.num_batches_tracked) == 1
            assert norm.momentum == nn.BatchNorm2d(1).momentum
            assert not norm.training
    assert same(found[0], found[1])


def test_recalibrated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six windows in three parts, 0 and 3, 1 and 4, 2 and 5: the mean of their statistics."""
    monkeypatch.setattr(sharing, "PART", 2)
    client, _ = starting(FleetClients(fleet(models=(NORMED,)), UniFL()), 1)
    sharing.recalibrate(client, lambda b: unimodal_loss(client, client.model(b), b))
    x = client.train.batch(torch.arange(6)).inputs["a"]
    parts = [by_hand(client.model, "a", x[[i, i + 3]]) for i in range(3)]
    norm: Any = client.model.encoders["a"].norm1  # type: ignore[union-attr, index]
    assert torch.allclose(norm.running_mean, torch.stack([p[0] for p in parts]).mean(0), atol=1e-6)
    assert torch.allclose(norm.running_var, torch.stack([p[1] for p in parts]).mean(0), rtol=1e-5)


def test_recalibration_takes_time() -> None:
    """A pass over the training windows in every round, besides the training itself."""
    bound = FleetClients(fleet(models=(NORMED,)), UniFL(buffers="recalibrate"))
    client = replace(bound.client(1, 1, fresh=True), timed="analytic")
    method: Any = bound.method
    down = method.down(method.start_server(bound), client.card)
    state = method.adopt(client, method.start_client(client), down)
    method.local(client, state, down)
    assert client.log["windows"] == 6 + 6


@pytest.mark.slow
@pytest.mark.parametrize("model", [NORMED, TEMPORAL])
@pytest.mark.parametrize("buffers", ["private", "average", "recalibrate"])
def test_few_windows(buffers: Any, model: Architecture) -> None:
    """A client with one window, one without any, one whose `b` never works."""
    seen = np.array([True] * 4 + [False] * 4 + [True] * 6)
    many = fleet(
        [(0, 1), (2,), (0, 1, 2, 1), (), (1, 0, 1, 1)],
        models=(model,),
        held_out=1,
        present={"a": np.ones(16, bool), "b": np.r_[seen, True, True]},
    )
    run = ran(many, UniFL(batch=2, buffers=buffers), rounds=2, eval_every=1)
    assert [record.cohort for record in run.history] == [(0, 1, 2, 4)] * 2
    assert not any(record.refused for record in run.history)
    assert set(run.scores()["client"]) == {0, 1, 2, 3, 4}
    assert np.isfinite(run.scores()["value"]).all()
    assert all(bool(torch.isfinite(t).all()) for t in flatten(run.server).values())


def test_a_whole_network_with_a_recurrent_layer() -> None:
    """The branch of a model that reads time after fusion has all of it: statistics of its layer
    are shared, too."""
    game = play(mixed(models=(TEMPORAL,)), UniFL(buffers="average"))
    assert "unimodal.a.fusion.shared.layer.norm.running_var" in game.server.w
    assert "unimodal.b.fusion.shared.gru.weight_hh_l0" in game.server.w


def test_a_task_without_classes() -> None:
    where = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float32)
    run = ran(fleet(target=where, task=Localisation(2)), UniFL(lr=0.01), rounds=2)
    assert all(np.isfinite(record.loss) for record in run.history)


def test_refuses() -> None:
    with pytest.raises(CommunisError, match="buffers must be one of 'private', 'average', 'recal"):
        UniFL(buffers="none")  # type: ignore[arg-type]
    with pytest.raises(CommunisError, match="UniFL averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), UniFL())
