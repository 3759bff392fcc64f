"""The pretrained backbone: what it makes of a window, how it learns, and how a fleet gets it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from typer import Typer
from typer.testing import CliRunner

from communis import CommunisError, FedAvg, Streams, Windows
from communis.cli.models import pretrain as command
from communis.fleet.clients import FleetClients
from communis.fleet.partition.settings import Partition
from communis.fleet.settings import FleetConfig
from communis.models.network import initialise
from communis.models.tiny import SHAPE, Masked, Tiny, load, patched, pretrain
from communis.models.zoo import ZOO, architecture
from tests.unit.small import random, same_bits, windows

ROWS = 40  # windows, every fourth of them held out


def waves(**changes: Any) -> Windows:
    """Sensors whose channels are sines: a hidden patch follows from its neighbours."""
    rng = np.random.default_rng(0)
    phase = rng.uniform(0, 2 * np.pi, (ROWS, 2, 1))
    sines = np.sin(2 * np.pi * np.arange(48) / 24 + phase).astype(np.float32)
    inputs = {"a": 5 + sines, "b": 300 * sines[:, :1, :40]}
    split = (np.arange(ROWS) % 4 == 0).astype(np.int8)
    return windows(**({"inputs": inputs, "split": split} | changes))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    path.write_bytes(pretrain(waves(), Streams(0), 2, 4).packed(data="waves"))
    return path


def encoder(weights: str = "random") -> Tiny:
    made = Tiny(3, 20, weights)
    initialise(made, Streams(0))
    return made


def test_its_size_is_that_of_its_shape() -> None:
    shapes = {"acc": (9, 256), "gyro": (9, 256), "hr": (1, 256), "mag": (9, 256)}
    model = architecture("tiny_lora", weights="random").build(shapes, 12)
    sizes = {path: p.numel() for path, p in model.by_path[0].items()}
    # queries and values 2 * 8 * (64 + 64), feed-forward layers 2 * 8 * (64 + 128), two blocks
    assert sum(n for path, n in sizes.items() if path.startswith("encoders.hr.")) == 10_240
    # four encoders, A 8 x 256, B 64 x 8, and the head
    assert sum(sizes.values()) == 4 * 10_240 + 2_048 + 512 + 64 * 12 + 12
    adapted = {path.split(".")[-2] for path in sizes if path.startswith("encoders.")}
    assert adapted == {"q", "v", "up", "down"}


def test_series_are_normalised_and_cut_into_patches() -> None:
    x = 7 + 3 * random(2, 3, 20)
    found = patched(x)
    assert found.shape == (6, 3, 8)
    assert not found[:, 2, 4:].any()  # filled up
    series = found.flatten(1)[:, :20].view(2, 3, 20)
    torch.testing.assert_close(series.mean(-1), torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(series.std(-1, correction=0), torch.ones(2, 3), rtol=1e-4, atol=0)
    assert not patched(torch.full((1, 1, 16), 9.81)).any()


def test_channels_share_all_weights_and_count_alike() -> None:
    made, x = encoder(), random(4, 3, 20)
    alone = torch.stack([made(x[:, c : c + 1]) for c in range(3)]).mean(0)
    assert made(x).shape == (4, 64)
    torch.testing.assert_close(made(x), alone)
    torch.testing.assert_close(made(x), made(x.flip(1)))
    torch.testing.assert_close(made(x), made(10 * x - 4), rtol=1e-3, atol=1e-4)
    # Windows as samples store them, channels last.
    stored = x.movedim(1, -1).contiguous().movedim(-1, 1)
    torch.testing.assert_close(made(stored), made(x))


def test_it_knows_the_order_of_patches() -> None:
    made, x = encoder(), random(2, 1, 32)
    swapped = torch.cat([x[..., 8:16], x[..., :8], x[..., 16:]], -1)
    assert not torch.allclose(made(x), made(swapped), atol=1e-3)


def test_untrained_weights_are_always_the_same() -> None:
    state = torch.get_rng_state()
    one, other = load("random"), load("random")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(same_bits(one[name], other[name]) for name in one)


def test_a_hidden_patch_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted for it does not depend on what it holds."""
    model = Masked()
    initialise(model, Streams(0))
    monkeypatch.setattr("communis.models.tiny.patched", lambda x: x)
    monkeypatch.setattr("torch.nn.functional.mse_loss", lambda found, expected: found)
    patches, hidden = random(2, 4, 8), torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0]]).bool()
    other = torch.where(hidden[..., None], 5.0, patches)
    assert same_bits(model(patches, hidden), model(other, hidden))
    assert not torch.allclose(model(patches, hidden), model(patches + 1, hidden))


