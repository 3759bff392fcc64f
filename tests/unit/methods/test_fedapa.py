"""FedAPA: prototypes travel, weighed by how alike clients are; models stay."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import Batch, Client, CommunisError, Fleet, Model, Plan, Run, Streams, Windows
from communis.core.tasks import Classification, Counting, Localisation
from communis.data.recordings.windows import TEST, TRAIN
from communis.exchange.topology import Graph
from communis.exchange.wire import flatten
from communis.fleet.clients import FleetClients
from communis.methods.fedapa import FedAPA, Up
from communis.methods.fedavg import FedAvg
from communis.methods.local import Local
from communis.methods.parts.prototypes import warmup_weight
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    NORMED,
    SMALL,
    Game,
    Values,
    apart,
    batches,
    descend,
    fleet,
    mixed,
    near,
    play,
    ran,
    same,
    slopes,
    starting,
    windows,
)

LR, TAU, CLASSES = 0.3, 0.4, 3


def own_prototypes(client: Client, model: Model) -> tuple[Tensor, Tensor]:
    """Equation 4, window by window."""
    batch = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        h = copy.deepcopy(model).eval()(batch).embedding
    p, n = torch.zeros(CLASSES, h.shape[1]), torch.zeros(CLASSES)
    for z, y in zip(h / h.norm(dim=1, keepdim=True).clamp_min(1e-12), batch.target, strict=True):
        p[y] += z
        n[y] += 1
    return p / n.clamp_min(1)[:, None], n


def by_hand(p: Tensor, n: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """Equations 5 to 8: the personalised prototypes of client i, and everybody's, padded."""
    personal, padded = torch.zeros_like(p[0]), p.clone()
    for c in range(CLASSES):
        have = [j for j in range(len(p)) if n[j, c]]
        mean = sum((n[j, c] * p[j, c] for j in have), torch.zeros(p.shape[2]))
        mean = mean / sum(n[j, c] for j in have)
        for j in range(len(p)):
            padded[j, c] = p[j, c] if n[j, c] else mean
        if not n[i, c]:
            personal[c] = mean
            continue
        s = torch.stack([F.cosine_similarity(p[i, c], p[j, c], dim=0) for j in have])
        alpha = (s / TAU).softmax(0)
        personal[c] = sum((a * p[j, c] for a, j in zip(alpha, have, strict=True)), 0 * mean)
    return personal, padded


def contrast(h: Tensor, y: Tensor, p: Tensor) -> Tensor:
    """Equation 9 with one set of prototypes."""
    cosine = F.cosine_similarity(h[:, None], p[None], dim=-1)
    return F.cross_entropy(cosine / TAU, y)


@pytest.mark.parametrize("sparse", [False, True])
def test_three_rounds_by_hand(sparse: bool) -> None:
    method = FedAPA(lr=LR, tau=TAU, warmup=4, lam_max=2.0, sparse=sparse)
    game = play(mixed(), method, rounds=3)
    models = {i: starting(game, i)[1] for i in range(3)}
    p, n = torch.zeros(0), torch.zeros(0)
    for round in (1, 2, 3):
        lam = 2.0 * (1 - np.cos(np.pi * (round - 1) / 4)) / 2
        found = []
        for i in range(3):
            client, _ = starting(game, i, round)
            sets = by_hand(p, n, i) if round > 1 else None

            def slope(model: Model, batch: Batch, sets: Any = sets, lam: float = lam) -> Values:
                output = model(batch)
                loss = F.cross_entropy(output.prediction, batch.target)
                if sets is not None:
                    L_g = contrast(output.embedding, batch.target, sets[0])
                    L_p = [contrast(output.embedding, batch.target, q) for q in sets[1]]
                    loss = loss + lam * (L_g + torch.stack(L_p).mean())
                return slopes(model, loss)

            descend(models[i], batches(client), LR, slope)
            found.append(own_prototypes(client, models[i]))
        p, n = (torch.stack(parts) for parts in zip(*found, strict=True))
    for i in range(3):
        assert near(game.models[i], dict(models[i].named_parameters()), atol=1e-5)
    torch.testing.assert_close(game.server.p, p, atol=1e-5, rtol=1e-4)
    assert torch.equal(game.server.n, n)
    plain = play(mixed(), Local(lr=LR), rounds=3)
    assert apart(game.models[0], plain.models[0]) > 1e-4  # the contrasts are seen


