"""Who hears whom."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Streams
from communis.core.contract import SERVER
from communis.core.settings import SchemaError, build
from communis.exchange.messages import Topology
from communis.exchange.topology import (
    NEIGHBOURS,
    Graph,
    Star,
    TopologyConfig,
    complete,
    custom,
    erdos_renyi,
    hub,
    regular,
    ring,
)
from communis.exchange.topology.shapes import TRIES
from communis.run.config import Config
from communis.run.identity import digest


def made(clients: int, seed: int = 0, **settings: Any) -> Topology:
    return TopologyConfig(**settings).make(clients, Streams(seed))


def degrees(graph: Topology, clients: int) -> list[int]:
    return [len(near) - 1 for near in heard(graph, clients).values()]


def edges(topology: Topology, clients: int) -> list[list[int]]:
    found: list[list[int]] = topology.describe(clients)["edges"]
    return found


def heard(graph: Topology, clients: int) -> dict[int, list[int]]:
    return {a: list(graph.hears(a, range(clients))) for a in graph.aggregators(clients)}


def test_a_star_has_one_server_that_hears_the_cohort() -> None:
    star = Star()
    assert list(star.aggregators(5)) == [SERVER]
    assert all(star.aggregator_of(i) == SERVER for i in range(5))
    assert list(star.hears(SERVER, [1, 4])) == [1, 4]
    assert len({SERVER, NEIGHBOURS, *range(5)}) == 7  # no client's numbers


def test_every_node_of_a_graph_is_its_own_aggregator() -> None:
    graph = ring(4)
    assert list(graph.aggregators(4)) == [0, 1, 2, 3]
    assert [graph.aggregator_of(i) for i in range(4)] == [0, 1, 2, 3]


def test_in_a_complete_graph_everybody_hears_all_as_a_star_does() -> None:
    cohort = [0, 2, 3]
    for a in complete(5).aggregators(5):
        expected = Star().hears(SERVER, cohort)
        assert list(complete(5).hears(a, cohort)) == list(expected)
    assert len(complete(5).edges) == 10


def test_in_a_ring_everybody_hears_both_neighbours_and_itself() -> None:
    assert heard(ring(5), 5) == {
        0: [0, 1, 4],
        1: [0, 1, 2],
        2: [1, 2, 3],
        3: [2, 3, 4],
        4: [0, 3, 4],
    }


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(0, {}), (1, {0: [0]}), (2, {0: [0, 1], 1: [0, 1]}), (3, {i: [0, 1, 2] for i in range(3)})],
)
def test_small_rings_and_complete_graphs(clients: int, expected: dict[int, list[int]]) -> None:
    assert heard(ring(clients), clients) == expected
    assert heard(complete(clients), clients) == expected


def test_edges_go_both_ways_and_repeats_do_not_count_twice() -> None:
    graph = custom([(2, 0), (0, 2), (1, 1), (0, 2)])
    assert heard(graph, 4) == {0: [0, 2], 1: [1], 2: [0, 2], 3: [3]}


def test_only_the_cohort_is_heard_in_client_order() -> None:
    graph = custom([(3, 0), (3, 1), (3, 2)])
    assert list(graph.hears(3, [0, 2])) == [0, 2]
    assert list(graph.hears(3, [0, 2, 3])) == [0, 2, 3]
    assert list(graph.hears(0, [1, 2])) == []


def test_an_edge_to_a_client_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(CommunisError, match=r"names clients \[-2, 7\].*clients 0 to 2"):
        custom([(0, 1), (7, 1), (-2, 0)]).aggregators(3)
    with pytest.raises(CommunisError, match=r"\[4\].*0 to 3"):
        ring(5).aggregators(4)


def test_a_graph_survives_pickling_after_use() -> None:
    graph = ring(4)
    graph.hears(0, range(4))
    again = pickle.loads(pickle.dumps(graph))
    assert again == graph
    assert heard(again, 4) == heard(graph, 4)


def test_all_leaves_of_a_hub_hear_only_it() -> None:
    """Not what a server does: no leaf hears another one."""
    graph = made(5, kind="hub", hub=2)
    assert graph == hub(5, 2)
    assert heard(graph, 5) == {
        0: [0, 2],
        1: [1, 2],
        2: [0, 1, 2, 3, 4],
        3: [2, 3],
        4: [2, 4],
    }
    with pytest.raises(CommunisError, match=r"\[5\].*0 to 4"):
        made(5, kind="hub", hub=5)
    assert heard(made(1, kind="hub"), 1) == {0: [0]}


@pytest.mark.parametrize("clients", range(2, 13))
def test_regular_graphs_have_the_degree_they_should_and_are_connected(clients: int) -> None:
    for degree in range(1, clients):
        if clients * degree % 2:
            continue
        for connected in (True, False)[degree == 1 and clients > 2 :]:
            graph = regular(clients, degree, connected, np.random.default_rng(clients))
            assert degrees(graph, clients) == [degree] * clients
            assert len(graph.edges) == clients * degree // 2
            assert not connected or len(graph.parts(clients)) == 1


@pytest.mark.slow
def test_all_regular_graphs_are_equally_likely() -> None:
    """On six nodes there are 70 cubic graphs: 10 like K33 and 60 prisms, which have triangles. Of
    the graphs of degree 2, 60 are hexagons and 10 two triangles."""
    draw, count = np.random.default_rng(0), 700
    cubic = [regular(6, 3, True, draw) for _ in range(count)]
    twos = [regular(6, 2, False, draw) for _ in range(count)]
    without = sum(_triangles(graph, 6) == 0 for graph in cubic)
    apart = sum(len(graph.parts(6)) == 2 for graph in twos)
    deviation = (count * 1 / 7 * 6 / 7) ** 0.5
    assert abs(without - count / 7) < 3 * deviation
    assert abs(apart - count / 7) < 3 * deviation
    assert len({frozenset(graph.edges) for graph in cubic}) == 70


def _triangles(graph: Graph, clients: int) -> int:
    table = np.zeros((clients, clients), int)
    for a, b in graph.edges:
        table[a, b] = table[b, a] = 1
    return int(np.trace(table @ table @ table)) // 6


@pytest.mark.parametrize(("degree", "clients"), [(3, 5), (5, 5), (6, 5)])
def test_a_degree_that_cannot_be_is_refused(degree: int, clients: int) -> None:
    with pytest.raises(
        CommunisError, match=f"degree = {degree} is not possible with {clients} clien"
    ):
        made(clients, kind="regular", degree=degree)


def test_pairs_have_to_be_asked_for() -> None:
    with pytest.raises(CommunisError, match=r"degree = 1 makes pairs.*connected = false"):
        made(6, kind="regular", degree=1)
    assert degrees(made(2, kind="regular", degree=1), 2) == [1, 1]
    pairs = made(6, kind="regular", degree=1, connected=False, redraw=1)
    assert len({str(edges(pairs.at(i), 6)) for i in range(1, 10)}) > 1
    assert pairs.describe(6)["parts"] == [[0, 1, 2, 3, 4, 5]]  # over the rounds


def test_edges_of_an_erdos_renyi_graph_are_equally_likely() -> None:
    draw, count = np.random.default_rng(1), 2000
    seen = np.zeros((5, 5))
    for _ in range(count):
        for a, b in erdos_renyi(5, 0.3, False, draw).edges:
            seen[a, b] += 1
    rates = seen[np.triu_indices(5, 1)] / count
    assert seen.sum() == seen[np.triu_indices(5, 1)].sum()
    assert np.abs(rates - 0.3).max() < 4 * (0.3 * 0.7 / count) ** 0.5
    assert len(erdos_renyi(6, 1.0, True, draw).edges) == 15


@pytest.mark.parametrize("clients", [0, 1, 2])
def test_the_smallest_drawn_graphs(clients: int) -> None:
    graph = made(clients, kind="erdos_renyi", probability=0.5)
    assert heard(graph, clients) == {i: list(range(clients)) for i in range(clients)}


def test_an_erdos_renyi_graph_is_drawn_until_it_is_connected() -> None:
    sparse: dict[str, Any] = {"kind": "erdos_renyi", "probability": 0.15}
    loose = [made(14, seed, **sparse, connected=False) for seed in range(40)]
    assert sum(len(graph.describe(14)["parts"]) == 1 for graph in loose) < 20
    for seed in range(10):
        graph = made(14, seed, **sparse)
        assert graph.describe(14)["parts"] == [list(range(14))]
    with pytest.raises(CommunisError, match=rf"none of {TRIES} .* probability = 0.01 .*as 0.4,"):
        made(14, kind="erdos_renyi", probability=0.01)


def test_drawn_graphs_follow_the_seed() -> None:
    for settings in ({"kind": "regular", "degree": 3}, {"kind": "erdos_renyi", "probability": 0.5}):
        graphs = [made(14, seed, **settings) for seed in (1, 1, 2)]
        assert graphs[0] == graphs[1] != graphs[2]
        assert all(graph.at(7) is graph for graph in graphs)


@pytest.mark.parametrize(
    "settings", [{"kind": "regular", "degree": 3}, {"kind": "erdos_renyi", "probability": 0.4}]
)
def test_graphs_are_redrawn_every_so_many_rounds(settings: dict[str, Any]) -> None:
    topology = made(14, **settings, redraw=3)
    found = [edges(topology.at(i), 14) for i in range(1, 13)]
    changed = [i + 1 for i, (a, b) in enumerate(pairwise(found), start=1) if a != b]
    assert changed == [4, 7, 10]
    again = pickle.loads(pickle.dumps(topology))
    assert again == topology
    assert [edges(again.at(i), 14) for i in range(12, 0, -1)] == found[::-1]
    assert found[0] == edges(topology, 14) == edges(made(14, **settings), 14)
    assert topology.describe(14)["changes"]
    assert all(len(topology.at(i).describe(14)["parts"]) == 1 for i in (1, 4, 7))
    assert len(pickle.dumps(topology)) < 1000
    first = topology.at(1)
    assert not topology.broadcast
    for a in topology.aggregators(14):
        assert topology.aggregator_of(a) == a
        assert topology.hears(a, range(14)) == first.hears(a, range(14))
        assert topology.reaches(a, range(14)) == first.reaches(a, range(14))


def test_a_schedule_is_repeated() -> None:
    turns = (((0, 1), (2, 3)), ((1, 2),), ())
    topology = made(4, kind="edges", schedule=turns)
    expected = [[[0, 1], [2, 3]], [[1, 2]], []]
    assert [edges(topology.at(i), 4) for i in range(1, 8)] == (expected * 3)[:7]
    assert topology.describe(4)["parts"] == [[0, 1, 2, 3]]
    assert heard(topology.at(2), 4) == {0: [0], 1: [1, 2], 2: [1, 2], 3: [3]}
    with pytest.raises(CommunisError, match=r"\[8\].*0 to 3"):
        made(4, kind="edges", schedule=(((0, 1), (1, 2), (2, 3)), ((0, 8),)))


def test_a_graph_that_falls_into_parts_is_refused_by_name() -> None:
    pairs = ((0, 1), (4, 3), (1, 2))
    with pytest.raises(CommunisError) as error:
        made(7, kind="edges", edges=pairs)
    assert "the graph falls into parts [0, 1, 2], [3, 4] and isolated clients 5, 6" in str(error)
    assert "connected = false" in str(error)
    graph = made(7, kind="edges", edges=pairs, connected=False)
    assert graph.describe(7)["parts"] == [[0, 1, 2], [3, 4], [5], [6]]
    with pytest.raises(CommunisError, match="schedule as a whole falls into isolated clients 0, 1"):
        made(2, kind="edges", schedule=((), ((1, 1),)))
    with pytest.raises(CommunisError, match=r"\[0, 1\] and isolated clients 2, .*11 and 18 more:"):
        made(30, kind="edges", edges=((0, 1),))


def test_as_many_messages_are_lost_as_set_and_none_to_oneself() -> None:
    topology = made(50, kind="regular", degree=8, loss=0.3)
    rounds = [heard(topology.at(i), 50) for i in range(1, 26)]
    links = 25 * 50 * 8
    arrived = sum(len(near) - 1 for round in rounds for near in round.values())
    assert abs(arrived / links - 0.7) < 4 * (0.3 * 0.7 / links) ** 0.5
    assert all(node in near for round in rounds for node, near in round.items())
    assert all(list(near) == sorted(near) for near in rounds[0].values())


def test_directions_and_rounds_are_lost_independently() -> None:
    """Of two messages with p = 0.5 both arrive in a quarter of all cases."""
    topology = made(2, kind="ring", loss=0.5)
    found = [heard(topology.at(i), 2) for i in range(1, 2001)]
    there = np.array([[len(x[0]) == 2, len(x[1]) == 2] for x in found])
    deviation = (0.25 * 0.75 / 2000) ** 0.5
    assert abs(there.all(1).mean() - 0.25) < 4 * deviation
    assert abs((there[1:, 0] & there[:-1, 0]).mean() - 0.25) < 4 * deviation


@pytest.mark.parametrize("kind", ["star", "ring"])
def test_losses_do_not_depend_on_who_takes_part(kind: str) -> None:
    topology = made(20, kind=kind, loss=0.4).at(3)
    some = [1, 2, 3, 9, 10, 18]
    for aggregator in topology.aggregators(20):
        whole = topology.hears(aggregator, range(20))
        assert list(topology.hears(aggregator, some)) == [c for c in some if c in whole]
        assert list(topology.hears(aggregator, [])) == []


@pytest.mark.parametrize("kind", ["star", "ring", "hub"])
def test_lost_messages_were_sent(kind: str) -> None:
    topology, kept = made(9, kind=kind, loss=1.0).at(1), made(9, kind=kind)
    for aggregator in topology.aggregators(9):
        assert topology.reaches(aggregator, range(9)) == kept.hears(aggregator, range(9))
        assert kept.reaches(aggregator, range(9)) == kept.hears(aggregator, range(9))
        assert set(topology.hears(aggregator, range(9))) == {aggregator} - {SERVER}


def test_a_server_does_not_hear_every_client() -> None:
    star = made(10, seed=3, kind="star", loss=0.25)
    found = [list(star.at(i).hears(SERVER, range(10))) for i in range(1, 401)]
    rate = 1 - sum(map(len, found)) / 4000
    assert abs(rate - 0.25) < 4 * (0.25 * 0.75 / 4000) ** 0.5
    assert found == [
        list(made(10, 3, loss=0.25).at(i).hears(SERVER, range(10))) for i in range(1, 401)
    ]
    assert found != [
        list(made(10, 4, loss=0.25).at(i).hears(SERVER, range(10))) for i in range(1, 401)
    ]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"kind": "tree"}, "no kind 'tree'; there are star, complete"),
        ({"kind": "ring", "link": "radio"}, "no link 'radio'; there are unicast"),
        (
            {"kind": "ring", "degree": 3},
            "degree has no meaning with kind = 'ring'.* applies to regular",
        ),
        ({"kind": "regular", "degree": 2, "probability": 0.5}, "probability has no meaning"),
        ({"kind": "complete", "edges": ((0, 1),)}, "edges has no meaning .* 'complete'"),
        ({"kind": "hub", "schedule": (((0, 1),),)}, "schedule has no meaning"),
        ({"kind": "edges", "hub": 1}, "hub has no meaning"),
        ({"kind": "ring", "redraw": 1}, "redraw has no meaning .* regular, erdos_renyi"),
        ({"link": "broadcast"}, "link has no meaning with kind = 'star'"),
        ({"kind": "regular"}, "needs a degree of at least 1, got 0"),
        ({"kind": "erdos_renyi"}, r"needs a probability in \(0, 1\], got 0.0"),
        ({"kind": "erdos_renyi", "probability": 1.5}, r"in \(0, 1\], got 1.5"),
        ({"kind": "regular", "degree": 2, "redraw": -1}, "redraw must be at least 0"),
        ({"loss": 1.2}, r"loss is a probability in \[0, 1\], got 1.2"),
        ({"loss": float("nan")}, "loss is a probability"),
        ({"kind": "edges", "edges": ((0, 1),), "schedule": (((0, 1),),)}, "not both"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(CommunisError, match=why):
        TopologyConfig(**settings)


def test_the_table_of_a_configuration() -> None:
    table = {"kind": "edges", "schedule": [[[0, 1]], [[1, 2], [2, 0]]], "link": "broadcast"}
    config = build(Config, {"topology": table}, "").topology
    assert config.schedule == (((0, 1),), ((1, 2), (2, 0)))
    with pytest.raises(SchemaError, match=r"\[topology\] degree has no meaning"):
        build(Config, {"topology": {"kind": "ring", "degree": 2}}, "")


def test_the_table_in_the_documents() -> None:
    page = Path(__file__).parents[4] / "docs" / "guides" / "topologies.md"
    (block,) = re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.S)
    config = build(Config, tomllib.loads(block), "").topology
    assert config.make(14, Streams(0)).describe(14)["changes"]


def test_descriptions_are_json() -> None:
    lossy = made(4, kind="edges", edges=((1, 0), (2, 2), (0, 1), (2, 1), (3, 2)), loss=0.1)
    assert json.loads(json.dumps(lossy.describe(4))) == {
        "kind": "graph",
        "edges": [[0, 1], [1, 2], [2, 3]],
        "changes": False,
        "loss": 0.1,
        "link": "unicast",
        "parts": [[0, 1, 2, 3]],
    }
    assert json.loads(json.dumps(Star().describe(2))) == {
        "kind": "star",
        "edges": [],
        "changes": False,
        "loss": 0.0,
        "link": "unicast",
        "parts": [[0, 1]],
    }
    assert made(4, kind="ring", link="broadcast").describe(4)["link"] == "broadcast"


def test_every_topology_is_another_experiment() -> None:
    """And a plain one is the same whatever the seed, as nothing of it is drawn."""
    drawn: dict[str, Any] = {"kind": "regular", "degree": 4}
    kinds = [
        made(14),
        made(14, loss=0.1),
        made(14, seed=1, loss=0.1),
        made(14, loss=0.2),
        made(14, kind="ring"),
        made(14, kind="ring", loss=0.1),
        made(14, kind="ring", link="broadcast"),
        made(14, **drawn),
        made(14, seed=1, **drawn),
        made(14, **drawn, redraw=1),
        made(14, **drawn, redraw=2),
        made(14, seed=1, **drawn, redraw=2),
        made(14, **drawn, redraw=2, loss=0.1),
        made(14, kind="edges", edges=ring(14).edges[1:]),
        made(14, kind="edges", schedule=(ring(14).edges,)),
        made(14, kind="edges", schedule=(ring(14).edges, ())),
    ]
    assert len({digest(kind) for kind in kinds}) == len(kinds)
    assert digest(made(14, 5, kind="ring")) == digest(ring(14))
    assert digest(made(14, 5)) == digest(Star())


def test_a_large_sparse_graph_takes_no_table_of_all_pairs() -> None:
    clients = 10_000
    graph = made(clients, kind="erdos_renyi", probability=0.0015, loss=0.2).at(1)
    assert isinstance(graph, Graph)
    everybody = list(range(clients))
    sent = sum(len(graph.reaches(a, everybody)) - 1 for a in everybody)
    arrived = sum(len(graph.hears(a, everybody)) - 1 for a in everybody)
    assert sent == 2 * len(graph.edges)
    assert abs(sent / clients - 15) < 0.3
    assert abs(arrived / sent - 0.8) < 0.01
    assert len(made(clients, kind="regular", degree=2).describe(clients)["parts"]) == 1


def test_a_graph_drawn_anew_is_joined_where_none_is_connected() -> None:
    """The first is refused at the start; a later one must not end a run that has begun."""
    draw = np.random.default_rng(0)
    with pytest.raises(CommunisError, match="choose a larger one"):
        erdos_renyi(30, 0.01, True, draw)
    later = erdos_renyi(30, 0.01, True, draw, later=True)
    assert later.parts(30) == [list(range(30))]
    loose = erdos_renyi(30, 0.01, False, np.random.default_rng(1), later=True)
    assert len(loose.parts(30)) > 1
