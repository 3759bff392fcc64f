"""Configurations that nobody in their senses would write: each runs, or is refused in one line that
names the file and the key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from communis import CommunisError
from communis.cli.main import main
from communis.core import memory
from communis.exchange.privacy.central import central_of
from communis.run.config import load
from tests.faults.hostile_configs import BASE, attempt, hostile

EXAMPLES = 120
SMALL_MACHINE = 512 << 20  # bytes


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: float(SMALL_MACHINE))


def text_of(**changes: str) -> str:
    """The small experiment with other values; `__` stands for a dot."""
    lines = {**BASE, **{key.replace("__", "."): value for key, value in changes.items()}}
    return "".join(f"{key} = {value}\n" for key, value in lines.items())


def test_the_small_experiment_runs(tmp_path: Path) -> None:
    assert attempt(text_of(), tmp_path) == "ran"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what the values make of arithmetic
@settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_hostile_configurations_run_or_are_refused(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = hostile(np.random.default_rng(seed))
    assert attempt(text, tmp_path_factory.mktemp("a")) in ("ran", "refused"), text[:2000]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seed": "9" * 4000}, "seed: a whole number of over 64 bits"),
        ({"seed": "9" * 6000}, "not valid TOML"),
        ({"method__lr": "9" * 400}, "method.lr: a whole number of over 64 bits"),
        ({"method__lr": "1e39"}, "method.lr: expected a finite number below 3.4e+38"),
        ({"data__clients": "[" * 50 + "]" * 50}, "over 12 deep"),
        ({"method__name": '"' + "x" * 200_000 + '"'}, "method.name: 200000 characters"),
        ({"fleet__trace": r'"\u0000"'}, "fleet.trace: a control character"),
        ({"fleet__profiles": r'"a\u001b[31m"'}, "fleet.profiles: a control character"),
        ({"name": r'"\u202ename"'}, "name: a control character"),
        ({"name": '"../../x"'}, "name: '../../x' cannot be the name of a folder"),
        ({r'run."\u001b[2J"': "1"}, "a control character"),
        ({"method__name": '"communis.run.config:Config"'}, "code outside of communis.methods"),
        ({"run__eval_clients": "-1"}, "eval_clients must be at least 0"),
        ({"partition__by": '"dirichlet"', "partition__clients": "2147483648"}, "partition.clients"),
        ({"attack__clients": "[" + "1," * 20_000 + "]", "attack__kind": '"x"'}, "attack.kind"),
    ],
)
def test_strange_values_are_named(changes: dict[str, str], why: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text_of(**changes))
    with pytest.raises(CommunisError) as caught:
        load(str(path)).make_fleet()
    said = str(caught.value)
    assert why in said
    assert said.isprintable()
    assert len(said) < 1700
    assert attempt(path.read_text(), tmp_path) == "refused"  # with the file's name


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data__clients": "1000000000"}, "data.clients"),
        ({"data__windows": "1000000000000"}, "windows"),
        ({"data__steps": "9223372036854775807"}, "steps"),
        ({"data__classes": "1000000"}, "classes"),
        ({"fleet__embedding": "1000000000"}, "fleet.embedding"),
        ({"fleet__models": '["sglt"]', "fleet__embedding": "65536"}, "fleet.embedding"),
        ({"fleet__models": '["sglt"]', "fleet__sglt__layers": "100000000"}, "layers"),
        ({"fleet__models": '["sglt"]', "fleet__sglt__features": "1000000000"}, "features"),
        ({"fleet__test_draws": "100000000000"}, "fleet.test_draws"),
    ],
)
def test_sizes_beyond_memory_are_refused_before_anything_is_built(
    changes: dict[str, str], key: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text_of(**changes))
    with pytest.raises(CommunisError, match=r"would take about .* but 0\.5 GB are available") as e:
        load(str(path)).make_fleet()
    assert key in str(e.value)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(
    "setting", ["imu_rate = 1e9", "csi_subcarriers = 100000000", "depth_size = [100000, 100000]"]
)
def test_a_world_beyond_memory_is_refused(setting: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[data]\nname = "world"\n{setting}\n')
    with pytest.raises(CommunisError, match="would take about"):
        load(str(path)).make_fleet()


def test_a_graph_of_everybody_with_everybody_is_refused_beyond_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text_of(data__clients="40", topology__kind='"complete"'))
    config = load(str(path))
    fleet = config.make_fleet()
    monkeypatch.setattr(memory, "available", lambda: 100_000.0)
    with pytest.raises(CommunisError, match=r"topology: kind = .complete. of 40 clients"):
        config.make_topology(fleet)


def test_available_memory_is_a_size() -> None:
    assert 1 << 20 < memory.available() < float("inf")


def test_a_grid_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    levels = [f"grid.{axis}.l{level}.method.x{axis} = 1" for axis in "abcde" for level in range(10)]
    path.write_text("\n".join(levels))
    with pytest.raises(CommunisError, match=r"grid: its axes make 100000 cells, at most 10000"):
        load(str(path))


@pytest.mark.parametrize(
    "setting",
    [
        f"run.rounds={'9' * 5000}",
        "run.rounds=" + "[" * 3000,
        "name=a\nb = 3",
        "method.name=\x1b[31m",
        "data.clients=1e999",
        "=",
        "a.b.c.d.e.f.g.h.i.j.k.l.m.n=1",
    ],
)
def test_the_command_line_refuses_them_in_one_line(
    setting: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["communis", "run", "synthetic", "--into", str(tmp_path), "--set", setting]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert said.isprintable()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_it_starts_ends_in_one_line(name: str) -> None:
    """As it comes when torch is imported."""
    code = f"""
import os, signal, sys
class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.{name})
sys.meta_path.insert(0, Pressed())
sys.argv = ["communis", "run", "synthetic"]
from communis.cli.main import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=os.environ, check=False
    )
    assert done.returncode == 130
    assert done.stderr == b"stopped before anything was begun\n"


@pytest.mark.slow
def test_a_program_that_imports_communis_keeps_its_signals() -> None:
    code = "import signal; before = signal.getsignal(2); import communis; assert before is signal.getsignal(2)"  # noqa: E501
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_rounds_without_end_are_refused_where_each_is_accounted_for(tmp_path: Path) -> None:
    changes = {"privacy__mode": '"central"', "privacy__epsilon": "2.0", "method__uniform": "true"}
    text = text_of(run__rounds="1000000000000", **changes)
    (tmp_path / "config.toml").write_text(text)
    config = load(str(tmp_path / "config.toml"))
    with pytest.raises(CommunisError, match=r"got run\.rounds = 1,000,000,000,000: lower it"):
        central_of(config.privacy, config.run.rounds, 0.5)
    assert attempt(text, tmp_path) == "refused"


def test_clips_of_single_fields_can_be_read_again(tmp_path: Path) -> None:
    changes = {"privacy__mode": '"local"', "privacy__noise": "2.0", "privacy__clips": "{ w = 0.5 }"}
    assert attempt(text_of(**changes), tmp_path) == "ran"
    assert load(str(tmp_path / "run" / "config.toml")).privacy.clips == {"w": 0.5}
