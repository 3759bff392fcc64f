"""FedProx: FedAvg whose local steps also descend mu/2 |w - w_t|^2."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from communis import Batch, CommunisError, FedAvg, Model
from communis.methods.fedprox import FedProx
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    Values,
    apart,
    batches,
    descend,
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
    values,
)


def test_one_round_by_hand() -> None:
    """Three steps per client on the loss with the proximal term written into it, then the mean."""
    lr, mu = 0.5, 0.8
    game = play(fleet(), FedProx(lr=lr, mu=mu, epochs=3))
    after = []
    for i in range(2):
        client, model = starting(game, i)
        w_t = values(model)

        def slope(model: Model, batch: Batch, w_t: Values = w_t) -> Values:
            distance = sum((p - w_t[path]).square().sum() for path, p in model.named_parameters())
            return slopes(model, task_loss(model, batch) + mu / 2 * distance)

        after.append(descend(model, batches(client, epochs=3), lr, slope))
    assert near(game.server.w, {k: 0.4 * after[0][k] + 0.6 * after[1][k] for k in after[0]})
    # The proximal term is seen: FedAvg ends elsewhere.
    assert apart(game.server.w, play(fleet(), FedAvg(lr=lr, epochs=3)).server.w) > 1e-3


def test_mu_zero_is_fedavg() -> None:
    """Bit for bit, over rounds, with momentum and mixed sensors."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.9}
    assert same(
        play(mixed(), FedProx(mu=0.0, **settings), rounds=3).server.w,
        play(mixed(), FedAvg(**settings), rounds=3).server.w,
    )


def test_first_step_is_fedavgs() -> None:
    """At w = w_t the proximal term has no slope, so one step per round is FedAvg whatever mu."""
    assert same(
        play(mixed(), FedProx(lr=0.3, mu=5.0)).server.w, play(mixed(), FedAvg(lr=0.3)).server.w
    )


def test_larger_mu_stays_closer() -> None:
    """The distance to the received model falls as mu grows."""
    moved = []
    for mu in (0.0, 0.5, 2.0):
        game = play(fleet(), FedProx(lr=0.3, mu=mu, epochs=4))
        moved.append(float((game.server.w - game.bound.params).norm()))
    assert moved[0] > moved[1] > moved[2] > 0


def test_one_client_and_absent_class() -> None:
    """One client is averaged with nobody; classes that a client lacks do no harm."""
    game = play(fleet([(0, 0, 1, 1)]), FedProx(lr=0.3, mu=0.5, batch=2), rounds=2)
    assert same(game.server.w, game.models[0])
    others = play(fleet(THREE), FedProx(lr=0.3, mu=0.5, batch=2), rounds=2)
    assert all(bool(torch.isfinite(t).all()) for t in others.server.w.values())


def test_modality_of_one_client_and_idle_client() -> None:
    """Paths of one holder are the holder's own; a client without training windows is passed
    over."""
    fleet_ = fleet([(0, 1, 2, 0), (1, 2), ()], (("a", "b"), ("a",), ("a",)), held_out=1)
    game = play(fleet_, FedProx(lr=0.3, mu=0.5, batch=2))
    assert set(game.ups[0]) == {0, 1}
    own = {k: t for k, t in game.server.w.items() if ".b." in k}
    assert own
    assert same(own, {k: game.models[0][k] for k in own})


def test_bytes() -> None:
    """The proximal term costs no communication: 4 |w| each way."""
    run = ran(mixed(), FedProx())
    assert run.history[0].bytes_down == run.history[0].bytes_up == 4 * owned(run)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="FedProx averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedProx())
