"""The numbers of a report as data frames: complete, tidy, and without anything being rendered."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from communis import CommunisError
from communis.core import diagnostics
from communis.exchange.messages import Link, Noted
from communis.results import Results
from communis.results.compare import rows
from communis.results.experiment import FRAMES
from communis.results.frames.columns import ALL
from communis.results.report.page import render
from tests.unit import folders, relief_like
from tests.unit.results import test_newcomers as newcomers
from tests.unit.results.report import test_attack as attack
from tests.unit.results.report import test_graph as graph
from tests.unit.results.report import test_privacy as privacy
from tests.unit.results.report import test_report as page
from tests.unit.results.report import test_similarity as similarity

# The headings of a report by how they begin, and the frames that have the numbers below them.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Which method serves": ("scores", "selections", "differences", "costs", "run_scores"),
    "What does a newcomer get": ("newcomers", "newcomer_differences", "newcomer_scores"),
    "How they got there": ("curves", "rounds", "round_scores"),
    "Test .* of every client": ("clients", "client_scores"),
    "Test .* by the sensors": ("sensor_scores",),
    "Test F1 of every class": ("class_scores",),
    "Which classes are taken": ("confusions",),
    "Test .* of every method in every cell": ("scores", "differences", "levels"),
    "Test .* as maps": ("scores",),
    "Other scores": ("scores",),
    "Time and energy": ("timing", "time_to_target", "curves"),
    "Who waits for whom": ("devices", "busy", "device_rounds"),
    "Traffic until": ("traffic_to_target",),
    "Overhead against": ("overhead",),
    "What left the clients": ("privacy",),
    "Under attack": ("attackers", "attacks", "attack_runs"),
    "Test .* of each modality": ("modalities",),
    "Other ways to predict": ("views",),
    "What methods measure": ("measures",),
    "Does the model know": ("uncertainty", "uncertainty_points"),
    "The common latent space": ("latent", "curves"),
    "Who learns from whom": ("similarities", "similarity_pairs", "weights"),
    "What was trained": ("trained", "allocations", "allocation_clients"),
    "How far clients differ": ("divergence", "curves"),
    "Do clients pull": ("update_cosines",),
    "Who hears whom": ("graphs", "graph_edges", "neighbours"),
    "Do the nodes agree": ("curves", "rounds"),
    "Which sensors, and when": ("sensors",),
    "Every cell by itself": (),
    "What was run": ("settings", "runs"),
}
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
SCALES = (1.0, 100.0, 1e-3, 1e-6, 1e-9)  # as written; percent; KB, MB and GB


class Tables(HTMLParser):
    """The texts of all headings and of all cells of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: dict[str, list[str]] = {"h2": [], "h3": []}
        self.cells: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("h2", "h3", "td"):
            self._inside = tag
            self.headings.get(tag, self.cells).append("")
        elif tag == "br" and self._inside:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.headings.get(self._inside, self.cells)[-1] += data


def write(home: Path, method: str, seed: int, history: folders.History, **about: object) -> Path:
    place = home / f"{method}{seed}"
    return folders.write(place, method, seed, history, **about)  # type: ignore[arg-type]


def grid(home: Path) -> None:
    """Cells, views, measures, uncertainty, dropout, several architectures of cost."""
    page.grid_of(home, clients=3, seeds=2, rounds=2)


def elastic(home: Path) -> None:
    """A clock, allocation, cosines of updates, views of the common model."""
    relief_like.write(home, ("fedavg", "relief", "coverage_40"), seeds=2, rounds=3)


def owners(home: Path) -> None:
    """The scores of single sensors by their owners."""
    relief_like.write(home, ("fedavg", "relief"), seeds=2, rounds=3, whole=False)


def attacked(home: Path) -> None:
    attack.grid(home)


def attacked_cell(home: Path) -> None:
    """One cell, with and without attackers."""
    attack.write(home / "calm", {0: 0.9, 1: 0.7, 2: 0.5, 3: 0.3})
    attack.write(home / "attacked", {0: 0.8, 1: 0.6, 2: 0.4}, [3])


def private(home: Path) -> None:
    privacy.grid(home)


def on_graphs(home: Path) -> None:
    """A ring with one method and a graph in two parts with another."""
    ring = [(0, 1), (1, 2), (2, 3), (0, 3)]
    links = [Link(0, 1, 1000, 5), Link(1, 0, 500, 5)]
    distances = (0.5, 0.25)
    graph.folder(home, ring, 4, links=links, kind="ring", distances=distances)
    parts = [[0, 1], [2, 3]]
    graph.folder(home, [(0, 1), (2, 3)], 4, method="fedapa", parts=parts, loss=0.25)


