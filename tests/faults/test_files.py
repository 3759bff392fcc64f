"""Files of strangers: a damaged one is named and harms nothing."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from communis import CommunisError
from communis.core import memory
from communis.data.own.guess import write_manifest
from communis.data.recordings import apart
from communis.data.recordings.files import array, numbers
from communis.data.recordings.matlab import matlab
from communis.data.recordings.png import grey16
from communis.data.sources.mmfi import Mmfi
from communis.data.sources.own import Own
from communis.data.sources.realworld import Realworld
from communis.data.sources.reli11d import Reli11d
from communis.data.sources.stress_predict import StressPredict, sheet
from communis.data.sources.umafall import Umafall
from communis.data.sources.wifi_csi import WifiCsi
from communis.fleet.device.profiles import load
from tests.faults.hostile_files import (
    MANIFEST,
    Case,
    archives,
    corpus,
    escaped,
    gzipped_header_bomb,
    mutate,
    read_by,
)
from tests.unit.data.sources import made_mmfi, made_realworld, made_stress_predict, made_umafall

SOME = 1_000  # damaged files
MANY = 3_000
HARMLESS = {  # archives that look hostile, and what comes out of them is what is in them
    "twice.zip",
    "twice.tar",
    "a zip called.tar.gz",
    "an inner archive without a name.zip",
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Case]]:
    pytest.importorskip("pyedflib")
    yield corpus(tmp_path_factory.mktemp("corpus"))
    apart.matlab_files.close()
    apart.pickles.close()


def test_the_files_are_good_before_they_are_damaged(cases: list[Case]) -> None:
    for name, path, read in cases:
        if name.startswith("watch"):
            with pytest.raises(CommunisError, match="sha256"):
                read(path)
        else:
            assert read(path) is not None


def refusal(read: Callable[[Path], object], path: Path) -> str:
    """What a reader says of a file; nothing if it reads it."""
    try:
        read(path)
    except CommunisError as error:
        return str(error)
    return ""


def named(text: str, path: Path) -> bool:
    """Whether a refusal is one line that a terminal can show, with the file, or one beside it."""
    return text.isprintable() and (str(path.parents[1]) in text or path.name in text)


def check(case: Case, seed: int) -> None:
    """A damaged file is read, or refused in one line that names a file."""
    name, path, read = case
    good = path.read_bytes()
    path.write_bytes(mutate(good, np.random.default_rng(seed)))
    try:
        text = refusal(read, path)
    finally:
        path.write_bytes(good)
    assert not text or named(text, path), f"{name}, seed {seed}: {text}"


SEEDS = st.integers(0, 2**32 - 1)
NUMBERS = st.integers(0, 10_000)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.slow
@settings(
    max_examples=SOME, deadline=None, derandomize=True, database=None, suppress_health_check=QUIET
)
@given(number=NUMBERS, seed=SEEDS)
def test_damaged_files_are_read_or_named(cases: list[Case], number: int, seed: int) -> None:
    check(cases[number % len(cases)], seed)


@pytest.mark.slow
def test_many_damaged_files_are_read_or_named(cases: list[Case]) -> None:
    for seed in range(MANY):
        check(cases[seed % len(cases)], seed)


# Sizes that a file announces


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1 << 20)


def npy(path: Path, shape: tuple[int, ...], kind: str = "<f8") -> Path:
    """A header that announces an array, and eight bytes of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        header = {"descr": kind, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(8))
    return path


def own(folder: Path, manifest: str) -> Callable[[Path], object]:
    (folder / "communis.toml").write_text(manifest, "utf-8")
    return read_by(Own(folder=str(folder)))


def test_an_array_larger_than_its_file_is_not_built(tmp_path: Path) -> None:
    said = r"\.npy: .*announces .* of shape .*1000000000000000.*, but it holds 8"
    path = npy(tmp_path / "a.npy", (10**15, 3))
    for mapped in (True, False):
        with pytest.raises(CommunisError, match=said):
            array(path, mapped)
    with pytest.raises(CommunisError, match=said):
        write_manifest(tmp_path)
    csi = npy(tmp_path / "csi" / "room" / "1.npy", (10**15, 64))
    with pytest.raises(CommunisError, match=said):
        read_by(WifiCsi(folder=str(tmp_path / "csi")))(csi)
    truth = made_mmfi.recording(tmp_path / "mmfi", frames=1) / "ground_truth.npy"
    npy(truth, (10**15, 17, 3))
    with pytest.raises(CommunisError, match=said):
        read_by(Mmfi(folder=str(tmp_path / "mmfi")))(truth)


