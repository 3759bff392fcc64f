"""Splits: no sample in two parts, every kind of split by what it promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Streams
from communis.core.tasks import Classification
from communis.data.recordings.splits import LEAKY, SplitKind, Splits, distances
from communis.data.recordings.windows import TEST, TRAIN, UNUSED, VAL, Windows
from communis.data.sources.world import World
from tests.unit.small import windows


def made(counts: dict[tuple[int, int], int], stride: float = 1.0, **changes: Any) -> Windows:
    """`counts`: windows of 1 s per (recording, class), in this order; a recording per owner."""
    recording = np.repeat([key[0] for key in counts], list(counts.values()))
    target = np.repeat([key[1] for key in counts], list(counts.values()))
    start = np.concatenate(
        [np.arange(int((recording == r).sum())) * stride for r in np.unique(recording)]
    )
    fields: dict[str, Any] = {"target": target, "recording": recording, "start": start}
    return windows((0,) * len(target), owner=recording, **(fields | changes))


def split(data: Windows, kind: SplitKind = "time", seed: int = 0, **settings: Any) -> Windows:
    return Splits(kind, **settings).apply(data, Streams(seed))


def test_the_first_part_trains_the_last_tests_with_a_window_between() -> None:
    found = split(made({(0, 0): 10})).split.tolist()
    assert found == [0] * 5 + [UNUSED] + [1] + [UNUSED] + [2] * 2


def test_without_a_gap_all_windows_are_used() -> None:
    assert split(made({(0, 0): 10}), gap=0.0).split.tolist() == [0] * 6 + [1] * 2 + [2] * 2


def test_every_stretch_of_one_class_is_split_by_itself() -> None:
    found = split(made({(0, 0): 10, (0, 1): 20, (1, 0): 10})).split
    for part in (found[:10], found[10:30], found[30:]):
        assert part[0] == TRAIN
        assert part[-1] == TEST
        used = part[part != UNUSED]
        assert (np.diff(used) >= 0).all()


def overlapping(data: Windows) -> int:
    """Pairs of windows in different parts that share a sample."""
    pairs = 0
    for recording in np.unique(data.recording):
        used = (data.recording == recording) & (data.split != UNUSED)
        order = np.argsort(data.start[used])
        start, part = data.start[used][order], data.split[used][order]
        for lag in range(1, len(start)):
            near = start[lag:] - start[:-lag] < data.seconds - 1e-9
            pairs += int((near & (part[lag:] != part[:-lag])).sum())
    return pairs


@pytest.mark.parametrize("stride", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("gap", [0.0, 0.5, 1.0, 2.0])
def test_overlapping_windows_never_share_samples_between_parts(stride: float, gap: float) -> None:
    counts = {(r, c): int(n / stride) for r in range(9) for c, n in enumerate((12, 3, 1))}
    data = split(made(counts, stride), gap=gap)
    assert overlapping(data) == 0
    assert {TRAIN, TEST} <= set(data.split.tolist())


def asleep(people: int = 4, epochs: int = 900, seed: int = 0) -> Windows:
    """Nights in epochs of 30 s whose stages change after a few minutes, in any order: lengths of
    stretches are geometric with these means."""
    rng = np.random.default_rng(seed)
    means = (4, 3, 10, 8, 12)  # epochs of waking, N1, N2, N3 and REM
    stages: list[int] = []
    while len(stages) < people * epochs:
        stage = int(rng.integers(5))
        stages += [stage] * int(rng.geometric(1 / means[stage]))
    target = np.array(stages[: people * epochs])
    owner = np.repeat(np.arange(people), epochs)
    start = 30.0 * np.tile(np.arange(epochs), people)
    about: dict[str, Any] = {"owner": owner, "recording": owner, "start": start, "seconds": 30.0}
    return windows((0,) * len(target), target=target, task=Classification(5), **about)


def beside(data: Windows, seconds: float) -> float:
    """The share of test windows with less than `seconds` between them and a training window of the
    same recording, one by one."""
    found = []
    for i in np.flatnonzero(data.split == TEST):
        trained = (data.split == TRAIN) & (data.recording == data.recording[i])
        between = np.abs(data.start[trained] - data.start[i]) - data.seconds
        found.append(bool((between < seconds - 1e-3).any()))
    return float(np.mean(found))


def test_the_gap_within_a_class_does_not_keep_other_classes_away() -> None:
    """Where stages alternate, the neighbours of most test windows train; `apart` leaves out the
    training and validation windows that are too close, and tests on the same."""
    data = asleep()
    by_class, by_time = split(data), split(data, apart=120.0)
    assert beside(by_class, 120.0) > 0.7
    assert beside(by_time, 120.0) == 0.0
    np.testing.assert_array_equal(by_class.split == TEST, by_time.split == TEST)
    kept = by_time.split != UNUSED
    np.testing.assert_array_equal(by_time.split[kept], by_class.split[kept])
    assert set(by_time.target[by_time.split == TRAIN].tolist()) == set(range(5))


def test_parts_that_would_leave_nothing_between_them_are_refused() -> None:
    with pytest.raises(CommunisError, match=r"leaves no window for training.* data\.apart"):
        split(asleep(people=1), apart=3600.0)


def test_the_distance_to_the_nearest_is_within_a_recording() -> None:
    within = np.array([1, 0, 0, 1, 0, 2])
    start = np.array([5.0, 3.0, 10.0, 6.5, 4.0, 5.0])
    there = np.array([False, True, False, True, False, False])
    found = distances(within, start, there)
    assert found.tolist() == [1.5, 0.0, 7.0, 0.0, 1.0, np.inf]
    assert distances(within, start, np.zeros(6, bool)).tolist() == [np.inf] * 6


@pytest.mark.parametrize("begin", [0.0, 1e5])
@pytest.mark.parametrize("seconds", [1e-6, 1.0, 3600.0])
def test_a_split_does_not_depend_on_the_unit_of_time(seconds: float, begin: float) -> None:
    """Windows of a microsecond or an hour are split as those of a second, wherever they begin."""
    counts = {(r, c): n for r in range(30) for c, n in enumerate((12, 3, 1))}
    plain = made(counts, stride=0.25)
    scaled = replace(plain, start=(begin + plain.start) * seconds, seconds=seconds)
    np.testing.assert_array_equal(split(scaled).split, split(plain).split)


def test_a_short_stretch_goes_to_one_part_as_a_whole() -> None:
    data = split(made({(r, 0): 4 for r in range(200)}))
    parts = data.split.reshape(200, 4)
    assert (parts == parts[:, :1]).all()
    shares = [(parts[:, 0] == s).mean() for s in (TRAIN, VAL, TEST)]
    assert shares == pytest.approx([0.6, 0.2, 0.2], abs=0.1)


@pytest.mark.parametrize("kind", ["subject", "scene"])
def test_whole_subjects_or_scenes_are_tested_on(kind: SplitKind) -> None:
    group = np.repeat(np.arange(10), 7)
    data = windows((0,) * 70, **{"owner" if kind == "subject" else "scene": group})
    found = split(data, kind).split.reshape(10, 7)
    assert (found == found[:, :1]).all()
    assert sorted(found[:, 0].tolist()) == [0] * 6 + [1] * 2 + [2] * 2
    other = split(data, kind, seed=1).split.reshape(10, 7)
    assert found[:, 0].tolist() != other[:, 0].tolist()


def test_few_subjects_still_train_and_test() -> None:
    data = windows((0,) * 6, owner=[0, 0, 1, 1, 2, 2])
    assert sorted(split(data, "subject").split.tolist()) == [0, 0, 1, 1, 2, 2]
    two = windows((0,) * 4, owner=[0, 0, 1, 1])
    assert sorted(split(two, "subject").split.tolist()) == [0, 0, 2, 2]
    with pytest.raises(CommunisError, match="leaves no window for the test"):
        split(windows((0,) * 4), "subject")


def test_chosen_subjects_are_held_out() -> None:
    data = windows((0,) * 10, owner=list(range(10)))
    found = split(data, "subject", held_out=(3, 8)).split
    assert np.flatnonzero(found == TEST).tolist() == [3, 8]
    with pytest.raises(CommunisError, match=r"no subject \[99\]; there are 0, 1"):
        split(data, "subject", held_out=(99,))


def test_the_last_sessions_of_every_subject_test() -> None:
    owner, session = np.repeat([0, 1], 10), np.tile(np.repeat([5, 1, 3, 2, 4], 2), 2)
    data = split(windows((0,) * 20, owner=owner, session=session), "session")
    for s, part in ((1, 0), (2, 0), (3, 0), (4, 1), (5, 2)):
        assert set(data.split[session == s].tolist()) == {part}
    held = split(windows((0,) * 20, owner=owner, session=session), "session", held_out=(2,))
    assert set(held.split[session == 2].tolist()) == {TEST}
    assert TEST not in held.split[session != 2]


def test_trials_are_dealt_within_subject_and_class() -> None:
    owner, target = np.repeat([0, 1], 12), np.tile(np.repeat([0, 1, 2], 4), 2)
    trial = np.tile([1, 2, 3, 4], 6)
    data = split(windows((0,) * 24, owner=owner, target=target, trial=trial), "trial")
    assert data.split.reshape(6, 4).tolist() == [[0, 0, 1, 2]] * 6


def test_of_two_sessions_the_second_tests() -> None:
    data = windows((0,) * 4, owner=[0] * 4, session=[0, 0, 1, 1])
    assert split(data, "session").split.tolist() == [0, 0, 2, 2]


def test_leaky_says_so_and_nothing_else_does() -> None:
    data = made({(0, 0): 1000})
    found = split(data, "leaky")
    assert found.notes == (LEAKY,)
    assert overlapping(split(made({(0, 0): 100}, stride=0.5), "leaky")) > 0
    assert [(found.split == s).mean() for s in range(3)] == pytest.approx([0.6, 0.2, 0.2], abs=0.05)
    assert split(data).notes == ()


def test_regression_targets_are_split_by_recording() -> None:
    from communis.core.tasks import Localisation

    target = np.zeros((20, 2), np.float32)
    data = made({(0, 0): 10, (1, 0): 10}, target=target, task=Localisation(2))
    found = split(data).split.reshape(2, 10)
    assert found[0].tolist() == found[1].tolist() == [0] * 5 + [UNUSED, 1, UNUSED, 2, 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"shares": (0.0, 0.5, 0.5)},
        {"shares": (0.5, -0.1, 0.6)},
        {"gap": -1.0},
        {"apart": -1.0},
        {"apart": float("nan")},
        {"kind": "leaky", "apart": 2.0},
        {"held_out": (1,)},
        {"kind": "leaky", "held_out": (1,)},
    ],
)
def test_settings_without_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(CommunisError):
        Splits(**settings)


def test_shares_need_not_sum_to_one() -> None:
    data = made({(0, 0): 50})
    assert split(data, shares=(6, 2, 2)).split.tolist() == split(data).split.tolist()
    none = split(data, shares=(0.8, 0.0, 0.2)).split
    assert VAL not in none
    assert all(a <= b for a, b in pairwise(none[none != UNUSED].tolist()))


def test_a_class_that_changes_within_a_trial_does_not_leak() -> None:
    """Trials are ranked within a class, so one trial may train for a class and test for another."""
    rows = {"a": 0, "b": 1}
    target = np.array([rows[c] for t in ("abab", "abab", "aaaa") for c in t for _ in range(8)])
    trial = np.repeat([0, 1, 2], 32)
    start = np.tile(np.arange(32) * 0.25, 3)
    data = windows(
        (0,) * 96, owner=[0] * 96, target=target, trial=trial, recording=trial, start=start
    )
    found = split(data, "trial")
    assert overlapping(found) == 0
    assert {TRAIN, TEST} <= set(found.split.tolist())


@pytest.mark.parametrize(
    ("count", "shares", "expected"),
    [
        (2, (0.8, 0.1, 0.1), [0, 2]),
        (2, (0.8, 0.0, 0.2), [0, 2]),
        (3, (0.9, 0.05, 0.05), [0, 1, 2]),
        (3, (0.6, 0.2, 0.2), [0, 1, 2]),
        (1, (0.5, 0.5, 0.0), [0]),
        (3, (0.1, 0.1, 0.8), [0, 1, 2]),
        (2, (0.2, 0.0, 0.8), [0, 2]),
        (10, (0.02, 0.0, 0.98), [0] + [2] * 9),
        (5, (0.6, 0.2, 0.2), [0, 0, 0, 1, 2]),
    ],
)
def test_few_sessions_are_dealt_with_training_and_test_first(
    count: int, shares: tuple[float, float, float], expected: list[int]
) -> None:
    data = windows((0,) * count, owner=[0] * count, session=list(range(count)))
    assert split(data, "session", shares=shares).split.tolist() == expected


@pytest.mark.parametrize("shares", [(0.6, 0.2, 0.2), (0.8, 0.1, 0.1)])
@pytest.mark.parametrize("stride", [0.2, 0.25, 0.5, 1.0])
def test_validation_survives_gaps_and_overlap(
    stride: float, shares: tuple[float, float, float]
) -> None:
    data = split(made({(r, 0): int(8 / stride) for r in range(5)}, stride), shares=shares)
    for recording in range(5):
        assert set(data.split[data.recording == recording].tolist()) >= {TRAIN, VAL, TEST}
    used = data.split[data.split != UNUSED]
    if stride == 0.2 and shares[0] == 0.6:
        assert [(used == s).mean() for s in range(3)] == pytest.approx(shares, abs=0.03)


def test_short_stretches_of_every_class_are_in_training_and_test() -> None:
    data = split(made({(r, r % 3): 1 for r in range(30)}))
    for kind in range(3):
        parts = data.split[data.target == kind].tolist()
        assert sorted(parts) == [0] * 6 + [1] * 2 + [2] * 2


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("session", {}),
        ("trial", {}),
        ("subject", {"held_out": (0,)}),
        ("trial", {"held_out": (0,)}),
    ],
)
def test_a_split_that_leaves_nothing_to_train_or_test_is_refused(
    kind: SplitKind, settings: dict[str, Any]
) -> None:
    with pytest.raises(CommunisError, match=rf"split by {kind} leaves no window for"):
        split(windows((0,) * 6), kind, **settings)


def test_odd_starts_do_not_upset_a_split_by_time() -> None:
    start = np.arange(30.0)
    start[10] = start[9]  # the same moment twice
    start[20] = start[19] + 0.01
    data = windows((0,) * 30, target=np.zeros(30, np.int64), start=np.sort(start))
    found = split(data)
    assert overlapping(found) == 0
    assert {TRAIN, VAL, TEST} <= set(found.split.tolist())


def test_several_targets_split_as_their_classes_alone() -> None:
    """A place beside the action makes no difference to which windows test."""
    found = [
        World(clients=3, windows=40, sensors=("mmwave",), target=target, skew=0.5)
        .load(Streams(0))
        .split
        for target in ("action", "all")
    ]
    np.testing.assert_array_equal(*found)
