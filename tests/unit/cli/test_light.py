"""Help, lists and refusals: what they import, say and take."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import click
import pytest
import typer
from rich.console import Console

import communis
from communis.cli import data, device, models, names, privacy
from communis.cli.console import Stacked, rewrapped
from communis.cli.main import app
from communis.run import presets
from tests.unit.cli.test_main import call

HEAVY = ("torch", "pandas", "scipy", "pyarrow")
ASK = """
import sys
from communis.cli.main import main
for line in {lines!r}:
    sys.argv = ["communis", *line.split()]
    try:
        main()
    except SystemExit:
        pass
    found = [name for name in {heavy!r} if name in sys.modules]
    assert not found, (line, found)
"""


def test_help_lists_and_refusals_import_nothing_heavy() -> None:
    """All in one process: what the first imports, the last would have."""
    lines = (
        "--help", "-h", "--version", "run -h", "compare -h", "privacy plan -h", "rnu", "run nosuch",
        "run synthetic rounds=1", "run synthetic --set run.rouns=1", "compare fedavg --on nosuch",
        "methods", "methods list --json", "methods show fedavg", "methods fedavgg", "models",
        "models show nosuch", "presets", "presets show watch", "data", "data list",
        "data show usc_had", "device", "device show relief-low", "settings", "settings run",
        "settings nosuch", "extras", "new nowhere/x.toml", "new x.yaml",
        "run watch method.lr=abc", "run watch fleet.models=nosuch", "run watch method.name=nosuch",
        "run watch data.name=nosuch", "run watch run.rounds=-1", "run watch seed=-1",
        "run watch method.lr=-1", "run watch methods.fedprox.momentum=1",
        "compare fedavg --on watch method.batch=0", "run watch --metric macro_f2",
        "compare fedavg --on watch --metric nope", "run watch metric=nope",
        "run watch methods.fedprox.mu=abc", "run watch privacy.mode=local",
        "run watch fleet.roles=3", "run watch robust.liars=-1", "run watch topology.kind=nosuch",
        "run watch fleet.suites.a=1",
        "compare nosuch --on watch", "compare fedavg --on fedduet/dsads run.rounds=-1",
        "run synthetic run.rounds=0", "compare --on fedduet/dsads run.rounds=0",
        "report nowhere", "resume nowhere", "watch nowhere", "privacy verdict nowhere",
        "privacy membership nowhere", "data init nowhere", "settings seed", "settings cell",
    )  # fmt: skip
    code = ASK.format(lines=lines, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_public_names_are_those_that_are_listed() -> None:
    for name in communis.__all__:
        assert getattr(communis, name) is not None
    assert set(communis.__all__) <= set(dir(communis))
    assert sorted(communis._HOMES) == communis.__all__
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        communis.nosuch  # noqa: B018


def declared() -> list[typer.models.CommandInfo]:
    groups = (app, data.app, device.app, models.app, names.methods, names.presets, privacy.app)
    return [info for group in groups for info in group.registered_commands]


def test_what_is_declared_is_done_with_the_same_arguments() -> None:
    checked = 0
    for info in declared():
        module = getattr(info.callback, "done_by", "")
        if module:
            assert info.callback is not None
            work = getattr(
                importlib.import_module(f"communis.cli.{module}"), info.callback.__name__
            )
            own, others = (list(inspect.signature(f).parameters) for f in (info.callback, work))
            assert own == others, info.callback.__name__
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("command", ["methods", "models", "presets", "data", "device"])
def test_verbs_are_the_same_everywhere(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, command) == 0
    bare = capsys.readouterr().out
    assert call(monkeypatch, command, "list") == 0
    assert capsys.readouterr().out == bare
    assert call(monkeypatch, command, "--json") == 0
    assert json.loads(capsys.readouterr().out)
    assert call(monkeypatch, command, "show", "nosuch") == 2
    assert "nosuch" in capsys.readouterr().err
    assert call(monkeypatch, command, "-h") == 0
    text = capsys.readouterr().out
    assert "list" in text
    assert "show" in text


def helps(command: click.Command, context: click.Context) -> Iterator[str]:
    """The help of a command and of all commands below it."""
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from helps(inner, click.Context(inner, parent=context, info_name=name))


@pytest.mark.parametrize("width", [40, 80])
def test_help_is_shown_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    command = typer.main.get_command(app)
    context = click.Context(command, info_name="communis", terminal_width=width)
    shown = list(helps(command, context))
    assert len(shown) > 30
    for text in shown:
        listed = text.partition("\nCommands:\n")[2]
        assert "..." not in listed, listed
        assert "\\[" not in text
    assert any("[required]" in text for text in shown)


def test_first_sentences_fit_on_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = typer.main.get_command(app)
    for text in helps(command, click.Context(command, info_name="communis")):
        for line in text.partition("\nCommands:\n")[2].splitlines():
            assert re.match(r"  \w", line), line


@pytest.mark.parametrize("command", ["run synthetic", "compare fedavg --on synthetic"])
def test_a_run_of_no_rounds_is_refused(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["--into", str(tmp_path), "--set", "run.rounds=0"]
    assert call(monkeypatch, *command.split(), *place) == 2
    assert "run.rounds = 0 trains nothing" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["report", "resume", "watch", "privacy verdict"])
def test_folders_without_runs_are_refused(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *command.split(), str(tmp_path / "gone")) == 2
    assert "gone: no such folder" in capsys.readouterr().err
    assert call(monkeypatch, *command.split(), str(tmp_path)) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_method_is_shown_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "methods", "show", "fedavg") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "its biases have an effect" in text  # the second line of a comment
    assert '"private", "average", "recalibrate"' in text
    assert call(monkeypatch, "methods", "fedavg") == 0  # without the verb
    assert " ".join(capsys.readouterr().out.split()) == text


def test_a_docstring_is_wrapped_anew() -> None:
    source = (
        f"A name. {'word ' * 16}\nhttps://example.org/a-long-address\n\nShort.\n"
        f"Deviation: {'text ' * 16}end\n    {'text ' * 10}end.\nDeviation: none.\n"
        f"Deviation: {'full ' * 16}end.\nDeviation: after a full line."
    )
    lines = rewrapped(source, 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[:2] == [f"A name. {'word ' * 10}".rstrip(), f"{'word ' * 5}word"]
    assert lines[2:5] == ["https://example.org/a-long-address", "", "Short."]
    begins = [line.split()[1] for line in lines if line.startswith("Deviation")]
    assert begins == ["text", "none.", "full", "after"]
    assert all(line.startswith("    text") for line in lines[6:8])
    assert " ".join(" ".join(lines).split()) == " ".join(source.split())


@pytest.mark.parametrize("name", ["fedavg", "umeda", "relief"])
def test_a_method_fits_a_narrow_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(names.out, "_width", 80)
    assert call(monkeypatch, "methods", "show", name) == 0
    lines = capsys.readouterr().out.partition("\nsetting ")[0].splitlines()
    assert max(map(len, lines)) <= 80
    for line, after in itertools.pairwise(lines):
        if after.startswith("    "):  # a line ends where the next word does not fit
            assert len(line) + 1 + len(after.split()[0]) > 80


def test_settings_of_one_table_and_of_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "settings", "run") == 0
    text = capsys.readouterr().out
    assert "run.rounds" in text
    assert "fleet." not in text
    assert call(monkeypatch, "settings") == 0
    text = capsys.readouterr().out
    assert "[[fleet.roles]]" in text
    assert not re.search(r"^(cell|levels|variant) ", text, re.MULTILINE)  # set by runs only
    assert "[privacy]" in text
    assert call(monkeypatch, "settings", "fleet", "--json") == 0
    assert "fleet.dropout" in json.loads(capsys.readouterr().out)["tables"]
    assert call(monkeypatch, "settings", "rn") == 2
    assert "did you mean 'run'?" in capsys.readouterr().err
    assert call(monkeypatch, "settings", "method") == 2
    assert "communis methods show NAME" in capsys.readouterr().err
    assert call(monkeypatch, "settings", "seed") == 2
    assert "seed is a key at the top of the file" in capsys.readouterr().err


def test_a_preset_is_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "presets", "show", "watch") == 0
    assert capsys.readouterr().out == presets.text("watch")
    path = tmp_path / "my.toml"
    assert call(monkeypatch, "new", str(path), "--from", "watch") == 0
    schema, _, text = path.read_text("utf-8").partition("\n")
    assert schema.endswith("configuration.schema.json")
    assert text == presets.text("watch")
    assert call(monkeypatch, "new", str(path)) == 2
    assert "there is such a file" in capsys.readouterr().err
    assert call(monkeypatch, "new", str(tmp_path / "my"), "--from", "watch") == 2
    assert "such as my.toml" in capsys.readouterr().err
    assert call(monkeypatch, "new", str(tmp_path / "x.toml"), "--from", "wach") == 2
    assert "did you mean 'watch'?" in capsys.readouterr().err


def test_settings_are_taken_without_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["data.windows=20", "run.workers=1", "run.rounds=1"]
    place = ["--into", str(tmp_path), "--name", "mine"]
    assert call(monkeypatch, "run", "synthetic", "method.lr=0.25", *small, *place, "--quiet") == 0
    assert "lr = 0.25" in (tmp_path / "mine" / "config.toml").read_text("utf-8")
    both = ["compare", "fedavg", "method.lr=0.5", "--on", "synthetic", "--seeds", "1", *small]
    assert call(monkeypatch, *both, "--into", str(tmp_path), "--name", "two", "--quiet") == 0
    written = (tmp_path / "two" / "fedavg" / "seed0" / "config.toml").read_text("utf-8")
    assert "lr = 0.5" in written
    capsys.readouterr()
    assert call(monkeypatch, "run", "synthetic", "fedavg") == 2
    assert "fedavg: expected key=value, such as method.lr=0.1" in capsys.readouterr().err


@pytest.mark.parametrize("width", [40, 60, 80])
def test_tables_stack_and_cut_nothing(width: int) -> None:
    heads = ("name", "first", "second", "third", "what it is")
    table = Stacked(*heads, text=["what it is"], numbers=["first", "second", "third"])
    row = ("a-name-of-some-length", "1,234,567.891", "0.123 ± 0.456", "987,654", "some words " * 9)
    table.add_row(*row)
    console = Console(width=width, file=StringIO())
    console.print(table)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    for cell in (*heads, *row[:-1]):
        assert cell in text
    assert text.count("words") == 9
