"""Files of strangers: good ones of every kind that is read, ways to damage them, and archives that
are meant to do harm.

    for name, path, read in corpus(folder):
        good = path.read_bytes()
        path.write_bytes(mutate(good, rng))
        read(path)  # returns, or raises a CommunisError that names a file: nothing else
        path.write_bytes(good)

All are read as they are but `watch`, which is a pickle and refused before it is opened: its hash is
not that of the real one.

    for name, path, unpack in archives(folder):
        unpack(path)  # the same; afterwards `escaped(folder)` is empty
"""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.io import savemat

from communis.data.fetch import adopt
from communis.data.own.guess import write_manifest
from communis.data.recordings.about import About
from communis.data.recordings.cut import Cut, pieces
from communis.data.recordings.matlab import matlab
from communis.data.recordings.png import grey16
from communis.data.recordings.source import Recorded
from communis.data.sources.deepsense import Deepsense
from communis.data.sources.dsads import Dsads
from communis.data.sources.mhealth import Mhealth
from communis.data.sources.mmfi import Mmfi
from communis.data.sources.opportunity import Opportunity
from communis.data.sources.own import Own
from communis.data.sources.pamap2 import Pamap2
from communis.data.sources.realworld import Realworld
from communis.data.sources.reli11d import Reli11d
from communis.data.sources.sleep_edf import SleepEdf
from communis.data.sources.stress_predict import StressPredict
from communis.data.sources.umafall import Umafall
from communis.data.sources.usc_had import UscHad
from communis.data.sources.utd_mhad import UtdMhad
from communis.data.sources.watch import Watch
from communis.data.sources.wical import Wical
from communis.data.sources.wifi_csi import WifiCsi
from tests.unit.data.sources import (
    made_deepsense,
    made_dsads,
    made_mhealth,
    made_mmfi,
    made_opportunity,
    made_pamap2,
    made_realworld,
    made_reli11d,
    made_sleep_edf,
    made_stress_predict,
    made_umafall,
    made_usc_had,
    made_utd_mhad,
    made_wical,
    made_wifi_csi,
)

Case = tuple[str, Path, Callable[[Path], object]]  # name, a file, what reads it where it lies
WINDOW = 0.1  # seconds: some windows come out of the shortest of the files
EDGE = 600  # bytes at either end of a file, where headers are
FIELD = 200_000  # characters: more than the csv module takes by default
PIECES = (
    b"",
    b"\0",
    b"\xff",
    b"\n",
    b"\r",
    b",",
    b";",
    b'"',
    b"'",
    b"#",
    b"-",
    b"nan",
    b"inf",
    b"-inf",
    b"1e400",
    b"1e-400",
    b"0",
    b"-1",
    b"99999999999999999999",
    b"2020-13-45T99:99",
    b"9999-12-31",
    "é".encode("latin-1"),
    "\u0663".encode(),  # a digit, but not of ours
    b"x" * FIELD,
    b'"' + b"x" * FIELD,
    b"1," * 5_000,
    b"[" * 5_000,
)


def read_by(source: Recorded) -> Callable[[Path], object]:
    """Reads a source's recordings and cuts them, as every use of the source does."""

    def read(_: Path) -> object:
        how = Cut(source.window, source.stride, source.rate)
        return [(recording.name, len(piece)) for recording, piece in pieces(source.open(), how)]

    return read


def corpus(folder: Path) -> list[Case]:
    """One good file of every kind, made in the official format below a folder."""
    cases: list[Case] = []
    for number, make in enumerate((_of_text, _of_arrays, _of_sheets, _of_csi, _of_own)):
        cases += make(folder / f"{number}")
    return cases


