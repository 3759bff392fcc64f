"""RELIEF's presets: fleets, settings and ablations of the paper, and a round of each on small files
in the owners' official formats."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from communis import RoundRecord, Run
from communis.data.recordings.windows import TEST, TRAIN
from communis.fleet import device
from communis.fleet.fleet import Fleet
from communis.run.config import Config, load_cells
from communis.run.presets import names as presets
from tests.unit.conftest import Write
from tests.unit.data.sources import made_dsads, made_mhealth, made_pamap2, made_stress_predict
from tests.unit.run.presets.test_presets import loaded, settings

RELIEF = tuple(name for name in presets() if name.startswith("relief/"))
OF_PAPER = ("relief/pamap2", "relief/mhealth", "relief/pamap2_moment")
TABLES = ("relief/pamap2", "relief/mhealth", "relief/dsads", "relief/stress_predict")
ABLATIONS = {  # of relief: elastic, cohorts, allocation, mandatory, coverage
    "relief": (True, True, "divergence", True, 0.6),
    "without_elastic": (False, True, "divergence", True, 0.6),
    "without_cohorts": (True, False, "divergence", True, 0.6),
    "without_cohorts_free": (True, False, "divergence", False, 0.0),
    "random_allocation": (True, True, "random", True, 0.6),
    "random_allocation_free": (True, True, "random", False, 0.0),
    "coverage_0": (True, True, "divergence", True, 0.0),
    "coverage_40": (True, True, "divergence", True, 0.4),
    "coverage_80": (True, True, "divergence", True, 0.8),
}
AVERAGES = {  # of fedavg: whole, uniform, mask_mode
    "fedavg": (True, True, "feature"),
    "fedavg_keywise": (False, True, "feature"),
    "fedavg_zeros": (True, True, "input_zero"),
}
SUITES = (("acc", "gyro", "mag"), ("acc", "gyro"), ("acc",))
Written = Callable[[Write], Path]
SMALL = ("rounds=1", "workers=1", "cohort=3", "eval_clients=2")


def fleet_of(n: int) -> Mapping[tuple[str, ...], int]:
    """How many have which sensors, in the paper's proportion."""
    return dict(zip(SUITES, (3 * n, 3 * n, 2 * n), strict=True))


def pamap2(folder: Path) -> None:
    """All nine people, two activities of 20 s: 15 windows each, ten of them in the gap."""
    first = made_pamap2.write(folder, made_pamap2.rows([1] * 2000 + [24] * 2000))
    for subject in range(102, 110):
        shutil.copy(first, first.with_name(f"subject{subject}.dat"))


def mhealth(folder: Path) -> None:
    """All ten people, two activities of 20 s."""
    first = made_mhealth.write(folder, [1] * 1000 + [12] * 1000)
    for subject in range(2, 11):
        shutil.copy(first, first.with_name(f"mHealth_subject{subject}.log"))


def dsads(folder: Path) -> None:
    """All eight people, two activities of ten windows each."""
    for activity, person, segment in product((1, 19), range(1, 9), (1, 2)):
        made_dsads.write(folder, activity, person, segment)


def stress_predict(folder: Path) -> None:
    """Fifteen people for ten minutes each; the first task is long enough to be cut in three."""
    home = folder / "Stress-Predict"
    times = made_stress_predict.times(("9:29", "9:34"), ("9:35", "9:36"), ("9:37", "9:38"))
    first = made_stress_predict.person(home, "S01")
    people = [f"S{number:02d}" for number in range(1, 16)]
    for name in people[1:]:
        shutil.copytree(first, first.with_name(name))
    for name in people:
        made_stress_predict.tags(home, name, [])
    made_stress_predict.log(home, dict.fromkeys(people, times))


@dataclass(frozen=True)
class Experiment:
    """What a preset makes of the files."""

    write: Write
    people: int
    shapes: Mapping[str, tuple[int, int]]  # channels and steps of a window
    classes: int
    changes: Sequence[str] = ()
    cell: str = ""


INERTIAL = {"acc": (9, 25), "gyro": (9, 25), "mag": (9, 25)}
EXPERIMENTS = {
    "relief/pamap2": Experiment(
        pamap2, 8, {"acc": (9, 256), "gyro": (9, 256), "mag": (9, 256), "heart": (1, 256)}, 12
    ),
    "relief/mhealth": Experiment(
        mhealth, 10, {"acc": (9, 256), "gyro": (6, 256), "mag": (6, 256), "ecg": (2, 256)}, 12
    ),
    "relief/dsads": Experiment(dsads, 8, INERTIAL, 19),
    "relief/dsads_gaps": Experiment(dsads, 8, INERTIAL, 19, cell="100x"),
    "relief/dsads_sizes": Experiment(dsads, 24, INERTIAL, 19, ["partition.least=1"], "24"),
    "relief/dsads_lora": Experiment(dsads, 8, INERTIAL, 19, ["fleet.weights=random"]),
    "relief/stress_predict": Experiment(
        stress_predict, 15,
        {"acc": (3, 960), "bvp": (1, 1920), "eda": (1, 120), "temperature": (1, 120),
         "heart": (1, 30)}, 2,
    ),
}  # fmt: skip


def made(name: str, written: Written, *changes: str) -> tuple[Config, Fleet]:
    """A preset on few files: one round, one epoch of at most two steps."""
    expected = EXPERIMENTS[name]
    small = [*(f"run.{change}" for change in SMALL), "method.epochs=1", "method.max_steps=2"]
    small = [f"data.folder={written(expected.write)}", *small, *expected.changes, *changes]
    config = load_cells(name, small)[expected.cell]
    return config, config.make_fleet()


