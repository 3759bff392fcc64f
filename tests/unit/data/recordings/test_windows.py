"""Windows: what is refused, what is filled in, and how memory maps travel."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Windows
from communis.core.arrays import Array
from communis.core.tasks import Classification
from tests.unit.small import windows


def test_no_modality_is_refused() -> None:
    with pytest.raises(CommunisError, match="at least one modality"):
        windows(inputs={})


@pytest.mark.parametrize("field", ["target", "owner", "split", "start", "inputs", "present"])
def test_unequal_lengths_are_refused_with_all_of_them(field: str) -> None:
    full: dict[str, Any] = dict(vars(windows((0,) * 6)))
    full["present"] = {"b": np.ones(6, bool)}
    short = full[field]
    if isinstance(short, dict):
        full[field] = {**short, "b": short["b"][:4]}
    else:
        full[field] = short[:4]
    with pytest.raises(CommunisError, match=r"different lengths: .*: 4"):
        Windows(**full)


def test_what_is_not_given_is_filled_in() -> None:
    data = windows((0,) * 5, owner=(7, 3, 7, 7, 3), seconds=2.0)
    assert data.start.tolist() == [0, 0, 2, 4, 2]  # each owner's windows in a row
    assert data.recording.tolist() == data.owner.tolist()
    assert data.scene.tolist() == data.session.tolist() == data.trial.tolist() == [0] * 5


def test_no_windows_at_all_are_refused() -> None:
    with pytest.raises(CommunisError, match="no windows"):
        windows(())


@pytest.mark.parametrize("bad", [-2, 3])
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


def test_windows_of_nothing_but_nan_are_flagged_absent() -> None:
    plain = windows()
    inputs = {m: np.array(x) for m, x in plain.inputs.items()}
    inputs["a"][2:4] = np.nan
    inputs["b"][5, 0, 3] = np.nan  # one value of many
    found = windows(inputs=inputs, present={"a": np.arange(10) != 7})
    assert np.flatnonzero(~found.present["a"]).tolist() == [2, 3, 7]
    assert "b" not in found.present
    assert plain.present == {}
