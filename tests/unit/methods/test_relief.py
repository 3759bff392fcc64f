"""RELIEF against its equations: cohort means, B by modality counts, divergence, allocation, and
what does not train keeps its bits and stays at home."""

from __future__ import annotations

import logging
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
import torch

from communis import CommunisError, FedAvg, Fleet, Replies, State
from communis.core.contract import Card
from communis.core.groups import groups
from communis.fleet.clients import FleetClients
from communis.fleet.device import of_fleet
from communis.methods.relief import Relief, Server, Up
from communis.models.zoo import Architecture
from tests.unit.methods.tiny import (
    SMALL,
    THREE,
    apart,
    batches,
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
    task_loss,
    values,
)

FULL, ACC = ("a", "b"), ("a",)
SUITES = (FULL, FULL, ACC)
GROUPS = ["encoders.a.conv1", "encoders.a.conv2", "fusion.blocks.a", "fusion.shared", "head.out"]


def devices(fleet: Fleet, *names: str) -> Fleet:
    return replace(fleet, devices=names, profiles=of_fleet(names))


def uneven(**changes: Any) -> Fleet:
    """Two fast devices with both sensors, a slow one with one of them."""
    made = fleet(THREE, SUITES, **changes)
    return devices(made, "relief-full", "relief-full", "relief-low")


def card(id: int, modalities: tuple[str, ...], **params: int) -> Card:
    shapes = {path.replace("__", "."): (size,) for path, size in params.items()}
    return Card(id, modalities, shapes, 1, dict.fromkeys(modalities, 1), {})


def state(**params: list[float]) -> State:
    return State({path.replace("__", "."): torch.tensor(v) for path, v in params.items()})


def test_one_round_by_hand() -> None:
    """One gradient step per client written out; then every path's plain mean over its holders, but
    of the fusion's bias (B) by 2, 2 and 1 modalities."""
    game = play(fleet(THREE, SUITES), Relief(lr=0.5))
    w = {}
    for i in range(3):
        client, model = starting(game, i)
        w[i] = descend(model, batches(client), 0.5)
    expected = {}
    for path in set().union(*w.values()):
        holders = [i for i in range(3) if path in w[i]]
        shares = [len(SUITES[i]) if path == "fusion.shared.bias" else 1 for i in holders]
        weighted = [s / sum(shares) * w[i][path] for s, i in zip(shares, holders, strict=True)]
        expected[path] = torch.stack(weighted).sum(0)
    assert near(game.server.w, expected)
    for group, members in groups(expected).items():  # d_j of Equation 5
        held = [torch.cat([w[i][p].flatten() for p in members]) for i in w if members[0] in w[i]]
        stacked = torch.stack(held)
        d = (stacked - stacked.mean(0)).square().sum(1).mean()
        assert float(game.server.dbar[group]) == pytest.approx(float(d), rel=1e-4)


def test_weights_of_b_by_hand() -> None:
    """Equation 4 with 3 and 1 modalities: (3 * 4 + 1 * 8) / 4; a block is the mean of its holders;
    who did not train a group has no say in it."""
    server = Server(
        state(fusion__shared__bias=[0.0], fusion__blocks__a__weight=[0.0], head__out__bias=[7.0]),
        State(), torch.tensor([3, 2]), 0,
    )  # fmt: skip
    ups = Replies(
        [
            (
                card(0, ("a", "b", "c"), fusion__shared__bias=1, fusion__blocks__a__weight=1),
                Up(state(fusion__shared__bias=[4.0], fusion__blocks__a__weight=[1.0])),
            ),
            (
                card(1, ("a",), fusion__shared__bias=1, fusion__blocks__a__weight=1),
                Up(state(fusion__shared__bias=[8.0], fusion__blocks__a__weight=[3.0])),
            ),
        ]
    )
    after = Relief().aggregate(server, ups)
    assert float(after.w["fusion.shared.bias"]) == 5.0
    assert float(after.w["fusion.blocks.a.weight"]) == 2.0
    assert float(after.w["head.out.bias"]) == 7.0
    assert float(after.dbar["fusion.blocks.a"]) == 1.0  # mean of (1 - 2)^2 and (3 - 2)^2
    assert float(after.dbar["fusion.shared"]) == 4.0  # around the plain mean 6
    assert "head.out" not in after.dbar


def test_without_cohorts_who_did_not_train_counts_as_unmoved() -> None:
    """V2: one of two devices moved the block from 1 to 5, so the mean over both is 3."""
    server = Server(state(fusion__blocks__a__weight=[1.0]), State(), torch.tensor([1, 1]), 0)
    ups = Replies([(card(0, ("a",)), Up(state(fusion__blocks__a__weight=[5.0]))),
                   (card(1, ("a",)), Up(State()))])  # fmt: skip
    after = Relief(cohorts=False).aggregate(server, ups)
    assert float(after.w["fusion.blocks.a.weight"]) == 3.0
    assert float(Relief().aggregate(server, ups).w["fusion.blocks.a.weight"]) == 5.0