def _of_text(folder: Path) -> list[Case]:
    """Sources of text files."""
    deep = made_deepsense.write(folder / "deepsense")
    frames = Deepsense(folder=str(deep.parent), future=0, split="subject", window=0.5)
    opportunity = made_opportunity.write(
        folder / "opportunity", made_opportunity.rows(6, Locomotion=[1] * 6)
    )
    rows = made_umafall.samples(0, 0, range(0, 500, 5))
    for kind in range(3):
        rows += made_umafall.samples(1, kind, range(0, 500, 50), first=int(kind > 0))
    wical = folder / "wical"
    values = made_wical.rows(0)
    made: list[tuple[Path, Recorded]] = [
        (
            deep / "future-1" / "scenario17_dev_series_val.csv",
            Deepsense(folder=str(deep.parent), future=1),
        ),
        (deep / "future-10" / "scenario17_dev_series_train.csv", frames),
        (deep / "unit1" / "mmWave_data" / "mmWave_power_3.txt", frames),
        (deep / "unit1" / "label_data" / "label_3.txt", frames),
        (made_dsads.write(folder / "dsads", 1, 1, 1), Dsads(folder=str(folder / "dsads"))),
        (
            made_mhealth.write(folder / "mhealth", [1, 2] * 10),
            Mhealth(folder=str(folder / "mhealth"), window=WINDOW),
        ),
        (opportunity, Opportunity(folder=str(folder / "opportunity"), window=WINDOW)),
        (
            made_pamap2.write(folder / "pamap2", made_pamap2.rows([1] * 40)),
            Pamap2(folder=str(folder / "pamap2"), window=2 * WINDOW),
        ),
        (
            made_umafall.write(folder / "umafall", sorted(rows), sensors=(0, 1)),
            Umafall(folder=str(folder / "umafall"), window=WINDOW),
        ),
        (
            made_wical.write(wical / "Wi-CaL", "small-room", "sess1", "P=0.csv", values),
            Wical(folder=str(wical)),
        ),
    ]
    return [(_named(path, source), path, read_by(source)) for path, source in made]


def _of_arrays(folder: Path) -> list[Case]:
    """Sources of arrays: MATLAB, NumPy, points, images, pickles."""
    mmfi = made_mmfi.recording(folder / "mmfi", frames=2)
    seen = Mmfi(
        folder=str(folder / "mmfi"),
        modalities=("csi", "mmwave", "lidar", "depth", "rgb"),
        window=WINDOW,
    )
    inertial = made_utd_mhad.write(folder / "utd", "Inertial", made_utd_mhad.inertial())
    skeleton = made_utd_mhad.write(folder / "utd", "Skeleton", made_utd_mhad.skeleton(10))
    depth = np.zeros((240, 320, 2), np.uint16)
    depth[100:120, 100:120] = 1000
    image = made_utd_mhad.write(folder / "utd", "Depth", depth)
    utd = UtdMhad(folder=str(folder / "utd"), window=WINDOW)
    pickled = made_reli11d.write(folder / "reli" / "train.pkl", made_reli11d.part(1))
    usc = made_usc_had.write(folder / "usc", 1, 1, 1)
    watch = folder / "watch" / "watch_dataset.npy"
    watch.parent.mkdir(parents=True)
    np.save(watch, np.array({"X": []}, dtype=object), allow_pickle=True)
    packed = folder / "packed.mat"
    savemat(
        packed,
        {"x": np.arange(12.0).reshape(3, 4), "name": "walk", "n": {"a": [1, "b"]}},
        do_compression=True,
    )
    old = folder / "old.mat"
    savemat(old, {"x": np.arange(12.0).reshape(3, 4)}, format="4")
    made: list[tuple[Path, Recorded]] = [
        (mmfi / "ground_truth.npy", seen),
        (mmfi / "wifi-csi" / "frame001.mat", seen),
        (mmfi / "mmwave" / "frame002.bin", seen),
        (mmfi / "depth" / "frame001.png", seen),
        (mmfi / "rgb" / "frame001.npy", seen),
        (inertial, utd),
        (skeleton, utd),
        (image, utd),
        (usc, UscHad(folder=str(folder / "usc"), window=0.05)),
        (pickled, Reli11d(folder=str(folder / "reli"))),
        (watch, Watch(folder=str(watch.parent))),
    ]
    cases: list[Case] = [(_named(path, source), path, read_by(source)) for path, source in made]
    return [
        *cases,
        ("matlab: packed.mat", packed, matlab),
        ("matlab: old.mat", old, matlab),
        ("png: frame002.png", mmfi / "depth" / "frame002.png", grey16),
    ]


