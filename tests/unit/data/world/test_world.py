"""The source `world`: what its settings promise, and that its tasks can be learnt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.core.tasks import Classification, Counting, Localisation, Pose, Several
from communis.data.recordings.windows import TEST, TRAIN, VAL, Windows
from communis.data.sources.world import World
from communis.data.world.body import Array

SMALL = {"clients": 3, "rooms": 2, "windows": 27}


def load(seed: int = 0, **settings: Any) -> Windows:
    return World(**(SMALL | settings)).load(Streams(seed))


def test_shapes_kinds_and_units_follow_the_settings() -> None:
    data = load(
        sites=("wrist", "head"), seconds=2.0, imu_rate=50.0, heart_rate=2.0, csi_rate=20.0,
        csi_antennas=2, csi_subcarriers=8, csi_phase=True, mmwave_points=10, lidar_points=12,
        depth_size=(6, 8),
    )  # fmt: skip
    shapes = {
        "csi": (3, 8, 40), "depth": (1, 6, 8), "heart": (1, 4), "lidar": (4, 12),
        "mmwave": (5, 10), "wrist_acc": (3, 100), "wrist_gyro": (3, 100), "wrist_mag": (3, 100),
        "head_acc": (3, 100), "head_gyro": (3, 100), "head_mag": (3, 100),
    }  # fmt: skip
    assert data.modalities == tuple(sorted(shapes))
    for m, values in data.inputs.items():
        assert values.shape == (81, *shapes[m])
        assert values.dtype == np.float32
        if data.kinds[m] != "points":
            assert np.isfinite(values).all()
    kinds = {"csi": "csi", "depth": "image", "heart": "series", "lidar": "points"}
    assert kinds.items() <= data.kinds.items()
    assert data.units["wrist_acc"] == "g"
    assert data.units["head_gyro"] == "rad/s"
    assert data.present == {}
    assert data.seconds == 2.0


def test_owners_rooms_time_and_splits() -> None:
    data = load(sensors=("heart",), windows=90)
    assert data.owner.tolist() == np.repeat([0, 1, 2], 90).tolist()
    assert data.scene.tolist() == (data.owner % 2).tolist()
    assert data.start[:3].tolist() == [0, 4, 8]
    for owner in range(3):
        mine = data.owner == owner
        for action in range(9):
            split = data.split[mine & (data.target == action)]
            assert (np.diff(split) >= 0).all()  # in time, never at random
            assert set(split.tolist()) == {TRAIN, VAL, TEST}
    shares = [(data.split == part).mean() for part in (TRAIN, VAL, TEST)]
    assert shares == pytest.approx((0.6, 0.2, 0.2), abs=0.1)
    for recording in np.unique(data.recording):
        rows = np.flatnonzero(data.recording == recording)
        assert (np.diff(rows) == 1).all()
        assert len(rows) <= 4
        assert len(np.unique(data.owner[rows])) == len(np.unique(data.target[rows])) == 1


@pytest.mark.parametrize("trial", [1, 4, 20])
@pytest.mark.parametrize("target", ["action", "position", "all"])
def test_a_trial_is_in_one_part_only(trial: int, target: Any) -> None:
    """Windows of one trial are nearly the same."""
    data = load(sensors=("heart",), windows=100, trial=trial, target=target)
    for recording in np.unique(data.recording):
        assert len(set(data.split[data.recording == recording].tolist())) == 1
    shares = [(data.split == part).mean() for part in (TRAIN, VAL, TEST)]
    assert shares == pytest.approx((0.6, 0.2, 0.2), abs=0.08)
    for turn in range(5):
        assert (data.trial[data.owner == 0] == turn).sum() >= 9  # of every action


@pytest.mark.slow
def test_the_rate_of_a_sensor_does_not_change_what_it_measures() -> None:
    slow, fast = (
        load(sensors=("acc", "gyro"), noise=0.0, windows=45, clients=1, imu_rate=rate)
        for rate in (25.0, 1000.0)
    )
    for m in slow.modalities:
        np.testing.assert_allclose(slow.inputs[m], fast.inputs[m][..., ::40], atol=0.01)


def test_people_and_rooms_can_be_held_out() -> None:
    settings: dict[str, Any] = {"sensors": ("heart",), "clients": 10, "rooms": 5}
    for split in ("subject", "scene"):
        data = load(split=split, **settings)
        of = data.owner if split == "subject" else data.scene
        parts = [set(of[data.split == part].tolist()) for part in (TRAIN, VAL, TEST)]
        assert all(parts)
        assert sum(map(len, parts)) == len(np.unique(of))
    chosen = load(split="subject", held_out=(3, 4), **settings)
    assert set(chosen.owner[chosen.split == TEST].tolist()) == {3, 4}
    assert load(split="leaky", **settings).notes


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"windows": 9}, "no window for the test.*data.windows = 9 for each client's 9 classes"),
        ({"windows": 18}, "no window for validation.*data.windows = 18"),
        ({"split": "subject", "clients": 1}, "no window for the test.*data.clients = 1"),
        ({"split": "scene", "rooms": 2}, "no window for validation.*data.rooms = 2"),
        ({"split": "subject", "held_out": (7,)}, "no subject.*data.clients = 3"),
    ],
)
def test_too_little_for_all_parts_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(CommunisError, match=says):
        load(sensors=("heart",), **settings)


def test_validation_can_be_left_out() -> None:
    data = load(sensors=("heart",), windows=18, shares=(0.5, 0.0, 0.5))
    assert set(data.split.tolist()) == {TRAIN, TEST}


def test_the_seed_decides_everything() -> None:
    one, again, other = load(3), load(3), load(4)
    for m in one.modalities:
        np.testing.assert_array_equal(one.inputs[m], again.inputs[m])
        assert not np.array_equal(one.inputs[m], other.inputs[m], equal_nan=True)
    np.testing.assert_array_equal(one.target, again.target)


def test_a_subject_does_not_depend_on_the_others() -> None:
    few, many = load(clients=2), load(clients=4)
    for m in few.modalities:
        np.testing.assert_array_equal(few.inputs[m], many.inputs[m][:54])


def test_sensors_and_noise_leave_the_rest_of_the_world_alone() -> None:
    everything, some = load(), load(sensors=("acc", "lidar"), sites=("pocket",))
    for m in some.modalities:
        np.testing.assert_array_equal(some.inputs[m], everything.inputs[m])
    quiet = load(noise=0.0)
    np.testing.assert_array_equal(quiet.target, everything.target)
    assert np.nanstd(everything.inputs["wrist_acc"] - quiet.inputs["wrist_acc"]) == pytest.approx(
        0.01, rel=0.05
    )
    heard = everything.inputs["mmwave"][:, 4]
    np.testing.assert_array_equal(np.isnan(heard), np.isnan(quiet.inputs["mmwave"][:, 4]))


def test_more_windows_than_a_piece() -> None:
    from communis.data.world import sensors

    data = load(windows=sensors.CHUNK + 5, clients=1, sensors=("acc", "csi", "depth"))
    for values in data.inputs.values():
        assert np.isfinite(values).all()


@pytest.mark.parametrize(
    ("target", "people", "task", "columns"),
    [
        ("action", (1, 1), Classification(9), 0),
        ("position", (1, 3), Localisation(2), 2),
        ("pose", (1, 1), Pose(17), 51),
        ("count", (0, 20), Counting(21), 0),
        ("all", (1, 1), Several, 54),
        ("all", (1, 4), Several, 55),
    ],
)
def test_every_target(target: Any, people: tuple[int, int], task: Any, columns: int) -> None:
    data = load(target=target, people=people, sensors=("heart", "csi"), windows=63)
    if target != "all":
        assert data.task == task
    assert data.target.shape == ((189, columns) if columns else (189,))
    assert data.target.dtype == (np.float32 if columns else np.int64)
    if target == "count":
        assert np.unique(data.target).tolist() == list(range(21))
        assert data.labels == tuple(str(n) for n in range(21))


def test_targets_agree_with_each_other_and_with_the_room() -> None:
    settings = {"sensors": ("heart",), "people": (1, 4)}
    whole = load(target="all", **settings).target
    np.testing.assert_array_equal(whole[:, 0], load(target="action", **settings).target)
    np.testing.assert_array_equal(whole[:, 1:3], load(target="position", **settings).target)
    np.testing.assert_array_equal(whole[:, 3:54], load(target="pose", **settings).target)
    assert set(whole[:, 54].astype(int).tolist()) == {1, 2, 3, 4}
    pose = whole[:, 3:54].reshape(-1, 17, 3)
    assert (pose[:, 0] == 0).all()  # from the root
    assert (np.abs(pose) < 1.6).all()
    assert (whole[:, 1:3] > 0).all()
    assert (whole[:, 1:3] < 8).all()


def test_places_change_between_trials_only() -> None:
    data = load(target="position", sensors=("heart",), actions=("waving",), windows=24)
    jump = np.linalg.norm(np.diff(data.target, axis=0), axis=1)
    same = np.diff(data.recording) == 0
    assert jump[same].max() < 0.05
    assert np.median(jump[~same]) > 0.3


def test_nobody_wears_sensors_in_an_empty_room() -> None:
    data = load(target="count", people=(0, 2))
    empty = data.target == 0
    assert empty.any()
    for m, flags in data.present.items():
        np.testing.assert_array_equal(flags, ~empty)
        assert np.isnan(data.inputs[m][empty]).all()
        assert np.isfinite(data.inputs[m][~empty]).all()
    assert set(data.present) == {m for m in data.inputs if data.kinds[m] == "series"}
    assert (data.inputs["lidar"][empty, :, 0] == 0).all()  # it saw nothing
    assert np.isfinite(data.inputs["csi"]).all()


@pytest.mark.parametrize("people", [(0, 2), (1, 1)])
def test_windows_are_present_if_and_only_if_something_was_sensed(people: tuple[int, int]) -> None:
    data = load(target="count" if people[0] == 0 else "action", people=people, mmwave_points=2)
    for m, values in data.inputs.items():
        sensed = np.isfinite(values).reshape(len(data), -1).any(1)
        np.testing.assert_array_equal(data.present.get(m, np.ones(len(data), bool)), sensed)
        if data.kinds[m] != "series":
            assert sensed.all()  # sensors in the room always look


def test_shifts_make_subjects_and_rooms_alike_or_different() -> None:
    def spread(**shift: float) -> float:
        """Of the mean walls over rooms."""
        data = load(clients=4, rooms=4, sensors=("depth",), noise=0.0, **shift)
        walls = np.median(data.inputs["depth"].reshape(4, 27, -1), 1)
        return float(walls.std(0).mean())

    assert spread(room_shift=0.0) < 0.01
    assert spread(room_shift=1.0) > 0.1


def test_actions_can_be_chosen_and_classes_skewed() -> None:
    data = load(actions=("waving", "walking"), sensors=("heart",), skew=0.05, clients=20)
    assert data.labels == ("waving", "walking")
    shares = [np.bincount(data.target[data.owner == i], minlength=2).max() / 27 for i in range(20)]
    assert np.mean(shares) > 0.9


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"clients": 0}, "clients must be at least 1"),
        ({"seconds": 0.0}, "seconds must be positive"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"skew": 0.0}, "skew must be positive"),
        ({"depth_size": (0, 4)}, "depth_size must be at least 1"),
        ({"people": (3, 2)}, "fewest and most"),
        ({"people": (1, 21)}, "from 0 to 20"),
        ({"people": (0, 0)}, "fewest and most"),
        ({"people": (1, 2, 3)}, r"two numbers, fewest and most.*\[1, 2, 3\]"),
        ({"depth_size": (6, 8, 3)}, "depth_size: expected height and width"),
        ({"csi_phase": True, "csi_antennas": 1}, "csi_phase.*csi_antennas = 1"),
        ({"subject_shift": 1.6}, "subject_shift must be at most 1.5"),
        ({"room_shift": 2.1}, "room_shift must be at most 2"),
        ({"shares": (0.0, 0.5, 0.5)}, "that of training above 0"),
        ({"people": (0, 3)}, "people must start at 1"),
        ({"target": "count"}, r"set people = \[0, 20\]"),
        ({"sites": ()}, "sites must be some of wrist"),
        ({"sites": ("knee",)}, "knee"),
        ({"sensors": ("acc", "acc")}, "each once"),
        ({"actions": ("flying",)}, "actions must be some of standing"),
        ({"seconds": 0.5}, "heart_rate = 1.0 gives no sample"),
        ({"room_shift": -0.1}, "room_shift"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(CommunisError, match=says):
        World(**settings)


def test_a_rate_that_nobody_uses_is_no_error() -> None:
    assert World(seconds=0.5, sensors=("acc",)).heart_rate == 1.0
    assert World(sensors=("csi",), sites=()).sites == ()
    assert World(sensors=("acc",), csi_phase=True, csi_antennas=1).csi_phase


def score(data: Windows, features: Array) -> float:
    """Accuracy of a linear model on the test windows."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    train, test = data.split == TRAIN, data.split == TEST
    model.fit(features[train], data.target[train])
    return float(model.score(features[test], data.target[test]))


