"""FedProto: class prototypes travel, models stay."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Batch, Client, CommunisError, Model, Replies
from communis.core.tasks import Localisation
from communis.methods.fedproto import FedProto, Private, Server, Up
from communis.methods.local import Local
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    Values,
    apart,
    batches,
    card,
    descend,
    fleet,
    mixed,
    near,
    paths,
    play,
    ran,
    same,
    slopes,
    starting,
    windows,
)


def embeddings(client: Client, model: Model) -> tuple[Tensor, Tensor]:
    """Those of all training windows, with their classes."""
    batch = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        return copy.deepcopy(model).eval()(batch).embedding, batch.target


def test_two_rounds_by_hand() -> None:
    """Prototype: the mean embedding of a class over all windows of all clients, after training.
    Loss: cross-entropy plus lam times the mean squared distance to it."""
    lr, lam = 0.3, 2.0
    game = play(mixed(), FedProto(lr=lr, lam=lam, epochs=2), rounds=2)
    models = {i: starting(game, i)[1] for i in range(3)}
    C: Tensor | None = None
    for round in (1, 2):
        z, y, ends = [], [], {}
        for i in range(3):
            client, _ = starting(game, i, round)

            def slope(model: Model, batch: Batch, c: Tensor | None = C) -> Values:
                output = model(batch)
                loss = F.cross_entropy(output.prediction, batch.target)
                if c is not None:
                    loss = loss + lam * F.mse_loss(output.embedding, c[batch.target])
                return slopes(model, loss)

            ends[i] = descend(models[i], batches(client, epochs=2), lr, slope)
            own_z, own_y = embeddings(client, models[i])
            z.append(own_z)
            y.append(own_y)
        every_z, every_y = torch.cat(z), torch.cat(y)
        C = torch.stack([every_z[every_y == j].mean(0) for j in range(3)])
    assert C is not None
    assert all(near(game.states[i].model, ends[i], atol=1e-5) for i in range(3))
    assert torch.allclose(game.server.C, C, atol=1e-5)
    assert game.server.n.tolist() == [4, 5, 3]  # how often THREE names each class
    plain = play(mixed(), Local(lr=lr, epochs=2), rounds=2)
    assert apart(game.models[0], plain.models[0]) > 1e-4  # the regulariser is seen


def test_distance() -> None:
    """The squared norm is the mean of squares times the six dimensions of the embedding."""
    mean = play(mixed(), FedProto(lr=0.3, lam=6.0), rounds=2)
    norm = play(mixed(), FedProto(lr=0.3, lam=1.0, distance="sum"), rounds=2)
    weak = play(mixed(), FedProto(lr=0.3, lam=1.0), rounds=2)
    for i in range(3):
        assert near(norm.states[i].model, mean.states[i].model)
        assert apart(norm.states[i].model, weak.states[i].model) > 1e-3
    with pytest.raises(CommunisError, match="distance must be one of 'mean', 'sum'"):
        FedProto(distance="l1")  # type: ignore[arg-type]


def test_server_step() -> None:
    """On paper. Class 0: sums 2 + 4 and 6 + 0 over 1 + 2 samples, so (2, 2). Class 1: only the
    first client, (3, 9) / 3. Class 2: nobody, so the old prototype and its count stay."""
    server = Server(C=torch.tensor([[9.0, 9], [0, 0], [5, 6]]), n=torch.tensor([1.0, 0, 4]))
    replies = Replies(
        [
            (
                card(0, samples=4),
                Up(torch.tensor([[2.0, 6], [3, 9], [0, 0]]), torch.tensor([1.0, 3, 0])),
            ),
            (
                card(1, samples=2),
                Up(torch.tensor([[4.0, 0], [0, 0], [0, 0]]), torch.tensor([2.0, 0, 0])),
            ),
        ]
    )
    after = FedProto().aggregate(server, replies)
    assert after.C.tolist() == [[2, 2], [1, 3], [5, 6]]
    assert after.n.tolist() == [3, 3, 4]


def test_lam_zero_is_local() -> None:
    """Bit for bit, over rounds: without the regulariser prototypes change no model."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.5}
    proto = play(mixed(), FedProto(lam=0.0, **settings), rounds=3)
    local = play(mixed(), Local(**settings), rounds=3)
    assert all(same(proto.states[i].model, local.states[i]) for i in range(3))


def test_first_round_is_local() -> None:
    """No class has a prototype yet, so lam does not matter."""
    proto = play(mixed(), FedProto(lr=0.3, lam=5.0, batch=2))
    local = play(mixed(), Local(lr=0.3, batch=2))
    assert all(near(proto.states[i].model, local.states[i]) for i in range(3))


def test_bytes() -> None:
    """4 * classes * (embedding + 1) per client and direction, whatever the model."""
    run = ran(mixed(), FedProto(), rounds=2)
    for record in run.history:
        assert record.bytes_down == record.bytes_up == 3 * 4 * 3 * (6 + 1)


