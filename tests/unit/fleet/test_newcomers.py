"""Clients that take no part in training: who they are, and what still counts of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from communis import CommunisError, FedAvg, Fleet, Plan, Streams, Windows
from communis.core.tasks import Pose, scaled
from communis.data.recordings.windows import TEST, TRAIN, UNUSED, VAL
from communis.fleet.attack import AttackConfig
from communis.fleet.availability.dropout import Dropout
from communis.fleet.availability.roles import Role
from communis.fleet.clients import FleetClients
from communis.fleet.newcomers import chosen, hold_out
from communis.fleet.partition.settings import Partition
from communis.fleet.public import public_client
from communis.fleet.settings import FleetConfig
from tests.unit.fleet.test_settings import data
from tests.unit.small import TINY, windows

SPLITS = (TRAIN, TRAIN, TRAIN, VAL, TEST, TEST)


def people(count: int = 5, **changes: Any) -> Windows:
    """Clients with three training, one validation and two test windows each."""
    owner = np.repeat(np.arange(count), len(SPLITS)).tolist()
    return windows(SPLITS * count, owner, **changes)


def fleet(count: int = 5, **changes: Any) -> Fleet:
    return Fleet.of(people(count), **{"models": (TINY,), **changes})


def drawn(asked: Any, seed: int = 0, suites: Sequence[tuple[str, ...]] = ()) -> tuple[int, ...]:
    count = len(suites) or 10
    found = people(count)
    return chosen(asked, found, found.owner, suites or [("a", "b")] * count, Streams(seed))


def test_a_share_is_drawn_by_seed_and_a_larger_one_adds_to_it() -> None:
    few, more = drawn(0.2), drawn(0.5)
    assert len(few) == 2
    assert len(more) == 5
    assert set(few) < set(more)
    assert few == drawn(0.2)
    assert len({drawn(0.2, seed) for seed in range(5)}) > 1
    assert drawn(0.25) == drawn(0.3)  # halves are rounded up
    assert drawn(0.0) == drawn(()) == ()


def test_named_clients_are_taken() -> None:
    assert drawn((7, 3)) == (3, 7)


def test_every_sensor_of_a_newcomer_is_trained_by_others() -> None:
    suites = [("a",), ("a", "b"), ("a", "b"), ("a",)]
    for seed in range(5):
        found = drawn(0.5, seed, suites)
        assert len(found) == 2
        assert not {1, 2} <= set(found)


@pytest.mark.parametrize(
    ("asked", "suites", "message"),
    [
        (0.01, (), "0.01 of 10 clients is nobody: give at least 0.05, or a list of clients"),
        (0.99, (), "0.99 of 10 clients is 10, but only 9 can be held out"),
        (0.5, [("a",), ("b",)], "is 1, but only 0 can be held out: a newcomer needs test windows"),
        ((10,), (), r"names [10], but the fleet has clients 0 to 9"),
        ((1,), [("a",), ("b",)], "client 1 cannot be one: no other client has training windows"),
        ((0, 1), [("a",), ("a",)], "client 0 cannot be one: no other client has training windows"),
    ],
)
def test_what_cannot_be_held_out_is_refused(asked: Any, suites: Any, message: str) -> None:
    with pytest.raises(CommunisError, match=re.escape(message)):
        drawn(asked, suites=suites)


def test_a_client_without_test_windows_is_no_newcomer() -> None:
    found = people(3)
    found = replace(found, split=np.where(found.owner == 1, TRAIN, found.split).astype(np.int8))
    suites = [("a", "b")] * 3
    for seed in range(5):
        assert 1 not in chosen(0.5, found, found.owner, suites, Streams(seed))
    with pytest.raises(CommunisError, match="client 1 cannot be one: it has no test windows"):
        chosen((1,), found, found.owner, suites, Streams(0))


@pytest.mark.parametrize(
    ("value", "message"),
    [(1.0, "share of the clients below 1"), (-0.1, "got -0.1"), ((1, 1), "different clients")],
)
def test_impossible_requests_are_refused_early(value: Any, message: str) -> None:
    with pytest.raises(CommunisError, match=message):
        Plan(newcomers=value)


def test_their_windows_count_nowhere() -> None:
    whole, held = fleet(), hold_out(fleet(), (1, 3))
    assert held.newcomers == (1, 3)
    assert held.counts[0].tolist() == [3, 0, 3, 0, 3]
    assert set(held.training_bytes()) == {0, 2, 4}
    train, val, test = held.samples(1)
    assert (len(train), len(val), len(test)) == (0, 0, 2)
    clients = FleetClients(held, FedAvg())
    assert clients.trainers == (0, 2, 4)
    assert [card.newcomer for card in clients.cards] == [False, True, False, True, False]
    members = np.isin(held.clients_of, (0, 2, 4)) & (held.windows.split == TRAIN)
    known = torch.bincount(torch.from_numpy(held.windows.target[members]), minlength=3)
    assert torch.equal(clients.class_counts, known)
    assert FleetClients(held.pool(), FedAvg()).cards[-1].samples == 9
    assert public_client(replace(whole, newcomers=())) == 0
    assert public_client(hold_out(whole, (0,))) == 1
    assert held.digest != whole.digest
    assert hold_out(held, 0.2) is held
    assert hold_out(whole, 0.0) is whole


def test_their_scale_is_that_of_their_unlabelled_windows() -> None:
    """As if they had been training windows; the fleet's scale is that of the members."""
    whole, held = fleet(), hold_out(fleet(), (1,))
    assert torch.equal(whole.samples(1)[2].inputs["a"], held.samples(1)[2].inputs["a"])
    assert not held.borrowed
    by_fleet = hold_out(fleet(normalise="fleet"), (1,))
    deleted = replace(
        by_fleet, client_of=np.where(by_fleet.windows.split == UNUSED, -1, by_fleet.clients_of)
    )
    for client in range(5):
        ours, theirs = by_fleet.samples(client)[2], deleted.samples(client)[2]
        assert torch.equal(ours.inputs["a"], theirs.inputs["a"])
    assert not torch.equal(
        by_fleet.samples(0)[2].inputs["a"],
        fleet(normalise="fleet").samples(0)[2].inputs["a"],
    )