def _of_sheets(folder: Path) -> list[Case]:
    """Workbooks, archives of tables, and signals in EDF."""
    stress = folder / "stress" / "Stress-Predict"
    home = made_stress_predict.person(stress, "S07", seconds=600)
    morning = made_stress_predict.times(("9:29", "9:31"), ("9:32", "9:34"), ("9:35", "9:36"))
    begin = made_stress_predict.BEGIN
    pressed = [begin + n for n in (65, 170, 250, 365, 415, 500)]
    made_stress_predict.tags(stress, "S07", pressed)
    log = made_stress_predict.log(stress, {"S07": morning})
    calm = StressPredict(folder=str(folder / "stress"))
    steady = [20 * n for n in range(20)]
    walking = made_realworld.tables("acc", "walking", steady, ("chest", "head"))
    packed = made_realworld.archive(walking)
    real = made_realworld.write(folder / "real", 1, "acc_walking_csv.zip", packed)
    loose = made_realworld.write(
        folder / "loose",
        1,
        "acc_walking_chest.csv",
        made_realworld.table("acc", "chest", steady),
    )
    stages = [(0.0, 30.0, "Sleep stage W"), (30.0, 60.0, "Sleep stage 2")]
    night = made_sleep_edf.night(folder / "sleep", stages, 3)
    asleep = SleepEdf(folder=str(folder / "sleep"))
    made: list[tuple[Path, Recorded]] = [
        (log, calm),
        (home / "ACC.csv", calm),
        (home / "HR.csv", calm),
        (home / "tags_S07.csv", calm),
        (real, Realworld(folder=str(folder / "real"), window=WINDOW)),
        (loose, Realworld(folder=str(folder / "loose"), window=WINDOW)),
        (night, asleep),
        (night.with_name("SC4001EC-Hypnogram.edf"), asleep),
    ]
    return [(_named(path, source), path, read_by(source)) for path, source in made]


def _of_csi(folder: Path) -> list[Case]:
    """Wi-Fi CSI as people record it."""
    k = [*range(1, 65)]
    lines = "".join(made_wifi_csi.esp32_line(k, [n + i for n in k]) for i in range(12))
    espressif = "".join(made_wifi_csi.esp_csi_line(k, k) for _ in range(12))
    rows = np.arange(12 * 56).reshape(12, 56) + 1.0
    complexes = "\n".join(",".join(f"{v:g}-2j" for v in row) for row in rows) + "\n"
    nexmon = np.asarray(rows, np.complex64)
    room = folder / "intel" / "room" / "2.mat"
    room.parent.mkdir(parents=True)
    savemat(room, {"csi": np.ones((12, 1, 3, 30), np.complex64)})
    paths = [
        made_wifi_csi.put(folder / "esp32" / "room" / "1.csv", "I (342) wifi: mode\n" + lines),
        made_wifi_csi.put(folder / "espressif" / "room" / "1.csv", espressif),
        made_wifi_csi.put(folder / "complex" / "room" / "1.csv", complexes),
        made_wifi_csi.save(folder / "nexmon" / "room" / "3.npy", nexmon),
        room,
    ]
    np.savetxt(
        made_wifi_csi.put(folder / "amplitudes" / "room" / "1.csv", ""), rows, "%.6g", delimiter=","
    )
    paths.append(folder / "amplitudes" / "room" / "1.csv")
    cases: list[Case] = []
    for path in paths:
        source = WifiCsi(folder=str(path.parents[1]), window=WINDOW)
        cases.append((f"wifi_csi {path.parents[1].name}: {path.name}", path, read_by(source)))
    return cases


