"""FedEL: slow devices train the most important blocks of a window that slides over depth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from communis import Batch, CommunisError, Fleet, Model
from communis.core.groups import groups
from communis.fleet.clients import FleetClients
from communis.fleet.device import DeviceProfile
from communis.methods.fedavg import FedAvg
from communis.methods.fedel import FedEL, by_depth, fitting, slide
from tests.unit.methods.tiny import (
    NORMED,
    SMALL,
    Game,
    Slope,
    Values,
    apart,
    batches,
    descend,
    fill,
    fleet,
    mixed,
    near,
    paths,
    play,
    ran,
    same,
    slopes,
    starting,
    task_loss,
    values,
)

DEPTH = (
    "encoders.a.conv1",
    "encoders.b.conv1",
    "encoders.a.conv2",
    "encoders.b.conv2",
    "fusion.blocks.a",
    "fusion.blocks.b",
    "fusion.shared",
    "head.out",
)


def paced(made: Fleet, *speeds: float) -> Fleet:
    """The fleet on devices of these speeds."""
    profiles = {f"x{s}": DeviceProfile(f"x{s}", s * 1e9, 1, 1, 1, 1e6, 1e6) for s in speeds}
    return replace(made, devices=[f"x{s}" for s in speeds], profiles=profiles)


def trained(game: Game, round: int, client: int) -> list[int]:
    """The numbers of the blocks that a client sent."""
    return sorted(DEPTH.index(block) for block in groups(game.ups[round - 1][client].w))


def test_blocks_come_by_depth() -> None:
    params = FleetClients(fleet(), FedEL()).cards[0].params
    blocks = by_depth(params)
    assert [next(iter(groups(block))) for block in blocks] == list(DEPTH)
    assert all(len(groups(block)) == 1 for block in blocks)
    assert sorted(path for block in blocks for path in block) == sorted(params)


def on(chosen: set[str]) -> Slope:
    """The gradient of the task's loss, at these paths alone."""

    def slope(model: Model, batch: Batch) -> Values:
        found = slopes(model, task_loss(model, batch))
        return {path: found[path] for path in chosen}

    return slope


def test_two_rounds_by_hand() -> None:
    """The second device has 0.6 of the first one's speed. Its forward pass takes 1 / 0.6 and a
    block 2 / 8 / 0.6 of a time in which the first one trains everything in 3, so it can train
    3.2 blocks: its window grows by four, and three of them train."""
    lr, beta = 0.4, 0.7
    game = play(paced(fleet(), 1, 0.6), FedEL(lr=lr, beta=beta), rounds=2)
    assert game.server.budget.tolist() == [8, 3.2]
    blocks = by_depth(game.bound.cards[0].params)
    w = before = dict(game.bound.params)
    end = 0
    for round, front in ((1, 4), (2, 8)):
        (first, fast), (second, slow) = (starting(game, i, round) for i in (0, 1))
        (batch,) = batches(second)
        slope = slopes(slow, task_loss(fill(slow, w), batch))
        own = {k: lr * slope[k].square().sum() for k in w}
        common = {k: (w[k] - before[k]).square().sum() / lr for k in w}
        both_sides = [float(sum(beta * own[k] + (1 - beta) * common[k] for k in b)) for b in blocks]
        chosen = sorted(sorted(range(end, front), key=lambda b, known=both_sides: known[b])[-3:])
        assert [trained(game, round, i) for i in (0, 1)] == [list(range(8)), chosen]
        both = {path for number in chosen for path in blocks[number]}
        one = descend(fill(fast, w), batches(first), lr)
        other = descend(slow, batches(second), lr, on(both))
        before, w = w, {k: (one[k] + other[k]) / 2 if k in both else one[k] for k in w}
        end = chosen[0]
    assert near(game.server.w, w, atol=1e-5)
    assert (game.states[1].end, game.states[1].front) == (end, 8)
    assert trained(game, 1, 1) != trained(game, 2, 1)