def test_a_newcomer_without_any_recording_gets_the_scale_of_the_fleet() -> None:
    held = hold_out(fleet(), (1,))
    gone = np.where((held.clients_of == 1) & (held.windows.split == UNUSED), -1, held.clients_of)
    alone = replace(held, client_of=gone)
    assert alone.borrowed == ["a", "b"]
    of_fleet = hold_out(fleet(normalise="fleet"), (1,))
    assert torch.equal(alone.samples(1)[2].inputs["a"], of_fleet.samples(1)[2].inputs["a"])


def test_unlabelled_windows_have_no_labels() -> None:
    client = FleetClients(hold_out(fleet(), (1,)), FedAvg()).client(1, 1, fresh=True)
    assert len(client.train) == 0
    assert client.unlabelled is not None
    assert len(client.unlabelled) == 3
    assert not client.unlabelled.target.any()
    whole = fleet().samples(1)[0]
    rows = torch.arange(3)
    assert torch.equal(client.unlabelled.batch(rows).inputs["a"], whole.batch(rows).inputs["a"])


def made(asked: Any, found: Windows, **settings: Any) -> Fleet:
    return FleetConfig(**settings).make(found, Partition(), Streams(0), asked)


def unused(found: Windows, clients: Sequence[int]) -> Windows:
    """The windows as if these owners had none for training and validation."""
    known = np.isin(found.owner, clients) & np.isin(found.split, (TRAIN, VAL))
    return replace(found, split=np.where(known, UNUSED, found.split).astype(np.int8))


def test_models_are_dealt_by_the_size_of_members() -> None:
    """The members' shares are those of a fleet without newcomers, which get the first model."""
    owner = np.repeat(np.arange(5), (8, 7, 6, 5, 4))
    split = [TRAIN] * len(owner)
    for first in np.flatnonzero(np.diff(owner, prepend=-1)):
        split[first] = TEST
    found = windows(split, owner.tolist())
    held = made((0,), found, models=("cnn_small", "cnn"), deal="size")
    assert held.models == ["cnn_small", "cnn", "cnn", "cnn_small", "cnn_small"]


def test_targets_are_standardised_by_members() -> None:
    rng = np.random.default_rng(0)
    target = rng.standard_normal((30, 6)).astype(np.float32)
    target[6:12] += 100  # client 1
    found = people(task=Pose(2), target=target)
    held = made((1,), found, targets="standard")
    without = made(0.0, unused(found, [1]), targets="standard")
    assert scaled(held.windows.task)
    assert repr(held.windows.task) == repr(without.windows.task)
    assert repr(held.windows.task) != repr(made(0.0, found, targets="standard").windows.task)


def test_dropout_of_members_does_not_depend_on_what_newcomers_recorded() -> None:
    found = data()
    dropout = Dropout(kind="markov", operating=10.0, missing=5.0)
    held = made((1,), found, dropout=dropout)
    without = made(0.0, unused(found, [1]), dropout=dropout)
    assert held.outages is not None
    assert without.outages is not None
    assert held.outages.trace is not None
    assert without.outages.trace is not None
    assert held.outages.trace.digest() == without.outages.trace.digest()


def test_a_saved_trace_of_the_whole_fleet_still_fits(tmp_path: Path) -> None:
    dropout = Dropout(kind="markov", operating=10.0, missing=5.0)
    whole = made(0.0, data(), dropout=dropout)
    assert whole.outages is not None
    assert whole.outages.trace is not None
    path = tmp_path / "trace.parquet"
    whole.outages.trace.save(path)
    held = made((1,), data(), trace=str(path))
    for client in (0, 1):
        ours, theirs = held.samples(client)[2], whole.samples(client)[2]
        assert torch.equal(ours.present["m0"], theirs.present["m0"])


def test_newcomers_do_not_attack() -> None:
    config = AttackConfig(kind="sign_flip", count=3)
    members = {0, 2, 3, 5}
    for seed in range(5):
        attack = config.make(6, Streams(seed), (1, 4))
        assert len(attack.attackers) == 3
        assert set(attack.attackers) < members
    with pytest.raises(CommunisError, match=r"clients names \[4\], which are newcomers"):
        AttackConfig(kind="sign_flip", clients=(4,)).make(6, Streams(0), (1, 4))
    with pytest.raises(CommunisError, match="4 attackers in a fleet of 4"):
        AttackConfig(kind="sign_flip", count=4).make(6, Streams(0), (1, 4))
    attack = AttackConfig(kind="sign_flip", clients=(1,)).make(5, Streams(0))
    with pytest.raises(CommunisError, match=r"clients \[1\] are attackers"):
        hold_out(fleet(attack=attack), (1, 2))


def test_roles_are_as_without_newcomers() -> None:
    roles = (Role(("m0",), 3), Role(("m1", "m2"), 3))
    held = made(0.34, data(), roles=roles)
    assert held.suites == made(0.0, data(), roles=roles).suites
    assert len(held.newcomers) == 2
