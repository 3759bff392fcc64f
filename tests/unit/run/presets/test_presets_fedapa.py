"""FedAPA's presets: settings, fleets and sweeps, and a round of everything that they compare, on
small files in the owners' official formats."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from communis.core.contract import SERVER
from communis.core.errors import CommunisError
from communis.data.recordings.windows import TEST, TRAIN
from communis.fleet.clients import FleetClients
from communis.fleet.fleet import Fleet
from communis.run.config import Config, load_cells
from communis.run.presets import names as presets
from tests.unit.conftest import Write
from tests.unit.data.sources import made_dsads, made_usc_had, made_wical, made_wifi_csi
from tests.unit.run.presets.test_presets import loaded, settings
from tests.unit.run.presets.test_presets_comfed import first_round, parameters

FEDAPA = tuple(name for name in presets() if name.startswith("fedapa/"))
MIXED = ("fedapa/wical_models", "fedapa/world_models")
AVERAGING = {  # what every entry changes of its method
    "fedavg": {},
    "fedavg_average": {"buffers": "average"},
    "fedavg_recalibrate": {"buffers": "recalibrate"},
    "wifederated": {},
    "wifederated_average": {"buffers": "average"},
    "caring": {},
    "caring_average": {"buffers": "average"},
    "caring_uniform": {"low": 1.0},
    "caring_weights": {"uniform": False},
}
PROTOTYPES = ("fedproto", "fedproto_own", "fedpcl", "fedpcl_own")
RIVALS = ("local", *AVERAGING, *PROTOTYPES)
OWN = ("fedapa_average", "fedapa_average_clients", "fedapa", "fedapa_own")
PAPER = {"tau": 0.5, "warmup": 50, "lam_min": 0.0, "lam_max": 1.0}
TUNED = {  # what was chosen on Wi-CaL; entries that are not here have a rate of 0.01
    **{key: {"lr": 0.003} for key in ("wifederated", "wifederated_average", "fedavg_average")},
    **{key: {"lr": 0.03, "low": 0.6} for key in ("caring", "caring_average", "caring_weights")},
    "caring_uniform": {"lr": 0.03},
    **{key: {"lr": 0.03} for key in ("fedproto_own", "fedpcl")},
    **{key: {"lr": 0.003} for key in ("fedapa_average", "fedapa_average_clients", "fedapa")},
    "fedapa_own": {"lam_max": 0.3},
}
TUNED_ON = ("fedapa/wical", "fedapa/wical_models")
SWEEPS = {  # what every variant changes
    "fedapa/wical_warmup": {f"warmup_{n}": {"warmup": n} for n in (25, 100)},
    "fedapa/wical_temperature": {f"tau_{n:02}": {"tau": n / 10} for n in (1, 7, 15)},
    "fedapa/wical_lambda": {f"static_{n:02}": {"warmup": 0, "lam_max": n / 10} for n in (1, 5, 10)},
}
EMBEDDING = "fedapa/wical_embedding"
SMALL = ("run.rounds=1", "run.workers=1", "run.eval_clients=2", "run.cohort=2")
Written = Callable[[Write], Path]
Fleets = Callable[[str], Fleet]


def wical(folder: Path) -> None:
    """Both rooms on three days, empty and full; days are alike."""
    for room, people in (("small-room", 5), ("medium-room", 10)):
        for P in (0, people):
            rows = made_wical.rows(P).round()
            first = made_wical.write(folder, room, "sess1", f"P={P}.csv", rows)
            for session in ("sess2", "sess3"):
                other = first.parent.parent / session
                other.mkdir(exist_ok=True)
                shutil.copy(first, other)


def usc_had(folder: Path) -> None:
    """Two people, every activity, in three trials of one window."""
    draw = np.random.default_rng(0)
    for person, activity, trial in product((1, 2), range(1, 13), (1, 2, 3)):
        readings = {"sensor_readings": draw.standard_normal((256, 6))}
        made_usc_had.write(folder, person, activity, trial, readings)


def dsads(folder: Path) -> None:
    """One person, every activity, five pieces each; activities are alike."""
    draw = np.random.default_rng(0)
    for segment in range(1, 6):
        made_dsads.write(folder, 1, 1, segment, draw.standard_normal((125, 45)))
    first = folder / "DSADS" / "data" / "a01"
    for activity in range(2, 20):
        shutil.copytree(first, first.with_name(f"a{activity:02d}"))


def wifi_csi(folder: Path) -> None:
    """Six rooms, empty and with 20 people, in recordings of seven windows of 20 packets."""
    draw = np.random.default_rng(0)
    for room, people in product(range(1, 7), (0, 20)):
        made_wifi_csi.save(folder / f"room{room}" / f"{people}.npy", draw.random((140, 256)))


@dataclass(frozen=True)
class Experiment:
    """What a preset makes of small data."""

    shapes: Mapping[str, tuple[int, ...]]
    classes: int
    parameters: Mapping[str, int]  # by model; reckoned from Table II's layers
    write: Write | None = None  # none: the data are generated
    changes: Sequence[str] = ()


COUNTED = Experiment(
    {"csi": (420, 1)},
    11,
    {"tiny_convnet4": 110_859, "middle_convnet4": 18_603, "large_convnet4": 119_851},
    wical,
    ["data.stride=8"],
)
GENERATED = Experiment(
    {"csi": (3, 30, 50)},
    21,
    {"tiny_convnet4": 12_821, "middle_convnet4": 18_981, "large_convnet4": 464_293},
    changes=["data.windows=21"],
)
EXPERIMENTS = {
    "fedapa/wical": COUNTED,
    "fedapa/wical_models": COUNTED,
    "fedapa/world": GENERATED,
    "fedapa/world_models": GENERATED,
    "fedapa/usc_had": Experiment(
        {"acc": (3, 256), "gyro": (3, 256)},
        12,
        {"large_convnet4": 398_060},
        usc_had,
        ["partition.least=3"],
    ),
    "fedapa/dsads": Experiment(
        {"acc": (15, 125), "gyro": (15, 125), "mag": (15, 125)},
        19,
        {"large_convnet4": 202_947},
        dsads,
        ["partition.least=3"],
    ),
    "fedapa/wifi_csi": Experiment(
        {"csi": (1, 242, 20)}, 21, {"large_convnet4": 464_005}, wifi_csi, ["data.packets=2"]
    ),
}


def made(name: str, written: Written, *more: str) -> Config:
    """A preset on little data: one round of few clients."""
    expected = EXPERIMENTS[name]
    folder = [f"data.folder={written(expected.write)}"] if expected.write else []
    return load_cells(name, [*folder, *SMALL, *expected.changes, *more])[""]


@pytest.fixture(scope="module")
def fleets(written: Written) -> Fleets:
    """The fleet of a preset, made once."""
    return cache(lambda name: made(name, written).make_fleet())


def test_what_there_is() -> None:
    assert {*FEDAPA} == {*EXPERIMENTS, *SWEEPS, EMBEDDING}


@pytest.mark.parametrize("name", FEDAPA)
def test_everything_trains_alike(name: str) -> None:
    expected = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.5, "weight_decay": 1e-4}
    expected |= {"batch": 32, "epochs": 1}
    for cell, config in loaded(name).items():
        assert (config.metric, config.select) == ("accuracy", "tail")
        assert (config.run.rounds, config.run.eval_every) == (100, 5)
        for entry in dict.fromkeys([*config.compare, *config.variants]):
            found = settings(name, cell, entry)
            tuned = expected | (TUNED.get(entry, {}) if name in TUNED_ON else {})
            assert {key: found[key] for key in tuned} == tuned
            assert found.get("by_model", False) == (name in MIXED and entry in AVERAGING)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_are_the_papers(name: str) -> None:
    assert loaded(name)[""].compare == (*RIVALS, *OWN)
    for entry in OWN:
        found = settings(name, "", entry)
        changed = {"lam_max": 0.3} if entry == "fedapa_own" and name in TUNED_ON else {}
        assert {key: found[key] for key in PAPER} == PAPER | changed
        adaptive = entry in ("fedapa", "fedapa_own")
        assert found["weights"] == ("adaptive" if adaptive else "average")
        assert found["clients"] == (entry != "fedapa_average")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_variants_change_one_thing(name: str) -> None:
    """Statistics of BatchNorm, each of CARING's two changes, and controls that send nothing."""
    for entry, changed in AVERAGING.items():
        base, found = settings(name, "", entry.partition("_")[0]), settings(name, "", entry)
        tuned = {"lr": 0.003} if entry == "fedavg_average" and name in TUNED_ON else {}
        assert {key: v for key, v in found.items() if v != base[key]} == changed | tuned
    assert settings(name, "", "caring")["uniform"]
    for entry in (*PROTOTYPES, *OWN):
        assert settings(name, "", entry)["exchange"] != entry.endswith("_own")