@pytest.mark.parametrize("settings", [{"lam_max": 0.0}, {"lam_max": 5.0}])
def test_nothing_to_contrast_is_local(settings: dict[str, float]) -> None:
    """Bit for bit: without lam for good, with it in the first round."""
    recipe: dict[str, Any] = {"lr": LR, "batch": 2, "momentum": 0.5, "weight_decay": 1e-3}
    rounds = 3 if not settings["lam_max"] else 1
    apa = play(mixed(), FedAPA(**settings, **recipe), rounds)
    local = play(mixed(), Local(**recipe), rounds)
    assert all(same(apa.states[i].model, local.states[i]) for i in range(3))
    static = play(mixed(), FedAPA(warmup=0, lam_min=0.0, **settings, **recipe), rounds)
    assert all(same(static.states[i].model, local.states[i]) for i in range(3))


def test_lam_over_rounds() -> None:
    """The first round of a run is t = 0."""
    method = FedAPA()
    assert [warmup_weight(t, method.lam_min, method.lam_max, method.warmup) for t in (0, 50)] == [
        0,
        1,
    ]
    client, _ = starting(FleetClients(mixed(), method), 0, round=1)
    targets = torch.ones(2, CLASSES, 6)
    assert method.objective(client, targets) is None
    assert method.objective(replace(client, round=2), targets) is not None
    assert method.objective(replace(client, round=2), targets[:0]) is None


def test_gradients() -> None:
    """The head learns from cross-entropy alone, and nothing flows into prototypes."""
    game = play(mixed(), FedAPA(lr=LR, warmup=0), rounds=2)
    client, state, _ = game.receive(0, 3)
    targets = state.received.clone().requires_grad_()
    batch = client.train.batch(torch.arange(4))
    loss = game.method.objective(client, targets.detach())
    assert loss is not None
    client.model.train()
    found = slopes(client.model, loss(client.model(batch), batch))
    plain = slopes(client.model, F.cross_entropy(client.model(batch).prediction, batch.target))
    head = [path for path in found if path.startswith("head.")]
    assert head
    assert same({k: found[k] for k in head}, {k: plain[k] for k in head})
    assert apart(found, plain) > 1e-4
    assert not state.received.requires_grad


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, 3),
        ({"weights": "average"}, 3),
        ({"clients": False}, 1),
        ({"weights": "average", "clients": False}, 1),
    ],
)
def test_what_comes_down(settings: dict[str, Any], rows: int) -> None:
    """Everybody gets its own set first, and those of the others if these are asked for."""
    game = play(mixed(), FedAPA(lr=LR, tau=TAU, **settings), rounds=2)
    p, n = game.server.p, game.server.n
    for i in range(3):
        _, _, down = game.receive(i, 3)
        assert tuple(down.p.shape) == (rows, CLASSES, 6)
        personal, padded = by_hand(p, n, i)
        if "weights" in settings:
            for c in range(CLASSES):
                personal[c] = p[n[:, c] > 0, c].mean(0)  # the same for everybody
        torch.testing.assert_close(down.p[0], personal)
        others = [j for j in range(3) if j != i]
        torch.testing.assert_close(down.p[1:], padded[others][: rows - 1])


def paper_fleet(clients: int = 6) -> Fleet:
    """Six clients with 21 classes each and embeddings of 256."""
    classes = 21
    target = np.tile(np.arange(classes), clients)
    rng = np.random.default_rng(0)
    made = Windows(
        {"csi": rng.standard_normal((len(target), 1, 8), dtype=np.float32)},
        target,
        np.repeat(np.arange(clients), classes),
        np.zeros(len(target), np.int8),
        Counting(classes),
    )
    return Fleet.of(made, models=(Architecture(width=2, embedding=256),))


def test_bytes_of_the_paper() -> None:
    """150.53 KB per client and round: 4 d |C| up and N times as much down. Counts travel with the
    first message only. No tensor of any model is on the wire."""
    with_counts = 4 * 21
    run = ran(paper_fleet(), FedAPA(), rounds=3)
    first, *later = run.history
    assert (first.bytes_down, first.bytes_up) == (0, 6 * (4 * 256 * 21 + with_counts))
    for record in later:
        assert (record.bytes_down + record.bytes_up) / 6 == 150_528
        assert record.bytes_up / 6 == 4 * 256 * 21
    links = run.links()
    last = links[links["round"] == 3]
    sent = last.groupby("sender")["payload"].sum()
    received = last.groupby("receiver")["payload"].sum()
    assert all(sent[i] + received[i] == 150_528 for i in range(6))


