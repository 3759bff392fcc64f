"""What the report says of graphs: pictures, facts and whether the nodes agree."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import FedAvg, Fleet, Plan, Run
from communis.core import disk
from communis.core.errors import CommunisError
from communis.exchange.messages import Link
from communis.exchange.topology import NEIGHBOURS, TopologyConfig, complete, ring
from communis.results.compare import Finished, collect
from communis.results.graph import degrees, hops
from communis.results.report import graph
from communis.results.report.layout import crossings, layout
from communis.results.report.page import render
from communis.results.wording.warnings import warnings
from tests.unit import folders, small
from tests.unit.results.report.test_page import lines_of
from tests.unit.results.report.test_report import Balanced, outside

SHADES = dict.fromkeys(("fedavg", "comfed", "local"), "#123456")
LATTICE = [(5 * i + j, 5 * i + j + 1) for i in range(5) for j in range(4)]
LATTICE += [(5 * i + j, 5 * i + j + 5) for i in range(4) for j in range(5)]
Edges = Sequence[tuple[int, int]]


def folder(
    home: Path,
    edges: Edges,
    clients: int,
    method: str = "comfed",
    seed: int = 0,
    attackers: Sequence[int] = (),
    links: Sequence[Link] = (),
    distances: Sequence[float | None] = (None, None),
    kind: str = "graph",
    **about: Any,
) -> Finished:
    """A run of two rounds; links are those of each round."""
    suites = [("acc",), ("gyro",), ("acc", "gyro")]
    described = [{"id": i, "sensors": suites[i % 3]} for i in range(clients)]
    fleet = {"clients": described, "attackers": attackers}
    shape = {"kind": kind, "edges": edges, "changes": False, "loss": 0.0, "link": "unicast"}
    shape |= {"parts": [list(range(clients))], **about}
    fleet |= {"topology": shape} if kind else {}
    history = {"test.accuracy": [{0: 0.5}] * 2}
    rows = {"links": [links, links]}
    path = folders.write(home / f"{method}{seed}", method, seed, history, fleet=fleet, rows=rows)
    record(path, consensus_distance=distances)
    return collect([path])[0]


def record(path: Path, **fields: Sequence[float | None]) -> None:
    """The fields of the records are these, round by round."""
    lines = folders.records_in(path)
    for i, line in enumerate(lines):
        line |= {key: values[i] for key, values in fields.items()}
    folders.write_records(path, lines)


def nodes(text: str) -> list[tuple[float, float]]:
    found = re.findall(r"<circle cx='([\d.]+)' cy='([\d.]+)' r='12.0'", text)
    return [(float(x), float(y)) for x, y in found]


def widths(text: str) -> dict[str, float]:
    """By the ends of an edge."""
    found = re.findall(r"stroke-width='([\d.]+)'[^>]*><title>(\d+ - \d+)", text)
    return {edge: float(width) for width, edge in found}


def test_a_ring_stands_in_a_circle_without_crossings() -> None:
    """Also one whose numbers are mixed up."""
    order = np.random.default_rng(0).permutation(14).tolist()
    mixed = list(zip(order, [*order[1:], order[0]], strict=True))
    for edges in (ring(14).edges, mixed):
        places, circle = layout(edges, 14, 1.5)
        assert circle
        assert crossings(places, np.array(edges)) == 0
        assert np.hypot(*places.T) == pytest.approx(np.ones(14))


def test_crossings_by_hand() -> None:
    """The diagonals of a square cross; edges that share a node or lie apart do not."""
    square = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    assert crossings(square, np.array([(0, 2), (1, 3)])) == 1
    assert crossings(square, np.array([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)])) == 0
    assert crossings(square[[0, 1, 3, 2]], np.array([(0, 1), (1, 2), (2, 3), (3, 0)])) == 1


@pytest.mark.parametrize(
    ("edges", "count", "most"),
    [(LATTICE, 25, 0), ([((i - 1) // 2, i) for i in range(1, 15)], 15, 0), ([(0, 1)], 2, 0),
     ([(0, 1), (1, 2), (0, 2), (3, 4)], 6, 0), ([], 3, 0), ([], 1, 0)],
)  # fmt: skip
def test_what_can_be_drawn_without_crossings_is(edges: Edges, count: int, most: int) -> None:
    """A lattice, a tree, two clients, parts, nobody's neighbours, a single client."""
    places, _ = layout(edges, count, 1.5)
    assert np.isfinite(places).all()
    assert (np.abs(places) <= np.array([1.5, 1]) + 1e-9).all()
    if edges:
        assert crossings(places, np.array(edges)) <= most
    gaps = [math.dist(a, b) for i, a in enumerate(places) for b in places[:i]]
    assert min(gaps, default=1) > 0.18  # no node covers another


