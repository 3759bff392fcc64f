"""PmcmFL: a library of class prototypes per modality masks what is missing and anchors the rest."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Batch, Card, Client, CommunisError, Fleet, Model, Replies, State
from communis.core.tasks import Localisation
from communis.exchange.wire import Received, check, flatten
from communis.fleet.clients import FleetClients
from communis.methods.fedavg import FedAvg
from communis.methods.pmcmfl import PmcmFL, Server, Up, masked
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    MIXED,
    NORMED,
    SMALL,
    THREE,
    Game,
    Values,
    apart,
    batches,
    descend,
    fill,
    fleet,
    near,
    owned,
    play,
    ran,
    same,
    slopes,
    starting,
    told,
    vectors,
)

ATTENTION = Architecture(width=4, fusion="attention")
TARGETS = ((0, 1, 2, 0, 1, 2), (1, 0, 1, 0, 1, 1), (2, 2))
FUSIONS = pytest.mark.parametrize("kind", [SMALL, ATTENTION])
Prototypes = dict[tuple[str, int], Tensor]  # by modality and class, those that there are
Windows = dict[tuple[str, int], list[Tensor]]  # features by modality and class


def gappy(
    kind: Architecture = SMALL,
    targets: Sequence[Sequence[int]] = TARGETS,
    suites: Sequence[tuple[str, ...]] = MIXED,
    gaps: dict[str, Sequence[int]] | None = None,
    **changes: Any,
) -> Fleet:
    """Suites both, a and b; the first client's windows lack a, or b, but for one."""
    gaps = {"a": [2, 4], "b": [1, 3, 5]} if gaps is None else gaps
    count = sum(map(len, targets)) + len(targets) * changes.get("held_out", 0)
    present = {m: ~np.isin(np.arange(count), gap) for m, gap in gaps.items()}
    return fleet(targets, suites, models=(kind,), present=present, **changes)


def whole(client: Client, split: str = "train") -> Batch:
    samples = getattr(client, split)
    return samples.batch(torch.arange(len(samples)))


def by_class(game: Game, models: dict[int, Model]) -> Windows:
    """The features of all training windows that have a modality, in evaluation mode."""
    found: Windows = {}
    for i, model in models.items():
        batch = whole(game.bound.client(i, 1))
        with torch.no_grad():
            features = copy.deepcopy(model).eval()(batch).features
        for m, h in features.items():
            for row, y in enumerate(batch.target.tolist()):
                if batch.present[m][row]:
                    found.setdefault((m, y), []).append(h[row])
    return found


def loss_by_hand(model: Model, batch: Batch, protos: Prototypes, mu: float, tau: float) -> Tensor:
    """Window by window: the prototype of its class where a modality is missing; then the contrast
    with the prototypes that the windows of the batch have."""
    y = batch.target.tolist()
    modalities = ("a", "b") if model.open_to_any else tuple(batch.inputs)
    h = model(batch).features
    features, present = {}, {}
    for m in modalities:
        there = batch.present[m].tolist() if m in h else [False] * len(y)
        nothing = torch.zeros(8)
        rows = [h[m][i] if there[i] else protos.get((m, y[i]), nothing) for i in range(len(y))]
        features[m] = torch.stack(rows)
        present[m] = torch.tensor([there[i] or (m, y[i]) in protos for i in range(len(y))])
    loss = F.cross_entropy(model.join(features, present).prediction, batch.target)
    for m in h:
        known = [i for i in range(len(y)) if batch.present[m][i] and (m, y[i]) in protos]
        for i in known:
            cosines = [torch.cosine_similarity(h[m][i], protos[m, y[j]], 0) / tau for j in known]
            own = cosines[known.index(i)]
            loss = loss + mu / len(known) * (torch.stack(cosines).exp().sum().log() - own)
    return loss


