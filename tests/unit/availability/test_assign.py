"""Roles: so many clients with these sensors, who plays which is drawn by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from communis import CommunisError, Streams
from communis.availability.roles import Role, assign

THREE = ("acc", "gyro", "hr")
ROLES = (Role(("gyro", "acc"), 3), Role(("hr",), 2), Role(THREE, 4))


def test_counts_are_kept_and_modalities_sorted() -> None:
    suites = assign(ROLES, 9, THREE, Streams(1))
    assert Counter(suites) == {("acc", "gyro"): 3, ("hr",): 2, ("acc", "gyro", "hr"): 4}


def test_the_seed_decides_who_plays_which_role() -> None:
    drawn = [tuple(assign(ROLES, 9, THREE, Streams(seed))) for seed in range(8)]
    assert drawn == [tuple(assign(ROLES, 9, THREE, Streams(seed))) for seed in range(8)]
    assert len(set(drawn)) > 1
    # Every client plays different roles under different seeds; none is tied to its number.
    assert all(len({suites[i] for suites in drawn}) > 1 for i in range(9))


def test_without_roles_everybody_has_everything() -> None:
    assert assign((), 3, ("hr", "acc"), Streams(0)) == [("acc", "hr")] * 3
    assert assign((), 0, ("acc",), Streams(0)) == []


@pytest.mark.parametrize("clients", [8, 10])
def test_counts_that_do_not_fit_are_refused_with_both_numbers(clients: int) -> None:
    with pytest.raises(CommunisError, match=rf"for 9 clients, but there are {clients}.*fleet\.rol"):
        assign(ROLES, clients, THREE, Streams(0))


@pytest.mark.parametrize("modalities", [("acc", "lidar"), ()])
def test_a_sensor_that_the_data_lacks_or_no_sensor_at_all_is_refused(
    modalities: tuple[str, ...],
) -> None:
    with pytest.raises(CommunisError, match=r"the data has \['acc', 'gyro', 'hr'\]"):
        assign([Role(modalities, 1)], 1, THREE, Streams(0))


def test_a_role_for_nobody_is_allowed() -> None:
    roles = [Role(("acc",), 0), Role(("hr",), 2)]
    assert assign(roles, 2, THREE, Streams(0)) == [("hr",)] * 2
