"""What becomes of BatchNorm's statistics, for every method whose clients share a model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from communis import Client, CommunisError, Fleet, Plan, Run
from communis.core.reductions.median import GeometricMedian
from communis.exchange.topology import ring
from communis.exchange.wire import flatten
from communis.methods.parts.sharing import is_statistic, recalibrate
from tests.contract.abilities import AVERAGING, SENDING, SHARING, abilities, offered
from tests.contract.test_methods import assert_finite, finished, numbers
from tests.fleets import make, mixed_fleet
from tests.unit.methods.tiny import Game, play

PLAN = Plan(rounds=3, workers=1, participation=0.7, eval_every=0)
# The rate of a server must not touch statistics; with a moving average they would move slowly.
STEPS: dict[str, Any] = {"lr_server": 0.5, "ema": "none"}


def make_average(name: str) -> Any:
    return make(name, buffers="average", **offered(name, **STEPS))


@cache
def averaged(name: str) -> Game:
    """A round of the method in which statistics are averaged, played once for all tests of it."""
    return play(mixed_fleet(), make_average(name))


@cache
def plain(name: str) -> Game:
    """A round of the method with its defaults, played once for all tests of it."""
    return play(mixed_fleet(), make(name))


def told(payload: Any) -> dict[str, Tensor]:
    """The statistics in a payload, by path; control variates are none."""
    found = {key: t for key, t in flatten(payload).items() if is_statistic(key)}
    return {key.partition("/")[2]: t for key, t in found.items() if key[:2] not in ("c/", "N/")}


@pytest.mark.parametrize("name", SENDING)
def test_who_sends_parameters_is_who_shares_a_model(name: str) -> None:
    game = plain(name)
    sent = {key.partition("/")[2] for up in game.ups[0].values() for key in flatten(up)}
    assert bool(sent & set(game.bound.params)) == abilities(name).shares


@pytest.mark.parametrize("name", AVERAGING)
def test_means_and_variances_travel_and_counters_do_not(name: str) -> None:
    """Those of all shared layers that the client has, both ways; nothing private, no counter."""
    game = averaged(name)
    for i, up in game.ups[0].items():
        card = game.bound.cards[i]
        expected = game.method.statistics(card)
        assert len(expected) >= 4
        for message in (game.downs[0][i], up):
            assert sorted(told(message)) == sorted(expected)
            assert not any("num_batches" in key or "private." in key for key in flatten(message))


@pytest.mark.parametrize("name", AVERAGING)
def test_the_common_statistics_are_a_mean_of_the_clients(name: str) -> None:
    """Whatever a method does to parameters: adaptive steps, normalised ones, a server's rate."""
    game = averaged(name)
    server, begun = told(game.server), game.bound.statistics
    own = {i: buffers(game.states[i]) for i in game.ups[0]}
    assert sorted(server) == sorted(game.method.statistics(game.bound))
    for path, mean in server.items():
        held = torch.stack([found[path] for found in own.values() if path in found])
        assert bool((mean >= held.min(0).values - 1e-5).all()), path
        assert bool((mean <= held.max(0).values + 1e-5).all()), path
        assert not torch.equal(mean, begun[path])


def buffers(state: Any) -> dict[str, Tensor]:
    """The statistics of a client's private state, whatever field they are in."""
    found = {key: t for key, t in flatten(state).items() if is_statistic(key)}
    kept = {key: t for key, t in found.items() if not key.startswith(("c_i/", "w/", "g_k/"))}
    return {key.partition("/")[2]: t for key, t in (kept or found).items()}


@pytest.mark.parametrize("name", AVERAGING)
def test_clients_predict_with_what_came_down(name: str) -> None:
    game = averaged(name)
    for i in range(5):
        client, state, down = game.receive(i, 2)
        weights = weights_of(client)
        game.method.prepare(client, state)
        if abilities(name).prepares and not unchanged(client, weights):
            continue  # the model is tuned, and statistics follow
        held = client.model.by_path[1]
        assert told(down)
        assert all(torch.equal(held[path], t) for path, t in told(down).items())


@pytest.mark.parametrize("name", SHARING)
def test_by_default_they_stay(name: str) -> None:
    game = plain(name)
    assert not told(game.server)
    assert not any(told(up) for up in game.ups[0].values())


@pytest.mark.parametrize("name", SHARING)
def test_recalibrated_before_predictions(name: str) -> None:
    """They are those of the client's windows with the weights that came down, whatever it had;
    nothing is sent, and weights keep their bits."""
    game = play(mixed_fleet(), make(name, buffers="recalibrate"), rounds=2)
    assert not told(game.server)
    client, state, _ = game.receive(4, 3)
    weights = weights_of(client)
    found = []
    for value in (7.0, 8.0):
        for path, t in client.model.by_path[1].items():
            if is_statistic(path):
                t.fill_(value)
        game.method.prepare(client, state)
        held = {path: t.clone() for path, t in client.model.by_path[1].items()}
        if abilities(name).prepares and not unchanged(client, weights):
            # The model is tuned, or another one is loaded: to recalibrate again changes nothing.
            recalibrate(client, client.model)
            assert all(torch.equal(held[path], t) for path, t in client.model.by_path[1].items())
            return
        # Layers that no window reaches, as of sensors that a client lacks, keep what they have.
        found.append({path: t for path, t in held.items() if not (t == value).all()})
    assert sum(map(is_statistic, found[0])) >= 4
    assert all(torch.equal(found[1][path], t) for path, t in found[0].items())
    assert unchanged(client, weights)


def weights_of(client: Client) -> dict[str, Tensor]:
    return {path: p.detach().clone() for path, p in client.model.by_path[0].items()}


def unchanged(client: Client, weights: dict[str, Tensor]) -> bool:
    return all(torch.equal(p, weights[path]) for path, p in client.model.by_path[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGING)
def test_interrupt_and_resume(name: str, tmp_path: Path) -> None:
    with Run(mixed_fleet(), make_average(name), PLAN, folder=tmp_path / "whole") as whole:
        list(whole)
    for _ in range(PLAN.rounds):
        with Run(mixed_fleet(), make_average(name), PLAN, folder=tmp_path / "parts") as run:
            next(iter(run))
    assert numbers(run) == numbers(whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGING)
def test_on_a_graph(name: str) -> None:
    fleet: Fleet = mixed_fleet()
    with Run(fleet, make_average(name), PLAN, topology=ring(5)) as run:
        list(run)
    assert_finite(run)
    assert all(told(server) for server in run.servers.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGING)
def test_with_a_robust_rule(name: str) -> None:
    with Run(mixed_fleet(), make_average(name), PLAN, rule=GeometricMedian()) as run:
        list(run)
    assert not any(record.refused for record in run.history)
    assert_finite(run)


@pytest.mark.parametrize("name", [name for name in SHARING if name not in AVERAGING])
def test_who_cannot_average_them_says_so(name: str) -> None:
    with pytest.raises(CommunisError, match=f"{name} .*buffers = 'average'.*: set buffers = "):
        make(name, buffers="average")
    assert finished(name).history