def test_an_array_of_objects_is_not_opened(tmp_path: Path) -> None:
    path = npy(tmp_path / "a.npy", (1,), "|O")
    with pytest.raises(CommunisError, match=r"a\.npy: an array of Python objects"):
        array(path)


@pytest.mark.usefixtures("little_memory")
def test_equal_values_take_no_room_in_parquet_but_in_memory(tmp_path: Path) -> None:
    n = 1_000_000
    names = ["t", "ax", "ay", "az", "who", "activity"]
    equal = pa.array(np.zeros(n, np.float32))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([equal] * 4 + [pa.array(["walk"] * n)] * 2, names), path)
    assert path.stat().st_size < 1 << 20
    said = r"a\.parquet: 1000000 rows x . columns would take 0\.0 GB of memory, but 0\.0 GB are"
    with pytest.raises(CommunisError, match=said):
        own(tmp_path, MANIFEST.replace("csv", "parquet"))(path)
    (tmp_path / "communis.toml").unlink()
    with pytest.raises(CommunisError, match=said):
        write_manifest(tmp_path)


@pytest.mark.usefixtures("little_memory")
def test_text_that_does_not_fit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t,ax,ay,az,activity,who\n" + "0,1,2,3,walk,S1\n" * 100_000, "utf-8")
    with pytest.raises(CommunisError, match=r"a\.csv: its text would take"):
        own(tmp_path, MANIFEST)(path)
    with pytest.raises(CommunisError, match=r"a\.csv: its text would take"):
        numbers(path, 6, ",")


LABELLED = (
    MANIFEST.partition("[label]")[0]
    + """
[label]
classes = ["walk", "sit"]
[label.{tool}]
pattern = "labels.{kind}"
{more}
[subject]
value = 1
"""
)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("tool", "kind", "more"),
    [("json", "json", ""), ("intervals", "csv", 'file = "f"\nstart = "s"\nend = "e"')],
)
def test_labels_that_do_not_fit_are_not_read(
    tmp_path: Path, tool: str, kind: str, more: str
) -> None:
    (tmp_path / "a.csv").write_text("t,ax,ay,az\n0,1,2,3\n0.02,1,2,3\n", "utf-8")
    labels = tmp_path / f"labels.{kind}"
    labels.write_text("f,s,e,label\n" + "a,0,1,walk\n" * 200_000, "utf-8")
    text = LABELLED.replace("{tool}", tool).replace("{kind}", kind).replace("{more}", more)
    with pytest.raises(CommunisError, match=rf"labels\.{kind}: its (text|content) would take"):
        own(tmp_path, text)(tmp_path / "a.csv")


def test_labels_of_strangers_are_refused_by_name(tmp_path: Path) -> None:
    """Numbers without end, deep JSON, another encoding: one line that names the file."""
    (tmp_path / "a.csv").write_text("t,ax,ay,az\n0,1,2,3\n0.02,1,2,3\n", "utf-8")
    text = LABELLED.replace("{tool}", "json").replace("{kind}", "json").replace("{more}", "")
    labels = tmp_path / "labels.json"
    for content in (
        b"9" * 10_000,
        b"[" * 10_000,
        b'{"a": "wa\xff"}',
        b'{"a": "w\\u001b[31m"}',
        b"",
    ):
        labels.write_bytes(content)
        said = refusal(own(tmp_path, text), tmp_path / "a.csv")
        assert said.isprintable()
        assert "labels.json" in said, content[:20]


def test_an_image_is_weighed_by_its_header(tmp_path: Path) -> None:
    side = 0x7FFFFFFF
    head = made_mmfi.chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 0))
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + made_mmfi.chunk(b"IDAT", zlib.compress(b"1")))
    with pytest.raises(CommunisError, match=rf"a\.png: an image of {side} x {side} would take"):
        grey16(path)


def test_no_more_of_an_image_is_unpacked_than_its_header_says(tmp_path: Path) -> None:
    head = made_mmfi.chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 0, 0, 0, 0))
    bomb = made_mmfi.chunk(b"IDAT", zlib.compress(bytes(1 << 26)))
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + bomb)
    with pytest.raises(CommunisError, match=r"a\.png: not a readable PNG image .*size 11 "):
        grey16(path)


