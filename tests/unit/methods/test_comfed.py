"""CoMFed: two rounds by hand, the paper's claims that are identities, and its degenerate cases."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from communis import CommunisError, Plan, Run
from communis.core.replies import Replies
from communis.exchange.topology import complete, custom, ring
from communis.exchange.wire import flatten
from communis.fleet.attack import Attack
from communis.fleet.clients import FleetClients
from communis.methods.comfed import CoMFed, Up
from communis.methods.local import Local
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    MIXED,
    NORMED,
    SMALL,
    THREE,
    Game,
    apart,
    fleet,
    mixed,
    near,
    play,
    ran,
    same,
    starting,
    values,
)

PLAIN: dict[str, Any] = {"lr": 0.1, "batch": 1000, "d": 3, "lr_P": 0.01}


def hand(
    model: Any, batch: Any, P: Tensor, target: Tensor | None, lam: float, squared: bool
) -> Any:
    """One step of Equation 8 written out, and the class means after it."""
    output = model(batch)
    loss = F.cross_entropy(output.prediction, batch.target)
    owned = sorted(set(batch.target.tolist()))
    if target is not None:
        for c in owned:
            off = P @ output.embedding[batch.target == c].mean(0) - target[c]
            phi = off @ off if squared else torch.sqrt(off @ off + 1e-6)
            loss = loss + lam * phi / len(owned)
    trained = dict(model.named_parameters())
    slopes = torch.autograd.grad(loss, list(trained.values()))
    with torch.no_grad():
        for p, g in zip(trained.values(), slopes, strict=True):
            p.sub_(0.1 * g)
        embedding = model(batch).embedding
        return {c: embedding[batch.target == c].mean(0) for c in owned}


def adam(P: Tensor, v: dict[int, Tensor], target: Tensor, lam: float, squared: bool) -> Tensor:
    """Equation 9: ten steps, with the slope of the mean over classes written out."""
    m, s = torch.zeros_like(P), torch.zeros_like(P)
    for t in range(1, 11):
        g = torch.zeros_like(P)
        for c, mean in v.items():
            off = P @ mean - target[c]
            g += (
                lam
                / len(v)
                * (2 * off if squared else off / torch.sqrt(off @ off + 1e-6))[:, None]
                * mean
            )
        m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
        P = P - 0.01 * (m / (1 - 0.9**t)) / ((s / (1 - 0.999**t)).sqrt() + 1e-8)
    return P


@pytest.mark.parametrize("consensus", ["mean", "median"])
def test_two_rounds_by_hand(consensus: Any) -> None:
    """Two clients: their geometric median is any point between them; ours is the middle."""
    squared = consensus == "mean"
    game = play(fleet(), CoMFed(**PLAIN, consensus=consensus), rounds=0)
    start = {i: starting(game, i) for i in (0, 1)}
    batches = {i: start[i][0].train.batch(torch.arange(len(start[i][0].train))) for i in (0, 1)}
    P = {i: game.method.start_client(start[i][0]).P for i in (0, 1)}
    assert apart({"P": P[0]}, {"P": P[1]}) > 0.01  # each its own
    target = None
    for _ in range(2):
        game.round()
        v = {i: hand(start[i][1], batches[i], P[i], target, 0.4, squared) for i in (0, 1)}
        u = {i: {c: P[i] @ mean for c, mean in v[i].items()} for i in (0, 1)}
        target = torch.stack([(u[0][c] + u[1][c]) / 2 for c in range(3)])
        for i in (0, 1):
            assert near(game.models[i], values(start[i][1]))
            sent = game.ups[-1][i].u
            torch.testing.assert_close(sent, torch.stack(list(u[i].values())), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(game.server.u[0], target, atol=1e-6, rtol=1e-5)
        if target is not None:
            P = {i: adam(P[i], v[i], target, 0.4, squared) for i in (0, 1)}
            for i in (0, 1):
                if len(game.ups) == 1:  # Adam goes on in the second round
                    torch.testing.assert_close(game.states[i].P, P[i], atol=2e-6, rtol=1e-4)
                P[i] = game.states[i].P


def test_without_weight_it_is_local_bit_for_bit() -> None:
    settings: dict[str, Any] = {"optimizer": "adam", "lr": 0.01, "batch": 3, "max_steps": 2}
    settings |= {"balanced": True, "carry": True}
    data = mixed(models=(NORMED,), held_out=3)
    one = ran(data, CoMFed(lam=0.0, **settings), 4, eval_every=1)
    other = ran(data, Local(**settings), 4, eval_every=1)
    assert one.scores().equals(other.scores())
    pulled = ran(data, CoMFed(lam=1.0, **settings), 4, eval_every=1)
    assert not pulled.scores().equals(other.scores())


def test_warm_up_and_missing_targets_are_no_pull() -> None:
    data = mixed(held_out=3)
    plain = ran(data, Local(lr=0.1, batch=1000), 3, eval_every=1).scores()
    waiting = ran(data, CoMFed(**PLAIN, warmup=3), 3, eval_every=1).scores()
    assert waiting.equals(plain)


def test_complete_graph_gives_every_node_the_targets_of_a_server() -> None:
    data, method = mixed(), CoMFed(**PLAIN)
    star = ran(data, method, 3)
    with Run(data, method, Plan(rounds=3, workers=1, eval_every=0), topology=complete(3)) as run:
        list(run)
    for server in run.servers.values():
        assert same(flatten(server), flatten(star.server))
    assert run.history[-1].consensus_distance == 0
    with Run(
        data, method, Plan(rounds=3, workers=1, eval_every=0), topology=custom([(0, 1), (1, 2)])
    ) as line:
        list(line)
    assert line.history[-1].consensus_distance > 0


def test_bytes_are_the_formula_whatever_the_model() -> None:
    """Up 4 d |C_i| + |C| / 8, down 4 d |C| + |C| / 8, once a round."""
    for model in (SMALL, Architecture(width=16, embedding=40)):
        run = ran(mixed(models=(model,)), CoMFed(d=5), 2)
        classes_of = {0: 3, 1: 2, 2: 1}
        links = run.links().query("round == 2")
        up = links[links["receiver"] == -1].set_index("sender")["payload"].to_dict()
        down = links[links["sender"] == -1].groupby("receiver")["payload"].sum().to_dict()
        assert up == {i: 4 * 5 * n + 1 for i, n in classes_of.items()}
        assert down == dict.fromkeys(range(3), 4 * 5 * 3 + 1)


def test_the_papers_payload() -> None:
    """d = 16 and 12 classes: 768 bytes and 2 of flags."""
    targets = [tuple(range(12)) * 2] * 2
    run = ran(fleet(targets, classes=12), CoMFed(d=16, batch=24), 1)
    assert run.history[0].bytes_up == 2 * (768 + 2)
    assert run.history[0].bytes_down == 2 * (768 + 2)


def test_no_translator_and_no_parameter_travels() -> None:
    game = play(mixed(), CoMFed(**PLAIN), 2)
    for down, up in zip(game.downs[-1].values(), game.ups[-1].values(), strict=True):
        assert set(flatten(down)) == set(flatten(up)) == {"u", "has"}
        assert up.u.shape[1] == 3


def test_the_task_has_no_slope_on_the_translator_and_none_reaches_what_was_received() -> None:
    """P enters the loss as a number, and so do targets: both keep their bits while w trains."""
    game = play(mixed(), CoMFed(**PLAIN), 1)
    before = {i: (state.P.clone(), state.u.clone()) for i, state in game.states.items()}
    for i in before:
        client, state, down = game.receive(i, 2)
        after, _ = game.method.local(client, state, down)
        assert not after.P.requires_grad
        assert torch.equal(after.P, before[i][0])
        assert torch.equal(after.u, before[i][1])


def test_a_class_that_nobody_has_gets_no_target_and_does_no_harm() -> None:
    targets = ((0, 1, 0, 1), (1, 0, 1, 0))
    run = ran(fleet(targets, held_out=3), CoMFed(**PLAIN), 3, eval_every=1)
    assert run.server.age[0].tolist()[:2] == [0, 0]
    assert run.server.age[0, 2] > 100
    assert not run.server.u[0, 2].any()
    assert np.isfinite(run.scores()["value"]).all()


def test_targets_of_classes_that_fall_silent_are_kept_for_a_while() -> None:
    """Only the third client has class 2 in round 1 and then stays away."""
    cohorts = [[0, 1, 2], *[[0, 1]] * 7]
    data = fleet(((0, 1, 0, 1), (1, 0, 1, 0), (2, 2)), MIXED)
    game = play(data, CoMFed(**PLAIN, stale=5), 0)
    known = []
    for cohort in cohorts:
        game.round(cohort)
        known.append(game.states[0].known[0].tolist())
    assert all(row[:2] == [True, True] for row in known)
    assert [row[2] for row in known] == [True] * 6 + [False] * 2
    assert game.server.age[0].tolist() == [0, 0, 7]


def test_a_client_that_was_away_too_long_trains_alone() -> None:
    data, method = fleet(THREE), CoMFed(**PLAIN, stale=2)
    game = play(data, method, 0)
    for cohort in ([0, 1, 2], *[[0, 1]] * 4):
        game.round(cohort)
    client, state, down = game.receive(2, 6)
    model = copy.deepcopy(client.model)
    method.local(client, state, down)
    alone = model.train()
    batch = client.train.batch(torch.arange(len(client.train)))
    loss = F.cross_entropy(alone(batch).prediction, batch.target)
    slopes = torch.autograd.grad(loss, list(alone.parameters()))
    expected = {p: v - 0.1 * g for (p, v), g in zip(values(alone).items(), slopes, strict=True)}
    assert near(values(client.model), expected)


def test_any_mix_of_models_and_embedding_sizes() -> None:
    models = (SMALL, Architecture(width=8, embedding=12), Architecture("gru", 4, embedding=9))
    run = ran(fleet(THREE, MIXED, models=models, held_out=3), CoMFed(**PLAIN), 3, eval_every=3)
    assert len({card.sizes["embedding"] for card in run.cards}) == 3
    assert set(run.scores()["client"]) == {0, 1, 2}


def test_scale_lock_keeps_classes_apart() -> None:
    game = play(fleet(THREE), CoMFed(**PLAIN | {"lr": 0.01}, scale_lock=1), 4)
    for i in (0, 1):  # the third has one class, which nothing can be kept from
        state = game.states[i]
        u = (state.v @ state.P.T)[state.has]
        assert float((u - u.mean(0)).square().sum(1).mean().sqrt()) == pytest.approx(1, abs=1e-4)
    assert torch.isfinite(game.states[2].P).all()


@pytest.mark.slow
def test_independent_translators_shrink_once_by_about_the_root_of_their_number() -> None:
    """Fourteen clients with frozen class means: what is nearly orthogonal has a short mean, to
    which everybody shrinks; scale_lock = 0 is the paper."""
    rng = np.random.default_rng(0)
    means = [torch.from_numpy(rng.standard_normal((12, 128))).float() for _ in range(14)]
    method = CoMFed(d=16, consensus="mean", lr_P=1e-3)
    card = FleetClients(fleet(), method).cards[0]
    card = replace(card, sizes={**card.sizes, "classes": 12})
    P = [torch.from_numpy(rng.standard_normal((16, 128))).float() / 128**0.5 for _ in means]
    server: Any = method.start_server(play(fleet(classes=12), method, 0).bound)
    memory: list[dict[str, Tensor]] = [{} for _ in means]
    client = starting(FleetClients(fleet(classes=12), method), 0)[0]
    first = last = 0.0
    for t in range(60):
        u = [v @ p.T for v, p in zip(means, P, strict=True)]
        size = float(torch.stack(u).norm(dim=-1).mean())
        first, last = first or size, size
        every = torch.tensor([255, 15], dtype=torch.uint8)
        server = method.aggregate(
            server, Replies([(replace(card, id=i), Up(x, every)) for i, x in enumerate(u)])
        )
        for i, v in enumerate(means):
            own = replace(client, round=t + 1, memory=memory[i], log={})
            has = torch.ones(12, dtype=torch.bool)
            state = replace(method.start_client(client), P=P[i], v=v, has=has)
            P[i] = method.after_exchange(own, state, method.down_after(server, card)).P
    assert 0.15 < last / first < 0.45  # 1 / sqrt(14) is 0.27
    spread = torch.stack([v @ p.T for v, p in zip(means, P, strict=True)])
    assert float((spread - spread.mean(0)).norm(dim=-1).mean()) < 0.3 * last


@pytest.mark.parametrize("consensus", ["mean", "median"])
def test_several_pulls_send_everybody_everything(consensus: Any) -> None:
    game = play(fleet(THREE), CoMFed(**PLAIN, pull="multi", consensus=consensus), 2)
    assert game.server.who.tolist() == [0, 1, 2]
    state = game.states[0]
    assert state.known.tolist() == [[True, True, False], [False, False, True]]  # not its own
    sent = game.ups[-1]
    torch.testing.assert_close(state.u[0][:2], sent[1].u)
    torch.testing.assert_close(state.u[1][2:], sent[2].u)


def test_frozen_translators_are_common_orthonormal_and_stay() -> None:
    game = play(fleet(THREE), CoMFed(**PLAIN, freeze_P=True), 2)
    first = game.states[0].P
    torch.testing.assert_close(first @ first.T, torch.eye(3), atol=1e-6, rtol=0)
    assert all(torch.equal(state.P, first) for state in game.states.values())


def test_without_projection_steps_translators_stay() -> None:
    game = play(fleet(THREE), CoMFed(**PLAIN, n_proj=0, common_P=True), 2)
    assert all(torch.equal(s.P, game.states[0].P) for s in game.states.values())
    moved = play(fleet(THREE), CoMFed(**PLAIN, common_P=True), 2)
    assert apart({"P": moved.states[0].P}, {"P": game.states[0].P}) > 1e-3


def test_an_isolated_node_is_pulled_to_itself_alone() -> None:
    data, plan = mixed(held_out=3), Plan(rounds=3, workers=1, eval_every=0)
    with Run(data, CoMFed(**PLAIN), plan, topology=custom([(0, 1)])) as run:
        list(run)
    assert run.servers[2].age[0, 2] == 0
    links = run.links()
    assert 2 not in set(links["sender"]) | set(links["receiver"])


def test_the_median_stays_where_liars_drag_the_mean() -> None:
    """Six of fourteen send noise ten times as large: the target's distance from the honest mean."""
    targets = [(0, 1, 2) * 2] * 14
    off = {}
    for consensus in ("mean", "median"):
        data = replace(fleet(targets), attack=Attack("gaussian", tuple(range(6))))
        run = Run(
            data, CoMFed(**PLAIN, consensus=consensus), Plan(rounds=1, workers=1, eval_every=0)
        )
        with run:
            list(run)
        honest = play(fleet(targets), CoMFed(**PLAIN), 1).ups[0]
        mean = torch.stack([honest[i].u for i in range(6, 14)]).mean(0)
        off[consensus] = float((run.server.u[0] - mean).norm(dim=1).mean())
        assert run.history[0].attack_distance > 0
    assert off["mean"] > 3 * off["median"]


