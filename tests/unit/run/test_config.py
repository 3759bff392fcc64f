"""Configuration: what is accepted, what is refused and how the refusal reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from communis import Fleet
from communis.core.errors import CommunisError
from communis.core.settings import build
from communis.exchange.topology import Graph, Star
from communis.methods.fedavg import FedAvg
from communis.methods.fedprox import FedProx
from communis.methods.scaffold import Scaffold
from communis.run.config import Config, SchemaError, load, load_cells
from communis.run.presets import about
from communis.run.presets import names as presets


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid_and_survive_being_written(name: str, tmp_path: Path) -> None:
    for config in load_cells(name).values():
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
        ("run.participation=2", "for a number of clients, set cohort"),
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
        (".=1", "expected key=value"),
        ("name.x=1", "name is not a table"),
        ("gird.H.x.run.rounds=1", r"unknown key gird \(did you mean 'grid'\?\)"),
        ("cell.H=3", "cell.H: expected text, got 3"),
        ("cell.H=a/b", "cell.H: 'a/b' cannot be the name of a folder"),
        ("variant=a/b", "variant: 'a/b' cannot be the name of a folder"),
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
    own = ["topology.kind=edges", "topology.edges=[[0,1],[2,1]]"]
    with pytest.raises(CommunisError, match="falls into"):
        load("synthetic", own).make_topology(fleet)
    edges = load("synthetic", [*own, "topology.connected=false"])
    assert edges.make_topology(fleet) == Graph(((0, 1), (1, 2)))


def test_third_party_method_by_dotted_path() -> None:
    config = load("synthetic", ["method.name=communis.methods.fedavg:FedAvg"])
    assert type(config.make_method()).__name__ == "FedAvg"
    with pytest.raises(SchemaError, match="cannot load"):
        load("synthetic", ["method.name=nowhere.at_all:Method"])


GRID = """
name = "trial"
[data]
name = "synthetic"
clients = 3
windows = 15
[fleet]
models = ["cnn_small"]
dropout = { kind = "markov", least = 0.25 }
[method]
name = "fedavg"
lr = 0.5
[run]
rounds = 1

