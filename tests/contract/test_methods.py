"""The laws of the house, for every method there is."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from communis import Fleet, Plan, Run
from communis.backends.mock import Mock, corrupt, silence
from communis.core import Replies
from communis.plugins import find
from communis.topology import complete, ring
from communis.wire import decode, encode, flatten, payload_types
from tests.fleets import METHODS, make, mixed_fleet

pytestmark = pytest.mark.parametrize("name", METHODS)
PLAN = Plan(rounds=3, workers=1, participation=0.7, eval_every=0)


def numbers(run: Run) -> dict[str, Any]:
    """Everything of a finished run that must be reproducible."""
    records = [
        (r.round, r.cohort, r.loss, r.bytes_up, r.bytes_down, r.bytes_framing, r.refused, r.scores)
        for r in run.history
    ]
    servers = {a: encode(server).data for a, server in run.servers.items()}
    return {"records": records, "servers": servers, "scores": run.scores().to_csv()}


def finished(name: str, fleet: Fleet | None = None, plan: Plan = PLAN, **options: Any) -> Run:
    with Run(fleet or mixed_fleet(), make(name), plan, **options) as run:
        list(run)
    return run


def test_frozen_and_documented(name: str) -> None:
    kind = find("methods", name)
    assert dataclasses.is_dataclass(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(name).lr = 1.0  # type: ignore[misc, attr-defined]
    module = importlib.import_module(kind.__module__)
    assert not (kind.__doc__ or f"{kind.__name__}(").startswith(f"{kind.__name__}(")
    text = module.__doc__ or ""
    assert "https://" in text or name in ("local", "centralized")
    assert "Deviation" in text
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150


def test_same_seed_same_bits(name: str) -> None:
    assert numbers(finished(name)) == numbers(finished(name))


def test_other_seed_other_numbers(name: str) -> None:
    assert numbers(finished(name))["scores"] != numbers(finished(name, mixed_fleet(1)))["scores"]


def test_workers_do_not_change_a_bit(name: str) -> None:
    two = dataclasses.replace(PLAN, workers=2)
    assert numbers(finished(name)) == numbers(finished(name, plan=two))


def test_interrupt_and_resume_change_nothing(name: str, tmp_path: Path) -> None:
    whole = finished(name, folder=tmp_path / "whole")
    for _ in range(PLAN.rounds):  # stops after every single round
        with Run(mixed_fleet(), make(name), PLAN, folder=tmp_path / "parts") as run:
            next(iter(run))
    assert numbers(run) == numbers(whole)


def test_a_failed_round_leaves_the_last_one(name: str, tmp_path: Path) -> None:
    """A crash in the middle of a round, after clients have worked, must not show after resume."""
    whole = finished(name, folder=tmp_path / "whole")
    fleet, method = mixed_fleet(), make(name)
    with Run(fleet, method, PLAN, folder=tmp_path / "parts") as run:
        rounds = iter(run)
        next(rounds)
        inner = run.backend

        def fail(ask: Any, answer: Any) -> Any:
            if ask.client == run.history[-1].cohort[-1] or ask.kind == "evaluate":
                raise RuntimeError("power cut")
            return answer

        run.backend = Mock(inner, fail)
        with pytest.raises(RuntimeError, match="power cut"):
            for _ in rounds:
                pass
    resumed = finished(name, folder=tmp_path / "parts")
    assert numbers(resumed) == numbers(whole)


def test_payloads_round_trip_and_bytes_add_up(name: str) -> None:
    """Serialised bytes = ledger = arrays; what arrives is what was sent."""
    fleet, method = mixed_fleet(), make(name)
    fleet = fleet.pool() if method.pools_data else fleet
    bound = fleet.bind(method)
    server = method.start_server(bound)
    _, state_type, down_type, up_type = payload_types(type(method))
    client = bound.client(bound.trainers[0], 1, fresh=True)
    down = method.down(server, client.card)
    state = method.adopt(client, method.start_client(client), down)
    state, up = method.local(client, state, down)
    for payload, kind in ((down, down_type), (up, up_type), (state, state_type)):
        message = encode(payload)
        sent, got = flatten(payload), flatten(decode(message.data, kind))
        assert sorted(sent) == sorted(got)
        assert all(torch.equal(sent[key], got[key]) for key in sent)
        assert message.payload == sum(t.numel() * t.element_size() for t in sent.values())
        assert len(message.data) == message.payload + message.framing


def test_ledger_is_what_was_sent(name: str) -> None:
    fleet, method = mixed_fleet(), make(name)
    run = Run(fleet, method, PLAN)
    mock = Mock(run.backend)
    run.backend = mock
    sizes = []
    mock.tamper = lambda ask, answer: sizes.append(len(answer.up)) or answer  # type: ignore[func-returns-value]
    with run:
        record = next(iter(run))
    links = run.links()
    assert int(links["payload"].sum()) == record.bytes_up + record.bytes_down
    if method.pools_data:
        return  # raw windows, tested with the method
    asked = sum(len(ask.down) for ask in mock.asks if ask.kind == "train")
    assert record.bytes_up + record.bytes_down + record.bytes_framing == asked + sum(sizes)


def test_private_state_and_buffers_stay(name: str) -> None:
    """No private path and no buffer is in any message."""
    fleet, method = mixed_fleet(), make(name)
    if method.pools_data:
        pytest.skip("hands over everything")
    bound = fleet.bind(method)
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


def test_adopt_fills_every_tensor(name: str) -> None:
    """The model is scratch: nothing of the client before it may remain after `adopt`."""
    fleet, method = mixed_fleet(), make(name)
    fleet = fleet.pool() if method.pools_data else fleet
    bound = fleet.bind(method)
    client = bound.client(bound.trainers[0], 1, fresh=True)
    down, state = method.down(method.start_server(bound), client.card), method.start_client(client)
    parameters, buffers = client.model.by_path
    with torch.no_grad():
        for tensor in [*parameters.values(), *buffers.values()]:
            tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
    method.adopt(client, state, down)
    for path, tensor in {**parameters, **buffers}.items():
        assert torch.isfinite(tensor).all(), path
        assert not (tensor == -1).all(), path


def test_bad_messages_are_refused_by_name_and_the_round_goes_on(name: str) -> None:
    fleet, method = mixed_fleet(), make(name)
    _, _, _, up_type = payload_types(type(method))
    if up_type is type(None) or method.pools_data:
        pytest.skip("sends nothing")
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
    for reason, tamper in cases.items():
        run = Run(fleet, method, plan)
        run.backend = Mock(run.backend, tamper)
        with run:
            (record,) = list(run)
        ((client, why),) = record.refused
        assert client == 1
        assert reason in why
        without = Run(fleet, method, plan)
        without.backend = Mock(without.backend, silence(1))
        with without:
            list(without)
        assert encode(run.server).data == encode(without.server).data


def test_a_client_can_send_only_the_paths_that_the_method_shares(name: str) -> None:
    """Nobody can plant a private path at the server, or leave out one that counts."""
    fleet, method = mixed_fleet(), make(name)
    up_type = payload_types(type(method))[3]
    if up_type is type(None) or method.pools_data:
        pytest.skip("sends nothing")
    bound = fleet.bind(method)
    card = bound.cards[1]
    hidden = [path for path in card.params if path not in method.sends(card)]

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
        if change(probe) != probe:
            assert [client for client, why in record.refused if reason in why] == [1]
        for path, tensor in flatten(run.server).items():
            assert not bool((tensor == 777).any()), path


def start(bound: Any, id: int) -> tuple[Any, Any, Any]:
    """A client that has adopted its first downlink."""
    method = bound.method
    client = bound.client(id, 1, fresh=True)
    down = method.down(method.start_server(bound), client.card)
    return client, method.adopt(client, method.start_client(client), down), down


def test_huge_values_do_not_spoil_the_server_for_good(name: str) -> None:
    """Finite but absurd: either refused, or the round is dropped, and the next one works."""
    fleet, method = mixed_fleet(), make(name)
    up_type = payload_types(type(method))[3]
    if up_type is type(None) or method.pools_data:
        pytest.skip("sends nothing")

    def inflate(data: bytes) -> bytes:
        flat = flatten(decode(data, up_type))
        return encode({k: torch.full_like(t, 3e38) for k, t in flat.items()}).data

    run = Run(fleet, method, Plan(rounds=2, workers=1, eval_every=0))
    mock = Mock(run.backend, corrupt(inflate, 0, 1))
    run.backend = mock
    with run:
        next(iter(run))
    assert all(bool(torch.isfinite(t).all()) for t in flatten(run.server).values())


def test_permuting_clients_permutes_results(name: str) -> None:
    """With whole-batch steps nothing but the order of sums depends on a client's number."""
    fleet, plan = mixed_fleet(), Plan(rounds=2, workers=1, eval_every=0)
    order = np.array([3, 0, 4, 1, 2])  # client i becomes client order[i]
    suites = [fleet.suites[int(np.flatnonzero(order == i)[0])] for i in range(5)]
    moved = dataclasses.replace(fleet, suites=suites, client_of=order[fleet._client_of])
    settings = {"batch": 1000, "lr": 0.01}
    with Run(fleet, make(name, **settings), plan) as one:
        list(one)
    with Run(moved, make(name, **settings), plan) as other:
        list(other)
    left, right = flatten(one.server), flatten(other.server)
    assert sorted(left) == sorted(right)
    for key, tensor in left.items():
        torch.testing.assert_close(tensor, right[key], rtol=1e-3, atol=1e-5)
    first = one.scores().query("metric == 'nll' and own and split == 'test'")
    second = other.scores().query("metric == 'nll' and own and split == 'test'")
    expected = {int(order[c]): v for c, v in zip(first["client"], first["value"], strict=True)}
    found = dict(zip(second["client"], second["value"], strict=True))
    assert found == pytest.approx(expected, rel=1e-3)