@FUSIONS
def test_two_rounds_by_hand(kind: Architecture) -> None:
    """The first round has no library; its features make the one of the second. The first client
    joins in the second: it has windows with and without a prototype, missing and there."""
    lr, mu, tau = 0.3, 0.5, 0.2
    cohorts = ((1, 2), (0, 1, 2))
    game = play(gappy(kind), PmcmFL(lr=lr, batch=3, contrast=mu, tau=tau), cohorts=cohorts)
    w: Values = game.bound.params
    P: Prototypes = {}
    windows = (6, 6, 2)
    for round, cohort in enumerate(cohorts, 1):
        ends, models = {}, {}
        for i in cohort:
            client, model = starting(game, i, round)
            fill(model, {k: w[k] for k in client.card.params})

            def slope(model: Model, batch: Batch, protos: Prototypes = P) -> Values:
                return slopes(model, loss_by_hand(model, batch, protos, mu, tau))

            ends[i] = descend(model, batches(client, 3), lr, slope)
            models[i] = model
        assert len(P) == (0 if round == 1 else 3)  # a: 0 and 1, b: 2
        P = {key: torch.stack(h).mean(0) for key, h in by_class(game, models).items()}
        means = {}
        for path in w:
            holders = [i for i in cohort if path in ends[i]]
            total = sum(windows[i] for i in holders)
            means[path] = sum(
                (windows[i] / total * ends[i][path] for i in holders), torch.zeros(())
            )
        w = means
    assert near(game.server.w, w, atol=2e-5)
    assert len(P) == 6
    assert all(torch.allclose(game.server.C[m][y], h, atol=2e-5) for (m, y), h in P.items())
    for changed in (FedAvg(lr=lr, batch=3), PmcmFL(lr=lr, batch=3, contrast=0.0)):
        other = play(gappy(kind), changed, cohorts=cohorts)
        assert apart(game.server.w, other.server.w) > 1e-4


@pytest.mark.slow
def test_the_contrast_of_several_sensors() -> None:
    """A sum over sensors: with two of them the mean is half of it; with one they are the same."""
    whole = fleet(TARGETS, models=(SMALL,))
    single = fleet(TARGETS, suites=[("a",)] * 3, models=(SMALL,))
    for made, weight in ((whole, 1.0), (single, 0.5)):
        means = PmcmFL(lr=0.3, contrast=1.0, reduce="mean")
        halves = play(made, PmcmFL(lr=0.3, contrast=0.5), rounds=2)
        found = play(made, PmcmFL(lr=0.3, contrast=weight, reduce="mean"), rounds=2)
        assert near(found.server.w, halves.server.w)
        full = play(made, PmcmFL(lr=0.3, contrast=1.0), rounds=2)
        assert apart(full.server.w, halves.server.w) > 1e-4
        assert near(play(made, means, rounds=2).server.w, full.server.w) == (made is single)


def test_sensors_never_owned_are_not_filled() -> None:
    """With fill = "own" a client whose windows lack nothing trains as without masks; its labels
    reach its inputs by no prototype of a sensor that it does not have."""
    made, settings = fleet(TARGETS, MIXED, models=(ATTENTION,)), {"lr": 0.3, "contrast": 0.0}
    plain = play(made, FedAvg(lr=0.3), rounds=3)
    own = play(made, PmcmFL(**settings, fill="own"), rounds=3)
    filled = play(made, PmcmFL(**settings), rounds=3)
    assert near(own.server.w, plain.server.w)
    assert apart(filled.server.w, plain.server.w) > 1e-4
    client, state, _ = own.receive(1, 4)
    said = told(own.method, client, state, whole(client))
    assert torch.equal(said[""], said["unmasked"])


@FUSIONS
def test_own_library(kind: Architecture) -> None:
    """The control: no prototype travels, and each client has those of its own windows."""
    game = play(gappy(kind), PmcmFL(lr=0.3, library="own"), rounds=2)
    for i, up in game.ups[1].items():
        assert not up.sums
        assert not up.counts
        assert not game.downs[1][i].C
        assert sorted(game.states[i].C) == sorted(game.bound.cards[i].modalities)
    first, _ = starting(game, 1)
    labels = whole(first).target
    assert game.states[1].n["a"].tolist() == [int((labels == c).sum()) for c in range(3)]
    fleetwide = play(gappy(kind), PmcmFL(lr=0.3), rounds=2)
    plain = play(gappy(kind), FedAvg(lr=0.3), rounds=2)
    assert apart(game.server.w, fleetwide.server.w) > 1e-4
    assert apart(game.server.w, plain.server.w) > 1e-4
    run = ran(gappy(kind, held_out=2), PmcmFL(lr=0.3, library="own"), rounds=2, eval_every=1)
    assert not any(record.refused for record in run.history)
    assert {r.bytes_up for r in run.history} == {4 * owned(run)}
    assert {r.bytes_down for r in run.history} == {4 * owned(run)}


