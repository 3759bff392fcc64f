"""LiDAR, depth camera and radar: distances, occlusion, density, Doppler and power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from communis.data.world import lidar, radar, ranging
from communis.data.world.body import AT, BONES, RADIUS, Array
from communis.data.world.people import Crowd, People
from communis.data.world.points import packed, without_empty
from communis.data.world.ranging import Capsules
from tests.unit.data.world.figures import crowd, looking_ahead, plain_room, row, sliding, statue

AHEAD = np.array([1.0, 0.0, 0.0], np.float32).reshape(3, 1, 1)
ROOM = replace(
    plain_room(),
    radar=looking_ahead((0.0, 2.5, 1.2)),
    lidar=looking_ahead((0.0, 2.5, 1.2)),
    camera=looking_ahead((0.0, 2.5, 1.2)),
)


def capsule(start: tuple[float, ...], end: tuple[float, ...], radius: float) -> Capsules:
    return Capsules(
        np.array(start, np.float32).reshape(1, 3, 1),
        np.array(end, np.float32).reshape(1, 3, 1),
        np.array([[radius]], np.float32),
    )


def to_bones(points: Array, someone: People, when: float) -> Array:
    """(B,): distance of points (3, B) in the axes of the sensor from the nearest skin."""
    body = ranging.capsules(someone.at(np.array([when])), ROOM.lidar)
    start, end = body.start[..., 0].astype(float), body.end[..., 0].astype(float)
    bone = end - start
    share = np.einsum("ki,kib->kb", bone, points - start[..., None]) / (bone**2).sum(1)[:, None]
    nearest = start[..., None] + np.clip(share, 0, 1)[:, None] * bone[..., None]
    return (np.linalg.norm(points - nearest, axis=1) - body.radius).min(0)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ((3, 0, -1), (3, 0, 1), 2.8),  # an upright post
        ((3, 0, 0.1), (3, 0, 1), 3 - np.sqrt(0.2**2 - 0.1**2)),  # its round lower end
        ((3, 0.15, -1), (3, 0.15, 1), 3 - np.sqrt(0.2**2 - 0.15**2)),  # off the middle
        ((2, 0, -1), (4, 0, 1), 3 - 0.2 * np.sqrt(2)),  # leaning towards the ray
        ((3, 0.3, -1), (3, 0.3, 1), np.inf),  # a miss
        ((-3, 0, -1), (-3, 0, 1), np.inf),  # behind the sensor
    ],
)
def test_rays_meet_capsules(
    start: tuple[float, ...], end: tuple[float, ...], expected: float
) -> None:
    found = ranging.cast(AHEAD, capsule(start, end, 0.2))[0, 0]
    assert found == pytest.approx(expected, abs=1e-3)


def test_the_nearest_of_several_counts() -> None:
    near, far = capsule((2, 0, -1), (2, 0, 1), 0.1), capsule((4, 0, -1), (4, 0, 1), 0.1)
    both = Capsules(*(np.concatenate([getattr(far, name), getattr(near, name)])
                      for name in ("start", "end", "radius")))  # fmt: skip
    assert ranging.cast(AHEAD, both)[0, 0] == pytest.approx(1.9, abs=1e-4)


@pytest.mark.parametrize("distance", [2.0, 3.5, 5.0])
def test_the_depth_of_a_body_is_its_distance(distance: float) -> None:
    """The camera looks at the spine, 13 cm in front of which the chest begins."""
    image = ranging.depth(crowd(statue((distance, 2.5))), ROOM, 0.0, 25, 25)
    assert image[0, 12, 12] == pytest.approx(distance - 0.13, abs=0.01)
    assert image[0, 11:14, 11:14].min() > distance - 0.3
    assert image[0, 12, 0] == pytest.approx(2.5 / np.tan(np.radians(40)) / (24 / 25), rel=1e-3)


def test_an_empty_room_shows_its_walls() -> None:
    image = ranging.depth(Crowd(2, ()), ROOM, 0.0, 25, 25)
    assert image.shape == (2, 25, 25)
    assert image[0, 12, 12] == pytest.approx(6.0, abs=1e-4)  # the wall opposite
    half = np.tan(np.radians(40)) * 24 / 25
    assert image[0, 24, 12] == pytest.approx(1.2 / half, rel=1e-4)  # the floor
    assert image[0, 0, 12] == pytest.approx(1.6 / half, rel=1e-4)  # the ceiling


def test_a_nearer_person_covers_more_and_hides_the_other() -> None:
    def covered(*members: People) -> Array:
        empty = ranging.depth(Crowd(1, ()), ROOM, 0.0, 60, 60)
        return ranging.depth(crowd(*members), ROOM, 0.0, 60, 60)[0] < empty[0] - 0.05

    near, far = statue((2.0, 2.5)), statue((4.0, 2.5))
    area = covered(near).sum() / covered(far).sum()
    assert area == pytest.approx(4, rel=0.35)  # solid angle falls with the square of the distance
    both = ranging.depth(crowd(far, near), ROOM, 0.0, 60, 60)
    alone = ranging.depth(crowd(near), ROOM, 0.0, 60, 60)
    assert (both <= alone + 1e-6).all()
    assert both[0, 30, 30] == alone[0, 30, 30]


def test_images_are_upright_and_not_mirrored() -> None:
    empty = ranging.depth(Crowd(1, ()), ROOM, 0.0, 20, 20)[0]
    left = ranging.depth(crowd(statue((3.0, 3.7))), ROOM, 0.0, 20, 20)[0]
    rows, columns = np.nonzero(left < empty - 0.05)
    assert columns.max() < 10  # y grows to the left of a sensor that looks along x
    assert rows.min() > 3  # a head at 1.8 m is below the top of the image


@pytest.mark.parametrize("action", ["standing", "walking", "squatting", "jumping"])
def test_lidar_points_lie_on_the_skin(action: str) -> None:
    someone = row(action, shift=1.0)
    cloud = lidar.sweep(np.random.default_rng(0), crowd(someone), ROOM, 1.0, 200, noise=0.0)[0]
    points = cloud[:3, np.isfinite(cloud[0])]
    assert points.shape[1] > 20
    off = to_bones(points, someone, 1.0)
    assert np.abs(off).max() < 1e-3
    noisy = lidar.sweep(np.random.default_rng(0), crowd(someone), ROOM, 1.0, 200, noise=1.0)[0]
    assert np.nanstd(noisy[:3] - cloud[:3]) > 1e-3
    away = np.abs(np.linalg.norm(noisy[:3], axis=0) - np.linalg.norm(cloud[:3], axis=0))
    assert np.nanmax(away) < 5 * lidar.NOISE


def test_lidar_sees_only_the_near_side() -> None:
    cloud = lidar.sweep(np.random.default_rng(0), crowd(statue((3.0, 2.5))), ROOM, 0, 400, 0)[0]
    assert np.nanmax(cloud[0]) < 3.06  # nothing behind the middle of the body, but the head leans


def test_lidar_density_and_intensity_fall_with_the_square_of_the_distance() -> None:
    def seen(distance: float) -> tuple[int, float]:
        one = statue((distance, 2.5)).take(np.zeros(40, int))
        many = Crowd(40, ((np.arange(40), one),))
        cloud = lidar.sweep(np.random.default_rng(1), many, ROOM, 0, 2000, 0)
        return int(np.isfinite(cloud[:, 0]).sum()), float(np.nanmean(cloud[:, 3]))

    (many, bright), (few, dim) = seen(2.8), seen(5.6)
    assert many / few == pytest.approx(4, rel=0.15)
    assert bright / dim == pytest.approx(4, rel=0.15)


def test_a_person_in_front_hides_the_one_behind() -> None:
    both = crowd(statue((4.0, 2.5)), statue((2.0, 2.5)))
    cloud = lidar.sweep(np.random.default_rng(0), both, ROOM, 0, 400, 0)[0]
    assert np.nanmean(cloud[0] > 3) < 0.25
    side = crowd(statue((4.0, 3.7)), statue((2.0, 2.5)))
    cloud = lidar.sweep(np.random.default_rng(0), side, ROOM, 0, 400, 0)[0]
    assert np.nanmean(cloud[0] > 3) > 0.1


def saw_nothing(clouds: Array, intensity: float) -> bool:
    """One point at the sensor, and no others."""
    mark = (*(0,) * (clouds.shape[1] - 1), intensity)
    return bool((clouds[:, :, 0] == mark).all() and np.isnan(clouds[:, :, 1:]).all())


def test_nobody_means_one_point_at_the_sensor() -> None:
    rng, nobody = np.random.default_rng(0), Crowd(3, ())
    assert saw_nothing(lidar.sweep(rng, nobody, ROOM, 0, 8, 1), 0.0)
    seen = radar.detect(rng, nobody, ROOM, np.array([0.5]), 8, 1)
    assert saw_nothing(seen, radar.THRESHOLD)


def test_only_clouds_without_a_point_are_marked() -> None:
    clouds = np.full((2, 4, 3), np.nan, np.float32)
    clouds[1, :, 0] = (1, 2, 3, 0.5)
    found = without_empty(clouds.copy(), 7.0)
    assert saw_nothing(found[:1], 7.0)
    np.testing.assert_array_equal(found[1], clouds[1])


@pytest.mark.parametrize("velocity", [-1.5, -0.4, 0.8, 2.0])
def test_doppler_is_the_speed_towards_or_away_from_the_radar(velocity: float) -> None:
    """Far away a person who slides along the line of sight has one radial velocity."""
    far = replace(ROOM, radar=looking_ahead((-40.0, 2.5, 1.2)))
    one = sliding(velocity, 3.0)
    seen = radar.detect(np.random.default_rng(0), crowd(one), far, np.array([0.5]), 64, 0)
    assert saw_nothing(seen, radar.THRESHOLD)  # too far for an echo, so look at a nearer one
    seen = radar.detect(np.random.default_rng(0), crowd(one), ROOM, np.array([0.5]), 400, 0)[0]
    x, y, z, speed, _ = seen[:, np.isfinite(seen[0])]
    expected = velocity * x / np.sqrt(x**2 + y**2 + z**2)
    np.testing.assert_allclose(speed, expected, atol=2e-3)
    assert np.sign(speed.mean()) == np.sign(velocity)


def test_radar_noise_has_the_stated_size() -> None:
    args = (crowd(statue()), ROOM, np.array([0.5]), 4000)
    clean, noisy = (radar.detect(np.random.default_rng(0), *args, noise)[0] for noise in (0, 1))
    assert np.nanstd(noisy[3] - clean[3]) == pytest.approx(radar.NOISE["doppler"], rel=0.1)
    distance = np.linalg.norm(noisy[:3], axis=0) - np.linalg.norm(clean[:3], axis=0)
    assert np.nanstd(distance) == pytest.approx(radar.NOISE["range"], rel=0.1)
    angle = np.arctan2(noisy[1], noisy[0]) - np.arctan2(clean[1], clean[0])
    assert np.nanstd(angle) == pytest.approx(radar.NOISE["angle"], rel=0.1)


def test_echoes_fall_with_the_fourth_power_of_the_distance() -> None:
    near, far = radar.echo(np.array(0.1), np.array([2.0, 4.0]))
    assert near - far == pytest.approx(40 * np.log10(2))
    assert radar.echo(np.array(1.0), np.array(1.0)) == 0

    def seen(distance: float) -> int:
        one = crowd(statue((distance, 2.5)))
        found = radar.detect(np.random.default_rng(0), one, ROOM, np.array([0.5]), 2000, 0)
        return int(np.isfinite(found[0, 0]).sum())

    assert 2000 > seen(1.5) > seen(4.0) > seen(12.0)


def test_detections_are_of_the_body_and_within_view() -> None:
    one = statue((3.0, 2.5))
    cloud = radar.detect(np.random.default_rng(0), crowd(one), ROOM, np.array([0.5]), 500, 0)[0]
    off = to_bones(cloud[:3, np.isfinite(cloud[0])].astype(float), one, 0.5)
    assert (off < 1e-3).all()  # on bones, inside the skin
    aside = crowd(statue((0.4, 4.9)))  # more than 70 degrees off
    seen = radar.detect(np.random.default_rng(0), aside, ROOM, np.zeros(1), 50, 0)
    assert saw_nothing(seen, radar.THRESHOLD)


def test_points_are_packed_to_the_front_in_order() -> None:
    values = np.arange(8.0).reshape(1, 2, 4)
    keep = np.array([[False, True, False, True], [False, False, False, False]])
    found = packed(values, keep, 3)
    assert found.shape == (2, 1, 3)
    np.testing.assert_array_equal(found[0, 0], [1, 3, np.nan])
    assert np.isnan(found[1]).all()


def test_capsules_follow_the_bones() -> None:
    body = ranging.capsules(statue((3.0, 2.5)).at(np.zeros(1)), ROOM.lidar)
    assert body.start.shape == (len(BONES), 3, 1)
    head = AT["head"] - 1
    assert body.end[head, :, 0] == pytest.approx((3.02, 0, 1.71 - 1.2), abs=1e-5)
    assert body.radius[:, 0] == pytest.approx(RADIUS)
