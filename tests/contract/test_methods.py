"""The laws of the house, for every method there is."""

from __future__ import annotations

import dataclasses
import importlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from communis import Fleet, Plan, Run
from communis.core.errors import CommunisError
from communis.core.names import BY_MODEL
from communis.core.plugins import find
from communis.core.replies import Replies
from communis.exchange.wire import decode, encode, flatten, payload_types
from communis.fleet.clients import FleetClients
from communis.fleet.public import public_client
from communis.run.backends.mock import Mock, silence
from communis.run.folder import RunFolder
from tests.contract.abilities import METHODS, abilities, declared_diagnostics, offered
from tests.fleets import TOKENS, make, mixed_fleet

pytestmark = pytest.mark.parametrize("name", METHODS)
SOURCES = ("https://", "no public address", "there is no paper")  # one of them is in a docstring
BLIND = 2  # the client that never sees anything, where data are degenerate
PLAN = Plan(rounds=3, workers=1, participation=0.7, eval_every=0)


def numbers(run: Run) -> dict[str, Any]:
    """Everything of a finished run that must be reproducible."""
    records = [
        (r.round, r.cohort, r.loss, r.bytes_up, r.bytes_down, r.bytes_framing, r.refused, r.scores)
        for r in run.history
    ]
    servers = {a: encode(server).data for a, server in run.servers.items()}
    return {"records": records, "servers": servers, "scores": run.scores().to_csv()}


def as_trained(fleet: Fleet, name: str) -> Fleet:
    """The fleet as the method trains on it."""
    return fleet.pool() if abilities(name).raw_data else fleet


def finished(name: str, fleet: Fleet | None = None, plan: Plan = PLAN, **options: Any) -> Run:
    with Run(fleet or mixed_fleet(), make(name), plan, **options) as run:
        list(run)
    return run


@cache
def expected(name: str) -> dict[str, Any]:
    """The numbers of the method's run that stops nowhere, on one worker and without a folder: run
    once for all tests that compare with it."""
    return numbers(finished(name))


