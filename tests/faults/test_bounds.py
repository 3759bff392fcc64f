"""What is held in memory and what is evaluated stays bounded, however long or large a run is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from communis.results.compare import collect
from communis.results.finished import Finished
from communis.results.report import page
from communis.run import tables
from tests.unit import folders, relief_like

ROUNDS, CLIENTS, CLASSES = 12, 4, 9


def long_run(path: Path) -> Path:
    def values(offset: float) -> list[dict[int, float]]:
        return [{c: offset + r / 100 + c / 10 for c in range(CLIENTS)} for r in range(ROUNDS)]

    metrics = ("accuracy", "macro_f1", "nll", "ece", "brier")
    names = [*metrics, *(f"f1.{label}" for label in range(CLASSES))]
    history = {f"{split}.{name}": values(i) for split in ("val", "test")
               for i, name in enumerate(names)}  # fmt: skip
    return folders.write(path, "fedavg", 0, history)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, pa.Table]]:
    """Every table that is read, with its room."""
    found: list[tuple[str, pa.Table]] = []
    real: Callable[..., pa.Table] = tables.read

    def read(folder: Path, name: str, *arguments: Any) -> pa.Table:
        found.append((name, real(folder, name, *arguments)))
        return found[-1][1]

    monkeypatch.setattr(tables, "read", read)
    return found


def test_a_report_reads_one_metric_of_all_rounds_at_most(
    tmp_path: Path, reads: list[tuple[str, pa.Table]]
) -> None:
    """Of the others, the rounds that count."""
    page.render(collect([long_run(tmp_path / "a")]), "accuracy", "a title")
    scores = [table.num_rows for name, table in reads if name == "scores"]
    assert len(scores) > 1
    of_one_metric = 2 * ROUNDS * CLIENTS
    of_one_round = 2 * CLIENTS * (5 + CLASSES)
    assert max(scores) <= max(of_one_metric, of_one_round)


def test_rows_of_rounds_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    (run,) = collect([long_run(tmp_path / "a")])
    path = tmp_path / "a" / "scores.arrows"
    hurt = bytearray(path.read_bytes())
    hurt[folders.block_of(path, 2).start] ^= 1
    path.write_bytes(hurt)
    assert set(run.last_scores["round"]) == {ROUNDS}


def test_no_section_of_a_report_reads_a_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relief_like.write(tmp_path, ("relief",), seeds=1, rounds=3)
    conditions = []
    rows = Finished.rows

    def noted(self: Finished, room: str, *about: Any, **more: Any) -> Any:
        if room == "log":
            conditions.append((*about, more.get("where"))[0])
        return rows(self, room, *about, **more)

    monkeypatch.setattr(Finished, "rows", noted)
    page.render(collect([tmp_path]), "accuracy", "a title")
    assert len(conditions) >= 3
    assert not [where for where in conditions if where is None]
