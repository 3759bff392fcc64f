"""FedMD: logits on public windows travel, models stay and learn the mean of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from communis import Batch, Client, CommunisError, Model, Replies, State
from communis.core.tasks import Localisation
from communis.fleet.clients import FleetClients
from communis.methods.fedmd import Down, FedMD, Server, Up
from communis.methods.local import Local
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    MIXED,
    NORMED,
    SMALL,
    THREE,
    Values,
    apart,
    batches,
    card,
    descend,
    fleet,
    mixed,
    near,
    play,
    ran,
    same,
    slopes,
    starting,
)

OTHER = Architecture("gru", width=3, embedding=5)


def public(client: Client, size: int, round: int) -> Batch:
    """The first windows of the owner's in the order of the round, over and over if need be."""
    assert client.public is not None
    windows = client.public.samples
    order = client.streams.generator("public", round).permutation(len(windows))
    return windows.batch(torch.tensor([order[i % len(order)] for i in range(size)]))


def part(batch: Batch, rows: Tensor) -> Batch:
    inputs, present = ({m: x[rows] for m, x in of.items()} for of in (batch.inputs, batch.present))
    return Batch(inputs, present, batch.target[rows])


def mae(said: Tensor, consensus: Tensor) -> Tensor:
    return (said - consensus).abs().sum() / said.numel()


def mse(said: Tensor, consensus: Tensor) -> Tensor:
    return (said - consensus).square().sum() / said.numel()


def kl(said: Tensor, consensus: Tensor) -> Tensor:
    """At temperature 2: T^2 sum_c p_c log(p_c / q_c), the mean over windows."""
    p, q = (torch.softmax(logits / 2, 1) for logits in (consensus, said))
    return 4 * (p * (p / q).log()).sum() / len(said)


@pytest.mark.parametrize("distance", [mae, mse, kl])
def test_two_rounds_by_hand(distance: Any) -> None:
    """Three clients with other sensors and models: a private step for every two windows, logits on
    three public windows, their plain mean, steps towards it in batches of two."""
    lr, size = 0.3, 3
    many = fleet(THREE, MIXED, (SMALL, OTHER, SMALL))
    method = FedMD(
        lr=lr, batch=2, public_batch=size, digest=distance.__name__, temperature=2.0, max_steps=1
    )
    game = play(many, method, rounds=2)
    models = {i: starting(game, i)[1] for i in range(3)}
    for round in (1, 2):
        clients = {i: game.bound.client(i, round) for i in range(3)}
        for i, client in clients.items():
            descend(models[i], batches(client, 2)[:1], lr)
        shown = public(clients[0], size, round)
        with torch.no_grad():
            logits = [models[i].eval()(shown).prediction for i in range(3)]
        consensus = torch.stack(logits).sum(0) / 3
        ends = {}
        for i, client in clients.items():
            order = torch.from_numpy(client.generator("batches").permutation(size))
            parts = [(part(shown, rows), consensus[rows]) for rows in torch.split(order, 2)]
            for batch, target in parts:

                def slope(model: Model, batch: Batch, c: Tensor = target) -> Values:
                    return slopes(model, distance(model(batch).prediction, c))

                ends[i] = descend(models[i].train(), [batch], lr, slope)
    assert torch.allclose(game.server.consensus, consensus, atol=1e-5)
    assert all(near(game.states[i], ends[i], atol=1e-5) for i in range(3))
    plain = play(many, Local(lr=lr, batch=2, max_steps=1), rounds=2)
    assert all(apart(game.states[i], plain.states[i]) > 1e-3 for i in range(3))