MANIFEST = """
[files]
pattern = "*.csv"
time = "t"
time_unit = "ms"
[modalities.acc]
columns = ["ax", "ay", "az"]
rate = 50
unit = "g"
[label]
column = "activity"
classes = ["walk", "sit"]
[subject]
column = "who"
"""


def _of_own(folder: Path) -> list[Case]:
    """A folder of one's own, its manifest, and the guess of a manifest."""
    n = 60
    frame = pd.DataFrame(
        {
            "t": 20 * np.arange(n),
            "ax": np.sin(np.arange(n)),
            "ay": np.arange(n) / 7,
            "az": 1.0,
            "activity": ["walk", "sit"] * (n // 2),
            "who": ["S1"] * n,
        }
    )
    dated = frame.assign(t=pd.date_range("2024-05-01", periods=n, freq="20ms").map(str))
    array = np.column_stack([frame[["t", "ax", "ay", "az"]], np.arange(n) % 2, np.ones(n)])
    places = [folder / name for name in ("csv", "dated", "tsv", "npy", "parquet", "apart")]
    for place in places:
        place.mkdir(parents=True)
    csv, date, tsv, npy, parquet, apart = places
    frame.to_csv(csv / "a.csv", index=False)
    dated.to_csv(date / "a.csv", index=False)
    frame.to_csv(tsv / "a.tsv", index=False, sep="\t")
    np.save(npy / "a.npy", array)
    frame.to_parquet(parquet / "a.parquet")
    frame[["t", "ax", "ay", "az", "who"]].to_csv(apart / "1_acc.csv", index=False)
    frame[["t", "activity", "who"]].to_csv(apart / "1_label.csv", index=False)
    numbered = MANIFEST.replace("csv", "npy").replace('["ax", "ay", "az"]', "[1, 2, 3]")
    for name, number in (('"t"', "0"), ('"activity"', "4"), ('"who"', "5")):
        numbered = numbered.replace(name, number)
    numbered = numbered.replace('["walk", "sit"]', "[0, 1]")
    manifests = {
        csv: MANIFEST,
        date: MANIFEST.replace('"ms"', '"date"'),
        tsv: MANIFEST.replace('*.csv"', '*.tsv"\ndelimiter = "\\t"'),
        npy: numbered,
        parquet: MANIFEST.replace("csv", "parquet"),
        apart: MANIFEST.replace("*.csv", "{trial}_acc.csv").replace(
            "[label]", '[label]\nrate = 50\npattern = "{trial}_label.csv"'
        ),
    }
    cases: list[Case] = []
    for place, text in manifests.items():
        (place / "communis.toml").write_text(text, "utf-8")
        source = Own(folder=str(place), window=WINDOW)
        for path in sorted(place.iterdir()):
            if path.suffix != ".toml" or place == csv:
                cases.append((f"own {place.name}: {path.name}", path, read_by(source)))
    for place in (csv, date, npy, parquet):
        cases.append((f"init {place.name}: a", _copy(place), _guessed))
    return cases


def _copy(place: Path) -> Path:
    """The data file of a folder in a folder of its own, where no manifest is."""
    (found,) = (path for path in place.iterdir() if path.suffix != ".toml")
    copy = place.with_name(f"{place.name}_init") / found.name
    copy.parent.mkdir()
    copy.write_bytes(found.read_bytes())
    return copy


def _guessed(path: Path) -> object:
    return write_manifest(path.parent, force=True)


def _named(path: Path, source: Recorded) -> str:
    return f"{source.name}: {path.name}"


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with one to three changes; about half of these where headers are."""
    for _ in range(int(rng.integers(1, 4))):
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        data = change(data, rng)
    return data


def _place(data: bytes, rng: np.random.Generator) -> int:
    if not data:
        return 0
    where = int(rng.integers(4))
    if where == 0:
        return int(rng.integers(min(EDGE, len(data))))
    if where == 1:
        return len(data) - 1 - int(rng.integers(min(EDGE, len(data))))
    return int(rng.integers(len(data)))


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    """A single bit."""
    at = _place(data, rng)
    if not data:
        return data
    return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]


def overwrite(data: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes, at random."""
    at, length = _place(data, rng), int(rng.integers(1, 9))
    return data[:at] + rng.bytes(length) + data[at + length :]


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    """The end is missing; sometimes there is nothing left."""
    return b"" if rng.integers(8) == 0 else data[: _place(data, rng)]


def remove(data: bytes, rng: np.random.Generator) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + int(rng.integers(1, 60)) :]


