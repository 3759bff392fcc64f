"""Who hears whom."""

from __future__ import annotations

import pickle

import pytest

from communis import CommunisError
from communis.topology import SERVER, Graph, Star, complete, custom, ring


def heard(graph: Graph, clients: int) -> dict[int, list[int]]:
    return {a: list(graph.hears(a, range(clients))) for a in graph.aggregators(clients)}


def test_a_star_has_one_server_that_hears_the_cohort() -> None:
    star = Star()
    assert list(star.aggregators(5)) == [SERVER]
    assert all(star.aggregator_of(i) == SERVER for i in range(5))
    assert list(star.hears(SERVER, [1, 4])) == [1, 4]
    assert SERVER < 0  # no client's number


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
