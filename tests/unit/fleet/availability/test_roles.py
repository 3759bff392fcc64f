"""Roles with devices, models and detail; UMEDA's client types; dropped streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from communis import CommunisError, Streams
from communis.fleet.availability.roles import Role, cast, client_types, drop_streams

THREE = ("lidar", "csi", "acc")


WORN = ("acc", "gyro", "hr")
ROLES = (Role(("gyro", "acc"), 3), Role(("hr",), 2), Role(WORN, 4))


def suites(
    roles: Sequence[Role], clients: int, modalities: Sequence[str], streams: Streams
) -> list[tuple[str, ...]]:
    return [role.suite for role in cast(roles, clients, modalities, streams)]


def test_counts_are_kept_and_modalities_sorted() -> None:
    assert Counter(suites(ROLES, 9, WORN, Streams(1))) == {
        ("acc", "gyro"): 3,
        ("hr",): 2,
        ("acc", "gyro", "hr"): 4,
    }


def test_the_seed_decides_who_plays_which_role() -> None:
    drawn = [tuple(suites(ROLES, 9, WORN, Streams(seed))) for seed in range(8)]
    assert drawn == [tuple(suites(ROLES, 9, WORN, Streams(seed))) for seed in range(8)]
    assert len(set(drawn)) > 1
    # Every client plays different roles under different seeds; none is tied to its number.
    assert all(len({found[i] for found in drawn}) > 1 for i in range(9))


@pytest.mark.parametrize("clients", [8, 10])
def test_counts_that_do_not_fit_are_refused_with_both_numbers(clients: int) -> None:
    with pytest.raises(CommunisError, match=rf"for 9 clients, but there are {clients}.*fleet\.rol"):
        suites(ROLES, clients, WORN, Streams(0))


@pytest.mark.parametrize(
    ("modalities", "why"),
    [
        (("acc", "lidar"), r"the data have \['acc', 'gyro', 'hr'\]"),
        ((), r"name at least one of \['acc', 'gyro', 'hr'\], or leave the role out"),
    ],
)
def test_a_sensor_that_the_data_lacks_or_no_sensor_at_all_is_refused(
    modalities: tuple[str, ...], why: str
) -> None:
    with pytest.raises(CommunisError, match=why):
        suites([Role(modalities, 1)], 1, WORN, Streams(0))


def test_a_role_for_nobody_is_allowed() -> None:
    roles = [Role(("acc",), 0), Role(("hr",), 2)]
    assert suites(roles, 2, WORN, Streams(0)) == [("hr",)] * 2


def test_a_client_gets_its_whole_role() -> None:
    roles = (Role(("acc",), 2, device="relief-low", model="cnn"), Role(THREE, 3, drop=0.1))
    played = cast(roles, 5, THREE, Streams(4))
    assert Counter(played) == {roles[0]: 2, roles[1]: 3}


@pytest.mark.parametrize("clients", [1, 10, 33, 100])
def test_the_types_are_mixed_exactly(clients: int) -> None:
    roles = client_types(THREE, clients)
    counts = [
        sum(r.count for r in roles if r.detail == "coarse"),
        sum(r.count for r in roles if r.detail == "dense" and len(r.modalities) == 1),
        sum(r.count for r in roles if len(r.modalities) == 3),
    ]
    assert counts == {1: [1, 0, 0], 10: [4, 3, 3], 33: [13, 10, 10], 100: [40, 30, 30]}[clients]
    assert all(r.drop == (0.3 if len(r.modalities) == 3 else 0) for r in roles)
    assert all(r.detail == "dense" for r in roles if len(r.modalities) == 3)
    single = Counter(dict.fromkeys(THREE, 0))
    for role in roles:
        if len(role.modalities) == 1:
            single[role.modalities[0]] += role.count
    assert max(single.values()) - min(single.values()) <= 1
    assert len(cast(roles, clients, THREE, Streams(0))) == clients


def test_the_deal_goes_on_from_a_to_b() -> None:
    roles = client_types(("a", "b"), 4, mix=(1, 1, 2))
    assert [(r.modalities, r.detail) for r in roles] == [
        (("a",), "coarse"),
        (("b",), "dense"),
        (("a", "b"), "dense"),
    ]


def test_a_mix_without_sense_is_refused() -> None:
    for mix in ((0, 0, 0), (-1, 1, 1)):
        with pytest.raises(CommunisError, match="shares must be at least 0"):
            client_types(("a",), 3, mix)


def test_dropping_streams_never_takes_the_last_one() -> None:
    rng = np.random.default_rng(0)
    present = np.tile([True, True, True], (100_000, 1))
    left = drop_streams(present, 0.3, rng)
    assert left.any(1).all()
    # P(kept | not all dropped) = .7 / (1 - .3^3)
    assert left.mean(0) == pytest.approx(0.7 / (1 - 0.3**3), abs=0.005)
    one = np.array([[True, False], [False, True], [False, False]])
    assert (drop_streams(one, 0.99, rng) == one).all()
    assert (drop_streams(present, 0.0, rng) == present).all()


@pytest.mark.parametrize("changes", [{"count": -1}, {"drop": 1.0}, {"drop": -0.1}, {"detail": "x"}])
def test_roles_that_make_no_sense_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(CommunisError, match=next(iter(changes))):
        Role(**({"modalities": ("acc",), "count": 1} | changes))  # type: ignore[arg-type]