@pytest.mark.parametrize("model", [SMALL, NORMED])
def test_equal_devices_give_fedavg(model: Any) -> None:
    """All meet the deadline with everything; the look at the importance leaves no trace."""
    made = paced(mixed(models=(model,)), 2, 2, 2)
    game = play(made, FedEL(lr=0.3, batch=2), rounds=3)
    plain = play(made, FedAvg(lr=0.3, batch=2, whole=True, uniform=True), rounds=3)
    assert near(game.server.w, plain.server.w, rtol=0, atol=1e-6)
    assert apart(game.server.w, game.bound.params) > 0.01
    every = float(len(by_depth(game.bound.params)))
    assert game.method.notes(game.server, -1) == {f"budget/{i}": every for i in range(3)}


def test_devices_without_profiles_are_equally_fast() -> None:
    game = play(mixed(), FedEL())
    assert game.server.budget.tolist() == [8, 8, 8]
    assert all(trained(game, 1, i) == list(range(8)) for i in range(3))


def test_blocks_that_are_not_chosen_keep_their_bits() -> None:
    """With Adam and weight decay, which would move whatever they are handed."""
    method = FedEL(optimizer="adam", weight_decay=0.1, batch=2)
    game = play(paced(fleet(), 1, 0.6), method, rounds=2)
    down, up, after = game.downs[1][1].w, game.ups[1][1].w, game.models[1]
    assert len(groups(up)) == 3
    for path, tensor in after.items():
        assert torch.equal(tensor, down[path]) == (path not in up)
    assert same(up, {path: after[path] for path in up})


def test_what_nobody_trained_stays() -> None:
    game = play(paced(fleet(), 1, 0.6), FedEL(lr=0.3), cohorts=[[1]])
    sent = paths(game.ups[0][1])
    for path, tensor in game.server.w.items():
        assert torch.equal(tensor, game.bound.params[path]) == (path not in sent)


def test_slow_device_trains_one_block() -> None:
    """Its forward pass alone takes longer than the whole training of the fast one. Its window grows
    block by block up to the output and starts anew."""
    game = play(paced(fleet(), 55, 1), FedEL(lr=0.1))
    assert game.server.budget[1] < 0
    assert game.method.notes(game.server, -1) == {"budget/0": 8.0, "budget/1": 1.0}
    fronts = [game.states[1].front]
    for _ in range(9):
        game.round()
        fronts.append(game.states[1].front)
    assert fronts == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    ends = [trained(game, round, 1) for round in range(1, 11)]
    assert all(len(blocks) == 1 for blocks in ends)
    assert all(blocks[0] < front for blocks, front in zip(ends, fronts, strict=True))
    assert ends[0] == ends[8] == [0]


def test_window() -> None:
    """Three blocks at a time through nine, four through nine, and everything at once."""
    assert slide(0, 0, 9, 2.5) == (0, 3)
    assert slide(2, 3, 9, 2.5) == (2, 6)
    assert slide(5, 6, 9, 2.5) == (5, 9)
    assert slide(7, 9, 9, 2.5) == (0, 3)
    assert slide(1, 8, 9, 4.0) == (1, 9)
    assert slide(0, 9, 9, 9.0) == (0, 9)
    assert slide(0, 9, 9, 20.0) == (0, 9)
    assert [fitting(budget) for budget in (-4.0, 0.9, 1.0, 3.2)] == [1, 1, 1, 3]


@pytest.mark.parametrize("budget", [0.3, 1.0, 2.7, 5.0])
def test_every_block_comes_into_the_window(budget: float) -> None:
    """Whatever is chosen."""
    rng, end, front, seen = np.random.default_rng(3), 0, 0, set()
    for _ in range(60):
        end, front = slide(end, front, 11, budget)
        assert 0 <= end < front <= 11
        seen |= set(range(end, front))
        chosen = rng.permutation(np.arange(end, front))[: fitting(budget)]
        end = int(chosen.min())
    assert seen == set(range(11))


def test_deadline_is_met_where_it_can_be() -> None:
    speeds = (1, 0.9, 0.7, 0.5)
    bound = FleetClients(paced(fleet([(0, 1, 2)] * 4), *speeds), FedEL())
    budget = FedEL().start_server(bound).budget
    paces = [bound.pace(card) for card in bound.cards]
    T_th = paces[0].forward + 8 * paces[0].group
    for pace, k in zip(paces, map(fitting, budget.tolist()), strict=True):
        assert pace.forward + k * pace.group <= T_th * (1 + 1e-9)
        assert pace.forward + (k + 1) * pace.group > T_th