def test_a_hub_is_in_the_middle_and_a_complete_graph_around_it() -> None:
    places, circle = layout([(4, i) for i in range(12) if i != 4], 12, 1.5)
    assert not circle
    spread = np.hypot(*(places - places[4]).T)
    assert spread[np.arange(12) != 4].min() > 0.9
    assert layout(complete(14).edges, 14, 1.5)[1]


def test_degrees_and_hops() -> None:
    edges = [(0, 1), (1, 2)]
    assert degrees(edges, 4).tolist() == [1, 2, 1, 0]
    assert hops(edges, 4)[0].tolist() == [0, 1, 2, math.inf]
    assert degrees([], 2).tolist() == [0, 0]


def test_a_picture_has_every_client_every_edge_and_marks_attackers(tmp_path: Path) -> None:
    run = folder(tmp_path, ring(6).edges, 6, attackers=[1, 4])
    text = graph.section([run], SHADES)
    assert len(nodes(text)) == 6
    assert len(widths(text)) == 6
    assert text.count("stroke='#dc2626'") == 2
    assert "client 4: gyro, attacks</title>" in text
    assert "client 3: acc</title>" in text
    assert "A red ring marks an attacker" in text
    for suite in ("acc", "gyro", "acc+gyro"):
        assert f"</span>{suite}</span>" in text
    lone = graph.section([folder(tmp_path / "calm", ring(6).edges, 6)], SHADES)
    assert "red ring" not in lone


def test_the_width_of_an_edge_is_by_its_bytes(tmp_path: Path) -> None:
    edges = ((0, 1), (1, 2), (0, 2))
    links = [Link(0, 1, 300, 9), Link(1, 0, 100, 9), Link(2, 1, 200, 9), Link(-1, 0, 9999, 9)]
    text = graph.section([folder(tmp_path, edges, 3, links=links)], SHADES)
    found = widths(text)
    assert found == {"0 - 1": 4.0, "1 - 2": 2.4, "0 - 2": 0.8}  # the last carried nothing
    assert "<title>0 - 1: 0.8 KB</title>" in text  # both ways, both rounds, without framing
    line = next(line for line in lines_of(text) if line[0] == "graph, 3 clients")
    assert line[-1] == "comfed 0.3 per edge"  # (400 + 200) / 2 edges that were used


def test_broadcasts_are_counted_once_and_edges_are_alike(tmp_path: Path) -> None:
    links = [Link(i, NEIGHBOURS, 500 * (1 + i), 9) for i in range(3)]
    run = folder(tmp_path, ring(3).edges, 3, links=links, link="broadcast", loss=0.25)
    text = graph.section([run], SHADES)
    assert set(widths(text).values()) == {1.6}
    line = next(line for line in lines_of(text) if line[0] == "graph, 3 clients")
    assert line[1:] == ["3", "2", "1", "1", "no", "25%", "broadcast", "comfed 1.0 per broadcast"]


def test_edges_that_came_later_are_pale(tmp_path: Path) -> None:
    links = [Link(0, 1, 100, 0), Link(1, 2, 100, 0)]
    run = folder(tmp_path, [(0, 1)], 3, links=links, changes=True)
    text = graph.section([run], SHADES)
    assert re.findall(r"opacity='.3'><title>(\d - \d)", text) == ["1 - 2"]
    assert "pale edges came later" in text
    first = folder(tmp_path / "none", [], 3, links=links, changes=True)
    assert graph.section([first], SHADES).count("opacity='.3'>") == 2


def test_facts_of_a_graph_in_parts_and_the_warning(tmp_path: Path) -> None:
    parts = [[0, 1, 2], [3, 4], [5]]
    run = folder(tmp_path, [(0, 1), (1, 2), (3, 4)], 6, parts=parts)
    line = next(x for x in lines_of(graph.section([run], SHADES)) if x[0] == "graph, 6 clients")
    assert line[1:5] == ["3", "0 to 2", "-", "3 (3, 2, 1)"]
    said = "the graph falls into 3 parts, of 3, 2 and 1 clients: no consensus across them"
    assert warnings([run, run]) == [said]
    assert f"<p class='warning'>{said}</p>" in render([run], "accuracy", "t")


def test_one_picture_for_every_graph(tmp_path: Path) -> None:
    """Of runs alike the one with most attackers; other seeds only where they look different."""
    plain = folder(tmp_path / "a", ring(4).edges, 4)
    lying = folder(tmp_path / "b", ring(4).edges, 4, "fedavg", attackers=[2])
    other = folder(tmp_path / "c", complete(4).edges, 4, "local")
    again = folder(tmp_path / "d", ring(4).edges, 4, "fedavg", seed=1, attackers=[2])
    moved = folder(tmp_path / "e", ring(4).edges, 4, "fedavg", seed=2, attackers=[3])
    star = folder(tmp_path / "f", [], 4, "fedavg", seed=3, kind="star")
    text = graph.section([plain, lying, other, again, moved, star], SHADES)
    first, folded = text.split("<details")
    assert first.count("<svg") == 2
    assert first.count("stroke='#dc2626'") == 1
    assert "<summary>seed 2</summary>" in folded
    assert folded.count("<svg") == 1
    names = [line[0] for line in lines_of(first)]
    assert names == ["graph", "graph, 4 clients, fedavg", "graph, 4 clients, local"]