def test_prototypes_are_sent_by_the_setting_alone() -> None:
    bound = FleetClients(gappy(), PmcmFL())
    up = play(gappy(), PmcmFL()).ups[0][0]
    with pytest.raises(CommunisError, match=r"expected \[\] with library = 'own'"):
        up.check(bound.cards[0], PmcmFL(library="own"))
    with pytest.raises(CommunisError, match="with library = 'fleet'"):
        Up(up.w, State(), State()).check(bound.cards[0], PmcmFL())
    with pytest.raises(CommunisError, match="with library = 'fleet'"):
        Up(up.w, up.sums, State()).check(bound.cards[0], PmcmFL())


@pytest.mark.parametrize("kind", [SMALL, ATTENTION, NORMED])
def test_library_is_the_pooled_class_mean(kind: Architecture) -> None:
    """Over all windows that have a modality, whoever owns them, with the trained models in
    evaluation mode; n counts the windows."""
    game = play(gappy(kind), PmcmFL(lr=0.1))
    models = {i: starting(game, i)[1] for i in range(3)}
    for i, model in models.items():
        (game.states[i].w | game.models[i]).load_into(model)
    found = by_class(game, models)
    for m in ("a", "b"):
        assert game.server.n[m].tolist() == [len(found[m, y]) for y in range(3)]
        expected = torch.stack([torch.stack(found[m, y]).mean(0) for y in range(3)])
        assert torch.allclose(game.server.C[m], expected, atol=1e-6)


def test_server_step() -> None:
    """On paper. a, class 0: sums 2 + 4 and 6 + 0 over 1 + 2 windows, so (2, 2); class 1: the first
    client alone, (3, 9) / 3; class 2: nobody, so the old prototype and its count stay. b: no client
    of the cohort owns it."""
    old = torch.tensor([[9.0, 9], [0, 0], [5, 6]])
    n = torch.tensor([1.0, 0, 4])
    server = Server(vectors(x=[0]), State({"a": old, "b": old + 1}), State({"a": n, "b": n}))
    sums = [[[2.0, 6], [3, 9], [0, 0]], [[4.0, 0], [0, 0], [0, 0]]]
    counts = [[1.0, 3, 0], [2.0, 0, 0]]
    replies = [
        (
            Card(i, ("a",), {"x": (1,)}, 4 - 2 * i, {"a": 4 - 2 * i}, {}),
            Up(
                vectors(x=[3 * i]),
                State({"a": torch.tensor(sums[i])}),
                State({"a": torch.tensor(counts[i])}),
            ),
        )
        for i in (0, 1)
    ]
    after = PmcmFL().aggregate(server, Replies(replies))
    assert after.C["a"].tolist() == [[2, 2], [1, 3], [5, 6]]
    assert after.n["a"].tolist() == [3, 3, 4]
    assert torch.equal(after.C["b"], old + 1)
    assert torch.equal(after.n["b"], n)
    assert after.w["x"].item() == pytest.approx(1)  # 4/6 of 0 and 2/6 of 3


@FUSIONS
def test_nothing_missing_and_no_contrast_is_fedavg(kind: Architecture) -> None:
    """Bit for bit, over rounds."""
    settings: dict[str, Any] = {"lr": 0.3, "batch": 2, "momentum": 0.5}
    ours = play(fleet(models=(kind,)), PmcmFL(contrast=0.0, **settings), rounds=3)
    plain = play(fleet(models=(kind,)), FedAvg(**settings), rounds=3)
    assert same(ours.server.w, plain.server.w)
    client, state, _ = ours.receive(0, 4)
    prediction = ours.method.predict(client, state, whole(client)).scored
    assert torch.equal(prediction, client.model(whole(client)).prediction)


