"""Clients that are trained together end where each of them would have ended alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from communis import CommunisError, FedAvg, Fleet, Plan, Run, State, Streams
from communis.core import plugins
from communis.data.sources.synthetic import Synthetic
from communis.exchange.messages import Ask
from communis.exchange.wire import flatten
from communis.fleet.clients import FleetClients
from communis.fleet.fleet import AnyMethod
from communis.methods.parts import together
from communis.models.zoo import Architecture
from communis.run.backends.executor import Executor
from tests.fleets import make, mixed_fleet
from tests.unit.small import same_bits

CLOSE = 1e-4  # of the largest value of a path: sums in another order, in single precision
WINDOWS = 19  # of which a client trains on 13: batches of eight, and one of five
SUITES = (("m0", "m1"), ("m0",), ("m0", "m1"), ("m0", "m1"), ("m0",))


def fleet(**changes: Any) -> Fleet:
    streams = Streams(0)
    data = Synthetic(clients=5, windows=WINDOWS, classes=3, steps=12, channels=2).load(streams)
    model = Architecture(width=4, embedding=8)
    settings: dict[str, Any] = {"models": (model,), "suites": SUITES, "streams": streams}
    return Fleet(data, **{**settings, **changes})


@dataclass
class Ended:
    model: State  # all tensors of the server
    losses: list[float]
    groups: list[int]  # the number of clients of every group


def ended(
    monkeypatch: pytest.MonkeyPatch, method: AnyMethod, at_once: int, on: Fleet | None = None
) -> Ended:
    """The result of a run of two rounds."""
    groups: list[int] = []
    train = together.train_together

    def counted(recipe: Any, clients: Any, models: Any) -> Any:
        groups.append(len(clients))
        return train(recipe, clients, models)

    monkeypatch.setattr("communis.run.backends.executor.train_together", counted)
    plan = Plan(rounds=2, workers=1, together=at_once, eval_every=0)
    with Run(on or fleet(), method, plan) as run:
        losses = [record.loss for record in run]
        return Ended(State(flatten(run.server)), losses, groups)


def close(found: State, expected: State) -> None:
    assert set(found) == set(expected)
    for path, value in expected.items():
        assert (found[path] - value).abs().max() <= CLOSE * value.abs().max(), path


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.01, "epochs": 3},
        {"optimizer": "adam", "lr": 0.01, "epochs": 2, "max_steps": 3},
        {"balanced": True},
        {"mask_mode": "input_zero"},
        {"whole": True},
    ],
    ids=str,
)
def test_the_result_is_that_of_one_by_one(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    method = make("fedavg", **settings)
    alone = ended(monkeypatch, method, 1)
    found = ended(monkeypatch, method, 2)
    close(found.model, alone.model)
    assert found.losses == pytest.approx(alone.losses, rel=CLOSE)
    assert alone.groups == []


def test_clients_of_one_kind_are_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients with two sensors, two with one; at most two at once."""
    assert ended(monkeypatch, make("fedavg"), 2).groups == [2, 2] * 2
    assert sorted(ended(monkeypatch, make("fedavg"), 8).groups) == [2, 2, 3, 3]


def test_windows_of_two_steps_are_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have another encoder."""
    data = Synthetic(clients=3, windows=WINDOWS, classes=3, steps=2).load(Streams(0))
    on = Fleet.of(data)
    alone = ended(monkeypatch, make("fedavg"), 1, on)
    found = ended(monkeypatch, make("fedavg"), 3, on)
    close(found.model, alone.model)
    assert found.groups == [3, 3]


def test_answers_keep_the_order_of_the_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = FleetClients(fleet(), make("fedavg"))
    executor = Executor(clients, store=None)  # type: ignore[arg-type]
    monkeypatch.setattr(executor, "_together", lambda asks: [ask.client for ask in asks])
    monkeypatch.setattr(executor, "_group_of", lambda ask: SUITES[ask.client])
    asks = [Ask("train", i, 1, -1, b"") for i in (4, 0, 1, 3, 2)]
    assert list(executor.perform_all(asks, 2)) == [4, 0, 1, 3, 2]


@pytest.mark.parametrize(
    ("settings", "on"),
    [
        ({"clip": 1.0}, None),
        ({"carry": True, "momentum": 0.9}, None),
        ({}, mixed_fleet(models=(Architecture(width=4, embedding=8),))),
        ({}, fleet(models=(Architecture(norm=True, width=4, embedding=8),))),
    ],
    ids=["clipped", "carried", "missing sensors", "norm"],
)
def test_what_vmap_does_not_compute_alike_is_trained_alone(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], on: Fleet | None
) -> None:
    method = make("fedavg", **settings)
    alone = ended(monkeypatch, method, 1, on)
    found = ended(monkeypatch, method, 8, on)
    assert found.groups == []
    assert all(same_bits(found.model[path], value) for path, value in alone.model.items())


PLAIN = [name for name in plugins.names("methods") if getattr(make(name), "plain_training", False)]


@pytest.mark.parametrize("name", PLAIN)
def test_methods_that_declare_it_have_the_result_of_one_by_one(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = Architecture(width=4, embedding=8, norm=name == "fedbn")  # it needs BatchNorm
    on = fleet(suites=[("m0", "m1")] * 5, models=(model,))
    alone = ended(monkeypatch, make(name), 1, on)
    found = ended(monkeypatch, make(name), 8, on)
    close(found.model, alone.model)
    assert found.losses == pytest.approx(alone.losses, rel=CLOSE)


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "fedproto", "moon", "fedopt"])
def test_methods_that_train_otherwise_do_not_declare_it(name: str) -> None:
    assert not make(name).plain_training


@dataclass(frozen=True)
class Declares(FedAvg):
    @property
    def plain_training(self) -> bool:
        return True

    def local(self, client: Any, state: Any, down: Any) -> Any:
        self.train(client, epochs=2)
        return super().local(client, state, down)


def test_a_wrong_declaration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommunisError, match="Declares declares plain_training, but trains with"):
        ended(monkeypatch, Declares(), 8)


def test_ray_takes_one_client_at_a_time() -> None:
    with pytest.raises(CommunisError, match="together has no effect with backend = 'ray'"):
        Plan(together=2, backend="ray")


def test_windows_stay_on_an_accelerator_that_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6 << 30, 8 << 30))
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 4 << 30)
    assert FleetClients(fleet(), make("fedavg"), "cuda")._room == 3 << 30
    assert FleetClients(fleet(), make("fedavg"), "mps")._room == 2 << 30
    assert FleetClients(fleet(), make("fedavg"))._room < 1 << 30