def test_oversize_message_is_refused(name: str) -> None:
    fleet, method = mixed_fleet(), make(name)
    up_type = payload_types(type(method))[3]
    if up_type is type(None) or method.pools_data:
        pytest.skip("sends nothing")
    run = Run(fleet, method, Plan(rounds=1, workers=1, eval_every=0, max_message_mb=1))
    run.backend = Mock(run.backend, corrupt(lambda data: data + bytes(1 << 20), 0))
    with run:
        (record,) = list(run)
    assert [client for client, _ in record.refused] == [0]
    assert "over the limit" in record.refused[0][1]


def test_nobody_answers(name: str) -> None:
    """An empty cohort leaves the server as it was."""
    fleet, method = mixed_fleet(), make(name)
    run = Run(fleet, method, Plan(rounds=1, workers=1, eval_every=0))
    before = encode(run.server).data
    run.backend = Mock(run.backend, silence(*range(6)))
    with run:
        (record,) = list(run)
    assert encode(run.server).data == before
    assert len(record.refused) == len(record.cohort)


def test_one_participant(name: str) -> None:
    run = finished(name, plan=Plan(rounds=2, workers=1, cohort=1, eval_every=0))
    assert all(len(record.cohort) == 1 for record in run.history)
    assert_finite(run)


def test_degenerate_data_gives_no_nan(name: str) -> None:
    """A window without any sensor, a client without one class, a client with one window."""
    fleet = mixed_fleet()
    windows = fleet.windows
    client_of = fleet._client_of.copy()
    present = {m: flags.copy() for m, flags in windows.present.items()}
    for flags in present.values():
        flags[client_of == 2] = False  # this client never sees anything
        flags[::7] = False
    target = windows.target.copy()
    target[client_of == 3] = 1  # one class only
    alone = np.flatnonzero((client_of == 4) & (windows.split == 0))
    client_of[alone[1:]] = -1  # a single training window
    broken = dataclasses.replace(windows, present=present, target=target)
    run = finished(name, dataclasses.replace(fleet, windows=broken, client_of=client_of))
    assert not any(record.refused for record in run.history)
    assert_finite(run)


