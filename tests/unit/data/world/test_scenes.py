"""Heart, schedule, rooms and scenes."""

from __future__ import annotations

import numpy as np
import pytest

from communis.data.world import heart
from communis.data.world.rooms import CLEARANCE, MARGIN, MOST_SHIFT, SMALLEST, room
from communis.data.world.scene import scene
from communis.data.world.schedule import TRIALS, schedule
from tests.unit.data.world.figures import plain_room


def test_the_heart_follows_effort_with_its_lag() -> None:
    level = np.repeat([150.0, 70.0], [30, 30])
    beats = heart.rate(level, 4.0, np.arange(4.0), first=64.0).ravel()  # one per second
    assert beats[0] == 64
    assert beats[40] == pytest.approx(150 - 86 * np.exp(-1))  # 63 % of the way after one lag
    assert (np.diff(beats[:120]) > 0).all()
    assert (np.diff(beats[120:]) < 0).all()
    slope = np.diff(beats) * heart.LAG  # the differential equation, over one second
    settle = np.repeat(level, 4)[:-1]
    np.testing.assert_allclose(slope, settle - beats[:-1], rtol=0.02)


def test_the_heart_is_the_same_however_it_is_cut() -> None:
    level = np.repeat([100.0, 90.0, 120.0], 4)
    long = heart.rate(level[::2], 8.0, np.arange(8.0), 64.0)
    short = heart.rate(level, 4.0, np.arange(4.0), 64.0)
    np.testing.assert_allclose(long.ravel(), short.ravel())


@pytest.mark.parametrize("skew", [0.1, 1.0, 1e6])
def test_a_schedule_has_one_run_per_class_and_trials_in_it(skew: float) -> None:
    plan = schedule(np.random.default_rng(0), 203, 9, skew, 4)
    assert len(plan.label) == 203
    changes = np.flatnonzero(np.diff(plan.label)) + 1
    assert len(changes) == len(np.unique(plan.label)) - 1
    for run in np.split(np.arange(203), changes):
        assert plan.into[run[0]] == plan.turn[run[0]] == 0
        sizes = np.bincount(plan.turn[run])
        assert len(sizes) == max(-(-len(run) // 4), min(len(run), TRIALS))
        assert np.ptp(sizes) <= 1
    assert np.bincount(plan.trial).max() <= 4
    assert (np.diff(plan.into)[np.diff(plan.trial) == 0] == 1).all()
    assert (plan.into[np.flatnonzero(np.diff(plan.trial)) + 1] == 0).all()
    for trial in np.unique(plan.trial):
        assert len(np.unique(plan.label[plan.trial == trial])) == 1


def test_skew_is_a_dirichlet_concentration() -> None:
    def largest(skew: float) -> float:
        plans = [schedule(np.random.default_rng(s), 200, 9, skew, 4) for s in range(20)]
        return float(np.mean([np.bincount(p.label).max() / 200 for p in plans]))

    assert largest(1e6) == pytest.approx(23 / 200)
    assert largest(1.0) > 0.2
    assert largest(0.05) > 0.7


def test_rooms_differ_by_shift_and_hold_their_sensors() -> None:
    alike = [room(np.random.default_rng(s), 0.0) for s in range(3)]
    for other in alike[1:]:
        np.testing.assert_array_equal(alike[0].size, other.size)
        np.testing.assert_array_equal(alike[0].reflectors, other.reflectors)
    for seed in range(50):
        one = room(np.random.default_rng(seed), MOST_SHIFT)
        assert (one.size >= SMALLEST).all()
        places = [one.transmitter, one.receiver, *one.reflectors]
        places += [mount.position for mount in (one.radar, one.lidar, one.camera)]
        for place in places:
            assert (place > 0).all()
            assert (place < one.size - (0, 0, 0.19)).all()
        for mount in (one.radar, one.lidar, one.camera):
            np.testing.assert_allclose(mount.axes.T @ mount.axes, np.eye(3), atol=1e-12)
            centre = mount.local(np.array([one.size[0] / 2, one.size[1] / 2, 1.0]))
            assert centre[0] > 0
            np.testing.assert_allclose(centre[1:], 0, atol=1e-12)  # it looks at the middle
    assert not np.allclose(room(np.random.default_rng(1), 1.0).size, alike[0].size)


def test_a_mount_keeps_distances() -> None:
    mount = plain_room().lidar
    points = np.random.default_rng(0).random((3, 5)) * 3
    found = np.linalg.norm(mount.local(points), axis=0)
    np.testing.assert_allclose(found, np.linalg.norm(points.T - mount.position, axis=1))


def test_people_use_the_floor_with_a_margin() -> None:
    """More of it, if they reach further."""
    share, reach = np.array([[0.0, 1.0], [0.0, 1.0]]), np.full((2, 2), 0.3)
    corners = plain_room().floor(share, -reach, reach)
    np.testing.assert_allclose(corners, [[MARGIN, 6 - MARGIN], [MARGIN, 5 - MARGIN]])
    more = np.array([[1], [0]])
    corners = plain_room().floor(share, more - 1 - reach, more + reach)
    far = 1.3 + CLEARANCE
    np.testing.assert_allclose(corners, [[MARGIN, 6 - far], [far, 5 - MARGIN]])


def test_a_scene_counts_those_who_are_there() -> None:
    plan = schedule(np.random.default_rng(0), 60, 6, 1e6, 3)
    made = scene(
        lambda name, k: np.random.default_rng([len(name), k]),
        plain_room(), plan, np.arange(9), (0, 5), counting=True, seconds=2.0, shift=1.0,
    )  # fmt: skip
    np.testing.assert_array_equal(made.count, plan.label)
    np.testing.assert_array_equal(made.crowd.count, made.count)
    part = made.crowd.part(10, 25)
    np.testing.assert_array_equal(part.count, made.count[10:25])
    rows, subject = made.crowd.members[0]
    np.testing.assert_array_equal(subject.clock, 2.0 * plan.into[rows])
    assert np.ptp(subject.stature) == 0  # one subject throughout
    assert np.ptp(made.crowd.members[1][1].stature) > 0  # others come and go


def test_an_empty_scene_is_possible() -> None:
    plan = schedule(np.random.default_rng(0), 4, 1, 1.0, 2)
    made = scene(
        lambda name, k: np.random.default_rng(k),
        plain_room(), plan, np.arange(9), (0, 5), counting=True, seconds=2.0, shift=1.0,
    )  # fmt: skip
    assert made.crowd.part(0, 4).members == ()
    assert made.count.tolist() == [0] * 4