def common_space(home: Path) -> None:
    for seed in range(2):
        noted = [
            [Noted(0, diagnostics.DISTANCE.name, 1.0 + seed), Noted(1, diagnostics.PULL.name, 0.5)],
            [Noted(0, diagnostics.DISTANCE.name, 90.0), Noted(1, diagnostics.PULL.name, 0.25)],
        ]
        history = {"test.accuracy": [{0: 0.5}, {0: 0.625}]}
        write(home, "comfed", seed, history, rows={"log": noted})


def alike(home: Path) -> None:
    for seed in range(2):
        similarity.folder(home, [similarity.flat(), similarity.flat(alike=0.25)], seed=seed)


def targets(home: Path) -> None:
    """Traffic and simulated time until a score is reached."""
    for method, seed in product(("fedavg", "fedprox"), range(3)):
        found = [0.3, 0.5 + 0.01 * seed, 0.7]
        scores = [{0: value, 1: value + 0.1} for value in found]
        history = {"test.accuracy": scores, "test.f1.0": scores, "test.f1.1": scores[::-1]}
        spent = [1.5 * (seed + 1)] * 3
        write(home, method, seed, history, seconds=spent, joules=spent, target=0.5)


def kept(home: Path) -> None:
    """Kept predictions, of which some are not finite."""
    for method, seed in product(("fedavg", "local"), range(2)):
        about = {"labels": ["walking", "sitting", "falling"]}
        path = write(home, method, seed, {"test.accuracy": [{0: 0.5, 1: 0.75}]}, fleet=about)
        scores = [[1, 0, 0], [0, 1, 0], [1, 0, 0], [math.nan, 0, 1], [0, 1, 0]]
        folders.keep(path, [0, 0, 1, 1, 1], [0, 1, 1, 1, 1], scores)


def welcoming(home: Path) -> None:
    """Newcomers, whom only two of three methods serve."""
    newcomers.write(home)


SHAPES: Mapping[str, Callable[[Path], None]] = {
    shape.__name__: shape
    for shape in (
        grid,
        elastic,
        owners,
        attacked,
        attacked_cell,
        private,
        on_graphs,
        common_space,
        alike,
        targets,
        kept,
        welcoming,
    )
}


METRICS = {"elastic": "macro_f1", "owners": "macro_f1"}  # what modalities are scored by


Shown = tuple[Results, str]  # the results of a shape, and their report


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Shown]:
    """The results and the report of a shape; each is made once."""

    @cache
    def make(name: str) -> Shown:
        home = tmp_path_factory.mktemp(name)
        SHAPES[name](home)
        results = Results.read(home, metric=METRICS.get(name, ""))
        page = render(results.read_runs, results.metric, "t", results.select)
        return results, re.sub("<(svg|pre).*?</(svg|pre)>", "", page, flags=re.DOTALL)

    return make


def spellings(frames: Iterable[pd.DataFrame]) -> set[str]:
    """All ways in which a report may write the numbers of frames."""
    found: set[str] = set()
    for frame in frames:
        for column in frame.columns:
            for value in frame[column].dropna().unique():
                if isinstance(value, str):
                    found |= {plain(token) for token in NUMBER.findall(value)}
                elif not isinstance(value, bool) and math.isfinite(value):
                    found |= spelled(float(value))
    return found


def spelled(value: float) -> set[str]:
    found = set()
    for scale in SCALES:
        scaled = value * scale
        found |= {plain(f"{scaled:.{digits}f}") for digits in range(6)}
        found.add(plain(f"{scaled:.3g}"))
    return found


def plain(token: str) -> str:
    """A number without its sign and the commas between thousands."""
    return token.replace(",", "").lstrip("+-").rstrip(".")