@pytest.mark.parametrize("kind", [SMALL, ATTENTION, NORMED])
def test_first_round_is_fedavg(kind: Architecture) -> None:
    """The library is empty: bit for bit, whatever is missing and whatever the contrast weighs."""
    ours = play(gappy(kind), PmcmFL(lr=0.3, batch=2, contrast=5.0))
    plain = play(gappy(kind), FedAvg(lr=0.3, batch=2))
    assert same(ours.server.w, plain.server.w)
    assert all(same(ours.states[i].w, plain.states[i]) for i in range(3))  # BatchNorm's buffers


def test_ema() -> None:
    """It smooths the encoders as in FedAvg."""
    ours = play(gappy(), PmcmFL(lr=0.3, ema="coverage"))
    plain = play(gappy(), FedAvg(lr=0.3, ema="coverage"))
    assert same(ours.server.w, plain.server.w)
    assert not same(ours.server.w, play(gappy(), FedAvg(lr=0.3)).server.w)


@FUSIONS
def test_unknown_prototypes_neither_mask_nor_pull(kind: Architecture) -> None:
    """Prototypes of classes 0 and 1 do nothing to a client that has class 2 alone, although its
    windows lack modalities."""
    targets, suites = ((2, 2, 2), (0, 1, 0)), (("a", "b"), ("a", "b"))
    gaps = {"a": [0], "b": [1]}
    world = gappy(kind, targets, suites, gaps)
    ours = play(world, PmcmFL(lr=0.3, contrast=5.0), cohorts=[[1], [0]])
    assert ours.downs[1][0].n["a"].tolist() == [2, 1, 0]
    plain = play(world, FedAvg(lr=0.3), cohorts=[[1], [0]])
    assert same(ours.models[0], plain.models[0])


def test_a_prototype_stays_until_somebody_has_its_class_again() -> None:
    game = play(
        gappy(), PmcmFL(lr=0.3), cohorts=[[0, 1, 2], [1]]
    )  # the second has a, never class 2
    first, last = game.downs[1][1], game.server
    assert torch.equal(last.C["b"], first.C["b"])
    assert torch.equal(last.C["a"][2], first.C["a"][2])
    assert last.n["a"].tolist() == [2, 4, first.n["a"][2]]
    assert not torch.equal(last.C["a"][:2], first.C["a"][:2])


@FUSIONS
def test_a_class_nobody_has(kind: Architecture) -> None:
    """It has no prototype and is no part of the mean that masks at inference."""
    targets = ((0, 1, 0, 1), (1, 1, 0), (0, 1))
    game = play(gappy(kind, targets, gaps={"b": [1]}, held_out=3), PmcmFL(lr=0.3), rounds=2)
    for m in ("a", "b"):
        assert game.server.n[m][2] == 0
        assert not game.server.C[m][2].any()
    assert all(bool(torch.isfinite(t).all()) for t in game.server.w.values())
    client, state, _ = game.receive(0, 3)
    full = whole(client, "test")
    batch = Batch(full.inputs, full.present | {"b": torch.zeros(3, dtype=torch.bool)}, full.target)
    mean = (game.server.C["b"][0] + game.server.C["b"][1]) / 2
    features = {"a": client.model(batch).features["a"], "b": mean.expand(3, -1)}
    expected = client.model.join(features, full.present).prediction
    assert torch.allclose(game.method.predict(client, state, batch).scored, expected, atol=1e-6)
    assert not torch.allclose(client.model(batch).prediction, expected, atol=1e-4)


@FUSIONS
def test_a_modality_that_no_window_has(kind: Architecture) -> None:
    """Clients own b, but it is never there: no prototype, no mask, no NaN."""
    suites = (("a", "b"), ("a",), ("a", "b"))
    world = gappy(kind, THREE, suites, {"b": range(12)})
    ours = play(world, PmcmFL(lr=0.3, contrast=0.0), rounds=2)
    assert not ours.server.n["b"].any()
    assert not ours.server.C["b"].any()
    assert same(ours.server.w, play(world, FedAvg(lr=0.3), rounds=2).server.w)


