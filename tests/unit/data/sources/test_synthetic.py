"""The synthetic world: what its settings promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from communis import Streams, Windows
from communis.data.recordings.windows import TEST, TRAIN, VAL
from communis.data.sources.synthetic import Synthetic


def load(seed: int = 0, **settings: Any) -> Windows:
    return Synthetic(**({"clients": 5, "windows": 20, "steps": 32} | settings)).load(Streams(seed))


def test_shapes_and_types_follow_the_settings() -> None:
    data = load(clients=4, modalities=2, channels=5, classes=7, windows=10, steps=24)
    assert data.modalities == ("m0", "m1")
    assert data.channels == {"m0": 5, "m1": 5}
    for values in data.inputs.values():
        assert values.shape == (40, 5, 24)
        assert values.dtype == np.float32
        assert np.isfinite(values).all()
    assert data.target.dtype == np.int64
    assert data.target.min() >= 0
    assert data.target.max() < 7
    assert (data.task.classes, data.task.outputs) == (7, 7)
    assert data.owner.tolist() == np.repeat(np.arange(4), 10).tolist()


@pytest.mark.parametrize(
    ("windows", "counts"), [(100, (60, 20, 20)), (20, (12, 4, 4)), (10, (6, 2, 2)), (5, (3, 1, 1))]
)
def test_every_client_has_its_windows_split_in_order(
    windows: int, counts: tuple[int, int, int]
) -> None:
    data = load(windows=windows)
    for client in range(5):
        split = data.split[data.owner == client]
        assert tuple(int((split == s).sum()) for s in (TRAIN, VAL, TEST)) == counts
        assert (np.diff(split) >= 0).all()


def test_the_seed_decides_everything() -> None:
    one, again, other = load(3), load(3), load(4)
    for m in one.modalities:
        assert np.array_equal(one.inputs[m], again.inputs[m])
        assert np.array_equal(one.present[m], again.present[m])
        assert not np.array_equal(one.inputs[m], other.inputs[m])
    assert np.array_equal(one.target, again.target)
    assert not np.array_equal(one.target, other.target)


def test_waveforms_have_unit_power_times_the_clients_gain() -> None:
    data = load(noise=0.0, clients=8, steps=64)
    power = np.square(data.inputs["m0"]).mean(2)  # (N, channels)
    for client in range(8):
        gains = np.sqrt(power[data.owner == client])
        assert gains.std() < 1e-3 * gains.mean()
        assert 0.7 <= gains.mean() <= 1.3
    assert np.sqrt(power).std() > 0.05  # clients do differ


def test_noise_is_white_with_the_given_deviation() -> None:
    clean, noisy = load(noise=0.0), load(noise=0.5)
    for m in clean.modalities:
        rest = noisy.inputs[m] - clean.inputs[m]
        assert rest.std() == pytest.approx(0.5, rel=0.05)
        assert abs(rest.mean()) < 0.02
        assert abs(np.corrcoef(rest[..., 1:].ravel(), rest[..., :-1].ravel())[0, 1]) < 0.03


def test_a_window_is_its_class_waveform_shifted() -> None:
    data = load(noise=0.0, clients=1, windows=60, modalities=1, channels=1, classes=3, steps=32)
    x = data.inputs["m0"][:, 0] / np.sqrt(np.square(data.inputs["m0"][:, 0]).mean(1))[:, None]
    for c in np.unique(data.target):
        same = x[data.target == c]
        first = np.stack([np.roll(same[0], s) for s in range(32)])
        for other in same[1:]:
            assert np.abs(first - other).max(1).min() < 1e-4
    # Waveforms of two classes are no shifts of each other.
    a, b = (x[data.target == c][0] for c in np.unique(data.target)[:2])
    assert np.abs(np.stack([np.roll(a, s) for s in range(32)]) - b).max(1).min() > 0.1


def test_skew_makes_clients_alike_or_specialised() -> None:
    def largest_share(skew: float) -> float:
        data = load(skew=skew, windows=200, clients=10, steps=8, modalities=1)
        return float(
            np.mean([np.bincount(data.target[data.owner == i]).max() / 200 for i in range(10)])
        )

    assert largest_share(1000.0) < 0.3  # six classes: 1/6 and a little noise
    assert largest_share(0.05) > 0.7


def test_missing_is_the_probability_that_a_modality_is_absent() -> None:
    data = load(missing=0.3, windows=400, steps=8)
    for flags in data.present.values():
        assert flags.dtype == bool
        assert 1 - flags.mean() == pytest.approx(0.3, abs=0.04)
    together = np.stack(list(data.present.values()))
    assert abs(np.corrcoef(together)[0, 1]) < 0.1  # sensors drop out on their own
    assert all(flags.all() for flags in load(missing=0.0).present.values())


def test_missing_and_noise_leave_the_labels_and_the_partition_alone() -> None:
    """Paired comparisons: turning one knob does not reshuffle the world."""
    plain, missing, noisy = load(), load(missing=0.5), load(noise=3.0)
    for other in (missing, noisy):
        assert np.array_equal(plain.target, other.target)
        assert np.array_equal(plain.owner, other.owner)
    assert np.array_equal(plain.inputs["m0"], missing.inputs["m0"])


def test_a_window_of_one_step_is_possible() -> None:
    assert load(steps=1).inputs["m0"].shape == (100, 3, 1)