def test_pretraining_learns_to_fill_in_what_is_hidden() -> None:
    heard: list[tuple[int, float]] = []
    made = pretrain(waves(), Streams(0), 60, 8, told=lambda *args: heard.append(args))
    assert made.before > 0.9
    assert made.after < 0.6
    assert [step for step, _ in heard] == list(range(1, 61))
    assert heard[-1][1] < heard[0][1]


def test_a_seed_decides_what_is_learned_and_nothing_else_is_touched() -> None:
    state = torch.get_rng_state()
    runs = [pretrain(waves(), Streams(seed), 3, 4) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    one, same, other = (run.packed(data="waves") for run in runs)
    assert one == same != other


def test_only_training_windows_are_learned_from() -> None:
    """Held-out windows only tell how well it went."""
    source = waves()
    train = (source.split == 0)[:, None, None]
    spoilt = {m: np.where(train, x, 1e3 * np.sign(x)) for m, x in source.inputs.items()}
    one, other = (
        pretrain(replace(source, inputs=inputs), Streams(0), 3, 4)
        for inputs in (source.inputs, spoilt)
    )
    assert all(same_bits(one.weights[path], other.weights[path]) for path in one.weights)
    assert one.after != other.after


def test_gaps_and_sensors_that_are_not_there_do_no_harm() -> None:
    source = waves()
    holed = source.inputs["a"].copy()
    holed[:, :, 5:9] = np.nan
    present = {"a": np.arange(ROWS) % 3 > 0}
    holed[~present["a"]] = np.nan
    made = pretrain(waves(inputs={**source.inputs, "a": holed}, present=present), Streams(0), 3, 4)
    assert np.isfinite([made.before, made.after]).all()
    assert all(bool(t.isfinite().all()) for t in made.weights.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": {"a": np.zeros((ROWS, 2, 7), np.float32)}},
        {"kinds": {"a": "image", "b": "points"}},
        {"split": np.zeros(ROWS, np.int8)},
    ],
)
def test_data_without_anything_to_learn_from_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CommunisError, match=r"at least 8 steps in training and held-out"):
        pretrain(waves(**changes), Streams(0), 1)


def test_a_file_gives_back_what_was_learned(file: Path) -> None:
    made = pretrain(waves(), Streams(0), 2, 4)
    found = load(str(file))
    assert all(same_bits(found[path], t) for path, t in made.weights.items())
    adapted = dict(encoder(str(file)).named_parameters())
    assert all(same_bits(adapted[path], t) for path, t in found.items())
    assert {path for path, p in adapted.items() if p.requires_grad} == adapted.keys() - found.keys()
    with safe_open(file, framework="pt") as opened:  # type: ignore[no-untyped-call]
        about = json.loads(opened.metadata()["communis"])
    assert about["data"] == "waves"
    assert about["shape"] == SHAPE
    assert (about["before"], about["after"]) == (made.before, made.after)