def test_a_workbook_that_is_a_bomb(tmp_path: Path) -> None:
    path = tmp_path / "log.xlsx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("xl/sharedStrings.xml", bytes(1 << 26))
    with pytest.raises(CommunisError, match=r"log\.xlsx: xl/sharedStrings\.xml .* 67108864 bytes"):
        sheet(path)


@pytest.mark.parametrize("place", ["", "7", "b7", "AAAA7", "\u00c97", "A" * 200_000])
def test_odd_columns_of_a_workbook(tmp_path: Path, place: str) -> None:
    path = tmp_path / "log.xlsx"
    cells = f'<row><c r="{place}"><v>1</v></c></row>'
    with zipfile.ZipFile(path, "w") as parts:
        parts.writestr("xl/sharedStrings.xml", "<sst/>")
        parts.writestr("xl/worksheets/sheet1.xml", f"<worksheet>{cells}</worksheet>")
    with pytest.raises(CommunisError, match=r"log\.xlsx: .*a cell at .*expected B7 or similar"):
        sheet(path)


@pytest.mark.usefixtures("little_memory")
def test_a_table_in_an_archive_is_weighed(tmp_path: Path) -> None:
    packed = made_realworld.archive({"acc_walking_chest.csv": bytes(1 << 22)})
    path = made_realworld.write(tmp_path, 1, "acc_walking_csv.zip", packed)
    with pytest.raises(
        CommunisError, match=r"csv\.zip > acc_walking_chest\.csv: what it announces"
    ):
        read_by(Realworld(folder=str(tmp_path)))(path)


def test_archives_of_tables_are_opened_to_a_certain_depth(tmp_path: Path) -> None:
    body = made_realworld.archive({"acc_walking_chest.csv": b""})
    for _ in range(4):
        body = made_realworld.archive({"acc_walking_csv.zip": body})
    path = made_realworld.write(tmp_path, 1, "acc_walking_csv.zip", body)
    with pytest.raises(CommunisError, match="an archive within 2 others"):
        read_by(Realworld(folder=str(tmp_path)))(path)


def test_time_stamps_that_ask_for_a_grid_beyond_memory(tmp_path: Path) -> None:
    stamps = [*range(0, 1000, 50), 10**15]
    path = made_umafall.write(tmp_path, made_umafall.samples(1, 0, stamps), sensors=(0, 1))
    with pytest.raises(
        CommunisError, match=r"Walking.*\.csv: chest_acc: .*a regular grid of 1e\+12"
    ):
        read_by(Umafall(folder=str(tmp_path)))(path)