def test_bytes_of_averaging_the_large_network() -> None:
    """3,710 KB per client and round for FedAvg with the published network of 463,748 parameters: a
    saving of 95.94 %."""
    windows = paper_fleet().windows
    csi = np.zeros((len(windows), 1, 4, 4), np.float32)
    made = replace(windows, inputs={"csi": csi}, target=windows.target % 20, task=Counting(20))
    made = replace(made, kinds={"csi": "csi"})
    record = ran(Fleet.of(made, models=("large_convnet4",)), FedAvg(max_steps=1)).history[0]
    per_client = (record.bytes_down + record.bytes_up) / 6
    assert per_client == 2 * 4 * 463_748 == 3_709_984
    assert 1 - 150_528 / per_client == pytest.approx(0.9594, abs=5e-5)


def test_bytes_of_sparse_messages() -> None:
    """Only what is there: THREE has 3, 2 and 1 classes."""
    game = play(mixed(), FedAPA(sparse=True), rounds=2)
    for i, own in enumerate((3, 2, 1)):
        flat = flatten(game.ups[1][i])
        assert sum(t.nbytes for t in flat.values()) == 4 * 6 * own + 1
        down = sum(t.nbytes for t in flatten(game.downs[1][i]).values())
        rows = 3 + (6 - own)  # personalised, and the others'
        assert down == 4 * 6 * rows + 3 + 4 * 2 * CLASSES
    dense = play(mixed(), FedAPA(), rounds=2)
    assert all(near(game.models[i], dense.models[i], atol=1e-6) for i in range(3))


def test_counts_are_told_again_when_they_change() -> None:
    """And whenever the server does not know the client."""
    game = play(mixed(), FedAPA(lr=LR), rounds=2)
    assert [len(game.ups[r][0].n) for r in (0, 1)] == [CLASSES, 0]
    client, state, down = game.receive(0, 3)
    fewer = replace(client, train=client.val)  # none at all
    _, up = game.method.local(fewer, state, down)
    assert up.n.tolist() == [0, 0, 0]
    game.server = game.method.start_server(game.bound)  # the server has lost everything
    client, state, down = game.receive(0, 3)
    _, up = game.method.local(client, state, down)
    assert len(up.n) == CLASSES


def test_counts_reach_who_missed_them() -> None:
    """On a ring that loses half of its messages: in the tenth round everybody tells them again, and
    no node goes on taking each class for one window."""
    targets = ((0, 0, 1, 2, 0), (1, 1, 0, 2), (2, 2, 0, 1, 1), (0, 1, 2, 2))
    true = [[own.count(c) for c in range(CLASSES)] for own in targets]
    lossy = Graph(((0, 1), (1, 2), (2, 3), (3, 0)), loss=0.5, streams=Streams(4))
    plan = Plan(10, workers=1, eval_every=0)
    with Run(fleet(targets), FedAPA(lr=0.01), plan, topology=lossy) as run:
        for record in run:
            if record.round == 9:
                before = dict(run.servers)

    def known(servers: Any) -> int:
        """Neighbours whose counts a node has right."""
        return sum(
            n == true[i]
            for library in servers.values()
            for i, n in zip(library.who.tolist(), library.n.tolist(), strict=True)
        )

    assert known(run.servers) > known(before)
    links = run.links()
    told = links[links["round"].isin([1, 10])].groupby("round")["payload"].unique()
    assert all(set(found) == {4 * CLASSES * 6 + 4 * CLASSES} for found in told)


def test_a_node_of_a_graph_notes_what_it_gives() -> None:
    """Everybody's weights are noted once, by itself, and sum to one over those it hears."""
    made = fleet(((0, 1, 2, 0), (1, 2, 0), (2, 1, 0), (0, 1, 2), (2, 0, 1)))
    ring = Graph(tuple((i, (i + 1) % 5) for i in range(5)))
    with Run(made, FedAPA(lr=LR), Plan(2, workers=1, eval_every=0), topology=ring) as run:
        list(run)
    log = run.folder.log().to_pandas()
    last = log[(log["round"] == 2) & log["name"].str.startswith("weight/0-")]
    given = dict(zip(last["name"], last["value"], strict=True))
    assert set(given) == {"weight/0-0", "weight/0-1", "weight/0-4"}
    assert sum(given.values()) == pytest.approx(1)