def double(data: bytes, rng: np.random.Generator) -> bytes:
    """A part comes twice."""
    at = _place(data, rng)
    end = at + int(rng.integers(1, 200))
    return data[:end] + data[at:end] + data[end:]


def insert(data: bytes, rng: np.random.Generator) -> bytes:
    """What readers of text stumble over."""
    at = _place(data, rng)
    return data[:at] + PIECES[int(rng.integers(len(PIECES)))] + data[at:]


def number(data: bytes, rng: np.random.Generator) -> bytes:
    """A number in the text, or in a header of text, becomes one that nobody expects."""
    at = _place(data, rng)
    digits = b"0123456789"
    start = next((i for i in range(at, len(data)) if data[i] in digits), len(data))
    end = next((i for i in range(start, len(data)) if data[i] not in digits), len(data))
    chosen = (b"999999999999999", b"1000000", b"-1", b"0", b"nan", b"inf", b"1e308", b"", b"x")
    return data[:start] + chosen[int(rng.integers(len(chosen)))] + data[end:]


def extreme(data: bytes, rng: np.random.Generator) -> bytes:
    """A binary number at its limit: sizes, offsets and counts in headers."""
    at = _place(data, rng)
    chosen: tuple[tuple[str, int], ...] = (
        ("<I", 0xFFFFFFFF),
        ("<I", 0x7FFFFFFF),
        (">I", 0x7FFFFFFF),
        ("<I", 0),
        ("<q", -1),
        ("<Q", 1 << 60),
        ("<H", 0xFFFF),
    )
    form, value = chosen[int(rng.integers(len(chosen)))]
    made = struct.pack(form, value)
    return data[:at] + made + data[at + len(made) :]