[grid.H.severe]
fleet.suites.preset = "severe"
fleet.models = ["cnn"]
[grid.H.homogeneous]
[grid.I.moderate]
fleet.dropout.preset = "pamap2-moderate"
[grid.I.severe]
fleet.dropout = { preset = "pamap2-severe", least = 0.75 }
"""


def written(folder: Path, text: str) -> str:
    path = folder / "experiment.toml"
    path.write_text(text, "utf-8")
    return str(path)


def test_a_grid_has_a_cell_for_one_level_of_every_axis(tmp_path: Path) -> None:
    found = load_cells(written(tmp_path, GRID))
    assert list(found) == [
        "severe/moderate",
        "severe/severe",
        "homogeneous/moderate",
        "homogeneous/severe",
    ]
    one, other = found["severe/moderate"], found["homogeneous/severe"]
    assert list(one.cell.items()) == [("H", "severe"), ("I", "moderate")]
    assert (one.fleet.suites.preset, other.fleet.suites.preset) == ("severe", "")
    assert (one.fleet.models, other.fleet.models) == (("cnn",), ("cnn_small",))
    dropouts = [(c.fleet.dropout.kind, c.fleet.dropout.preset, c.fleet.dropout.least)
                for c in (one, other)]  # fmt: skip
    assert dropouts == [("markov", "pamap2-moderate", 0.25), ("markov", "pamap2-severe", 0.75)]
    assert {config.run.rounds for config in found.values()} == {1}


def test_one_cell_is_loaded_by_its_levels(tmp_path: Path) -> None:
    source = written(tmp_path, GRID)
    assert load(source, cell="homogeneous/severe") == load_cells(source)["homogeneous/severe"]
    with pytest.raises(SchemaError, match="toml: a grid: choose a cell with --cell; there are"):
        load(source)
    with pytest.raises(SchemaError, match=r"no cell 'severe/sever' \(did you mean 'severe/severe'"):
        load(source, cell="severe/sever")
    with pytest.raises(SchemaError, match="synthetic: without a grid there is no cell 'a/b'"):
        load("synthetic", cell="a/b")


def test_a_run_remembers_its_cell_and_variant(tmp_path: Path) -> None:
    text = GRID.replace("grid.I.", 'grid."times of day".')
    text += "[variants.slow]\nname = 'fedavg'\nlr = 0.01\n"
    config = load(written(tmp_path, text), cell="severe/severe").under("slow")
    again = load(written(tmp_path, config.to_toml()))
    assert again.cell == {"H": "severe", "times of day": "severe"}
    assert (again.variant, again.label, again.method_name) == ("slow", "slow", "fedavg")
    assert not again.variants
    assert again.to_toml() == config.to_toml()
    plain = load("synthetic").to_toml()
    assert "[cell]" not in plain
    assert "variant" not in plain


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "[grid.I.odd]\nfleet.dropout.presett = 'x'",
            "cell severe/odd: unknown key fleet.dropout.p",
        ),
        ("[grid.J.even]\n[grid.J.odd]\nrun.rounds = -1", r"cell severe/moderate/odd: \[run\] rou"),
        ("[grid.lr.0.01]\nmethod.lr = 0.01", r"grid\.lr\.0\.01: .* as in \[grid\.lr\.\"0\.01\"\]"),
        ("[grid.J.'a:b']\nrun.rounds = 2", "cell.J: 'a:b' cannot be the name of a folder"),
        ("[grid.I.odd]\nseed = 3", "grid.I.odd.seed: a level holds parts of the tables data, part"),
        ("[grid.I.odd]\nfleet = 3", "grid.I.odd.fleet: a level holds parts of the tables data"),
        ("[grid.odd]\nfleet.dropout.rate = 1", "grid.odd.fleet.dropout: a level holds parts"),
        ("[grid.I]\nodd = 3", "grid.I.odd: expected a table, got 3"),
        ("[grid]\nodd = 3", r"grid.odd: expected tables such as \[grid.odd.severe\], got 3"),
        ("[grid.odd]", "grid.odd: expected tables"),
        ("[grid.J.odd]\nfleet.suites.preset = 'severe'", "H and J both set fleet.suites.preset"),
        ("[cell]\nH = 'severe'", "cell: names the cell of a single run"),
        ("[levels]\nH = ['severe']", "levels: names the cell of a single run"),
    ],
)
def test_mistakes_in_a_grid_are_named(extra: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=rf"experiment\.toml: .*{message}"):
        load_cells(written(tmp_path, f"{GRID}\n{extra}\n"))


def test_a_grid_is_no_single_configuration() -> None:
    with pytest.raises(SchemaError, match="grid: a single configuration is expected"):
        build(Config, {"grid": {"H": {"severe": {}}}}, "")
    with pytest.raises(SchemaError, match="--set grid: no level of the file; there is no grid"):
        load("synthetic", ["grid=3"])


def test_a_mistake_in_every_cell_is_blamed_on_none(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"experiment\.toml: unknown key run\.round "):
        load_cells(written(tmp_path, GRID), ["run.round=2"])


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("grid.I.sever.fleet.dropout.least=0.5", r" \(did you mean 'grid\.I\.severe'\?\)"),
        ("grid.I.sever={}", r" \(did you mean 'grid\.I\.severe'\?\)"),
        ("grid.J={a={}}", ""),
    ],
)
def test_no_level_is_made_by_setting_it(setting: str, hint: str, tmp_path: Path) -> None:
    message = rf"--set grid[^ ]+: no level of the file{hint}; there are grid\.H\.severe, "
    with pytest.raises(SchemaError, match=message):
        load_cells(written(tmp_path, GRID), [setting])


def test_levels_with_a_dot(tmp_path: Path) -> None:
    source = written(tmp_path, GRID.replace("lr = 0.5", "") + '[grid.lr."0.1"]\nmethod.lr = 0.1\n')
    with pytest.raises(
        SchemaError, match=r'change that: --set grid\.lr\."0\.1"\.method\.lr=\.\.\.'
    ):
        load_cells(source, ["method.lr=0.2"])
    found = load_cells(source, ['grid.lr."0.1".method.lr=0.2'])["severe/severe/0.1"]
    assert found.make_method() == FedAvg(lr=0.2)


def test_a_run_remembers_all_levels_and_how_to_judge(tmp_path: Path) -> None:
    source = written(tmp_path, f"metric = 'macro_f1'\nselect = 'tail'\n{GRID}")
    config = load(source, cell="homogeneous/severe").under("fedprox")
    again = load(written(tmp_path, config.to_toml()))
    levels = {"H": ("severe", "homogeneous"), "I": ("moderate", "severe")}  # as in the file
    assert (config.levels, list(config.levels)) == (levels, ["H", "I"])
    assert (again.levels, list(again.levels)) == (levels, ["H", "I"])
    assert config.metric == again.metric == "macro_f1"
    assert config.select == again.select == "tail"
    plain = load("synthetic").to_toml()
    assert "levels" not in plain
    assert "metric" not in plain
    assert "select" not in plain
    with pytest.raises(SchemaError, match="select: 'best' is not one of 'last', 'common'"):
        load(written(tmp_path, "select = 'best'"))


def test_what_is_set_is_not_undone_by_a_level(tmp_path: Path) -> None:
    source = written(tmp_path, GRID)
    for setting in ("fleet.suites.preset=moderate", "fleet.suites={a=1.0, b=1.0}"):
        key = setting.partition("=")[0]
        with pytest.raises(SchemaError, match=rf"--set {key}: grid.H.severe sets it; change that"):
            load_cells(source, [setting])
    inside = "grid.H.severe.fleet.models=['cnn_large']"  # and elsewhere another
    both = load_cells(source, ["fleet.models=['cnn_small']", inside])
    assert both["severe/severe"].fleet.models == ("cnn_large",)
    found = load_cells(source, ["grid.H.severe.fleet.suites.preset=moderate", "run.rounds=5"])
    assert found["severe/severe"].fleet.suites.preset == "moderate"
    assert found["severe/severe"].run.rounds == 5


VARIANTS = """
[data]
name = "synthetic"
[method]
name = "fedavg"
lr = 0.5
epochs = 7
[methods.fedprox]
mu = 0.25
epochs = 3
[variants.near]
name = "fedprox"
mu = 4.0
"""


def test_a_variant_is_a_method_under_settings_of_its_own(tmp_path: Path) -> None:
    config = load(written(tmp_path, VARIANTS))
    near, plain = config.under("near"), config.under("fedprox")
    assert near.make_method() == FedProx(lr=0.5, epochs=3, mu=4.0)
    assert plain.make_method() == FedProx(lr=0.5, epochs=3, mu=0.25)
    assert (near.label, near.method_name, near.variant) == ("near", "fedprox", "near")
    assert (plain.label, plain.variant) == ("fedprox", "")
    assert near.under("fedprox").variant == ""
    assert config.under("communis.methods.fedavg:FedAvg").label == "FedAvg"


def test_a_variant_can_be_the_method_to_run(tmp_path: Path) -> None:
    source = written(tmp_path, VARIANTS)
    near = load(source, ["method.name=near"])
    assert near == load(source).under("near")
    assert (near.label, near.make_method()) == ("near", FedProx(lr=0.5, epochs=3, mu=4.0))
    assert load(written(tmp_path, near.to_toml())).label == "near"


def test_what_is_set_is_not_undone_by_settings_of_one_method(tmp_path: Path) -> None:
    source = written(tmp_path, VARIANTS)
    own = r"method\.epochs: methods\.fedprox sets it; change that: --set methods\.fedprox\.epochs="
    for name in ("fedprox", "near"):
        with pytest.raises(SchemaError, match=own):
            load(source, [f"method.name={name}", "method.epochs=1"])
        with pytest.raises(SchemaError, match=own):
            load_cells(source, ["method.epochs=1"], compare=["fedavg", name])
    with pytest.raises(SchemaError, match=own):
        load(source, ["method={name='fedprox', epochs=1}"])
    with pytest.raises(SchemaError, match=r"--set method\.mu: variants\.near sets it; change that"):
        load(source, ["method.name=near", "method.mu=1"])
    assert load(source, ["method.epochs=1"]).make_method() == FedAvg(lr=0.5, epochs=1)
    assert (
        load_cells(source, ["method.lr=1", "method.name=fedprox"], ["near"])[""].method["lr"] == 1
    )
    for too in ("methods.fedprox.epochs=2", "methods.fedprox={epochs=2}"):
        both = load_cells(source, ["method.epochs=1", too], compare=["fedavg", "fedprox"])[""]
        epochs = [both.under(name).make_method().epochs for name in both.compare]  # type: ignore[attr-defined]
        assert epochs == [1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["variants.near.epoch=1"], r"near: unknown key method\.epoch \(did you mean 'epochs'"),
        (["variants.near.mu=-1"], r"near: \[method\] fedprox needs mu >= 0"),
        (["variants.near.name=fedproxx"], r"near: no method 'fedproxx' \(did you mean 'fedprox'"),
        (["variants.far.mu=1"], "missing key variants.far.name"),
        (["variants.far=1"], "variants.far: expected a table, got 1"),
        (["variants.fedavg.name=fedprox"], "variants.fedavg: a method has this name"),
        (["variants.a/b.name=fedprox"], "variants.a/b: 'a/b' cannot be the name of a folder"),
        (["compare=['neer']"], r"no method 'neer' \(did you mean 'near'\?\); there are .*, near"),
        (["compare=near"], "compare: expected a list, got 'near'"),
        (
            ["compare=['local']", "method.name=fedprox", "method.mu=1"],
            r"local: unknown key method\.mu",
        ),
    ],
)
def test_mistakes_in_variants_are_named(settings: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=rf"experiment\.toml: .*{message}"):
        load(written(tmp_path, VARIANTS), settings)


def test_the_list_to_compare_is_the_files_own_or_the_users(tmp_path: Path) -> None:
    source = written(tmp_path, 'compare = ["near", "fedavg"]\n' + VARIANTS)
    assert load_cells(source)[""].compare == ("near", "fedavg")
    assert load_cells(source, compare=["local"])[""].compare == ("local",)
    with pytest.raises(SchemaError, match=r"experiment\.toml: no method 'lokal'"):
        load_cells(source, compare=["lokal"])


def test_a_single_run_has_nothing_to_do_with_what_is_compared(tmp_path: Path) -> None:
    """A setting that other methods of the list do not know is no mistake."""
    source = written(tmp_path, 'compare = ["fedavg"]\n[method]\nname = "fedprox"\n')
    assert load(source, ["method.mu=0.5"]).make_method() == FedProx(mu=0.5)
    with pytest.raises(SchemaError, match=r"fedavg: unknown key method\.mu"):
        load_cells(source, ["method.mu=0.5"])


def test_presets_in_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("communis.run.presets.FOLDER", tmp_path)
    (tmp_path / "fedduet").mkdir()
    (tmp_path / "fedduet" / "odd.txt").write_text("no preset")
    text = f"# Ten people, 3.5 hours\n# each. Needs nothing.\n{GRID}"
    (tmp_path / "fedduet" / "trial.toml").write_text(text)
    (tmp_path / "alone.toml").write_text("name = 'alone'\n")
    assert presets() == ["alone", "fedduet/trial"]
    assert about("fedduet/trial") == "Ten people, 3.5 hours each."
    assert about("alone") == ""
    assert load("fedduet/trial", cell="severe/severe").name == "trial"
    with pytest.raises(SchemaError, match=r"preset\W.*did you mean 'fedduet/trial'"):
        load("fedduet/trail")


def test_a_folder_does_not_hide_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "synthetic").mkdir()
    assert load("synthetic").name == "synthetic"