def test_frozen_and_documented(name: str) -> None:
    kind = find("methods", name)
    assert dataclasses.is_dataclass(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(name).lr = 1.0  # type: ignore[misc, attr-defined]
    module = importlib.import_module(kind.__module__)
    assert not (kind.__doc__ or f"{kind.__name__}(").startswith(f"{kind.__name__}(")
    text = module.__doc__ or ""
    assert any(source in text for source in SOURCES)
    assert "Deviation" in text


def test_docstring_names_all_fields_of_the_messages(name: str) -> None:
    """In its own file, also where the dataclasses come from another one."""
    kind = find("methods", name)
    _, _, down, up = payload_types(kind)
    if down is up is type(None):
        line = "Messages: none."
    else:
        line = f"Messages: Down({field_names(down)}); Up({field_names(up)})."
    text = importlib.import_module(kind.__module__).__doc__ or ""
    assert f"\n{line}" in text


def test_the_setting_of_same_model_has_its_declared_name(name: str) -> None:
    """Refusals and reports read it by this name."""
    settings = {field.name for field in dataclasses.fields(find("methods", name))}
    if BY_MODEL in settings:
        assert make(name, **{BY_MODEL: True}).needs.same_model
    assert not make(name).needs.same_model


def field_names(payload: Any) -> str:
    return ", ".join(field.name for field in dataclasses.fields(payload))


@pytest.mark.slow
def test_same_seed_same_bits(name: str) -> None:
    assert numbers(finished(name)) == expected(name)


@pytest.mark.slow
def test_other_seed_other_numbers(name: str) -> None:
    assert numbers(finished(name, mixed_fleet(1)))["scores"] != expected(name)["scores"]


@pytest.mark.slow
def test_workers_do_not_change_a_bit(name: str) -> None:
    two = dataclasses.replace(PLAN, workers=2)
    assert numbers(finished(name, plan=two)) == expected(name)


@pytest.mark.slow
def test_interrupt_and_resume_change_nothing(name: str, tmp_path: Path) -> None:
    for _ in range(PLAN.rounds):  # stops after every single round
        with Run(mixed_fleet(), make(name), PLAN, folder=tmp_path) as run:
            next(iter(run))
    assert numbers(run) == expected(name)


@pytest.mark.slow
def test_a_failed_round_leaves_the_last_one(name: str, tmp_path: Path) -> None:
    """A crash in the middle of a round, after clients have worked, must not show after resume."""
    fleet, method = mixed_fleet(), make(name)
    with Run(fleet, method, PLAN, folder=tmp_path) as run:
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
    assert numbers(finished(name, folder=tmp_path)) == expected(name)


def test_payloads_round_trip_and_bytes_add_up(name: str) -> None:
    """Serialised bytes = ledger = arrays; what arrives is what was sent."""
    method = make(name)
    bound = FleetClients(as_trained(mixed_fleet(), name), method)
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


@pytest.mark.slow
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
    if abilities(name).raw_data:
        return  # raw windows, tested with the method
    asked = sum(len(ask.down) for ask in mock.asks if ask.kind != "evaluate")
    assert record.bytes_up + record.bytes_down + record.bytes_framing == asked + sum(sizes)


def test_only_declared_diagnostics_are_written(name: str, tmp_path: Path) -> None:
    """In core/diagnostics.py, or beside the method if nothing else reads them."""
    finished(name, plan=dataclasses.replace(PLAN, rounds=1), folder=tmp_path)
    written = set(RunFolder(tmp_path).log()["name"].to_pylist())
    known = declared_diagnostics()
    exact = {what.name for what in known}
    of_subjects = tuple(what.name for what in known if what.name.endswith("/"))
    assert not [line for line in written if line not in exact and not line.startswith(of_subjects)]


def test_adopt_fills_every_tensor(name: str) -> None:
    """The model is scratch: nothing of the client before it may remain after `adopt`."""
    method = make(name)
    bound = FleetClients(as_trained(mixed_fleet(), name), method)
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


@pytest.mark.slow
def test_permuting_clients_permutes_results(name: str) -> None:
    """With whole-batch steps nothing but the order of sums depends on a client's number."""
    fleet, plan = mixed_fleet(), Plan(rounds=2, workers=1, eval_every=0)
    order = np.array([3, 0, 4, 1, 2])  # client i becomes client order[i]
    suites = [fleet.suites[int(np.flatnonzero(order == i)[0])] for i in range(5)]
    public = int(order[public_client(fleet)])
    moved = dataclasses.replace(
        fleet, suites=suites, client_of=order[fleet.clients_of], public=public
    )
    # Where every client draws a translator of its own, it is drawn by the client's number.
    settings: dict[str, Any] = {"batch": 1000, "lr": 0.01, **offered(name, common_P=True)}
    with Run(fleet, make(name, **settings), plan) as one:
        list(one)
    with Run(moved, make(name, **settings), plan) as other:
        list(other)
    left, right = flatten(one.server), flatten(other.server)
    assert sorted(left) == sorted(right)
    for key, tensor in left.items():
        if key == "who":  # the clients themselves, in order
            continue
        by_client = "/" not in key and tensor.shape[:1] == (5,)  # what is known of each client
        found = right[key][torch.from_numpy(order)] if by_client else right[key]
        torch.testing.assert_close(tensor, found, rtol=1e-3, atol=1e-5)
    first = one.scores().query("metric == 'nll' and own and split == 'test'")
    second = other.scores().query("metric == 'nll' and own and split == 'test'")
    expected = {int(order[c]): v for c, v in zip(first["client"], first["value"], strict=True)}
    found = dict(zip(second["client"], second["value"], strict=True))
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
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


@pytest.mark.slow
def test_one_participant(name: str) -> None:
    run = finished(name, plan=Plan(rounds=2, workers=1, cohort=1, eval_every=0))
    assert all(len(record.cohort) == 1 for record in run.history)
    assert_finite(run)


@pytest.mark.slow
def test_degenerate_data_gives_no_nan(name: str) -> None:
    """A client that never sees anything, windows without any sensor, a client with one class only,
    a client with one window. A method that cannot do with the first names that client; the others
    it must bear."""
    refusal = ""
    try:
        run = finished(name, degenerate())
    except CommunisError as error:
        refusal = str(error)
        run = finished(name, degenerate(blind=False))
    assert not refusal or f"client {BLIND} " in refusal
    assert not any(record.refused for record in run.history)
    assert_finite(run)


def degenerate(blind: bool = True) -> Fleet:
    fleet = mixed_fleet()
    windows = fleet.windows
    client_of = fleet.clients_of.copy()
    present = {m: flags.copy() for m, flags in windows.present.items()}
    for flags in present.values():
        flags[::7] = False
        if blind:
            flags[client_of == BLIND] = False
    target = windows.target.copy()
    target[client_of == 3] = 1  # one class only
    own = (client_of == 4) & (windows.split == 0)
    seen = np.logical_or.reduce([present[m] for m in fleet.suites[4]])
    client_of[own] = -1
    client_of[np.flatnonzero(own & seen)[0]] = 4  # a single training window, which a sensor saw
    broken = dataclasses.replace(windows, present=present, target=target)
    return dataclasses.replace(fleet, windows=broken, client_of=client_of)


def test_sums_suffice_or_each_is_declared(name: str) -> None:
    """A method that never calls `each` runs where only sums may be revealed."""
    kinds = [kind.__module__ for kind in find("methods", name).__mro__]
    modules = [importlib.import_module(kind) for kind in kinds if ".methods." in kind]
    sources = [Path(str(module.__file__)).read_text("utf-8") for module in modules]
    declared = any(".each()" in source for source in sources)
    # Some have single messages to look at only if the model has an operator.
    fleets = [mixed_fleet(), mixed_fleet(models=(TOKENS,))] if declared else [mixed_fleet()]
    assert any(looks_at_single_messages(name, fleet) for fleet in fleets) == declared


def looks_at_single_messages(name: str, fleet: Fleet) -> bool:
    calls = []

    class Watched(Replies[Any]):
        def each(self) -> Any:
            calls.append(name)
            return super().each()

    method = make(name)
    bound = FleetClients(as_trained(fleet, name), method)
    server = method.start_server(bound)
    ups = []
    for i in bound.trainers:
        client = bound.client(i, 1, fresh=True)
        down = method.down(server, client.card)
        state = method.adopt(client, method.start_client(client), down)
        ups.append((client.card, method.local(client, state, down)[1]))
    method.aggregate(server, Watched(ups))
    return bool(calls)


def assert_finite(run: Run) -> None:
    for server in run.servers.values():
        for key, tensor in flatten(server).items():
            assert torch.isfinite(tensor).all(), key
    scores = run.scores()
    assert len(scores)
    assert np.isfinite(scores["value"]).all()
