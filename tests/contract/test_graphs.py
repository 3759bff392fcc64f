"""Every method that needs no server of its own, on graphs."""

from __future__ import annotations

import pytest

from communis import Plan
from communis.exchange.topology import complete, ring
from communis.exchange.wire import encode
from tests.contract.abilities import FEDERATED
from tests.contract.test_methods import assert_finite, finished
from tests.fleets import mixed_fleet

pytestmark = pytest.mark.parametrize("name", FEDERATED)


@pytest.mark.slow
def test_complete_graph_equals_star(name: str) -> None:
    """Every node of a complete graph hears what the server of a star hears."""
    fleet = mixed_fleet()
    plan = Plan(rounds=2, workers=1, eval_every=0)
    star = finished(name, fleet, plan)
    graph = finished(name, fleet, plan, topology=complete(5))
    expected = encode(star.server).data
    assert all(encode(server).data == expected for server in graph.servers.values())
    assert star.scores().equals(graph.scores())


@pytest.mark.slow
def test_ring_runs_and_bills_every_edge(name: str) -> None:
    run = finished(name, plan=Plan(rounds=1, workers=1, eval_every=0), topology=ring(5))
    links = run.links()
    assert set(zip(links["sender"], links["receiver"], strict=True)) <= {
        (a, b) for a in range(5) for b in ((a + 1) % 5, (a - 1) % 5)
    }
    assert (links["receiver"] >= 0).all()
    assert_finite(run)
