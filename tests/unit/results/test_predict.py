"""Predictions for new recordings of one's own: as in training, without labels, with any sensors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal
from typer.testing import CliRunner

import communis
from communis import CommunisError
from communis.cli.main import app
from communis.results.predict import cut, table
from communis.results.trained import Trained
from communis.run.config import Config, bare
from communis.run.jobs import Job

RATE = 20.0
MANIFEST = """
[files]
pattern = "{subject}/{label}_{trial}.csv"
[modalities.acc]
columns = ["ax", "ay"]
rate = 20
unit = "g"
[modalities.gyro]
columns = ["gx"]
rate = 20
unit = "rad/s"
[label]
classes = ["walk", "sit"]
"""


def signal(kind: str, seconds: float, seed: int, rate: float = RATE) -> pd.DataFrame:
    """Walking is a wave of 2 Hz, sitting is still."""
    rng = np.random.default_rng(seed)
    times = np.arange(int(seconds * rate)) / rate
    wave = np.sin(2 * np.pi * 2 * times) if kind == "walk" else np.zeros_like(times)
    noise = 0.05 * rng.standard_normal((3, len(times)))
    return pd.DataFrame({"ax": wave + noise[0], "ay": 1 + noise[1], "gx": wave + noise[2]})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the recordings of four people, in `run`."""
    home = tmp_path_factory.mktemp("own")
    data = home / "data"
    data.mkdir()
    (data / "communis.toml").write_text(MANIFEST)
    for person in range(1, 5):
        (data / f"p{person}").mkdir()
        for kind in ("walk", "sit"):
            frame = signal(kind, 60, seed=10 * person + len(kind))
            frame.to_csv(data / f"p{person}" / f"{kind}_1.csv", index=False)
    finished(configured(data), home / "run")
    return home


def configured(data: Path, *settings: str) -> Config:
    table = {"name": "own", "folder": str(data), "window": 2.0}
    return bare(table, ["run.rounds=3", "method.name=fedavg", "method.lr=0.1", *settings])


def finished(config: Config, folder: Path) -> None:
    with Job(config, folder).open(config.make_fleet(), workers=1) as run:
        list(run)


def test_a_newcomer_s_recording_gets_the_classes_of_its_windows(home: Path) -> None:
    new = home / "new.csv"
    pd.concat([signal("walk", 20, 1), signal("sit", 20, 2)]).to_csv(new, index=False)
    trained = Trained(home / "run")
    windows = cut(trained, [new])
    frame = table(trained.common(scales=windows.scales()), windows)
    assert len(frame) == 20
    assert frame["start"].tolist() == [2.0 * i for i in range(20)]
    assert frame["label"].tolist() == ["walk"] * 10 + ["sit"] * 10
    assert np.allclose(frame["p_walk"] + frame["p_sit"], 1, atol=1e-6)
    assert (frame["probability"] == frame[["p_walk", "p_sit"]].max(axis=1)).all()
    assert set(frame["sensors"]) == {"acc+gyro"}


def test_another_rate_is_resampled(home: Path) -> None:
    manifest = home / "fast" / "communis.toml"
    manifest.parent.mkdir()
    manifest.write_text(MANIFEST.replace("rate = 20", "rate = 50"))
    signal("walk", 20, 3, rate=50).to_csv(manifest.parent / "a.csv", index=False)
    trained = Trained(home / "run")
    windows = cut(trained, [manifest.parent])
    assert all(piece.inputs["acc"].shape[1:] == (2, 40) for piece in windows.pieces)
    frame = table(trained.model(0), windows)
    assert (frame["label"] == "walk").all()


def test_missing_sensors_are_absent(home: Path) -> None:
    new = home / "acc.csv"
    signal("walk", 20, 4)[["ax", "ay"]].to_csv(new, index=False)
    trained = Trained(home / "run")
    frame = table(trained.model(1), cut(trained, [new]))
    assert set(frame["sensors"]) == {"acc"}
    dead = home / "dead.csv"
    signal("walk", 20, 4).assign(gx=np.nan).to_csv(dead, index=False)
    same = table(trained.model(1), cut(trained, [dead]))
    assert frame["p_walk"].tolist() == same["p_walk"].tolist()


def test_command(home: Path) -> None:
    new = home / "command.csv"
    pd.concat([signal("walk", 10, 6), signal("sit", 10, 5)]).to_csv(new, index=False)
    output = home / "labels.csv"
    words = ["predict", str(home / "run"), str(new), "--newcomer", "-o", str(output)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "10 windows: walk 5, sit 5" in result.output
    assert "normalised by the 10 windows of these recordings" in result.output
    assert len(pd.read_csv(output)) == 10
    few = home / "few.csv"
    signal("sit", 6, 5).to_csv(few, index=False)
    result = CliRunner().invoke(app, ["predict", str(home / "run"), str(few), "--newcomer"])
    assert "normalised by the fleet's training windows" in result.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "whose model: expected either --client"),
        (["--client", "0", "--newcomer"], "whose model"),
        (["--client", "9"], "no client '9'"),
        (["--client", "0", "--normalise", "own"], "are for a newcomer"),
        (["--newcomer", "--round", "1"], "models are kept after round"),
        (["--newcomer", "-o", "labels.xlsx"], "ends in .csv or .parquet"),
    ],
)
def test_refusals(home: Path, words: list[str], expected: str) -> None:
    new = home / "refused.csv"
    signal("sit", 20, 5).to_csv(new, index=False)
    result = CliRunner().invoke(app, ["predict", str(home / "run"), str(new), *words])
    assert isinstance(result.exception, CommunisError)
    assert expected in str(result.exception)


