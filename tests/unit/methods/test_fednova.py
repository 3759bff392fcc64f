"""FedNova: x - tau_eff sum_i p_i d_i with d_i = (x - x_i) / |a_i|_1 and tau_eff = sum p_i |a_i|_1.

The learning rate is inside d_i here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from communis import CommunisError, FedAvg, Replies
from communis.methods.fednova import FedNova, Server, Up
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    Values,
    apart,
    batches,
    card,
    fleet,
    mixed,
    move,
    near,
    owned,
    play,
    ran,
    same,
    slopes,
    starting,
    task_loss,
    values,
    vectors,
)


def momentum_weights(tau: int, rho: float) -> list[float]:
    """How much each of tau gradients contributes to the sum of all steps, by running the buffer:
    gradient s enters as 1 and is carried on with rho in every later step."""
    weights = [0.0] * tau
    buffer = [0.0] * tau
    for step in range(tau):
        buffer = [rho * b for b in buffer]
        buffer[step] += 1.0
        weights = [w + b for w, b in zip(weights, buffer, strict=True)]
    return weights


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("tau", [1, 2, 5, 40])
def test_weight_is_the_sum_of_a_simulation(tau: int, rho: float) -> None:
    """The closed form of |a_i|_1 against the momentum buffer itself."""
    assert FedNova(momentum=rho).weight(tau) == pytest.approx(sum(momentum_weights(tau, rho)))


def test_weight_of_plain_sgd_is_the_steps() -> None:
    assert [FedNova().weight(tau) for tau in (1, 2, 7)] == [1, 2, 7]


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_one_round_by_hand(rho: float) -> None:
    """4 and 6 windows in batches of 2: tau = 2 and 3. Momentum steps written out."""
    lr = 0.2
    game = play(fleet(), FedNova(lr=lr, batch=2, momentum=rho))
    x = dict(game.bound.params)
    ends, a_1 = [], []
    for i in (0, 1):
        client, model = starting(game, i)
        velocity: Values = {k: torch.zeros_like(t) for k, t in x.items()}
        for batch in batches(client, 2):
            g = slopes(model, task_loss(model, batch))
            velocity = {k: rho * velocity[k] + g[k] for k in g}
            move(model, velocity, lr)
        ends.append(values(model))
        a_1.append(sum(momentum_weights((2, 3)[i], rho)))
    p = (0.4, 0.6)
    tau_eff = p[0] * a_1[0] + p[1] * a_1[1]
    expected = {
        k: x[k] - tau_eff * sum(p[i] * (x[k] - ends[i][k]) / a_1[i] for i in (0, 1)) for k in x
    }
    assert near(game.server.x, expected)
    plain = {k: p[0] * ends[0][k] + p[1] * ends[1][k] for k in x}
    assert apart(expected, plain) > 1e-4  # the normalisation is seen


def test_server_step() -> None:
    """On paper, p: shares 1/4 and 3/4, d = 0.25 * 2 + 0.75 * 4 = 3.5, tau_eff = 0.25 * 1 +
    0.75 * 3 = 2.5, x = 10 - 3.5 * 2.5 = 1.25. q has one holder: x = 1 - 0.5 * 3 = -0.5."""
    replies = Replies(
        [
            (card(0, samples=1, p=1), Up(d=vectors(p=[2]), a_1=1.0)),
            (card(1, samples=3, p=1, q=1), Up(d=vectors(p=[4], q=[0.5]), a_1=3.0)),
        ]
    )
    after = FedNova().aggregate(Server(x=vectors(p=[10], q=[1], r=[6])), replies)
    assert same(after.x, vectors(p=[1.25], q=[-0.5], r=[6]))


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_equal_steps_are_fedavg(rho: float) -> None:
    """All |a_i|_1 alike cancel: the weighted mean of the models, also with mixed sensors."""
    settings: dict[str, Any] = {"lr": 0.2, "batch": 2, "max_steps": 1, "momentum": rho, "epochs": 1}
    assert near(
        play(mixed(), FedNova(**settings), rounds=3).server.x,
        play(mixed(), FedAvg(**settings), rounds=3).server.w,
    )


def test_one_client() -> None:
    """d |a|_1 of one client is its whole way: the server holds its model."""
    game = play(fleet([(0, 1, 2, 2, 1)]), FedNova(lr=0.2, batch=2, momentum=0.5))
    assert near(game.server.x, game.models[0])


def test_lone_modality_and_absent_class() -> None:
    """A path of one holder goes to the holder's value, whatever the others' steps."""
    game = play(fleet(THREE, (("a", "b"), ("a",), ("a",))), FedNova(lr=0.2, batch=2))
    own = [k for k in game.server.x if ".b." in k]
    assert own
    assert near({k: game.server.x[k] for k in own}, {k: game.models[0][k] for k in own})
    assert all(bool(torch.isfinite(t).all()) for t in game.server.x.values())


def test_idle_client_is_not_sampled() -> None:
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=1), FedNova())
    assert run.history[0].cohort == (0, 2)


def test_bytes() -> None:
    """4 |w| down; 4 |w| and one float64 up."""
    run = ran(mixed(), FedNova())
    assert run.history[0].bytes_down == 4 * owned(run)
    assert run.history[0].bytes_up == 4 * owned(run) + 8 * 3


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_refuses_other_optimisers(optimizer: Any) -> None:
    with pytest.raises(CommunisError, match="set optimizer = 'sgd'"):
        FedNova(optimizer=optimizer)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="FedNova averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedNova())


@pytest.mark.parametrize(("noised", "repaired"), [(-4.0, 1.0), (2.5, 2.5), (1e12, 1e9)])
def test_noised_steps_are_steps_again(noised: float, repaired: float) -> None:
    d = vectors(p=[3.0])
    assert Up(d, noised).repaired() == Up(d, repaired)


def test_one_step_weighs_one_whatever_the_momentum() -> None:
    """Rounding made less of it for some, and honest clients were refused."""
    for rho in (i / 100 for i in range(100)):
        method = FedNova(momentum=rho)
        assert method.weight(1) == pytest.approx(1)
        Up(vectors(), method.weight(1)).check(card(), method)
