"""Files of strangers: a damaged one is named and harms nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from communis import CommunisError
from communis.recordings import matlab as module
from communis.recordings.matlab import matlab

CHANGES = 150  # of single bytes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.mat"
    savemat(path, {"x": np.arange(12.0).reshape(3, 4), "name": "walk", "n": {"a": 1}})
    return path


def test_what_is_read_is_what_was_written(file: Path) -> None:
    found = matlab(file, "x", "name")
    assert found["x"].tolist() == np.arange(12.0).reshape(3, 4).tolist()
    assert found["name"].item() == "walk"


def test_a_file_that_crashes_its_reader_is_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As scipy does for some damaged files; the next file is read by a new process."""
    child = tmp_path / "child.py"
    code = module.CHILD.read_text().replace(
        "answer = True, loadmat(file)",
        "name = json.loads(line); answer = True, loadmat(file)\n"
        "                if 'bad' in name: import os; os.kill(os.getpid(), 11)",
    )
    child.write_text(code)
    monkeypatch.setattr(module, "CHILD", child)
    monkeypatch.setattr(module, "_reader", module._Reader())
    bad = tmp_path / "bad.mat"
    bad.write_bytes(file.read_bytes())
    with pytest.raises(CommunisError, match=r"bad\.mat: not a readable MATLAB file .it crashed"):
        matlab(bad)
    assert "x" in matlab(file)
    module._reader.close()


def test_changed_bytes_are_read_or_refused(file: Path) -> None:
    rng = np.random.default_rng(0)
    whole = file.read_bytes()
    refused = 0
    for _ in range(CHANGES):
        data = bytearray(whole)
        data[int(rng.integers(128, len(data)))] = int(rng.integers(256))
        file.write_bytes(bytes(data))
        try:
            matlab(file)
        except CommunisError:
            refused += 1
    assert 0 < refused < CHANGES