def test_what_is_compared_are_the_means() -> None:
    """Between nodes, and with and without liars: the sample-weighted mean of every class."""
    game = play(mixed(), FedAPA(lr=LR), rounds=1)
    p, n = game.server.p, game.server.n
    for c, found in game.method.common(game.server).items():
        weight = n[:, int(c)] / n[:, int(c)].sum()
        torch.testing.assert_close(found, (weight[:, None] * p[:, int(c)]).sum(0))
    assert len(game.method.common(game.server)) == CLASSES


def test_who_sits_out_is_remembered() -> None:
    cohorts = [None, [0, 1], [0, 1], [0, 1]]
    game = play(mixed(), FedAPA(lr=LR, stale=2), cohorts=cohorts)
    assert game.server.age.tolist() == [0, 0, 3]
    assert torch.equal(game.server.p[2], game.ups[0][2].p)
    assert len(game.receive(0, 5)[2].p) == 2  # 2 is too old for others
    assert len(game.receive(2, 5)[2].p) == 3  # but gets its own back
    kept = play(mixed(), FedAPA(lr=LR), cohorts=cohorts)
    assert len(kept.receive(0, 5)[2].p) == 3


def test_a_newcomer_trains_alone_first() -> None:
    game = play(mixed(), FedAPA(lr=LR, warmup=0), cohorts=[[0, 1], [0, 1], [2]])
    assert len(game.downs[2][2].p) == 0
    assert len(game.ups[2][2].n) == CLASSES
    client, model = starting(game, 2, 3)
    assert near(game.models[2], descend(model, batches(client), LR))
    assert game.server.who.tolist() == [0, 1, 2]


def test_one_class() -> None:
    """Client 2 of THREE has nothing but class 2: its prototype is the mean of unit embeddings."""
    game = play(mixed(), FedAPA(lr=LR, warmup=0), rounds=3)
    up = game.ups[2][2]
    client, model = starting(game, 2, 3)
    game.states[2].model.load_into(model)
    expected, _ = own_prototypes(client, model)
    torch.testing.assert_close(up.p, expected)
    assert not up.p[:2].any()
    assert float(up.p.norm(dim=1).max()) <= 1 + 1e-6
    assert bool(torch.isfinite(torch.cat([t.flatten() for t in game.models[2].values()])).all())


def test_no_common_class() -> None:
    """Each keeps its own prototypes, and has the other's as negatives."""
    game = play(fleet(((0, 0, 1), (2, 2))), FedAPA(lr=LR, warmup=0), rounds=3)
    _, _, down = game.receive(0, 4)
    torch.testing.assert_close(down.p[0, :2], game.server.p[0, :2])
    torch.testing.assert_close(down.p[0, 2], game.server.p[1, 2])
    notes = game.method.notes(game.server, -1)
    assert "alike" not in notes
    assert notes["weight/0-1"] == 0


def test_a_client_without_windows_is_served() -> None:
    """It is never asked to train; the others do not miss it."""
    made = fleet(((0, 1, 2, 0), (), (1, 2, 0)), held_out=2)
    run = ran(made, FedAPA(lr=LR), rounds=3, eval_every=1)
    assert not any(record.refused for record in run.history)
    assert run.server.who.tolist() == [0, 2]
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_rare_classes_may_be_kept_back() -> None:
    """THREE: client 0 has class 0 twice and the others once; a single window is an embedding."""
    game = play(mixed(), FedAPA(lr=LR, warmup=0, min_count=2), rounds=2)
    assert game.ups[0][0].n.tolist() == [2, 0, 0]
    assert not game.ups[0][0].p[1:].any()


