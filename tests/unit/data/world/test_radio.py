"""Wi-Fi channel state against free-space closed forms, and what people do to it."""

from __future__ import annotations

import numpy as np
import pytest

from communis.data.world import radio
from communis.data.world.body import AT
from communis.data.world.people import Crowd, People
from communis.data.world.radio import LIGHT, Band
from tests.unit.data.world.figures import crowd, plain_room, row, statue

BAND = Band(antennas=2, subcarriers=16)
TIMES = np.arange(40) / 20


def single(distance: float, band: Band = BAND) -> np.ndarray:
    """(subcarriers,) of one path in free space."""
    where = np.array([[distance]])
    return radio.response(1 / where, where, band)[:, 0]


def test_power_falls_with_the_square_of_the_distance() -> None:
    near, far = np.abs(single(2.0)) ** 2, np.abs(single(4.0)) ** 2
    np.testing.assert_allclose(near, 0.25, rtol=1e-5)
    np.testing.assert_allclose(near / far, 4, rtol=1e-5)


def test_a_scattered_path_falls_with_both_distances() -> None:
    gain = radio.scattering(np.array(0.5), np.array(2.0), np.array(3.0))
    assert gain**2 == pytest.approx(0.5 / (4 * np.pi) / (2 * 3) ** 2)


@pytest.mark.parametrize("distance", [1.0, 3.7, 12.0, 40.0])
def test_the_slope_of_the_phase_is_the_delay(distance: float) -> None:
    phase = np.unwrap(np.angle(single(distance)))
    slope = np.polyfit(np.arange(16) * BAND.spacing, phase, 1)[0]
    assert slope == pytest.approx(-2 * np.pi * distance / LIGHT, rel=1e-3)


def test_phase_comes_from_path_length() -> None:
    carrier = BAND.lowest
    for distance in (1.0, 5.123, 40.0):
        expected = np.exp(-2j * np.pi * carrier * distance / LIGHT)
        assert single(distance)[0] * distance == pytest.approx(expected, abs=2e-4)


def test_many_subcarriers_stay_exact() -> None:
    band = Band(1, 242, bandwidth=80e6)
    frequency = band.lowest + np.arange(242) * band.spacing
    expected = np.exp(-2j * np.pi * frequency * 23.4 / LIGHT) / 23.4
    np.testing.assert_allclose(single(23.4, band), expected, atol=1e-5)
    assert frequency.mean() == pytest.approx(5.2e9)


def test_two_paths_interfere() -> None:
    """Half a wavelength more cancels, a whole one adds."""
    band = Band(1, 1)
    wave = LIGHT / band.carrier
    for extra, expected in ((0.5, 0), (1.0, 2)):
        distance = np.array([[10.0], [10 + extra * wave]])
        total = radio.response(np.ones((2, 1)), distance, band)
        assert abs(total[0, 0]) == pytest.approx(expected, abs=1e-3)


def test_walls_mirror_the_transmitter() -> None:
    images = radio.mirrored(np.array([1.0, 2.0, 1.5]), np.array([6.0, 5.0, 3.0]))
    expected = [(-1, 2, 1.5), (1, -2, 1.5), (1, 2, -1.5), (11, 2, 1.5), (1, 8, 1.5), (1, 2, 4.5)]
    np.testing.assert_allclose(images, expected)


def test_an_empty_room_stands_still() -> None:
    total = radio.channel(Crowd(3, ()), plain_room(), TIMES, BAND)
    assert total.shape == (3, 2, 16, 40)
    assert (total == total[:1, :, :, :1]).all()
    assert np.abs(total).min() > 0