def test_divergence_is_smoothed_with_gamma_on_the_new_value() -> None:
    method, server = (
        Relief(gamma=0.9),
        Server(state(head__out__bias=[0.0]), State(), torch.ones(2), 0),
    )
    found = []
    for d in (1.0, 2.0, 3.0):  # two devices at +-d from their mean: d_j = d^2
        ups = [(card(i, ("a",)), Up(state(head__out__bias=[s * d]))) for i, s in enumerate((1, -1))]
        server = method.aggregate(server, Replies(ups))
        found.append(float(server.dbar["head.out"]))
    assert found == pytest.approx([1.0, 0.9 * 4 + 0.1 * 1, 0.9 * 9 + 0.1 * 3.7])


def test_divergence_per_parameter() -> None:
    server = Server(state(head__out__bias=[0.0, 0.0, 0.0, 0.0]), State(), torch.ones(2), 0)
    ups = Replies(
        [(card(i, ("a",)), Up(state(head__out__bias=[s] * 4))) for i, s in enumerate((1.0, -1.0))]
    )
    assert float(Relief().aggregate(server, ups).dbar["head.out"]) == 4.0
    assert float(Relief(per_param=True).aggregate(server, ups).dbar["head.out"]) == 1.0


def test_the_first_round_trains_everything_and_later_ones_what_the_budget_allows() -> None:
    """The slow device owns 5 groups: at coverage .6 it trains its block and the two groups of
    greatest divergence; the fast ones train all their 8."""
    game = play(uneven(), Relief(lr=0.1), rounds=3)
    assert game.server.k.tolist() == [8, 8, 3]
    assert [len(groups(game.ups[0][i].w)) for i in range(3)] == [8, 8, 5]
    for round in (1, 2):
        assert [len(groups(game.ups[round][i].w)) for i in range(3)] == [8, 8, 3]
        assert "fusion.blocks.a" in groups(game.ups[round][2].w)
    before = play(uneven(), Relief(lr=0.1), rounds=1).server.dbar
    rest = sorted((g for g in GROUPS if g != "fusion.blocks.a"), key=lambda g: -float(before[g]))
    assert set(groups(game.ups[1][2].w)) == {"fusion.blocks.a", *rest[:2]}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_what_is_not_assigned_keeps_its_bits(optimizer: Any) -> None:
    """Also with Adam and with weight decay, which would move a parameter without a gradient."""
    method = Relief(optimizer=optimizer, lr=0.05, weight_decay=0.1, epochs=3)
    game = play(uneven(), method, rounds=2)
    trained, started = game.models[2], game.downs[1][2].w
    assigned = set(game.ups[1][2].w)
    assert len(groups(assigned)) == 3
    for path, before in started.items():
        moved = not torch.equal(trained[path], before)
        assert moved == (path in assigned), path


def test_bytes_are_those_of_the_formula() -> None:
    """Down 4 sum over G_n + ceil(|G_n| / 8), up 4 sum over S_n."""
    run = ran(uneven(), Relief(lr=0.1), rounds=2)
    links = run.links()
    last = links[links["round"] == 2]
    for i, trained in enumerate([8, 8, 3]):
        sizes = {g: sum(int(np.prod(run.cards[i].params[p])) for p in ps)
                 for g, ps in groups(run.cards[i].params).items()}  # fmt: skip
        log = run.folder.log().to_pandas()
        mine = log[(log["round"] == 2) & (log["client"] == i)]["name"]
        S_n = [name.removeprefix("trained/") for name in mine if name.startswith("trained/")]
        assert len(S_n) == trained
        down = int(last[last["receiver"] == i]["payload"].sum())
        assert down == 4 * sum(sizes.values()) + ceil(len(sizes) / 8)
        assert int(last[last["sender"] == i]["payload"].sum()) == 4 * sum(sizes[g] for g in S_n)


def test_a_fleet_of_full_devices_that_train_everything_is_uniform_fedavg() -> None:
    same_sensors = fleet(THREE, [FULL] * 3)
    relief = play(same_sensors, Relief(elastic=False, lr=0.1), rounds=3).server.w
    assert same(relief, play(same_sensors, FedAvg(uniform=True, lr=0.1), rounds=3).server.w)
    covered = play(same_sensors, Relief(coverage=1.0, lr=0.1), rounds=3).server.w
    assert same(covered, relief)


