"""Windows: how recordings are cut, what is refused, and how memory maps travel."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Windows
from communis.data.recording import Array, Dataset, Recording
from communis.data.windows import TEST, TRAIN, VAL, cut
from communis.tasks import Classification
from tests.unit.small import windows


def recording(
    steps: int, rate: float = 10.0, label: int = 0, subject: int = 0, start: float = 0.0
) -> Recording:
    """Two channels that count: value and its negative."""
    ramp = start + np.arange(steps, dtype=np.float64)
    return Recording({"a": np.stack([ramp, -ramp], 1)}, {"a": rate}, label, subject)


def dataset(*recordings: Recording, labels: tuple[str, ...] = ("x", "y")) -> Dataset:
    return Dataset(recordings, labels)


def test_windows_follow_each_other_without_overlap_or_gap() -> None:
    data = cut(dataset(recording(57)), 1.0)
    assert data.inputs["a"].shape == (5, 2, 10)
    assert data.inputs["a"].dtype == np.float32
    assert data.inputs["a"][:, 0].ravel().tolist() == list(range(50))  # the rest of 7 is left out
    assert data.inputs["a"][:, 1].ravel().tolist() == [-v for v in range(50)]


def test_labels_subjects_and_counts_belong_to_their_recording() -> None:
    data = cut(
        dataset(
            recording(35, label=1, subject=8),
            recording(9, label=1, subject=9),  # too short for one window: contributes none
            recording(20, label=0, subject=2, start=1000),
        ),
        1.0,
    )
    assert data.target.tolist() == [1, 1, 1, 0, 0]
    assert data.owner.tolist() == [8, 8, 8, 2, 2]
    assert data.inputs["a"][3, 0, 0] == 1000
    assert data.task == Classification(2)
    assert data.labels == ("x", "y")


@pytest.mark.parametrize(
    ("count", "shares", "expected"),
    [
        (10, (0.6, 0.2, 0.2), (6, 2, 2)),
        (10, (6, 2, 2), (6, 2, 2)),
        (10, (1.0, 0.0, 0.0), (10, 0, 0)),
        (10, (0.0, 0.0, 1.0), (0, 0, 10)),
        (10, (0.5, 0.0, 0.5), (5, 0, 5)),
        (1, (0.6, 0.2, 0.2), (1, 0, 0)),
        (5, (0.6, 0.2, 0.2), (3, 1, 1)),
    ],
)
def test_the_first_part_trains_the_next_validates_the_last_tests(
    count: int, shares: tuple[float, float, float], expected: tuple[int, int, int]
) -> None:
    data = cut(dataset(recording(10 * count)), 1.0, shares)
    assert data.split.dtype == np.int8
    assert tuple(int((data.split == s).sum()) for s in (TRAIN, VAL, TEST)) == expected
    assert (np.diff(data.split) >= 0).all()


def test_every_recording_is_split_by_itself() -> None:
    data = cut(dataset(recording(50), recording(50, subject=1)), 1.0)
    assert data.split.tolist() == [0, 0, 0, 1, 2] * 2


def test_modalities_at_different_rates_cover_the_same_time() -> None:
    time_a, time_b = np.arange(400) / 40.0, np.arange(104) / 10.0  # 10 s and 10.4 s
    both = Recording(
        {"a": time_a[:, None], "b": time_b[:, None]}, {"a": 40.0, "b": 10.0}, label=0, subject=0
    )
    data = cut(dataset(both), 2.0)
    assert data.inputs["a"].shape == (5, 1, 80)
    assert data.inputs["b"].shape == (5, 1, 20)
    assert (
        data.inputs["a"][:, 0, 0].tolist() == data.inputs["b"][:, 0, 0].tolist() == [0, 2, 4, 6, 8]
    )


def test_the_shortest_stream_ends_the_recording() -> None:
    streams = {"a": np.zeros((100, 1)), "b": np.zeros((70, 1))}
    data = cut(dataset(Recording(streams, {"a": 10.0, "b": 10.0}, 0, 0)), 1.0)
    assert len(data) == 7


@pytest.mark.parametrize(("count", "seconds", "rate"), [(3, 2.56, 50.0), (10, 0.1, 100.0)])
def test_a_recording_of_whole_windows_gives_all_of_them(
    count: int, seconds: float, rate: float
) -> None:
    assert len(cut(dataset(recording(round(count * seconds * rate), rate)), seconds)) == count


def test_a_window_that_is_no_whole_number_of_steps_can_be_cut() -> None:
    assert len(cut(dataset(recording(300, 30.0)), 0.25)) in (37, 40)  # 7.5 steps


def test_modalities_stay_aligned_when_a_window_is_no_whole_number_of_steps() -> None:
    """64 Hz and 100 Hz (a wrist-worn watch and a belt): 2.56 s are 163.84 and 256 steps."""
    seconds, streams = 300, {}
    for m, rate in (("a", 64.0), ("b", 100.0)):
        streams[m] = (np.arange(int(seconds * rate)) / rate)[:, None]
    data = cut(dataset(Recording(streams, {"a": 64.0, "b": 100.0}, 0, 0)), 2.56)
    apart = np.abs(data.inputs["a"][:, 0, 0] - data.inputs["b"][:, 0, 0])
    assert apart.max() <= 1 / 64


def test_a_recording_that_lacks_a_modality_is_cut_or_refused_by_name() -> None:
    other = Recording({"b": np.zeros((100, 1))}, {"b": 10.0}, 0, 1)
    try:
        data = cut(dataset(recording(100), other), 1.0)
    except CommunisError:
        return
    assert not data.present["a"][10:].any()


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.01])
def test_a_window_without_a_single_step_is_refused(seconds: float) -> None:
    with pytest.raises(CommunisError):
        cut(dataset(recording(100)), seconds)


def test_a_window_longer_than_every_recording_is_refused_with_the_longest() -> None:
    with pytest.raises(CommunisError, match=r"window of 20\.0 s; the longest has 5\.7 s"):
        cut(dataset(recording(57), recording(30)), 20.0)


def test_no_modality_is_refused() -> None:
    with pytest.raises(CommunisError, match="at least one modality"):
        windows(inputs={})


@pytest.mark.parametrize("field", ["target", "owner", "split", "inputs", "present"])
def test_unequal_lengths_are_refused_with_all_of_them(field: str) -> None:
    full: dict[str, Any] = dict(vars(windows((0,) * 6)))
    full["present"] = {"b": np.ones(6, bool)}
    short = full[field]
    if isinstance(short, dict):
        full[field] = {**short, "b": short["b"][:4]}
    else:
        full[field] = short[:4]
    with pytest.raises(CommunisError, match=r"unequal number: .*: 4"):
        Windows(**full)


def test_no_windows_at_all_are_refused() -> None:
    with pytest.raises(CommunisError, match="no windows"):
        windows(())


@pytest.mark.parametrize("bad", [-1, 3])
def test_a_split_that_is_none_is_refused(bad: int) -> None:
    with pytest.raises(CommunisError, match="split must be 0"):
        windows((0, 1, 2, bad))


@pytest.mark.parametrize("bad", [-1, 3])
def test_a_target_outside_the_classes_is_refused_with_the_range(bad: int) -> None:
    target = np.array([1, bad, 2])
    found = f"{min(bad, 1)} and {max(bad, 2)}"
    with pytest.raises(CommunisError, match=f"targets lie between {found}.*classes 0 to 2"):
        windows((0, 0, 0), target=target)


@pytest.mark.parametrize("name", ["left arm", "a.b", "a/b", "1st", "", "a-b"])
def test_a_modality_that_would_break_paths_is_refused_by_name(name: str) -> None:
    with pytest.raises(CommunisError, match=r"must be identifiers .* got"):
        windows(channels={"a": 1, name: 1})


@pytest.mark.parametrize("name", ["type", "pop", "half"])
def test_a_modality_that_torch_cannot_name_a_module_is_refused(name: str) -> None:
    with pytest.raises(CommunisError):
        windows(channels={"a": 1, name: 1})


def test_modalities_and_channels_are_sorted() -> None:
    data = windows(channels={"c": 3, "a": 1, "b": 2})
    assert data.modalities == ("a", "b", "c")
    assert list(data.channels.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert len(data) == 10


@pytest.fixture
def mapped(tmp_path: Path) -> np.memmap[Any, Any]:
    """50 MB on disk, (1000, 10, 1250); mostly a hole, with numbers here and there."""
    path = tmp_path / "x.npy"
    made = np.lib.format.open_memmap(path, "w+", np.float32, (1000, 10, 1250))
    made[::97] = np.random.default_rng(0).standard_normal((11, 10, 1250), dtype=np.float32)
    made.flush()
    opened = np.load(path, mmap_mode="r")
    assert isinstance(opened, np.memmap)
    assert opened.nbytes == 50_000_000
    return opened


def over(**inputs: Array) -> Windows:
    n = len(next(iter(inputs.values())))
    zeros = np.zeros(n, np.int64)
    return Windows(inputs, zeros, zeros, np.zeros(n, np.int8), Classification(2))


VIEWS = {
    "whole": lambda x: {"a": x},
    "channels": lambda x: {"a": x[:, :3], "b": x[:, 3:]},
    "strides": lambda x: {"a": x[:, ::2, 5::3], "b": x[:, 1:4, ::-1]},
    "rows": lambda x: {"a": x[97:900:97], "b": x[970:97:-97]},
    "axes": lambda x: {"a": x.transpose(0, 2, 1), "b": x.reshape(1000, 5, 2500)},
    "plain array type": lambda x: {"a": np.asarray(x)[:, 2:4]},
}


@pytest.mark.parametrize("name", VIEWS)
def test_memory_maps_are_pickled_as_where_they_lie(name: str, mapped: np.memmap[Any, Any]) -> None:
    data = over(**VIEWS[name](mapped))
    sent = pickle.dumps(data)
    assert len(sent) < 100_000
    received = pickle.loads(sent)
    for m in data.inputs:
        assert received.inputs[m].shape == data.inputs[m].shape
        assert received.inputs[m].strides == data.inputs[m].strides
        assert np.array_equal(received.inputs[m][::97], data.inputs[m][::97])
        assert np.abs(np.asarray(received.inputs[m][::97])).max() > 1
    # On from there, as a worker that starts workers would.
    again = pickle.dumps(received)
    assert len(again) < 100_000
    for m in data.inputs:
        assert np.array_equal(pickle.loads(again).inputs[m][::97], data.inputs[m][::97])


def test_a_raw_map_with_an_offset_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "raw.bin"
    values = np.arange(1, 61, dtype=np.float32).reshape(10, 2, 3)
    path.write_bytes(b"12345678" + values.tobytes())
    opened = np.memmap(path, np.float32, "r", offset=8, shape=(10, 2, 3))
    received = pickle.loads(pickle.dumps(over(a=opened, b=opened[:, 1:])))
    assert np.array_equal(received.inputs["a"], values)
    assert np.array_equal(received.inputs["b"], values[:, 1:])


def test_a_map_of_another_type_keeps_it(tmp_path: Path) -> None:
    np.save(tmp_path / "h.npy", np.arange(24, dtype=np.float16).reshape(4, 2, 3))
    opened = np.load(tmp_path / "h.npy", mmap_mode="r")
    received = pickle.loads(pickle.dumps(over(a=opened)))
    assert received.inputs["a"].dtype == np.float16
    assert np.array_equal(received.inputs["a"], opened)


def test_arrays_in_memory_are_pickled_whole() -> None:
    data = windows()
    received = pickle.loads(pickle.dumps(data))
    for m in data.inputs:
        assert np.array_equal(received.inputs[m], data.inputs[m])
    assert np.array_equal(received.target, data.target)
    assert received.task == data.task
    # Pickling does not change the original.
    assert all(isinstance(values, np.ndarray) for values in data.inputs.values())


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_releasing_keeps_values_readable(tmp_path: Path, mode: Any) -> None:
    values = np.random.default_rng(1).standard_normal((100, 2, 50), dtype=np.float32)
    np.save(tmp_path / "x.npy", values)
    opened = np.load(tmp_path / "x.npy", mmap_mode=mode)
    if mode != "r":
        opened[3] = values[3] = 7.0  # a change in memory must survive too
    data = over(a=opened, b=opened[:, 1:])
    for _ in range(2):
        assert np.array_equal(data.inputs["a"], values)
        data.release()
    assert np.array_equal(data.inputs["a"], values)
    assert np.array_equal(data.inputs["b"], values[:, 1:])


def test_releasing_arrays_in_memory_does_nothing() -> None:
    data = windows()
    before = data.inputs["a"].copy()
    data.release()
    assert np.array_equal(data.inputs["a"], before)


def test_release_after_pickling_keeps_values_readable(mapped: np.memmap[Any, Any]) -> None:
    received = pickle.loads(pickle.dumps(over(a=mapped[:, :2])))
    before = np.array(received.inputs["a"][::97])
    received.release()
    assert np.array_equal(received.inputs["a"][::97], before)
