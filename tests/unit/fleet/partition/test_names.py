"""Clients keep the own names of subjects and scenes; virtual clients have none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from communis import FedAvg, Fleet, Plan, Run, Windows
from communis.core.streams import Streams
from communis.fleet.partition.settings import Partition
from communis.fleet.settings import FleetConfig
from communis.results import Results
from communis.results.compare import collect
from communis.results.report.page import write
from tests.unit.small import TINY, windows

SPLIT = (0, 0, 0, 1, 2, 0, 0, 2, 0, 2)
OWNER = (5, 5, 5, 5, 5, 6, 6, 6, 9, 9)
NAMES = {"subject": {5: "anna", 6: "<b>bo</b>", 9: "anna"}, "scene": {1: "hall", 2: "lab"}}
CALLED = ("anna (0)", "<b>bo</b>", "anna (2)")


def named() -> Windows:
    scene = np.array([1] * 5 + [2] * 5)
    return replace(windows(SPLIT, OWNER), names=NAMES, scene=scene)


@pytest.mark.parametrize(
    ("partition", "names"),
    [
        (Partition(), CALLED),
        (Partition("scene"), ("hall", "lab")),
        (Partition("virtual", per_owner=1, least=1), ()),
        (Partition("quantity", clients=2, least=1, alpha=50), ()),
    ],
)
def test_the_partition_decides_about_names(partition: Partition, names: tuple[str, ...]) -> None:
    data = named()
    fleet = FleetConfig().make(data, partition, Streams())
    assert tuple(fleet.names) == names
    assert fleet.called(0) == (names[0] if names else "client 0")
    without = FleetConfig().make(replace(data, names={}), partition, Streams())
    assert tuple(without.names) == ()
    assert without.digest == fleet.digest


def test_names_are_one_short_printable_line() -> None:
    strange = "an\x1b[31mna\n" + 100 * "x"
    data = replace(named(), names={"subject": {5: strange, 6: "bo"}})
    name, other, unknown = Fleet.of(data).names
    assert name.isprintable()
    assert len(name) < 70
    assert (other, unknown) == ("bo", "")


def test_names_reach_the_results(tmp_path: Path) -> None:
    """As text: they may look like markup."""
    fleet = Fleet.of(named(), models=(TINY,))
    folder = tmp_path / "run"
    config = 'seed = 0\n[method]\nname = "fedavg"\n[run]\nrounds = 1\n'
    with Run(fleet, FedAvg(), Plan(rounds=1), folder=folder, config=config) as run:
        list(run)
    about = json.loads((folder / "fleet.json").read_text("utf-8"))
    assert [client["name"] for client in about["clients"]] == list(CALLED)
    results = Results.read(folder)
    for frame in (results.client_scores, results.clients, results.sensors):
        assert set(frame["name"]) <= {*CALLED}
        assert set(frame["name"])
    path = write(collect([folder]), tmp_path / "report.html", "accuracy", "named")
    page = path.read_text("utf-8")
    assert "&lt;b&gt;bo&lt;/b&gt;: a+b" in page
    assert "<b>bo</b>" not in page
