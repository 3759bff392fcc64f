"""FedBN: FedAvg of everything but the normalisation layers."""

from __future__ import annotations

import pytest
import torch

from communis import CommunisError, FedAvg
from communis.methods.fedbn import FedBN
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    NORMED,
    SMALL,
    THREE,
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
    starting,
)


def is_norm(path: str) -> bool:
    return ".norm1." in path or ".norm2." in path


def test_two_rounds_by_hand() -> None:
    """Convolutions, fusion and head: the mean. Normalisation: each client goes on with its own,
    weights and running statistics alike."""
    lr = 0.4
    game = play(fleet(models=(NORMED,)), FedBN(lr=lr, batch=2), rounds=2)
    shared = {k: t for k, t in game.bound.params.items() if not is_norm(k)}
    own = {i: {k: t for k, t in game.bound.params.items() if is_norm(k)} for i in (0, 1)}
    models = {i: starting(game, i)[1] for i in (0, 1)}  # carry their running statistics
    for round in (1, 2):
        ends = {}
        for i in (0, 1):
            client, _ = starting(game, i, round)
            fill(models[i], shared | own[i])
            ends[i] = descend(models[i], batches(client, 2), lr)
            own[i] = {k: ends[i][k] for k in own[i]}
        shared = {k: 0.4 * ends[0][k] + 0.6 * ends[1][k] for k in shared}
    assert near(game.server.w, shared, atol=1e-5)
    for i in (0, 1):
        statistics = {k: b for k, b in models[i].named_buffers() if b.is_floating_point()}
        kept = {k: t for k, t in game.states[i].items() if t.is_floating_point()}
        assert near(kept, own[i] | statistics, atol=1e-5)
    assert not near(own[0], own[1], atol=1e-3)


def test_norms_are_on_no_wire() -> None:
    """Neither weights nor statistics of a normalisation layer reach a message or the server."""
    game = play(mixed(models=(NORMED,)), FedBN(lr=0.3), rounds=2)
    sent = paths(game.server)
    for messages in (*game.downs, *game.ups):
        sent |= {path for message in messages.values() for path in paths(message)}
    assert sent
    assert not any(is_norm(path) for path in sent)
    assert any(path.endswith("norm1.weight") for path in game.states[0])


def test_layer_norm_stays_too() -> None:
    """The transformer's LayerNorms are called norm, norm1 and norm2."""
    small = Architecture("transformer", width=4, embedding=6)
    game = play(fleet(models=(small,)), FedBN(lr=0.1))
    stay = [k for k in game.bound.params if k not in game.server.w]
    assert {k.rsplit(".", 2)[-2] for k in stay} == {"norm", "norm1", "norm2"}
    assert not any("norm" in k for k in game.server.w)


def test_first_round_is_fedavgs_elsewhere() -> None:
    """Before the normalisation layers differ, the shared paths have FedAvg's bits."""
    normed = mixed(models=(NORMED,))
    part = play(normed, FedBN(lr=0.3, batch=2)).server.w
    whole = play(normed, FedAvg(lr=0.3, batch=2)).server.w
    assert same(part, {k: t for k, t in whole.items() if not is_norm(k)})


def test_one_client_is_fedavg() -> None:
    alone = fleet([(0, 1, 2, 1)], models=(NORMED,))
    game = play(alone, FedBN(lr=0.3, batch=2), rounds=2)
    own = {k: t for k, t in game.states[0].items() if k in game.bound.params}
    assert same(game.server.w | own, play(alone, FedAvg(lr=0.3, batch=2), 2).server.w)


def test_absent_class_and_lone_modality() -> None:
    suites = (("a", "b"), ("a",), ("a",))
    game = play(fleet(THREE, suites, (NORMED,)), FedBN(lr=0.3), rounds=2)
    own = {k: t for k, t in game.server.w.items() if ".b." in k}
    assert own
    assert same(own, {k: game.models[0][k] for k in own})
    assert all(bool(torch.isfinite(t).all()) for t in game.server.w.values())


def test_idle_client_is_not_sampled() -> None:
    """It is scored with the normalisation layers of its start."""
    run = ran(fleet([(0, 1), (), (2, 1)], models=(NORMED,), held_out=2), FedBN())
    assert run.history[0].cohort == (0, 2)
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_bytes() -> None:
    """4 (|w| - |norm|) each way."""
    run = ran(mixed(models=(NORMED,)), FedBN())
    expected = 4 * owned(run, lambda path: not is_norm(path))
    assert expected < 4 * owned(run)
    assert run.history[0].bytes_down == run.history[0].bytes_up == expected


def test_refuses_a_model_without_norms() -> None:
    """It would silently be FedAvg."""
    with pytest.raises(CommunisError, match=r"no client has a normalisation layer.*cnn_norm"):
        ran(fleet(models=(SMALL,)), FedBN())