def recode(data: bytes, rng: np.random.Generator) -> bytes:
    """Text as another system writes it; bytes that are no text stay."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return flip(data, rng)
    names = ("utf-16", "utf-32", "utf-8-sig", "utf-16-le")
    return text.encode(names[int(rng.integers(len(names)))])


def reorder(data: bytes, rng: np.random.Generator) -> bytes:
    """Two lines change places, or one of them goes."""
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return flip(data, rng)
    a, b = (int(n) for n in rng.integers(len(lines), size=2))
    if rng.integers(2):
        lines[a], lines[b] = lines[b], lines[a]
    else:
        del lines[a]
    return b"".join(lines)


CHANGES: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (
    flip,
    overwrite,
    cut,
    remove,
    double,
    insert,
    number,
    extreme,
    recode,
    reorder,
)


# Archives

FILES = {"Set/s1/a.csv": b"1", "Set/s2/a.csv": b"2"}
ABOUT = About("CC0", "Doe 2020", "https://owner.example", "Set/s*/*.csv", 2)


def archives(folder: Path) -> list[Case]:
    """Archives that are meant to do harm, below `folder`/archives; the function of each unpacks it
    into a folder below `folder`/unpacked, as `communis data fetch --from` does."""
    made: dict[str, bytes] = {
        "traversal.zip": _zip(FILES | {"../../../evil.csv": b"!"}),
        "traversal.tar": _tar(FILES | {"../../../evil.csv": b"!"}),
        "backslash.zip": _zip(FILES | {"..\\..\\evil.csv": b"!"}),
        "absolute.zip": _zip(FILES | {str(folder / "evil.csv"): b"!"}),
        "absolute.tar.gz": _tar(FILES | {str(folder / "evil.csv"): b"!"}, "w:gz"),
        "drive.zip": _zip(FILES | {"C:/evil.csv": b"!"}),
        "link.zip": _special_zip(stat.S_IFLNK),
        "link.tar": _tar(FILES, links={"Set/s1/out": (tarfile.SYMTYPE, "../../../../")}),
        "through a link.tar": _tar(
            {},
            links={"Set": (tarfile.SYMTYPE, str(folder))},
            after={"Set/evil.csv": b"!"},
        ),
        "through links beyond the longest path.tar": _overlong_tar(),
        "link within.tar": _tar(FILES, links={"Set/s1/b.csv": (tarfile.SYMTYPE, "a.csv")}),
        "hard link within.tar": _tar(FILES, links={"Set/b.csv": (tarfile.LNKTYPE, "Set/s1/a.csv")}),
        "pipe.zip": _special_zip(stat.S_IFIFO),
        "hard link.tar": _tar(FILES, links={"Set/s1/b.csv": (tarfile.LNKTYPE, "/etc/passwd")}),
        "loop.tar": _tar(FILES, links={"Set/s1/b.csv": (tarfile.SYMTYPE, "b.csv")}),
        "device.tar": _tar(FILES, links={"Set/s1/null": (tarfile.CHRTYPE, "")}),
        "pipe.tar": _tar(FILES, links={"Set/s1/pipe": (tarfile.FIFOTYPE, "")}),
        "bomb.zip": _announcing_zip(1 << 45),
        "bomb of zeros.zip": _zip({"Set/s1/a.csv": bytes(1 << 22)}, announced=1 << 45),
        "bomb.tar": _announcing_tar(1 << 50),
        "sparse bomb.tar": _sparse_tar(1 << 55),
        "header bomb.tar": _announcing_tar(1 << 40, tarfile.XHDTYPE),
        "name bomb.tar": _announcing_tar(1 << 40, tarfile.GNUTYPE_LONGNAME),
        "nested.zip": _nested(12),
        "an inner archive without a name.zip": _zip({"Set/.zip": _zip({"s1/a.csv": b"1"})}),
        "inner damage.zip": _zip({"Set/one.zip": _zip(FILES)[:-20]}),
        "many.zip": _zip({f"Set/n{i}": b"" for i in range(2_000)}),
        "twice.zip": _twice_zip(),
        "twice.tar": _tar(FILES, after={"Set/s1/a.csv": b"other"}),
        "file and folder.zip": _zip({"Set/s1": b"1", "Set/s1/a.csv": b"1"}),
        "file and folder.tar": _tar({"Set/s1": b"1"}, after={"Set/s1/a.csv": b"1"}),
        "long name.zip": _zip({"Set/" + "x" * 300 + ".csv": b"1"}),
        "deep.zip": _zip({"Set/" + "d/" * 3000 + "a.csv": b"1"}),
        "null in a name.zip": _zip(FILES).replace(b"Set/s2", b"Set\0s2"),
        "no utf-8 in a name.zip": _not_utf8(),
        "encrypted.zip": _changed(6, 1),
        "strongly encrypted.zip": _changed(6, 0x41),
        "unknown compression.zip": _changed(8, 0xF0),
        "a tar called.zip": _tar(FILES),
        "a zip called.tar.gz": _zip(FILES),
        "text.zip": b"hello",
        "page.zip": b"<!DOCTYPE html><html></html>",
        "nothing.zip": b"",
        "nothing.tar.gz": b"",
        "cut.tar.xz": _tar(FILES, "w:xz")[:-30],
    }
    place = folder / "archives"
    place.mkdir(parents=True)
    for name, content in made.items():
        (place / name).write_bytes(content)
    return [(name, place / name, _adopt(folder)) for name in made]


def escaped(folder: Path) -> list[Path]:
    """What unpacking has written elsewhere than where it should."""
    inside = [folder / "archives", folder / "unpacked"]
    there = (path for path in folder.rglob("*") if path not in inside)
    return sorted(p for p in there if not any(place in p.parents for place in inside))


def _adopt(folder: Path) -> Callable[[Path], object]:
    return lambda path: adopt("set", path, ABOUT, folder / "unpacked" / path.name)


def _zip(files: dict[str, bytes], announced: int = 0) -> bytes:
    """`announced`: the size that the archive states for its files, in place of the real one."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.filename = name  # ZipInfo would mend it
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
            if announced:
                member.file_size = announced
    return made.getvalue()


