"""FedRoD: a shared head under balanced softmax, a personal head on top that adds its logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Batch, CommunisError, Model
from communis.core.tasks import Localisation
from communis.fleet.clients import FleetClients
from communis.methods.fedrod import FedRoD
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    TWO,
    Slope,
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
)


def is_private(path: str) -> bool:
    return path.startswith("private.")


def balanced_softmax(logits: Tensor, target: Tensor, counts: Tensor) -> Tensor:
    """-log(n_y e^{z_y} / sum_c n_c e^{z_c}), as written."""
    weighted = counts * logits.exp()
    return -(weighted.gather(1, target[:, None])[:, 0] / weighted.sum(1)).log().mean()


def slope_of(counts: Tensor) -> Slope:
    """The shared parameters descend the balanced loss alone, the personal head only its own."""

    def slope(model: Model, batch: Batch) -> Values:
        output = model(batch)
        shared = slopes(model, balanced_softmax(output.prediction, batch.target, counts))
        with torch.no_grad():
            output = model(batch)  # constants for the personal head
        personal = model.private["head"](output.embedding)
        own = slopes(model, F.cross_entropy(output.prediction + personal, batch.target))
        return {k: own[k] if is_private(k) else shared[k] for k in shared}

    return slope


def test_two_rounds_by_hand() -> None:
    """Both losses written out, each for its own parameters; the shared ones are averaged."""
    lr = 0.4
    game = play(fleet(), FedRoD(lr=lr, batch=2), rounds=2)
    start = game.bound.params
    shared = {k: t for k, t in start.items() if not is_private(k)}
    own = {i: {k: t for k, t in start.items() if is_private(k)} for i in (0, 1)}
    for round in (1, 2):
        ends = {}
        for i in (0, 1):
            client, model = starting(game, i, round)
            fill(model, shared | own[i])
            counts = torch.tensor([TWO[i].count(c) for c in range(3)], dtype=torch.float32)
            ends[i] = descend(model, batches(client, 2), lr, slope_of(counts))
            own[i] = {k: ends[i][k] for k in own[i]}
        shared = {k: 0.4 * ends[0][k] + 0.6 * ends[1][k] for k in shared}
    assert near(game.server.w, shared, atol=1e-5)
    assert all(near(game.states[i], own[i], atol=1e-5) for i in (0, 1))
    assert apart(own[0], start) > 0.01


def test_shared_loss_does_not_see_the_personal_head() -> None:
    """Whatever the personal head holds, the uplink has the same bits: no gradient from the
    personal loss reaches a shared parameter."""
    method = FedRoD(lr=0.3, batch=2)
    game = play(fleet(), method, rounds=0)
    ups = []
    for scale in (1.0, -7.0):
        client, state, down = game.receive(0, 1)
        state = state * scale
        method.adopt(client, state, down)
        ups.append(method.local(client, state, down)[1].w)
    assert same(*ups)


def test_personal_loss_is_plain() -> None:
    """The personal head's first step is the gradient of cross-entropy of the added logits, softmax
    minus one-hot, without any balancing."""
    game = play(fleet(), FedRoD(lr=1.0))
    client, model = starting(game, 1)
    (batch,) = batches(client)
    output = model(batch)
    probability = (output.prediction + model.private["head"](output.embedding)).softmax(1)
    error = (probability - F.one_hot(batch.target, 3)) / len(batch)
    expected = {
        "private.head.out.weight": model.private["head"].out.weight - error.T @ output.embedding,
        "private.head.out.bias": model.private["head"].out.bias - error.sum(0),
    }
    assert near(game.states[1], expected)


def test_a_deep_personal_head_is_built_like_the_shared_one() -> None:
    deep = Architecture(width=4, embedding=6, hidden=(5, 4))
    params = FleetClients(fleet(models=(deep,)), FedRoD(deep=True)).params
    own = {k.removeprefix("private."): t.shape for k, t in params.items() if is_private(k)}
    assert own == {k: t.shape for k, t in params.items() if k.startswith("head.")}
    linear = FleetClients(fleet(models=(deep,)), FedRoD()).params
    assert [tuple(t.shape) for k, t in linear.items() if is_private(k)] == [(3,), (3, 6)]


def test_a_class_never_seen() -> None:
    """The second client lacks class 2, the third has nothing else. Everything stays finite, and
    a row of the shared head whose class is not there gets no gradient: its bits stay."""
    game = play(fleet(THREE), FedRoD(lr=0.5, batch=2), rounds=1)
    before, after = game.downs[0][1].w, game.ups[0][1].w
    for path in ("head.out.weight", "head.out.bias"):
        assert torch.equal(after[path][2], before[path][2])
        assert not torch.equal(after[path][:2], before[path][:2])
    game.round()
    for state in (game.server.w, *game.states.values()):
        assert all(bool(torch.isfinite(t).all()) for t in state.values())
    # One class alone has probability one under balanced softmax: nothing shared moves at all.
    assert same(game.ups[1][2].w, game.downs[1][2].w)


def test_prediction_adds_both_heads() -> None:
    game = play(fleet(held_out=3), FedRoD(lr=0.3))
    client, state, _ = game.receive(0, 2)
    batch = client.test.batch(torch.arange(3))
    output = client.model(batch)
    weight, bias = state["private.head.out.weight"], state["private.head.out.bias"]
    expected = output.prediction + output.embedding @ weight.T + bias
    assert torch.allclose(game.method.predict(client, state, batch), expected, atol=1e-6)


def test_personal_head_is_on_no_wire() -> None:
    game = play(mixed(), FedRoD(lr=0.3), rounds=2)
    sent = paths(game.server)
    for messages in (*game.downs, *game.ups):
        sent |= {path for message in messages.values() for path in paths(message)}
    assert sent
    assert not any(is_private(path) for path in sent)
    assert set(game.states[0]) == {"private.head.out.weight", "private.head.out.bias"}


def test_one_client() -> None:
    game = play(fleet([(0, 1, 2, 1)]), FedRoD(lr=0.3, batch=2), rounds=2)
    assert same(game.server.w | game.states[0], game.models[0])


def test_lone_modality() -> None:
    game = play(fleet(suites=(("a", "b"), ("a",))), FedRoD(lr=0.3))
    own = {k: t for k, t in game.server.w.items() if ".b." in k}
    assert own
    assert same(own, {k: game.models[0][k] for k in own})


def test_idle_client_is_not_sampled() -> None:
    """It is scored with the personal head of its start."""
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), FedRoD())
    assert run.history[0].cohort == (0, 2)
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_bytes() -> None:
    """4 |w| each way, |w| without the personal head."""
    run = ran(mixed(), FedRoD())
    expected = 4 * owned(run, lambda path: not is_private(path))
    assert run.history[0].bytes_down == run.history[0].bytes_up == expected


def test_refuses_a_task_without_classes() -> None:
    where = np.zeros((10, 2), np.float32)
    with pytest.raises(CommunisError, match="needs a classification or counting task"):
        ran(fleet(target=where, task=Localisation(2)), FedRoD())


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="FedRoD averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedRoD())