@pytest.mark.parametrize("name", [*SWEEPS, EMBEDDING])
def test_sweeps_change_one_thing(name: str) -> None:
    """Variants, so that differences are paired; of embeddings cells, as they belong to the
    fleet."""
    wical, changes = loaded("fedapa/wical")[""], SWEEPS.get(name, {})
    for level, config in loaded(name).items():
        assert set(changes) | {"fedapa"} <= set(config.compare)
        for entry, changed in {"fedapa": {}, **changes}.items():
            found = settings(name, level, entry)
            assert {key: found[key] for key in PAPER} == PAPER | changed
        assert config.data == wical.data
        assert config.fleet.models == wical.fleet.models
        assert config.fleet.embedding == int(level or 0)
    assert list(loaded(name)) == (["128", "256", "512"] if name == EMBEDDING else [""])


def test_windows_of_own_recordings_are_the_papers() -> None:
    source = loaded("fedapa/wifi_csi")[""].make_source()
    assert source.window * source.packets == 1000
    assert source.stride == 0
    assert (source.nulls, source.most) == ("table", 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_fleets_are_what_comments_say(name: str, fleets: Fleets) -> None:
    fleet, expected = fleets(name), EXPERIMENTS[name]
    assert {m: x.shape[1:] for m, x in fleet.windows.inputs.items()} == expected.shapes
    assert fleet.windows.task.classes == expected.classes
    assert {*fleet.windows.split} >= {TRAIN, TEST}
    cards = FleetClients(fleet, loaded(name)[""].under("local").make_method()).cards
    assert len(cards) == 6
    assert all(card.sizes["embedding"] == 256 for card in cards)
    sizes = {card.model: parameters(card) for card in cards}
    by_size = [card.model for card in sorted(cards, key=lambda card: (card.samples, card.id))]
    if name in MIXED:
        assert sizes == expected.parameters
        assert by_size == [model for model in expected.parameters for _ in range(2)]
    else:
        assert sizes == {"large_convnet4": expected.parameters["large_convnet4"]}


def test_no_row_of_wical_is_next_to_one_that_tests(written: Written) -> None:
    windows = load_cells("fedapa/wical", [f"data.folder={written(wical)}"])[""].make_fleet().windows
    train, test = windows.split == TRAIN, windows.split == TEST
    for recording in np.unique(windows.recording):
        own = windows.recording == recording
        assert windows.start[own & test].min() - windows.start[own & train].max() == 2
        assert (own & train).sum() == 158
        assert (own & test).sum() == 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedapa/world", "fedapa/usc_had", "fedapa/dsads"])
def test_labels_are_skewed(name: str, fleets: Fleets) -> None:
    """Clients lack classes, and not the same ones."""
    fleet = fleets(name)
    used = fleet.windows.split == TRAIN
    pairs = {*zip(fleet.clients_of[used], fleet.windows.target[used], strict=True)}
    classes = Counter(int(client) for client, _ in pairs)
    assert max(classes.values()) < fleet.windows.task.classes
    assert len({frozenset(c for k, c in pairs if k == client) for client in classes}) == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_compared_runs(name: str, written: Written, fleets: Fleets) -> None:
    """All of it on mixed models; elsewhere FedAPA, as only the data differ."""
    config, counts = made(name, written), EXPERIMENTS[name].classes in (11, 21)
    for entry in config.compare if name in MIXED else ("fedapa",):
        record, _ = first_round(config.under(entry), fleets(name))
        assert (record.bytes_up == 0) == (entry == "local" or entry.endswith("_own"))
        assert ("test.mae" in record.scores) == counts


def test_without_means_by_model_a_mixed_fleet_is_refused(written: Written, fleets: Fleets) -> None:
    config = made("fedapa/wical_models", written, "methods.fedavg.by_model=false")
    with pytest.raises(CommunisError, match="by_model"):
        first_round(config.under("fedavg"), fleets("fedapa/wical_models"))


@pytest.mark.parametrize("level", ["128", "256", "512"])
def test_prototypes_go_with_the_embedding(level: str, written: Written) -> None:
    """4 bytes for every class and dimension, and for every class its count."""
    small = [f"data.folder={written(wical)}", "data.stride=8", *SMALL]
    config = load_cells(EMBEDDING, small)[level].under("fedapa")
    _, run = first_round(config, config.make_fleet())
    links = run.links()
    up = links[(links.receiver == SERVER) & (links.payload > 0)]
    assert up.payload.tolist() == [4 * 11 * (int(level) + 1)] * 2