def test_actions_can_be_learnt_from_wearables() -> None:
    data = load(clients=8, windows=54, sensors=("acc", "gyro"))
    signals = np.concatenate(list(data.inputs.values()), 1)
    features = np.concatenate([signals.mean(2), signals.std(2), np.ptp(signals, 2)], 1)
    assert score(data, features) > 0.8  # chance is 0.11


def test_people_can_be_counted_from_the_channel() -> None:
    data = load(clients=2, windows=200, people=(0, 4), target="count", sensors=("csi",))
    steps = np.diff(data.inputs["csi"], axis=3)
    features = np.log(np.square(steps).mean(3).reshape(len(data), -1) + 1e-6)
    assert score(data, features) > 0.4  # chance is 0.2


def test_positions_can_be_learnt_from_points() -> None:
    data = load(clients=1, windows=120, target="position", sensors=("lidar",))
    centre = np.nanmean(data.inputs["lidar"][:, :2], 2)
    features = np.concatenate([centre, np.ones((len(centre), 1))], 1)
    train = data.split == TRAIN
    fit, *_ = np.linalg.lstsq(features[train], data.target[train], rcond=None)
    error = np.linalg.norm(features @ fit - data.target, axis=1)[data.split == TEST]
    assert np.median(error) < 0.15  # metres
