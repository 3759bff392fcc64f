"""Files that are not what they should be are named, with the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from communis import CommunisError
from communis.core import memory
from communis.data.recordings.files import home, matching, numbers, reading, shaped
from communis.data.recordings.matlab import matlab


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file.txt"
    path.write_text(text)
    return path


def test_numbers_with_nan_and_any_delimiter(tmp_path: Path) -> None:
    assert numbers(written(tmp_path, "1,2\n3,NaN\n"), 2, ",").tolist()[0] == [1, 2]
    assert np.isnan(numbers(written(tmp_path, "1 2\n3 nan\n"), 2)[1, 1])
    assert numbers(written(tmp_path, "head\n1;2;3\n"), 3, ";", 1, (2, 0)).tolist() == [[3, 1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2\n3\n4,5\n", r"file\.txt, line 2: 1 columns; expected 2 numbers separated by commas"),
        ("1,2\n3,4,5\n", r"file\.txt, line 2: 3 columns"),
        ("1,2\n3,x\n", r"file\.txt, line 2: 'x' is not a number"),
        ("1;2\n3;4\n", r"file\.txt, line 1: 1 columns"),
        ("1\n2\n", r"line 1: 1 columns, expected 2"),
        ("", r"holds no numbers; the file is empty"),
        ("1,2\n3,", r"line 2: '' is not a number"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CommunisError, match=said):
        numbers(written(tmp_path, text), 2, ",")


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=r"gone\.txt: cannot be read"):
        numbers(tmp_path / "gone.txt", 2)
    (tmp_path / "bytes.txt").write_bytes(bytes(range(256)))
    with pytest.raises(CommunisError, match=r"bytes\.txt"):
        numbers(tmp_path / "bytes.txt", 2)


def test_matlab_files(tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    scipy.io.savemat(path, {"values": np.eye(3)})
    assert matlab(path, "values")["values"].shape == (3, 3)
    with pytest.raises(CommunisError, match=r"x\.mat: no variable other; there are values"):
        matlab(path, "other")
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(CommunisError, match=r"x\.mat: not a readable MATLAB file"):
        matlab(path, "values")
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(100))
    with pytest.raises(CommunisError, match=r"7\.3 \(HDF5\)"):
        matlab(path, "values")


def test_shapes(tmp_path: Path) -> None:
    assert shaped(tmp_path, np.zeros((4, 6)), None, 6).shape == (4, 6)
    for bad in (np.zeros((4, 5)), np.zeros((0, 6)), np.zeros(6)):
        with pytest.raises(CommunisError, match=r"expected \(any, 6\)"):
            shaped(tmp_path, bad, None, 6)


def test_the_top_folder_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "Top" / "S1").mkdir(parents=True)
    (tmp_path / "Top" / "S1" / "a.txt").touch()
    pattern = "Top/S*/a.txt"
    assert matching(tmp_path, pattern) == matching(tmp_path / "Top", pattern)
    with pytest.raises(CommunisError, match="no file matches"):
        matching(tmp_path / "Top" / "S1", pattern)


def test_where_data_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMMUNIS_DATA", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("COMMUNIS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert home() == tmp_path / "cache" / "communis"


def test_a_line_that_looks_like_a_comment_is_not_skipped(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=r"line 2: '#3' is not a number"):
        numbers(written(tmp_path, "1,2\n#3,4\n5,6\n"), 2, ",")


def test_marks_and_line_ends_of_other_systems_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"\xef\xbb\xbf1,2\r\n3,4\r\n")
    assert numbers(path, 2, ",").tolist() == [[1, 2], [3, 4]]


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    for bad in (np.array([["a"]]), np.array([[1 + 2j]]), np.array([[None]])):
        with pytest.raises(CommunisError, match="expected real numbers"):
            shaped(tmp_path, bad, None, 1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), r"^a\.bin: not a readable map \('x'\); it may have been cut short"),
        (RecursionError(), r"a\.bin: not a readable map \(RecursionError\)"),
        (ValueError("two\nlines \x1b[31m"), r"a\.bin: .*\(two lines \?\[31m\)"),
        (ValueError("x" * 9999), r"a\.bin: .*x{300}\.\.\.\)"),
        (MemoryError("9 GB"), r"a\.bin: takes more memory than there is \(9 GB\)"),
        (PermissionError(13, "Permission denied"), r"a\.bin: cannot be read: Permission denied$"),
        (OSError("Corrupt data"), r"a\.bin: not a readable map \(Corrupt data\)"),
        (CommunisError("a.bin, line 3: red"), r"^a\.bin, line 3: red$"),
        (CommunisError("a.bin: \x1b[31m\nred"), r"^a\.bin: \?\[31m red$"),
    ],
)
def test_whatever_a_reader_raises_names_the_file(error: Exception, said: str) -> None:
    with pytest.raises(CommunisError, match=said) as caught, reading("a.bin", "map"):
        raise error
    assert str(caught.value).isprintable()


def test_memory_is_weighed() -> None:
    assert memory.available() > 0
    memory.room("a.bin", 1, "it")
    for size in (1e20, float("inf"), float("nan")):
        with pytest.raises(CommunisError, match=r"a\.bin: it would take .* GB of memory"):
            memory.room("a.bin", size, "it")


def test_a_container_may_have_less_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LIMITS", tmp_path)
    before = memory.available()
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() > before / 2
    (tmp_path / "memory.max").write_text("5000\n")
    assert memory.available() == 4000
