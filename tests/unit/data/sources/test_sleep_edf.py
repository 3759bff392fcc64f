from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from communis.core import extras
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.recordings.cut import Cut, pieces
from communis.data.recordings.recording import UNLABELLED, Recording, Stream
from communis.data.recordings.windows import TEST, TRAIN
from communis.data.sources.sleep_edf import ABOUT, LABELS, SleepEdf
from tests.unit.data.sources import made_sleep_edf as made

pytest.importorskip("pyedflib")

# 90 epochs awake, 8 of everything else, 80 awake; then scores beyond the end of the signals
NIGHT = [
    (0, 2700, "Sleep stage W"),
    (2700, 30, "Sleep stage 1"),
    (2730, 60, "Sleep stage 2"),
    (2790, 30, "Movement time"),
    (2820, 30, "Sleep stage 3"),
    (2850, 30, "Sleep stage 4"),
    (2880, 30, "Sleep stage ?"),
    (2910, 30, "Sleep stage R"),
    (2940, 2400, "Sleep stage W"),
    (5340, 60000, "Sleep stage ?"),
]
EPOCHS = 178


def opened(folder: Path, **settings: object) -> list[Recording]:
    return list(SleepEdf(folder=str(folder), **settings).open().recordings)  # type: ignore[arg-type]


def stages(recording: Recording) -> list[int]:
    assert isinstance(recording.target, Stream)
    return list(recording.target.values)


def test_every_signal_lands_in_its_modality_at_its_own_rate(tmp_path: Path) -> None:
    """Rates are samples per record by the record's 30 s: 100 and 1 Hz, not 3000 or 3.33."""
    made.night(tmp_path, NIGHT, EPOCHS)
    (recording,) = opened(tmp_path, wake_minutes=-1)
    channels = [label for label, _, _ in made.CASSETTE]
    for modality, label, rate in (
        ("eeg_fpz_cz", "EEG Fpz-Cz", 100),
        ("eeg_pz_oz", "EEG Pz-Oz", 100),
        ("eog", "EOG horizontal", 100),
        ("emg", "EMG submental", 1),
        ("resp", "Resp oro-nasal", 1),
        ("temp", "Temp rectal", 1),
    ):
        stream = recording.streams[modality]
        expected = made.values(channels.index(label), EPOCHS * 30 * rate)
        assert stream.rate == rate
        assert stream.values.dtype == np.float32
        np.testing.assert_allclose(stream.values[:, 0], expected, atol=0.01)
    assert list(recording.streams) == ["eeg_fpz_cz", "eeg_pz_oz", "eog", "emg", "resp", "temp"]
    assert (recording.subject, recording.session) == (0, 1)
    assert recording.name == "SC4001E0-PSG.edf"


def test_stages_are_five_classes_and_what_was_not_scored_has_none(tmp_path: Path) -> None:
    made.night(tmp_path, NIGHT, EPOCHS)
    (recording,) = opened(tmp_path, wake_minutes=0)
    assert stages(recording) == [1, 2, 2, UNLABELLED, 3, 3, UNLABELLED, 4]
    assert LABELS == ("W", "N1", "N2", "N3", "REM")
    assert isinstance(recording.target, Stream)
    assert recording.target.rate == pytest.approx(1 / 30)


@pytest.mark.parametrize(("minutes", "first", "last"), [(30, 30, 158), (10, 70, 118), (-1, 0, 178)])
def test_waking_is_trimmed_from_signals_and_stages_alike(
    tmp_path: Path, minutes: float, first: int, last: int
) -> None:
    made.night(tmp_path, NIGHT, EPOCHS)
    (recording,) = opened(tmp_path, wake_minutes=minutes)
    assert len(stages(recording)) == last - first
    assert stages(recording)[90 - first] == 1  # sleep begins with epoch 90
    for modality, channel, rate in (("eog", 2, 100), ("temp", 5, 1)):
        whole = made.values(channel, EPOCHS * 30 * rate)
        np.testing.assert_allclose(
            recording.streams[modality].values[:, 0],
            whole[first * 30 * rate : last * 30 * rate],
            atol=0.01,
        )


def test_subjects_can_be_chosen(tmp_path: Path) -> None:
    for ss in ("00", "07"):
        made.night(tmp_path, NIGHT, EPOCHS, f"SC4{ss}1E0-PSG.edf", f"SC4{ss}1EC-Hypnogram.edf")
    assert [night.subject for night in opened(tmp_path)] == [0, 7]
    assert [night.subject for night in opened(tmp_path, subjects=(7,))] == [7]
    with pytest.raises(CommunisError, match="subjects: no 3; there are 0, 7"):
        opened(tmp_path, subjects=(3,))


