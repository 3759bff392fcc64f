"""The code that users read first runs as it stands, and what documents name exists."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from communis.config import Config, cells
from communis.plugins import names
from communis.schema import build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.S))
def test_python_blocks_of_the_readme(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(block.strip().splitlines()) <= 20
    exec(compile(block, "README.md", "exec"), {})


EXPERIMENTS = (ROOT / "docs" / "guides" / "experiments.md").read_text("utf-8")


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", README + EXPERIMENTS, re.S))
def test_toml_blocks_are_configurations(block: str, tmp_path: Path) -> None:
    path = tmp_path / "block.toml"
    path.write_text(block)
    for config in cells(str(path)).values():
        assert config.make_fleet()
        for name in (*config.compare, *config.variants):
            assert config.under(name).make_method()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


def test_every_method_has_a_page() -> None:
    for name in names("methods"):
        text = (ROOT / "docs" / "methods" / f"{name}.md").read_text("utf-8")
        assert "eviation" in text


GENERATED = ("synthetic", "watch")  # described where they are used


def test_every_dataset_has_a_page_and_a_line() -> None:
    listed = (ROOT / "docs" / "reference" / "data" / "README.md").read_text("utf-8")
    for name in names("data"):
        assert re.search(rf"\| \[?{name}\b", listed), name
        page = (
            ROOT / "docs" / ("guides/world.md" if name == "world" else f"reference/data/{name}.md")
        )
        assert name in GENERATED or page.exists(), name


PAGES = [
    (ROOT / "docs" / "guides" / f"{x}.md").read_text("utf-8")
    for x in ("availability", "robust", "topologies")
]


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", "\n".join(PAGES), re.S))
def test_tables_of_the_pages(block: str) -> None:
    assert build(Config, tomllib.loads(block), "")


def test_links_in_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"