def test_a_person_adds_scattered_paths() -> None:
    one, room = statue(), plain_room()
    added = radio.moving(one.at(TIMES[:1]), room, BAND)[0, 0, :, 0]
    joints = one.at(TIMES[:1]).joints[:, :, 0, 0].astype(float)
    receiver = BAND.array(room.receiver)[0]
    frequency = BAND.lowest + np.arange(16) * BAND.spacing
    expected = np.zeros(16, complex)
    for name, section in radio.SCATTERERS.items():
        far = np.linalg.norm(joints[AT[name]] - room.transmitter)
        near = np.linalg.norm(joints[AT[name]] - receiver)
        gain = np.sqrt(section / (4 * np.pi)) / (far * near)
        expected += gain * np.exp(-2j * np.pi * frequency * (far + near) / LIGHT)
    np.testing.assert_allclose(added, expected, atol=2e-4 * np.abs(expected).max() + 2e-5)


def test_a_body_at_rest_keeps_the_channel_still() -> None:
    total = radio.channel(crowd(statue()), plain_room(), TIMES, BAND)
    np.testing.assert_allclose(total, total[..., :1] + 0 * total, atol=1e-6)
    empty = radio.channel(Crowd(1, ()), plain_room(), TIMES, BAND)
    assert np.abs(total - empty).max() > 1e-3


def test_the_channel_varies_more_with_more_people() -> None:
    def variance(people: int) -> float:
        rows = np.arange(30)
        members = [(rows, row("walking", 30, seed=k)) for k in range(people)]
        total = radio.channel(Crowd(30, tuple(members)), plain_room(), TIMES, BAND)
        return float(np.var(total, axis=-1).mean())

    found = [variance(people) for people in (0, 1, 3, 10)]
    assert found[0] < 1e-12
    assert found[2] / found[1] == pytest.approx(3, rel=0.5)  # independent paths add their powers
    assert found[3] / found[1] == pytest.approx(10, rel=0.5)


def test_antennas_stand_half_a_wavelength_apart() -> None:
    places = Band(3, 1).array(np.array([1.0, 2.0, 1.5]))
    np.testing.assert_allclose(places.mean(0), (1, 2, 1.5))
    assert np.diff(places[:, 1]) == pytest.approx(LIGHT / 5.2e9 / 2)


def test_moving_everything_together_changes_nothing() -> None:
    room = plain_room()
    one = row("waving")

    def seen(shift: float, person: People) -> np.ndarray:
        moved = type(room)(**{
            **room.__dict__,
            "transmitter": room.transmitter + np.array([shift, 0, 0]),
            "receiver": room.receiver + np.array([shift, 0, 0]),
        })  # fmt: skip
        return radio.moving(person.at(TIMES), moved, BAND)

    away = type(one)(**{**one.__dict__, "centre": one.centre + np.array([[2.0], [0.0]])})
    np.testing.assert_allclose(seen(0, one), seen(2.0, away), atol=3e-5)


def test_gain_control_and_noise() -> None:
    total = radio.channel(crowd(row("walking")), plain_room(), TIMES, BAND)
    quiet = radio.received(np.random.default_rng(0), total, 0.0, phase=False)
    assert quiet.dtype == np.float32
    np.testing.assert_allclose(np.sqrt((quiet**2).mean()), 1, rtol=1e-5)
    louder = radio.received(np.random.default_rng(0), 7 * total, 0.0, phase=False)
    np.testing.assert_allclose(quiet, louder, rtol=1e-5)
    noisy = radio.received(np.random.default_rng(0), total, 1.0, phase=False)
    assert (noisy - quiet).std() == pytest.approx(radio.NOISE / np.sqrt(2), rel=0.1)


def test_phases_are_differences_between_antennas() -> None:
    total = radio.channel(crowd(row("walking")), plain_room(), TIMES, BAND)
    both = radio.received(np.random.default_rng(0), total, 0.0, phase=True)
    assert both.shape == (1, 3, 16, 40)
    spun = total * np.exp(1j * np.random.default_rng(1).uniform(0, 6, 40)).astype(np.complex64)
    again = radio.received(np.random.default_rng(0), spun, 0.0, phase=True)
    np.testing.assert_allclose(np.cos(both[:, 2]), np.cos(again[:, 2]), atol=1e-4)
    expected = np.angle(total[:, 1] / total[:, 0])
    np.testing.assert_allclose(np.cos(both[:, 2]), np.cos(expected), atol=1e-4)