def test_a_rate_that_makes_a_recording_last_for_ever(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ax,ay,az,activity,who\n" + "1,2,3,walk,S1\n" * 9, "utf-8")
    slow = MANIFEST.replace('time = "t"', "").replace('time_unit = "ms"', "")
    slow = slow.replace("rate = 50", "rate = 1e-13")
    with pytest.raises(CommunisError, match=r"a\.csv: its windows: .* of 2 s would take"):
        own(tmp_path, slow)(tmp_path)


def test_files_of_one_person_that_lie_years_apart(tmp_path: Path) -> None:
    home = made_stress_predict.person(tmp_path, "S01")
    path = home / "HR.csv"
    path.write_text(path.read_text("utf-8").replace("16442", "96442", 1), "utf-8")
    made_stress_predict.log(tmp_path, {})
    with pytest.raises(CommunisError, match=r"HR\.csv, line 1: begins 8\d{9} s after another"):
        read_by(StressPredict(folder=str(tmp_path)))(path)


def test_a_cell_longer_than_the_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t,ax,ay,az,activity,who\n0,1,2," + "3" * 200_000 + "x,walk,S1\n", "utf-8")
    said = r"a\.csv: .*field larger than field limit.*no cell is longer than 131,072 characters"
    with pytest.raises(CommunisError, match=said):
        own(tmp_path, MANIFEST)(path)
    (tmp_path / "communis.toml").unlink()
    _, remarks = write_manifest(tmp_path)  # it looks at the head only, where the cell is no number
    assert any("columns left out: 'az' (text)" in remark for remark in remarks), remarks


# Files that are read apart

CHILD = apart.CHILD
PATCHED = """
import runpy, sys, os, time
made = runpy.run_path({child!r})
answer = made["answer"]
def other(read, path):
    if path.endswith("crash.mat"):
        os.kill(os.getpid(), 11)
    if path.endswith("slow.mat"):
        time.sleep(60)
    if path.endswith("taken over.mat"):
        return [b"cos\\nmkdir\\n(V" + path.encode() + b" ran\\ntR."]
    return answer(read, path)
made["main"].__globals__["answer"] = other
made["main"]()
"""


@pytest.fixture
def mat(tmp_path: Path) -> Path:
    path = tmp_path / "a.mat"
    savemat(path, {"x": np.arange(12.0).reshape(3, 4), "name": "walk", "n": {"a": 1}})
    return path


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A child that crashes or sleeps for files of these names."""
    child = tmp_path / "child.py"
    child.write_text(PATCHED.format(child=str(CHILD)), "utf-8")
    monkeypatch.setattr(apart, "CHILD", child)
    apart.matlab_files.close()
    yield
    apart.matlab_files.close()


def test_what_is_read_is_what_was_written(mat: Path) -> None:
    found = matlab(mat, "x", "name")
    assert found["x"].tolist() == np.arange(12.0).reshape(3, 4).tolist()
    found["x"][0] = 1  # it is the caller's
    assert found["name"].item() == "walk"


@pytest.mark.usefixtures("fresh")
def test_a_process_that_a_file_has_taken_over_runs_nothing_here(mat: Path) -> None:
    bad = mat.rename(mat.with_name("taken over.mat"))
    with pytest.raises(CommunisError, match=r"taken over\.mat.* asks for os\.mkdir"):
        matlab(bad)
    assert not bad.with_name("taken over.mat ran").exists()
    assert "x" in matlab(bad.rename(mat))


def test_all_that_matlab_files_hold_comes_back(tmp_path: Path) -> None:
    cells = np.array([np.arange(3), "walk"], dtype=object)
    held = {"z": np.array([1 + 2j]), "cells": cells, "s": {"a": [1.5], "b": {"c": "x"}}}
    savemat(tmp_path / "all.mat", {**held, "flag": np.array([True]), "none": np.zeros((0, 3))})
    found = matlab(tmp_path / "all.mat")
    assert found["z"].item() == 1 + 2j
    assert found["cells"][0, 1].item() == "walk"
    assert found["s"]["b"][0, 0]["c"].item().item() == "x"
    assert found["none"].shape == (0, 3)


def test_one_process_reads_many_files(mat: Path) -> None:
    matlab(mat)
    first = apart.matlab_files._process
    assert first is not None
    matlab(mat)
    assert apart.matlab_files._process is first


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_a_file_that_crashes_its_reader_is_named(mat: Path) -> None:
    """As scipy does for some damaged files; the next file is read by a new process."""
    bad = mat.with_name("crash.mat")
    bad.write_bytes(mat.read_bytes())
    with pytest.raises(CommunisError, match=r"crash\.mat: not a readable MATLAB file .it crashed"):
        matlab(bad)
    assert "x" in matlab(mat)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_a_file_that_is_never_read_to_its_end_is_named(
    mat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = mat.with_name("slow.mat")
    bad.write_bytes(mat.read_bytes())
    assert "x" in matlab(mat)
    monkeypatch.setattr(apart, "PATIENCE", 0.2)
    with pytest.raises(CommunisError, match=r"slow\.mat: .*it was not read within 0 s"):
        matlab(bad)
    monkeypatch.undo()
    assert "x" in matlab(mat)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits of memory need Linux")
def test_a_file_that_takes_all_memory_is_named(
    tmp_path: Path, mat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart.matlab_files.close()
    monkeypatch.setattr(apart, "available", lambda: 64 << 20)
    bomb = tmp_path / "bomb.mat"
    savemat(bomb, {"x": np.zeros(1 << 24)}, do_compression=True)  # 128 MB in 130 kB
    assert bomb.stat().st_size < 1 << 18
    with pytest.raises(CommunisError, match=r"bomb\.mat: takes more memory than there is \(more"):
        matlab(bomb)
    assert "x" in matlab(mat)
    apart.matlab_files.close()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits of memory need Linux")
def test_a_pickle_of_few_bytes_that_takes_all_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stores its first object under number two billion: Python makes room for all before."""
    apart.pickles.close()
    monkeypatch.setattr(apart, "available", lambda: 1 << 30)
    path = tmp_path / "train.pkl"
    path.write_bytes(b"\x80\x04N" + pickle.LONG_BINPUT + struct.pack("<I", 2 * 10**9) + b".")
    with pytest.raises(CommunisError, match=r"train\.pkl: takes more memory than there is"):
        read_by(Reli11d(folder=str(tmp_path)))(path)
    apart.pickles.close()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_reader_of_its_own(mat: Path) -> None:
    matlab(mat)
    ours = apart.matlab_files._process
    child = os.fork()
    if child == 0:
        fine = "x" in matlab(mat) and apart.matlab_files._process is not ours
        apart.matlab_files.close()
        os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert "x" in matlab(mat)
    assert apart.matlab_files._process is ours


# Archives


@pytest.mark.slow
def test_hostile_archives_are_refused_or_harmless(tmp_path: Path) -> None:
    unpacked = set()
    for name, path, unpack in archives(tmp_path):
        text = refusal(unpack, path)
        if not text:
            unpacked.add(name)
        assert not text or (named(text, path) and path.name in text), (name, text)
    assert unpacked == HARMLESS
    assert escaped(tmp_path) == []
    assert {path.name for path in (tmp_path / "unpacked").iterdir()} == HARMLESS


def test_a_header_of_a_tar_that_unpacks_without_end(tmp_path: Path) -> None:
    (_, _, unpack), *_ = archives(tmp_path)
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzipped_header_bomb(1 << 25))
    with pytest.raises(CommunisError, match=r"bomb\.tar\.gz: .*a header of 33554432 bytes"):
        unpack(path)


