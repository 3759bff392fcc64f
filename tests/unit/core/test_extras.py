"""Optional parts say how to get them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from communis import CommunisError
from communis.core.extras import EXTRAS, command, require

DECLARED = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_extra_names_its_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, name, replace(EXTRAS[name], module="not_there_at_all"))
    with pytest.raises(CommunisError) as caught:
        require(name)
    assert str(caught.value).endswith(f"which is not installed: {command(name)}")


def test_an_installed_extra_is_its_module() -> None:
    assert require("dev").__name__ == "pytest"


def test_extras_are_those_of_the_package() -> None:
    assert list(EXTRAS) == list(DECLARED)
    for name, extra in EXTRAS.items():
        if extra.packages:
            assert list(extra.packages) == DECLARED[name]


def test_commands_name_packages_and_not_communis_which_is_on_no_index() -> None:
    assert command("moment") == "pip install 'peft>=0.18' 'transformers>=5'"
    assert command("dev") == "pip install --editable '.[dev]' in the clone"
