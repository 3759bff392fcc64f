"""FedDyn against Algorithm 1 of the paper: theta, g_k (the stored gradient), h, alpha, m."""

from __future__ import annotations

import pytest
import torch

from communis import Batch, CommunisError, FedAvg, Model, Replies
from communis.methods.feddyn import FedDyn, Server, Up
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    Values,
    apart,
    batches,
    card,
    descend,
    fill,
    fleet,
    mixed,
    near,
    owned,
    play,
    ran,
    same,
    slopes,
    starting,
    task_loss,
    vectors,
)


def test_two_rounds_by_hand() -> None:
    """The local objective written out term by term, then g_k, h and theta; g_k and h matter from
    the second round on."""
    lr, alpha = 0.3, 0.5
    game = play(fleet(), FedDyn(lr=lr, alpha=alpha, batch=2), rounds=2)
    theta = dict(game.bound.params)
    zero = {k: torch.zeros_like(t) for k, t in theta.items()}
    h, g = zero, {0: zero, 1: zero}
    for round in (1, 2):
        theta_k = {}
        for i in (0, 1):
            client, model = starting(game, i, round)
            fill(model, theta)

            def slope(
                model: Model, batch: Batch, theta: Values = theta, g_k: Values = g[i]
            ) -> Values:
                named = dict(model.named_parameters())
                linear = sum((g_k[k] * p).sum() for k, p in named.items())
                square = sum((p - theta[k]).square().sum() for k, p in named.items())
                return slopes(model, task_loss(model, batch) - linear + alpha / 2 * square)

            theta_k[i] = descend(model, batches(client, 2), lr, slope)
            g[i] = {k: g[i][k] - alpha * (theta_k[i][k] - theta[k]) for k in theta}
        drift = {k: (theta_k[0][k] - theta[k]) + (theta_k[1][k] - theta[k]) for k in theta}
        h = {k: h[k] - alpha * drift[k] / 2 for k in theta}  # m = 2
        theta = {k: (theta_k[0][k] + theta_k[1][k]) / 2 - h[k] / alpha for k in theta}
    assert near(game.server.theta, theta, atol=1e-5)
    assert near(game.server.h, h, atol=1e-5)
    assert all(near(game.states[i].g_k, g[i], atol=1e-5) for i in (0, 1))
    assert apart(h, zero) > 0.01


def test_server_step() -> None:
    """On paper, 2 of m = 4 holders of p reply, alpha = 0.5: h = 1 - 0.5 * (2 + 4)/4 = 0.25 and
    theta = 10 + 3 - 0.25/0.5 = 12.5. q has m = 1: h = 0 - 0.5 * 2 = -1, theta = 1 + 2 + 2 = 5.
    r is not heard and stays, although its h is not zero."""
    server = Server(
        theta=vectors(p=[10], q=[1], r=[6]),
        h=vectors(p=[1], q=[0], r=[3]),
        m=vectors(p=[4], q=[1], r=[2]),
    )
    replies = Replies(
        [
            (card(0, samples=1, p=1), Up(vectors(p=[2]))),
            (card(1, samples=9, p=1, q=1), Up(vectors(p=[4], q=[2]))),
        ]
    )
    after = FedDyn(alpha=0.5).aggregate(server, replies)
    assert same(after.h, vectors(p=[0.25], q=[-1], r=[3]))
    assert same(after.theta, vectors(p=[12.5], q=[5], r=[6]))
    assert same(after.m, server.m)


@pytest.mark.parametrize("cohorts", [[None] * 4, [[0, 1], [2], [1, 2], [0]]])
def test_h_is_the_mean_of_the_stored_gradients(cohorts: list[list[int] | None]) -> None:
    """Each reply moves m h and its g_k by the same -alpha dtheta, and both start at zero, so
    h = 1/m sum_k g_k per path, whoever takes part."""
    game = play(mixed(), FedDyn(lr=0.3, alpha=0.5, batch=2), rounds=0)
    for cohort in cohorts:
        game.round(cohort)
        for k, h in game.server.h.items():
            stored = [s.g_k[k] for s in game.states.values() if k in s.g_k]
            mean = sum(stored, torch.zeros_like(h)) / game.bound.holders(k)
            assert torch.allclose(h, mean, atol=1e-5), k
    assert apart(game.server.h, game.bound.params.zeros()) > 0.01


def test_first_round_doubles_the_mean_step() -> None:
    """With g_k = h = 0 and one local step the clients do what FedAvg's do; then h/alpha is minus
    the mean step, so theta moves by twice of it, whatever alpha."""
    start = play(mixed(), FedDyn(), rounds=0).bound.params
    plain = play(mixed(), FedAvg(lr=0.3, uniform=True)).server.w - start
    for alpha in (0.1, 2.0):
        moved = play(mixed(), FedDyn(lr=0.3, alpha=alpha)).server.theta - start
        assert near(moved, plain * 2.0)


def test_one_client() -> None:
    """h is that client's stored gradient and theta = theta_k - h/alpha."""
    game = play(fleet([(0, 1, 2, 1)]), FedDyn(lr=0.3, alpha=0.5, batch=2), rounds=3)
    assert near(game.server.h, game.states[0].g_k, atol=1e-5)
    expected = {k: t - game.server.h[k] / 0.5 for k, t in game.models[0].items()}
    assert near(game.server.theta, expected, atol=1e-5)


def test_absent_class_and_lone_modality() -> None:
    """Finite with classes and modalities that few clients have; h of a modality with one holder
    is the holder's g_k."""
    game = play(fleet(THREE, (("a", "b"), ("a",), ("a",))), FedDyn(lr=0.3, batch=2), rounds=3)
    assert all(bool(torch.isfinite(t).all()) for t in game.server.theta.values())
    own = [k for k in game.server.h if ".b." in k]
    assert own
    assert near({k: game.server.h[k] for k in own}, {k: game.states[0].g_k[k] for k in own})


def test_path_outside_the_cohort_waits() -> None:
    """While no owner of modality b takes part, its theta and h keep their bits."""
    game = play(mixed(), FedDyn(lr=0.3), rounds=2)
    before = game.server
    game.round([1])
    for part in ("theta", "h"):
        old, new = getattr(before, part), getattr(game.server, part)
        waiting = {k: t for k, t in old.items() if ".b." in k}
        assert waiting
        assert same(waiting, {k: new[k] for k in waiting})
        assert not same(old, new)


def test_idle_client_is_not_counted() -> None:
    """A client without training windows is not sampled and not in m."""
    game = play(fleet([(0, 1), (), (2, 1)], held_out=1), FedDyn(lr=0.3))
    assert set(game.ups[0]) == {0, 2}
    assert all(float(m) == 2 for m in game.server.m.values())


def test_bytes() -> None:
    """theta down, dtheta up; g_k and h stay where they are: 4 |w| each way."""
    run = ran(mixed(), FedDyn())
    assert run.history[0].bytes_down == run.history[0].bytes_up == 4 * owned(run)


@pytest.mark.parametrize("alpha", [0.0, -1.0])
def test_refuses_alpha(alpha: float) -> None:
    """h / alpha needs a positive alpha; FedAvg is not the limit alpha = 0."""
    with pytest.raises(CommunisError, match=f"alpha > 0, got {alpha}"):
        FedDyn(alpha=alpha)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="FedDyn averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedDyn())