def test_no_parameter_is_on_a_wire() -> None:
    """Messages hold the two declared tensors and no path."""
    game = play(mixed(), FedProto())
    assert not paths(game.downs[0][0]) | paths(game.ups[0][0]) | paths(game.server)
    assert set(vars(game.ups[0][0])) == {"sums", "counts"}


def test_mixed_models() -> None:
    """Three widths in one fleet: they share nothing but the embedding size."""
    zoo = fleet(THREE, models=("cnn_small", "cnn", "cnn_large"), held_out=2)
    run = ran(zoo, FedProto(lr=0.05), rounds=2)
    assert len({c.model for c in run.cards}) == 3
    assert run.history[1].bytes_up == 3 * 4 * 3 * (128 + 1)
    assert run.server.n.tolist() == [4, 5, 3]
    assert np.isfinite(run.scores()["value"]).all()


def test_a_class_nobody_has() -> None:
    """It keeps n = 0 and a zero prototype, and no sample is drawn towards it."""
    game = play(fleet([(0, 1, 0), (1, 1, 0)]), FedProto(lr=0.3, lam=2.0, batch=2), rounds=2)
    assert game.server.n.tolist() == [3, 3, 0]
    assert torch.equal(game.server.C[2], torch.zeros(6))
    for state in game.states.values():
        assert all(bool(torch.isfinite(t).all()) for t in state.model.values())


def test_unknown_prototype_does_not_pull() -> None:
    """A class that no client has sent adds nothing to the loss: with the prototypes of other
    classes only, training is Local's."""
    method = FedProto(lr=0.3, lam=5.0)
    game = play(fleet([(2, 2, 2), (0, 1, 0)]), method, cohorts=[[1]])
    assert game.server.n.tolist() == [2, 1, 0]
    game.round([0])  # has class 2 alone
    local = play(fleet([(2, 2, 2), (0, 1, 0)]), Local(lr=0.3), cohorts=[[1], [0]])
    assert near(game.models[0], local.models[0])


def test_prediction_by_prototype() -> None:
    """The nearest prototype wins; a class without one is never predicted, however near zero."""
    fleet_ = fleet([(0, 1, 0, 1)], held_out=3)
    game = play(fleet_, FedProto(inference="prototype"))
    client, state, _ = game.receive(0, 2)
    batch = client.test.batch(torch.arange(3))
    with torch.no_grad():
        z = client.model(batch).embedding
        scores = game.method.predict(client, state, batch)
    gap = [[float((z_i - C_j).norm()) for C_j in game.server.C[:2]] for z_i in z]
    assert torch.allclose(scores[:, :2], -torch.tensor(gap), atol=1e-5)
    assert bool((scores[:, 2] < scores[:, :2].min() - 100).all())


def test_prediction_by_prototype_before_there_is_one() -> None:
    """Until then the head decides."""
    game = play(fleet(held_out=2), FedProto(inference="prototype"), rounds=0)
    client, state, _ = game.receive(0, 1)
    batch = client.test.batch(torch.arange(2))
    assert torch.equal(game.method.predict(client, state, batch), client.model(batch).prediction)


def test_prediction_by_head() -> None:
    game = play(fleet(held_out=2), FedProto(inference="head"))
    client, state, _ = game.receive(0, 2)
    batch = client.test.batch(torch.arange(2))
    assert torch.equal(game.method.predict(client, state, batch), client.model(batch).prediction)


def test_unsampled_client_predicts_with_new_prototypes() -> None:
    """`adopt` brings them although the client did not train."""
    game = play(fleet(held_out=2), FedProto(inference="prototype"), cohorts=[[0]])
    _, state, _ = game.receive(1, 2)
    assert isinstance(state, Private)
    assert torch.equal(state.C, game.server.C)
    assert torch.equal(state.n, game.server.n)


def test_one_client() -> None:
    """Its prototypes are the fleet's."""
    game = play(fleet([(0, 1, 2, 1)]), FedProto(lr=0.3))
    up = game.ups[0][0]
    assert up.counts.tolist() == [1, 2, 1]
    assert torch.allclose(game.server.C, up.sums / up.counts[:, None])


def test_idle_client_is_not_sampled() -> None:
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), FedProto())
    assert run.history[0].cohort == (0, 2)
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_refuses_two_embedding_sizes() -> None:
    wide = Architecture(width=4, embedding=8)
    with pytest.raises(CommunisError, match=r"one embedding size for all clients, got \[6, 8\]"):
        ran(fleet(models=(SMALL, wide)), FedProto())


def test_refuses_a_task_without_classes() -> None:
    where = np.zeros((len(windows()), 2), np.float32)
    with pytest.raises(CommunisError, match="a prototype belongs to a class"):
        ran(fleet(target=where, task=Localisation(2)), FedProto())


def test_noised_counts_are_whole_again() -> None:
    """And without windows there is no sum."""
    noised = Up(torch.tensor([[1.0, -2], [3, 4], [5, 6]]), torch.tensor([1.6, -3.2, 0.4]))
    repaired = noised.repaired()
    assert repaired.counts.tolist() == [2, 0, 0]
    assert repaired.sums.tolist() == [[1, -2], [0, 0], [0, 0]]
