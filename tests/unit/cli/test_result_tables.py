"""The tables of results at the widths of narrow terminals: they fit or stack, and every name and
number is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from itertools import product
from pathlib import Path

import pytest

from communis.cli.console import Stacked, Terminal
from communis.cli.terminal import results
from communis.results.compare import collect
from communis.results.finished import Finished
from tests.unit import folders
from tests.unit.results.report import test_graph as graphs
from tests.unit.results.report import test_privacy as private

LONG = "relief_with_all_of_its_parts and a coverage of 0.4"
METHODS = ("fedavg", "local", LONG)
WIDTHS = (80, 60)


def write(home: Path, seed: int, method: str, history: folders.History, **about: object) -> None:
    variant = method if method == LONG else ""
    name = "relief" if variant else method
    place = home / f"{len(list(home.iterdir())) if home.exists() else 0}"
    folders.write(place, name, seed, history, variant=variant, **about)  # type: ignore[arg-type]


def value(method: str, seed: int) -> float:
    return 0.3 + 0.1 * METHODS.index(method) + 0.01 * seed


def grid(home: Path) -> list[Finished]:
    """Two axes with long levels."""
    levels = {"dropout": ["none", "moderate", "very severe"], "participation": ["0.25", "1.0"]}
    for dropout, part, method, seed in product(*levels.values(), METHODS, range(3)):
        cell = {"dropout": dropout, "participation": part}
        history = {"test.accuracy": [{0: value(method, seed)}]}
        write(home, seed, method, history, cell=cell, levels=levels)
    return collect([home])


def scores(home: Path) -> list[Finished]:
    """Many scores, with errors that are large."""
    for method, seed in product(METHODS, range(3)):
        found = value(method, seed)
        names = ("accuracy", "macro_f1", "nll", "brier", "ece")
        history = {f"test.{name}": [{0: found}] for name in names}
        history["test.mae"] = [{0: 123456.789 * found}]
        history |= {f"val.{name}": [{0: found}] for name in names}
        write(home, seed, method, history)
    return collect([home])


def clock(home: Path) -> list[Finished]:
    """By the device clock, until a target."""
    for method, seed in product(METHODS, range(3)):
        history = {"test.accuracy": [{0: value(method, seed)}, {0: value(method, seed) + 0.2}]}
        spent = [12345.678 * (seed + 1)] * 2
        write(home, seed, method, history, seconds=spent, joules=spent, target=0.42)
    return collect([home])


def privacy(home: Path) -> list[Finished]:
    return private.grid(home)


def graph(home: Path) -> list[Finished]:
    for seed in range(2):
        graphs.folder(home, [(0, 1), (1, 2), (2, 3), (3, 0)], 4, seed=seed, kind="ring")
    return collect([home])


def printed(shown: object, width: int) -> str:
    console = Terminal(width=width, file=StringIO())
    console.print(shown)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def numbers(text: str) -> list[str]:
    return sorted(set(re.findall(r"\d[\d,]*(?:\.\d+)?", text)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [grid, scores, clock, privacy, graph])
def test_every_table_of_results_fits_or_stacks(
    shape: Callable[[Path], list[Finished]], width: int, tmp_path: Path
) -> None:
    runs = shape(tmp_path)
    metric = "accuracy"
    shown = results(runs, metric, targets=[0.42] if shape is clock else ())
    wide, text = printed(shown, 400), printed(shown, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert set(numbers(wide)) <= set(numbers(text))
    once = " ".join(text.split())
    for run in runs:
        assert run.method in once


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_name_is_wrapped_and_its_numbers_are_not(width: int) -> None:
    table = Stacked("method", "bytes", numbers=["bytes"])
    table.add_row("a method whose settings are its name " * 3, "1,234,567,890.123 ± 9.876")
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    assert "1,234,567,890.123 ± 9.876" in text
    assert text.count("settings") == 3
