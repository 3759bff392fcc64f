"""What crosses, for every method that sends something: nothing private, and nothing bad gets in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from communis import Plan, Run
from communis.exchange.wire import decode, encode, flatten, payload_types
from communis.fleet.clients import FleetClients
from communis.run.backends.mock import Mock, corrupt, silence
from tests.contract.abilities import SENDING
from tests.fleets import make, mixed_fleet

pytestmark = pytest.mark.parametrize("name", SENDING)


def test_private_state_and_buffers_stay(name: str) -> None:
    """No private path and no buffer is in any message."""
    fleet, method = mixed_fleet(), make(name)
    bound = FleetClients(fleet, method)
    client = bound.client(bound.trainers[0], 1, fresh=True)
    buffers = list(client.model.by_path[1])
    assert any("running_mean" in path for path in buffers)
    down = method.down(method.start_server(bound), client.card)
    state = method.adopt(client, method.start_client(client), down)
    _, up = method.local(client, state, down)
    for key in [*flatten(down), *flatten(up)]:
        path = key.partition("/")[2]
        assert path not in buffers
        assert not path.startswith("private.")


@pytest.mark.slow
def test_bad_messages_are_refused_by_name_and_the_round_goes_on(name: str) -> None:
    fleet, method = mixed_fleet(), make(name)
    _, _, _, up_type = payload_types(type(method))
    plan = Plan(rounds=1, workers=1, eval_every=0)

    def poison(data: bytes) -> bytes:
        flat = {k: v.clone() for k, v in flatten(decode(data, up_type)).items()}
        key = next(k for k, v in flat.items() if v.is_floating_point())
        flat[key].view(-1)[0] = float("nan")
        return encode(flat).data

    def extra(data: bytes) -> bytes:
        return encode({**flatten(decode(data, up_type)), "backdoor": torch.ones(3)}).data

    cases = {
        "NaN or Inf": corrupt(poison, 1),
        "unknown field backdoor": corrupt(extra, 1),
        "not a readable message": corrupt(lambda data: data[: len(data) // 2], 1),
        "no answer": silence(1),
    }
    without = Run(fleet, method, plan)
    without.backend = Mock(without.backend, silence(1))
    with without:
        list(without)
    for reason, tamper in cases.items():
        run = Run(fleet, method, plan)
        run.backend = Mock(run.backend, tamper)
        with run:
            (record,) = list(run)
        ((client, why),) = record.refused
        assert client == 1
        assert reason in why
        assert encode(run.server).data == encode(without.server).data


@pytest.mark.slow
def test_a_client_can_send_only_the_paths_that_the_method_shares(name: str) -> None:
    """Nobody can plant a private path at the server, or leave out one that counts (where a method
    lets clients send some paths only, one that left out all is one that trained nothing)."""
    fleet, method = mixed_fleet(), make(name)
    up_type = payload_types(type(method))[3]
    bound = FleetClients(fleet, method)
    card = bound.cards[1]
    hidden = [path for path in card.params if path not in method.sends(card).paths]

    def plant(data: bytes) -> bytes:
        flat = flatten(decode(data, up_type))
        states = sorted({key.partition("/")[0] for key in flat if "/" in key})
        extra = {f"{s}/{p}": torch.full(card.params[p], 777.0) for s in states for p in hidden}
        return encode({**flat, **extra}).data

    def drop(data: bytes) -> bytes:
        flat = flatten(decode(data, up_type))
        return encode({key: t for key, t in flat.items() if "/" not in key}).data

    probe = encode(method.local(*start(bound, 1))[1]).data
    for change, reason in ((plant, "may send"), (drop, "is missing")):
        run = Run(fleet, method, Plan(rounds=1, workers=1, eval_every=0))
        run.backend = Mock(run.backend, corrupt(change, 1))
        with run:
            (record,) = list(run)
        if change(probe) != probe and not (change is drop and method.sends(card).optional):
            assert [client for client, why in record.refused if reason in why] == [1]
        for path, tensor in flatten(run.server).items():
            assert not bool((tensor == 777).any()), path


def start(bound: Any, id: int) -> tuple[Any, Any, Any]:
    """A client that has adopted its first downlink."""
    method = bound.method
    client = bound.client(id, 1, fresh=True)
    down = method.down(method.start_server(bound), client.card)
    return client, method.adopt(client, method.start_client(client), down), down


@pytest.mark.slow
def test_huge_values_leave_the_server_finite(name: str) -> None:
    """Absurd values that would overflow are refused, or the round is dropped. (A mean can still be
    pulled far away by values that do not overflow: that is for robust reductions to stop.)"""
    fleet, method = mixed_fleet(), make(name)
    up_type = payload_types(type(method))[3]

    def inflate(data: bytes) -> bytes:
        flat = flatten(decode(data, up_type))
        changed = {
            k: torch.full_like(t, 3e38) if t.is_floating_point() else t for k, t in flat.items()
        }
        return encode(changed).data

    run = Run(fleet, method, Plan(rounds=2, workers=1, eval_every=0))
    mock = Mock(run.backend, corrupt(inflate, 0, 1))
    run.backend = mock
    with run:
        next(iter(run))
    assert all(bool(torch.isfinite(t).all()) for t in flatten(run.server).values())


@pytest.mark.slow
def test_oversize_message_is_refused(name: str) -> None:
    fleet, method = mixed_fleet(), make(name)
    run = Run(fleet, method, Plan(rounds=1, workers=1, eval_every=0, max_message_mb=1))
    run.backend = Mock(run.backend, corrupt(lambda data: data + bytes(1 << 20), 0))
    with run:
        (record,) = list(run)
    assert [client for client, _ in record.refused] == [0]
    assert "over the limit" in record.refused[0][1]