def test_from_python(home: Path) -> None:
    new = home / "python.csv"
    signal("walk", 20, 1).to_csv(new, index=False)
    results = communis.open(home / "run")
    trained = Trained(home / "run")
    frame = results.predict(new)
    windows = cut(trained, [new])
    assert_frame_equal(frame, table(trained.common(scales=windows.scales()), windows))
    assert frame.attrs["normalised_by"] == "the 10 windows of these recordings, without labels"
    (name,) = trained.config.fleet.architectures()
    assert_frame_equal(results.predict([new], model=name), frame)
    assert_frame_equal(results.predict([new], client=0), table(trained.model(0), windows))
    with pytest.raises(CommunisError, match="no recordings are given"):
        results.predict([])
    wrong: Any = "flet"
    with pytest.raises(CommunisError, match="normalise: expected own or fleet, got 'flet'"):
        results.predict(new, normalise=wrong)
    with pytest.raises(CommunisError, match="are for a newcomer"):
        results.predict(new, client=0, normalise="fleet")
    with pytest.raises(CommunisError, match="are for a newcomer"):
        results.predict(new, client=0, model=name)


def test_files_that_cannot_be_read_are_named(home: Path) -> None:
    trained = Trained(home / "run")
    with pytest.raises(CommunisError, match="none\\.csv: no such file"):
        cut(trained, [home / "none.csv"])
    strange = home / "strange.csv"
    pd.DataFrame({"x": [1.0, 2.0]}).to_csv(strange, index=False)
    with pytest.raises(CommunisError, match=r"strange\.csv: has the columns of no .*data init"):
        cut(trained, [strange])
    short = home / "short.csv"
    signal("sit", 1, 5).to_csv(short, index=False)
    with pytest.raises(CommunisError, match="no window of 2 s"):
        cut(trained, [short])


def test_recordings_of_the_run_are_predicted_as_the_run_did(home: Path) -> None:
    """To the bit, in the half precision in which it keeps predictions."""
    trained = Trained(home / "run")
    kept = trained.predictions()
    for client, recordings in kept.groupby("client"):
        model = trained.model(int(client))
        of_client = sorted((home / "data" / f"p{int(client) + 1}").iterdir())
        for file, (_, expected) in zip(of_client, recordings.groupby("recording"), strict=True):
            windows = cut(trained, [file])
            starts = expected["start"] - (60.0 if expected["start"].min() >= 60 else 0.0)
            rows = np.searchsorted(windows.pieces[0].start, starts)
            inputs = {m: torch.from_numpy(x[rows]) for m, x in windows.pieces[0].inputs.items()}
            found = model(inputs).numpy().astype(np.float16)
            assert (found == np.stack(expected["scores"].to_list())).all()


@pytest.mark.parametrize("data", ["", "rate=6.3"])
def test_windows_without_a_whole_number_of_steps(data: str, home: Path, tmp_path: Path) -> None:
    """A window of 0.99 s has 19 steps at 20 Hz. The rate is still 20 Hz."""
    config = configured(home / "data", "data.window=0.99", "run.rounds=1")
    config = replace(config, data={**config.data, **({"rate": 6.3} if data else {})})
    fleet = config.make_fleet()
    finished(config, tmp_path / "run")
    trained = Trained(tmp_path / "run")
    assert trained.format.rates["acc"] == (6.3 if data else 20)
    piece = cut(trained, [home / "data" / "p1" / "sit_1.csv"]).pieces[0]
    rows = np.flatnonzero((fleet.windows.recording == 0) & (fleet.windows.start < 30))
    assert len(rows) > 10
    same = np.searchsorted(piece.start, fleet.windows.start[rows])
    assert np.array_equal(piece.inputs["acc"][same], fleet.windows.inputs["acc"][rows])