def test_damaged_archives_are_unpacked_or_named(tmp_path: Path) -> None:
    good = [case for case in archives(tmp_path) if case[0] in HARMLESS]
    rng = np.random.default_rng(0)
    said: list[str] = []
    for number in range(400):
        _, path, unpack = good[number % len(good)]
        hurt = path.with_name(f"{number}-{path.name}")
        hurt.write_bytes(mutate(path.read_bytes(), rng))
        said.append(refusal(unpack, hurt))
    assert 0 < said.count("") < 400
    assert all(text.isprintable() for text in said)
    assert escaped(tmp_path) == []


@pytest.mark.skipif(os.name == "nt", reason="links need rights")
def test_a_link_in_place_of_the_manifest_is_not_followed(tmp_path: Path) -> None:
    """`communis data init` writes into a folder that may be somebody else's."""
    outside = tmp_path / "mine"
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / "s01.csv").write_text("time,x\n0,1\n1,2\n2,3\n")
    (folder / "communis.toml").symlink_to(outside)
    path, _ = write_manifest(folder)
    assert not outside.exists()
    assert path.is_file()
    assert not path.is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="no such device")
def test_device_profiles_are_read_from_files_only() -> None:
    """A configuration from elsewhere may name a device that never ends."""
    with pytest.raises(CommunisError, match="/dev/zero: cannot be read: a pipe or a device"):
        load(Path("/dev/zero"))


def test_braces_in_names_of_files_are_no_keys(tmp_path: Path) -> None:
    (tmp_path / "s{subject}_{0}.csv").write_text("time,x\n0,1\n1,2\n2,3\n")
    path, remarks = write_manifest(tmp_path)
    assert 'pattern = "s?subject?_?0?.csv"' in path.read_text("utf-8")
    assert any("CHECK subject: neither columns nor names" in remark for remark in remarks)
    (tmp_path / "communis.toml").write_text(MANIFEST.replace("*.csv", "{0}.csv"))
    with pytest.raises(CommunisError, match=r"\{0\} is not one of \{subject\}"):
        Own(folder=str(tmp_path)).open()


def test_bytes_that_are_no_words_are_named(tmp_path: Path) -> None:
    times = [0.0, 1.0, 2.0]
    table = pa.table({"time": times, "x": [b"\xff"] * len(times)})
    pq.write_table(table, tmp_path / "s01.parquet")
    with pytest.raises(CommunisError, match=r"s01\.parquet: column 'x' does not hold words"):
        write_manifest(tmp_path)