def test_windows_are_the_scored_epochs(tmp_path: Path) -> None:
    made.night(tmp_path, NIGHT, EPOCHS)
    dataset = SleepEdf(folder=str(tmp_path), wake_minutes=1).open()
    ((_, piece),) = pieces(dataset, Cut(30.0))
    assert piece.target.tolist() == [0, 0, 1, 2, 2, 3, 3, 4, 0, 0]  # two epochs have no label
    assert piece.inputs["eeg_pz_oz"].shape == (10, 1, 3000)
    assert piece.inputs["resp"].shape == (10, 1, 30)
    rem = made.values(1, EPOCHS * 3000)[97 * 3000 : 98 * 3000]
    np.testing.assert_allclose(piece.inputs["eeg_pz_oz"][7, 0], rem, atol=0.01)


def test_nights_are_not_torn(tmp_path: Path) -> None:
    """One night trains, the next one tests. Who has a single night trains only: the parts of one
    night lie beside each other."""
    scores = [(0, 90, "Sleep stage W"), (90, 90, "Sleep stage 2"), (180, 120, "Sleep stage R")]
    for name in ("001", "002", "071", "082"):
        made.night(tmp_path, scores, 10, f"SC4{name}E0-PSG.edf", f"SC4{name}EC-Hypnogram.edf")
    source = SleepEdf(folder=str(tmp_path), modalities=("resp",))
    windows = source.load(Streams(0))
    found = {
        (int(o), int(s)): set(windows.split[(windows.owner == o) & (windows.session == s)].tolist())
        for o, s in zip(windows.owner, windows.session, strict=True)
    }
    assert found == {(0, 1): {TRAIN}, (0, 2): {TEST}, (7, 1): {TRAIN}, (8, 2): {TRAIN}}
    with pytest.raises(CommunisError, match="leaves no window for the test"):
        replace(source, subjects=(7,)).load(Streams(0))


def test_a_night_without_sleep_is_kept_whole(tmp_path: Path) -> None:
    made.night(tmp_path, [(0, 120, "Sleep stage W")], 4)
    (recording,) = opened(tmp_path, wake_minutes=0)
    assert stages(recording) == [0, 0, 0, 0]


def test_what_the_scorer_left_out_has_no_label(tmp_path: Path) -> None:
    made.night(tmp_path, [(30, 30, "Sleep stage 2")], 4)
    (recording,) = opened(tmp_path)
    assert stages(recording) == [UNLABELLED, 2, UNLABELLED, UNLABELLED]


def test_official_folder_subjects_nights_and_scorers(tmp_path: Path) -> None:
    inner = tmp_path / "sleep-cassette"
    scores = [(0, 60, "Sleep stage 2")]
    made.night(inner, scores, 2, "SC4771G0-PSG.edf", "SC4771GC-Hypnogram.edf")
    made.night(inner, scores, 2, "SC4082E0-PSG.edf", "SC4082EP-Hypnogram.edf")
    made.night(
        tmp_path / "sleep-telemetry", scores, 2, "ST7011J0-PSG.edf", "ST7011JP-Hypnogram.edf"
    )
    found = [(r.subject, r.session, r.name) for r in opened(tmp_path)]
    assert found == [
        (8, 2, "sleep-cassette/SC4082E0-PSG.edf"),
        (77, 1, "sleep-cassette/SC4771G0-PSG.edf"),
    ]


def test_telemetry_has_four_signals_with_fast_emg(tmp_path: Path) -> None:
    inner = tmp_path / "sleep-telemetry"
    names = ("ST7241J0-PSG.edf", "ST7241JO-Hypnogram.edf")
    made.night(inner, [(0, 60, "Sleep stage R")], 2, *names, channels=made.TELEMETRY)
    (recording,) = opened(tmp_path, study="telemetry")
    assert {m: s.rate for m, s in recording.streams.items()} == dict.fromkeys(
        ("eeg_fpz_cz", "eeg_pz_oz", "eog", "emg"), 100
    )
    np.testing.assert_allclose(
        recording.streams["emg"].values[:, 0], made.values(3, 6000), atol=0.01
    )
    assert (recording.subject, recording.session) == (24, 1)
    with pytest.raises(CommunisError, match=r"no SC\*-PSG.edf, the signals of the cassette study"):
        opened(tmp_path)


def test_chosen_modalities(tmp_path: Path) -> None:
    made.night(tmp_path, NIGHT, EPOCHS)
    source = SleepEdf(folder=str(tmp_path), modalities=("resp", "eog"))
    dataset = source.open()
    assert [list(r.streams) for r in dataset.recordings] == [["resp", "eog"]]
    assert dataset.units == {"eog": "uV", "resp": "a.u."}
    with pytest.raises(CommunisError, match=r"the cassette study has no ecg; there are eeg_fpz_cz"):
        replace(source, modalities=("ecg",))
    with pytest.raises(CommunisError, match="telemetry study has no resp"):
        replace(source, study="telemetry")