def test_constructed_zeros_dilute_a_block_by_its_share_of_holders() -> None:
    """FedAvg on the whole model moves the block of b |C|/N as far as its cohort."""
    three = fleet(THREE, SUITES)
    whole = play(three, FedAvg(whole=True, uniform=True, lr=0.1))
    cohort = play(three, Relief(lr=0.1))
    start = whole.bound.params
    for path in ("fusion.blocks.b.weight", "encoders.b.conv1.weight", "encoders.b.conv2.bias"):
        diluted = whole.server.w[path] - start[path]
        torch.testing.assert_close(
            diluted, 2 / 3 * (cohort.server.w[path] - start[path]), rtol=1e-4, atol=1e-7
        )
    assert apart(whole.server.w, start) > 1e-3


def test_an_absent_branch_has_no_gradient_unless_zeros_are_fed() -> None:
    """And where the paper's interference comes from: biases make something of zeros."""
    for mode, expected in (("feature", False), ("input_zero", True)):
        bound = FleetClients(fleet(THREE, SUITES), FedAvg(whole=True, mask_mode=mode))  # type: ignore[arg-type]
        client, model = starting(bound, 2)
        found = slopes(model, task_loss(model, batches(client)[0]))
        absent = [p for p in found if p.startswith(("encoders.b", "fusion.blocks.b"))]
        assert absent
        assert any(bool(found[p].any()) for p in absent) == expected
        assert any(bool(found[p].any()) for p in found if p not in absent)


def test_random_allocation_has_the_same_budget_and_no_mandatory_block() -> None:
    game = play(uneven(), Relief(allocation="random", lr=0.1), rounds=12)
    chosen = [frozenset(groups(ups[2].w)) for ups in game.ups[1:]]
    assert {len(some) for some in chosen} == {3}
    assert len(set(chosen)) > 1
    assert any("fusion.blocks.a" not in some for some in chosen)


def test_without_a_mandatory_set_a_budget_has_no_floor_but_one_group() -> None:
    """The slow device has both sensors. With the floor the least target leaves it its two blocks,
    without it the group of greatest divergence, whichever that is."""
    slow = devices(fleet(THREE, (FULL, FULL, FULL)), "relief-full", "relief-full", "relief-low")
    budgets = {}
    for mandatory in (True, False):
        method = Relief(coverage=0.0, mandatory=mandatory, lr=0.1)
        game = play(slow, method, rounds=2)
        budgets[mandatory] = game.server.k.tolist()
        trained = list(groups(game.ups[1][2].w))
        if mandatory:
            assert trained == ["fusion.blocks.a", "fusion.blocks.b"]
        else:
            before = play(slow, method, rounds=1).server.dbar
            assert trained == [max(before, key=lambda j: float(before[j]))]
    assert budgets == {True: [8, 8, 2], False: [8, 8, 1]}


def test_a_target_that_one_group_does_not_fit_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "communis"):
        bound = FleetClients(uneven(), Relief())
        assert Relief(seconds=1e-12, mandatory=False).start_server(bound).k.tolist() == [1, 1, 1]
    assert "clients [0, 1, 2] need longer than 1e-12 s for one group alone" in caplog.text


def test_equal_devices_train_everything_in_step_with_coverage() -> None:
    """Without profiles all are alike; time differs by windows and groups only."""
    game = play(mixed(), Relief(coverage=1.0), rounds=2)
    assert [len(groups(game.ups[1][i].w)) for i in range(3)] == [8, 5, 5]


def test_the_literal_rule_leaves_the_mandatory_blocks_alone() -> None:
    """coverage = 0: the slowest device's budget is its own blocks; the others get what fits."""
    bound = FleetClients(uneven(), Relief(coverage=0.0))
    assert bound.method.start_server(bound).k.tolist()[2] == 1


def test_a_device_that_cannot_meet_the_target_trains_its_blocks_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    method = Relief(seconds=1e-12)
    with caplog.at_level(logging.WARNING, "communis"):
        bound = FleetClients(uneven(), method)
        assert method.start_server(bound).k.tolist() == [2, 2, 1]
    assert "clients [0, 1, 2] need longer than 1e-12 s for their fusion blocks" in caplog.text
    assert Relief(seconds=1e9).start_server(bound).k.tolist() == [8, 8, 5]