def test_sums_suffice_or_each_is_declared(name: str) -> None:
    """A method that never calls `each` runs where only sums may be revealed."""
    calls = []

    class SumsOnly(Replies[Any]):
        def each(self) -> Any:
            calls.append(name)
            return super().each()

    fleet, method = mixed_fleet(), make(name)
    fleet = fleet.pool() if method.pools_data else fleet
    bound = fleet.bind(method)
    server = method.start_server(bound)
    ups = []
    for i in bound.trainers:
        client = bound.client(i, 1, fresh=True)
        down = method.down(server, client.card)
        state = method.adopt(client, method.start_client(client), down)
        ups.append((client.card, method.local(client, state, down)[1]))
    method.aggregate(server, SumsOnly(ups))
    source = Path(str(importlib.import_module(type(method).__module__).__file__)).read_text("utf-8")
    assert bool(calls) == (".each()" in source)


def test_complete_graph_equals_star(name: str) -> None:
    """Every node of a complete graph hears what the server of a star hears."""
    if make(name).pools_data:
        pytest.skip("needs a server")
    fleet = mixed_fleet()
    plan = Plan(rounds=2, workers=1, eval_every=0)
    star = finished(name, fleet, plan)
    graph = finished(name, fleet, plan, topology=complete(5))
    expected = encode(star.server).data
    assert all(encode(server).data == expected for server in graph.servers.values())
    assert star.scores().equals(graph.scores())


def test_ring_runs_and_bills_every_edge(name: str) -> None:
    if make(name).pools_data:
        pytest.skip("needs a server")
    run = finished(name, plan=Plan(rounds=1, workers=1, eval_every=0), topology=ring(5))
    links = run.links()
    assert set(zip(links["sender"], links["receiver"], strict=True)) <= {
        (a, b) for a in range(5) for b in ((a + 1) % 5, (a - 1) % 5)
    }
    assert (links["receiver"] >= 0).all()
    assert_finite(run)


def test_two_hash_seeds_give_the_same_bits(name: str) -> None:
    """No set is ever iterated: the digest of a run does not depend on PYTHONHASHSEED."""
    if name not in ("fedavg", "fedproto", "scaffold", "fedrod"):
        pytest.skip("one of each kind is enough for two processes each")
    code = (
        "import hashlib; from tests.contract.test_methods import finished, numbers;"
        f"print(hashlib.sha256(repr(numbers(finished('{name}'))).encode()).hexdigest())"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert digests[0] == digests[1]


def assert_finite(run: Run) -> None:
    for server in run.servers.values():
        for key, tensor in flatten(server).items():
            assert torch.isfinite(tensor).all(), key
    scores = run.scores()
    assert len(scores)
    assert np.isfinite(scores["value"]).all()
