"""FedDUET end to end on a small generated fleet: what missing sensors do to scores and sigma_f."""

from __future__ import annotations

from pathlib import Path

import pytest

from communis import Run
from communis.results.compare import collect
from communis.results.correlation import spearman
from communis.results.uncertainty import SCORE, UNCERTAINTY, points
from communis.run.config import load_cells

pytestmark = pytest.mark.slow
FILE = """
name = "small"
compare = ["fedavg", "fedduet"]
fleet.models = ["tpn_mini"]
method = { name = "fedduet", lr = 0.02, momentum = 0.9, epochs = 2 }
run = { rounds = 10, eval_every = 0, eval_subsets = "own", workers = 1 }
[data]
name = "synthetic"
clients = 6
windows = 80
modalities = 5
channels = 2
steps = 32
classes = 5
skew = 10.0
[grid.fleet.complete]
fleet.suites.preset = "homogeneous"
[grid.fleet.severe]
fleet.suites.preset = "severe"
fleet.dropout = { kind = "markov", operating = 10.0, missing = 10.0 }
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("grid")
    (home / "small.toml").write_text(FILE, "utf-8")
    for place, config in load_cells(str(home / "small.toml")).items():
        fleet = config.make_fleet()
        for name in config.compare:
            one, folder = config.under(name), home / "runs" / place / name
            text = one.to_toml()
            with Run(fleet, one.make_method(), one.run, folder=folder, config=text) as run:
                list(run)
    return home / "runs"


def test_missing_sensors_cost_fedavg_ten_points(runs: Path) -> None:
    found = {run.place: run.final("macro_f1") for run in collect([runs]) if run.method == "fedavg"}
    assert found["fleet complete"] - found["fleet severe"] > 0.1


def test_sigma_f_is_higher_where_scores_are_lower(runs: Path) -> None:
    """Over both fleets; within one it need not be."""
    table = points([run for run in collect([runs]) if run.method == "fedduet"])
    assert len(table) == 12
    assert spearman(table[UNCERTAINTY], table[SCORE]).rho < 0
    means = table.groupby("place")[UNCERTAINTY].mean()
    assert means["fleet severe"] > means["fleet complete"]
