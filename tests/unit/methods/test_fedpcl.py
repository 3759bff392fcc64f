"""FedPCL: contrast with everybody's prototypes is all that is learnt from."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from communis import Batch, Client, CommunisError, Model, Replies
from communis.core.tasks import Localisation
from communis.methods.fedpcl import FedPCL, Up, contrast, padded_sets
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
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
    paths,
    play,
    ran,
    same,
    slopes,
    starting,
    values,
    windows,
)

LR, TAU, CLASSES = 0.05, 0.3, 3


def own_prototypes(client: Client, model: Model) -> dict[int, Tensor]:
    """The mean unit embedding of every class that the client has."""
    batch = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        h = copy.deepcopy(model).eval()(batch).embedding
    z = h / h.norm(dim=1, keepdim=True)
    return {c: z[batch.target == c].mean(0) for c in batch.target.unique().tolist()}


def told_apart(h: Tensor, y: Tensor, p: dict[int, Tensor]) -> Tensor:
    """The contrast with one set of prototypes, window by window, the positive left out below."""
    found = []
    for h_b, c in zip(h, y.tolist(), strict=True):
        z = h_b / h_b.norm()
        below = [torch.exp(z @ p[a] / TAU) for a in p if a != c]
        if below:
            found.append(-torch.log(torch.exp(z @ p[c] / TAU) / torch.stack(below).sum()))
    return torch.stack(found).sum() / len(y) if found else 0 * h.sum()


def test_three_rounds_by_hand() -> None:
    """Round 1: contrast with the prototypes of the client's own initial model. Later: with the
    plain mean over the clients that have a class, and with each client's set, padded by it."""
    game = play(mixed(), FedPCL(lr=LR, tau=TAU), rounds=3)
    models = {i: starting(game, i)[1] for i in range(3)}
    p: list[dict[int, Tensor]] = []
    for round in (1, 2, 3):
        found = []
        for i in range(3):
            client, _ = starting(game, i, round)
            if round == 1:
                average = own_prototypes(client, models[i])
                every = [average]
            else:
                having = {c: [q[c] for q in p if c in q] for c in range(CLASSES)}
                average = {c: torch.stack(having[c]).mean(0) for c in having}
                every = [average | q for q in p]

            def slope(model: Model, batch: Batch, sets: Any = (average, every)) -> Values:
                h = model(batch).embedding
                L_p = [told_apart(h, batch.target, q) for q in sets[1]]
                loss = told_apart(h, batch.target, sets[0]) + torch.stack(L_p).mean()
                return slopes(model, loss)

            descend(models[i], batches(client), LR, slope)
            found.append(own_prototypes(client, models[i]))
        p = found
    for i in range(3):
        assert near(game.models[i], values(models[i]), atol=1e-5)
        for c in range(CLASSES):
            expected = p[i].get(c, torch.zeros(6))
            torch.testing.assert_close(game.server.p[i, c], expected, atol=1e-5, rtol=1e-4)
    start = values(starting(game, 0)[1])
    assert apart(game.models[0], start) > 1e-3  # something was learnt


def test_contrast_on_paper() -> None:
    """z = (1, 0), classes at (1, 0), (0, 1) and (-1, 0), tau = 1: log(e^0 + e^-1) - 1. With lengths
    of a half in the second set: log(e^0 + e^-0.5) - 0.5."""
    p = torch.tensor([[1.0, 0], [0, 1], [-1, 0]])
    found = contrast(torch.tensor([[7.0, 0]]), torch.tensor([0]), torch.stack([p, p / 2]), 1.0)
    assert found.tolist() == pytest.approx(
        [math.log(1 + math.exp(-1)) - 1, math.log(1 + math.exp(-0.5)) - 0.5], abs=1e-6
    )


def test_contrast_is_negative_but_bounded() -> None:
    """Without the positive below, the loss passes zero; unit vectors keep it within 2 / tau of
    log(classes - 1), and both ends are reached."""
    p = torch.tensor([[[1.0, 0], [-1, 0], [-1, 0]]])
    least = contrast(torch.tensor([[1.0, 0]]), torch.tensor([0]), p, TAU)
    most = contrast(torch.tensor([[-1.0, 0]]), torch.tensor([0]), p, TAU)
    assert float(least) == pytest.approx(math.log(2) - 2 / TAU, abs=1e-5)
    assert float(most) == pytest.approx(math.log(2) + 2 / TAU, abs=1e-5)
    longer = contrast(torch.tensor([[1e6, 0.0]]), torch.tensor([0]), p, TAU)
    assert torch.equal(longer, least)  # a longer embedding gains nothing