def test_files_that_are_no_backbone_are_refused(file: Path, tmp_path: Path) -> None:
    tensors = load(str(file))
    bad = {name: tmp_path / f"{name}.safetensors" for name in ("gone", "cut", "bare", "other")}
    bad["cut"].write_bytes(file.read_bytes()[:-9])
    safetensors.torch.save_file(tensors, bad["bare"])
    shape = {"communis": json.dumps({"shape": {**SHAPE, "heads": 8}})}
    safetensors.torch.save_file(tensors, bad["other"], shape)
    wrong = tmp_path / "wrong.safetensors"
    shape = {"communis": json.dumps({"shape": SHAPE})}
    safetensors.torch.save_file({**tensors, "embed.weight": torch.zeros(64, 4)}, wrong, shape)
    spoilt, surplus = tmp_path / "spoilt.safetensors", tmp_path / "surplus.safetensors"
    nan = torch.full_like(tensors["embed.weight"], torch.nan)
    safetensors.torch.save_file({**tensors, "embed.weight": nan}, spoilt, shape)
    safetensors.torch.save_file({**tensors, "extra": torch.zeros(1)}, surplus, shape)
    for path, said in (
        (bad["gone"], "there is no file"),
        (bad["cut"], "is not readable"),
        (bad["bare"], "something else than a pretrained backbone"),
        (bad["other"], "'heads': 8"),
        (wrong, r"has embed.weight as \(64, 4\), expected as \(64, 8\)"),
        (spoilt, "holds NaN or Inf"),
        (surplus, r"has extra as \(1,\), expected not there"),
        (tmp_path, "there is no file"),
    ):
        with pytest.raises(CommunisError, match=said) as caught:
            Tiny(3, 20, str(path))
        assert str(path) in str(caught.value)
        assert "`communis pretrain --on usc_had --output tiny.safetensors`" in str(caught.value)


def test_a_model_without_its_weights_says_how_to_get_them() -> None:
    for name in ("tiny_lora", "moment_lora"):
        with pytest.raises(CommunisError, match=rf'{name} needs pre.*`.+`.*weights = "random"'):
            FleetConfig(models=("cnn", name))
        with pytest.raises(CommunisError, match=f"{name} needs pretrained weights"):
            ZOO[name].build({"a": (3, 20)}, 3)
    assert not ZOO["lite"].pretrained
    with pytest.raises(
        CommunisError, match=r"weights: none of the models \(cnn, lite\) uses pretrained weights"
    ):
        FleetConfig(models=("cnn", "lite"), weights="random")


def test_a_fleet_hands_weights_to_the_models_that_need_them(file: Path) -> None:
    config = FleetConfig(models=("tiny_lora", "lite"), weights=str(file))
    source = waves(owner=np.arange(ROWS) % 2)
    fleet = config.make(source, Partition(), Streams(0))
    names = {kind if isinstance(kind, str) else kind.name for kind in fleet.models}
    assert names == {"tiny_lora", "lite"}
    cards = FleetClients(fleet, FedAvg()).cards
    assert {card.model for card in cards} == names
    for card in cards:
        adapters = [path for path in card.params if "lora" in path]
        assert bool(adapters) == (card.model == "tiny_lora")


def test_weights_are_told_apart_by_what_they_hold(file: Path, tmp_path: Path) -> None:
    copy, changed = tmp_path / "copy", tmp_path / "changed"
    copy.write_bytes(file.read_bytes())
    changed.write_bytes(file.read_bytes()[:-1] + b"x")
    digests = {w: architecture("tiny_lora", weights=str(w)).digest for w in (file, copy, changed)}
    assert digests[file] == digests[copy] != digests[changed]
    untrained = architecture("tiny_lora", weights="random").digest
    assert untrained not in (*digests.values(), ZOO["lite"].digest)
    # A folder goes by the files in it.
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model").write_bytes(b"1")
    before = architecture("tiny_lora", weights=str(folder)).digest
    (folder / "model").write_bytes(b"2")
    assert architecture("tiny_lora", weights=str(folder)).digest != before


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_line_tells_whether_something_was_learned(
    tmp_path: Path, as_json: bool
) -> None:
    app = Typer()
    app.command()(command)
    path = tmp_path / "made.safetensors"
    settings = ["--set", "data.steps=16", "--set", "data.clients=2", "--set", "data.windows=20"]
    given = ["--on", "synthetic", "--output", str(path), "--steps", "3", *settings]
    result = CliRunner().invoke(app, [*given, *(["--json"] if as_json else [])])
    assert result.exit_code == 0, result.output
    with safe_open(path, framework="pt") as opened:  # type: ignore[no-untyped-call]
        about = json.loads(opened.metadata()["communis"])
    assert (about["data"], about["steps"], about["seed"]) == ("synthetic", 3, 0)
    if as_json:
        said = json.loads(result.stdout.splitlines()[-1])
        assert said["event"] == "pretrain"
        assert (said["before"], said["after"]) == (about["before"], about["after"])
    else:
        assert f"{about['before']:.3f} before, {about['after']:.3f} after 3 steps" in result.output
        assert "fleet.weights=" in result.output
