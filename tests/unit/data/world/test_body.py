"""Bodies: rigid bones, feet on the floor, smooth motion, and the tempo they were given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from communis.data.world.actions import ACTIONS, NAMES
from communis.data.world.body import ANKLE, AT, JOINTS, OFFSET, PARENT, Array
from communis.data.world.people import People, habits, people
from communis.data.world.rooms import room
from communis.data.world.sensors import MOST_SHIFT
from tests.unit.data.world.figures import lengths, plain_room, row, sliding, statue

TIMES = np.arange(200) / 50


@pytest.mark.parametrize("action", NAMES)
def test_bones_keep_their_lengths(action: str) -> None:
    someone = row(action, rows=3, shift=1.0)
    found = lengths(someone.at(TIMES).pose)
    expected = np.linalg.norm(OFFSET[1:], axis=1)[:, None] * someone.stature / 1.75
    np.testing.assert_allclose(found, expected[..., None] * np.ones(len(TIMES)), atol=2e-6)


@pytest.mark.parametrize("action", NAMES)
def test_turns_are_rotations(action: str) -> None:
    for axes in row(action, shift=1.0).at(TIMES).turns:
        matrix = np.stack(axes, 1)[:, :, 0].transpose(2, 0, 1)
        np.testing.assert_allclose(
            matrix @ matrix.transpose(0, 2, 1), np.broadcast_to(np.eye(3), matrix.shape), atol=1e-5
        )
        np.testing.assert_allclose(np.linalg.det(matrix), 1, atol=1e-5)


def test_a_statue_stands_upright() -> None:
    joints = statue((1.0, 2.0)).at(np.array([0.0])).joints[:, :, 0, 0]
    assert joints[AT["right_ankle"]] == pytest.approx((1, 1.9, ANKLE), abs=1e-5)
    assert joints[AT["head"]] == pytest.approx((1.02, 2, 0.94 + 0.77), abs=1e-5)
    assert joints[AT["left_wrist"], 1] > joints[AT["right_wrist"], 1]  # it looks along x


def test_the_order_of_joints_is_that_of_human36m() -> None:
    assert JOINTS[0] == "pelvis"
    assert len(JOINTS) == len(PARENT) == 17
    assert all(parent < joint for joint, parent in enumerate(PARENT))


@pytest.mark.parametrize("action", NAMES)
def test_somebody_carries_the_body(action: str) -> None:
    """No ankle goes far below its height on the floor; without a jump one of them is near it."""
    joints = row(action, rows=4, shift=1.0).at(TIMES).joints
    low = joints[[AT["left_ankle"], AT["right_ankle"]], 2].min(0)
    assert low.min() > 0.03
    if action not in ("running", "jumping"):
        assert low.max() < ANKLE * 1.4
    else:
        assert low.max() > ANKLE + 0.03  # both feet are off the floor for a while


@pytest.mark.parametrize("action", NAMES)
def test_actions_move_the_joints_they_should(action: str) -> None:
    joints = row(action).at(TIMES).joints[:, :, 0]
    if action == "standing":
        assert np.ptp(joints, axis=2).max() < 0.15
    if action == "sitting":
        assert joints[0, 2].min() < 0.55 < 0.9 < joints[0, 2].max()
    if action == "bowing":
        assert joints[AT["head"], 2].min() < 1.2 < 1.65 < joints[AT["head"], 2].max()
    if action == "waving":
        assert np.linalg.norm(np.ptp(joints[AT["right_wrist"]], axis=1)) > 0.2
        assert np.linalg.norm(np.ptp(joints[AT["left_wrist"]], axis=1)) < 0.1


def test_feet_stay_where_they_are_unless_one_walks() -> None:
    for action in ("sitting", "squatting", "bowing"):
        joints = row(action).at(TIMES).joints[:, :, 0]
        feet = (joints[AT["left_ankle"], :2] + joints[AT["right_ankle"], :2]) / 2
        assert np.ptp(feet, axis=1).max() < 1e-5


def test_walkers_look_where_they_go_and_stay_inside() -> None:
    for action, slowest, fastest in (("walking", 0.8, 1.8), ("running", 2.0, 4.0)):
        motion = several(action, 1.0).at(TIMES)
        velocity = np.diff(motion.root[:2], axis=-1) * 50
        speed = np.linalg.norm(velocity, axis=0)
        np.testing.assert_allclose(speed, speed[:, :1] + 0 * speed, rtol=1e-3)  # all the way round
        assert ((speed[:, 0] > slowest) & (speed[:, 0] < fastest)).mean() > 0.9
        pelvis = motion.turns[0][0][:2, :, 1:]
        ahead = pelvis / np.linalg.norm(pelvis, axis=0)
        assert ((velocity * ahead).sum(0) / speed).min() > 0.8
        size = plain_room().size[:2, None, None]
        assert (motion.root[:2] > 0.3).all()
        assert (motion.root[:2] < size - 0.3).all()


def slip(someone: People) -> Array:
    """(people,) median speed of the lower ankle, as a share of the body's."""
    motion = someone.at(np.arange(0, 4, 0.01))
    ankles = motion.joints[[AT["left_ankle"], AT["right_ankle"]]].astype(float)
    speed = np.linalg.norm(np.diff(ankles[:, :2], axis=-1), axis=1)
    lower = ankles[:, 2, :, 1:].argmin(0)
    carrying = np.take_along_axis(speed, lower[None], 0)[0]
    body = np.linalg.norm(np.diff(motion.root[:2], axis=-1), axis=0)
    assert np.median(speed.max(0)) > 1.5 * np.median(body)  # the other one swings forward
    return np.median(carrying, 1) / np.median(body, 1)


