"""UMEDA's presets: every sweep changes what it says and nothing else, and they run on generated
people and on small files in the owners' official formats."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import Run
from communis.core.settings import table_of
from communis.methods.umeda import Umeda
from communis.run.config import Config, load_cells
from communis.run.presets import names as presets
from tests.unit.data.sources import made_mmfi, made_reli11d, made_utd_mhad
from tests.unit.run.presets.test_presets import loaded, settings

UMEDA = tuple(name for name in presets() if name.startswith("umeda/"))
SGD = ("scaffold", "fednova")  # their mathematics is that of plain gradient steps
SWEEPS: Mapping[str, Sequence[str]] = {  # what levels may set, against the preset that comes first
    "umeda/models": ["fleet.models", "fleet.sglt"],
    "umeda/epsilon": ["privacy.mode", "privacy.epsilon", "fleet.normalise", "fleet.targets"],
    "umeda/kappa": ["privacy.mode", "privacy.epsilon", "privacy.kappa"],
    "umeda/clip": ["privacy.mode", "privacy.epsilon", "privacy.clip"],
    "umeda/gate": ["fleet.sglt"],
    "umeda/temperature": ["fleet.sglt"],
    "umeda/rank": ["fleet.sglt"],
    "umeda/missing": ["fleet.types", "fleet.dropout_test"],
    "umeda/resolution": ["fleet.types"],
    "umeda/dirichlet": ["data.skew"],
    "umeda/controls": [],
    "umeda/table1": [],
}
SMALL = ("run.rounds=1", "run.workers=1", "run.eval_clients=1", "method.max_steps=1")


def everything(config: Config) -> dict[str, Any]:
    """All settings but those of methods, as `table.key`."""
    tables = {
        "data": table_of(config.make_source()),
        "partition": asdict(config.partition),
        "fleet": asdict(config.fleet),
        "privacy": asdict(config.privacy),
        "run": asdict(config.run),
    }
    return {f"{name}.{key}": v for name, table in tables.items() for key, v in table.items()}


def scored(config: Config, entry: str) -> dict[str, float]:
    """The scores after a round of it."""
    single = config.under(entry)
    fleet = single.make_fleet()
    with Run(fleet, single.make_method(), single.run, privacy=single.privacy) as run:
        (record,) = run
    assert not record.refused
    assert math.isfinite(record.loss)
    return dict(record.scores)


@pytest.mark.slow
@pytest.mark.parametrize("name", UMEDA)
def test_everybody_trains_alike_and_no_seed_chose_itself(name: str) -> None:
    for cell, config in loaded(name).items():
        assert config.seed == 1
        entries = dict.fromkeys([*config.compare, *config.variants])
        found = [settings(name, cell, entry) for entry in entries if entry not in SGD]
        alike = ("optimizer", "lr", "weight_decay", "batch", "epochs", "max_steps")
        assert len({tuple(own[key] for key in alike) for own in found}) == 1
        assert (found[0]["optimizer"], found[0]["weight_decay"]) == ("adamw", 1e-4)
        assert found[0]["epochs"] >= found[0]["max_steps"]  # so that clients with a batch can


@pytest.mark.parametrize("name", UMEDA)
def test_diffusion_has_enough_clients(name: str) -> None:
    """With fewer the mean would be taken, and nothing would be tried; one level shows that."""
    for cell, config in loaded(name).items():
        methods = [config.under(entry).make_method() for entry in config.compare]
        clients = {"umeda/utd_mhad": 8, "umeda/mmfi": 40, "umeda/reli11d": 8 * 10}
        trained = config.run.size(clients.get(name) or config.make_source().clients)
        if any(isinstance(method, Umeda) for method in methods):
            assert (trained >= Umeda.least_clients) == (
                (name, cell) != ("umeda/participation", "0.05")
            )


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_change_what_they_say(name: str) -> None:
    world = everything(loaded("umeda/world")[""])
    told = [everything(config) for config in loaded(name).values()]
    for found in told:
        assert {key for key, value in found.items() if value != world[key]} <= {*SWEEPS[name]}
    distinct = {repr({key: found[key] for key in SWEEPS[name]}) for found in told}
    assert len(distinct) == len(told)


@pytest.mark.parametrize("name", ["umeda/controls", "umeda/epsilon", "umeda/kappa", "umeda/clip"])
def test_the_paper_to_the_letter(name: str) -> None:
    """Algorithm 1, the numbers of Section 4.1, and nothing that would catch its sample."""
    letter = {
        "consensus": "diffusion",
        "upload": "full",
        "lr_server": 1.0,
        "basis": "theta",
        "warmup": 0,
        "residual": "drop",
        "align": False,
        "sampler": "sample_mean",
        "samples": 1,
        "sigma_min": 0.01,
        "sigma_max": 50.0,
        "reverse_steps": 50,
        "trust_region": 0.0,
        "least_clients": 1,
        "score_output": "raw",
        "score_width": 512,
        "score_decay": False,
        "score_keep": 1.0,
    }
    for cell in loaded(name):
        found = settings(name, cell, "literal")
        assert {key: found[key] for key in letter} == letter


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "warmup"), [("literal", 0), ("single_sample", 3)])
def test_one_sample_is_drawn_and_taken(entry: str, warmup: int) -> None:
    """In every round after the warm-up, wherever it lies."""
    small = ["data.windows=27", f"variants.{entry}.score_width=16"]
    changes = [*SMALL, *small, "run.rounds=5"]
    config = load_cells("umeda/controls", changes)[""].under(entry)
    with Run(config.make_fleet(), config.make_method(), config.run) as run:
        notes = [run.method.notes(run.server, -1) for _ in run]
    assert [note["umeda/used"] for note in notes] == [0] * warmup + [1] * (5 - warmup)
    assert all(note["umeda/fallback"] == note["umeda/not_finite"] == 0 for note in notes)
    assert all(note["umeda/distance"] > 0 for note in notes[warmup:])


def test_generated_people_run() -> None:
    config = load_cells("umeda/world", [*SMALL, "data.windows=27", "data.clients=10"])[""]
    scores = scored(config, "umeda")
    assert {"test.action.accuracy", "test.position.rmse", "test.pose.mpjpe"} <= {*scores}


def utd_mhad(folder: Path) -> None:
    """Eight people, two actions of one window in four trials; people are alike."""
    for action in (1, 27):
        for trial in range(1, 5):
            for kind in ("Inertial", "Skeleton"):
                values = getattr(made_utd_mhad, kind.lower())()
                path = made_utd_mhad.write(folder, kind, values, action, trial)
                for person in (1, 2, 4, 5, 6, 7, 8):
                    path.with_name(path.name.replace("s3", f"s{person}")).write_bytes(
                        path.read_bytes()
                    )


def mmfi(folder: Path) -> None:
    """Four people in two rooms, who do an action of six windows; people are alike."""
    first = made_mmfi.recording(folder, "E01/S01/A01", frames=30)
    unread = shutil.ignore_patterns("rgb", "infra*")
    for room, person in ((1, 2), (2, 11), (2, 12)):
        shutil.copytree(first, folder / f"E0{room}/S{person:02d}/A01", ignore=unread)


def reli11d(folder: Path) -> None:
    """Two files; values of a few metres, as those in the owner's are."""
    part = {key: np.sin(v) for key, v in made_reli11d.part(10).items() if key != "img"}
    for name in ("a", "b"):
        made_reli11d.write(folder / f"{name}.pkl", part)


REAL = {
    "umeda/utd_mhad": (utd_mhad, {"action.accuracy", "pose.mpjpe"}, []),
    "umeda/mmfi": (mmfi, {"action.accuracy", "pose.mpjpe", "location.rmse"}, []),
    "umeda/reli11d": (
        reli11d,
        {"pose.mpjpe", "location.rmse"},
        ["partition.per_owner=2", "partition.least=1"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_owners_files_run(name: str, tmp_path: Path) -> None:
    write, expected, changes = REAL[name]
    write(tmp_path)
    sizes = ("fleet.embedding=16", "fleet.sglt.layers=1", "fleet.sglt.heads=2")
    config = load_cells(name, [*SMALL, *sizes, *changes, f"data.folder={tmp_path}"])[""]
    scores = scored(config, "umeda")
    assert {f"test.{metric}" for metric in expected} <= {*scores}
    assert all(math.isfinite(scores[f"test.{metric}"]) for metric in expected)
