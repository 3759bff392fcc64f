"""A private state that is not finite, for every method: refused by name, and the round goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from communis import Plan, Run
from communis.core.plugins import find
from communis.exchange.messages import Answer, Ask
from communis.exchange.topology import ring
from communis.exchange.wire import encode, flatten, payload_types, unflatten
from communis.fleet.fleet import AnyMethod
from communis.run.backends.mock import Mock
from tests.contract.abilities import FEDERATED, SETTLING, abilities
from tests.fleets import mixed_fleet

PLAN = Plan(rounds=3, workers=1, eval_every=1)
WHO, WHEN = 1, 2  # the client whose state breaks, and the round in which it does


def breaking(name: str, step: str) -> AnyMethod:
    """The method, whose client WHO ends `step` of round WHEN with a NaN in its private state."""
    known: Any = find("methods", name)

    def spoiled(client: Any, state: Any) -> Any:
        if (client.card.id, client.round) != (WHO, WHEN):
            return state
        flat = {key: tensor.clone() for key, tensor in flatten(state).items()}
        key = next(key for key, tensor in flat.items() if tensor.is_floating_point())
        flat[key].fill_(torch.nan)
        return unflatten(flat, payload_types(known)[1])

    class Breaking(known):  # type: ignore[misc]
        def local(self, client: Any, state: Any, down: Any) -> Any:
            state, up = super().local(client, state, down)
            return (spoiled(client, state) if step == "local" else state), up

        def after_exchange(self, client: Any, state: Any, down: Any) -> Any:
            state = super().after_exchange(client, state, down)
            return spoiled(client, state) if step == "after_exchange" else state

    if not abilities(name).after_exchange:
        del Breaking.after_exchange
    made: AnyMethod = Breaking(batch=8)
    return made


def failed(kind: str) -> Any:
    """The answer of client WHO to this kind of ask is lost in round WHEN."""

    def tamper(ask: Ask, answer: Answer) -> Answer:
        lost = (ask.kind, ask.client, ask.round) == (kind, WHO, WHEN)
        return replace(answer, up=b"", keeps_state=False, failure="lost") if lost else answer

    return tamper


@pytest.mark.slow
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", FEDERATED)
def test_a_state_that_is_not_finite_is_as_if_the_client_had_failed(name: str, graph: bool) -> None:
    places: dict[str, Any] = {"topology": ring(5)} if graph else {}
    with Run(mixed_fleet(), breaking(name, "local"), PLAN, **places) as run:
        records = list(run)
    assert [len(record.refused) for record in records] == [0, 1, 0]
    ((client, reason),) = records[1].refused
    assert client == WHO
    assert reason.startswith("private state: ")
    assert reason.endswith(" holds NaN or Inf")
    without = Run(mixed_fleet(), breaking(name, "nowhere"), PLAN, **places)
    without.backend = Mock(without.backend, failed("train"))
    with without:
        list(without)
    for aggregator, server in run.servers.items():
        assert encode(server).data == encode(without.servers[aggregator]).data
    then, others = (of_others(table.scores()) for table in (run, without))
    assert then.equals(others)
    assert bool(of_who(run.scores())["value"].isna().all())  # what it was before is not ranked
    assert not bool(of_who(without.scores())["value"].isna().any())


def of_who(table: Any) -> Any:
    """The scores of client WHO in round WHEN."""
    return table[(table["client"] == WHO) & (table["round"] == WHEN)]


def of_others(table: Any) -> Any:
    return table.drop(of_who(table).index)


@pytest.mark.parametrize("name", SETTLING)
def test_nor_is_one_that_settling_broke_kept(name: str) -> None:
    """The client goes on from the state that its training left."""
    with Run(mixed_fleet(), breaking(name, "after_exchange"), PLAN) as run:
        records = list(run)
    assert [[client for client, _ in record.refused] for record in records] == [[], [WHO], []]
    assert records[1].refused[0][1].startswith("private state: ")
    assert run._since.tolist() == [3] * 5
    assert not bool(of_others(run.scores())["value"].isna().any())
    assert bool(of_who(run.scores())["value"].isna().all())
