"""What the report says of the device clock, of what was trained and of single modalities."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from html import unescape
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from communis.cli.terminal import as_json
from communis.core.contract import Score
from communis.exchange.messages import Noted, Pair, Scored
from communis.fleet.device import DeviceCost
from communis.results import allocation as training
from communis.results import modalities as modality
from communis.results import timing
from communis.results import updates as update
from communis.results.compare import Finished, collect, runs_by_method
from communis.results.report import allocation, clock, modalities, updates, views
from communis.results.report.labelled_points import Point, point_chart
from communis.results.report.page import render
from communis.results.report.svg import bars
from tests.unit import folders, relief_like
from tests.unit.results.report.test_page import lines_of
from tests.unit.results.report.test_report import Balanced, outside

SHADES = dict.fromkeys(relief_like.METHODS, "#123456")
TITLES = ("Time and energy", "What was trained", "How far clients differ",
          "Do clients pull in the same direction?", "Test macro f1 of each modality")  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Finished]:
    """Five methods, two seeds."""
    names = ("fedavg", "without_elastic", "coverage_40", "relief", "coverage_80")
    home = relief_like.write(tmp_path_factory.mktemp("runs"), names, seeds=2, rounds=9)
    return collect([home])


def small(
    home: Path,
    rows: Mapping[str, list[list[object]]],
    suites: tuple[tuple[str, ...], ...] = (("acc", "mag"), ("acc",)),
    method: str = "relief",
    scores: Mapping[str, float] | None = None,
) -> Finished:
    """A run of two rounds of two clients."""
    about = [{"id": i, "sensors": suite, "device": "d"} for i, suite in enumerate(suites)]
    history = {f"test.{k}": [{0: v, 1: v}] * 2 for k, v in (scores or {"macro_f1": 0.5}).items()}
    path = folders.write(home / method, method, 0, history, fleet={"clients": about}, rows=rows)
    return collect([path])[0]


@pytest.mark.slow
def test_the_page_has_all_sections(runs: list[Finished]) -> None:
    text = render(runs, "macro_f1", "a <clock>")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert outside(text) == []
    assert "nan" not in re.sub("<pre>.*?</pre>", "", text, flags=re.DOTALL)
    for title in TITLES:
        assert f"<h2>{title}</h2>" in text
    assert "mode flop_prop, share 1 of a device" in text
    assert "Other ways to predict" not in text  # these views have a section of their own


def test_pages_of_runs_without_any_of_it(tmp_path: Path) -> None:
    run = small(tmp_path, {}, suites=(("acc",), ("acc",)))
    text = render([run], "macro_f1", "t")
    assert not any(f"<h2>{title}</h2>" in text for title in TITLES)
    named = render([run], "macro_f1", "t", targets=(0.4,))  # has its own section, without a clock
    assert not any(f"<h2>{title}</h2>" in named for title in TITLES)


@pytest.mark.slow
def test_a_grid_has_the_average_first_and_details_in_every_cell(tmp_path: Path) -> None:
    for level in ("near", "far"):
        names = ("fedavg", "relief")
        relief_like.write(tmp_path / level, names, seeds=1, rounds=3, cell={"gap": level})
    text = render(collect([tmp_path]), "macro_f1", "t")
    first, *each = text.split("<details class='cell'>")
    assert [part.count("<h2>Time and energy</h2>") for part in (first, *each)] == [1, 1, 1]
    assert [part.count("Who waits for whom") for part in (first, *each)] == [0, 1, 1]
    assert [part.count("<h2>What was trained</h2>") for part in (first, *each)] == [0, 1, 1]
    assert text.count("Simulated time is a model of the devices") == 1


def test_seconds_by_kind_of_client(tmp_path: Path) -> None:
    quick = [DeviceCost(0, 1.0, 0.25, 0.25, 2.5, 9.0), DeviceCost(0, 3.0, 0.25, 0.25, 0.5, 9.0)]
    slow = DeviceCost(1, 3.0, 0.5, 0.5, 0.0, 9.0)
    run = small(tmp_path, {"clock": [[quick[0], slow], [quick[1]]]})
    found = timing.by_type([run])
    assert found.loc["d, acc+mag", [*timing.PARTS]].tolist() == [2.0, 0.5, 1.5]
    assert found.loc["d, acc", [*timing.PARTS]].tolist() == [3.0, 1.0, 0.0]  # where it took part
    assert found["clients"].tolist() == [1, 1]


def test_whether_speedups_are_about_training_or_traffic(tmp_path: Path) -> None:
    said = {}
    for compute in (3.0, 0.5):
        spent = [DeviceCost(0, compute, 0.5, 0.5, 0.0, 9.0)]
        run = small(tmp_path / f"small{compute}", {"clock": [spent, spent]})
        said[compute] = clock.devices([run], ["relief"])
    assert "they compute 75%." in said[3.0]
    assert "they compute 33%: speedups here are about traffic" in said[0.5]


def test_bars_end_where_their_values_do() -> None:
    text = bars({"a <b>": {"x": 1.0, "y": 3.0}}, {"x": "#000", "y": "#fff"}, "t", "s", 5.0)
    (x0, w0), (x1, w1) = re.findall(r"<rect x='([\d.]+)'[^>]*width='([\d.]+)'", text)
    assert float(x1) == pytest.approx(float(x0) + float(w0), abs=0.11)
    assert float(w1) == pytest.approx(3 * float(w0), abs=0.3)
    assert "a &lt;b&gt;" in text


def test_score_against_speedup(runs: list[Finished]) -> None:
    text = clock.section(runs, "macro_f1", "last", (), SHADES)
    drawn = text[text.index("<div class='large'>") :].split("</svg>")[0]
    assert drawn.count("<circle") == 5
    assert drawn.count("stroke-dasharray") == 1
    line = re.search("<polyline points='([^']*)'", drawn)
    assert line is not None
    assert len(line[1].split()) == 3  # coverage .4, .6 and .8
    alone = [run for run in runs if run.method == "relief"]
    assert "class='large'" not in clock.section(alone, "macro_f1", "last", (), SHADES)


def test_only_coverage_joins(runs: list[Finished]) -> None:
    assert timing.coverages(runs_by_method(runs)) == [["coverage_40", "relief", "coverage_80"]]


def test_names_of_points_do_not_cover_each_other() -> None:
    same = [
        Point(f"method number {i}", "#000", 1.0, 0.5 + i / 1e4, 0.0, math.nan) for i in range(9)
    ]
    text = point_chart(
        [*same, Point("far", "#000", 4.0, 0.9, 0.1, 0.1)], [], "t", "x", "y", (1.0, 1.5)
    )
    places = re.findall(r"<text x='([\d.]+)' y='([\d.]+)'>method", text)
    assert len(places) == len(set(places)) == 9
    rows = sorted((float(y), float(x)) for x, y in places)
    near = [(a, b) for a, b in pairwise(rows) if abs(a[0] - b[0]) < 13.9]
    assert all(abs(a[1] - b[1]) > 6.4 * 15 for a, b in near)
    assert "nan" not in text
    assert "nothing was evaluated" in point_chart([], [], "t", "x", "y", (1.0, 1.5))


def trained(client: int, *groups: str) -> list[Noted]:
    return [Noted(client, f"trained/{group}", 1.0) for group in groups]


def test_who_trained_what(tmp_path: Path) -> None:
    """Client 1 has no magnetometer, and leaves out the head in the second round."""
    budget = [Noted(-1, "budget/0", 3.0), Noted(-1, "budget/1", 2.0)]
    first = [*trained(0, "fusion.blocks.acc", "fusion.blocks.mag", "head.out"), *budget]
    second = [*first, *trained(1, "fusion.blocks.acc")]
    first = [*first, *trained(1, "fusion.blocks.acc", "head.out")]
    run = small(tmp_path, {"log": [first, second]})
    found = training.over_rounds(training.trained([run], [run.log]))
    assert found.index.tolist() == ["fusion.blocks.acc", "fusion.blocks.mag", "head.out"]
    assert found.to_numpy().tolist() == [[1, 1], [1, 1], [1, 0.5]]
    each = training.per_client([run], [run.log])
    assert each.loc[(0, "d, acc+mag")].tolist() == [3.0, 3.0]
    assert each.loc[(1, "d, acc")].tolist() == [1.5, 2.0]
    lines = lines_of(allocation.section([run]))
    assert ["head.out", "100%", "50%"] in lines
    assert ["1: d, acc", "1.5", "2"] in lines


def test_groups_come_in_the_order_of_the_model() -> None:
    found = ["head.out", "encoders.acc.blocks.10", "encoders.acc.blocks.2", "fusion.shared"]
    found += ["fusion.blocks.mag", "encoders.acc.blocks.2.x", "embedding", "fusion.blocks.acc"]
    assert training.in_order(found) == [
        "fusion.blocks.acc",
        "fusion.blocks.mag",
        "fusion.shared",
        "encoders.acc.blocks.2",
        "encoders.acc.blocks.2.x",
        "encoders.acc.blocks.10",
        "embedding",
        "head.out",
    ]


def test_everybody_trained_everything(tmp_path: Path) -> None:
    """Also what it has no sensor for, where a method gives everybody all branches."""
    both = [*trained(0, "fusion.blocks.mag"), *trained(1, "fusion.blocks.mag")]
    whole = small(tmp_path, {"log": [both, both]}, method="fedavg")
    assert training.trained([whole], [whole.log])["share"].tolist() == [1, 1]
    assert allocation.section([whole]) == ""
    part = small(tmp_path, {"log": [both, trained(0, "fusion.blocks.mag")]})
    text = allocation.section([whole, part])
    assert "With fedavg every owner trained every group" in text
    assert ["fusion.blocks.mag", "100%", "50%"] in lines_of(text)


def test_many_rounds_share_columns() -> None:
    rows = [(r, "head.out", float(r % 2)) for r in range(1, 51)]
    found = training.over_rounds(pd.DataFrame(rows, columns=["round", "group", "share"]))
    assert list(found.columns)[:2] == ["1-5", "6-10"]
    assert found.to_numpy()[0].tolist() == pytest.approx([0.6, 0.4] * 5)


@pytest.mark.parametrize("name", ["divergence", "spread"])
def test_divergence_over_rounds(tmp_path: Path, name: str) -> None:
    notes = [[Noted(-1, f"{name}/head.out", value), Noted(-1, f"{name}/fusion.shared", 0.0)]
             for value in (1.0, 0.01)]  # fmt: skip
    text = allocation.section([small(tmp_path, {"log": notes})])
    assert "How far clients differ" in text
    assert "What was trained" not in text
    assert text.count("<circle") == 2  # nothing to draw of what never differs
    for tick in ("0.01", "1"):
        assert f">{tick}</text>" in text


def test_cosines_by_kind_of_pair(tmp_path: Path) -> None:
    block, head = "fusion.blocks.acc", "head.out"
    suites = (("acc",), ("acc", "mag"), ("acc",))
    early = [Pair(head, 0, 1, 0.5), Pair(head, 1, 2, 0.3), Pair(block, 0, 2, 0.9)]
    late = [Pair(head, 0, 1, -0.5), Pair(block, 0, 1, 0.1)]
    run = small(tmp_path, {"pairs": [early, late]}, suites)
    found = update.pairs([run])
    assert set(found["kind"]) == {"acc+mag - acc", "acc - acc"}
    first, last = (update.by_kind(part) for part in update.thirds(found))
    assert first.columns.tolist() == ["acc+mag -\nacc\nn 2", "acc -\nacc\nn 1"]
    assert first.index.tolist() == [block, head]  # blocks of the fusion first
    assert first.loc[head].tolist() == pytest.approx([0.4, math.nan], nan_ok=True)
    assert first.loc[block].tolist() == pytest.approx([math.nan, 0.9], nan_ok=True)
    assert last.to_numpy().ravel().tolist() == [0.1, -0.5]
    text = updates.section([run])
    assert "Round 1<" in text
    assert ["group", "acc+mag -<br>acc<br>n 2", "acc -<br>acc<br>n 1"] in lines_of(text)
    assert [head, "-0.50"] in lines_of(text)


def test_thirds_of_the_rounds() -> None:
    early, late = update.thirds(pd.DataFrame({"round": [5, 10, 15, 20, 25, 30, 35]}))
    assert early["round"].tolist() == [5, 10]
    assert late["round"].tolist() == [30, 35]


def test_modalities_by_the_common_model(tmp_path: Path) -> None:
    scores = {"macro_f1": 0.5, "macro_f1@all": 0.6, "macro_f1@only_acc": 0.4}
    common = small(tmp_path, {}, scores=scores | {"macro_f1@only_mag": 0.2})
    private = small(tmp_path, {}, method="harmony")
    found = modality.alone([common, private], "macro_f1", "last")
    assert found is not None
    assert (found.common, found.rare) == (True, ["mag"])
    text = modalities.section([common, private], "macro_f1@all", "last")
    lines = lines_of(text)
    assert lines[0] == ["method", "own", "all", "only acc", "only mag", "rare"]
    assert ["relief", "0.500", "0.600", "0.400", "0.200", "0.200"] in lines
    assert ["harmony", "0.500", "-", "-", "-", "-"] in lines
    assert "common model on the test windows of every client" in text
    assert views.section([common, private], "macro_f1", "last") == ""
    json = as_json([common, private], "macro_f1")["modalities"]
    assert json[0]["rows"]["relief"]["rare"]["mean"] == 0.2


def test_modalities_by_their_owners(tmp_path: Path) -> None:
    """Two rare modalities, and the score of a client that owns nothing else is not counted."""
    alone = [
        Scored(client, "test", sensor, client == 2, Score("macro_f1", value, -1, support=1))
        for client, sensor, value in [
            (0, "acc", 0.4), (1, "acc", 0.6), (2, "acc", 0.9), (0, "mag", 0.1), (1, "ecg", 0.3),
        ]
    ]  # fmt: skip
    suites = (("acc", "mag"), ("acc", "ecg"), ("acc",))
    run = small(tmp_path, {"scores": [alone, alone]}, suites)
    text = modalities.section([run], "macro_f1", "client")
    assert lines_of(text)[0] == ["method", "own", "only acc", "only ecg", "only mag", "rare"]
    assert lines_of(text)[1][2:] == ["0.500", "0.300", "0.100", "0.200"]
    assert "(ecg, mag)" in text
    assert "those of its owners" in unescape(text)
    assert "In the last evaluated round" in text


def test_no_modality_is_rare_where_all_have_as_many(tmp_path: Path) -> None:
    run = small(tmp_path, {}, suites=(("acc", "mag"), ("acc", "mag")))
    assert modality.rare(run) == []
    assert modalities.section([run], "macro_f1", "last") == ""