def test_a_device_that_needs_longer_than_its_share_of_the_forward_pass_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its one block takes the whole forward pass besides, though k_n is reckoned with a share."""
    bound = FleetClients(uneven(), Relief())
    pace, windows = bound.pace(bound.cards[2]), bound.cards[2].samples
    needs = windows * (pace.forward + pace.group)
    for seconds, told in ((0.99 * needs, True), (1.01 * needs, False)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "communis"):
            Relief(seconds=seconds).start_server(bound)
        assert ("clients [2] need longer" in caplog.text) == told


def test_seconds_need_devices() -> None:
    with pytest.raises(CommunisError, match="seconds needs a device in every role"):
        play(fleet(THREE, SUITES), Relief(seconds=1.0))


def test_budgets_go_by_the_windows_that_are_really_passed() -> None:
    """With one step a round, 2 and 6 windows take the same time; without epochs nothing does."""
    one_step = devices(fleet(((0, 1), (0, 1, 2, 0, 1, 2)), [ACC] * 2), *["relief-low"] * 2)
    bound = FleetClients(one_step, Relief())
    assert Relief(max_steps=1, batch=2).start_server(bound).k.tolist() == [3, 3]
    assert Relief().start_server(bound).k.tolist() == [5, 3]
    assert Relief(epochs=0).start_server(bound).k.tolist() == [5, 5]


def test_a_client_without_windows_sets_no_target() -> None:
    idle = devices(fleet((*THREE, ()), (*SUITES, ACC)), *["relief-full"] * 3, "relief-low")
    busy = devices(fleet(THREE, SUITES), *["relief-full"] * 3)
    alone = Relief().start_server(FleetClients(busy, Relief())).k.tolist()
    assert Relief().start_server(FleetClients(idle, Relief())).k.tolist()[:3] == alone


def test_a_modality_with_one_holder_counts_as_the_median_and_trains() -> None:
    single = devices(fleet(THREE, (FULL, ACC, ACC)), "relief-low", "relief-full", "relief-full")
    game = play(single, Relief(lr=0.1), rounds=3)
    assert "fusion.blocks.b" not in game.server.dbar
    assert "encoders.b.conv1" not in game.server.dbar
    assert all("fusion.blocks.b.weight" in ups[0].w for ups in game.ups)
    assert apart(game.server.w, game.bound.params) > 0


def test_an_empty_cohort_leaves_its_groups_as_they_are() -> None:
    """In round 2 nobody with sensor b takes part."""
    game = play(fleet(THREE, SUITES), Relief(lr=0.1), cohorts=[[0, 1, 2], [2]])
    first = play(fleet(THREE, SUITES), Relief(lr=0.1)).server
    for path in (p for p in first.w if ".b." in p):
        assert torch.equal(game.server.w[path], first.w[path])
    assert {g: float(d) for g, d in game.server.dbar.items()} == {
        g: float(d)
        for g, d in first.dbar.items()  # one uploader: nothing to disagree with
    }
    assert not torch.equal(game.server.w["head.out.weight"], first.w["head.out.weight"])


def test_the_run_does_the_same() -> None:
    method = Relief(lr=0.5, batch=2)
    assert same(ran(uneven(), method, rounds=3).server.w, play(uneven(), method, rounds=3).server.w)


def test_notes_tell_budgets_and_divergence() -> None:
    run = ran(uneven(), Relief(lr=0.1), rounds=2)
    log = run.folder.log().to_pandas()
    notes = log[(log["client"] == -1) & (log["round"] == 2)].set_index("name")["value"]
    assert notes["budget/2"] == 3
    assert notes["divergence/fusion.blocks.a"] == float(run.server.dbar["fusion.blocks.a"])


def test_half_a_group_is_refused() -> None:
    bound = FleetClients(uneven(), Relief())
    half = State({"head.out.bias": bound.params["head.out.bias"]})
    with pytest.raises(CommunisError, match=r"group head\.out is incomplete"):
        Up(half).check(bound.cards[0], Relief())
    Up(State()).check(bound.cards[0], Relief())


def test_a_fusion_without_blocks_is_refused() -> None:
    attention = replace(SMALL, fusion="attention")
    with pytest.raises(CommunisError, match="a block per modality"):
        play(fleet(THREE, SUITES, models=(attention,)), Relief())


@pytest.mark.parametrize(
    "wrong", [{"coverage": 1.1}, {"gamma": 0.0}, {"seconds": -1.0}, {"overhead": 1.0}]
)
def test_bad_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(CommunisError):
        Relief(**wrong)  # type: ignore[arg-type]


def test_lora_backbone_runs() -> None:
    """A is mandatory, B is shared, and frozen weights never travel."""
    kind = Architecture("tiny", width=32, fusion="lora", embedding=64, weights="random")
    game = play(fleet(THREE, SUITES, models=(kind,)), Relief(lr=0.1), rounds=2)
    assert {"fusion.blocks.a.lora_A", "fusion.shared.lora_B"} <= paths(game.ups[0][0])
    assert not any(p.endswith(("q.weight", "fusion.blocks.a.weight")) for p in game.server.w)
    assert values(game.bound.client(0, 1).model).keys() > game.server.w.keys()