def test_a_night_without_its_scores_names_both_files(tmp_path: Path) -> None:
    path = made.night(tmp_path, NIGHT, EPOCHS)
    (tmp_path / "SC4001EC-Hypnogram.edf").rename(tmp_path / "SC4002EC-Hypnogram.edf")
    with pytest.raises(
        CommunisError, match=r"expected one hypnogram SC4001E\?-Hypnogram.edf"
    ) as error:
        opened(tmp_path)
    assert str(path) in str(error.value)
    assert "found none" in str(error.value)


def test_two_scores_of_a_night_are_refused(tmp_path: Path) -> None:
    made.night(tmp_path, NIGHT, EPOCHS)
    made.night(tmp_path, NIGHT, EPOCHS, scores="SC4001EH-Hypnogram.edf")
    with pytest.raises(
        CommunisError, match=r"found SC4001EC-Hypnogram.edf, SC4001EH-Hypnogram.edf"
    ):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["SC4001E0-PSG.edf", "SC4001EC-Hypnogram.edf"])
@pytest.mark.parametrize("keep", [0, 100, -11])
def test_files_cut_short_are_named(tmp_path: Path, name: str, keep: int) -> None:
    made.night(tmp_path, NIGHT, EPOCHS)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CommunisError, match="it may have been cut short") as error:
        opened(tmp_path)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ([(0, 30, "Sleep stage 5")], "unknown annotation 'Sleep stage 5' at 0 s"),
        ([(10, 30, "Sleep stage 2")], "Sleep stage 2 at 10 s for 30 s; expected whole epochs"),
        ([(30, 45, "Sleep stage 2")], "Sleep stage 2 at 30 s for 45 s; expected whole epochs"),
        ([(30, 0, "Sleep stage 2")], "Sleep stage 2 at 30 s for 0 s; expected whole epochs"),
        ([], "holds no annotations, expected sleep stages"),
    ],
)
def test_wrong_scores_are_named(
    tmp_path: Path, scores: list[tuple[float, float, str]], text: str
) -> None:
    made.night(tmp_path, scores, 4)
    with pytest.raises(CommunisError) as error:
        opened(tmp_path)
    assert text in str(error.value)
    assert str(tmp_path / "SC4001EC-Hypnogram.edf") in str(error.value)


def test_scores_of_another_night_are_refused(tmp_path: Path) -> None:
    made.night(tmp_path, NIGHT, EPOCHS)
    path = tmp_path / "SC4001EC-Hypnogram.edf"
    path.write_bytes(made.hypnogram(NIGHT, start="24.04.8917.13.00"))
    with pytest.raises(CommunisError, match=r"begins at 1989-04-24 17:13:00, but SC4001E0-PSG.edf"):
        opened(tmp_path)


def test_a_missing_signal_and_a_wrong_name_are_refused(tmp_path: Path) -> None:
    made.night(tmp_path / "a", NIGHT, EPOCHS, channels=made.CASSETTE[1:])
    with pytest.raises(CommunisError, match="expected one signal EEG Fpz-Cz, found EEG Pz-Oz, EOG"):
        opened(tmp_path / "a")
    made.night(tmp_path / "b", NIGHT, EPOCHS, psg="SC40X1E0-PSG.edf")
    with pytest.raises(CommunisError, match=r"SC40X1E0-PSG.edf: the name does not match"):
        opened(tmp_path / "b")


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.night(tmp_path, NIGHT, EPOCHS)
    gone = replace(extras.EXTRAS["edf"], module="no_such_module")
    monkeypatch.setitem(extras.EXTRAS, "edf", gone)
    with pytest.raises(CommunisError, match=r"pip install 'pyedflib>="):
        opened(tmp_path)


def test_downloads_are_pairs_of_the_first_twenty_subjects() -> None:
    names = [d.url.rpartition("/")[2] for d in ABOUT.downloads]
    signals = [name for name in names if name.endswith("E0-PSG.edf")]
    scores = [name for name in names if name.endswith("-Hypnogram.edf")]
    assert len(signals) == len(scores) == 39  # the second night of subject 13 was lost
    assert [n[:6] for n in signals] == [n[:6] for n in scores]
    assert {int(n[3:5]) for n in signals} == set(range(20))
    assert names[4:6] == ["SC4011E0-PSG.edf", "SC4011EH-Hypnogram.edf"]