@pytest.mark.parametrize("model", [SMALL, NORMED])
def test_without_digesting_it_is_local(model: Architecture) -> None:
    """Bit for bit, over rounds: telling what one thinks changes nothing, not even statistics."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.5}
    game = play(mixed(models=(model,)), FedMD(digest_epochs=0, **settings), rounds=3)
    local = play(mixed(models=(model,)), Local(**settings), rounds=3)
    assert all(same(game.states[i], local.states[i]) for i in range(3))


def test_a_lone_client_agrees_with_itself() -> None:
    """The consensus is what it said, so there is nothing to learn from it."""
    game = play(fleet([THREE[0]]), FedMD(lr=0.3, digest="mse"))
    assert near(game.states[0], game.models[0], atol=1e-7)


@pytest.mark.parametrize("distance", ["mae", "mse", "kl"])
def test_digesting_brings_clients_together(distance: Any) -> None:
    """Whatever the distance, ten passes lessen it."""
    method = FedMD(lr=0.02, digest=distance, digest_epochs=10, batch=64)
    game = play(mixed(), replace(method, digest_epochs=0))

    def apart_by(client: Client, shown: Batch, consensus: Tensor) -> float:
        with torch.no_grad():
            return float(method.distance(client.model(shown).prediction, consensus))

    for i in range(3):
        client, state, _ = game.receive(i, 1)
        shown, consensus = public(client, 64, 1), game.server.consensus
        before = apart_by(client, shown, consensus)
        method.after_exchange(client, state, method.down_after(game.server, client.card))
        after = apart_by(client, shown, consensus)
        assert after < 0.95 * before
        assert after < client.log["digest_loss"] < before


def test_server_step() -> None:
    """The plain mean, however many windows a client has."""
    said = [torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[3.0, 2], [1, 8]])]
    replies = Replies([(card(i, samples=1 + 8 * i), Up(t)) for i, t in enumerate(said)])
    after = FedMD(public_batch=2).aggregate(Server(torch.zeros(2, 2)), replies)
    assert after.consensus.tolist() == [[2, 2], [2, 6]]


@pytest.mark.parametrize("models", [(SMALL,), (SMALL, OTHER, "cnn_small")])
def test_bytes(models: Sequence[Any]) -> None:
    """4 * public_batch * outputs per client and direction, whatever the model. The public windows
    themselves are not billed."""
    run = ran(mixed(models=models), FedMD(public_batch=5), rounds=2)
    for record in run.history:
        assert record.bytes_down == record.bytes_up == 3 * 4 * 5 * 3
        assert not record.refused


def test_what_travels() -> None:
    """Nothing before training, afterwards the consensus; no parameter."""
    game = play(mixed(), FedMD(public_batch=5))
    assert game.downs[0][1].consensus.shape == (0, 3)
    assert game.ups[0][1].logits.shape == (5, 3)
    back = game.method.down_after(game.server, game.bound.cards[1])
    assert torch.equal(back.consensus, game.server.consensus)


@pytest.mark.parametrize("size", [3, 4, 11])
def test_public_windows_of_a_round(size: int) -> None:
    """The same for everybody, others in the next round; four are there, so that of eleven some
    are shown three times and the message has the same shape."""
    game = play(mixed(), FedMD(public_batch=size), rounds=2)
    for round in (1, 2):
        for i in range(3):
            client = game.bound.client(i, round)
            drawn = game.method._public_batch(client)
            shown, expected = drawn.batch(torch.arange(size)), public(client, size, round)
            assert same(shown.inputs, expected.inputs)
            assert torch.equal(shown.target, expected.target)
            assert game.ups[round - 1][i].logits.shape == (size, 3)
            most = int(torch.unique(shown.inputs["a"], dim=0, return_counts=True)[1].max())
            assert most == -(-size // 4)
    first, second = (public(game.bound.client(0, r), size, r) for r in (1, 2))
    assert not torch.equal(first.inputs["a"], second.inputs["a"])


def test_the_owner_takes_part() -> None:
    """It is the first with all sensors unless another is named, and learns and digests."""
    suites = (("a",), ("a", "b"), ("a", "b"))
    for named, owner in ((-1, 1), (2, 2)):
        many = replace(fleet(THREE, suites), public=named)
        game = play(many, FedMD(lr=0.3))
        client = game.bound.client(0, 1)
        assert client.public is not None
        assert client.public.owner == owner
        assert torch.equal(client.public.samples.target, torch.tensor(THREE[owner]))
        assert sorted(game.ups[0]) == [0, 1, 2]
        assert apart(game.states[owner], game.models[owner]) > 1e-4


def test_pretraining() -> None:
    """One round on the labelled public windows, whatever a client has itself; then on its own."""
    lr = 0.3
    method = FedMD(lr=lr, pretrain=1, digest_epochs=0)
    game = play(mixed(), method)
    for i in range(3):
        client, model = starting(game, i)
        assert client.public is not None
        ends = descend(model, batches(replace(client, train=client.public.samples)), lr)
        assert near(game.states[i], ends)
        client, _ = starting(game, i, 2)
        ends = descend(model, batches(client), lr)
        game.round([i])
        assert near(game.states[i], ends)
    other = play(mixed(), Local(lr=lr))
    assert apart(game.states[1], other.states[1]) > 1e-3


def test_absent_clients_do_not_digest() -> None:
    game = play(mixed(), FedMD(lr=0.3))
    kept = game.states[1]
    game.round([0, 2])
    assert game.states[1] is kept
    assert torch.allclose(
        game.server.consensus, (game.ups[1][0].logits + game.ups[1][2].logits) / 2
    )


def test_two_optimisers_are_carried_on() -> None:
    """With `carry`: what one remembers of private windows and the other of digesting never meet."""
    method = FedMD(optimizer="adam", lr=0.01, carry=True, batch=64)
    client = FleetClients(fleet([THREE[0]]), method).client(0, 1, fresh=True)
    state = method.start_client(client)
    method.train(client)
    private = {k: t.clone() for k, t in client.memory.items()}
    for times in (1, 2):
        method.after_exchange(client, state, Down(torch.ones(64, 3)))
        apart = {k: t for k, t in client.memory.items() if k.startswith("digest/")}
        assert apart.keys() == {f"digest/{k}" for k in private}
        assert {int(t) for k, t in apart.items() if k.startswith("digest/steps/")} == {times}
        assert same({k: client.memory[k] for k in private}, private)


def test_balanced_batches_are_of_private_windows() -> None:
    """A consensus has no classes to balance."""
    run = ran(mixed(), FedMD(balanced=True, batch=2), rounds=2)
    assert not any(record.refused for record in run.history)


def test_takes_time() -> None:
    """Six private windows, four public ones to look at, two passes over these."""
    method = FedMD(public_batch=4, digest_epochs=2)
    game = play(mixed(), method)
    client = replace(game.bound.client(1, 2), timed="analytic")
    down = Down(torch.zeros(0, 3))
    state, _ = method.local(client, method.adopt(client, game.states[1], down), down)
    assert client.log["windows"] == 6 + 4
    method.after_exchange(client, state, method.down_after(game.server, client.card))
    assert client.log["windows"] == 6 + 4 + 8


@pytest.mark.parametrize("model", [SMALL, NORMED])
def test_few_windows(model: Architecture) -> None:
    """A client with one window, one without any (it is scored as it began), one whose only sensor
    never works in public windows."""
    there = np.r_[np.zeros(5, bool), np.ones(8, bool)]
    many = fleet(
        [(0, 1, 2, 1), (2,), (), (0, 1, 2, 0)],
        suites=(("a", "b"), ("a",), ("a", "b"), ("b",)),
        models=(model,),
        held_out=1,
        present={"a": np.ones(13, bool), "b": there},
    )
    run = ran(many, FedMD(batch=2, public_batch=6), rounds=2, eval_every=1)
    assert [record.cohort for record in run.history] == [(0, 1, 3)] * 2
    assert not any(record.refused for record in run.history)
    assert set(run.scores()["client"]) == {0, 1, 2, 3}
    assert np.isfinite(run.scores()["value"]).all()


@pytest.mark.parametrize(
    "logits", [torch.zeros(4, 3), torch.zeros(5, 2), torch.zeros(15), torch.zeros(5, 3).double()]
)
def test_vet(logits: Tensor) -> None:
    method = FedMD(public_batch=5)
    known = FleetClients(mixed(), method).cards[1]
    Up(torch.zeros(5, 3)).check(known, method)
    with pytest.raises(CommunisError, match=r"logits are torch.float\d+ \(.*\), expected"):
        Up(logits).check(known, method)


@pytest.mark.parametrize("distance", ["mae", "mse"])
def test_a_task_without_classes(distance: Any) -> None:
    """A consensus on numbers is one, too; only a divergence needs probabilities."""
    where = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float32)
    many = fleet(target=where, task=Localisation(2))
    run = ran(many, FedMD(lr=0.01, digest=distance), rounds=2)
    assert all(np.isfinite(record.loss) for record in run.history)
    with pytest.raises(CommunisError, match="fedmd with digest = 'kl' needs a classification"):
        ran(many, FedMD(digest="kl"))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"public_batch": 0}, "public_batch >= 1, got 0"),
        ({"digest_epochs": -1}, "digest_epochs >= 0, got -1"),
        ({"pretrain": -2}, "pretrain >= 0, got -2"),
        ({"temperature": 0.0}, "temperature > 0, got 0"),
        ({"digest": "l3"}, "digest must be one of 'mae', 'mse', 'kl'"),
    ],
)
def test_refuses_settings(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(CommunisError, match=match):
        FedMD(**settings)


def test_refuses_a_fleet_without_public_windows() -> None:
    with pytest.raises(CommunisError, match="public windows must be those of a client"):
        ran(fleet(THREE, (("a",), ("b",), ("b",))), FedMD())
    game = play(mixed(), FedMD())
    client = replace(game.bound.client(0, 2), public=None)
    with pytest.raises(CommunisError, match="fedmd needs public windows"):
        game.method.local(client, State(), Down(torch.zeros(0, 3)))
