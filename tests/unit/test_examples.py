"""The notebook of the examples runs from top to bottom, as somebody would run it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "own_recordings.ipynb"


def cells(kind: str) -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = tmp_path / "examples" / "walk"
    shutil.copytree(ROOT / "examples" / "walk", walk)
    (walk / "communis.toml").unlink(missing_ok=True)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in cells("code"):
        exec(compile(cell, NOTEBOOK.name, "exec"), names)
    assert [record["round"] for _, record in names["run"].records().iterrows()][-1] == 60
    assert "<table" in names["results"]._repr_html_()
    labels = names["labels"]
    assert isinstance(labels, pd.DataFrame)
    assert set(labels["label"]) <= {"sit", "stairs", "walk"}
    score = float(names["results"].newcomer_scores["score"].iloc[0])
    assert 0.0 <= score <= 1.0


def test_the_notebook_holds_no_results() -> None:
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    assert all(not cell.get("outputs") for cell in notebook["cells"])


def test_links_of_the_notebook_lead_somewhere() -> None:
    for text in cells("markdown"):
        for part in text.split("](")[1:]:
            target = part.partition(")")[0]
            assert (NOTEBOOK.parent / target).exists(), target
