"""Configuration: what is accepted, what is refused and how the refusal reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from communis import Fleet
from communis.config import Config, SchemaError, load, presets
from communis.methods.scaffold import Scaffold
from communis.topology import Graph, Star


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid_and_survive_being_written(name: str, tmp_path: Path) -> None:
    config = load(name)
    path = tmp_path / "again.toml"
    path.write_text(config.to_toml(), "utf-8")
    again = load(str(path))
    assert again.to_toml() == config.to_toml()
    assert again.make_method() == config.make_method()
    assert again.run == config.run


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.lrr=1", r"preset synthetic: unknown key method\.lrr \(did you mean 'lr'\?\)"),
        ("run.round=3", r"unknown key run\.round \(did you mean 'rounds'\?\)"),
        ("foo=1", "unknown key foo; there are name, seed"),
        ("method.name=fedavgg", r"no method 'fedavgg' \(did you mean 'fedavg'\?\)"),
        ("data.name=sinthetic", r"did you mean 'synthetic'\?"),
        ("run.rounds=many", "run.rounds: expected a whole number, got 'many'"),
        ("run.rounds=true", "expected a whole number, got True"),
        ("method.lr=nan", "method.lr: expected a finite number"),
        ("method.lr=-1", r"\[method\] lr must be positive"),
        ("method.optimizer=sdg", r"'sdg' is not one of .* \(did you mean 'sgd'\?\)"),
        ("run.participation=2", "for a number of clients use cohort"),
        ("fleet.models=['cn']", r"no architecture 'cn' \(did you mean 'cnn'\?\)"),
        ("fleet.roles=[{modalites=['m0'],count=3}]", r"fleet\.roles\[0\]\.modalites"),
        ("fleet.roles=[{modalities=['m0']}]", r"missing key fleet\.roles\[0\]\.count"),
        ("methods.fedfoo.mu=1", "no method 'fedfoo'"),
        ("methods.fedprox.my=1", r"unknown key methods\.fedprox\.my"),
        ("method=3", "method: expected a table, got 3"),
        ("method.name=3", "missing key method.name"),
        ("topology.kind=tree", "is not one of 'star'"),
        ("data.clients=0", "clients must be at least 1"),
        ("seed=-1", "seed: must be at least 0"),
        ("name=a:b", "cannot be the name of a folder"),
        ("method.lr", "expected key=value"),
        ("name.x=1", "name is not a table"),
    ],
)
def test_mistakes_are_named(override: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        load("synthetic", [override])


def test_unreadable_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="neither a file nor a preset"):
        load("sintetic")
    with pytest.raises(SchemaError, match=r"nowhere\.toml: cannot be read"):
        load(str(tmp_path / "nowhere.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\n")
    with pytest.raises(SchemaError, match=r"broken\.toml: not valid TOML"):
        load(str(broken))
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(SchemaError, match="cannot be read"):
        load(str(broken))


def test_settings_for_one_method_only_reach_that_method() -> None:
    config = load("synthetic", ["methods.fedprox.mu=0.5", "method.name=fedprox"])
    assert config.make_method().mu == 0.5  # type: ignore[attr-defined]
    assert (
        load("synthetic", ["methods.fedprox.mu=0.5"]).make_method()
        == load("synthetic").make_method()
    )
    scaffold = load("synthetic", ["method.name=scaffold"]).make_method()
    assert isinstance(scaffold, Scaffold)
    assert scaffold.momentum == 0.0


def test_words_numbers_and_lists_can_be_set() -> None:
    config = load("synthetic", ["name=my-run", "run.rounds=7", "fleet.models=['cnn', 'cnn_small']"])
    assert (config.name, config.run.rounds, config.fleet.models) == (
        "my-run",
        7,
        ("cnn", "cnn_small"),
    )


def test_models_are_dealt_out_evenly_by_seed() -> None:
    fleet = load("synthetic", ["fleet.models=['cnn', 'cnn_small']"]).make_fleet()
    assert isinstance(fleet, Fleet)
    assert sorted(map(str, fleet.models)) == ["cnn"] * 5 + ["cnn_small"] * 5


def test_topologies() -> None:
    fleet = load("synthetic").make_fleet()
    assert isinstance(Config().make_topology(fleet), Star)
    ring = load("synthetic", ["topology.kind=ring"]).make_topology(fleet)
    assert isinstance(ring, Graph)
    assert len(ring.edges) == 10
    edges = load("synthetic", ["topology.kind=edges", "topology.edges=[[0,1],[2,1]]"])
    assert edges.make_topology(fleet) == Graph(((0, 1), (1, 2)))


def test_third_party_method_by_dotted_path() -> None:
    config = load("synthetic", ["method.name=communis.methods.fedavg:FedAvg"])
    assert type(config.make_method()).__name__ == "FedAvg"
    with pytest.raises(SchemaError, match="cannot load"):
        load("synthetic", ["method.name=nowhere.at_all:Method"])