@FUSIONS
def test_modalities_of_others(kind: Architecture) -> None:
    """A client with a alone: attention adds the fleet's b to it, blocks lack the weights for b."""
    game = play(gappy(kind, held_out=2), PmcmFL(lr=0.3))
    client, state, _ = game.receive(1, 2)
    batch = whole(client, "test")
    plain = client.model(batch)
    expected = plain.prediction
    if kind is ATTENTION:
        features = {"a": plain.features["a"], "b": game.server.C["b"].mean(0).expand(2, -1)}
        there = torch.ones(2, dtype=torch.bool)
        expected = client.model.join(features, {"a": there, "b": there}).prediction
        assert not torch.allclose(plain.prediction, expected, atol=1e-4)
    assert torch.allclose(game.method.predict(client, state, batch).scored, expected, atol=1e-6)


@FUSIONS
def test_a_window_without_any_sensor(kind: Architecture) -> None:
    """Masked altogether, or not at all while there is no library: numbers in either case."""
    world = gappy(kind, held_out=2)
    for rounds in (0, 1):
        game = play(world, PmcmFL(lr=0.3), rounds=rounds)
        client, state, _ = game.receive(0, rounds + 1)
        full = whole(client, "test")
        batch = Batch(full.inputs, {m: ~p for m, p in full.present.items()}, full.target)
        assert bool(torch.isfinite(game.method.predict(client, state, batch).scored).all())


def test_present_features_keep_their_bits_and_gradients() -> None:
    """Only missing rows are replaced, and nothing flows into what was masked."""
    game = play(gappy(), PmcmFL(lr=0.3))
    client, state, _ = game.receive(0, 2)
    batch = whole(client)
    output = client.model(batch)
    result = masked(client, output, batch, state, F.one_hot(batch.target, 3), ["a", "b"])
    for m, there in batch.present.items():
        assert torch.equal(result.features[m][there], output.features[m][there])
        assert torch.equal(result.features[m][~there], state.C[m][batch.target[~there]])
    (slope,) = torch.autograd.grad(result.prediction.sum(), output.features["b"])
    assert not slope[~batch.present["b"]].any()
    assert bool(slope[batch.present["b"]].any())


def test_contrast_gathers_a_class() -> None:
    """Training on the contrast draws features to their prototypes: after it the loss among them is
    lower than without, and below that of a blind guess."""
    targets = [[y for y in range(3) for _ in range(4)]] * 2

    def confusion(weight: float) -> float:
        game = play(fleet(targets), PmcmFL(lr=0.3, epochs=5, contrast=weight, tau=0.5), rounds=4)
        client, state, _ = game.receive(0, 5)
        batch = whole(client)
        h = F.normalize(client.model(batch).features["a"].detach())
        return float(F.cross_entropy(h @ F.normalize(state.C["a"]).T / 0.5, batch.target))

    assert confusion(1.0) < min(confusion(0.0), math.log(3))


def test_bytes() -> None:
    """Up: the model and, for each own modality, classes x (features + 1) numbers. Down: the model
    and the whole library."""
    run = ran(gappy(), PmcmFL(), rounds=2)
    model, entry = 4 * owned(run), 4 * 3 * (8 + 1)
    for record in run.history:
        assert record.bytes_up == model + entry * (2 + 1 + 1)
        assert record.bytes_down == model + entry * 2 * 3


def test_unsampled_client_predicts_with_the_new_library() -> None:
    game = play(gappy(), PmcmFL(), cohorts=[[0]])
    _, state, down = game.receive(1, 2)
    assert same(state.C, game.server.C)
    assert same(state.n, game.server.n)
    assert not any(path.startswith("encoders.b") for path in down.w)


def test_one_client() -> None:
    game = play(fleet([(0, 1, 2, 1)]), PmcmFL(lr=0.3), rounds=2)
    assert same(game.server.w, game.models[0])
    up = game.ups[1][0]
    assert up.counts["a"].tolist() == [1, 2, 1]
    assert torch.allclose(game.server.C["a"], up.sums["a"] / up.counts["a"][:, None])


