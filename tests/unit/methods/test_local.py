"""Local: every client on its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from communis import CommunisError, FedAvg
from communis.methods.local import Local
from tests.unit.methods.tiny import (
    NORMED,
    THREE,
    apart,
    batches,
    descend,
    fleet,
    mixed,
    near,
    play,
    ran,
    same,
    starting,
    windows,
)


def test_two_rounds_by_hand() -> None:
    """Gradient steps written out; each client goes on from where it stopped."""
    game = play(mixed(), Local(lr=0.4, batch=2), rounds=2)
    for i in range(3):
        _, model = starting(game, i)
        for round in (1, 2):
            client, _ = starting(game, i, round)
            end = descend(model, batches(client, 2), 0.4)
        assert near(game.states[i], end, atol=1e-5)
        assert apart(end, game.bound.params) > 0.01


def test_nothing_is_sent() -> None:
    """No payload byte in either direction, and no server state."""
    run = ran(mixed(), Local(), rounds=2)
    assert [(r.bytes_down, r.bytes_up) for r in run.history] == [(0, 0), (0, 0)]
    assert run.server is None


def test_others_do_not_matter() -> None:
    """Changing one client's data changes no bit of another's model."""
    inputs = {m: x.copy() for m, x in windows().inputs.items()}
    for x in inputs.values():
        x[4:] = -x[4:]  # the second client's windows
    before = play(fleet(), Local(lr=0.3, batch=2), rounds=2)
    after = play(fleet(inputs=inputs), Local(lr=0.3, batch=2), rounds=2)
    assert same(before.states[0], after.states[0])
    assert not same(before.states[1], after.states[1])


def test_one_client_is_fedavg() -> None:
    """A federation of one."""
    alone = fleet([(0, 1, 2, 1)])
    assert same(
        play(alone, Local(lr=0.3, batch=2), rounds=3).states[0],
        play(alone, FedAvg(lr=0.3, batch=2), rounds=3).server.w,
    )


def test_buffers_are_part_of_the_state() -> None:
    """BatchNorm statistics go on from round to round."""
    game = play(fleet(models=(NORMED,)), Local(lr=0.3, batch=2), rounds=2)
    (counted,) = {
        int(t) for k, t in game.states[0].items() if k.endswith("norm1.num_batches_tracked")
    }
    assert counted == 4  # two rounds of two batches


def test_mixed_models() -> None:
    """Any architectures side by side."""
    run = ran(fleet(THREE, models=("cnn_small", "gru", "cnn_large"), held_out=2), Local(lr=0.05))
    assert len({c.model for c in run.cards}) == 3
    assert set(run.scores()["client"]) == {0, 1, 2}
    assert np.isfinite(run.scores()["value"]).all()


def test_absent_class_and_lone_modality() -> None:
    game = play(fleet(THREE, (("a", "b"), ("a",), ("a",))), Local(lr=0.5, batch=2), rounds=2)
    for state in game.states.values():
        assert all(bool(torch.isfinite(t).all()) for t in state.values())
    assert not any(".b." in k for k in game.states[1])


def test_idle_client_is_not_sampled() -> None:
    """It is scored with the model of its start."""
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), Local())
    assert run.history[0].cohort == (0, 2)
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_refuses_senseless_settings() -> None:
    with pytest.raises(CommunisError, match=r"lr must be positive, got -1"):
        Local(lr=-1.0)
