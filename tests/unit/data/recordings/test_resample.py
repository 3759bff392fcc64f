"""Another rate: the same signal, at the same time, with the same holes."""

from __future__ import annotations

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.data.recordings.recording import Stream
from communis.data.recordings.resample import resampled


def wave(rate: float, seconds: float = 20.0, hertz: float = 1.3) -> Stream:
    t = np.arange(int(seconds * rate)) / rate
    values = np.stack([np.sin(2 * np.pi * hertz * t), 5 + 0.1 * t], 1)
    return Stream(values.astype(np.float32), rate)


@pytest.mark.parametrize("rate", [20.0, 33.0, 50.0, 64.0, 100.0, 128.0])
def test_a_slow_wave_survives_at_its_place_in_time(rate: float) -> None:
    found, exact = resampled(wave(100.0), rate), wave(rate)
    assert found.rate == rate
    assert abs(len(found.values) - len(exact.values)) <= 1
    n, edge = min(len(found.values), len(exact.values)), int(rate)
    assert found.values[edge : n - edge] == pytest.approx(exact.values[edge : n - edge], abs=0.02)
    assert found.values.dtype == np.float32


def test_what_is_too_fast_for_the_new_rate_is_filtered_out() -> None:
    found = resampled(wave(100.0, hertz=35.0), 20.0)
    assert np.abs(found.values[20:-20, 0]).max() < 0.02  # dropping samples would alias it to 5 Hz


def test_the_same_rate_changes_nothing() -> None:
    stream = wave(50.0)
    assert resampled(stream, 50.0) is stream


def test_what_was_missing_stays_missing_and_spoils_nothing_else() -> None:
    stream, exact = wave(100.0), wave(50.0)
    stream.values[400:600, 0] = np.nan
    found = resampled(stream, 50.0)
    # The new sample 200 lies half a new step after one that was sensed, 299 before the next.
    assert np.isnan(found.values[201:299, 0]).all()
    assert np.isfinite(np.delete(found.values[:, 0], slice(201, 300))).all()
    assert np.isfinite(found.values[:, 1]).all()
    assert found.values[50:190, 0] == pytest.approx(exact.values[50:190, 0], abs=0.02)


def test_a_channel_that_never_sensed_stays_so() -> None:
    stream = wave(100.0)
    stream.values[:, 1] = np.nan
    found = resampled(stream, 50.0)
    assert np.isnan(found.values[:, 1]).all()
    assert np.isfinite(found.values[:, 0]).all()


def test_single_lost_samples_leave_no_holes() -> None:
    stream, exact = wave(100.0), wave(50.0)
    stream.values[::2] = np.nan  # the very samples that a plain halving would take
    found = resampled(stream, 50.0)
    assert np.isfinite(found.values).all()
    assert found.values[50:-50, 0] == pytest.approx(exact.values[50:-50, 0], abs=0.02)


def test_a_rate_out_of_reach_is_refused() -> None:
    with pytest.raises(CommunisError, match=r"100 Hz cannot be resampled to 0\.03 Hz"):
        resampled(wave(100.0), 0.03)
