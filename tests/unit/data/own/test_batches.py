"""Time stamps of batches: the rate by count over span, and a time for every sample."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest

from communis.core.errors import CommunisError
from communis.data.own.batches import batch_rate, spread
from communis.data.sources.own import Own

SIZES = np.array([10, 9, 11, 10, 10, 12, 8, 10, 10, 10])


def stamped(sizes: np.ndarray, seconds: float = 0.2) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)) * seconds, sizes)


@pytest.mark.parametrize("within", [0.0, 1e-4])
def test_the_rate_is_counted(within: float) -> None:
    """Also where time stamps within a batch are not quite equal, and with a pause of a minute."""
    time = stamped(np.tile(SIZES, 5))
    time = time + within * (np.arange(len(time)) % 10)
    time[300:] += 60
    assert batch_rate(np.sort(time)) == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize(
    "time",
    [
        np.arange(200) / 50,
        np.arange(200) / 50 + np.tile([0, 0.004], 100),
        np.concatenate((np.arange(100) / 50, 60 + np.arange(100) / 50)),
        np.delete(np.arange(400) / 50, np.arange(3, 400, 11)),
        np.zeros(20),
        np.zeros(0),
    ],
    ids=["even", "jitter", "a pause", "lost samples", "one time", "nothing"],
)
def test_other_time_stamps_are_not_batched(time: np.ndarray) -> None:
    assert batch_rate(time) == 0


@pytest.mark.parametrize("first", [True, False])
def test_every_sample_gets_a_time(first: bool) -> None:
    which: Literal["first", "last"] = "first" if first else "last"
    time = spread(stamped(SIZES), 50, which)
    assert (np.diff(time) > 0).all()
    starts = np.cumsum([0, *SIZES])
    kept = starts[:-1] if first else starts[1:] - 1
    np.testing.assert_allclose(time[kept], np.arange(10) * 0.2)
    inner = np.diff(time[10:19])
    np.testing.assert_allclose(inner, inner[0])
    even = np.arange(100) / 50
    np.testing.assert_allclose(spread(even, 50, which), even)


def test_a_pause_is_not_filled() -> None:
    time = stamped(np.full(10, 10))
    time[50:] += 30
    apart = np.diff(spread(time, 50, "first"))
    assert apart.max() == pytest.approx(30, abs=0.1)
    assert np.sort(apart)[-2] == pytest.approx(0.02)


def test_a_recording_in_batches(tmp_path: Path) -> None:
    time = stamped(np.tile(SIZES, 5))
    wave = np.arange(len(time), dtype=float)
    pd.DataFrame({"t": time, "x": wave, "n": 1}).to_csv(tmp_path / "1.csv", index=False)
    manifest = """
[files]
pattern = "*.csv"
time = "t"
batches = "first"
[modalities.acc]
columns = ["x"]
rate = 50
[target]
kind = "count"
columns = ["n"]
most = 1
[subject]
value = 1
"""
    (tmp_path / "communis.toml").write_text(manifest)
    (recording,) = Own(folder=str(tmp_path)).open().recordings
    x = recording.streams["acc"].values[:, 0]
    assert len(x) == pytest.approx(500, abs=10)
    assert np.isfinite(x).all()
    assert (np.diff(x) > 0).all()
    (tmp_path / "communis.toml").write_text(manifest.replace('batches = "first"\n', ""))
    with pytest.raises(CommunisError, match=r"most time stamps are equal.*files\.batches"):
        list(Own(folder=str(tmp_path)).open().recordings)
