"""Runs with networks of the user: the same laws as for the architectures of the library."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from communis import CommunisError, Fleet, Output, Plan, Run
from communis.cli.main import app
from communis.core import plugins
from communis.core.reductions.settings import RobustConfig
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.wire import encode, flatten
from communis.fleet.attack import Attack
from communis.fleet.device import ClockConfig, of_fleet
from communis.models.own import Own
from communis.models.zoo import Architecture
from communis.run.config import load, parse
from tests.fleets import make, mixed_fleet
from tests.own_networks import Blocks, Summed, Tower

PLAN = Plan(rounds=3, workers=1, participation=0.7, eval_every=0)
METHODS = ("fedavg", "fedproto", "fedper", "fedduet", "harmony", "relief")
KINDS = {"encoder": Tower, "whole": Summed, "blocks": Blocks}
# RELIEF needs a block of the fusion for every sensor, which Summed has not.
CASES = [
    (name, kind)
    for name in METHODS
    for kind in (("encoder", "blocks") if name == "relief" else ("encoder", "whole"))
]
cases = pytest.mark.parametrize(("name", "kind"), CASES)


def own_fleet(kind: str, **changes: Any) -> Fleet:
    return mixed_fleet(models=(KINDS[kind],), **changes)


def numbers(run: Run) -> dict[str, Any]:
    """Everything of a finished run that must be reproducible."""
    records = [(r.cohort, r.loss, r.bytes_up, r.bytes_down, r.refused) for r in run.history]
    servers = {a: encode(server).data for a, server in run.servers.items()}
    return {"records": records, "servers": servers, "scores": run.scores().to_csv()}


def finished(name: str, fleet: Fleet, plan: Plan = PLAN, **options: Any) -> Run:
    with Run(fleet, make(name, **_short(name)), plan, **options) as run:
        list(run)
    return run


def _short(name: str) -> dict[str, Any]:
    return {"stage1": 2} if name == "harmony" else {}  # both stages within three rounds


@cache
def expected(name: str, kind: str) -> dict[str, Any]:
    return numbers(finished(name, own_fleet(kind)))


@cases
def test_a_method_trains_them(name: str, kind: str) -> None:
    run = finished(name, own_fleet(kind))
    assert not any(record.refused for record in run.history)
    assert all(torch.isfinite(t).all() for t in flatten(run.server).values())
    assert np.isfinite(run.scores()["value"]).all()
    assert {card.model for card in run.cards} == {f"tests.own_networks:{KINDS[kind].__name__}"}
    assert numbers(run) == expected(name, kind)  # the same seed gives the same bits
    other = finished(name, own_fleet(kind, seed=1))
    assert numbers(other)["scores"] != expected(name, kind)["scores"]


@cases
def test_workers_do_not_change_a_bit(name: str, kind: str) -> None:
    two = replace(PLAN, workers=2)
    assert numbers(finished(name, own_fleet(kind), two)) == expected(name, kind)


@pytest.mark.slow  # workers that are not forked import torch themselves
@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_are_spawned_do_not_change_a_bit(kind: str) -> None:
    two = replace(PLAN, workers=2, start_method="spawn")
    assert numbers(finished("fedavg", own_fleet(kind), two)) == expected("fedavg", kind)


def test_a_class_in_a_function_works_in_forked_workers_only() -> None:
    class Local(Tower):
        pass

    plan = replace(PLAN, workers=2, rounds=1)
    assert finished("fedavg", mixed_fleet(models=(Local,)), plan).history
    with pytest.raises(CommunisError, match="Local: a process that is not forked cannot import"):
        finished("fedavg", mixed_fleet(models=(Local,)), replace(plan, start_method="spawn"))


@cases
def test_interrupt_and_resume_change_nothing(name: str, kind: str, tmp_path: Path) -> None:
    for _ in range(PLAN.rounds):  # stops after every single round
        method = make(name, **_short(name))
        with Run(own_fleet(kind), method, PLAN, folder=tmp_path) as run:
            next(iter(run))
    assert numbers(run) == expected(name, kind)


@pytest.mark.parametrize("name", ["fedavg", "fedproto", "relief"])
def test_own_and_built_in_networks_form_one_fleet(name: str) -> None:
    """With embeddings of one size, prototypes and heads are common."""
    small = Architecture(width=4, embedding=8)
    models = (Own(Tower, embedding=8), small, small, Own(Blocks), small)
    fleet = mixed_fleet(models=models)
    if name == "fedproto":
        assert not any(record.refused for record in finished(name, fleet).history)
        return
    with pytest.raises(CommunisError, match="averages parameters, but clients have"):
        finished(name, fleet)


class Concatenating(Blocks):
    """Its head has as many inputs as the client's sensors have features."""

    def __init__(self, shapes: Any, outputs: int) -> None:
        super().__init__(shapes, outputs)
        self.head = nn.Linear(6 * len(shapes), outputs)

    def join(self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Output:
        fused = torch.cat(list(features.values()), 1)
        return Output(features, fused, fused, self.head(fused))


def test_parameters_whose_shape_depends_on_the_sensors_cannot_be_averaged() -> None:
    fleet = mixed_fleet(models=(Concatenating,))
    words = r"Concatenating: head\.weight has shape .* features added up instead of concatenated"
    with pytest.raises(CommunisError, match=words):
        finished("fedavg", fleet)
    assert finished("local", fleet).history


def test_clients_of_one_network_share_among_themselves() -> None:
    models = (Tower, "cnn_small", Tower, Summed, Summed)
    with Run(mixed_fleet(models=models), make("fedavg", by_model=True), PLAN) as run:
        list(run)
    paths = {*flatten(run.server)}
    assert "w/encoders.m1.scale@tests_own_networks_Tower" in paths
    assert "w/fusion.shared.gate@tests_own_networks_Summed" in paths
    assert "w/head.out.bias@cnn_small" in paths


@pytest.mark.parametrize("kind", ["encoder", "whole"])
@pytest.mark.parametrize("buffers", ["private", "average", "recalibrate"])
def test_statistics_of_batchnorm_follow_the_setting(kind: str, buffers: str) -> None:
    with Run(own_fleet(kind), make("fedavg", buffers=buffers), PLAN) as run:
        list(run)
    sent = {path for path in flatten(run.server) if path.endswith("running_mean")}
    assert bool(sent) == (buffers == "average")
    assert np.isfinite(run.scores()["value"]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_fedbn_leaves_their_normalisation_with_the_clients(kind: str) -> None:
    with Run(own_fleet(kind), make("fedbn"), PLAN) as run:
        list(run)
    sent = {*flatten(run.server)}
    kept = {path for card in run.cards for path in card.params if f"w/{path}" not in sent}
    assert kept
    assert all(".norm." in path for path in kept)


@pytest.mark.parametrize("kind", ["encoder", "whole"])
@pytest.mark.parametrize("mode", ["local", "central"])
def test_privacy_protects_their_messages(kind: str, mode: Any) -> None:
    privacy = PrivacyConfig(mode=mode, noise=0.01)
    method = make("fedavg", uniform=True)
    servers = []
    for protection in (PrivacyConfig(), privacy):
        with Run(own_fleet(kind), method, PLAN, privacy=protection) as run:
            list(run)
        assert not any(record.refused for record in run.history)
        servers.append(flatten(run.server))
    assert any(not torch.equal(servers[0][key], servers[1][key]) for key in servers[0])


@pytest.mark.parametrize("kind", ["encoder", "whole"])
def test_attacks_and_robust_rules_know_their_paths(kind: str) -> None:
    fleet = replace(own_fleet(kind), attack=Attack("sign_flip", (1,)))
    run = finished("fedavg", fleet, rule=RobustConfig(rule="median").make())
    assert not any(record.refused for record in run.history)
    assert numbers(run)["servers"] != expected("fedavg", kind)["servers"]


@pytest.mark.parametrize("kind", ["encoder", "whole"])
@pytest.mark.parametrize("mode", ["flop_prop", "exact"])
def test_the_clock_counts_their_work(kind: str, mode: Any) -> None:
    devices = ["relief-full", "relief-mid", "relief-low", "relief-low", "relief-full"]
    clock = ClockConfig(mode=mode)
    fleet = own_fleet(kind, devices=devices, profiles=of_fleet(devices), clock=clock)
    record = finished("fedavg", fleet).history[-1]
    assert record.virtual_seconds > 0
    assert record.virtual_joules > 0


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_their_parameters(kind: str) -> None:
    run = finished("fedavg", own_fleet(kind))
    for record in run.history:
        cards = [run.cards[client] for client in record.cohort]
        numbers_sent = sum(prod(shape) for card in cards for shape in card.params.values())
        assert record.bytes_up == record.bytes_down == 4 * numbers_sent


def test_all_branches_are_held_by_every_client() -> None:
    run = finished("fedavg", own_fleet("whole"))
    with Run(own_fleet("whole"), make("fedavg", whole=True), PLAN) as whole:
        list(whole)
    assert len(whole.cards[0].params) > len(run.cards[0].params)


# --- configurations --------------------------------------------------------------------------

CODE = """
from torch import nn

class Mine(nn.Module):
    def __init__(self, channels, width=4):
        super().__init__()
        self.conv = nn.Conv1d(channels, width, 3)

    def forward(self, x):
        return self.conv(x).relu().mean(2)

class Other(Mine):
    def __init__(self, channels, depth=1):
        super().__init__(channels)

nothing = 3
"""
SMALL = (
    "data.name=synthetic",
    "data.windows=10",
    "data.clients=4",
    "data.steps=16",
    "run.workers=1",
)


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module with networks, and a configuration that names one."""
    (tmp_path / "users_networks.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_trusted", {})
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\nrun.rounds = 2\n[fleet]\nmodels = ["users_networks:Mine"]\nown.width = 3\n'
    )
    yield file
    sys.modules.pop("users_networks", None)


def reloaded(file: Path, text: str) -> None:
    """Writes the module anew, as another process would find it."""
    module = file.with_name("users_networks.py")
    module.write_text(text)
    sys.modules.pop("users_networks", None)
    for cached in module.parent.glob("__pycache__/users_networks.*"):
        cached.unlink()


def test_a_configuration_names_them(networks: Path) -> None:
    with pytest.raises(CommunisError, match="'users_networks:Mine' is code outside of communis"):
        load(str(networks), SMALL)
    plugins.trust()
    config = load(str(networks), SMALL)
    (kind,) = config.make_fleet().models
    assert isinstance(kind, Own)
    assert kind.name == "users_networks:Mine-width=3"
    assert parse(config.to_toml()).fleet == config.fleet
    roles = "fleet.roles=[{modalities=['m0'], count=4, model='users_networks:Other'}]"
    fleet = load(str(networks), [*SMALL, roles, "fleet.own={depth=2}"]).make_fleet()
    assert {str(getattr(m, "name", m)) for m in fleet.models} == {"users_networks:Other-depth=2"}


def test_names_on_the_command_line_are_trusted(networks: Path) -> None:
    plain = networks.with_name("plain.toml")
    plain.write_text('name = "plain"\n')
    for value in ('["users_networks:Mine"]', "['users_networks:Mine', 'cnn']"):
        assert load(str(plain), [f"fleet.models={value}"]).fleet.models
        plugins._trusted.clear()
    assert load(
        str(plain), ["fleet.roles=[{modalities=['m0'],count=1,model='users_networks:Mine'}]"]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("fleet.models=['users_networks:nothing']", "is no class, but int: name a class"),
        ("fleet.models=['users_networks:Absent']", "cannot load 'users_networks:Absent'"),
        ("fleet.models=['users_networks:nn']", "is no class, but module"),
        ("fleet.models=['builtins:dict']", "dict is no class that derives from torch.nn.Module"),
        ("fleet.own.heads=3", "own: no constructor has a parameter heads: users_networks:Mine has"),
        ("fleet.models=['cnn']", "own: width would change nothing, because none of the models is"),
        ("fleet.own.channels=3", "its setting channels is given by the fleet"),
        ("fleet.models=['cnm']", r"no architecture 'cnm' \(did you mean 'cnn'\?\)"),
    ],
)
def test_what_a_configuration_cannot_have_is_refused(
    change: str, words: str, networks: Path
) -> None:
    plugins.trust()
    with pytest.raises(CommunisError, match=words):
        load(str(networks), [*SMALL, change])


def test_a_run_is_not_continued_with_another_network(networks: Path) -> None:
    home = networks.parent / "runs"
    done = CliRunner().invoke(app, ["run", str(networks), *SMALL, "--into", str(home), "--trust"])
    assert done.exit_code == 0, done.output
    plugins._trusted.clear()
    assert CliRunner().invoke(app, ["report", str(home), "-o", str(home / "a.html")]).exit_code == 0
    refused = CliRunner().invoke(app, ["resume", str(home / "mine-fedavg")])
    assert "is code outside of communis" in str(refused.exception)
    text = (home / "mine-fedavg" / "config.toml").read_text()
    (home / "mine-fedavg" / "config.toml").write_text(text.replace("rounds = 2", "rounds = 3"))
    reloaded(networks, CODE.replace("relu()", "tanh()"))
    refused = CliRunner().invoke(app, ["resume", str(home / "mine-fedavg"), "--trust"])
    assert isinstance(refused.exception, CommunisError)
    assert "another source of the networks in fleet.models" in str(refused.exception)
    reloaded(networks, CODE)
    done = CliRunner().invoke(app, ["resume", str(home / "mine-fedavg"), "--trust"])
    assert done.exit_code == 0, done.output


def test_the_folder_of_a_run_in_python_refuses_another_network(
    networks: Path, tmp_path: Path
) -> None:
    plugins.trust()
    fleet = load(str(networks), SMALL).make_fleet()
    with Run(fleet, make("fedavg"), PLAN, folder=tmp_path / "run") as run:
        next(iter(run))
    reloaded(networks, CODE.replace("relu()", "tanh()"))
    changed = load(str(networks), SMALL).make_fleet()
    with pytest.raises(CommunisError, match=r"of another experiment \(method, fleet, networks"):
        Run(changed, make("fedavg"), PLAN, folder=tmp_path / "run")
    reloaded(networks, CODE)
    with Run(
        load(str(networks), SMALL).make_fleet(), make("fedavg"), PLAN, folder=tmp_path / "run"
    ):
        pass


def test_they_can_be_looked_into(networks: Path) -> None:
    words = ["models", "show", "users_networks:Mine", "--window", "3,16", "--set", "own.width=5"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert ["encoders.sensor.conv", "Conv1d", "5", "x", "14", "50"] in map(
        str.split, done.stdout.split("\n")
    )
    for arguments, why in (
        (["users_networks:Mine", "--set", "own.depth=5"], "its constructor has no depth"),
        (["users_networks:Mine", "--set", "models=3"], "unknown key models"),
        (["cnn", "--set", "own.width=5"], "only networks of your own have settings here"),
        (["users_networks:nothing"], "is no class"),
    ):
        refused = CliRunner().invoke(app, ["models", "show", *arguments])
        assert why in str(refused.exception)
    whole = CliRunner().invoke(app, ["models", "show", "tests.own_networks:Summed", "--json"])
    assert '"path": "encoders.sensor.conv"' in whole.stdout, whole.output