def needed(heading: str) -> list[Sequence[str]]:
    return [names for start, names in SECTIONS.items() if re.match(start, heading)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_of_a_report_is_in_a_frame(shape: str, shown: Callable[[str], Shown]) -> None:
    results, text = shown(shape)
    tables = Tables(text)
    frames = results.frames()
    for heading in tables.headings["h2"]:
        assert needed(heading), heading
    for heading in [*tables.headings["h2"], *tables.headings["h3"]]:
        for names in needed(heading):
            assert set(names) <= set(frames), heading
    known = spellings(frames.values())
    lacking = [
        (cell, token)
        for cell in tables.cells
        for token in NUMBER.findall(cell)
        if plain(token) not in known
    ]
    assert not lacking


def test_the_shapes_show_every_section(shown: Callable[[str], Shown]) -> None:
    """So that no section is left out of the test above."""
    seen = set()
    for name in SHAPES:
        _, text = shown(name)
        headings = Tables(text).headings
        for heading in [*headings["h2"], *headings["h3"]]:
            seen |= {start for start in SECTIONS if re.match(start, heading)}
    assert seen == set(SECTIONS)


def test_nothing_is_rendered(tmp_path: Path) -> None:
    targets(tmp_path)
    code = (
        "import sys, json\n"
        "from communis.results import Results\n"
        f"frames = Results.read({str(tmp_path)!r}).frames()\n"
        "pages = ('communis.results.report', 'communis.core.markup', 'communis.cli', 'plot')\n"
        "found = [m for m in sys.modules if m.startswith(pages) or m.endswith('.plot')]\n"
        "print(json.dumps([found, list(frames)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pages, frames = json.loads(done.stdout)
    assert pages == []
    assert "scores" in frames


def test_a_comparison_can_be_computed_again_from_its_runs(tmp_path: Path) -> None:
    targets(tmp_path)
    results = Results.read(tmp_path)
    assert (results.metric, results.select, results.targets) == ("accuracy", "last", (0.5,))
    chosen = results.run_scores.query("select == 'last' and over_clients == 'mean'")
    again = chosen.groupby("method")["score"].agg(["mean", "std"])
    shown = results.scores.query("over_clients == 'mean'").set_index("method")
    assert again["mean"].to_dict() == pytest.approx(shown["mean"].to_dict())
    assert again["std"].to_dict() == pytest.approx(shown["spread"].to_dict())
    of_clients = results.client_scores.groupby(["method", "seed"])["score"].mean()
    by_run = chosen.set_index(["method", "seed"])["score"]
    assert of_clients.to_dict() == pytest.approx(by_run.to_dict())
    row = rows(results.read_runs, "accuracy")[1]
    other = results.differences.query(f"method == '{row.method}'").iloc[0]
    assert other["high"] - other["mean"] == pytest.approx(row.difference.half_width)
    assert other["verdict"] == row.verdict
    reached = results.traffic_to_target.query("quantity == 'rounds' and method == 'fedavg'")
    assert reached[["mean", "reached", "runs"]].to_numpy().tolist() == [[2.0, 3, 3]]


def test_means_over_cells_are_told_from_cells(tmp_path: Path) -> None:
    for level, seed in product(("low", "high"), range(2)):
        history = {"test.accuracy": [{0: 0.5 + 0.1 * (level == "high") + 0.02 * seed}]}
        write(tmp_path / level, "alpha", seed, history, cell={"H": level})
    results = Results.read(str(tmp_path))
    table = results.scores.query("over_clients == 'mean'").set_index("cell")["mean"]
    assert table.to_dict() == pytest.approx({"H low": 0.51, "H high": 0.61, ALL: 0.56})
    assert results.levels["level"].tolist() == ["high", "low"]
    assert set(results.settings["key"]) >= {"method.name", "cell.H", "run.rounds"}


def test_frames_without_rows_have_their_columns(tmp_path: Path) -> None:
    write(tmp_path, "alpha", 0, {"test.accuracy": [{0: 0.5}]})
    results = Results.read(tmp_path)
    assert "timing" not in results.frames()
    for name in FRAMES:
        frame = getattr(results, name)
        assert len(frame.columns) > 1, name
        assert all(re.fullmatch("[a-z0-9_]+", column) for column in frame.columns), name
        assert (type(results).__dict__[name].__doc__ or "").endswith("."), name


def test_mistakes_are_named(tmp_path: Path) -> None:
    write(tmp_path, "alpha", 0, {"test.accuracy": [{0: 0.5}]})
    with pytest.raises(CommunisError, match="no metric 'f2' in these runs; there are accuracy"):
        Results.read(tmp_path, metric="f2")
    with pytest.raises(CommunisError, match="select: expected last, common, client, tail"):
        Results.read(tmp_path, select="best")  # type: ignore[arg-type]
    with pytest.raises(CommunisError, match="no such folder"):
        Results.read(tmp_path / "none")
    with pytest.raises(CommunisError, match="target: expected a finite number"):
        Results.read(tmp_path, targets=[math.nan])
