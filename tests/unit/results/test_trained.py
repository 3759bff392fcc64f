"""What a run keeps: models, test predictions, the best round; read back, and damaged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

import communis
from communis import CommunisError
from communis.core import disk
from communis.core.disk import DamagedError
from communis.exchange.messages import Answer, Ask
from communis.fleet.fleet import Fleet
from communis.results.finished import read
from communis.results.trained import Trained
from communis.run.backends.mock import Mock
from communis.run.best import best_round
from communis.run.config import Config, load
from communis.run.folder import RunFolder
from communis.run.jobs import Job

SMALL = (
    "data.clients=5", "data.windows=30", "data.classes=3", "data.steps=16", "data.channels=2",
    "data.noise=0.5", "run.rounds=4", 'fleet.models=["cnn_small"]', "method.name=fedavg",
    "fleet.roles=[{modalities=['m0'], count=2}, {modalities=['m0', 'm1', 'm2'], count=3}]",
)  # fmt: skip


def config_of(*settings: str) -> Config:
    return load("synthetic", [*SMALL, *settings])


def finished(folder: Path, *settings: str) -> Fleet:
    config = config_of(*settings)
    fleet = config.make_fleet()
    with Job(config, folder).open(fleet, workers=1) as run:
        list(run)
    return fleet


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    finished(home / "run")
    return home / "run"


def test_the_common_model_of_fedavg_is_that_of_its_clients(home: Path) -> None:
    trained = Trained(home)
    common = trained.common().network.state_dict()
    for client in trained.clients:
        own = trained.model(client).network.state_dict()
        assert all(torch.equal(common[key], tensor) for key, tensor in own.items())
    files = {own.file for own in trained.index.rounds[4].clients.values()}
    assert len(files) == 2  # one for each kind of client


def test_predictions_give_the_scores_of_the_record(home: Path) -> None:
    kept = Trained(home).predictions()
    said = np.stack(kept["scores"].to_list()).argmax(1)
    accuracy = (said == kept["target"]).groupby(kept["client"]).mean()
    recorded = read(home).by_client("accuracy")
    assert np.allclose(accuracy.sort_index(), recorded.sort_index())


def test_the_best_round_is_that_of_the_selection_common(tmp_path: Path) -> None:
    finished(tmp_path, "method.lr=0.5", "run.rounds=6")
    trained = Trained(tmp_path)
    run = read(tmp_path)
    best = best_round(run.records)
    assert trained.index.best == best
    assert trained.number("last") == 6
    kept = trained.predictions("best")
    assert set(kept["round"]) == {best}
    said = np.stack(kept["scores"].to_list()).argmax(1)
    accuracy = (said == kept["target"]).groupby(kept["client"]).mean().mean()
    assert accuracy == pytest.approx(run.final("accuracy", "common"))


def test_an_interrupted_run_keeps_the_same(tmp_path: Path) -> None:
    settings = ("method.name=fedper", "method.lr=0.5", "run.rounds=6", "run.checkpoint_every=2")
    finished(tmp_path / "whole", *settings)
    config = config_of(*settings)
    for _ in range(6):  # a round at a time, and never closed
        run = Job(config, tmp_path / "parts").open(config.make_fleet(), workers=1)
        for _, _ in zip(range(2), run, strict=False):
            pass
        run.backend.close()
        run.folder.close()
    with Job(config, tmp_path / "parts").open(config.make_fleet(), workers=1) as run:
        list(run)
    whole, parts = (
        {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if "learned" in str(p)
         and p.is_file()}
        for folder in (tmp_path / "whole", tmp_path / "parts")
    )  # fmt: skip
    assert len(whole) >= 6
    assert whole == parts


def test_a_best_round_that_a_power_cut_emptied_is_written_again(tmp_path: Path) -> None:
    finished(tmp_path, "method.lr=0.5", "run.rounds=5")
    best = tmp_path / "best-000006.safetensors"
    best.touch()
    finished(tmp_path, "method.lr=0.5", "run.rounds=6")
    assert Trained(tmp_path).index.best == 6
    assert best.stat().st_size


def begun_badly(folder: Path) -> Path:
    """Returns the file of the best round of a run whose later rounds are worse, and which was
    interrupted before its last one."""
    config = config_of("method.lr=1.0")
    run = Job(config, folder).open(config.make_fleet(), workers=1)
    for _, _ in zip(range(3), run, strict=False):
        pass
    run.backend.close()
    run.folder.close()
    (best,) = folder.glob("best-*")
    assert "000003" not in best.name
    return best


def test_a_lost_best_round_is_told_and_not_replaced_by_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best = begun_badly(tmp_path)
    best.write_bytes(best.read_bytes()[:-1])
    finished(tmp_path, "method.lr=1.0")
    assert f"{best.name} is not a readable checkpoint" in caplog.text
    assert Trained(tmp_path).predictions("last")["round"].unique() == [4]
    with pytest.raises(CommunisError, match=r"after round \d, the best, were lost"):
        Trained(tmp_path).model(0, "best")


def test_the_best_round_in_place_of_the_checkpoint_is_not_continued_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best = begun_badly(tmp_path / "run")
    finished(tmp_path / "whole", "method.lr=1.0")
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(best.read_bytes())
    finished(tmp_path / "run", "method.lr=1.0")
    assert "has the content of another file of its run; going on from round" in caplog.text
    found, whole = Trained(tmp_path / "run").index, Trained(tmp_path / "whole").index
    assert found.files == whole.files


def test_why_there_is_no_common_model(tmp_path: Path) -> None:
    finished(tmp_path / "local", "run.rounds=1", "method.name=local")
    with pytest.raises(
        CommunisError, match=r"local has no .*: the model stays with the clients \(fedavg, .*"
    ):
        Trained(tmp_path / "local").common()
    finished(tmp_path / "norm", "run.rounds=1", 'fleet.models=["cnn_norm"]')
    with pytest.raises(CommunisError, match=r"fedavg has no .*BatchNorm .* common model$"):
        Trained(tmp_path / "norm").common()
    finished(tmp_path / "ring", "run.rounds=1", "topology.kind=ring")
    with pytest.raises(CommunisError, match="a graph has no server"):
        Trained(tmp_path / "ring").common()


def test_more_rounds_replace_what_was_kept(tmp_path: Path) -> None:
    finished(tmp_path)
    before = {path.name for path in (tmp_path / "learned").iterdir()}
    finished(tmp_path, "run.rounds=5")
    index = Trained(tmp_path).index
    assert index.last == 5
    after = {path.name for path in (tmp_path / "learned").iterdir()}
    assert "predictions-000005.parquet" in after - before
    assert after == {*index.files}


def test_files_of_others_stay(tmp_path: Path) -> None:
    finished(tmp_path)
    (tmp_path / "learned" / "folder").mkdir()
    (tmp_path / "learned" / "notes.txt").write_text("mine")
    half = tmp_path / "learned" / "predictions-000004.parquet.partial"
    half.write_text("cut short")
    finished(tmp_path, "run.rounds=5")
    assert (tmp_path / "learned" / "folder").is_dir()
    assert (tmp_path / "learned" / "notes.txt").read_text() == "mine"
    assert not half.exists()


def test_damage_is_repaired_where_the_run_still_has_its_state(tmp_path: Path) -> None:
    finished(tmp_path)
    for damage in (b"", b"{}"):
        for path in (tmp_path / "learned.json", *(tmp_path / "learned").iterdir()):
            content = path.read_bytes()
            path.write_bytes(damage)
            finished(tmp_path)  # no round is left
            assert path.read_bytes() == content


def test_nothing_is_kept_if_that_is_asked(tmp_path: Path) -> None:
    finished(tmp_path, "run.keep=false")
    assert not list(tmp_path.glob("learned*"))
    assert not list(tmp_path.glob("best*"))
    with pytest.raises(CommunisError, match=r"no models are kept here: .* run\.keep was false"):
        Trained(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    finished(tmp_path, "run.rounds=1")
    trained = Trained(tmp_path)
    file = tmp_path / "learned" / trained.index.rounds[1].clients[0].file
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedError, match=f"{file.name}: is damaged"):
        Trained(tmp_path).model(0)
    file.unlink()
    with pytest.raises(DamagedError, match=f"{file.name}: is gone"):
        Trained(tmp_path).model(0)
    predictions = tmp_path / "learned" / "predictions-000001.parquet"
    predictions.write_bytes(b"PAR1")
    with pytest.raises(DamagedError, match="predictions-000001"):
        Trained(tmp_path).predictions()
    index = tmp_path / "learned.json"
    table = json.loads(index.read_text())
    table["rounds"]["1"]["clients"]["0"]["scales"]["m0"]["mean"][0] += 1
    index.write_text(json.dumps(table))
    with pytest.raises(DamagedError, match=r"learned\.json"):
        Trained(tmp_path).model(0)


def index_with(folder: Path, *keys: str, value: object) -> None:
    """Replaces a value of learned.json; its digest is right."""
    owner = RunFolder(folder).owner
    table = disk.read_json(folder / "learned.json", owner)
    inner = table
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    disk.write_json(folder / "learned.json", table, owner)


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Path:
    return shutil.copytree(home, tmp_path / "copy")


@pytest.mark.parametrize(
    "name", ["", "..", "../../{}", "/tmp/{}", "{}\0", "a" * 5000, "notes.txt", 5, None, ["x"]]
)
def test_names_that_lead_elsewhere_are_refused(copy: Path, name: object) -> None:
    file = Trained(copy).index.rounds[4].clients[0].file
    (copy.parent / file).write_bytes((copy / "learned" / file).read_bytes())
    strange = name.format(file) if isinstance(name, str) else name
    index_with(copy, "rounds", "4", "clients", "0", "file", value=strange)
    with pytest.raises(DamagedError, match=r"learned\.json: not as this version writes it"):
        Trained(copy).model(0)
    index_with(copy, "rounds", "4", "clients", "0", "file", value=file)
    if strange:  # empty: there are no predictions
        index_with(copy, "rounds", "4", "predictions", value=strange)
        with pytest.raises(DamagedError, match=r"learned\.json: not as this version writes it"):
            Trained(copy).predictions()


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("scales", "m0", "mean"), [1.0]),
        (("scales", "m0", "mean"), ["a", "b"]),
        (("scales",), None),
        (("last",), "x"),
        (("rounds",), []),
        (("rounds", "4", "common"), {"gru": "0" * 32 + ".safetensors"}),
    ],
)
def test_an_index_with_strange_values_is_refused(
    copy: Path, keys: tuple[str, ...], value: object
) -> None:
    index_with(copy, *keys, value=value)
    with pytest.raises(DamagedError, match=r"learned\.json|config\.toml: has no model gru"):
        Trained(copy).common()


@pytest.mark.parametrize("change", ["shape", "type", "less", "state", "no tensors"])
def test_files_with_other_tensors_are_refused(copy: Path, change: str) -> None:
    trained = Trained(copy)
    file = trained.index.rounds[4].clients[0].file
    tensors = load_file(copy / "learned" / file)
    first = next(iter(tensors))
    if change == "shape":
        tensors[first] = torch.zeros(1)
    elif change == "type":
        tensors[first] = tensors[first].bfloat16()
    elif change == "less":
        del tensors[first]
    elif change == "state":
        tensors["state/unknown"] = torch.zeros(1)
    content = b"none" if change == "no tensors" else save(tensors)
    name = f"{disk.digest_of(content)}.safetensors"
    (copy / "learned" / name).write_bytes(content)
    index_with(copy, "rounds", "4", "clients", "0", "file", value=name)
    with pytest.raises(DamagedError, match=name):
        Trained(copy).model(0)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"none"])
def test_predictions_that_are_no_table_are_refused(copy: Path, content: bytes) -> None:
    name = "predictions-000004.parquet"
    (copy / "learned" / name).write_bytes(content)
    index_with(copy, "rounds", "4", "predictions_digest", value=disk.digest_of(content))
    with pytest.raises(DamagedError, match=f"{name}: not as this version writes it"):
        Trained(copy).predictions()


def test_a_client_that_the_fleet_does_not_have_is_refused(copy: Path) -> None:
    own = disk.read_json(copy / "learned.json", RunFolder(copy).owner)["rounds"]["4"]["clients"]
    index_with(copy, "rounds", "4", "clients", value={"77": own["0"]})
    with pytest.raises(DamagedError, match=r"fleet\.json: has no client 77"):
        Trained(copy).model(77)


def test_refusals_name_what_there_is(home: Path) -> None:
    trained = Trained(home)
    with pytest.raises(CommunisError, match=r"models are kept after round .*4 .*not after 2"):
        trained.model(0, 2)
    with pytest.raises(CommunisError, match=r"no model of client 7 .*; there are 0, 1, 2, 3, 4"):
        trained.model(7)
    with pytest.raises(CommunisError, match="no common model 'gru'; there are cnn_small"):
        trained.common("gru")


def test_from_python(home: Path) -> None:
    results = communis.open(home)
    assert results.config["method"]["name"] == "fedavg"
    model = results.model("3")
    x = {m: torch.randn(4, *shape) for m, shape in model.format.shapes.items()}
    probabilities = model.probabilities(x)
    assert probabilities.shape == (4, 3)
    assert torch.allclose(probabilities.sum(1), torch.ones(4))
    assert set(results.predictions["client"]) == {0, 1, 2, 3, 4}
    assert "fedavg" in results._repr_html_()


def test_windows_that_the_model_does_not_take_are_refused(home: Path) -> None:
    results = communis.open(home)
    model = next(m for m in map(results.model, range(5)) if m.modalities == ("m0",))
    with pytest.raises(CommunisError, match="takes windows of m0; got gyro"):
        model({"gyro": torch.zeros(2, 2, 16)})
    with pytest.raises(CommunisError, match="takes windows of m0; got none"):
        model({})
    with pytest.raises(CommunisError, match=r"m0 have shape \(16, 2\); the model takes \(2, 16\)"):
        model({"m0": torch.zeros(2, 16, 2)})
    assert model({"m0": torch.zeros(0, 2, 16)}).shape == (0, 3)


def test_one_run_of_several_is_asked_for(tmp_path: Path) -> None:
    for seed in (0, 1):
        finished(tmp_path / str(seed), "run.rounds=1", f"seed={seed}")
    results = communis.open(tmp_path)
    with pytest.raises(CommunisError, match="there are 2 runs, such as method 'fedavg', seed 0"):
        results.model(0)
    assert results.only(seed=1).model(0).client == 0
    with pytest.raises(CommunisError, match="no such run; there are method 'fedavg', seed 0"):
        results.only(method="local")


def test_a_sensor_with_less_detail(tmp_path: Path) -> None:
    roles = "[{modalities=['m0'], count=2, detail='coarse'}, {modalities=['m0', 'm1'], count=3}]"
    fleet = finished(tmp_path, "run.rounds=1", "method.name=local", f"fleet.roles={roles}")
    trained = Trained(tmp_path)
    coarse = next(i for i in trained.clients if fleet.coarse[i])
    model = trained.model(coarse)
    assert model.format.shapes["m0"] == fleet.shapes(coarse)["m0"]
    assert trained.format.shapes["m0"] != model.format.shapes["m0"]


def test_newcomers_models_are_kept(tmp_path: Path) -> None:
    finished(tmp_path, "run.rounds=1", "run.newcomers=[4]")
    trained = Trained(tmp_path)
    assert 4 in trained.clients
    common = trained.common().network.state_dict()
    own = trained.model(4).network.state_dict()
    assert all(torch.equal(common[key], tensor) for key, tensor in own.items())


@pytest.mark.parametrize("always", [False, True])
def test_a_worker_that_dies_at_the_end_costs_no_model(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, always: bool
) -> None:
    """What failed is asked once more; what fails again is left out, and the log says so."""
    config = config_of()
    asked: list[tuple[str, int, int]] = []

    def dies(ask: Ask, answer: Answer) -> Answer:
        key = (ask.kind, ask.client, ask.round)
        asked.append(key)
        first = asked.count(key) == 1
        if ask.kind == "keep" and ask.client in (0, 3) and (first or (always and ask.client == 3)):
            return replace(answer, up=b"", failure="the worker process died")
        return answer

    with Job(config, tmp_path / "run").open(config.make_fleet(), workers=1) as run:
        run.backend = Mock(run.backend, dies)
        list(run)
    whole, found = Trained(home), Trained(tmp_path / "run")
    if not always:
        assert found.index.files == whole.index.files
        assert found.clients == whole.clients
        return
    assert found.clients == [client for client in whole.clients if client != 3]
    assert "client 3: its model is not kept: the worker process died" in caplog.text
