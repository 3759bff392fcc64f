"""Do clients pull in the same direction?"""

from __future__ import annotations

import pytest
import torch

from communis import State
from communis.core.contract import Card
from communis.methods.fedavg import Up
from communis.run.updates import pairs, sent, spread

BLOCK = "fusion.blocks.a.weight"


def state(**values: list[float]) -> State:
    return State({path.replace("__", "."): torch.tensor(v) for path, v in values.items()})


def cards(*suites: tuple[str, ...]) -> list[Card]:
    return [Card(i, suite, {}, 1, {}, {}) for i, suite in enumerate(suites)]


def test_only_what_a_client_changed_of_its_own_sensors_counts() -> None:
    before = state(fusion__blocks__a__weight=[1.0], fusion__blocks__b__weight=[1.0], head__o=[0.0])
    up = Up(state(fusion__blocks__a__weight=[3.0], fusion__blocks__b__weight=[9.0], head__o=[1.0]))
    found = sent(before, {0: up}, cards(("a",)))[0]
    assert {path: float(v) for path, v in found.items()} == {BLOCK: 2.0, "head.o": 1.0}


def test_cosines_by_hand() -> None:
    """Alike 1, at right angles 0, opposite -1; who left a group as it was has no direction."""
    updates = {
        3: state(head__o__w=[2.0, 0.0]),
        5: state(head__o__w=[0.0, 0.1]),
        8: state(head__o__w=[-4.0, 0.0]),
        9: state(head__o__w=[0.0, 0.0]),
    }
    found = {(p.one, p.other): p.cosine for p in pairs(updates)}
    assert found == pytest.approx({(3, 5): 0.0, (3, 8): -1.0, (5, 8): 0.0})
    assert {p.group for p in pairs(updates)} == {"head.o"}


def test_the_cosine_of_a_group_is_over_all_its_paths() -> None:
    one, other = (
        state(head__o__w=[1.0], head__o__b=[1.0]),
        state(head__o__w=[1.0], head__o__b=[0.0]),
    )
    (pair,) = pairs({0: one, 1: other})
    assert pair.cosine == pytest.approx(0.5**0.5)


def test_spread_is_the_divergence_of_updates() -> None:
    found = spread({0: state(head__o__w=[1.0]), 1: state(head__o__w=[-1.0])}, cards((), ()))
    assert [(n.client, n.name, n.value) for n in found] == [(-1, "spread/head.o", 1.0)]
