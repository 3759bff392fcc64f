"""Attacks: each by value, by the right clients, from the right round, and on nothing else."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from communis import Client, CommunisError, Streams
from communis.core.contract import UpMessage
from communis.core.samples import TensorSamples
from communis.core.settings import SchemaError, build
from communis.core.tasks import Classification, Counting, Localisation, Several
from communis.exchange import wire
from communis.fleet.attack import SCALES, Attack, AttackConfig, common, first_value, half_turn
from communis.methods.fedavg import FedAvg
from communis.methods.fednova import FedNova
from communis.methods.fedproto import FedProto
from communis.methods.pmcmfl import PmcmFL
from communis.methods.scaffold import Scaffold
from tests.unit import small

CHANNELS = {"a": 3, "b": 2}


def client(id: int = 0, round: int = 1, **changes: Any) -> Client:
    """One of three clients with four training, one validation and one test window each."""
    data = small.windows([0, 0, 0, 0, 1, 2] * 3, np.repeat(range(3), 6), CHANNELS, **changes)
    return small.bound(data).client(id, round)


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def sent(attack: Attack, up: dict[str, Tensor], **more: Any) -> dict[str, Tensor]:
    """What attacker 0 sends in round 1."""
    return attack.message(
        more.get("client", client()), up, more.get("down", {}), more.get("first", {})
    )


def all_rows(samples: Any) -> Any:
    return samples.batch(torch.arange(len(samples)))


# Who attacks


def test_nobody_attacks_by_default() -> None:
    assert AttackConfig().make(14, Streams(0)) == Attack()
    assert AttackConfig(kind="none", count=4).make(14, Streams(0)) == Attack()
    assert AttackConfig(kind="gaussian", count=0).make(14, Streams(0)) == Attack()
    honest, up = client(), {"x": small.random(4)}
    assert Attack().spoiled(honest) is honest
    assert Attack().message(honest, up, {}, {}) is up


@pytest.mark.parametrize("seed", range(5))
def test_few_attackers_are_among_many(seed: int) -> None:
    drawn = [
        AttackConfig(kind="shift", count=n).make(14, Streams(seed)).attackers for n in (2, 4, 6)
    ]
    assert [len(set(d)) for d in drawn] == [2, 4, 6]
    assert set(drawn[0]) < set(drawn[1]) < set(drawn[2]) <= set(range(14))
    assert all(list(d) == sorted(d) for d in drawn)


def test_attackers_depend_on_the_seed_and_on_nothing_else() -> None:
    config = AttackConfig(kind="shift", count=4)
    drawn = {config.make(14, Streams(seed)).attackers for seed in range(20)}
    assert len(drawn) > 10
    assert (
        config.make(14, Streams(3)).attackers
        == replace(config, kind="label_flip").make(14, Streams(3)).attackers
    )


def test_named_attackers_are_sorted_and_an_attack_can_travel() -> None:
    attack = AttackConfig(kind="sign_flip", clients=(5, 1)).make(14, Streams(0))
    assert attack == Attack("sign_flip", (1, 5))
    assert pickle.loads(pickle.dumps(attack)) == attack
    assert hash(attack) == hash(Attack("sign_flip", (1, 5), 5.0))


def test_start_and_scale() -> None:
    attack = Attack("gaussian", (1, 3), start=5)
    assert attack.scale == SCALES["gaussian"] == 10
    assert Attack("gaussian", (1,), scale=2.5).scale == 2.5
    asked = [(c, r) for c in range(5) for r in (4, 5, 6) if attack.attacks(c, r)]
    assert asked == [(1, 5), (1, 6), (3, 5), (3, 6)]
    up = {"x": small.random(4)}
    assert attack.message(client(1, 4), up, {}, {}) is up
    assert not torch.equal(attack.message(client(1, 5), up, {}, {})["x"], up["x"])
    stuck = Attack("stuck_sensor", (1,), start=5)
    early = client(1, 4)
    assert stuck.spoiled(early) is early
    assert stuck.spoiled(client(1, 5)).train is not early.train


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"kind": "gauss"}, "attack.kind: 'gauss' is not one of"),
        ({"kind": "shift", "count": 2, "clients": [1]}, "give only one"),
        ({"kind": "shift", "count": -1}, "count must be 0 or more, got -1"),
        ({"kind": "shift", "scale": -2.0}, "scale must be 0 .* got -2.0"),
        ({"kind": "shift", "start": 0}, "start must be a round"),
        ({"kind": "replay", "scale": 2.0}, "'replay' has no scale"),
        ({"kind": "shift", "modality": "acc"}, "'shift' attacks no sensor"),
    ],
)
def test_settings_that_cannot_be(table: dict[str, Any], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        build(AttackConfig, table, "attack")


def test_an_unknown_kind_is_refused_without_a_file_too() -> None:
    with pytest.raises(CommunisError, match="no kind 'gauss'; there are none, gaussian"):
        Attack("gauss")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (AttackConfig(kind="shift", count=14), "14 attackers in a fleet of 14.*at most 13"),
        (AttackConfig(kind="shift", count=20), "20 attackers in a fleet of 14"),
        (AttackConfig(kind="shift", clients=tuple(range(14))), "14 attackers in a fleet of 14"),
        (AttackConfig(kind="shift", clients=(3, 14)), r"names \[14\].*clients 0 to 13"),
        (AttackConfig(kind="shift", clients=(-1,)), r"names \[-1\]"),
    ],
)
def test_settings_that_do_not_suit_the_fleet(config: AttackConfig, text: str) -> None:
    with pytest.raises(CommunisError, match=text):
        config.make(14, Streams(0))


def test_half_or_more_is_said_to_be_hopeless(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "communis"):
        AttackConfig(kind="shift", count=6).make(14, Streams(0))
        assert not caplog.records
        attack = AttackConfig(kind="shift", count=7).make(14, Streams(0))
    assert len(attack.attackers) == 7
    assert "7 of 14 clients attack: no rule can help" in caplog.text


def test_what_the_fleet_must_have(caplog: pytest.LogCaptureFixture) -> None:
    suites, task = [("acc",), ("acc", "gyro"), ("gyro",)], Classification(3)
    Attack("stuck_sensor", (1,), modality="gyro").check(suites, task)
    assert not caplog.records
    with pytest.raises(CommunisError, match=r"modality = 'hr', but no client has it.*acc, gyro"):
        Attack("stuck_sensor", (1,), modality="hr").check(suites, task)
    with caplog.at_level(logging.WARNING, "communis"):
        Attack("stuck_sensor", (0,), modality="gyro").check(suites, task)
    assert "no attacker has gyro" in caplog.text


def test_labels_are_flipped_only_where_there_are_nothing_but_classes() -> None:
    attack = Attack("label_flip", (0,))
    attack.check([("a",)], Classification(3))
    attack.check([("a",)], Counting(5))
    for task in (
        Localisation(2),
        Several(("what", "where"), (Classification(3), Localisation(2))),
    ):
        with pytest.raises(CommunisError, match=f"got {type(task).__name__}"):
            attack.check([("a",)], task)
    Attack("gaussian", (0,)).check([("a",)], Localisation(2))


# Messages


def test_gaussian_noise_has_the_size_of_the_truth() -> None:
    up = {"small": 0.01 * small.random(200, 100), "large": 100 * small.random(200, 100, seed=1)}
    lies = sent(Attack("gaussian", (0,), scale=3.0), up)
    for name, honest in up.items():
        assert rms(lies[name]) == pytest.approx(3 * rms(honest), rel=0.02)
        assert abs(float(lies[name].mean())) < 0.05 * rms(lies[name])
        both = torch.stack([honest.flatten(), lies[name].flatten()])
        assert abs(float(torch.corrcoef(both)[0, 1])) < 0.03
    assert not torch.equal(lies["small"] / rms(lies["small"]), lies["large"] / rms(lies["large"]))


def test_noise_differs_by_client_and_round_but_not_by_run() -> None:
    attack, up = Attack("gaussian", (0, 1)), {"x": small.random(8)}
    lies = [sent(attack, up, client=client(c, r))["x"] for c, r in ((0, 1), (1, 1), (0, 2))]
    assert not any(torch.equal(lies[0], other) for other in lies[1:])
    assert torch.equal(lies[0], sent(attack, up)["x"])


def test_sign_flip() -> None:
    up = {"x": small.random(3, 4)}
    assert torch.equal(sent(Attack("sign_flip", (0,)), up)["x"], -5 * up["x"])
    assert torch.equal(sent(Attack("sign_flip", (0,), scale=1.0), up)["x"], -up["x"])


def test_what_came_down_under_the_same_name_is_not_part_of_the_message() -> None:
    down = {"w/v": small.random(6, 50), "w/u": small.random(2, 2)}
    change = 0.01 * small.random(6, 50, seed=1)
    up = {"w/v": down["w/v"] + change, "w/u": small.random(3), "d": small.random(4)}
    change = up["w/v"] - down["w/v"]  # as rounded
    flipped = sent(Attack("sign_flip", (0,)), up, down=down)
    torch.testing.assert_close(flipped["w/v"], down["w/v"] - 5 * change)
    assert torch.equal(flipped["w/u"], -5 * up["w/u"])  # of another shape: another thing
    assert torch.equal(flipped["d"], -5 * up["d"])
    noisy = sent(Attack("gaussian", (0,)), up, down=down)
    assert rms(noisy["w/v"] - down["w/v"]) == pytest.approx(10 * rms(change), rel=0.1)
    shifted = sent(Attack("shift", (0,)), up, down=down)
    assert rms(shifted["w/v"] - up["w/v"]) == pytest.approx(10 * rms(change), rel=1e-4)


def test_colluders_push_every_row_the_same_way() -> None:
    attack = Attack("shift", (0, 1), scale=4.0)
    many, few = {"u": small.random(12, 16)}, {"u": 3 * small.random(5, 16, seed=1)}
    pushed = [
        sent(attack, up, client=client(c, r))["u"] - up["u"]
        for up, c, r in ((many, 0, 1), (few, 1, 1), (few, 1, 9))
    ]
    way = common("u", 16, Streams(0)).float()
    assert rms(way) == pytest.approx(1)
    for push, honest in zip(pushed, (many, few, few), strict=True):
        torch.testing.assert_close(push, (4 * rms(honest["u"]) * way).expand_as(push))
    assert not torch.allclose(way, common("v", 16, Streams(0)).float())
    assert not torch.allclose(way, common("u", 16, Streams(1)).float())


def test_replay_sends_the_first_message_as_a_whole() -> None:
    attack = Attack("replay", (0,), start=2)
    first = {"u": small.random(2, 4), "counts": torch.tensor([3.0, 1.0])}
    later = {"u": small.random(3, 4, seed=1), "counts": torch.tensor([1.0, 1.0, 2.0])}
    assert sent(attack, later, client=client(0, 1), first=first) is later
    for round in (2, 7):
        again = sent(attack, later, client=client(0, round), first=first, down=first)
        assert again.keys() == first.keys()
        assert all(again[name] is first[name] for name in first)
    alone = sent(attack, later, client=client(0, 2))  # this is the first one
    assert torch.equal(alone["u"], later["u"])


@pytest.mark.parametrize("kind", SCALES)
def test_counts_masks_and_single_numbers_stay(kind: Any) -> None:
    up = {
        "u": small.random(3, 4),
        "counts": torch.tensor([3.0, 0.0, 12.0]),
        "mask": torch.tensor([True, False, True]),
        "bits": torch.tensor([7, 1], dtype=torch.uint8),
        "steps": torch.tensor(5),
        "a_1": torch.tensor(4.7, dtype=torch.float64),
        "none": torch.empty(0, 4),
    }
    kept = {name: tensor.clone() for name, tensor in up.items()}
    lies = sent(Attack(kind, (0,)), up)
    assert list(lies) == list(up)
    assert not torch.equal(lies["u"], up["u"])
    assert all(small.same_bits(up[name], kept[name]) for name in up)  # nothing is written into
    assert all(lies[name] is up[name] for name in up if name != "u")


@pytest.mark.parametrize("kind", SCALES)
def test_rows_that_say_nothing_stay_zero_and_do_not_count(kind: Any) -> None:
    said = small.random(3, 8)
    rows = [1, 4, 5]
    wide = torch.zeros(7, 8)
    wide[rows] = said
    lies = sent(Attack(kind, (0,)), {"sums": wide})["sums"]
    assert not lies[[0, 2, 3, 6]].any()
    assert (lies[rows] != said).any(1).all()
    if kind != "gaussian":
        torch.testing.assert_close(lies[rows], sent(Attack(kind, (0,)), {"sums": said})["sums"])


@pytest.mark.parametrize("kind", SCALES)
def test_messages_stay_finite(kind: Any) -> None:
    most = torch.finfo(torch.float32).max
    up = {
        "zero": torch.zeros(3, 4),
        "still": small.random(3, 4),
        "huge": torch.tensor([0.5, most, -most]),
        "half": torch.tensor([0.5, 6e4, -6e4], dtype=torch.float16),
    }
    lies = sent(Attack(kind, (0,)), up, down={"still": up["still"]})
    assert all(bool(torch.isfinite(lie).all()) for lie in lies.values())
    assert {name: lie.dtype for name, lie in lies.items()} == {n: t.dtype for n, t in up.items()}
    assert torch.equal(lies["zero"], up["zero"])
    assert torch.equal(lies["still"], up["still"])  # nothing was learnt: nothing to turn round


def test_honest_clients_are_untouched() -> None:
    up = {"x": small.random(4)}
    for kind in ("gaussian", "replay", "label_flip", "axis_flip"):
        attack = Attack(kind, (1,))  # type: ignore[arg-type]
        honest = client(0)
        assert attack.spoiled(honest) is honest
        assert attack.message(honest, up, {}, {"x": torch.zeros(4)}) is up
    assert Attack("label_flip", (0,)).message(client(), up, {}, {}) is up
    attacker = client()
    assert Attack("gaussian", (0,)).spoiled(attacker) is attacker


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize(
    "method",
    [FedAvg(), FedNova(momentum=0.9), FedProto(), PmcmFL(), Scaffold()],
    ids=lambda method: type(method).__name__,
)
def test_lies_pass_the_checks_of_methods(method: Any, kind: Any) -> None:
    """An attacker that is refused attacks nobody. Of three classes client 0 has two."""
    data = small.windows([0] * 8, channels=CHANNELS, target=np.array([0, 2] * 4))
    fleet = small.bound(data, method)
    who = fleet.client(0, 1, fresh=True)
    down = method.down(method.start_server(fleet), who.card)
    state = method.adopt(who, method.start_client(who), down)
    up = wire.flatten(method.local(who, state, down)[1])
    lies = Attack(kind, (0,)).message(who, up, wire.flatten(down), {})
    changed = [name for name in up if not torch.equal(lies[name], up[name])]
    assert len(changed) > len(up) / 3
    payload = wire.unflatten(dict(lies), wire.payload_types(type(method))[3])
    wire.check(wire.Received(payload, lies), who.card, method.sends(who.card))
    if isinstance(payload, UpMessage):
        payload.check(who.card, method)


# Data


def test_labels_are_mirrored_in_training_alone() -> None:
    honest = client()
    flipped = Attack("label_flip", (0,)).spoiled(honest)
    assert torch.equal(flipped.train.target, 2 - honest.train.target)
    some = torch.tensor([3, 0])
    mine, theirs = flipped.train.batch(some), honest.train.batch(some)
    assert torch.equal(mine.target, 2 - theirs.target)
    assert mine.target.dtype == torch.int64
    assert all(torch.equal(mine.inputs[m], theirs.inputs[m]) for m in CHANNELS)
    assert flipped.val is honest.val
    assert flipped.test is honest.test
    assert flipped.model is honest.model
    assert flipped.log is honest.log


def test_a_stuck_sensor_shows_its_first_training_value_everywhere() -> None:
    honest = client()
    stuck = Attack("stuck_sensor", (0,), modality="a").spoiled(honest)
    held = honest.train.batch(torch.tensor([0])).inputs["a"][0, :, 0]
    for split in ("train", "val", "test"):
        mine, theirs = all_rows(getattr(stuck, split)), all_rows(getattr(honest, split))
        assert torch.equal(mine.inputs["a"], held[None, :, None].expand(len(mine), 3, 12))
        assert torch.equal(mine.inputs["b"], theirs.inputs["b"])
        assert torch.equal(mine.target, theirs.target)
    everything = all_rows(Attack("stuck_sensor", (0,)).spoiled(honest).test)
    assert all((x == x[:1, :, :1]).all() for x in everything.inputs.values())


def test_a_device_worn_the_wrong_way_round() -> None:
    honest = client()
    worn = Attack("axis_flip", (0,)).spoiled(honest)
    for split in ("train", "val", "test"):
        mine, theirs = all_rows(getattr(worn, split)), all_rows(getattr(honest, split))
        a, b = theirs.inputs["a"], theirs.inputs["b"]
        assert torch.equal(mine.inputs["a"], torch.stack([-a[:, 0], -a[:, 1], a[:, 2]], 1))
        assert torch.equal(mine.inputs["b"], torch.stack([-b[:, 0], b[:, 1]], 1))
    assert half_turn(torch.ones(1, 6, 1)).flatten().tolist() == [-1, -1, 1, -1, -1, 1]
    assert half_turn(torch.ones(1, 1, 2, 2)).flatten().tolist() == [-1] * 4
    x = small.random(2, 3, 5)
    assert torch.equal(half_turn(half_turn(x)), x)  # a rotation by 180 degrees, done twice


def test_wearing_it_wrong_is_the_same_before_and_after_z_scores() -> None:
    data = small.windows([0, 0, 0, 0, 1, 2] * 3, np.repeat(range(3), 6), CHANNELS)
    turned = {m: half_turn(torch.from_numpy(x)).numpy() for m, x in data.inputs.items()}
    before = small.bound(replace(data, inputs=turned)).client(0, 1)
    after = Attack("axis_flip", (0,)).spoiled(client())
    for m in CHANNELS:
        assert torch.allclose(all_rows(before.test).inputs[m], all_rows(after.test).inputs[m])


@pytest.mark.parametrize("kind", ["label_flip", "stuck_sensor", "axis_flip"])
def test_spoiled_samples_lack_what_they_lacked(kind: Any) -> None:
    present = np.ones(18, bool)
    present[[0, 1, 4]] = False  # of client 0: two training windows and the one of validation
    honest = client(present={"a": present})
    spoiled = Attack(kind, (0,)).spoiled(honest)
    for split in ("train", "val", "test"):
        mine, theirs = getattr(spoiled, split), getattr(honest, split)
        assert len(mine) == len(theirs)
        assert mine.missing == theirs.missing
        assert len(mine.target) == len(theirs)
        found, known = all_rows(mine), all_rows(theirs)
        assert all(torch.equal(found.present[m], known.present[m]) for m in CHANNELS)
        assert not found.inputs["a"][~found.present["a"]].any()
    if kind == "stuck_sensor":  # what it shows is the first it saw
        third = all_rows(honest.train).inputs["a"][2, :, 0]
        assert torch.equal(all_rows(spoiled.test).inputs["a"][0, :, 7], third)


def test_sensors_that_an_attacker_lacks_or_never_saw_are_left_alone() -> None:
    honest = client()
    assert Attack("axis_flip", (0,), modality="c").spoiled(honest) is honest
    never = np.ones(18, bool)
    never[:4] = False
    blind = client(present={"a": never})
    assert first_value(blind.train, "a") is None
    assert Attack("stuck_sensor", (0,), modality="a").spoiled(blind) is blind


def test_images_and_csi_are_stuck_by_channel() -> None:
    x = small.random(20, 4, 5, 2)  # stored channels-last
    here = torch.arange(20) >= 18  # beyond the first windows that are looked at
    samples = TensorSamples({"csi": x * here[:, None, None, None]}, {"csi": here}, torch.zeros(20))
    held = first_value(samples, "csi")
    assert held is not None
    assert torch.equal(held, x[18, 0, 0])
    honest = client()
    camera = replace(
        honest,
        card=replace(honest.card, modalities=("csi",)),
        train=samples,
        val=samples,
        test=samples,
    )
    shown = all_rows(Attack("stuck_sensor", (0,)).spoiled(camera).test).inputs["csi"]
    assert torch.equal(shown[18:], held[None, :, None, None].expand(2, 2, 4, 5))
    assert not shown[:18].any()


def test_nothing_is_copied_before_it_is_asked_for() -> None:
    class Counted:
        """Samples that count the windows they were asked for."""

        def __init__(self, samples: Any) -> None:
            self.samples, self.asked = samples, 0
            self.target, self.missing = samples.target, samples.missing

        def __len__(self) -> int:
            return len(self.samples)

        def batch(self, indices: Tensor) -> Any:
            self.asked += len(indices)
            return self.samples.batch(indices)

    wide = TensorSamples(
        {"a": small.random(500, 12, 3)},
        {"a": torch.ones(500, dtype=torch.bool)},
        torch.arange(500) % 3,
    )
    for kind in ("label_flip", "stuck_sensor", "axis_flip"):
        counted = [Counted(wide) for _ in range(3)]
        splits = dict(zip(("train", "val", "test"), counted, strict=True))
        card = replace(client().card, modalities=("a",))
        spoiled = Attack(kind, (0,)).spoiled(replace(client(), card=card, **splits))  # type: ignore[arg-type]
        assert sum(c.asked for c in counted) <= 16
        spoiled.train.batch(torch.tensor([7, 9]))
        assert counted[0].asked <= 18
