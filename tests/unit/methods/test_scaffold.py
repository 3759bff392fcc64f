"""SCAFFOLD against Algorithm 1, option II, of the paper: x, y_i, c, c_i, K steps, N clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from communis import Batch, CommunisError, FedAvg, Model, Replies
from communis.methods.scaffold import Scaffold, Server, Up
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    Game,
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
    """All lines of the box, for 4 and 6 windows in batches of 2: K = 2 and 3 steps. The second
    round works with control variates that are not zero."""
    lr, lr_server = 0.3, 0.7
    game = play(fleet(), Scaffold(lr=lr, lr_server=lr_server, batch=2), rounds=2)
    x = dict(game.bound.params)
    zero = {k: torch.zeros_like(t) for k, t in x.items()}
    c, c_i = zero, {0: zero, 1: zero}
    for round in (1, 2):
        dy, dc = {}, {}
        for i, K in ((0, 2), (1, 3)):
            client, model = starting(game, i, round)
            fill(model, x)

            def slope(
                model: Model, batch: Batch, c: Values = c, own: Values = c_i[i]
            ) -> Values:  # line 10
                g = slopes(model, task_loss(model, batch))
                return {k: g[k] - own[k] + c[k] for k in g}

            y = descend(model, batches(client, 2), lr, slope)
            c_plus = {k: c_i[i][k] - c[k] + (x[k] - y[k]) / (K * lr) for k in x}  # line 12
            dy[i] = {k: y[k] - x[k] for k in x}
            dc[i] = {k: c_plus[k] - c_i[i][k] for k in x}
            c_i[i] = c_plus
        x = {k: x[k] + lr_server * (dy[0][k] + dy[1][k]) / 2 for k in x}  # lines 16 and 17
        c = {k: c[k] + (dc[0][k] + dc[1][k]) / 2 for k in x}
    assert near(game.server.x, x, atol=1e-5)
    assert near(game.server.c, c, atol=1e-5)
    assert all(near(game.states[i].c_i, c_i[i], atol=1e-5) for i in (0, 1))
    assert apart(c, zero) > 0.01


def test_server_step() -> None:
    """On paper, 2 of N = 4 holders reply. p: x = 1 + 0.5 * (2 + 4)/2 = 2.5 and
    c = 0.5 + (1 + 3)/4 = 1.5. q has N = 1: x = 0 + 0.5 * 6 = 3 and c = 0 - 2/1 = -2. r is not
    heard."""
    server = Server(
        x=vectors(p=[1], q=[0], r=[9]),
        c=vectors(p=[0.5], q=[0], r=[8]),
        N=vectors(p=[4], q=[1], r=[3]),
    )
    replies = Replies(
        [
            (card(0, samples=1, p=1), Up(dy=vectors(p=[2]), dc=vectors(p=[1]))),
            (
                card(1, samples=9, p=1, q=1),
                Up(dy=vectors(p=[4], q=[6]), dc=vectors(p=[3], q=[-2])),
            ),
        ]
    )
    after = Scaffold(lr_server=0.5).aggregate(server, replies)
    assert same(after.x, vectors(p=[2.5], q=[3], r=[9]))
    assert same(after.c, vectors(p=[1.5], q=[-2], r=[8]))
    assert same(after.N, server.N)


def test_first_variate_is_the_gradient() -> None:
    """After one step from c = c_i = 0 the client's variate is its gradient at x."""
    game = play(fleet(), Scaffold(lr=0.3))
    for i in (0, 1):
        client, model = starting(game, i)
        (batch,) = batches(client)
        assert near(game.states[i].c_i, slopes(model, task_loss(model, batch)), atol=1e-5)


def mean_variates(game: Game) -> dict[str, torch.Tensor]:
    """1/N sum_i c_i per path; clients that never took part have c_i = 0."""
    holders = {k: game.bound.holders(k) for k in game.bound.params}
    return {
        k: sum((s.c_i[k] for s in game.states.values() if k in s.c_i), torch.zeros_like(start))
        / holders[k]
        for k, start in game.bound.params.items()
    }


@pytest.mark.parametrize("cohorts", [[None] * 4, [[0, 1], [2], [1, 2], [0]]])
def test_server_variate_is_the_mean_of_the_clients(cohorts: list[list[int] | None]) -> None:
    """c = 1/N sum_i c_i per path over its holders, with mixed sensors, all or some clients
    taking part."""
    game = play(mixed(), Scaffold(lr=0.3, batch=2), rounds=0)
    for cohort in cohorts:
        game.round(cohort)
        assert near(game.server.c, mean_variates(game), atol=1e-5)
    assert apart(game.server.c, game.bound.params.zeros()) > 0.01


def test_first_round_is_uniform_fedavg() -> None:
    """While all variates are zero nothing is corrected."""
    assert near(
        play(mixed(), Scaffold(lr=0.3, batch=2)).server.x,
        play(mixed(), FedAvg(lr=0.3, batch=2, uniform=True)).server.w,
    )


def test_one_client_is_fedavg() -> None:
    """With one client c = c_i, so the correction vanishes in every round."""
    alone = fleet([(0, 1, 2, 0, 1)])
    game = play(alone, Scaffold(lr=0.3, batch=2), rounds=3)
    assert near(game.server.x, play(alone, FedAvg(lr=0.3, batch=2), 3).server.w, atol=1e-5)
    assert near(game.server.c, game.states[0].c_i, atol=1e-5)


def test_absent_class_and_lone_modality() -> None:
    """Finite with classes and modalities that few clients have; the variate of a modality with
    one holder is the holder's."""
    game = play(fleet(THREE, (("a", "b"), ("a",), ("a",))), Scaffold(lr=0.3, batch=2), rounds=3)
    assert all(bool(torch.isfinite(t).all()) for t in game.server.x.values())
    own = [k for k in game.server.c if ".b." in k]
    assert own
    assert near(
        {k: game.server.c[k] for k in own}, {k: game.states[0].c_i[k] for k in own}, atol=1e-5
    )


def test_idle_client_is_not_counted() -> None:
    """A client without training windows is not sampled and not in N."""
    game = play(fleet([(0, 1), (), (2, 1)], held_out=1), Scaffold(lr=0.3))
    assert set(game.ups[0]) == {0, 2}
    assert all(float(n) == 2 for n in game.server.N.values())


def test_bytes() -> None:
    """x and c down, dy and dc up: 8 |w| each way."""
    run = ran(mixed(), Scaffold())
    assert run.history[0].bytes_down == run.history[0].bytes_up == 8 * owned(run)


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"momentum": 0.9}])
def test_refuses_other_optimisers(settings: dict[str, Any]) -> None:
    """Line 12 reads a gradient off y - x, which only plain SGD allows."""
    with pytest.raises(CommunisError, match="set optimizer = 'sgd' and momentum = 0"):
        Scaffold(**settings)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="Scaffold averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), Scaffold())