def test_mixed_models() -> None:
    models = (SMALL, Architecture(width=8, embedding=6), replace(NORMED, width=2))
    run = ran(mixed(models=models), FedAPA(lr=LR, warmup=0), rounds=3)
    assert all(np.isfinite(record.loss) for record in run.history)
    assert not any(record.refused for record in run.history)
    with pytest.raises(CommunisError, match=r"one embedding size for all clients, got \[6, 8\]"):
        ran(mixed(models=(SMALL, SMALL, Architecture(width=4, embedding=8))), FedAPA())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0.0}, "tau >= 1e-06"),
        ({"lam_min": -1.0}, "lam_min >= 0"),
        ({"lam_min": 2.0}, "lam_max >= 2.0"),
        ({"warmup": -1}, "warmup >= 0"),
        ({"min_count": 0}, "min_count >= 1"),
        ({"stale": -1}, "stale >= 0"),
        ({"weights": "mean"}, "weights must be one of 'adaptive', 'average'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CommunisError, match=message):
        FedAPA(**settings)


def test_needs_classes() -> None:
    target = np.zeros((10, 2), np.float32)
    made = Fleet.of(windows(target=target, task=Localisation(2)))
    with pytest.raises(CommunisError, match="fedapa needs a classification or counting task"):
        ran(made, FedAPA())


def test_a_lie_is_refused() -> None:
    game = play(mixed(), FedAPA(), rounds=1)
    up, card = game.ups[0][0], game.bound.cards[0]
    up.check(card, game.method)
    with pytest.raises(CommunisError, match="longer than 1"):
        Up(up.p * 3, up.has, up.n).check(card, game.method)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_class_that_noise_has_emptied_is_gone(sparse: bool) -> None:
    """With its prototype; what is left is no longer than 1."""
    game = play(fleet(), FedAPA(sparse=sparse))
    up = game.ups[0][0]
    assert up.n.tolist() == [2, 1, 1]
    repaired = Up(up.p * 3, up.has, torch.tensor([2.4, -0.6, 0.7])).repaired()
    assert repaired.n.tolist() == [2, 0, 1]
    expected = F.normalize(up.p, dim=-1) * torch.tensor([[1.0], [0], [1]])
    assert repaired.has.tolist() == ([0b101] if sparse else [])
    torch.testing.assert_close(repaired.p, expected[[0, 2]] if sparse else expected)


def opposed() -> Fleet:
    """Clients 0 to 2 and 3 to 5 see class 0 and 1 the other way round."""
    rng = np.random.default_rng(3)
    target = np.tile(np.arange(3), 6 * 12)
    owner = np.repeat(np.arange(6), 36)
    shown = np.where((owner > 2) & (target < 2), 1 - target, target)
    sign = np.array([[1.0, 0], [0, 1.0], [-1.0, -1.0]], np.float32)[shown]
    x = sign[:, :, None] + 0.3 * rng.standard_normal((len(target), 2, 16), dtype=np.float32)
    split = np.where(np.tile(np.arange(36), 6) % 4, TRAIN, TEST).astype(np.int8)
    made = Windows({"a": x.astype(np.float32)}, target, owner, split, Classification(3))
    return Fleet.of(made, seed=2, models=(Architecture(width=8, embedding=16),))


def within(game: Game) -> list[float]:
    """How much of every client's weight stays in its group, in the classes that groups differ in;
    the group is half of the fleet."""
    groups = [slice(0, 3)] * 3 + [slice(3, 6)] * 3
    alphas = [game.method.alpha(game.server, i)[:, :2] for i in range(6)]
    return [float(alpha[own].sum(0).min()) for alpha, own in zip(alphas, groups, strict=True)]


def test_weights_find_the_groups() -> None:
    """As long as the contrasts are weak: they pull the embeddings of a class together whatever its
    windows look like, and with that the weights become equal."""
    recipe: dict[str, Any] = {"lr": 0.1, "batch": 16, "warmup": 5, "tau": 0.1}
    weak = play(opposed(), FedAPA(lam_max=0.01, **recipe), rounds=12)
    assert min(within(weak)) > 0.51
    assert sum(within(weak)) / 6 > 0.58
    strong = play(opposed(), FedAPA(lam_max=1.0, **recipe | {"tau": 0.5}), rounds=12)
    assert max(within(strong)) < 0.51


@pytest.mark.slow
def test_learning_in_two_groups() -> None:
    """A mean of opposed models serves nobody; prototypes do no harm, and adapting no less than
    averaging them."""
    plan: dict[str, Any] = {"rounds": 12, "eval_every": 12}
    recipe: dict[str, Any] = {"lr": 0.1, "batch": 16}
    score = {
        name: ran(opposed(), method, **plan).history[-1].scores["test.accuracy"]
        for name, method in {
            "local": Local(**recipe),
            "fedavg": FedAvg(**recipe),
            "adaptive": FedAPA(warmup=5, **recipe),
            "average": FedAPA(warmup=5, weights="average", **recipe),
        }.items()
    }
    assert score["fedavg"] < score["local"]
    assert score["adaptive"] >= score["local"] - 0.01
    assert score["adaptive"] > score["fedavg"]
    assert score["adaptive"] >= score["average"]
