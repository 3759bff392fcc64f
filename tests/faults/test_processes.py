"""What the system does to a process: signals, and mistakes of our own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from communis import cli


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_sigterm_lets_the_round_finish(tmp_path: Path) -> None:
    """As Ctrl-C does: the run stops after a round and can be continued."""
    arguments = ["run", "synthetic", "--into", str(tmp_path), "--name", "a", "--json"]
    settings = ["--set", "run.rounds=10000", "--set", "run.workers=2"]
    with subprocess.Popen(
        [sys.executable, "-m", "communis", *arguments, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert "round" in process.stdout.readline()
        os.killpg(process.pid, signal.SIGTERM)  # as systemd and batch systems do
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping after this round; send the signal again" in said
    assert f"communis resume {tmp_path / 'a'}" in "".join(said.split("\n"))
    assert (tmp_path / "a" / "checkpoint.safetensors").exists()


def test_a_mistake_of_ours_is_one_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("[red]an oversight[/red]")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "ZeroDivisionError: [red]an oversight[/red]" in said
    assert "Traceback" not in said
    (file,) = tmp_path.iterdir()
    assert "Traceback" in file.read_text()


def test_nothing_is_imported_from_the_working_folder(tmp_path: Path) -> None:
    for name in ("torch", "typer", "rich", "pandas"):
        (tmp_path / f"{name}.py").write_text("print('it ran')\nraise SystemExit(9)\n")
    done = subprocess.run(
        [sys.executable, "-m", "communis", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert (done.returncode, "it ran" in done.stdout) == (0, False), done
