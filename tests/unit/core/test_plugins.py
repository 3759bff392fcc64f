"""Methods and data sources by name or by dotted path."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import communis.data.sources
import communis.methods
from communis import CommunisError, FedAvg, Method
from communis.core.plugins import find, names, nearest
from communis.data.sources.synthetic import Synthetic
from communis.methods.fedper import FedPer


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module outside the package, forgotten again afterwards."""
    (tmp_path / "my_lab_methods.py").write_text(
        "from dataclasses import dataclass\n"
        "from communis import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    pass\n"
        "@dataclass\nclass Settings:\n    pass\n"
    )
    monkeypatch.setattr("communis.core.plugins._trusted", {"": None})
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_lab_methods"
    sys.modules.pop("my_lab_methods", None)


def test_names_are_the_files_of_the_room() -> None:
    for room, package in (("methods", communis.methods), ("data", communis.data.sources)):
        files = {
            f.stem for f in Path(next(iter(package.__path__))).glob("*.py") if f.stem != "__init__"
        }
        assert names(room) == sorted(files - {"recording", "samples", "windows"})
    assert {"fedavg", "scaffold", "local"} <= set(names("methods"))
    assert {"synthetic", "watch"} <= set(names("data"))


@pytest.mark.parametrize("name", names("methods"))
def test_every_method_is_found_under_its_file_name(name: str) -> None:
    found = find("methods", name)
    assert issubclass(found, Method)
    assert dataclasses.is_dataclass(found)
    assert found.__module__ == f"communis.methods.{name}"
    assert found.__name__.lower() == name.replace("_", "")


@pytest.mark.parametrize("name", names("data"))
def test_every_source_is_found_under_its_file_name(name: str) -> None:
    found = find("data", name)
    assert dataclasses.is_dataclass(found)
    assert callable(found.load)


def test_a_class_that_a_module_only_imports_is_not_mistaken_for_its_own() -> None:
    """fedper imports FedAvg; the file name decides."""
    assert find("methods", "fedavg") is FedAvg
    assert find("methods", "fedper") is not FedAvg
    assert find("data", "synthetic") is Synthetic


def test_a_misspelled_name_gets_the_nearest_and_the_whole_list() -> None:
    with pytest.raises(CommunisError, match=r"no method 'fedavgg' \(did you mean 'fedavg'\?\)"):
        find("methods", "fedavgg")
    with pytest.raises(CommunisError) as caught:
        find("methods", "zzz")
    assert "did you mean" not in str(caught.value)
    assert all(name in str(caught.value) for name in names("methods"))
    with pytest.raises(CommunisError, match=r"no data 'wach' \(did you mean 'watch'\?\)"):
        find("data", "wach")


def test_support_modules_are_no_sources() -> None:
    for name in ("windows", "recording", "samples", "__init__"):
        with pytest.raises(CommunisError, match="no data"):
            find("data", name)


def test_a_dotted_path_leads_outside(third_party: str) -> None:
    found = find("methods", f"{third_party}:Mine")
    assert found.__name__ == "Mine"
    assert find("methods", "communis.methods.fedavg:FedAvg") is FedAvg


@pytest.mark.parametrize("name", ["my_lab_methods:Yours", "nowhere.at.all:Mine"])
def test_a_dotted_path_that_leads_nowhere_is_named(name: str, third_party: str) -> None:
    with pytest.raises(CommunisError, match=f"cannot load '{name}'"):
        find("methods", name)


@pytest.mark.parametrize(
    ("room", "name", "why"),
    [
        ("methods", "my_lab_methods:Settings", "is no method"),
        ("data", "my_lab_methods:Settings", "is no source"),
        ("methods", "math:pi", "is no dataclass"),
        ("methods", "communis:load", "is no dataclass"),
        ("methods", "communis.run.config:Config", "is no method"),
    ],
)
def test_what_is_something_else_is_no_plug_in(
    room: str, name: str, why: str, third_party: str
) -> None:
    with pytest.raises(CommunisError, match=f"'{name}' {why}"):
        find(room, name)


def test_a_plug_in_that_leaves_python_does_not(third_party: str, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)")
    with pytest.raises(CommunisError, match="cannot load 'leaving:Mine': SystemExit: 3"):
        find("methods", "leaving:Mine")


def test_only_plug_ins_of_the_room_are_communis_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """To import communis.__main__ is to run the command line."""
    monkeypatch.setattr("communis.core.plugins._trusted", {})
    for name in (
        "communis.__main__:main",
        "communis.cli.main:app",
        "communis.data.sources.synthetic:Synthetic",
    ):
        with pytest.raises(CommunisError, match=r"code outside of communis\.methods"):
            find("methods", name)


@pytest.mark.parametrize("name", [":Mine", ".relative:Mine"])
def test_a_path_that_cannot_be_one_is_refused_like_any_other(name: str, third_party: str) -> None:
    with pytest.raises(CommunisError, match="cannot load"):
        find("methods", name)


def test_nearest_is_silent_when_nothing_is_near() -> None:
    choices = ["rounds", "cohort", "workers"]
    assert nearest("round", choices) == " (did you mean 'rounds'?)"
    assert nearest("worker", choices, lambda close: f"try {close}") == "try workers"
    assert nearest("zzz", choices) == ""
    assert nearest("x", []) == ""


@pytest.mark.parametrize(
    ("room", "name", "kind"),
    [
        ("methods", "communis.methods.fedper:FedPer", FedPer),
        ("data", "communis.data.sources.synthetic:Synthetic", Synthetic),
    ],
)
def test_dotted_paths_of_our_own_need_no_trust(
    room: str, name: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("communis.core.plugins._trusted", {})
    assert find(room, name) is kind
