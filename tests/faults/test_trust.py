"""Code outside of communis runs only if the user asked for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from communis import CommunisError
from communis.cli.main import app
from communis.core import plugins
from communis.run.config import load, load_cells

CODE = """
from dataclasses import dataclass
from pathlib import Path
from communis import FedAvg

Path(__file__).with_name("it ran").touch()

@dataclass(frozen=True)
class Other(FedAvg):
    pass

class Loose:
    pass

nothing = 3
"""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that names a method of a module beside it."""
    (tmp_path / "foreign_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_trusted", {})
    sys.modules.pop("foreign_code", None)
    path = tmp_path / "their.toml"
    path.write_text('name = "a"\n[method]\nname = "foreign_code:Other"\n[run]\nrounds = 1\n')
    return path


def test_a_file_runs_no_code_unless_it_is_trusted(foreign: Path) -> None:
    with pytest.raises(CommunisError, match="'foreign_code:Other' is code outside of communis"):
        load(str(foreign))
    assert not foreign.with_name("it ran").exists()
    done = CliRunner().invoke(app, ["run", str(foreign), "--into", str(foreign.parent / "runs")])
    assert done.exit_code != 0
    assert not foreign.with_name("it ran").exists()
    plugins.trust()
    assert load(str(foreign)).label == "Other"
    assert foreign.with_name("it ran").exists()


def test_the_command_line_can_trust(foreign: Path) -> None:
    arguments = ["run", str(foreign), "--into", str(foreign.parent / "runs"), "--name", "a"]
    small = ["--set", "run.workers=1"]
    done = CliRunner().invoke(app, [*arguments, *small, "--trust"])
    assert done.exit_code == 0, done.output
    plugins._trusted.clear()
    again = CliRunner().invoke(app, ["resume", str(foreign.parent / "runs" / "a")])
    assert again.exit_code != 0


def test_the_users_own_words_are_trusted(foreign: Path) -> None:
    plain = foreign.with_name("own.toml")
    plain.write_text('name = "a"\n')
    assert load(str(plain), ["method.name=foreign_code:Other"]).label == "Other"
    plugins._trusted.clear()
    assert load_cells(str(plain), (), ["fedavg", "foreign_code:Other"])[""].compare


@pytest.mark.parametrize("name", ["foreign_code:Loose", "foreign_code:nothing", "nowhere:Other"])
def test_what_is_no_plug_in_is_refused(foreign: Path, name: str) -> None:
    with pytest.raises(CommunisError, match=name):
        load(str(foreign), [f"method.name={name}"])


@pytest.fixture
def named(foreign: Path) -> dict[str, str]:
    """A run folder, and files that name foreign code in every place where a plug-in may stand."""
    folder = foreign.parent / "run"
    arguments = ["run", str(foreign), "--into", str(foreign.parent), "--name", "run", "--trust"]
    done = CliRunner().invoke(app, [*arguments, "--set", "run.workers=1"])
    assert done.exit_code == 0, done.output
    plugins._trusted.clear()
    foreign.with_name("it ran").unlink()
    sys.modules.pop("foreign_code")
    # From now on it goes no further, for that it ran is all there is to know.
    foreign.with_name("foreign_code.py").write_text(f"{CODE}\nraise RuntimeError('far enough')\n")
    texts = {
        "method": '[method]\nname = "foreign_code:Other"',
        "methods": '[methods."foreign_code:Other"]\nlr = 0.1',
        "data": '[data]\nname = "foreign_code:Other"',
        "variants": '[variants.a]\nname = "foreign_code:Other"',
        "compare": 'compare = ["foreign_code:Other"]',
        "grid": '[grid.H.a]\nmethod.name = "foreign_code:Other"',
        "models": 'data.name = "synthetic"\nfleet.models = ["foreign_code:Net"]',
        "roles": '[[fleet.roles]]\nmodalities = ["m0"]\ncount = 1\nmodel = "foreign_code:Net"',
    }
    found = {"run": str(folder)}
    for key, text in texts.items():
        path = foreign.with_name(f"{key}.toml")
        path.write_text(text + "\n")
        found[key] = str(path)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "run method", "run methods", "run data", "run variants", "run grid --cell a",
        "compare fedavg --on method", "compare --on compare", "compare fedavg --on methods",
        "compare fedavg --on variants", "compare fedavg --on grid", "resume run",
        "data preview method", "data preview data", "privacy audit method", "run models",
        "compare fedavg --on models", "data preview models", "privacy audit models", "run roles",
        "privacy membership run",
    ],
)  # fmt: skip
def test_no_command_runs_what_a_file_names(
    command: str, named: dict[str, str], foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign.parent)
    words = command.split()
    first = 2 if words[0] in ("data", "privacy") else 1  # the rest names files
    words = [*words[:first], *(named.get(word, word) for word in words[first:])]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, CommunisError), done.output
    assert "allow it with --trust" in str(done.exception)
    assert not foreign.with_name("it ran").exists()
    done = CliRunner().invoke(app, [*words, "--trust"])
    assert "far enough" in str(done.exception)  # there is such an option, and it counts
    assert foreign.with_name("it ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "privacy verdict"])
def test_reading_results_runs_nothing(
    command: str, named: dict[str, str], foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign.parent)
    done = CliRunner().invoke(app, [*command.split(), named["run"]])
    assert done.exit_code == 0, done.output
    assert not foreign.with_name("it ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["methods", "foreign_code:Other"],
        ["data", "show", "foreign_code:Other"],
        ["models", "show", "foreign_code:Loose"],
    ],
)
def test_a_name_on_the_command_line_needs_no_trust(words: list[str], foreign: Path) -> None:
    done = CliRunner().invoke(app, words)
    assert foreign.with_name("it ran").exists()
    assert done.exit_code == 0 or isinstance(done.exception, CommunisError)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["-m communis", "-mcommunis", "-um communis", "-m communis.cli.main"]
)
def test_nothing_of_the_working_folder_is_imported(how: str, tmp_path: Path) -> None:
    for name in ("__future__", "torch", "numpy", "typing", "dataclasses", "json", "re", "rich"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('code of the working folder ran')")
    done = subprocess.run(
        [sys.executable, *how.split(), "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ,
        check=False,
    )
    assert done.stdout.startswith("communis "), done.stderr


@pytest.mark.slow  # workers that are not forked import torch themselves
@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_workers_import_nothing_of_the_working_folder(how: str, tmp_path: Path) -> None:
    for name in ("pickle", "signal", "multiprocessing", "numpy"):
        (tmp_path / f"{name}.py").write_text(
            "from pathlib import Path\nPath(__file__).with_name('it ran').touch()\n"
        )
    settings = ["run.rounds=1", "run.workers=2", "run.eval_every=0", f"run.start_method={how}"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "communis", "run", "synthetic", "--into", "runs", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ,
        check=False,
    )
    assert not (tmp_path / "it ran").exists(), done.stderr
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("runs/*/records.jsonl"))