def last_round(config: Config, fleet: Fleet) -> RoundRecord:
    with Run(fleet, config.make_method(), config.run) as run:
        *_, record = run
    assert not record.refused
    assert math.isfinite(record.loss)
    assert all(map(math.isfinite, record.scores.values()))
    return record


@pytest.mark.parametrize("name", RELIEF)
def test_relief_and_fedavg_are_the_papers(name: str) -> None:
    """FedAvg is what everything is compared with: whole models, all clients alike."""
    for cell, config in loaded(name).items():
        assert config.compare[0] == "fedavg"
        assert config.compare[-1] == config.method_name == "relief"
        found = {
            entry: settings(name, cell, entry) for entry in {*config.compare, *config.variants}
        }
        for entry, own in found.items():
            assert (own["optimizer"], own["batch"]) == ("adam", 32)
            assert own["lr"] == (0.001 if name in OF_PAPER else found["fedavg"]["lr"])
            if entry in ABLATIONS:
                keys = ("elastic", "cohorts", "allocation", "mandatory", "coverage")
                assert tuple(own[key] for key in keys) == ABLATIONS[entry]
                assert own["gamma"] == 0.9
            if entry in AVERAGES:
                keys = ("whole", "uniform", "mask_mode")
                assert tuple(own[key] for key in keys) == AVERAGES[entry]
            else:
                assert own.get("whole", True), entry
                assert own.get("uniform", True), entry
            if "stage1" in own:
                assert 2 * own["stage1"] == config.run.rounds
        assert found.get("fedprox", {"mu": 0.01})["mu"] == 0.01


@pytest.mark.parametrize("name", TABLES)
def test_all_ablations_and_averages_are_there(name: str) -> None:
    (config,) = loaded(name).values()
    assert set(config.variants) == {*ABLATIONS, *AVERAGES} - {"relief", "fedavg"}


@pytest.mark.parametrize("name", RELIEF)
def test_everybody_takes_part_and_the_common_model_is_scored(name: str) -> None:
    for config in loaded(name).values():
        plan = config.run
        assert (plan.participation, plan.cohort, plan.eval_clients) == (1, 0, 0)
        assert plan.eval_whole
        assert (plan.pairs, plan.pairs_in) == (True, "evaluated")
        assert config.clock.mode == "flop_prop"
        assert config.metric == "macro_f1"


@pytest.mark.parametrize("name", OF_PAPER)
def test_windows_rounds_and_devices_of_the_paper(name: str) -> None:
    (config,) = loaded(name).values()
    data = config.make_source()
    assert (data.window, data.stride, data.group) == (5.12, 1, "sensor")
    assert (data.split, data.shares, data.gap) == ("time", (0.8, 0, 0.2), 1)
    assert (config.run.rounds, settings(name, "", "relief")["epochs"]) == (200, 5)
    rare = "ecg" if name == "relief/mhealth" else "heart"
    low = 4 if name == "relief/mhealth" else 2
    assert [(role.count, role.suite, role.device) for role in config.fleet.roles] == [
        (3, tuple(sorted((*SUITES[0], rare))), "relief-full"),
        (3, SUITES[1], "relief-mid"),
        (low, SUITES[2], "relief-low"),
    ]


def test_gaps_between_the_fastest_and_the_slowest_device() -> None:
    for cell, config in loaded("relief/dsads_gaps").items():
        roles = config.fleet.roles
        assert {role.suite: role.count for role in roles} == fleet_of(1)
        full, mid, low = (device.find(role.device).flops for role in roles)
        assert full / low == pytest.approx(float(cell.removesuffix("x")))
        assert low < mid < full


def test_sizes_keep_the_proportion_of_the_paper() -> None:
    for cell, config in loaded("relief/dsads_sizes").items():
        n = config.partition.per_owner
        assert int(cell) == 8 * n
        assert {role.suite: role.count for role in config.fleet.roles} == fleet_of(n)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_fleet_and_a_round_on_official_files(name: str, written: Written) -> None:
    config, fleet = made(name, written)
    expected, windows = EXPERIMENTS[name], fleet.windows
    assert {m: x.shape[1:] for m, x in windows.inputs.items()} == dict(expected.shapes)
    assert windows.task.classes == expected.classes
    assert len(fleet) == expected.people
    pairs = zip(fleet.clients_of, windows.split, strict=True)
    assert set(pairs) >= set(product(range(len(fleet)), (TRAIN, TEST)))
    assert np.unique(fleet.devices).size == 3

    views = ("", "_pooled", "@all", *(f"@only_{m}" for m in windows.modalities))
    views = (*views, "_pooled@all", *(f"_pooled@only_{m}" for m in windows.modalities))
    for entry in ("relief", "fedavg"):
        record = last_round(config.under(entry), fleet)
        assert {f"test.macro_f1{view}" for view in views} <= set(record.scores)
        assert record.virtual_seconds > 0
        assert record.virtual_joules > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relief/dsads", "relief/dsads_lora"])
def test_everything_that_is_compared_runs(name: str, written: Written) -> None:
    """For two rounds: RELIEF begins to choose in the second."""
    few = ("run.rounds=2", "run.eval_every=0", "run.cohort=8", "method.max_steps=1")
    config, fleet = made(name, written, *few)
    for entry in config.compare:
        last_round(config.under(entry), fleet)