def test_a_device_that_never_trains_sets_no_deadline() -> None:
    bound = FleetClients(paced(fleet([(0, 1), (2, 1), ()]), 1, 0.6, 100), FedEL())
    assert FedEL().start_server(bound).budget.tolist() == [8, 3.2, 0]


def test_sensors_are_not_looked_at() -> None:
    """A branch without its sensor has no gradient, hence no importance of its own; but the others'
    progress in it counts, and so the device spends its time there."""
    made = paced(fleet(suites=(("a", "b"), ("a",))), 1, 0.4)  # 0.8 blocks
    own = play(made, FedEL(lr=0.3, beta=1.0), rounds=4)
    assert [trained(own, round, 1) for round in (1, 2)] == [[0], [0]]
    assert not {1, 3, 5} & {b for round in range(1, 5) for b in trained(own, round, 1)}
    common = play(made, FedEL(lr=0.3, beta=0.0), rounds=1)
    common.server = replace(
        common.server,
        w=common.server.w | {k: t + 1 for k, t in common.server.w.items() if ".b." in k},
    )
    common.round()
    assert trained(common, 2, 1) == [1]
    up, down = common.ups[1][1].w, common.downs[1][1].w
    assert same(up, {k: down[k] for k in up})  # trained in vain


def test_only_own_branches() -> None:
    """With `whole` off a client has fewer blocks, and the deadline is the fastest full training."""
    game = play(fleet(suites=(("a", "b"), ("a",))), FedEL(whole=False))
    assert game.server.budget.tolist() == [5, 5]
    assert [len(groups(game.ups[0][i].w)) for i in (0, 1)] == [5, 5]


def test_importance_is_that_of_the_common_model_where_it_moved() -> None:
    method = FedEL(lr=0.5, beta=0.0)
    bound = FleetClients(fleet(), method)
    client, w = bound.client(0, 1, fresh=True), bound.params
    before = w | {"head.out.bias": w["head.out.bias"] - torch.tensor([1.0, 2.0, 0.0])}
    found = method.importance(client, before, w)
    assert found.pop("head.out.bias") == pytest.approx(5 / 0.5)
    assert set(found.values()) == {0.0}


def test_bytes() -> None:
    """4|w| and the budget down; what was trained up."""
    run = ran(paced(fleet(), 1, 0.2), FedEL(lr=0.1))
    sizes = {path: int(np.prod(shape)) for path, shape in run.cards[0].params.items()}
    first = sum(n for path, n in sizes.items() if path.startswith(DEPTH[0] + "."))
    assert run.history[0].bytes_down == 2 * (4 * sum(sizes.values()) + 8)
    assert run.history[0].bytes_up == 4 * (sum(sizes.values()) + first)
    assert not run.history[0].refused


def test_one_client() -> None:
    game = play(fleet([(0, 1, 2, 1)]), FedEL(lr=0.3, batch=2), rounds=2)
    assert same(game.server.w, game.models[0])


def test_one_modality() -> None:
    game = play(paced(fleet(suites=[("a",)] * 2), 1, 0.6), FedEL(lr=0.3), rounds=2)
    assert game.server.budget.tolist() == [5, 2.0]
    assert len(groups(game.ups[1][1].w)) == 2


def test_evaluation_does_not_slide_the_window() -> None:
    game = play(paced(fleet(held_out=2), 1, 0.6), FedEL())
    client, state, _ = game.receive(1, 2)
    assert (state.end, state.front) == (game.states[1].end, 4)
    assert same(values(client.model), game.server.w)


def test_idle_client_is_not_sampled() -> None:
    run = ran(fleet([(0, 1), (), (2, 1)], held_out=2), FedEL())
    assert run.history[0].cohort == (0, 2)
    assert set(run.scores()["client"]) == {0, 1, 2}


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_refuses_beta(beta: float) -> None:
    with pytest.raises(CommunisError, match=r"fedel needs beta in \[0, 1\]"):
        FedEL(beta=beta)


def test_refuses_mixed_models() -> None:
    with pytest.raises(CommunisError, match="FedEL averages parameters"):
        ran(fleet(models=(SMALL, "cnn_small")), FedEL())
