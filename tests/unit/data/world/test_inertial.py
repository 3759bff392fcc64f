"""Body-worn sensors against closed forms and against the motion they were made from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from communis.data.world import inertial
from communis.data.world.body import Array, Axes
from communis.data.world.inertial import GRAVITY, SITES
from communis.data.world.people import People
from tests.unit.data.world.figures import row, sliding, statue

STEP = 0.02  # from one measurement to the next
TIMES = np.arange(200) * STEP


def placements(someone: People, site: str, times: Array = TIMES) -> list[inertial.Placement]:
    return [inertial.worn(someone.at(times + m), SITES[site]) for m in inertial.MOMENTS]


def turned(angle: Array) -> Axes:
    """Axes (3, 1, T) turned about z."""
    zero, one = 0 * angle, 1 + 0 * angle
    x = np.stack([np.cos(angle), np.sin(angle), zero])[:, None]
    y = np.stack([-np.sin(angle), np.cos(angle), zero])[:, None]
    return x, y, np.stack([zero, zero, one])[:, None]


@pytest.mark.parametrize("site", SITES)
def test_at_rest_there_is_one_g_and_no_turning(site: str) -> None:
    here = placements(statue(), site)
    force = inertial.measured("acc", here, 0.0)
    np.testing.assert_allclose(np.linalg.norm(force, axis=0), 1, atol=1e-6)
    np.testing.assert_allclose(force[:, 0, 0], (0, 0, 1), atol=1e-6)  # it points up
    np.testing.assert_allclose(inertial.measured("gyro", here, 0.0), 0, atol=1e-6)


def test_constant_velocity_feels_like_rest() -> None:
    """A round with a radius of a thousand kilometres is straight enough."""
    force = inertial.measured("acc", placements(sliding(2.0, 1.0), "chest"), 0.0)
    np.testing.assert_allclose(force[:, 0], np.array([[0], [0], [1]]) + 0 * force[:, 0], atol=1e-4)


def test_free_fall_feels_like_nothing() -> None:
    places = np.zeros((3, 3, 1, len(TIMES)))
    for place, moment in zip(places, inertial.MOMENTS, strict=True):
        place[2, 0] = 5 - GRAVITY * (TIMES + moment) ** 2 / 2
    force = inertial.specific_force(*places, turned(0 * TIMES))
    np.testing.assert_allclose(force, 0, atol=1e-6)


def test_centripetal_acceleration_and_its_angular_velocity() -> None:
    rate, radius = 2.0, 1.5
    turns = [turned(rate * (TIMES + moment)) for moment in inertial.MOMENTS]
    force = inertial.measured("acc", [(radius * turn[0], turn) for turn in turns], 0.0)
    # The sensor looks outwards, so it feels the push towards the middle on its first axis.
    np.testing.assert_allclose(force[0] * GRAVITY, -(rate**2) * radius, rtol=1e-3)
    np.testing.assert_allclose(force[1], 0, atol=1e-6)
    np.testing.assert_allclose(force[2], 1, atol=1e-6)
    speed = inertial.angular_velocity(turns[0], turns[2])
    np.testing.assert_allclose(speed, np.array([0, 0, rate])[:, None, None] + 0 * speed, atol=1e-9)


@pytest.mark.parametrize("action", ["walking", "jumping", "waving", "turning"])
def test_gyro_is_the_derivative_of_orientation(action: str) -> None:
    """R' = R [w], so R(t + h) is nearly R(t) exp(h [w])."""
    step = 0.002
    times = np.arange(500) * step
    here = placements(row(action), "wrist", times)
    speed = inertial.measured("gyro", here, 0.0)[:, 0]
    matrix = np.stack(here[1][1], 1)[:, :, 0].astype(float).transpose(2, 0, 1)
    x, y, z = speed[:, :-1]
    cross = np.array([[0 * x, -z, y], [z, 0 * x, -x], [-y, x, 0 * x]]).transpose(2, 0, 1)
    slope = np.diff(matrix, axis=0) / step
    np.testing.assert_allclose(slope, matrix[:-1] @ cross, atol=0.15)
    assert np.abs(speed).max() > 0.5


@pytest.mark.parametrize("site", ["wrist", "pocket", "ankle"])
@pytest.mark.parametrize("action", ["walking", "squatting", "jumping"])
def test_integrating_twice_gives_the_way(site: str, action: str) -> None:
    step = 0.004
    times = np.arange(500) * step
    here = placements(row(action), site, times)
    force = inertial.measured("acc", here, 0.0)[:, 0]
    place, matrix = here[1][0][:, 0], np.stack(here[1][1], 1)[:, :, 0]
    acceleration = GRAVITY * (np.einsum("ijt,jt->it", matrix, force) - [[0], [0], [1]])
    bends = acceleration[:, 1:-1] * step**2
    steps = np.cumsum(np.concatenate([np.diff(place[:, :2]), bends], 1), 1)
    np.testing.assert_allclose(place[:, :1] + np.cumsum(steps, 1), place[:, 1:], atol=5e-3)