@pytest.mark.parametrize("known", [[0], []])
def test_nothing_to_contrast_with(known: list[int]) -> None:
    """With no other class the sum below is empty: no loss and no slope, not minus infinity."""
    p = torch.zeros(1, CLASSES, 2)
    p[:, known] = torch.tensor([1.0, 0])
    h = torch.tensor([[0.3, 0.4], [1.0, 2.0]], requires_grad=True)
    found = contrast(h, torch.tensor([0, 0]), p, TAU)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert found.tolist() == [0]
    assert h.grad is not None
    assert torch.equal(h.grad, torch.zeros(2, 2))


def test_padded_sets() -> None:
    """Own, others' and the mean, each padded by the mean; by the own where the mean has none."""
    own = torch.tensor([[1.0], [0], [4], [0]])
    average, other = torch.tensor([[2.0], [3], [0], [0]]), torch.tensor([[5.0], [0], [0], [0]])
    first = padded_sets(own, own[None][:0])
    assert first.tolist() == [own.tolist()] * 2
    found = padded_sets(own, torch.stack([average, other]))
    assert found[..., 0].tolist() == [[2, 3, 4, 0], [1, 3, 4, 0], [5, 3, 4, 0]]


def test_all_clients_weigh_alike() -> None:
    """On paper: one window or three, a class's mean is that of the two clients' prototypes."""
    game = play(fleet([(0, 1, 1, 1), (0, 0, 0, 1)]), FedPCL(lr=LR))
    p = game.server.p
    for i in range(2):
        down = game.receive(i, 2)[2]
        torch.testing.assert_close(down.p[0, :2], p[:, :2].mean(0))
        assert torch.equal(down.p[1:], p[[1 - i]])
    told = replace(game.ups[0][0], n=torch.tensor([1.0, 3, 0]))  # nobody is asked for counts
    again = game.method.aggregate(game.server, Replies([(game.bound.cards[0], told)]))
    assert again.n.max() == 1


def test_head_and_prototypes_stay_out_of_it() -> None:
    """The head keeps its bits, decay or not; prototypes are constants."""
    game = play(mixed(), FedPCL(lr=LR, weight_decay=0.1, momentum=0.5), rounds=2)
    for i in range(3):
        first = values(starting(game, i)[1])
        head = [path for path in first if path.startswith("head.")]
        assert head
        assert same({k: game.models[i][k] for k in head}, {k: first[k] for k in head})
        assert not game.states[i].p.requires_grad
    assert not game.server.p.requires_grad
    assert apart(game.models[0], values(starting(game, 0)[1])) > 1e-3


def test_clock_is_not_charged_for_the_head() -> None:
    game = play(mixed(), FedPCL())
    client, state, down = game.receive(0, 2)
    client = replace(client, timed="groups")
    game.method.local(client, state, down)
    trained = [name for name in client.log if name.startswith("trained/")]
    assert trained
    assert not any("head" in name for name in trained)


def test_client_with_one_class() -> None:
    """Alone it has nothing to tell its class from and stays as it began; with the others'
    prototypes it learns. It predicts its class, whatever it sees."""
    game = play(mixed(held_out=3), FedPCL(lr=LR))
    first = values(starting(game, 2)[1])
    assert same(game.models[2], first)
    game.round()
    assert apart(game.models[2], first) > 1e-4
    client, state, _ = game.receive(2, 3)
    scores = game.method.predict(client, state, client.test.batch(torch.arange(3)))
    assert scores.argmax(1).tolist() == [2, 2, 2]


def test_a_class_nobody_has() -> None:
    """Zero prototypes, in no denominator, never predicted."""
    game = play(fleet([(0, 1, 0), (1, 1, 0)], held_out=3), FedPCL(lr=LR, batch=2), rounds=2)
    assert not game.server.p[:, 2].any()
    for i in range(2):
        client, state, down = game.receive(i, 3)
        assert not padded_sets(state.p, down.p)[:, 2].any()
        scores = game.method.predict(client, state, client.test.batch(torch.arange(3)))
        assert bool((scores[:, 2] < scores[:, :2].min() - 100).all())
        assert all(bool(torch.isfinite(t).all()) for t in state.model.values())


def test_prediction() -> None:
    """By the squared distance to the client's own prototypes over 2 tau, not to the fleet's: a
    class that only others have is never predicted."""
    game = play(mixed(held_out=3), FedPCL(lr=LR, tau=TAU), rounds=2)
    client, state, _ = game.receive(1, 3)  # never saw class 2
    batch = client.test.batch(torch.arange(3))
    client.model.eval()
    with torch.no_grad():
        h = client.model(batch).embedding
        scores = game.method.predict(client, state, batch)
    p = game.server.p[1]
    for b, z in enumerate(h / h.norm(dim=1, keepdim=True)):
        gap = torch.stack([((z - p[c]) ** 2).sum() for c in (0, 1)])
        torch.testing.assert_close(scores[b, :2], -gap / (2 * TAU), atol=1e-4, rtol=1e-4)
    assert bool((scores[:, 2] < -100).all())


