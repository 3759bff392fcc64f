"""The [partition] table: every kind is a partition, and what makes no sense is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Streams, Windows
from communis.core.arrays import Array
from communis.core.tasks import Classification, Localisation, Several
from communis.fleet.partition.natural import by_owner, by_scene
from communis.fleet.partition.settings import Partition
from communis.fleet.partition.virtual import by_block
from tests.unit.small import windows

KINDS = (
    Partition("subject"),
    Partition("scene"),
    Partition("dirichlet", clients=5, least=2),
    Partition("quantity", clients=5, least=2),
    Partition("virtual", per_owner=3, least=2),
)


def data(**changes: Any) -> Windows:
    """600 windows of 4 subjects in 2 scenes; every tenth is unused."""
    n = 600
    split = np.where(np.arange(n) % 10 == 0, -1, np.arange(n) % 3)
    made = {"owner": np.arange(n) % 4 * 10, "scene": np.arange(n) % 4 // 2}
    return windows(tuple(split), **(made | changes))


@pytest.mark.parametrize("partition", KINDS, ids=lambda p: p.by)
def test_every_used_window_has_one_client_and_the_seed_decides(partition: Partition) -> None:
    found = partition.clients_of(data(), Streams(0))
    assert found.dtype == np.int64
    assert ((found == -1) == (data().split == -1)).all()
    clients = {"subject": 4, "scene": 2, "virtual": 12}.get(partition.by, 5)
    assert np.unique(found[found >= 0]).tolist() == list(range(clients))
    assert (found == partition.clients_of(data(), Streams(0))).all()
    again = (found == partition.clients_of(data(), Streams(1))).all()
    assert again == (partition.by not in ("dirichlet", "quantity"))


def test_scenes_become_clients_in_sorted_order() -> None:
    found = by_scene(windows((0, 0, 1, -1), scene=np.array([9, 2, 9, 2])))
    assert found.tolist() == [1, 0, 1, -1]
    with pytest.raises(CommunisError, match="one scene"):
        by_scene(windows((0,) * 3))


def test_an_unused_window_is_nobodys() -> None:
    assert by_owner(windows((0, -1, 2), owner=(5, 5, 3))).tolist() == [1, -1, 0]


def test_quantity_skew_has_the_dirichlet_law_in_every_split() -> None:
    big = windows(tuple(np.arange(30_000) % 3), channels={"a": 1}, steps=1)
    sizes = []
    for seed in range(60):
        found = Partition("quantity", clients=4, alpha=2.0, least=1).clients_of(big, Streams(seed))
        by_split = np.stack([np.bincount(found[big.split == s], minlength=4) for s in range(3)])
        assert np.ptp(by_split, axis=0).max() <= 1
        sizes.append(by_split[0] / 10_000)
    # Var = (1/K)(1 - 1/K) / (K alpha + 1)
    assert np.var(sizes) == pytest.approx(0.25 * 0.75 / 9, rel=0.25)
    even = Partition("quantity", clients=4, alpha=1e9).clients_of(big, Streams(0))
    assert np.ptp(np.bincount(even)) <= 3


def blocks(owner: Array, label: Array, split: Array, start: Array, k: int) -> Array:
    found = by_block(owner, label, split, start, k)
    order = np.random.default_rng(0).permutation(len(owner))
    mixed = by_block(owner[order], label[order], split[order], start[order], k)
    assert (mixed == found[order]).all()  # whatever the order of the windows
    return found


def test_virtual_clients_get_contiguous_blocks_of_every_label() -> None:
    rng = np.random.default_rng(1)
    n, k = 2_000, 4
    owner, label, split = rng.integers(0, 3, n), rng.integers(0, 5, n), rng.integers(0, 3, n)
    start = rng.random(n)
    client = blocks(owner, label, split, start, k)
    assert (client // k == owner).all()
    for o in range(3):
        for c in range(5):
            for s in range(3):
                here = np.flatnonzero((owner == o) & (label == c) & (split == s))
                block = client[here[np.argsort(start[here])]] % k
                assert (np.diff(block) >= 0).all()
                counts = np.bincount(block, minlength=k)
                assert np.ptp(counts) <= 1
                assert counts.min() >= 1


def test_rare_labels_do_not_all_fall_to_the_first_virtual_client() -> None:
    label = np.arange(6)
    client = blocks(np.zeros(6, int), label, np.zeros(6, int), np.zeros(6), 3)
    assert np.bincount(client).tolist() == [2, 2, 2]


def test_virtual_clients_without_classes_are_stretches_of_time() -> None:
    n = 90
    task = Localisation(2)
    here = windows((0,) * n, target=np.zeros((n, 2), np.float32), task=task)
    found = Partition("virtual", per_owner=3).clients_of(here, Streams(0))
    assert found.tolist() == [0] * 30 + [1] * 30 + [2] * 30


def test_a_subject_that_only_tests_needs_no_training_windows() -> None:
    split = (0,) * 40 + (2,) * 6
    here = windows(split, owner=(0,) * 40 + (1,) * 6, target=np.zeros(46, int))
    found = Partition("virtual", per_owner=2).clients_of(here, Streams(0))
    assert np.bincount(found).tolist() == [20, 20, 3, 3]


def test_several_tasks_divide_by_their_classes() -> None:
    target = np.column_stack([np.zeros((100, 2)), np.arange(100) % 2]).astype(np.float32)
    task = Several(("where", "what"), (Localisation(2), Classification(2)))
    here = windows((0,) * 100, target=target, task=task)
    found = Partition("dirichlet", clients=2, alpha=1e9).clients_of(here, Streams(0))
    assert np.bincount(found * 2 + np.arange(100) % 2).tolist() == [25, 25, 25, 25]


def test_what_the_data_cannot_give_is_refused() -> None:
    here = windows((0,) * 20, target=np.zeros((20, 2), np.float32), task=Localisation(2))
    with pytest.raises(CommunisError, match="targets of Localisation are not classes"):
        Partition("dirichlet", clients=2).clients_of(here, Streams(0))
    with pytest.raises(CommunisError, match=r"20 training windows of subject 0.*only 2, but least"):
        Partition("virtual", per_owner=7).clients_of(here, Streams(0))
    with pytest.raises(CommunisError, match="20 training windows for 3 clients"):
        Partition("quantity", clients=3).clients_of(here, Streams(0))
    with pytest.raises(CommunisError, match="every window is unused"):
        Partition("quantity", clients=3).clients_of(windows((-1,) * 3), Streams(0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"by": "owner"}, "by = 'owner' is not one of subject"),
        ({"by": "dirichlet"}, "needs clients of at least 1"),
        ({"by": "virtual"}, "needs per_owner"),
        ({"clients": 4}, "has no meaning with by = 'subject'"),
        ({"by": "scene", "per_owner": 4}, "has no meaning"),
        ({"alpha": 0.0}, "alpha must be a positive number"),
        ({"alpha": float("nan")}, "alpha"),
        ({"alpha": float("inf")}, "alpha"),
        ({"least": 0}, "least"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(CommunisError, match=words):
        Partition(**settings)
