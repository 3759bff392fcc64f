"""FedAvg against its formula: w = sum_k n_k/n w_k, path by path over the clients that own it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from communis import CommunisError, FedAvg, Replies
from communis.methods.fedavg import Server, Up
from tests.unit.methods.tiny import (
    NORMED,
    SMALL,
    THREE,
    apart,
    batches,
    card,
    descend,
    fleet,
    mixed,
    near,
    owned,
    paths,
    play,
    ran,
    same,
    starting,
    vectors,
)


def test_one_round_by_hand() -> None:
    """Two gradient steps per client written out, then the mean by 4, 6 and 2 windows per path."""
    game = play(mixed(), FedAvg(lr=0.5, epochs=2))
    w = {}
    for i in range(3):
        client, model = starting(game, i)
        w[i] = descend(model, batches(client, epochs=2), 0.5)
    expected = {}
    for path in set().union(*w.values()):
        holders = [i for i in range(3) if path in w[i]]
        n = sum((4, 6, 2)[i] for i in holders)
        expected[path] = torch.stack([(4, 6, 2)[i] / n * w[i][path] for i in holders]).sum(0)
    assert near(game.server.w, expected)
    assert apart(game.server.w, game.bound.params) > 0.01


def test_the_run_does_the_same() -> None:
    """The round loop with codec and state files ends at the same bits as the bare calls."""
    method = FedAvg(lr=0.5, batch=2)
    assert same(ran(mixed(), method, rounds=2).server.w, play(mixed(), method, rounds=2).server.w)


@pytest.mark.parametrize(
    ("uniform", "p", "q"),
    [
        (False, [3.25, 6.5], [5.0]),  # p: (1*1 + 3*4) / 4 and (1*2 + 3*8) / 4; q has one holder
        (True, [2.5, 5.0], [5.0]),  # p: (1 + 4) / 2 and (2 + 8) / 2
    ],
)
def test_server_mean(uniform: bool, p: list[float], q: list[float]) -> None:
    """Worked out on paper; a path that nobody sent keeps the server's value."""
    server = Server(w=vectors(p=[0, 0], q=[0], r=[7]))
    replies = Replies(
        [
            (card(0, samples=1, p=2), Up(vectors(p=[1, 2]))),
            (card(1, samples=3, p=2, q=1), Up(vectors(p=[4, 8], q=[5]))),
        ]
    )
    after = FedAvg(uniform=uniform).aggregate(server, replies).w
    assert same(after, vectors(p=p, q=q, r=[7]))


def test_mean_of_equals_is_exact() -> None:
    """No rounding where all clients send the same numbers."""
    w = vectors(p=[0.1, 1 / 3, 1e-7])
    replies = Replies([(card(i, samples=n, p=3), Up(w)) for i, n in enumerate((7, 3, 11))])
    assert same(FedAvg().aggregate(Server(vectors(p=[0, 0, 0])), replies).w, w)


def test_one_client() -> None:
    """The mean of one model is that model, bit for bit."""
    game = play(fleet([(0, 1, 2, 1)]), FedAvg(lr=0.3), rounds=2)
    assert same(game.server.w, game.models[0])


def test_modality_of_one_client() -> None:
    """Paths of a modality that one client owns are that client's alone, and the other never
    receives them."""
    game = play(fleet(suites=(("a", "b"), ("a",))), FedAvg(lr=0.3))
    only = [path for path in game.server.w if ".b." in path]
    assert only
    assert all(torch.equal(game.server.w[path], game.models[0][path]) for path in only)
    assert not any(".b." in path for path in paths(game.downs[0][1]) | paths(game.ups[0][1]))


def test_absent_class() -> None:
    """A client that never saw a class trains to finite values."""
    game = play(fleet(THREE), FedAvg(lr=0.5), rounds=3)
    assert all(bool(torch.isfinite(t).all()) for t in game.server.w.values())


def test_client_without_training_windows_is_not_sampled() -> None:
    """It neither trains nor counts in the mean, but it is evaluated."""
    with_idle = ran(fleet([(0, 1), (), (2, 1)], held_out=2), FedAvg(lr=0.3))
    assert with_idle.history[0].cohort == (0, 2)
    assert set(with_idle.scores()["client"]) == {0, 1, 2}


def test_sampled_subset() -> None:
    """With a cohort of one the server holds what that client sent."""
    fleet_, method = mixed(), FedAvg(lr=0.3)
    run = ran(fleet_, method, cohort=1)
    (chosen,) = run.history[0].cohort
    alone = play(fleet_, method, cohorts=[[chosen]])
    assert same(run.server.w, alone.server.w)
    assert same({k: run.server.w[k] for k in alone.models[chosen]}, alone.models[chosen])


def test_bytes() -> None:
    """4 |w| down and 4 |w| up per client, |w| counting what the client owns."""
    run = ran(mixed(), FedAvg())
    assert run.history[0].bytes_down == run.history[0].bytes_up == 4 * owned(run)


def test_buffers_stay_with_the_client() -> None:
    """BatchNorm statistics are in no message; each client keeps its own."""
    game = play(fleet(models=(NORMED,)), FedAvg(lr=0.3))
    buffers = [path for path in game.states[0] if "running_mean" in path]
    assert buffers
    assert not paths(game.server) & set(game.states[0])
    assert not (paths(game.downs[0][0]) | paths(game.ups[0][0])) & set(game.states[0])
    assert all(not torch.equal(game.states[0][path], game.states[1][path]) for path in buffers)


def test_refuses_mixed_models() -> None:
    """Widths that do not average are refused with the path and the remedy."""
    wide = fleet(models=(SMALL, "cnn_small"))
    with pytest.raises(CommunisError, match=r"shapes .* give all clients one model"):
        ran(wide, FedAvg())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lr": 0.0}, "lr must be positive"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"epochs": -1}, "epochs must be at least 0"),
        ({"max_steps": -1}, "max_steps must be at least 0, got -1"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
        ({"momentum": 0.9, "optimizer": "adam"}, "no effect with optimizer = 'adam': set momentum"),
        ({"momentum": 0.9, "optimizer": "adamw"}, "no effect with optimizer = 'adamw'"),
    ],
)
def test_refuses_senseless_settings(settings: dict[str, Any], text: str) -> None:
    """The settings of local training that every method shares."""
    with pytest.raises(CommunisError, match=text):
        FedAvg(**settings)
