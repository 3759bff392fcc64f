"""Ditto: FedAvg, and a personal model beside it that is held near the common one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from communis import Batch, CommunisError, FedAvg, Model
from communis.methods.ditto import Ditto
from communis.methods.local import Local
from tests.unit.methods.tiny import (
    NORMED,
    SMALL,
    Values,
    apart,
    batches,
    descend,
    fleet,
    mixed,
    near,
    play,
    ran,
    same,
    slopes,
    starting,
    task_loss,
    values,
)


def test_two_rounds_by_hand() -> None:
    """v_k descends its loss plus lam/2 |v - w^t|^2, from where it was; w is FedAvg's."""
    lr, lam = 0.5, 0.8
    game = play(fleet(), Ditto(lr=lr, lam=lam, personal_epochs=2), rounds=2)
    plain = play(fleet(), FedAvg(lr=lr), rounds=1)
    for i in range(2):
        _, model = starting(game, i)
        for round, w_t in ((1, values(model)), (2, dict(plain.server.w))):
            known = game.bound.client(i, round)

            def slope(model: Model, batch: Batch, w_t: Values = w_t) -> Values:
                gaps = [(p - w_t[path]).square().sum() for path, p in model.named_parameters()]
                distance = torch.stack(gaps).sum()
                return slopes(model, task_loss(model, batch) + lam / 2 * distance)

            v = descend(model, batches(known, epochs=2), lr, slope)
        assert near(game.states[i].v, v)
        assert apart(v, game.server.w) > 1e-3


def test_the_common_model_is_that_of_fedavg() -> None:
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.9, "carry": True}
    game = play(mixed(), Ditto(lam=0.7, **settings), rounds=3)
    assert same(game.server.w, play(mixed(), FedAvg(**settings), rounds=3).server.w)


@pytest.mark.parametrize("carry", [False, True])
def test_without_a_pull_the_personal_model_is_that_of_local(carry: bool) -> None:
    """Bit for bit, BatchNorm's statistics and the optimiser's memory included."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.9, "carry": carry}
    made = mixed(models=(NORMED,))
    game, alone = play(made, Ditto(lam=0.0, **settings), 3), play(made, Local(**settings), 3)
    for i, state in game.states.items():
        assert same(state.v, alone.states[i])


def test_a_strong_pull_makes_it_follow_the_common_model() -> None:
    """With lr lam = 1 each step ends at w^t minus a step of lr on the loss."""
    lr = 1e-4
    game = play(fleet(), Ditto(lr=lr, lam=1 / lr), rounds=1)
    start = starting(game, 0)[1]
    w_t = values(copy.deepcopy(start))
    assert apart(game.states[0].v, w_t) < 1e-3
    loose = play(fleet(), Ditto(lr=0.5, lam=0.0), rounds=1)
    assert apart(loose.states[0].v, w_t) > 1e-3


def test_predictions_are_those_of_the_personal_model() -> None:
    game = play(fleet(held_out=3), Ditto(lr=0.3, lam=0.1), rounds=2)
    client, state, _ = game.receive(0, 3)
    batch = client.test.batch(torch.arange(3))
    with torch.no_grad():
        common = client.model.eval()(batch).prediction
        state = game.method.prepare(client, state)
        said = game.method.predict(client, state, batch)
    assert same(values(client.model), {k: state.v[k] for k in values(client.model)})
    assert not torch.allclose(said, common)


def test_a_client_that_sits_out_keeps_its_model() -> None:
    game = play(fleet(), Ditto(lr=0.3), cohorts=[None, [0]])
    before = play(fleet(), Ditto(lr=0.3), rounds=1)
    assert same(game.states[1].v, before.states[1].v)
    assert not same(game.states[0].v, before.states[0].v)


def test_as_many_bytes_as_fedavg() -> None:
    ours, plain = ran(mixed(), Ditto()), ran(mixed(), FedAvg())
    assert ours.history[0].bytes_up == plain.history[0].bytes_up
    assert ours.history[0].bytes_down == plain.history[0].bytes_down


def test_no_passes_leave_the_personal_model_as_it_is() -> None:
    game = play(fleet(), Ditto(epochs=0), rounds=2)
    assert same({k: game.states[0].v[k] for k in game.server.w}, dict(game.server.w))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lam": -1.0}, "lam >= 0"),
        ({"personal_epochs": -1}, "personal_epochs >= 0"),
        ({"lr": 0.5, "lam": 4.0}, "further away"),
    ],
)
def test_refuses_senseless_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(CommunisError, match=text):
        Ditto(**settings)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="Ditto averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), Ditto())
