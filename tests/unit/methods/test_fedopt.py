"""FedAdam and FedYogi against Algorithm 2 of the paper: Delta, m, v, eta, tau."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from communis import CommunisError, FedAvg, Replies, State
from communis.methods.fedopt import FedOpt, Server, Up
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
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
    starting,
    vectors,
)

# Means of Delta are 2, 0.5 and 1 (by 1 and 3 samples, which must not matter); tau = 1, so v_0 = 1.
# m = 0.5 * 0 + 0.5 * Delta = 1, 0.25, 0.5
# adam: v = 0.75 * 1 + 0.25 * (4, 0.25, 1) = 1.75, 0.8125, 1
# yogi: v = 1 - 0.25 * (4, 0.25, 1) * sign(-3, 0.75, 0) = 2, 0.9375, 1
REPLIES = Replies(
    [
        (card(0, samples=1, p=3), Up(Delta=vectors(p=[1, 1, 1]))),
        (card(1, samples=3, p=3), Up(Delta=vectors(p=[3, 0, 1]))),
    ]
)


@pytest.mark.parametrize(
    ("rule", "v"), [("adam", [1.75, 0.8125, 1.0]), ("yogi", [2.0, 0.9375, 1.0])]
)
def test_server_step(rule: Any, v: list[float]) -> None:
    """The numbers above; x moves by eta m / (sqrt(v) + tau). A path that is not heard keeps x, m
    and v."""
    method = FedOpt(server=rule, lr_server=0.1, beta1=0.5, beta2=0.75, tau=1.0)
    server = Server(
        x=vectors(p=[10, 10, 10], q=[4]),
        m=vectors(p=[0, 0, 0], q=[3]),
        v=vectors(p=[1, 1, 1], q=[2]),
    )
    after = method.aggregate(server, REPLIES)
    m = [1.0, 0.25, 0.5]
    x = [10 + 0.1 * m_j / (math.sqrt(v_j) + 1) for m_j, v_j in zip(m, v, strict=True)]
    assert near(after.m, vectors(p=m, q=[3]))
    assert near(after.v, vectors(p=v, q=[2]))
    assert near(after.x, vectors(p=x, q=[4]), atol=0)


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_two_rounds_by_hand(rule: Any) -> None:
    """Local steps written out, Delta = x_i - x, uniform mean, moments carried to the second
    round."""
    lr, eta, b1, b2, tau = 0.3, 0.05, 0.8, 0.9, 0.01
    method = FedOpt(server=rule, lr=lr, batch=2, lr_server=eta, beta1=b1, beta2=b2, tau=tau)
    game = play(fleet(), method, rounds=2)
    x = dict(game.bound.params)
    m = {k: torch.zeros_like(t) for k, t in x.items()}
    v = {k: torch.full_like(t, tau**2) for k, t in x.items()}
    for round in (1, 2):
        ends = []
        for i in (0, 1):
            client, model = starting(game, i, round)
            ends.append(descend(fill(model, x), batches(client, 2), lr))
        for k, old in x.items():
            delta = ((ends[0][k] - old) + (ends[1][k] - old)) / 2
            m[k] = b1 * m[k] + (1 - b1) * delta
            if rule == "adam":
                v[k] = b2 * v[k] + (1 - b2) * delta**2
            else:
                v[k] = v[k] - (1 - b2) * delta**2 * torch.sign(v[k] - delta**2)
            x[k] = old + eta * m[k] / (torch.sqrt(v[k]) + tau)
    assert near(game.server.m, m)
    assert near(game.server.v, v, atol=1e-7)
    assert near(game.server.x, x, rtol=1e-4, atol=1e-5)
    assert apart(x, game.bound.params) > 0.05


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_v_has_its_floor(rule: Any) -> None:
    """v_0 = tau^2 and v_t >= beta2 v_{t-1}, hence v_t >= tau^2 beta2^t: the step is bounded.

    For yogi: v falls only where Delta^2 < v, and then by (1 - beta2) Delta^2 < (1 - beta2) v.
    """
    method = FedOpt(server=rule, tau=0.1, beta2=0.9)
    start = vectors(p=[0] * 50)
    server = Server(x=start, m=start, v=start + 0.1**2)
    noise = torch.Generator().manual_seed(0)
    for t in range(1, 30):
        size = 10.0 ** torch.randint(-4, 2, (50,), generator=noise)
        delta = torch.randn(50, generator=noise) * size
        reply = card(p=50), Up(State({"p": delta}))
        server = method.aggregate(server, Replies([reply]))
        assert bool((server.v["p"] >= 0.1**2 * 0.9**t * (1 - 1e-5)).all())
    assert bool(torch.isfinite(server.x["p"]).all())


def test_yogi_changes_v_by_delta_squared_alone() -> None:
    """Where adam moves v by (1 - beta2)(Delta^2 - v), yogi moves it in the same direction by
    (1 - beta2) Delta^2, however large v is."""
    delta, v = torch.tensor([0.1, 2.0]), torch.tensor([4.0, 0.25])
    zero = vectors(p=[0, 0])
    server = Server(x=zero, m=zero, v=State({"p": v}))
    moved = {}
    for rule in ("adam", "yogi"):
        after = FedOpt(server=rule, beta2=0.9).aggregate(
            server, Replies([(card(p=2), Up(vectors(p=delta.tolist())))])
        )
        moved[rule] = after.v["p"] - v
    assert torch.equal(moved["adam"].sign(), moved["yogi"].sign())
    assert torch.allclose(moved["yogi"].abs(), 0.1 * delta**2, rtol=1e-3)
    assert torch.allclose(moved["adam"], 0.1 * (delta**2 - v), rtol=1e-4)


def test_large_tau_is_scaled_fedavg() -> None:
    """With tau far above Delta and beta1 = 0 the step is eta/(2 tau) Delta: sqrt(v) stays tau."""
    method = FedOpt(lr=0.3, lr_server=2e3, beta1=0.0, beta2=0.999999, tau=1e3)
    plain = play(mixed(), FedAvg(lr=0.3, uniform=True))
    assert near(play(mixed(), method).server.x, plain.server.w, rtol=1e-4, atol=1e-5)


def test_one_client_absent_class_lone_modality() -> None:
    """One client; then clients without some class or modality: everything stays finite."""
    alone = play(fleet([(0, 1, 1, 0)]), FedOpt(lr=0.3), rounds=2)
    assert len(alone.ups[0]) == 1
    game = play(fleet(THREE, (("a", "b"), ("a",), ("a",))), FedOpt(lr=0.3), rounds=3)
    for server in (alone.server, game.server):
        assert all(bool(torch.isfinite(t).all()) for t in server.x.values())


def test_path_outside_the_cohort_waits() -> None:
    """While nobody who owns modality b takes part, its x, m and v keep their bits."""
    game = play(mixed(), FedOpt(lr=0.3), rounds=2)
    before = game.server
    game.round([1])  # the client with modality a only
    for part in ("x", "m", "v"):
        old, new = getattr(before, part), getattr(game.server, part)
        waiting = {k: t for k, t in old.items() if ".b." in k}
        assert waiting
        assert same(waiting, {k: new[k] for k in waiting})
        assert not same(old, new)


def test_idle_client_is_not_sampled() -> None:
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=1), FedOpt())
    assert run.history[0].cohort == (0, 2)


def test_bytes() -> None:
    """x down, Delta up; the moments stay on the server: 4 |w| each way."""
    run = ran(mixed(), FedOpt())
    assert run.history[0].bytes_down == run.history[0].bytes_up == 4 * owned(run)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="FedOpt averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedOpt())