def _announcing_zip(size: int) -> bytes:
    return _zip({"Set/s1/a.csv": b"1", "Set/s2/a.csv": b"2"}, announced=size)


def _special_zip(kind: int) -> bytes:
    """A member that is no file by its mode."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        member = zipfile.ZipInfo("Set/s1/out")
        member.external_attr = (kind | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    return made.getvalue()


def _twice_zip() -> bytes:
    one, two = "Set/s1/a.csv", "Set/s1/b.csv"
    return _zip({one: b"1", two: b"other", "Set/s2/a.csv": b"2"}).replace(
        two.encode(), one.encode()
    )


def _not_utf8() -> bytes:
    """A name that says it is UTF-8 and is not."""
    return _zip({"Set/s1/é.csv": b"1"}).replace("é".encode(), b"\xff\xfe")


def _changed(at: int, bits: int) -> bytes:
    """Bits set in a member's header, there where the local one has them and in the directory."""
    data = bytearray(_zip(FILES))
    for mark, offset in ((b"PK\3\4", at), (b"PK\1\2", at + 2)):
        header = data.find(mark)
        while header >= 0:
            data[header + offset] |= bits
            header = data.find(mark, header + 4)
    return bytes(data)


def _nested(depth: int) -> bytes:
    body = _zip(FILES)
    for level in range(depth):
        body = _zip({f"level{level}.zip": body})
    return body


Links = dict[str, tuple[bytes, str]]


def _tar(
    files: dict[str, bytes],
    mode: Any = "w",
    links: Links | None = None,
    after: dict[str, bytes] | None = None,
) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:
        for name, content in files.items():
            _add(archive, name, content)
        for name, (kind, target) in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
        for name, content in (after or {}).items():
            _add(archive, name, content)
    return made.getvalue()


def _overlong_tar() -> bytes:
    """Links to folders whose real path is longer than the system resolves, so that a link through
    them seems to stay inside and leads out (CVE-2025-4517)."""
    made = io.BytesIO()
    steps, long, path = "abcdefghijklmnop", "d" * 247, ""
    with tarfile.open(fileobj=made, mode="w") as archive:

        def link(name: str, target: str) -> None:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)

        for step in steps:
            place = tarfile.TarInfo(path + long)
            place.type, place.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(place)
            link(path + step, long)
            path += long + "/"
        up = "/".join(steps) + "/" + "l" * 254
        link(up, "../" * len(steps))
        link("Set", up + "/../../..")
        _add(archive, "Set/evil.csv", b"!")
    return made.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _announcing_tar(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header that announces so many bytes, and a few of them."""
    member = tarfile.TarInfo("Set/s1/a.csv")
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(2048)


def _sparse_tar(size: int) -> bytes:
    """A file of holes, which takes no room in the archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("Set/s1/a.csv")
        member.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.size": str(size),
            "GNU.sparse.map": f"{size},0",
        }
        archive.addfile(member)
    return made.getvalue()


def gzipped_header_bomb(size: int) -> bytes:
    """A tar header that announces `size` bytes of itself, and really has them: zeros, packed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    member = tarfile.TarInfo("header")
    member.size, member.type = size, tarfile.XHDTYPE
    body = packer.compress(member.tobuf(tarfile.GNU_FORMAT))
    for _ in range(size >> 20):
        body += packer.compress(bytes(1 << 20))
    return body + packer.flush()
