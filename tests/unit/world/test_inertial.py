"""Body-worn sensors against closed forms and against the motion they were made from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from communis.world import inertial
from communis.world.body import Array, Axes
from communis.world.inertial import GRAVITY, SITES
from tests.unit.world.figures import row, sliding, statue

STEP = 0.02
TIMES = np.arange(-1, 201) * STEP


def turned(angle: Array) -> Axes:
    """Axes (3, 1, T) turned about z."""
    zero, one = 0 * angle, 1 + 0 * angle
    x = np.stack([np.cos(angle), np.sin(angle), zero])[:, None]
    y = np.stack([-np.sin(angle), np.cos(angle), zero])[:, None]
    return x, y, np.stack([zero, zero, one])[:, None]


@pytest.mark.parametrize("site", SITES)
def test_at_rest_there_is_one_g_and_no_turning(site: str) -> None:
    place, turn = inertial.worn(statue().at(TIMES), SITES[site])
    force = inertial.specific_force(place, turn, STEP)
    np.testing.assert_allclose(np.linalg.norm(force, axis=0), 1, atol=1e-6)
    np.testing.assert_allclose(force[:, 0, 0], (0, 0, 1), atol=1e-6)  # it points up
    np.testing.assert_allclose(inertial.angular_velocity(turn, STEP), 0, atol=1e-6)


def test_constant_velocity_feels_like_rest() -> None:
    """A round with a radius of a thousand kilometres is straight enough."""
    place, turn = inertial.worn(sliding(2.0, 1.0).at(TIMES), SITES["chest"])
    force = inertial.specific_force(place, turn, STEP)
    np.testing.assert_allclose(force[:, 0], np.array([[0], [0], [1]]) + 0 * force[:, 0], atol=1e-4)


def test_free_fall_feels_like_nothing() -> None:
    place = np.zeros((3, 1, len(TIMES)))
    place[2, 0] = 5 - GRAVITY * TIMES**2 / 2
    force = inertial.specific_force(place, turned(0 * TIMES), STEP)
    np.testing.assert_allclose(force, 0, atol=1e-6)


def test_centripetal_acceleration_and_its_angular_velocity() -> None:
    rate, radius = 2.0, 1.5
    turn = turned(rate * TIMES)
    place = radius * turn[0]
    force = inertial.specific_force(place, turn, STEP / 1)
    # The sensor looks outwards, so it feels the push towards the middle on its first axis.
    np.testing.assert_allclose(force[0] * GRAVITY, -(rate**2) * radius, rtol=1e-3)
    np.testing.assert_allclose(force[1], 0, atol=1e-6)
    np.testing.assert_allclose(force[2], 1, atol=1e-6)
    speed = inertial.angular_velocity(turn, STEP)
    np.testing.assert_allclose(speed, np.array([0, 0, rate])[:, None, None] + 0 * speed, atol=1e-9)


@pytest.mark.parametrize("action", ["walking", "jumping", "waving", "turning"])
def test_gyro_is_the_derivative_of_orientation(action: str) -> None:
    """R' = R [w], so R(t + h) is nearly R(t) exp(h [w])."""
    step = 0.002
    _, turn = inertial.worn(row(action).at(np.arange(-1, 501) * step), SITES["wrist"])
    speed = inertial.angular_velocity(turn, step)[:, 0]
    matrix = np.stack(turn, 1)[:, :, 0].astype(float).transpose(2, 0, 1)[1:-1]
    x, y, z = speed[:, :-1]
    cross = np.array([[0 * x, -z, y], [z, 0 * x, -x], [-y, x, 0 * x]]).transpose(2, 0, 1)
    slope = np.diff(matrix, axis=0) / step
    np.testing.assert_allclose(slope, matrix[:-1] @ cross, atol=0.15)
    assert np.abs(speed).max() > 0.5


@pytest.mark.parametrize("site", ["wrist", "pocket", "ankle"])
@pytest.mark.parametrize("action", ["walking", "squatting", "jumping"])
def test_integrating_twice_gives_the_way(site: str, action: str) -> None:
    place, turn = inertial.worn(row(action).at(TIMES), SITES[site])
    force = inertial.specific_force(place, turn, STEP)[:, 0]
    matrix = np.stack(turn, 1)[:, :, 0, 1:-1]
    acceleration = GRAVITY * (np.einsum("ijt,jt->it", matrix, force) - [[0], [0], [1]])
    steps = np.cumsum(np.concatenate([np.diff(place[:, 0, :2]), acceleration * STEP**2], 1), 1)
    way = place[:, 0, :1] + np.cumsum(steps, 1)
    np.testing.assert_allclose(way, place[:, 0, 1:], atol=2e-3)


def test_the_field_keeps_its_strength_and_points_north_and_down() -> None:
    place, turn = inertial.worn(row("turning").at(TIMES), SITES["wrist"])
    found = inertial.measured("mag", place, turn, STEP, north=0.7)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), np.hypot(20, 44), rtol=1e-5)
    assert np.ptp(found[0]) > 10
    still = inertial.measured("mag", *inertial.worn(statue().at(TIMES), SITES["chest"]), STEP, 0.0)
    np.testing.assert_allclose(still[:, 0, 0], (20, 0, -44), atol=1e-4)


def test_moving_the_room_or_the_start_changes_nothing() -> None:
    one = row("squatting")
    away = replace(one, centre=one.centre + 100.0)
    for sensor in ("acc", "gyro", "mag"):
        a, b = (
            inertial.measured(sensor, *inertial.worn(p.at(TIMES), SITES["wrist"]), STEP, 0.4)
            for p in (one, away)
        )
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_turning_the_room_turns_only_what_knows_north() -> None:
    one = row("squatting")
    other = replace(one, heading=one.heading + 1.0)
    for sensor, same in (("acc", True), ("gyro", True), ("mag", False)):
        a, b = (
            inertial.measured(sensor, *inertial.worn(p.at(TIMES), SITES["wrist"]), STEP, 0.4)
            for p in (one, other)
        )
        assert np.allclose(a, b, atol=2e-3) == same


@pytest.mark.parametrize("action", ["walking", "running"])
def test_the_spectrum_shows_the_tempo(action: str) -> None:
    """Legs swing once per stride; the trunk bounces with every step, twice per stride."""
    times = np.arange(-1, 1001) * STEP
    for shift in (0.0, 1.0):
        someone = row(action, rows=20, shift=shift, seed=3)
        motion = someone.at(times)
        swing = inertial.angular_velocity(motion.turns[SITES["pocket"].joint], STEP)[1]
        bounce = inertial.specific_force(*inertial.worn(motion, SITES["chest"]), STEP)[2]
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
        ("standing", 0.95, 1.0, 1.05), ("walking", 0.1, 1.1, 4), ("running", 0.0, 2.0, 12),
    ):  # fmt: skip
        place, turn = inertial.worn(row(action, 30, 1.0).at(TIMES), SITES["wrist"])
        size = np.linalg.norm(inertial.specific_force(place, turn, STEP), axis=0)
        assert size.min() >= least
        assert size.mean() == pytest.approx(usual, rel=0.25)
        assert size.max() <= most


def test_mounting_is_a_rotation_or_none() -> None:
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(inertial.mounting(rng, 0.0), np.eye(3))
    turn = inertial.mounting(rng, 1.0)
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-6)
    assert np.linalg.det(turn) == pytest.approx(1, abs=1e-6)
    assert not np.allclose(turn, np.eye(3), atol=0.05)
