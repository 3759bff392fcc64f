"""FedRep: first the head on the received representation, then the representation on that head."""

from __future__ import annotations

import pytest
import torch

from communis import Batch, CommunisError, Model
from communis.methods.fedrep import FedRep
from tests.unit.methods.tiny import (
    NORMED,
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
    paths,
    play,
    ran,
    same,
    slopes,
    starting,
    task_loss,
)


def is_head(path: str) -> bool:
    return path.startswith("head.")


def head_slope(model: Model, batch: Batch) -> Values:
    return {k: g for k, g in slopes(model, task_loss(model, batch)).items() if is_head(k)}


def body_slope(model: Model, batch: Batch) -> Values:
    return {k: g for k, g in slopes(model, task_loss(model, batch)).items() if not is_head(k)}


def test_two_rounds_by_hand() -> None:
    """Two passes over the head, one over phi with the new head; phi is averaged."""
    lr = 0.4
    game = play(fleet(), FedRep(lr=lr, head_epochs=2), rounds=2)
    phi = {k: t for k, t in game.bound.params.items() if not is_head(k)}
    h = {i: {k: t for k, t in game.bound.params.items() if is_head(k)} for i in (0, 1)}
    for round in (1, 2):
        ends = {}
        for i in (0, 1):
            client, model = starting(game, i, round)
            fill(model, phi | h[i])
            # One batch holds all windows, so that the order within a pass cannot matter.
            descend(model, batches(client, epochs=2), lr, head_slope)
            ends[i] = descend(model, batches(client), lr, body_slope)
            h[i] = {k: ends[i][k] for k in h[i]}
        phi = {k: 0.4 * ends[0][k] + 0.6 * ends[1][k] for k in phi}
    assert near(game.server.w, phi, atol=1e-5)
    assert all(near(game.states[i], h[i], atol=1e-5) for i in (0, 1))
    assert apart(phi, game.bound.params) > 1e-3


def test_body_rests_while_the_head_trains() -> None:
    """With no pass over phi its bits are those received, and the head has moved."""
    game = play(mixed(), FedRep(lr=0.3, head_epochs=2, epochs=0, momentum=0.5))
    for i, up in game.ups[0].items():
        assert same(up.w, game.downs[0][i].w)
        assert apart(game.states[i], game.bound.params) > 1e-3


def test_head_rests_while_the_body_trains() -> None:
    """With no pass over the head its bits are the initial ones, and phi has moved."""
    game = play(mixed(), FedRep(lr=0.3, head_epochs=0, epochs=2, weight_decay=0.1))
    for i, up in game.ups[0].items():
        assert same(game.states[i], {k: game.bound.params[k] for k in game.states[i]})
        assert apart(up.w, game.downs[0][i].w) > 1e-3


def test_head_is_fitted_first() -> None:
    """phi's step is taken with the head that was just fitted, not with the received one."""
    fitted = play(fleet(), FedRep(lr=0.5, head_epochs=3)).server.w
    received = play(fleet(), FedRep(lr=0.5, head_epochs=0)).server.w
    assert apart(fitted, received) > 1e-4


def test_parameters_train_again_afterwards() -> None:
    """The phases freeze nothing for good and leave no gradient behind."""
    game = play(fleet(), FedRep(lr=0.3))
    client, _, _ = game.receive(0, 2)
    assert all(p.requires_grad and p.grad is None for p in client.model.parameters())


def test_head_is_on_no_wire() -> None:
    game = play(mixed(), FedRep(lr=0.3), rounds=2)
    sent = paths(game.server)
    for messages in (*game.downs, *game.ups):
        sent |= {path for message in messages.values() for path in paths(message)}
    assert sent
    assert not any(is_head(path) for path in sent)


def test_buffers_stay_with_the_client() -> None:
    """The private state is head and BatchNorm statistics, and both are on no wire."""
    game = play(fleet(models=(NORMED,)), FedRep(lr=0.3))
    assert any("running_mean" in k for k in game.states[0])
    assert not set(game.states[0]) & (paths(game.downs[0][0]) | paths(game.ups[0][0]))


def test_one_client() -> None:
    """phi on the server and the head at home are the client's model."""
    game = play(fleet([(0, 1, 2, 1)]), FedRep(lr=0.3, batch=2), rounds=2)
    assert same(game.server.w | game.states[0], game.models[0])


def test_absent_class_and_lone_modality() -> None:
    game = play(fleet(THREE, (("a", "b"), ("a",), ("a",))), FedRep(lr=0.3, batch=2), rounds=2)
    own = {k: t for k, t in game.server.w.items() if ".b." in k}
    assert own
    assert same(own, {k: game.models[0][k] for k in own})
    assert all(bool(torch.isfinite(t).all()) for t in game.server.w.values())


def test_idle_client_is_not_sampled() -> None:
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), FedRep())
    assert run.history[0].cohort == (0, 2)
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_bytes() -> None:
    """4 (|w| - |head|) each way."""
    run = ran(mixed(), FedRep())
    expected = 4 * owned(run, lambda path: not is_head(path))
    assert run.history[0].bytes_down == run.history[0].bytes_up == expected


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="FedRep averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedRep())
