"""Predictions for new recordings of one's own: as in training, without labels, with any sensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

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


def test_files_that_cannot_be_read_are_named(home: Path) -> None:
    trained = Trained(home / "run")
    with pytest.raises(CommunisError, match="none\\.csv: no such file"):
        cut(trained, [home / "none.csv"])
    strange = home / "strange.csv"
    pd.DataFrame({"x": [1.0, 2.0]}).to_csv(strange, index=False)
    with pytest.raises(CommunisError, match=r"strange\.csv: has the columns of no sensor"):
        cut(trained, [strange])
    short = home / "short.csv"
    signal("sit", 1, 5).to_csv(short, index=False)
    with pytest.raises(CommunisError, match="no window of 2 s"):
        cut(trained, [short])


def test_a_method_without_a_common_model_says_so(home: Path) -> None:
    finished(configured(home / "data", "method.name=fedper"), home / "fedper")
    with pytest.raises(CommunisError, match="fedper has no common model for somebody who took"):
        Trained(home / "fedper").common()