def test_the_field_keeps_its_strength_and_points_north_and_down() -> None:
    found = inertial.measured("mag", placements(row("turning"), "wrist"), north=0.7)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), np.hypot(20, 44), rtol=1e-5)
    assert np.ptp(found[0]) > 10
    still = inertial.measured("mag", placements(statue(), "chest"), 0.0)
    np.testing.assert_allclose(still[:, 0, 0], (20, 0, -44), atol=1e-4)


def test_moving_the_room_or_the_start_changes_nothing() -> None:
    one = row("squatting")
    away = replace(one, centre=one.centre + 100.0)
    for sensor in ("acc", "gyro", "mag"):
        a, b = (inertial.measured(sensor, placements(p, "wrist"), 0.4) for p in (one, away))
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_turning_the_room_turns_only_what_knows_north() -> None:
    one = row("squatting")
    other = replace(one, heading=one.heading + 1.0)
    for sensor, same in (("acc", True), ("gyro", True), ("mag", False)):
        a, b = (inertial.measured(sensor, placements(p, "wrist"), 0.4) for p in (one, other))
        assert np.allclose(a, b, atol=0.01) == same


@pytest.mark.parametrize("action", ["walking", "running"])
def test_the_spectrum_shows_the_tempo(action: str) -> None:
    """Legs swing once per stride; the trunk bounces with every step, twice per stride."""
    times = np.arange(1000) * STEP
    for shift in (0.0, 1.0):
        someone = row(action, rows=20, shift=shift, seed=3)
        swing = inertial.measured("gyro", placements(someone, "pocket", times), 0.0)[1]
        bounce = inertial.measured("acc", placements(someone, "chest", times), 0.0)[2]
        assert np.abs(peak(swing) - someone.tempo).max() < 0.06
        clear = np.abs(peak(bounce) - 2 * someone.tempo) < 0.06
        assert clear.mean() > 0.8  # some people limp


def peak(signal: Array) -> Array:
    """(people,) Hz: where the spectrum is highest."""
    smooth = (signal - signal.mean(-1, keepdims=True)) * np.hanning(signal.shape[-1])
    return np.fft.rfftfreq(signal.shape[-1], STEP)[np.abs(np.fft.rfft(smooth)).argmax(-1)]


def test_accelerations_are_those_of_people() -> None:
    """Least, mean and greatest specific force at the wrist, in g."""
    for action, least, usual, most in (
        ("standing", 0.95, 1.0, 1.05), ("walking", 0.1, 1.1, 5), ("running", 0.0, 2.0, 12),
    ):  # fmt: skip
        force = inertial.measured("acc", placements(row(action, 30, 1.0), "wrist"), 0.0)
        size = np.linalg.norm(force, axis=0)
        assert size.min() >= least
        assert size.mean() == pytest.approx(usual, rel=0.25)
        assert size.max() <= most


@pytest.mark.parametrize("action", ["walking", "running", "jumping"])
def test_derivatives_err_by_less_than_the_noise(action: str) -> None:
    """Against differences of the fourth order."""
    someone, step, times = row(action, rows=10, shift=1.0, seed=3), 0.005, np.arange(50) / 25
    worn = [inertial.worn(someone.at(times + k * step), SITES["wrist"]) for k in (-2, -1, 0, 1, 2)]
    place, turn = (np.stack([np.asarray(each[part]) for each in worn]) for part in (0, 1))
    bend = np.tensordot([-1, 16, -30, 16, -1], place, 1) / (12 * step**2 * GRAVITY)
    x, y, z = worn[2][1]
    force = inertial.into_sensor((x, y, z), bend + np.array([0, 0, 1])[:, None, None])
    slope_x, slope_y, slope_z = np.tensordot([1, -8, 0, 8, -1], turn, 1) / (12 * step)
    spin = np.stack([(z * slope_y).sum(0), (x * slope_z).sum(0), (y * slope_x).sum(0)])
    for sensor, expected in (("acc", force), ("gyro", spin)):
        error = inertial.measured(sensor, placements(someone, "wrist", times), 0.0) - expected
        assert np.sqrt((error**2).mean()) < inertial.NOISE[sensor] / 2


def test_mounting_is_a_rotation_or_none() -> None:
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(inertial.mounting(rng, 0.0), np.eye(3))
    turn = inertial.mounting(rng, 1.0)
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-6)
    assert np.linalg.det(turn) == pytest.approx(1, abs=1e-6)
    assert not np.allclose(turn, np.eye(3), atol=0.05)
