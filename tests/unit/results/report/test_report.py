"""The report: one file, well formed, without scripts or outside addresses."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from communis.cli.main import main
from communis.cli.terminal import out, results
from communis.fleet.availability.trace import Trace
from communis.results import breakdown
from communis.results.compare import collect
from communis.results.report import costs, sensing, uncertainty, views
from communis.results.report.page import render, write
from communis.results.report.svg import Curve, Dots, curves, scatter, ticks
from communis.results.uncertainty import points
from communis.results.wording.warnings import warnings
from tests.unit import folders

OTHER, KNOWS = "Other ways to predict", "Does the model know when it fails?"
LEVELS = ("moderate", "severe")
SENSORS = ("acc", "gyro", "ppg")


class Balanced(HTMLParser):
    """Checks that every tag is closed."""

    void = ("meta", "br", "line", "circle", "polygon")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rows += tag == "tr"
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.void

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real comparison of two methods, two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    arguments = ["compare", "fedavg", "local", "--on", "synthetic", "--seeds", "2", "--quiet"]
    arguments += ["--into", str(folder), "--name", "c", "--set", "run.rounds=3"]
    arguments += ["--set", "run.workers=1", "--set", "data.windows=20", "--set", "run.eval_every=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["communis", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 0
    return folder / "c"


def test_the_report_is_one_well_formed_file(home: Path) -> None:
    text = (home / "report.html").read_text("utf-8")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert parser.rows > 20
    assert text.count("<svg") == 6  # scores, differences, three charts, and who owns what
    assert outside(text) == []
    for word in ("fedavg", "local", "weakest", "m0 alone", "too few seeds", "seed"):
        assert word in text
    assert "Overhead against fedavg" in text
    for section in (OTHER, KNOWS, "Every cell by itself"):
        assert section not in text


def outside(text: str) -> list[str]:
    """Scripts and addresses in a page; the name of SVG's language is no address, and parts of the
    page are no other place."""
    text = text.replace("xmlns='http://www.w3.org/2000/svg'", "").replace("href='#", "")
    return [word for word in ("<script", "http://", "https://", "src=", "href=") if word in text]


def test_means_over_seeds_do_not_leave_out_what_diverged(tmp_path: Path) -> None:
    """Of a client, of sensors and of a class."""
    for seed, value in enumerate((0.5, math.nan)):
        history = {f"test.{name}": [{0: value, 1: 0.25}] for name in ("accuracy", "f1.0")}
        folders.write(tmp_path / f"a{seed}", "a", seed, history)
    runs = collect([tmp_path])
    by_client = breakdown.by_client(runs, "accuracy", "last", ["a"])["a"]
    assert by_client.isna().tolist() == [True, False]
    for found, index in ((breakdown.last(runs, "accuracy"), "subset"),
                         (breakdown.last(runs, "f1"), "class")):  # fmt: skip
        assert breakdown.means(found, index, "value", ["a"])["a"].isna().all()
        known = found[found["client"] == 1]
        assert breakdown.means(known, index, "value", ["a"])["a"].tolist() == [0.25]


def test_attackers_are_not_said_to_diverge(tmp_path: Path) -> None:
    """What they send is refused as it should be."""
    reason = "delta/w holds NaN or Inf"
    history = {"test.accuracy": [{0: 0.5, 1: 0.5}]}
    folders.write(tmp_path / "a", "a", 0, history, refused=((1, reason),))
    (said,) = warnings(collect([tmp_path]))
    assert "a: 1 of 2 results of training" in said
    assert f"seed 0, round 1, client 1: {reason}" in said
    about = {"attackers": [1], "clients": [{"id": 0}, {"id": 1}]}
    folders.write(tmp_path / "a", "a", 0, history, refused=((1, reason),), fleet=about)
    assert not any("training" in text for text in warnings(collect([tmp_path])))


def test_names_are_escaped(home: Path) -> None:
    text = render(collect([home]), "accuracy", "<b>&")
    assert "&lt;b&gt;&amp;" in text
    assert "<b>" not in text


def test_curves_without_points_say_so() -> None:
    assert "nothing was evaluated" in curves([], "Title", "x", "y")


def test_a_single_point_is_drawn() -> None:
    text = curves([Curve("one", "#000", [1.0], [0.5], [0.5], [0.5])], "t", "x", "y")
    assert "<circle" in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.41, 0.87), (-3, 1e6), (5, 5), (0, 0), (1e-9, 2e-9), (-1e-17, 0)]
)
def test_ticks_span_the_range_with_round_numbers(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low + 1e-12
    assert found[-1] >= high - 1e-12
    assert 2 <= len(found) <= 8
    steps = {round(b - a, 12) for a, b in pairwise(found)}
    assert math.isclose(min(steps), max(steps), rel_tol=1e-6)


def grid_of(home: Path, clients: int = 6, seeds: int = 3, rounds: int = 4) -> Path:
    """Three methods in 2 x 2 cells; one of them has views and measures, and falls with sigma_f."""
    rng = np.random.default_rng(0)
    names = [("fedavg", ""), ("duet", ""), ("duet", "duet <no UT>")]
    for h, i, seed, (method, variant) in product(LEVELS, LEVELS, range(seeds), names):
        base = 0.8 - 0.2 * (h == "severe") - 0.15 * (i == "severe") + 0.03 * (method == "duet")
        uncertainty = rng.uniform(0.5, 1, clients) + 0.5 * (h == "severe") + 0.5 * (i == "severe")
        f1 = base - 0.1 * uncertainty + rng.normal(0, 0.02, (rounds, clients))
        found = {
            "macro_f1": f1,
            "accuracy": f1 + 0.05,
            "nll": 2 - f1,
            "mean@available": 3 - np.round(uncertainty),
        }
        if method == "duet":
            extra = {"macro_f1@tempered": f1 + 0.01, "nll@tempered": 1.8 - f1, "nll@shared": 3 - f1}
            found |= {**extra, "mean@sigma_f": uncertainty, "mean@clamped": uncertainty / 100}
            # Where no sensor saw a window it counts for the one and not for the other.
            found |= {
                "mean@sigma_f_seen": uncertainty,
                "mean@available_seen": 3 - np.round(uncertainty),
            }
            found["mean@sigma_f"] = uncertainty + 1
        found["macro_f1@seen"] = f1
        history = {
            f"{split}.{name}": [dict(enumerate(row)) for row in np.broadcast_to(values, f1.shape)]
            for name, values in found.items()
            for split in ("val", "test")
        }
        owners = [SENSORS if k % 2 else SENSORS[:2] for k in range(clients)]
        size = {"parameters": 1500 if method == "duet" else 1000, "private": 200}
        fleet = {"clients": [{"id": k, "sensors": s, **size} for k, s in enumerate(owners)]}
        folder = home / f"{h}-{i}" / (variant.replace("<", "").replace(">", "") or method)
        path = folders.write(
            folder / f"seed{seed}",
            method,
            seed,
            history,
            cell={"H": h, "I": i},
            variant=variant,
            fleet=fleet,
        )
        trace(clients).save(path / "availability.parquet")
    return home


def trace(clients: int) -> Trace:
    """The first sensor of every client is missing for 10 of 100 seconds."""
    who, zeros = np.arange(clients), np.zeros(clients, np.int64)
    return Trace(
        SENSORS, np.full((clients, 3), 100.0), who, zeros, zeros, zeros + 20.0, who * 0 + 30.0
    )


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grid_of(tmp_path_factory.mktemp("grid"))


@pytest.mark.slow
def test_the_report_of_a_grid(grid: Path, tmp_path: Path) -> None:
    path = write(collect([grid]), tmp_path / "report.html", "macro_f1", "a grid", "client")
    text = path.read_text("utf-8")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert outside(text) == []
    assert "nan" not in text
    for word in ("4 cells", "H severe<br>I moderate", "average of", "H \\ I", "\u00a0*</b>"):
        assert word in text
    assert text.count("<details class='cell'>") == 4
    assert text.count("<figure>") == 3  # a map for each method
    assert "duet &lt;no UT&gt;" in text
    assert "<no UT>" not in text
    assert "best round of every client" in text
    assert text.index(OTHER) < text.index(KNOWS) < text.index("Which sensors, and when")


def test_a_grid_of_one_axis_and_one_seed(tmp_path: Path) -> None:
    for level, value in (("none", 0.9), ("half", 0.5)):
        history = {"test.accuracy": [{0: value}]}
        folders.write(tmp_path / level, "alpha", 0, history, cell={"missing": level})
    runs = collect([tmp_path])
    lines = cells_of(render(runs, "accuracy", "t"))
    assert ["missing", "half", "none"] in lines
    assert ["", "0.500", "0.900"] in lines
    with out.capture() as said:
        out.print(results(runs, "accuracy"))
    assert "0.500*" in said.get()
    assert "1 seed is too few to judge any difference" in " ".join(said.get().split())


def cells_of(text: str) -> list[list[str]]:
    """The cells of every line of a table, tags removed."""
    lines = re.findall("<tr>(.*?)</tr>", text)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in lines]


@pytest.mark.slow
def test_other_ways_to_predict(grid: Path) -> None:
    runs = [run for run in collect([grid]) if run.place == "H severe, I severe"]
    text = views.section(runs, "macro_f1", "last")
    table = cells_of(text)
    assert table[0] == ["method", "view", "macro f1", "accuracy", "nll"]
    assert [line[:2] for line in table[1:5]] == [
        ["duet", "its prediction"],
        ["", "tempered"],
        ["", "shared"],
        ["", "its prediction, where a sensor saw the window"],
    ]
    assert table[2][3] == table[3][2] == "-"  # no accuracy of this view, no macro F1 of that
    plain, tempered = (float(table[i][2].split()[0]) for i in (1, 2))
    assert tempered - plain == pytest.approx(0.01, abs=1e-3)
    measures = [line for line in table if line[0] == "method"][1]
    every = ["sigma_f", "clamped", "sigma_f_seen", "available_seen"]
    assert measures == ["method", "available", *every]
    fedavg = [line for line in table if line[0] == "fedavg"][1]
    assert fedavg.count("-") == 4
    assert views.section([run for run in runs if run.method == "fedavg"], "macro_f1", "last") == ""


@pytest.mark.slow
def test_uncertainty_against_scores(grid: Path) -> None:
    runs = collect([grid])
    found = points([run for run in runs if run.method == "duet"])
    assert len(found) == 6 * 3 * 4
    text = uncertainty.section(runs)
    pooled = cells_of(text)[1]
    assert pooled[:2] == ["duet", "72"]
    assert float(pooled[2]) < -0.2
    assert pooled[3] == "&lt; 0.001"
    assert text.count("<circle") == 2 * 72
    assert "H moderate, I severe" in text  # the legend
    each = cells_of(text.split("client by client")[1])
    assert [line[0] for line in each[1:]] == ["0", "1", "2", "3", "4", "5"]
    assert {line[1] for line in each[1:]} == {"12"}
    few = uncertainty.section([run for run in runs if run.place == "H severe, I severe"])
    assert "No client has 4 points" in few
    assert uncertainty.section([run for run in runs if run.method == "fedavg"]) == ""


def test_maps_of_sensors(grid: Path, tmp_path: Path) -> None:
    runs = collect([grid])
    text = sensing.section(runs)
    assert text.count("<svg") == 4 * (1 + 6)
    assert text.count("<details") == 3  # the first cell is open
    assert "4% of the time" in text  # a tenth of one sensor in 2.5
    assert "The first 12" not in text
    assert "H moderate, I moderate, seed 0" in text
    alone = folders.write(tmp_path, "alpha", 0, {"test.accuracy": [{0: 0.5}]})
    assert sensing.section(collect([alone])) == ""


def test_overhead(grid: Path) -> None:
    runs = collect([grid])
    table = cells_of(costs.section(runs))
    lines = {line[0]: line[1:] for line in table}
    assert lines["fedavg"] == ["1,000", "200", "0.1", "0.1", "0.2", "2.00"]  # 150 and 50 bytes
    assert lines["duet"] == ["1.50 x", "200", "1.00 x", "1.00 x", "1.00 x", "1.00 x"]
    assert costs.section([run for run in runs if run.method == "duet"]) == ""


def test_a_scatter_without_points_says_so() -> None:
    assert "nothing was evaluated" in scatter([Dots("a", "#000", [], [])], "t", "x", "y")
    assert scatter([Dots("a", "#000", [1.0], [2.0])], "t", "x", "y").count("<circle") == 1
