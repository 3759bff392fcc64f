"""FedPer: FedAvg of the base layers; the personalisation layers stay with their client."""

from __future__ import annotations

import pytest
import torch

from communis import CommunisError, FedAvg
from communis.methods.fedper import FedPer
from tests.unit.methods.tiny import (
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


def personal(path: str) -> bool:
    return path.startswith("head.")


def test_two_rounds_by_hand() -> None:
    """Base: the mean of both clients. Head: each goes on from its own."""
    lr = 0.4
    game = play(fleet(), FedPer(lr=lr, batch=2), rounds=2)
    base = {k: t for k, t in game.bound.params.items() if not personal(k)}
    head = {i: {k: t for k, t in game.bound.params.items() if personal(k)} for i in (0, 1)}
    for round in (1, 2):
        ends = {}
        for i in (0, 1):
            client, model = starting(game, i, round)
            ends[i] = descend(fill(model, base | head[i]), batches(client, 2), lr)
            head[i] = {k: ends[i][k] for k in head[i]}
        base = {k: 0.4 * ends[0][k] + 0.6 * ends[1][k] for k in base}
    assert near(game.server.w, base, atol=1e-5)
    assert all(near(game.states[i], head[i], atol=1e-5) for i in (0, 1))
    assert not near(head[0], head[1], atol=1e-2)


def test_head_is_on_no_wire() -> None:
    """Not in a downlink, not in an uplink, not on the server; the private state is exactly it."""
    game = play(mixed(), FedPer(lr=0.3), rounds=2)
    sent = paths(game.server)
    for messages in (*game.downs, *game.ups):
        sent |= {path for message in messages.values() for path in paths(message)}
    assert sent
    assert not any(personal(path) for path in sent)
    for i in range(3):
        assert set(game.states[i]) == {k for k in game.bound.cards[i].params if personal(k)}


def test_first_round_base_is_fedavgs() -> None:
    """Local training is the same, so before heads differ the base has FedAvg's bits."""
    base = play(mixed(), FedPer(lr=0.3, batch=2)).server.w
    whole = play(mixed(), FedAvg(lr=0.3, batch=2)).server.w
    assert same(base, {k: t for k, t in whole.items() if not personal(k)})


@pytest.mark.parametrize("personal", [(), ("hed.",), ("head.", "fusion.", "encoders.")])
def test_nothing_personal_or_nothing_shared_is_refused(personal: tuple[str, ...]) -> None:
    """A mistyped prefix would silently be FedAvg."""
    with pytest.raises(CommunisError, match=r"name prefixes such as 'head\.'"):
        play(mixed(), FedPer(lr=0.3, personal=personal))


def test_other_personal_layers() -> None:
    """The prefixes are a setting: here fusion and head stay."""
    game = play(mixed(), FedPer(lr=0.3, personal=("head.", "fusion.")))
    assert all(k.startswith("encoders.") for k in game.server.w)
    assert {k.split(".")[0] for k in game.states[0]} == {"head", "fusion"}


def test_head_waits_while_its_client_is_away() -> None:
    """A client that is not sampled keeps its head, bit for bit, and uses it with the new base."""
    game = play(fleet(), FedPer(lr=0.3), rounds=1)
    before = game.states[1]
    game.round([0])
    client, state, _ = game.receive(1, 3)
    assert same(state, before)
    now = dict(client.model.named_parameters())
    assert all(torch.equal(now[k], t) for k, t in before.items())
    assert all(torch.equal(now[k], t) for k, t in game.server.w.items())


def test_one_client_is_fedavg() -> None:
    """Base and head of one client together are FedAvg's model of it."""
    alone = fleet([(0, 1, 2, 1)])
    game = play(alone, FedPer(lr=0.3, batch=2), rounds=3)
    assert same(game.server.w | game.states[0], play(alone, FedAvg(lr=0.3, batch=2), 3).server.w)


def test_absent_class_and_lone_modality() -> None:
    game = play(fleet(THREE, (("a", "b"), ("a",), ("a",))), FedPer(lr=0.3, batch=2), rounds=2)
    own = {k: t for k, t in game.server.w.items() if ".b." in k}
    assert own
    assert same(own, {k: game.models[0][k] for k in own})
    assert all(bool(torch.isfinite(t).all()) for t in game.server.w.values())


def test_idle_client_is_scored_with_its_first_head() -> None:
    """A client without training windows is not sampled, yet evaluated."""
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), FedPer())
    assert run.history[0].cohort == (0, 2)
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_bytes() -> None:
    """4 (|w| - |head|) each way."""
    run = ran(mixed(), FedPer())
    expected = 4 * owned(run, lambda path: not personal(path))
    assert run.history[0].bytes_down == run.history[0].bytes_up == expected


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="FedPer averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedPer())
