"""What is billed, on which link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from communis import Plan, Run, Streams
from communis.core.contract import SERVER
from communis.exchange.ledger import Ledger
from communis.exchange.messages import Link, Topology
from communis.exchange.topology import NEIGHBOURS, Star, TopologyConfig, custom, ring
from communis.exchange.wire import Message
from tests.fleets import make, mixed_fleet


def message(payload: int, framing: int) -> Message:
    return Message(bytes(payload + framing), payload)


def billed(topology: Topology, cohort: Sequence[int], awake: Sequence[int]) -> Ledger:
    """A round in which client i gets 1000 bytes and sends 100 + i, each in an envelope of 10."""
    ledger = Ledger(topology, awake, cohort)
    for client in cohort:
        ledger.down(client, message(1000, 10))
        ledger.up(client, message(100 + client, 10))
    return ledger


def wheel(link: str, **settings: Any) -> Topology:
    """Clients 0, 1 and 2 hear each other, and 3 only 2."""
    edges = ((0, 1), (1, 2), (2, 0), (2, 3), (3, 2), (1, 1))
    config = TopologyConfig(kind="edges", edges=edges, link=link, **settings)  # type: ignore[arg-type]
    return config.make(4, Streams(0))


def test_a_star_bills_both_ways() -> None:
    ledger = billed(Star(), [0, 2], [SERVER])
    assert ledger.links == [
        Link(SERVER, 0, 1000, 10),
        Link(0, SERVER, 100, 10),
        Link(SERVER, 2, 1000, 10),
        Link(2, SERVER, 102, 10),
    ]
    assert (ledger.bytes_down, ledger.bytes_up, ledger.bytes_framing) == (2000, 202, 40)
    assert ledger.received() == {SERVER: 222, 0: 1010, 2: 1010}
    assert ledger.sent() == {SERVER: 2020, 0: 110, 2: 112}


def test_unicast_pays_for_every_neighbour() -> None:
    ledger = billed(wheel("unicast"), range(4), range(4))
    assert [(x.sender, x.receiver) for x in ledger.links] == [
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 2),
        (2, 0),
        (2, 1),
        (2, 3),
        (3, 2),
    ]
    assert ledger.bytes_down == 0
    assert ledger.bytes_up == 2 * 100 + 2 * 101 + 3 * 102 + 103
    assert ledger.bytes_framing == 8 * 10
    assert ledger.sent() == {0: 220, 1: 222, 2: 336, 3: 113}
    assert ledger.received() == {0: 111 + 112, 1: 110 + 112, 2: 110 + 111 + 113, 3: 112}


def test_a_broadcast_is_sent_once_and_received_by_all_neighbours() -> None:
    ledger = billed(wheel("broadcast"), range(4), range(4))
    assert ledger.links == [Link(i, NEIGHBOURS, 100 + i, 10) for i in range(4)]
    assert (ledger.bytes_down, ledger.bytes_up, ledger.bytes_framing) == (0, 406, 40)
    assert ledger.sent() == {i: 110 + i for i in range(4)}
    assert ledger.received() == billed(wheel("unicast"), range(4), range(4)).received()


@pytest.mark.parametrize(("link", "count"), [("unicast", 8), ("broadcast", 4)])
def test_lost_messages_are_billed(link: str, count: int) -> None:
    lossy = wheel(link, loss=1.0).at(1)
    assert [list(lossy.hears(a, range(4))) for a in range(4)] == [[0], [1], [2], [3]]
    ledger, kept = billed(lossy, range(4), range(4)), billed(wheel(link), range(4), range(4))
    assert len(ledger.links) == count
    assert ledger.links == kept.links
    assert ledger.received() == kept.received()
    star = billed(Star(loss=1.0), [0, 1], [SERVER])
    assert star.links == billed(Star(), [0, 1], [SERVER]).links


def test_nothing_is_sent_to_sleepers_nor_by_those_without_neighbours() -> None:
    ledger = billed(wheel("unicast"), [1, 2, 3], [1, 2])
    assert [(x.sender, x.receiver) for x in ledger.links] == [(1, 2), (2, 1), (3, 2)]
    ledger = billed(wheel("broadcast"), [1, 2, 3], [0, 3])
    assert ledger.links == [Link(1, NEIGHBOURS, 101, 10), Link(2, NEIGHBOURS, 102, 10)]
    assert ledger.received() == {0: 111 + 112, 3: 112}
    assert billed(custom([(0, 1)]), [2], [0, 1, 2]).links == []


def test_who_is_awake_but_does_not_train_still_listens() -> None:
    ledger = billed(ring(4), [0], range(4))
    assert [(x.sender, x.receiver) for x in ledger.links] == [(0, 1), (0, 3)]


def test_pooled_data_travel_once_and_the_pool_sits_beside_the_server() -> None:
    ledger = Ledger(Star(), [SERVER], [7])
    ledger.pool(7, {0: 500, 1: 300})
    ledger.down(7, message(1000, 10))
    ledger.up(7, message(1000, 10))
    assert ledger.links == [Link(0, SERVER, 500, 0), Link(1, SERVER, 300, 0)]


def test_a_run_bills_what_its_links_cost() -> None:
    """On a ring of five a broadcast costs half, and the learning is the same."""
    plan, found = Plan(rounds=2, workers=1, eval_every=0), {}
    for link in ("unicast", "broadcast"):
        topology = TopologyConfig(kind="ring", link=link).make(5)
        with Run(mixed_fleet(), make("fedavg"), plan, topology=topology) as run:
            list(run)
            found[link] = run.records(), run.links(), run.scores()
    (each, links, scores), (once, shared, same) = found.values()
    assert (each["bytes_up"] == 2 * once["bytes_up"]).all()
    assert (each["bytes_framing"] == 2 * once["bytes_framing"]).all()
    assert set(shared["receiver"]) == {NEIGHBOURS}
    assert set(links["receiver"]) == set(range(5))
    assert (len(links), len(shared)) == (20, 10)
    assert scores.equals(same)


def test_a_server_that_hears_nobody_learns_nothing_and_pays() -> None:
    plan = Plan(rounds=1, workers=1, eval_every=0)
    with Run(mixed_fleet(), make("fedavg"), plan, topology=Star(loss=1.0)) as run:
        before = run.server
        (record,) = list(run)
        assert run.server is before
        assert record.bytes_up > 0


def test_a_run_follows_the_graph_of_each_round() -> None:
    plan = Plan(rounds=3, workers=1, eval_every=0)
    turns = (((0, 1), (2, 3), (3, 4)), ((1, 2),))
    topology = TopologyConfig(kind="edges", schedule=turns, loss=0.5).make(5, Streams(1))
    with Run(mixed_fleet(), make("fedavg"), plan, topology=topology) as run:
        list(run)
        links = run.links()
    for round, turn in ((1, turns[0]), (2, turns[1]), (3, turns[0])):
        used = links[links["round"] == round]
        both = {*turn, *((b, a) for a, b in turn)}
        assert sorted(zip(used["sender"], used["receiver"], strict=True)) == sorted(both)
