"""A power cut at any moment costs at most the rounds since the last checkpoint, and no bit."""

from __future__ import annotations

import ctypes
import errno
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Fleet, Plan, Run
from communis.core import disk
from communis.exchange.privacy.settings import PrivacyConfig
from communis.fleet.attack import Attack
from communis.run.backends.executor import FIRST
from communis.run.config import load
from tests.faults.volatile import PowerCut, Volatile
from tests.fleets import make, mixed_fleet

CUTS = 12  # of each experiment, spread over its whole length


def liars() -> Fleet:
    return replace(mixed_fleet(), attack=Attack("replay", (1,)))


def late_liars() -> Fleet:
    return replace(mixed_fleet(), attack=Attack("replay", (1, 2), start=3))


def gaps() -> Fleet:
    """With a trace in the folder."""
    config = load("synthetic", ("data.clients=4", "data.windows=15", "data.steps=16",
                                "fleet.roles=[{modalities=['m0','m1'],count=4}]",
                                "fleet.dropout.kind=iid", "fleet.dropout.rate=0.4"))  # fmt: skip
    return config.make_fleet()


TIMED = ("seconds", "digest")  # how keys of a record begin that depend on the clock
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "private states": {"method": make("fedper")},
    "what an optimiser carries": {"method": make("local", carry=True, momentum=0.9)},
    "a server's notes": {"method": make("relief")},
    "an attacker's first message": {"method": make("fedavg"), "fleet": liars},
    "a privacy budget": {
        "method": make("fedavg"),
        "privacy": PrivacyConfig(mode="local", noise=0.1),
    },
    "an attacker's first message, later": {
        "method": make("fedavg"),
        "fleet": late_liars,
        "checkpoint_every": 2,
    },
    "sensors that fall silent": {"method": make("fedper"), "fleet": gaps},
    "a privacy budget of private states": {
        "method": make("fedper"),
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
                {key: value for key, value in record.items() if not key.startswith(TIMED)}
                for record in records
            ]
        elif name != "lock":
            found[name] = path.read_bytes()
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="opens no folders")
def test_what_a_checkpoint_relies_on_is_synced_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File by file, as where no call syncs all at once: the run's folder in those above it, its
    rooms, and all files in them; older private states are removed afterwards only."""
    done: list[tuple[str, Path]] = []
    sync, replaced, removed = disk._sync_entry, disk.replace_file, disk.remove

    def noted(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def operation(path: Path, *arguments: Any) -> None:
            done.append((name, path))
            real(path, *arguments)

        return operation

    monkeypatch.setattr(disk, "_syncfs", lambda: None)
    monkeypatch.setattr(disk, "_sync_entry", noted("sync", sync))
    monkeypatch.setattr(disk, "replace_file", noted("replace", replaced))
    monkeypatch.setattr(disk, "remove", noted("remove", removed))
    folder = tmp_path / "new" / "newer" / "run"
    with started(folder, "a privacy budget of private states") as run:
        records, before = iter(run), set[Path]()
        for round in (1, 2, 3):
            next(records)
            checkpoint = done.index(("replace", folder / "checkpoint.safetensors"))
            synced = {path for name, path in done[:checkpoint] if name == "sync"}
            put = {path for name, path in done[:checkpoint] if name == "replace"}
            new = {path for path in folder.rglob("*") if path not in before}
            kept = {folder / "checkpoint.safetensors", folder / "previous.safetensors"}
            assert new - kept - {folder / "lock"} - synced - put == set(), round
            assert folder / "records.jsonl" in synced
            assert not [path for name, path in done[:checkpoint] if name == "remove"]
            if round == 1:
                assert {tmp_path, tmp_path / "new", tmp_path / "new" / "newer"} <= synced
                assert {
                    folder,
                    folder / "clients",
                    folder / "links.arrows",
                    folder / "log.arrows",
                } <= synced
            removes = [path for name, path in done[checkpoint:] if name == "remove"]
            assert bool(removes) == (round == 3)  # the states of two checkpoints are kept
            before = set(folder.rglob("*"))
            done.clear()


def failing(number: int) -> Callable[[int], int]:
    """A system call that fails."""

    def call(handle: int) -> int:
        ctypes.set_errno(number)
        return -1

    return call


@pytest.mark.skipif(sys.platform == "win32", reason="no such call")
def test_an_error_while_syncing_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("a")
    monkeypatch.setattr(disk, "_syncfs", lambda: failing(errno.EIO))
    with pytest.raises(CommunisError, match=r"Input/output error.; the disk may be failing") as e:
        disk.sync(tmp_path)
    assert str(tmp_path) in str(e.value)
    monkeypatch.setattr(disk, "_syncfs", lambda: failing(errno.ENOSYS))
    disk.sync(tmp_path)  # then file by file


def test_a_first_message_after_the_checkpoint_is_made_again(tmp_path: Path) -> None:
    """It was not synced, so a cut may leave a part of it."""
    name = "an attacker's first message, later"
    with started(tmp_path / "whole", name) as whole:
        list(whole)
    run = started(tmp_path / "cut", name)
    while run.round < 3:  # the attack begins, and the checkpoint is of round 2
        next(iter(run))
    abandoned(run)
    later = sorted((tmp_path / "cut" / "clients").glob("*-000003.safetensors"))
    attackers = [path for path in later if FIRST.encode() in path.read_bytes()]
    assert len(attackers) == 2
    for path in attackers:
        path.write_bytes(path.read_bytes()[:100])
    with started(tmp_path / "cut", name) as again:
        list(again)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_survives_power_cuts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    volatile = Volatile(whole)
    with monkeypatch.context() as patched:
        volatile.install(patched)
        with started(whole, name) as run:
            list(run)
    expected = content(whole)
    moments = np.unique(np.linspace(1, volatile.operations - 1, CUTS).astype(int))
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
