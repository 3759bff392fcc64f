"""Own Wi-Fi recordings: the right subcarriers in the right order, from every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from communis.core.errors import CommunisError
from communis.core.tasks import Counting
from communis.data.recordings.recording import Recording
from communis.data.sources.wifi_csi import WifiCsi, sanitised

from .made_wifi_csi import esp32_line, esp_csi_line, put, save


def read(folder: Path, **settings: object) -> list[Recording]:
    return list(WifiCsi(folder=str(folder), **settings).open().recordings)  # type: ignore[arg-type]


def values(recording: Recording, modality: str = "csi") -> np.ndarray:
    return recording.streams[modality].values


@pytest.mark.parametrize(
    ("bins", "left", "low", "high"), [(256, 242, 2, 122), (128, 114, 2, 58), (64, 56, 1, 28)]
)
@pytest.mark.parametrize("order", ["centred", "fft"])
def test_null_subcarriers_are_removed_by_number(
    tmp_path: Path, bins: int, left: int, low: int, high: int, order: str
) -> None:
    k = np.arange(bins) - bins // 2
    power = np.abs(k) + 0.5 * (k > 0)  # tells each subcarrier from all others
    put_in = np.fft.ifftshift(power) if order == "fft" else power
    save(tmp_path / "room/1.npy", np.tile(put_in, (3, 1)).astype(complex))
    found = values(read(tmp_path, order=order)[0])
    assert found.shape == (3, 1, left)
    wanted = [n for n in k if low <= abs(n) <= high]
    np.testing.assert_allclose(found[0, 0], [abs(n) + 0.5 * (n > 0) for n in wanted])


def test_layout_gives_environment_people_and_trial(tmp_path: Path) -> None:
    for name in ("bus/0.npy", "bus/12-monday.npy", "bus/12_b.npy", "room/3people.npy"):
        save(tmp_path / name, np.ones((4, 242), np.float32))
    data = WifiCsi(folder=str(tmp_path)).open()
    assert data.task == Counting(21)
    assert data.labels[20] == "20"
    found = [(r.name, r.target, r.subject, r.scene, r.trial) for r in data.recordings]
    assert found == [
        ("bus/0.npy", 0, 1, 1, 1),
        ("bus/12-monday.npy", 12, 1, 1, 1),
        ("bus/12_b.npy", 12, 1, 1, 2),
        ("room/3people.npy", 3, 2, 2, 1),
    ]


def test_window_of_ten_seconds_is_a_thousand_packets_of_242(tmp_path: Path) -> None:
    save(tmp_path / "room/1.npy", np.ones((1000, 256), np.complex64))
    stream = read(tmp_path)[0].streams["csi"]
    assert stream.kind == "csi"
    assert stream.rate * WifiCsi().window == 1000
    assert stream.values.shape == (1000, 1, 242)
    assert stream.values.dtype == np.float32


def test_esp32_has_imaginary_before_real_and_two_orders(tmp_path: Path) -> None:
    k = np.arange(-32, 32)
    imaginary, real = (k + 40).tolist(), [3] * 64
    swapped = np.fft.ifftshift(imaginary).tolist()
    console = "I (342) wifi: mode\n"
    alone = console + esp32_line(swapped, real) + esp_csi_line(swapped, real)
    put(tmp_path / "a/1.csv", alone + esp32_line(imaginary, real, secondary=1, more=128))
    recording = read(tmp_path, phase=True)[0]
    used = k[(abs(k) >= 1) & (abs(k) <= 26)]
    for packet in values(recording):
        np.testing.assert_allclose(packet[0], np.hypot(3, used + 40), rtol=1e-6)
    angle = sanitised(np.arctan2(used + 40.0, 3.0), used)
    np.testing.assert_allclose(values(recording, "csi_phase")[1, 0], angle, atol=1e-6)


def test_garbled_esp32_lines_are_lost_packets_up_to_one_in_twenty(tmp_path: Path) -> None:
    good = esp32_line([1] * 64, [2] * 64)
    garbled = [good[:200] + "\n", good.replace(" 2 1", " 2 x", 1), good.replace("1 2", "900 2", 1)]
    path = put(tmp_path / "a/1.csv", good * 30 + "".join(garbled) + good * 30)
    found = values(read(tmp_path)[0])
    assert len(found) == 63
    assert np.isnan(found[30:33]).all()
    assert np.isfinite(found[:30]).all()
    put(path, good * 2 + garbled[0] + good * 10)
    with pytest.raises(CommunisError, match=r"1\.csv, line 3: .*1 of 13"):
        read(tmp_path)


def test_intel_mat_has_pairs_of_antennas(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    csi = rng.normal(size=(5, 2, 3, 30)) + 1j * rng.normal(size=(5, 2, 3, 30))
    (tmp_path / "lab").mkdir()
    savemat(tmp_path / "lab/4.mat", {"csi": csi})
    found = values(read(tmp_path)[0])
    assert found.shape == (5, 6, 30)
    np.testing.assert_allclose(found[3, 5], np.abs(csi[3, 1, 2]), rtol=1e-6)


@pytest.mark.parametrize("unit", ["i", "j"])
def test_csv_of_amplitudes_or_complex_numbers(tmp_path: Path, unit: str) -> None:
    row = ",".join(["3-4" + unit, "6+8" + unit] * 15)
    put(tmp_path / "a/1.csv", f"{row}\n\n{row}\n")
    put(tmp_path / "b/2.csv", ",".join(["5", "10"] * 15) + "\n")
    first, second = read(tmp_path)
    np.testing.assert_allclose(values(first), np.tile([5.0, 10.0], (2, 1, 15)))
    np.testing.assert_allclose(values(second), np.tile([5.0, 10.0], (1, 1, 15)))


def test_sanitising_removes_any_offset_and_slope_and_nothing_else() -> None:
    k = np.r_[-122:-1, 2:123]
    shape = 0.3 * np.cos(k / 20)
    reference = sanitised(shape, k)
    turned = np.angle(np.exp(1j * (shape + 2.0 + 0.11 * k)))
    np.testing.assert_allclose(sanitised(turned, k), reference, atol=1e-9)
    assert abs(np.polyfit(k, reference, 1)).max() < 1e-12
    np.testing.assert_allclose(sanitised(reference, k), reference, atol=1e-12)


def test_zeros_are_found_in_the_first_file_and_hold_for_all(tmp_path: Path) -> None:
    some = np.ones((4, 10))
    some[:, [0, 5]] = 0
    some[2] = 0  # a packet of zeros makes no subcarrier null
    save(tmp_path / "a/1.npy", some)
    assert values(read(tmp_path, nulls="zeros")[0]).shape == (4, 1, 8)
    assert values(read(tmp_path, nulls="keep")[0]).shape == (4, 1, 10)
    with pytest.raises(CommunisError, match=r"1\.npy: no table .* 10 .*data\.nulls"):
        read(tmp_path)
    save(tmp_path / "b/1.npy", np.ones((4, 10)))
    with pytest.raises(CommunisError, match=r"b/1\.npy: some subcarriers that are 0"):
        read(tmp_path, nulls="zeros")


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("a/1.csv", "1;2;3\n", r"line 1: '1;2;3' is not a number.*commas"),
        ("a/1.csv", "1,2,3\n4,5\n", r"line 2: 2 columns; expected 3"),
        ("a/1.csv", "1+2j,2+1j\n1+2j,x\n", r"line 2: .*expected numbers such as 1\.5-2j"),
        ("a/1.csv", "1+2j,2+1j\n1+2j\n", r"line 2: 1 columns, expected 2"),
        ("a/1.csv", "", "empty or was cut short"),
        ("a/1.npy", "not numpy", "not a readable NumPy file"),
        ("a/1.mat", "not matlab", "not a readable MATLAB file"),
        ("a/1.txt", "1 2 3", "expected .csv, .npy or .mat"),
        ("a/21.csv", "1,2\n", "set data.most to 21"),
        ("a/1.csv", ",".join(["-1"] * 30), "negative"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, text: str, wanted: str) -> None:
    path = put(tmp_path / name, text)
    with pytest.raises(CommunisError, match=wanted) as error:
        read(tmp_path)
    assert str(path) in str(error.value)


def test_other_misfits_are_named(tmp_path: Path) -> None:
    save(tmp_path / "a/1.npy", np.ones((4, 30)))
    with pytest.raises(CommunisError, match=r"which have no phase"):
        read(tmp_path, phase=True)
    save(tmp_path / "a/2.npy", np.ones((4, 3, 30)))
    with pytest.raises(CommunisError, match=r"2\.npy: .*\(3, 30\), but \(1, 30\) in .*1\.npy"):
        read(tmp_path)
    save(tmp_path / "a/1.npy", np.ones(30))
    with pytest.raises(CommunisError, match=r"1\.npy: float64 of shape \(30,\)"):
        read(tmp_path)
    with pytest.raises(CommunisError, match="must be positive"):
        WifiCsi(packets=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CommunisError, match=r"wifi_csi: .*no file matches"):
        read(tmp_path / "empty")