def test_recordings_with_other_sensors(home: Path, tmp_path: Path) -> None:
    """Together, and where the model takes none of them."""
    both, acc, gyro = tmp_path / "both.csv", tmp_path / "acc.csv", tmp_path / "gyro.csv"
    whole = signal("walk", 20, 4)
    whole.to_csv(both, index=False)
    whole[["ax", "ay"]].to_csv(acc, index=False)
    whole[["gx"]].to_csv(gyro, index=False)
    trained = Trained(home / "run")
    windows = cut(trained, [both, acc, gyro])
    assert {m: len(x) for m, x in windows.inputs().items()} == {"acc": 30, "gyro": 30}
    frame = table(trained.common(scales=windows.scales(), recorded=windows.inputs()), windows)
    assert frame["sensors"].value_counts().to_dict() == {"acc+gyro": 10, "acc": 10, "gyro": 10}
    roles = ["fleet.roles=[{modalities=['acc'], count=1}, {modalities=['acc', 'gyro'], count=3}]"]
    finished(configured(home / "data", "run.rounds=1", *roles), tmp_path / "run")
    trained = Trained(tmp_path / "run")
    narrow = next(i for i in trained.clients if trained.model(i).modalities == ("acc",))
    frame = table(trained.model(narrow), cut(trained, [both, gyro]))
    assert set(frame["recording"]) == {str(both)}
    assert set(frame["sensors"]) == {"acc"}
    with pytest.raises(CommunisError, match="have gyro, and the model takes acc: choose another"):
        table(trained.model(narrow), cut(trained, [gyro]))


def test_files_of_one_recording_s_sensors_belong_together(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    manifest = MANIFEST.replace('pattern = "{subject}/{label}_{trial}.csv"', "")
    for name in ("acc", "gyro"):
        pattern = f'pattern = "{{subject}}_{{label}}_{name}.csv"'
        manifest = manifest.replace(f"[modalities.{name}]", f"[modalities.{name}]\n{pattern}")
    (data / "communis.toml").write_text(manifest)
    for person, kind in product(("p1", "p2"), ("walk", "sit")):
        whole = signal(kind, 60, 3)
        whole[["ax", "ay"]].to_csv(data / f"{person}_{kind}_acc.csv", index=False)
        whole[["gx"]].to_csv(data / f"{person}_{kind}_gyro.csv", index=False)
    finished(configured(data, "run.rounds=1"), tmp_path / "run")
    files = [data / "p1_walk_gyro.csv", data / "p1_walk_acc.csv"]
    windows = cut(Trained(tmp_path / "run"), files)
    assert len(windows.pieces) == 1
    assert windows.sensors == ["acc", "gyro"]


def test_a_client_with_less_detail(home: Path, tmp_path: Path) -> None:
    roles = "[{modalities=['acc', 'gyro'], count=4, detail='coarse'}]"
    finished(configured(home / "data", "run.rounds=1", f"fleet.roles={roles}"), tmp_path / "run")
    trained = Trained(tmp_path / "run")
    model = trained.model(0)
    assert (model.format.shapes["acc"], model.format.rates["acc"]) == ((2, 10), 5.0)
    frame = table(model, cut(trained, [home / "data" / "p1" / "sit_1.csv"]))
    kept = trained.predictions().query("client == 0 and recording == 0")
    rows = np.searchsorted(frame["start"], kept["start"])
    probabilities = torch.tensor(np.stack(kept["scores"].to_list())).float().softmax(1)[:, 0]
    assert np.allclose(frame["p_walk"][rows], probabilities, atol=1e-3)  # of half precision


def test_a_folder_with_a_manifest_of_its_own_needs_no_label(home: Path, tmp_path: Path) -> None:
    fast = signal("walk", 20, 3, rate=50).assign(t=np.arange(1000) / 50)
    fast.to_csv(tmp_path / "a.csv", index=False)
    manifest = MANIFEST.partition("[label]")[0].replace("rate = 20", "rate = 50")
    pattern = 'pattern = "{subject}/{label}_{trial}.csv"'
    (tmp_path / "communis.toml").write_text(manifest.replace(pattern, 'pattern = "{subject}.csv"'))
    frame = table(Trained(home / "run").model(0), cut(Trained(home / "run"), [tmp_path]))
    assert (frame["label"] == "walk").all()


def test_windows_of_another_shape_are_refused(home: Path) -> None:
    trained = Trained(home / "run")
    shapes = {"acc": (3, 40), "gyro": (1, 40)}
    trained.__dict__["format"] = replace(trained.format, shapes=shapes)
    with pytest.raises(CommunisError, match=r"acc have shape \(2, 40\), and \(3, 40\) in training"):
        cut(trained, [home / "data" / "p1" / "sit_1.csv"])


def test_no_file_is_replaced(home: Path) -> None:
    new = home / "mine.csv"
    signal("sit", 20, 5).to_csv(new, index=False)
    before = new.read_bytes()
    words = ["predict", str(home / "run"), str(new), "--newcomer", "-o"]
    result = CliRunner().invoke(app, [*words, str(new)])
    assert "mine.csv: there is such a file" in str(result.exception)
    assert new.read_bytes() == before
    result = CliRunner().invoke(app, [*words, str(home / "none" / "x.csv")])
    assert "none: no such folder" in str(result.exception)


def test_a_method_without_a_common_model_says_so(home: Path) -> None:
    finished(configured(home / "data", "method.name=fedper"), home / "fedper")
    with pytest.raises(CommunisError, match="fedper has no common model for somebody who took"):
        Trained(home / "fedper").common()