def test_prediction_before_training() -> None:
    """By the prototypes of the initial model; without any windows by the head."""
    game = play(fleet([(0, 1, 2), ()], held_out=2), FedPCL(), rounds=0)
    for i, trained in ((0, True), (1, False)):
        client, state, _ = game.receive(i, 1)
        client.model.eval()
        batch = client.test.batch(torch.arange(2))
        scores = game.method.predict(client, state, batch)
        assert torch.equal(scores, client.model(batch).prediction) != trained


def test_who_comes_late() -> None:
    """It gets what the others sent. Its own prototypes stand in for a class they do not have."""
    game = play(fleet([(2, 2, 0), (0, 1, 0)]), FedPCL(lr=LR), cohorts=[[1]])
    _, state, down = game.receive(0, 2)
    assert tuple(down.p.shape) == (2, CLASSES, 6)
    assert torch.equal(down.p[0], game.server.p[0])
    found = padded_sets(state.p, down.p)
    assert bool((found[:, 2] == state.p[2]).all())
    game.round([0])
    assert game.server.who.tolist() == [0, 1]
    assert game.server.age.tolist() == [0, 1]


def test_bytes() -> None:
    """Up 4 classes x embedding; down nothing at first, then the mean and the two others."""
    run = ran(mixed(), FedPCL(), rounds=2)
    one = 4 * CLASSES * 6
    assert [r.bytes_up for r in run.history] == [3 * one] * 2
    assert [r.bytes_down for r in run.history] == [0, 3 * 3 * one]


def test_no_parameter_is_on_a_wire() -> None:
    game = play(mixed(), FedPCL(), rounds=2)
    assert not paths(game.downs[1][0]) | paths(game.ups[1][0]) | paths(game.server)


def test_mixed_models() -> None:
    """Three widths in one fleet: they share nothing but the embedding size."""
    zoo = fleet(THREE, models=("cnn_small", "cnn", "cnn_large"), held_out=2)
    run = ran(zoo, FedPCL(lr=0.01), rounds=2)
    assert len({c.model for c in run.cards}) == 3
    assert not any(record.refused for record in run.history)
    assert run.history[1].bytes_up == 3 * 4 * CLASSES * 128
    assert np.isfinite(run.scores()["value"]).all()


def test_notes() -> None:
    """Weights are equal among those who share a class."""
    game = play(fleet(), FedPCL())
    notes = game.method.notes(game.server, -1)
    assert notes["alike"] == pytest.approx(notes["alike/0-1"])
    assert [notes[f"weight/0-{j}"] for j in (0, 1)] == pytest.approx([0.5, 0.5])
    assert notes["moved"] == pytest.approx(0)


def test_refuses_what_is_no_mean_of_unit_vectors() -> None:
    sent = Up(torch.full((3, 2), 0.8), torch.zeros(0, dtype=torch.uint8), torch.zeros(0))
    with pytest.raises(CommunisError, match="longer than 1"):
        sent.check(card(samples=4), FedPCL())
    replace(sent, p=sent.p / 2).check(card(samples=4), FedPCL())


def test_noised_prototypes_are_no_longer_than_one() -> None:
    """They keep their directions; short ones keep their bits."""
    noised = Up(
        torch.tensor([[3.0, -4], [0.3, 0.4], [0, 0]]),
        torch.zeros(0, dtype=torch.uint8),
        torch.zeros(0),
    )
    repaired = noised.repaired()
    torch.testing.assert_close(repaired.p[0], torch.tensor([0.6, -0.8]))
    assert torch.equal(repaired.p[1:], noised.p[1:])
    assert repaired.n.shape == repaired.has.shape == (0,)


def test_refuses_two_embedding_sizes() -> None:
    wide = Architecture(width=4, embedding=8)
    with pytest.raises(CommunisError, match=r"fedpcl needs one embedding size .* got \[6, 8\]"):
        ran(fleet(models=(SMALL, wide)), FedPCL())


def test_refuses_a_task_without_classes() -> None:
    where = np.zeros((len(windows()), 2), np.float32)
    with pytest.raises(CommunisError, match="a prototype belongs to a class"):
        ran(fleet(target=where, task=Localisation(2)), FedPCL())


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan])
def test_refuses_a_temperature(tau: float) -> None:
    with pytest.raises(CommunisError, match="fedpcl needs tau >= 1e-06"):
        FedPCL(tau=tau)