def test_idle_client_is_not_sampled() -> None:
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), PmcmFL())
    assert run.history[0].cohort == (0, 2)
    assert set(run.scores()["client"]) == {0, 1, 2}


@pytest.mark.parametrize("counts", [[1.5, 1, 1], [-1, 2, 1], [3, 1, 1]])
def test_refuses_counts_that_cannot_be(counts: list[float]) -> None:
    """Of six windows four have a: neither halves, nor less than none, nor five."""
    game = play(gappy(), PmcmFL())
    card, up = game.bound.cards[0], game.ups[0][0]
    up.check(card, game.method)
    bad = Up(up.w, up.sums, up.counts | {"a": torch.tensor(counts)})
    with pytest.raises(CommunisError, match="counts/a cannot be those of the client's 4 windows"):
        bad.check(card, game.method)


def test_refuses_features_of_no_window() -> None:
    """Sums that belong to a class that was not counted would move the prototype of the others."""
    game = play(gappy(), PmcmFL())
    card, up = game.bound.cards[1], game.ups[0][1]
    assert up.counts["a"].tolist() == [2, 4, 0]
    bad = Up(up.w, up.sums | {"a": up.sums["a"] + 1}, up.counts)
    with pytest.raises(
        CommunisError, match="sums/a and counts/a cannot be those of the client's 6"
    ):
        bad.check(card, game.method)


def test_refuses_the_wrong_modalities_and_shapes() -> None:
    game = play(gappy(), PmcmFL())
    card, up = game.bound.cards[1], game.ups[0][1]  # owns a
    theirs = game.ups[0][0]
    cases = {
        "sums/b is not a modality of client 1": Up(up.w, theirs.sums, up.counts),
        r"sums/a has shape \(3, 7\)": Up(up.w, up.sums.map(lambda t: t[:, 1:]), up.counts),
        "counts/a is torch.int64": Up(up.w, up.sums, up.counts.map(Tensor.long)),
    }
    for reason, bad in cases.items():
        with pytest.raises(CommunisError, match=reason):
            check(Received(bad, flatten(bad)), card, game.method.sends(card))


def test_refuses_two_feature_sizes() -> None:
    """Clients without a common modality or between the encoders of one."""
    wide = Architecture(width=8, embedding=6)
    apart_ = fleet(suites=(("a",), ("b",)), models=(SMALL, wide))
    with pytest.raises(CommunisError, match=r"one size from all encoders, got \[8, 16\]"):
        ran(apart_, PmcmFL())
    client, _ = starting(FleetClients(fleet(), PmcmFL()), 0)
    client.model.feature_sizes = {"a": 8, "b": 4}
    with pytest.raises(CommunisError, match=r"one size from all encoders, got \[4, 8\]"):
        PmcmFL().start_client(client)


def test_refuses_a_task_without_classes() -> None:
    where = np.zeros((10, 2), np.float32)
    with pytest.raises(CommunisError, match="a prototype belongs to a class"):
        ran(fleet(target=where, task=Localisation(2)), PmcmFL())


@pytest.mark.parametrize("bad", [{"contrast": -0.1}, {"tau": 0.0}])
def test_refuses_settings(bad: dict[str, float]) -> None:
    with pytest.raises(CommunisError, match="contrast >= 0 and tau > 0"):
        PmcmFL(**bad)


def test_noised_counts_are_whole_again() -> None:
    """And without windows there is no sum, by modality."""
    sums = State({m: torch.tensor([[1.0, -2], [3, 4]]) for m in ("a", "b")})
    counts = vectors(a=[0.4, 2.7], b=[1.2, -5])
    repaired = Up(vectors(p=[9]), sums, counts).repaired()
    assert same(repaired.counts, vectors(a=[0, 3], b=[1, 0]))
    assert repaired.sums["a"].tolist() == [[0, 0], [3, 4]]
    assert repaired.sums["b"].tolist() == [[1, -2], [0, 0]]
    assert same(repaired.w, vectors(p=[9]))
