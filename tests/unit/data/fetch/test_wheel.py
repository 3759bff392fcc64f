"""A dataset inside a wheel: pip gets it from a folder; wrong, missing and damaged files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from communis.core.errors import CommunisError
from communis.data.fetch import adopt, fetch, wheel
from communis.data.recordings.about import About, Wheel
from tests.unit.data.fetch import made_wheel

CONTENT = bytes(range(256)) * 10
NAME = "recordings.npy"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Wheel]:
    """A wheel in a folder where pip looks, and what is known of it."""
    index = tmp_path / "index"
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return made_wheel.write(index, "datawheel", CONTENT)


@pytest.fixture
def path(made: tuple[Path, Wheel]) -> Path:
    return made[0]


@pytest.fixture
def about(made: tuple[Path, Wheel]) -> About:
    return About("MIT", "A. Uthor 2020", "https://here.example", NAME, 1, wheel=made[1])


def content_of(folder: Path) -> bytes:
    """The file; nothing else is left in the folder."""
    assert [path.name for path in folder.iterdir()] == [NAME]
    return (folder / NAME).read_bytes()


def test_pip_downloads_the_wheel_and_the_file_is_kept(about: About, tmp_path: Path) -> None:
    into = tmp_path / "home" / "set"
    outcome = fetch("set", about, into)
    assert content_of(into) == CONTENT
    assert (outcome.found, outcome.expected) == (1, 1)
    for part in (f"set is in {into}", "MIT", "A. Uthor 2020"):
        assert part in outcome.text


@pytest.mark.slow
def test_what_is_there_is_not_fetched_again_unless_it_is_damaged(
    about: About, path: Path, tmp_path: Path
) -> None:
    into = tmp_path / "set"
    into.mkdir()
    (into / NAME).write_bytes(CONTENT[::-1])
    assert f"set is in {into} (" in fetch("set", about, into).text
    assert content_of(into) == CONTENT
    path.unlink()
    assert "nothing was fetched" in fetch("set", about, into).text


@pytest.mark.slow
def test_two_processes_at_once(about: About, tmp_path: Path) -> None:
    into = tmp_path / "set"
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: fetch("set", about, into), range(2)))
    assert [outcome.found for outcome in outcomes] == [1, 1]
    assert content_of(into) == CONTENT


@pytest.mark.slow
def test_a_file_pip_py_in_the_current_folder_is_not_run(
    about: About, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("open('it ran', 'w').close()")
    fetch("set", about, tmp_path / "set")
    assert not (tmp_path / "it ran").exists()
    subprocess.run([sys.executable, "-m", "pip"], check=True)
    assert (tmp_path / "it ran").exists()  # so it was a trap


@pytest.mark.parametrize("field", ["sha256", "file_sha256"])
def test_a_wheel_or_file_of_another_hash_is_refused(
    made: tuple[Path, Wheel], about: About, tmp_path: Path, field: str
) -> None:
    path, known = made
    wrong = replace(about, wheel=replace(known, **{field: "0" * 64}))
    with pytest.raises(CommunisError, match=f"sha256 is .*, expected {'0' * 64}"):
        adopt("set", path, wrong, tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
def test_a_downloaded_wheel_of_another_hash_is_removed(
    made: tuple[Path, Wheel], about: About, tmp_path: Path
) -> None:
    wrong = replace(about, wheel=replace(made[1], sha256="0" * 64))
    with pytest.raises(CommunisError, match="sha256 is"):
        fetch("set", wrong, tmp_path / "set")
    assert not list((tmp_path / "set").iterdir())


def test_nothing_is_unpacked_of_a_wheel_of_another_hash(
    about: About, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)

    def forbidden(*_: object) -> None:
        raise AssertionError("the wheel was opened")

    monkeypatch.setattr(wheel.zipfile, "ZipFile", forbidden)
    with pytest.raises(CommunisError, match="sha256 is"):
        adopt("set", path, about, tmp_path / "set")
    path.write_bytes(content[:-1])
    with pytest.raises(
        CommunisError, match=rf"{len(content) - 1} bytes, expected {len(content)} of"
    ):
        adopt("set", path, about, tmp_path / "set")


def test_without_network_there_is_a_way(about: About, path: Path, tmp_path: Path) -> None:
    elsewhere = path.rename(tmp_path / path.name)
    with pytest.raises(CommunisError) as caught:
        fetch("set", about, tmp_path / "set")
    text = str(caught.value)
    assert "pip says: No matching distribution found for datawheel==1.0" in text
    assert "run `pip download --no-deps --only-binary :all: datawheel==1.0` on a computer" in text
    assert f"communis data fetch set --from {path.name}" in text
    assert text.isprintable()
    assert not list((tmp_path / "set").iterdir())
    adopt("set", elsewhere, about, tmp_path / "set")
    assert content_of(tmp_path / "set") == CONTENT


def test_without_pip_there_is_a_way(
    about: About, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel, "find_spec", lambda _: None)
    with pytest.raises(CommunisError, match=r"python -m ensurepip.* --from datawheel-1\.0-py3"):
        fetch("set", about, tmp_path / "set")


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("WARNING: a\nERROR: b\nERROR: c \x1b[31md\n", r"\(pip says: c \?\[31md\)"),
        ("Killed\n", r"\(exit code 3\)"),
    ],
)
def test_what_pip_says_is_one_line(
    about: About, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, expected: str
) -> None:
    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 3, printed)

    monkeypatch.setattr(wheel.subprocess, "run", run)
    with pytest.raises(CommunisError, match=expected):
        fetch("set", about, tmp_path / "set")


@pytest.mark.slow
def test_the_file_of_an_installed_package_is_taken(
    about: About, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    arguments = ["install", "--quiet", "--no-deps", "--target", str(site), str(path)]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)
    path.unlink()
    monkeypatch.syspath_prepend(str(site))
    fetch("set", about, tmp_path / "set")
    assert content_of(tmp_path / "set") == CONTENT
    (site / "datawheel" / "data" / NAME).write_bytes(b"another version's")
    with pytest.raises(CommunisError, match="pip could not download"):
        fetch("set", about, tmp_path / "other")


def test_the_file_or_a_folder_with_it_can_be_given(about: About, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / NAME).write_bytes(CONTENT)
    adopt("set", mine, about, tmp_path / "a")
    adopt("set", mine / NAME, about, tmp_path / "b")
    assert content_of(tmp_path / "a") == content_of(tmp_path / "b") == CONTENT
    (mine / NAME).write_bytes(CONTENT[1:] + b"x")
    with pytest.raises(
        CommunisError, match=r"recordings\.npy: neither datawheel-1\.0-py3-none-any"
    ):
        adopt("set", mine, about, tmp_path / "c")
    (mine / NAME).unlink()
    with pytest.raises(CommunisError, match=r"recordings\.npy: neither"):
        adopt("set", mine, about, tmp_path / "c")


def test_a_folder_that_cannot_be_made_is_one_line(about: About, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommunisError, match="file"):
        fetch("set", about, tmp_path / "file" / "set")
