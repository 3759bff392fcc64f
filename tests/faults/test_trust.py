"""Code outside of communis runs only if the user asked for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from communis import CommunisError, plugins
from communis.cli import app
from communis.config import cells, load

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
    assert cells(str(plain), (), ["fedavg", "foreign_code:Other"])[""].compare


@pytest.mark.parametrize("name", ["foreign_code:Loose", "foreign_code:nothing", "nowhere:Other"])
def test_what_is_no_plug_in_is_refused(foreign: Path, name: str) -> None:
    with pytest.raises(CommunisError, match=name):
        load(str(foreign), [f"method.name={name}"])
