"""What the system does to a process: signals, and mistakes of our own."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from communis import CommunisError, FedAvg, Plan, Run
from communis.cli import main as cli
from communis.core import disk
from communis.core.claim import Claim
from communis.core.scratch import Scratch
from tests.fleets import mixed_fleet


@pytest.mark.slow
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


WORKS = """
import sys, time
from pathlib import Path
from communis import FedAvg, Plan, Run
from tests.fleets import mixed_fleet
run = Run(mixed_fleet(), FedAvg(), Plan(rounds=2, workers=2, eval_every=0))
next(iter(run))
workers = [worker._process.pid for worker in run.backend._pool]
print(run.backend._mail, run.folder.path.parent, *workers, flush=True)
sys.stdin.read()
"""
KEEPS = """
import sys
from pathlib import Path
from communis.core import disk
from communis.core.claim import Claim
from communis.core.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
print(scratch.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def another(code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that works until it is told to end, and the words it has said."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_what_a_killed_run_left_in_memory_and_on_disk_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with another(WORKS) as (process, (mail, states, *workers)):
        process.kill()
        process.wait()
    for pid in map(int, workers):  # they hold the lock until they see that their parent is gone
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(timeout=60)
    # Shared memory is everybody's: another process of this machine may have swept `mail` already.
    assert Path(states).parent == tmp_path
    assert Path(states).exists()
    with Run(mixed_fleet(), FedAvg(), Plan(rounds=0, workers=1)):
        assert not Path(mail).exists()
        assert not Path(states).exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_folders_of_the_living_and_of_strangers_stay(tmp_path: Path) -> None:
    mine = tmp_path / "communis-results"
    mine.mkdir()
    with another(KEEPS, str(tmp_path)) as (process, (theirs,)):
        with Scratch(tmp_path) as own:
            assert sorted(tmp_path.iterdir()) == sorted([mine, Path(theirs), own])
        process.kill()
        process.wait()
        with Scratch(tmp_path) as own:
            assert sorted(tmp_path.iterdir()) == sorted([mine, own])
    assert list(tmp_path.iterdir()) == [mine]


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_folders_that_were_never_finished_are_swept_after_a_day(tmp_path: Path) -> None:
    """Their owner was killed before or after it made its file; a young one may still be there."""
    for name in ("old-empty", "old-owned", "old-strange", "new-empty", "new-owned"):
        folder = tmp_path / f".communis-{name}"
        folder.mkdir()
        if "owned" in name:
            (folder / "owner.lock").touch()
        if "strange" in name:
            (folder / "letter").touch()
        if "old" in name:
            os.utime(folder, (0, 0))
    Scratch(tmp_path).close()
    left = sorted(path.name.removeprefix(".communis-") for path in tmp_path.iterdir())
    assert left == ["new-empty", "new-owned", "old-strange"]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_fork_does_not_remove_the_folder_of_its_parent(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if not child:
        scratch.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert scratch.path.exists()
    scratch.close()
    assert not scratch.path.exists()


def test_a_place_without_room_for_temporary_folders_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=r"gone: no temporary folder.*set .* TMPDIR"):
        Scratch(tmp_path / "gone")
    with pytest.raises(CommunisError, match=r"gone: no temporary folder.*set .* COMMUNIS_DATA to"):
        Scratch(tmp_path / "gone", variable="COMMUNIS_DATA")


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


@pytest.mark.slow
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


@pytest.mark.parametrize("text", ["half a character: \ud800", "a folder: a\udcffb", "\x1b[31m"])
def test_a_mistake_of_ours_may_quote_anything(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken() -> None:
        raise ZeroDivisionError(text)

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err.rstrip("\n")
    assert said.startswith("error: communis failed with ZeroDivisionError: ")
    assert said.isprintable()
    (file,) = tmp_path.iterdir()
    assert "ZeroDivisionError" in file.read_text()


def test_a_mistake_of_ours_without_room_for_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("an oversight")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError: an oversight" in said
    assert "its traceback could not be written: No such file or directory" in said
    assert "Traceback" not in said


ENDS = """
import os, signal
from communis.core import start_up
if {command}:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
start_up.leaving()
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("command", [True, False])
def test_a_signal_after_the_end_leaves_no_traceback(command: bool) -> None:
    """Somebody who presses Ctrl-C several times."""
    code = ENDS.format(command=command)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False
    )
    if command:
        assert (done.returncode, done.stderr) == (130, "")
    else:
        assert "KeyboardInterrupt" in done.stderr, "a program keeps its handlers"


OPENS = """
import sys
from pathlib import Path
from communis.core.claim import Claim
Claim(Path(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_syncing_a_folder_does_not_give_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files are synced one by one: the system gives up a lock when any handle is closed."""
    monkeypatch.setattr(disk, "_syncfs", lambda: None)
    claim = Claim(tmp_path)
    disk.sync(tmp_path)
    other = subprocess.run(
        [sys.executable, "-c", OPENS, str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    claim.close()
    assert "another process is working on this run" in other.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was, another process was said to be working on the folder."""

    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", lockf)
    with pytest.raises(CommunisError, match=r"cannot be locked .*a file system that has locks"):
        Claim(tmp_path)


def test_a_folder_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("communis.core.claim.os.open", closed)
    with pytest.raises(CommunisError, match=r"lock: cannot be opened for writing .*writable"):
        Claim(tmp_path)