def test_what_is_noted_goes_into_the_log(tmp_path: Path) -> None:
    with Run(
        mixed(), CoMFed(**PLAIN), Plan(rounds=10, workers=1, eval_every=0), folder=tmp_path
    ) as run:
        list(run)
    log = run.folder.log().to_pandas()
    assert {"latent/distance", "latent/separation", "latent/target_separation"} <= set(log["name"])
    pull = log[log["name"] == "latent/pull"]
    assert set(pull["round"]) == {10}
    assert (pull["value"] > 0).all()
    distance = log[log["name"] == "latent/distance"].groupby("round")["value"].mean()
    assert math.isfinite(distance.iloc[-1])


def test_bad_settings_and_tasks_are_refused() -> None:
    for bad in ({"d": 0}, {"lam": -1.0}, {"n_proj": -1}, {"stale": -1}, {"lr_P": -1.0}):
        with pytest.raises(CommunisError, match=f"comfed needs {next(iter(bad))} >="):
            CoMFed(**bad)
    with pytest.raises(CommunisError, match="freeze_P needs embeddings of 7, got 6"):
        ran(fleet(), CoMFed(d=7, freeze_P=True), 1)


def test_a_ring_runs() -> None:
    with Run(
        mixed(), CoMFed(**PLAIN), Plan(rounds=2, workers=1, eval_every=0), topology=ring(3)
    ) as run:
        list(run)
    assert isinstance(play(mixed(), CoMFed(**PLAIN), 1), Game)