@pytest.mark.parametrize("action", ["walking", "running"])
def test_a_stance_foot_hardly_slides(action: str) -> None:
    """The body goes as fast as its legs carry it; on a round the feet have to slip a little."""
    one = row(action)
    straight = replace(one, pace=one.pace * one.radius / 200, radius=np.array([200.0]))
    assert slip(straight) < 0.08
    assert slip(one) < 0.2
    many = slip(several(action, 1.0))
    assert np.median(many) < 0.2
    assert np.percentile(many, 95) < 0.3


@pytest.mark.parametrize("shift", [0.0, 1.0, MOST_SHIFT])
def test_nobody_reaches_through_a_wall_or_the_ceiling(shift: float) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        place = room(rng, shift)
        actions = np.repeat(np.arange(len(NAMES)), 12)
        here = people(rng, actions, habits(rng, len(actions), shift), place)
        joints = here.at(np.arange(0, 8, 0.1)).joints
        assert joints.min() > 0
        assert (joints < place.size[:, None, None]).all()


def several(action: str, shift: float) -> People:
    """As in a world."""
    rng = np.random.default_rng(1)
    return people(rng, np.full(50, NAMES.index(action)), habits(rng, 50, shift), plain_room())


def test_motion_is_smooth_within_a_trial_and_windows_continue_it() -> None:
    someone = row("running", shift=1.0)
    step = np.diff(someone.at(np.arange(0, 4, 0.001)).joints, axis=-1)
    assert np.abs(step).max() < 0.02  # no joint is faster than 20 m/s
    later = type(someone)(**{**someone.__dict__, "clock": np.array([4.0])})
    np.testing.assert_allclose(
        later.at(np.array([0.5])).joints, someone.at(np.array([4.5])).joints, atol=1e-4
    )


def test_angles_repeat_with_the_tempo() -> None:
    for action in ACTIONS:
        if not action.travels and not action.spin:
            someone = row(action.name, shift=1.0)
            now = np.array([0.3])
            again = someone.at(now + 1 / someone.tempo[0]).joints
            np.testing.assert_allclose(someone.at(now).joints, again, atol=1e-4)


def test_people_differ_only_if_they_shall() -> None:
    alike = row("walking", rows=5, shift=0.0)
    assert np.ptp(alike.stature) == np.ptp(alike.tempo) == 0
    different = row("walking", rows=5, shift=1.0)
    assert np.ptp(different.stature) > 0.05
    assert np.ptp(different.tempo) > 0.05


def test_sliding_moves_as_it_says() -> None:
    root = sliding(1.5, 2.0).at(np.array([0.0, 1.0])).root
    assert root[0, 0, 1] - root[0, 0, 0] == pytest.approx(1.5, abs=1e-6)
    assert root[1, 0] == pytest.approx(2.5, abs=1e-5)
