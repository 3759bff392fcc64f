"""A power cut at any moment costs at most the rounds since the last checkpoint, and no bit."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import Fleet, Plan, Run
from communis.privacy.settings import PrivacyConfig
from communis.robust.attacks import Attack
from tests.faults.volatile import PowerCut, Volatile
from tests.fleets import make, mixed_fleet

CUTS = 12  # of each experiment, spread over its whole length


def liars() -> Fleet:
    return replace(mixed_fleet(), attack=Attack("replay", (1,)))


EXPERIMENTS: dict[str, dict[str, Any]] = {
    "private states": {"method": make("fedper")},
    "what an optimiser carries": {"method": make("local", carry=True, momentum=0.9)},
    "a server's notes": {"method": make("relief")},
    "an attacker's first message": {"method": make("fedavg"), "fleet": liars},
    "a privacy budget": {
        "method": make("fedavg"),
        "privacy": PrivacyConfig(mode="local", noise=0.1),
    },
    "few checkpoints": {"method": make("fedrep"), "checkpoint_every": 2},
}


def started(folder: Path, name: str) -> Run:
    about = dict(EXPERIMENTS[name])
    fleet = about.pop("fleet", mixed_fleet)()
    every = about.pop("checkpoint_every", 1)
    plan = Plan(rounds=4, workers=1, eval_every=2, checkpoint_every=every)
    return Run(fleet, about.pop("method"), plan, folder=folder, **about)


def abandoned(run: Run) -> None:
    """What the system does for a process that is gone."""
    run.backend.close()
    run.folder.close()


def content(folder: Path) -> dict[str, Any]:
    """Every file of a run, without the seconds that it took."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if name == "records.jsonl":
            records = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [
                {key: value for key, value in record.items() if not key.startswith("seconds")}
                for record in records
            ]
        elif name != "lock":
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_survives_power_cuts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    disk = Volatile(whole)
    with monkeypatch.context() as patched:
        disk.install(patched)
        with started(whole, name) as run:
            list(run)
    expected = content(whole)
    moments = np.unique(np.linspace(1, disk.operations - 1, CUTS).astype(int))
    for moment in moments.tolist():
        folder = tmp_path / f"cut{moment}"
        folder.mkdir()
        cut = Volatile(folder, cut_at=moment, rng=np.random.default_rng(moment))
        with monkeypatch.context() as patched:
            cut.install(patched)
            run = None
            with suppress(PowerCut):
                run = started(folder, name)
                for _ in run:
                    pass
                run.save()
            if run is not None:
                abandoned(run)
        cut.lose()
        with started(folder, name) as again:
            list(again)
        assert content(folder) == expected, f"after a cut before operation {moment}"
