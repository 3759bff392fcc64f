"""Centralized: one model on everybody's windows, each normalised by its own client."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from communis import Batch, CommunisError, FedAvg, Plan, Run
from communis.data.recordings.windows import TRAIN
from communis.fleet.clients import FleetClients
from communis.methods.centralized import Centralized
from tests.fleets import make, mixed_fleet
from tests.unit.methods.tiny import (
    MIXED,
    SMALL,
    THREE,
    apart,
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


def pooled_batch(suites: tuple[tuple[str, ...], ...]) -> Batch:
    """All training windows of THREE, z-scored per client and channel in plain numpy; a modality
    that a client lacks is zero and absent."""
    data = windows(THREE)
    inputs, present = {}, {}
    for m in ("a", "b"):
        parts, flags = [], []
        for i, suite in enumerate(suites):
            x = data.inputs[m][data.owner == i].astype(np.float64)
            mean, deviation = x.mean((0, 2)), x.std((0, 2))
            z = (x - mean[:, None]) / deviation[:, None]
            parts.append(z if m in suite else 0 * z)
            flags.append(np.full(len(x), m in suite))
        inputs[m] = torch.from_numpy(np.concatenate(parts).astype(np.float32))
        present[m] = torch.from_numpy(np.concatenate(flags))
    return Batch(inputs, present, torch.from_numpy(data.target))


@pytest.mark.parametrize("suites", [(("a", "b"),) * 3, MIXED])
def test_two_steps_by_hand(suites: tuple[tuple[str, ...], ...]) -> None:
    """Two passes in one batch each are two gradient steps on the concatenation."""
    run = ran(fleet(THREE, suites), Centralized(lr=0.5, epochs=2))
    bound = FleetClients(fleet(THREE, suites).pool(), Centralized())
    _, model = starting(bound, 3)
    start = dict(bound.params)
    batch = pooled_batch(suites)
    assert near(run.server.w, descend(model, [batch, batch], 0.5), atol=1e-5)
    assert apart(run.server.w, start) > 0.01


def test_absent_modalities_are_masked() -> None:
    """What a client lacks is zero and marked absent in the pool, window by window."""
    bound = FleetClients(mixed().pool(), Centralized())
    train = bound.client(3, 1).train
    batch, expected = train.batch(torch.arange(len(train))), pooled_batch(MIXED)
    for m in ("a", "b"):
        assert torch.equal(batch.present[m], expected.present[m])
        assert torch.allclose(batch.inputs[m], expected.inputs[m], atol=1e-5)
    assert torch.equal(batch.target, expected.target)


def test_a_lacked_modality_is_not_used() -> None:
    """Whatever the data file holds at a sensor that a client lacks, the pool's model is the
    same."""
    changed = {m: x.copy() for m, x in windows(THREE).inputs.items()}
    changed["b"][4:10] = 1e3  # the second client owns only a
    assert same(
        ran(mixed(), Centralized(lr=0.3)).server.w,
        ran(mixed(inputs=changed), Centralized(lr=0.3)).server.w,
    )


def test_raw_windows_are_billed_once() -> None:
    """Round 1: float32 windows of the sensors that a client owns, with int64 targets. Later and
    downwards nothing: the pool sits beside the server."""
    run = ran(mixed(held_out=2), Centralized(), rounds=3)
    one_modality, target = 4 * 2 * 16, 8
    expected = [4 * (2 * one_modality + target), 6 * (one_modality + target)]
    expected.append(2 * (one_modality + target))
    assert [r.bytes_up for r in run.history] == [sum(expected), 0, 0]
    assert [r.bytes_down for r in run.history] == [0, 0, 0]
    links = run.links()
    by_sender = links[links["round"] == 1].set_index("sender")["payload"]
    assert [int(by_sender[i]) for i in range(3)] == expected


def test_only_the_pool_trains_and_everybody_is_scored() -> None:
    run = ran(mixed(held_out=2), Centralized(), rounds=2)
    assert [r.cohort for r in run.history] == [(3,), (3,)]
    assert run.cards[3].samples == sum(len(own) for own in THREE)
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_held_out_windows_are_not_trained_on() -> None:
    """Changing them changes no bit of the model."""
    data = windows(THREE, held_out=2)
    changed = {m: x.copy() for m, x in data.inputs.items()}
    for x in changed.values():
        x[data.split != TRAIN] += 3
    assert same(
        ran(mixed(held_out=2), Centralized(lr=0.3)).server.w,
        ran(mixed(held_out=2, inputs=changed), Centralized(lr=0.3)).server.w,
    )


def test_one_client_is_fedavg() -> None:
    """The pool of one client is that client; only the order of its batches is drawn anew."""
    alone = fleet([(0, 1, 2, 1)])
    assert near(
        ran(alone, Centralized(lr=0.3), rounds=2).server.w,
        play(alone, FedAvg(lr=0.3), rounds=2).server.w,
        atol=1e-5,
    )


def test_client_without_training_windows() -> None:
    """It adds nothing to the pool and is not billed, but it is scored."""
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), Centralized(lr=0.3))
    assert run.cards[3].samples == 4
    assert run.history[0].bytes_up == 4 * (2 * 4 * 2 * 16 + 8)
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_modality_of_one_client() -> None:
    """Its paths train on that client's windows alone; the others receive the rest."""
    run = ran(fleet(THREE, (("a",), ("a",), ("a", "b")), held_out=1), Centralized(lr=0.3))
    assert any(".b." in k for k in run.server.w)
    assert not any(".b." in k for k in run.method.down(run.server, run.cards[0]).w)
    assert all(bool(torch.isfinite(t).all()) for t in run.server.w.values())


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="Centralized averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), Centralized())


def test_clients_are_scored_with_the_pooled_batch_statistics() -> None:
    """Clients never train, so statistics of their own would be those of an untrained model."""
    run = Run(mixed_fleet(), make("centralized"), Plan(rounds=2, workers=1, eval_every=0))
    with run:
        list(run)
    bound = FleetClients(mixed_fleet(), run.method)
    client = bound.client(0, 3, fresh=True)
    down = run.method.down(run.server, client.card)
    run.method.adopt(client, run.method.start_client(client), down)
    means = [t for path, t in client.model.by_path[1].items() if path.endswith("running_mean")]
    assert means
    assert all(bool(mean.abs().sum() > 0) for mean in means)


def test_a_modality_that_nobody_owns_is_left_out() -> None:
    """The data may hold more sensors than the fleet."""
    fleet = mixed_fleet(suites=[("m0",)] * 5)
    with Run(fleet, make("centralized"), Plan(rounds=1, workers=1)) as run:
        list(run)
    assert run.cards[-1].modalities == ("m0",)