def test_a_large_graph_is_told_by_its_degrees(tmp_path: Path) -> None:
    hubs = [(0, i) for i in range(1, 40)] + [(1, 2)]
    text = graph.section([folder(tmp_path, hubs, 40)], SHADES)
    assert nodes(text) == []
    assert "Graphs of more than 30 clients are not drawn." in text
    found = re.findall(r">([\d to]+) neighbours</text>", text)
    assert found[0] == "1 to 4"
    assert found[-1] == "37 to 39"
    counts = re.findall(r"<title>clients: (\d+)</title>", text)
    assert [c for c in counts if c != "0"] == ["39", "1"]


def test_consensus_by_round(tmp_path: Path) -> None:
    run = folder(tmp_path, ring(3).edges, 3, distances=[2.0, 1.0])
    text = graph.consensus([run], SHADES)
    assert "<title>comfed: 2 at 1</title>" in text
    assert "<title>comfed: 1 at 2</title>" in text
    assert graph.consensus([folder(tmp_path / "x", [], 3)], SHADES) == ""


def test_stars_and_old_folders_have_no_picture(tmp_path: Path) -> None:
    runs = [folder(tmp_path / k, [], 3, m, kind=k) for k, m in (("star", "fedavg"), ("", "local"))]
    assert graph.section(runs, SHADES) == ""
    assert warnings(runs) == []
    there = folder(tmp_path / "g", ring(3).edges, 3)
    assert "Without a graph: fedavg, local." in graph.section([*runs, there], SHADES)


def real(home: Path, kind: Mapping[str, Any], clients: int = 5) -> Finished:
    owner = np.repeat(np.arange(clients), 8).tolist()
    data = small.windows(split=[0, 0, 0, 0, 0, 1, 2, 2] * clients, owner=owner)
    fleet = Fleet.of(data, models=(small.TINY,))
    shape = TopologyConfig(**kind).make(clients, fleet.streams)
    config = 'name = "x"\nseed = 0\n[data]\nname = "d"\n[method]\nname = "fedavg"\n'
    config += f'[run]\nrounds = 3\n[topology]\nkind = "{kind["kind"]}"\n'
    plan = Plan(rounds=3, eval_every=1)
    with Run(fleet, FedAvg(), plan, folder=home, config=config, topology=shape) as run:
        list(run)
    return collect([home])[0]


@pytest.mark.slow
def test_a_real_run_on_a_ring(tmp_path: Path) -> None:
    run = real(tmp_path, {"kind": "ring"})
    text = render([run], "accuracy", "t")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert outside(text) == []
    assert "nan" not in re.sub("<pre>.*?</pre>", "", text, flags=re.DOTALL)
    assert "<h2>Do the nodes agree?</h2>" in text
    assert len(nodes(text)) == 5
    line = next(line for line in lines_of(text) if line[0] == "ring, 5 clients")
    assert line[1:8] == ["5", "2", "2", "1", "no", "0%", "unicast"]
    kilobytes = float(line[8].split()[1])
    up = run.records[0].bytes_up  # every message goes to two neighbours: 10 over 5 edges
    assert kilobytes == pytest.approx(up / 5 / 1000, abs=0.05)


def test_a_real_run_of_broadcasts_on_a_graph_that_changes(tmp_path: Path) -> None:
    kind = {"kind": "regular", "degree": 2, "redraw": 1, "link": "broadcast", "loss": 0.2}
    run = real(tmp_path, kind)
    line = next(
        x for x in lines_of(graph.section([run], {"fedavg": "#123456"})) if x[0][:7] == "regular"
    )
    assert line[1:8] == ["5", "2", "2", "1", "yes", "20%", "broadcast"]
    assert float(line[8].split()[1]) == pytest.approx(run.records[0].bytes_up / 5e3, abs=0.05)


def test_a_graph_without_edges_is_refused(tmp_path: Path) -> None:
    run = folder(tmp_path, [(0, 1)], 2)
    path = run.path / "fleet.json"
    fleet = disk.read_json(path)
    del fleet["topology"]["edges"]
    disk.write_json(path, fleet)
    with pytest.raises(CommunisError, match=r"fleet\.json: its topology has no edges"):
        render(collect([run.path]), "accuracy", "t")
