"""Traces: looked up by time, saved and replayed; drawn from settings; read off NaN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from communis import CommunisError, Streams
from communis.core.arrays import Array
from communis.fleet.availability.draw import draw, natural
from communis.fleet.availability.dropout import Dropout
from communis.fleet.availability.presence import enough, presence
from communis.fleet.availability.suites import Suites
from communis.fleet.availability.timeline import durations, spacing, timeline
from communis.fleet.availability.trace import FORMAT, Trace
from tests.unit.small import windows

NONE, SEVERE = Dropout(), Dropout("markov", "pamap2-severe")


def trace(**changes: Any) -> Trace:
    """Two clients with a and b; b of client 1 misses 2-3 s and 5-9 s of its tests."""
    made: dict[str, Any] = {
        "modalities": ("a", "b"),
        "seconds": np.full((2, 3), 10.0),
        "client": np.array([1, 0, 1]),
        "modality": np.array([1, 0, 1]),
        "split": np.array([2, 0, 2]),
        "start": np.array([5.0, 0.0, 2.0]),
        "end": np.array([9.0, 10.0, 3.0]),
        "by_window": (False, True, False),
    }
    return Trace(**(made | changes))


def columns(one: Trace) -> list[Any]:
    names = ("client", "modality", "split", "start", "end", "seconds")
    return [one.modalities, one.by_window, *(getattr(one, name).tolist() for name in names)]


def test_an_interval_holds_its_beginning_and_not_its_end() -> None:
    times = np.array([[0.0, 2.0, 2.999], [3.0, 5.0, 9.0]])
    found = trace().missing(1, "b", 2, times)
    assert found.tolist() == [[False, True, True], [False, True, False]]
    assert not trace().missing(1, "b", 0, times).any()  # another split
    assert not trace().missing(1, "a", 2, times).any()
    assert trace().missing(0, "a", 0, times).all()
    assert trace().intervals(1, "b", 2).tolist() == [[2, 3], [5, 9]]


def test_shares_of_time() -> None:
    share = trace().share()
    assert share.shape == (2, 2, 3)
    assert share[1, 1].tolist() == [0, 0, 0.5]
    assert share[0].tolist() == [[1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(("client", "modality"), [(2, "a"), (-1, "a"), (0, "c")])
def test_whom_the_trace_does_not_know(client: int, modality: str) -> None:
    with pytest.raises(CommunisError, match="the trace is of 2 clients with a, b"):
        trace().missing(client, modality, 0, np.zeros(1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"end": np.array([9.0, 10.0, 2.0])}, "does not end after"),
        ({"start": np.array([5.0, np.nan, 2.0])}, "does not end after"),
        ({"end": np.array([9.0, np.inf, 3.0])}, "not finite"),
        ({"end": np.array([9.0, 10.0, 5.5])}, "overlap"),
        ({"client": np.array([1, 0, 2])}, "client is not one of 0 to 1"),
        ({"modality": np.array([1, -1, 1])}, "modality"),
        ({"split": np.array([2, 3, 2])}, "split"),
        ({"split": np.array([2, 2])}, "split"),
    ],
)
def test_unsound_traces_are_refused(changes: dict[str, Array], words: str) -> None:
    with pytest.raises(CommunisError, match=words):
        trace(**changes)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    trace().save(path)
    assert columns(Trace.load(path)) == columns(trace())
    assert [p.name for p in tmp_path.iterdir()] == ["trace.parquet"]
    nothing = draw([NONE] * 3, [("a",)], np.ones((1, 3)), {"a": 1.0}, Streams(0))
    nothing.save(path)
    assert columns(Trace.load(path)) == columns(nothing)
    assert not Trace.load(path).missing(0, "a", 0, np.arange(3)).any()


def test_files_that_are_no_trace_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    with pytest.raises(CommunisError, match=r"trace\.parquet: there is no such trace"):
        Trace.load(path)
    trace().save(path)
    good = path.read_bytes()
    for bad in (b"", b"no parquet at all", good[: len(good) // 2]):
        path.write_bytes(bad)
        with pytest.raises(CommunisError, match=r"trace\.parquet: cannot be read"):
            Trace.load(path)
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(
        CommunisError, match=r"trace\.parquet: not a trace that was saved by communis"
    ):
        Trace.load(path)


def changed(path: Path, about: dict[str, Any], **values: Any) -> None:
    """Writes a trace whose file was meddled with."""
    trace().save(path)
    table = pq.read_table(path)
    known = json.loads(table.schema.metadata[FORMAT])
    data = {name: values.get(name, table[name]) for name in table.column_names}
    pq.write_table(
        pa.table(data).replace_schema_metadata({FORMAT: json.dumps(known | about)}), path
    )


@pytest.mark.parametrize(
    ("about", "values", "words"),
    [
        ({"version": 2}, {}, "its version is 2, expected 1"),
        ({"seconds": "long"}, {}, "not a valid trace"),
        ({"seconds": [[1, 2]]}, {}, "not a valid trace"),
        ({}, {"start": [1.0, None, 2.0]}, "column start has empty cells"),
        ({}, {"client": ["x", "y", "z"]}, "column client is string"),
        ({}, {"modality": ["a", "b", "gyro"]}, "unknown modality gyro; expected a, b"),
        ({}, {"split": [0, 1, 2]}, "column split is int64"),
        ({}, {"end": [0.0, 0.0, 0.0]}, "does not end after"),
    ],
)
def test_a_file_that_was_meddled_with_is_refused(
    tmp_path: Path, about: dict[str, Any], values: dict[str, Any], words: str
) -> None:
    changed(tmp_path / "t.parquet", about, **values)
    with pytest.raises(CommunisError, match=rf"t\.parquet: .*{words}"):
        Trace.load(tmp_path / "t.parquet")


def test_a_drawn_trace_has_the_chains_shares_and_bursts() -> None:
    train = Dropout("markov", operating=30, missing=10)
    seconds = np.full((20, 3), 8_000.0)
    suites = [("acc", "hr")] * 20
    drawn = draw([train, SEVERE, NONE], suites, seconds, {"acc": 50.0, "hr": 1.0}, Streams(0))
    share = drawn.share().mean(0)
    assert share[:, 0] == pytest.approx(0.25, abs=0.01)
    assert share[:, 1] == pytest.approx(0.5, abs=0.05)
    assert not share[:, 2].any()
    here = (drawn.split == 0) & (drawn.start > 0) & (drawn.end < 8_000)
    assert here.sum() > 2_000 * 3
    assert (drawn.end - drawn.start)[here].mean() == pytest.approx(10, rel=0.05)


def test_samples_see_the_chain_sample_by_sample() -> None:
    """Edges lie between samples, so times with rounding errors meet the same state."""
    seconds = np.full((3, 3), 50.0)
    drawn = draw([Dropout("markov", operating=0.1, missing=0.05)] * 3, [("a",)] * 3, seconds,
                 {"a": 64.0}, Streams(1))  # fmt: skip
    times = np.arange(3_200) / 64
    straight = drawn.missing(2, "a", 0, times)
    assert 0.2 < straight.mean() < 0.5
    for noise in (-1e-9, 1e-9):
        assert (drawn.missing(2, "a", 0, times + noise) == straight).all()
    steps = (drawn.end - drawn.start)[(drawn.start > 0) & (drawn.end < 50)] * 64
    assert steps == pytest.approx(np.round(steps), abs=1e-6)


def test_who_owns_what_does_not_change_the_others_fate() -> None:
    seconds, rates = np.full((4, 3), 900.0), {"a": 10.0, "b": 10.0}
    both = draw([SEVERE] * 3, [("a", "b")] * 4, seconds, rates, Streams(2))
    some = draw([SEVERE] * 3, [("a",), ("b",), ("a", "b"), ("b",)], seconds, rates, Streams(2))
    for client, m in ((0, "a"), (1, "b"), (2, "a"), (2, "b")):
        assert (both.intervals(client, m, 1) == some.intervals(client, m, 1)).all()
    assert not len(some.intervals(0, "b", 1))
    assert len(both.intervals(0, "b", 1))
    other = draw([SEVERE] * 3, [("a", "b")] * 4, seconds, rates, Streams(3))
    assert columns(other) != columns(both)
    a = both.intervals(0, "a", 0).tolist()
    assert a != both.intervals(0, "a", 2).tolist()  # splits have streams of their own


def test_iid_windows_are_independent_with_the_rate_asked_for() -> None:
    n = 40_000
    data = windows((0,) * n, channels={"a": 1}, steps=4, seconds=2.0)
    half = windows((0,) * n, channels={"a": 1}, steps=4, seconds=2.0, start=np.arange(n) * 1.0)
    zeros = np.zeros(n, np.int64)
    for here in (data, half):  # side by side, and overlapping by half
        place = timeline(here, zeros)
        drawn = draw([Dropout("iid", rate=0.3)] * 3, [("a",)], durations(here, zeros, place, 1),
                     {"a": 2.0}, Streams(0), spacing(here, zeros, place))  # fmt: skip
        there = presence(drawn, here, place, slice(None), 0, "a")
        assert (there == there[:, :1]).all()  # windows come as a whole
        gone = ~there[:, 0]
        assert gone.mean() == pytest.approx(0.3, abs=0.01)
        assert (gone[1:] & gone[:-1]).mean() == pytest.approx(0.09, abs=0.006)
    with pytest.raises(CommunisError, match="needs the time between windows"):
        draw([Dropout("iid", rate=0.3)] * 3, [("a",)], np.ones((1, 3)), {"a": 1.0}, Streams(0))


def test_bursts_shorter_than_a_sample_are_refused() -> None:
    short = Dropout("markov", operating=9, missing=0.5)
    with pytest.raises(CommunisError, match=r"bursts of 0.5 s.*one sample of hr at 1 Hz"):
        draw([short] * 3, [("hr",)], np.ones((1, 3)), {"acc": 50.0, "hr": 1.0}, Streams(0))


def test_presence_by_hand() -> None:
    """Windows of 4 s with 4 samples; b misses 2-3 s and 5-9 s of tests."""
    inputs = {"a": np.zeros((3, 1, 4), np.float32), "b": np.zeros((3, 1, 4), np.float32)}
    data = windows((2, 2, 0), inputs=inputs, seconds=4.0, start=np.array([0.0, 4.0, 0.0]))
    place = data.start
    there = presence(trace(), data, place, slice(None), 1, "b")
    assert there.tolist() == [[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert enough(there, 0.5).tolist() == [True, False, True]
    assert enough(there, 0.75).tolist() == [True, False, True]
    assert enough(there, 1.0).tolist() == [False, False, True]
    assert enough(there, np.array([1.0, 0.25, 0.5])).tolist() == [False, True, True]
    still = windows((2, 2, 0), inputs=inputs, seconds=4.0, start=place, kinds={"b": "points"})
    found = presence(trace(), still, place, np.array([1, 0]), 1, "b")  # centres at 6 s and 2 s
    assert found.tolist() == [False, False]
    assert enough(found, 0.5).tolist() == [False, False]
    whole = presence(trace(by_window=(False, False, True)), data, place, slice(None), 1, "b")
    assert whole.tolist() == [[0] * 4, [0] * 4, [1] * 4]


def test_timelines_of_several_owners_are_laid_end_to_end() -> None:
    start = np.array([0.0, 5.0, 1.0, 0.0, 7.0, 3.0])
    data = windows((0, 1, 0, 2, 0, -1), owner=(8, 8, 3, 3, 8, 3), start=start, seconds=2.0)
    one_each = np.array([1, 1, 0, 0, 1, -1])
    assert timeline(data, one_each).tolist() == start.tolist()
    # Client 0 has owner 3 (0-3 s), then owner 8 (0-9 s); client 1 has only a later part of owner 8.
    mixed = np.array([0, 1, 0, 0, 0, -1])
    place = timeline(data, mixed)
    assert place.tolist() == [3.0, 5.0, 1.0, 0.0, 10.0, 3.0]
    assert durations(data, mixed, place, 3).tolist() == [[12, 0, 2], [0, 7, 0], [0, 0, 0]]
    assert spacing(data, mixed, place) == 1.0
    assert spacing(data, one_each, timeline(data, one_each)) == 1.0
    assert spacing(data, np.arange(6), start) == 2.0  # one window each


def test_no_window_is_laid_over_one_of_another_owner() -> None:
    rng = np.random.default_rng(0)
    n = 5_000
    owner, client_of = rng.integers(0, 9, n), rng.integers(-1, 12, n)
    data = windows(
        (0,) * n, owner=tuple(owner), channels={"a": 1}, steps=1
    )  # start: in a row per owner
    place = timeline(data, client_of)
    order = np.lexsort((place, client_of))
    same = np.diff(client_of[order]) == 0
    assert (np.diff(place[order])[same] >= 1.0).all()
    for c in range(12):
        for o in range(9):
            rows = (client_of == c) & (owner == o)
            assert len(np.unique(place[rows] - data.start[rows])) == 1


def test_nan_in_the_data_becomes_a_trace() -> None:
    """Overlapping windows see the same gap; a sample counts as missing if all channels are NaN."""
    a = np.ones((4, 2, 4), np.float32)  # windows of 4 s every 2 s
    a[0, :, 3], a[1, :, 1:3], a[2, :, 0], a[3, 0] = np.nan, np.nan, np.nan, np.nan
    b = np.ones((4, 3, 5), np.float32)
    b[1] = np.nan
    data = windows((0, 0, 0, 2), inputs={"a": a, "b": b}, seconds=4.0, kinds={"b": "points"},
                   start=np.array([0.0, 2.0, 4.0, 6.0]),
                   present={"a": [True, True, True, False]})  # fmt: skip
    zeros = np.zeros(4, np.int64)
    found = natural(data, zeros, data.start, durations(data, zeros, data.start, 1))
    assert found.intervals(0, "a", 0).tolist() == [[3, 5]]
    assert found.intervals(0, "b", 0).tolist() == [[2, 6]]
    assert found.intervals(0, "a", 2).tolist() == [[6, 10]]
    assert found.share()[0, 0].tolist() == [2 / 8, 0, 4 / 10]
    whole = windows((0,) * 4)
    nothing = natural(whole, zeros, whole.start, np.ones((1, 3)))
    assert not nothing.share().any()


def test_natural_gaps_replayed_give_the_same_gaps() -> None:
    rng = np.random.default_rng(1)
    n = 60
    a = rng.standard_normal((n, 2, 8)).astype(np.float32)
    gone = np.repeat(rng.random(n * 2) < 0.3, 4).reshape(n, 8)
    a[np.repeat(gone[:, None], 2, 1)] = np.nan
    split = tuple(np.repeat([0, 1, 2], 20))
    data = windows(split, owner=tuple(np.arange(n) % 3), inputs={"a": a}, seconds=1.0)
    place = timeline(data, data.owner)
    found = natural(data, data.owner, place, durations(data, data.owner, place, 3))
    for client in range(3):
        rows = np.flatnonzero(data.owner == client)
        assert (presence(found, data, place, rows, client, "a") == ~gone[rows]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "pi", "share"), [("severe", 0.5, 0.1663), ("moderate", 0.25, 0.01255)]
)
def test_windows_without_any_sensor_are_as_many_as_the_laws_say(
    level: Any, pi: float, share: float
) -> None:
    """Suites, chains, timelines and the half-of-its-samples rule together: a window lacks all of n
    owned sensors with probability pi^n. `share` is its mean over the Beta-Bernoulli law, by
    quadrature. Windows lie 500 s apart, or they would share bursts and tell little."""
    clients, each, names = 400, 150, [f"m{i}" for i in range(6)]
    many = Suites(level).draw(50_000, names, Streams(0))
    assert np.mean([pi ** len(suite) for suite in many]) == pytest.approx(share, rel=0.05)
    owned = many[:clients]
    inputs = {m: np.zeros((clients * each, 1, 4), np.float32) for m in names}
    owner, start = np.divmod(np.arange(clients * each), each)
    data = windows((0,) * len(owner), owner=tuple(owner), inputs=inputs, seconds=2.0,
                   start=start * 500.0)  # fmt: skip
    place = timeline(data, owner)
    seconds = durations(data, owner, place, clients)
    dropout = Dropout("markov", f"pamap2-{level}")  # type: ignore[arg-type]
    drawn = draw([dropout, NONE, NONE], owned, seconds, dict.fromkeys(names, 2.0), Streams(0))
    none = 0
    for client, suite in enumerate(owned):
        rows = slice(client * each, (client + 1) * each)
        there = [enough(presence(drawn, data, place, rows, client, m), 0.5) for m in suite]
        none += int((~np.any(there, axis=0)).sum())
    expected = np.mean([pi ** len(suite) for suite in owned])
    assert none / len(owner) == pytest.approx(expected, rel=0.15)
