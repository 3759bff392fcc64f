"""What a run's folder keeps of missing sensors: drawn, natural, or nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from communis import Fleet
from communis.core.tasks import Classification
from communis.data.recordings.windows import Windows
from communis.fleet.availability.outages import Outages
from communis.fleet.availability.trace import Trace
from communis.fleet.clients import FleetClients
from communis.fleet.gaps import kept_trace, trace_of
from communis.methods.fedavg import FedAvg
from communis.run.folder import RunFolder


def windows(seconds: float = 2.0) -> Windows:
    """Two owners with three windows of 2 s each; no times given."""
    inputs = {m: np.ones((6, 1, 8), np.float32) for m in ("acc", "gyro")}
    return Windows(
        inputs=inputs,
        target=np.array([0, 1] * 3),
        owner=np.repeat([0, 1], 3),
        split=np.array([0, 0, 2] * 2, np.int8),
        task=Classification(2),
        seconds=seconds,
    )


def lacking(seconds: float = 2.0, window: int = 1) -> Windows:
    """The same without the gyroscope in one window."""
    whole = windows(seconds)
    gyro = whole.inputs["gyro"].copy()
    gyro[window] = np.nan
    return replace(whole, inputs={**whole.inputs, "gyro": gyro}, present={})


def test_natural_gaps_are_kept(tmp_path: Path) -> None:
    fleet = Fleet.of(lacking())
    folder = RunFolder(tmp_path)
    folder.describe("", FleetClients(fleet, FedAvg()), "an experiment", {})
    found = Trace.load(tmp_path / "availability.parquet")
    assert found.intervals(0, "gyro", 0).tolist() == [[2.0, 4.0]]
    assert len(found.start) == 1
    assert found.share()[0, 1, 0] == 0.5


def test_nothing_is_kept_where_nothing_is_missing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.describe("", FleetClients(Fleet.of(windows()), FedAvg()), "an experiment", {})
    assert (tmp_path / "fleet.json").exists()
    assert not (tmp_path / "availability.parquet").exists()


def test_a_sensor_that_nobody_owns_is_not_missing() -> None:
    fleet = Fleet.of(lacking(), suites=[("acc",), ("acc", "gyro")])
    assert kept_trace(fleet) is None
    assert not len(trace_of(fleet).start)
    assert kept_trace(Fleet.of(lacking(window=4), suites=fleet.suites)) is not None


def test_windows_without_a_duration_have_no_trace() -> None:
    assert kept_trace(Fleet.of(lacking(seconds=0.0))) is None


def test_windows_of_nobody_do_not_count() -> None:
    data = lacking()
    assert kept_trace(Fleet.of(data, client_of=np.array([0, -1, 0, 1, 1, 1]))) is None
    unused = data.split.copy()
    unused[1] = -1
    assert kept_trace(Fleet.of(replace(data, split=unused))) is None


def test_what_was_drawn_is_kept_as_it_is() -> None:
    none = np.zeros(0, np.int64)
    drawn = Trace(("acc", "gyro"), np.full((2, 3), 6.0), none, none, none, none * 1.0, none * 1.0)
    fleet = Fleet.of(lacking(), outages=Outages(np.zeros(6), drawn))
    assert kept_trace(fleet) is drawn
