"""MOON: FedAvg plus mu times a contrast between the received and the last local representation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from communis import Batch, CommunisError, FedAvg, Model
from communis.methods.moon import Moon
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    Values,
    apart,
    batches,
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
)


def cosine(u: Tensor, v: Tensor) -> Tensor:
    scaled: Tensor = (u * v).sum(1) / (u.norm(dim=1) * v.norm(dim=1))
    return scaled


def test_two_rounds_by_hand() -> None:
    """The contrast as the paper writes it, -log(e^{s/tau} / (e^{s/tau} + e^{s'/tau})), with the
    model of the round before as the negative."""
    lr, mu, tau = 0.3, 2.0, 0.4
    game = play(fleet(), Moon(lr=lr, mu=mu, tau=tau, epochs=2), rounds=2)
    w = dict(game.bound.params)
    prev = {0: w, 1: w}  # first round: the received model
    for round in (1, 2):
        ends = {}
        for i in (0, 1):
            client, model = starting(game, i, round)
            glob = fill(starting(game, i)[1], w)
            last = fill(starting(game, i)[1], prev[i])

            def slope(model: Model, batch: Batch, glob: Model = glob, last: Model = last) -> Values:
                z = model(batch).embedding
                with torch.no_grad():
                    z_glob, z_prev = glob(batch).embedding, last(batch).embedding
                near_ = (cosine(z, z_glob) / tau).exp()
                far = (cosine(z, z_prev) / tau).exp()
                contrast = -(near_ / (near_ + far)).log().mean()
                return slopes(model, task_loss(model, batch) + mu * contrast)

            ends[i] = descend(fill(model, w), batches(client, epochs=2), lr, slope)
        w, prev = {k: 0.4 * ends[0][k] + 0.6 * ends[1][k] for k in w}, ends
    assert near(game.server.w, w, atol=1e-5)
    assert all(near(game.states[i], prev[i], atol=1e-5) for i in (0, 1))
    plain = play(fleet(), FedAvg(lr=lr, epochs=2), rounds=2)
    assert apart(w, plain.server.w) > 1e-4  # the contrast is seen


def test_mu_zero_is_fedavg() -> None:
    """Bit for bit, over rounds."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.5}
    assert same(
        play(mixed(), Moon(mu=0.0, **settings), rounds=3).server.w,
        play(mixed(), FedAvg(**settings), rounds=3).server.w,
    )


def test_first_round_has_no_contrast() -> None:
    """Positive and negative are the same model, so the contrast is the constant log 2: its
    gradient cancels, and the training loss is higher by mu log 2."""
    with_contrast = ran(mixed(), Moon(lr=0.3, mu=3.0, epochs=2))
    without = ran(mixed(), Moon(lr=0.3, mu=0.0, epochs=2))
    assert near(with_contrast.server.w, without.server.w, atol=1e-5)
    expected = without.history[0].loss + 3.0 * torch.tensor(2.0).log().item()
    assert with_contrast.history[0].loss == pytest.approx(expected, rel=1e-5)


def test_first_round_of_a_late_client() -> None:
    """A client that joins in a later round has no last model either."""
    late = [[0], [0, 1]]
    assert near(
        dict(play(fleet(), Moon(lr=0.3, mu=3.0), cohorts=late).models[1]),
        dict(play(fleet(), Moon(lr=0.3, mu=0.0), cohorts=late).models[1]),
        atol=1e-5,
    )


def test_previous_model_is_the_last_local_one() -> None:
    """Also when rounds lie between: it waits, bit for bit, with the client."""
    game = play(fleet(), Moon(lr=0.3), rounds=1)
    last = game.models[1]
    assert same(game.states[1], last)
    game.round([0])
    assert same(game.states[1], last)
    assert not same(game.states[0], last)


def test_the_contrast_models_are_left_alone() -> None:
    """Training moves neither the received nor the last model: the state that was passed in and
    the downlink keep their bits."""
    game = play(fleet(), Moon(lr=0.3), rounds=1)
    client, state, down = game.receive(0, 2)
    prev, received = state.map(torch.clone), down.w.map(torch.clone)
    game.method.local(client, state, down)
    assert same(state, prev)
    assert same(down.w, received)


def test_one_client() -> None:
    game = play(fleet([(0, 1, 2, 1)]), Moon(lr=0.3, batch=2), rounds=2)
    assert same(game.server.w, game.models[0])


def test_absent_class_and_lone_modality() -> None:
    game = play(fleet(THREE, (("a", "b"), ("a",), ("a",))), Moon(lr=0.3, batch=2), rounds=3)
    assert all(bool(torch.isfinite(t).all()) for t in game.server.w.values())
    own = {k: t for k, t in game.server.w.items() if ".b." in k}
    assert own
    assert same(own, {k: game.models[0][k] for k in own})


def test_all_modalities_absent() -> None:
    """No NaN from the cosine of a zero vector."""
    present = {m: torch.zeros(10, dtype=torch.bool).numpy() for m in ("a", "b")}
    game = play(fleet(present=present), Moon(lr=0.3), rounds=2)
    assert all(bool(torch.isfinite(t).all()) for t in game.server.w.values())


def test_idle_client_is_not_sampled() -> None:
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=1), Moon())
    assert run.history[0].cohort == (0, 2)


def test_bytes() -> None:
    """4 |w| each way; the last local model stays at home."""
    run = ran(mixed(), Moon(), rounds=2)
    assert run.history[1].bytes_down == run.history[1].bytes_up == 4 * owned(run)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="Moon averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), Moon())
