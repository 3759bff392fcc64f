"""The device clock in a run: the paper's fleet on the paper's shapes, in closed form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, FedAvg, Fleet, Plan, Run, Windows
from communis.core.tasks import Classification
from communis.fleet.availability.online import Online
from communis.fleet.clients import FleetClients
from communis.fleet.device import ClockConfig, of_fleet
from communis.methods.centralized import Centralized
from communis.methods.fedproto import FedProto
from communis.methods.harmony import Harmony
from communis.methods.parts.training import Recipe
from communis.methods.relief import Relief
from communis.models.zoo import Architecture
from tests.unit.small import TINY

CHANNELS = {"acc": 9, "gyro": 9, "heart": 1, "mag": 9}
FULL, TWO, ONE = tuple(CHANNELS), ("acc", "gyro"), ("acc",)
SUITES = [FULL] * 3 + [TWO] * 3 + [ONE] * 2
DEVICES = ["relief-full"] * 3 + ["relief-mid"] * 3 + ["relief-low"] * 2


def pamap2(windows: int = 3, steps: int = 256, mode: str = "flop_prop") -> Fleet:
    """Eight clients with so many training windows and one to test; noise."""
    rng, each = np.random.default_rng(0), windows + 1
    n = 8 * each
    made = Windows(
        inputs={
            m: rng.standard_normal((n, c, steps), dtype=np.float32) for m, c in CHANNELS.items()
        },
        target=rng.integers(0, 12, n),
        owner=np.repeat(np.arange(8), each),
        split=np.tile(np.array([0] * windows + [2], np.int8), 8),
        task=Classification(12),
    )
    return Fleet.of(
        made,
        suites=SUITES,
        models=("lite",),
        devices=DEVICES,
        profiles=of_fleet(DEVICES),
        clock=ClockConfig(mode=mode),  # type: ignore[arg-type]
    )


def second_round(method: Any, fleet: Fleet) -> tuple[float, Run]:
    """The longest time that a device computed in the second round, when budgets are at work."""
    with Run(fleet, method, Plan(rounds=2, workers=1, eval_every=0)) as run:
        list(run)
    clock = run.folder.clock().to_pandas()
    return float(clock[clock["round"] == 2]["compute"].max()), run


@pytest.mark.slow
def test_speedups_of_flop_prop_are_those_of_the_closed_form() -> None:
    """Every device of FedAvg trains 14 groups; the slowest has 5 and trains 3 at coverage .6."""
    fleet = pamap2()
    fedavg, run = second_round(FedAvg(whole=True, uniform=True), fleet)
    v1, _ = second_round(Relief(elastic=False), fleet)
    relief, _ = second_round(Relief(), fleet)
    assert fedavg / v1 == pytest.approx(3 / (1 + 2 * 5 / 14))  # 1.75
    assert fedavg / relief == pytest.approx(3 / (1 + 2 * 3 / 14))  # 2.10
    assert run.history[1].bytes_down == run.history[1].bytes_up == 8 * 4 * 80_268


@pytest.mark.slow
def test_what_a_method_adds_does_not_make_the_groups_of_the_model_cheaper() -> None:
    """Harmony adds four classifiers to the 14 groups. The slowest device trains both convolutions
    and a classifier in the first stage, then its own five groups, as V1 does: 1 + 2 * 3/14 and
    1 + 2 * 5/14 forward passes."""
    fleet = pamap2()
    fedavg, _ = second_round(FedAvg(whole=True, uniform=True), fleet)
    v1, _ = second_round(Relief(elastic=False), fleet)
    fused, run = second_round(Harmony(stage1=1), fleet)
    assert fused == pytest.approx(v1)
    assert fedavg / fused == pytest.approx(3 / (1 + 2 * 5 / 14))  # 1.75
    clock = run.folder.clock().to_pandas()
    first = float(clock[clock["round"] == 1]["compute"].max())
    assert fedavg / first == pytest.approx(3 / (1 + 2 * 3 / 14))  # 2.10


@pytest.mark.parametrize("mode", ["flop_prop", "exact", ""])
def test_the_pace_of_a_device_is_the_same_for_every_method(mode: str) -> None:
    """Also where no device is known; with exact, groups share what the bare model costs."""
    fleet = pamap2(mode=mode or "flop_prop")
    fleet = fleet if mode else replace(fleet, devices=(), profiles={})
    plain, equipped = (FleetClients(fleet, method) for method in (Relief(), Harmony()))
    for one, other in zip(plain.cards, equipped.cards, strict=True):
        assert equipped.pace(other) == plain.pace(one)


def test_bytes_of_the_paper_fleet() -> None:
    """What each device type owns by hand: 321,072, 166,448 and 86,576 bytes."""
    _, run = second_round(Relief(elastic=False), pamap2())
    links = run.links()
    up = links[(links["round"] == 2) & (links["receiver"] == -1)].set_index("sender")["payload"]
    assert up.tolist() == [321_072] * 3 + [166_448] * 3 + [86_576] * 2
    assert up.mean() / (4 * 80_268) == pytest.approx(0.637, abs=5e-4)


@pytest.mark.slow
def test_speedups_of_exact_are_larger_because_absent_branches_cost_nothing() -> None:
    """The slowest device has one of four sensors, so about a quarter of the work."""
    fleet = pamap2(mode="exact")
    fedavg, _ = second_round(FedAvg(whole=True, uniform=True), fleet)
    v1, _ = second_round(Relief(elastic=False), fleet)
    relief, _ = second_round(Relief(), fleet)
    assert fedavg / v1 == pytest.approx(3.86, abs=0.005)
    assert fedavg / relief > fedavg / v1


def test_exact_goes_by_which_groups_are_trained() -> None:
    """Both convolutions of the slowest device and its block, or only what lies behind them."""
    fleet = pamap2(mode="exact")
    whole, _ = second_round(FedAvg(whole=True, uniform=True), fleet)
    bound = FleetClients(fleet, FedAvg())
    found = []
    for layers in (("conv1", "conv2", "blocks"), ("blocks", "shared", "head")):
        client = bound.client(7, 1, fresh=True)
        trained = [p for p in client.card.params if any(name in p for name in layers)]
        Recipe().train(client, paths=trained)
        flops = client.log["flops_forward"] + client.log["flops_backward"]
        found.append(whole / (flops / 5e12))
    assert found == pytest.approx([3.9, 10.6], abs=0.05)


def test_the_record_is_the_slowest_device_and_everybodys_joules() -> None:
    _, run = second_round(Relief(), pamap2())
    clock = run.folder.clock().to_pandas()
    for record in run.history:
        mine = clock[clock["round"] == record.round]
        total = mine["compute"] + mine["down"] + mine["up"] + mine["idle"]
        assert total.to_numpy() == pytest.approx(record.virtual_seconds)
        assert mine["idle"].min() == pytest.approx(0, abs=1e-12)
        assert mine["joules"].sum() == pytest.approx(record.virtual_joules)


def test_equal_devices_do_not_wait() -> None:
    fleet = pamap2()
    equal = replace(fleet, suites=[FULL] * 8, devices=["relief-mid"] * 8)
    equal = replace(equal, profiles=of_fleet(equal.devices))
    _, run = second_round(Relief(), equal)
    clock = run.folder.clock().to_pandas()
    assert clock["idle"].to_numpy() == pytest.approx(0, abs=1e-15)


def test_a_round_that_nobody_was_online_for_takes_no_time() -> None:
    fleet = replace(pamap2(), online=Online("iid", share=0.1))
    with Run(fleet, FedAvg(), Plan(rounds=6, workers=1, eval_every=0)) as run:
        list(run)
    empty = [record for record in run.history if not record.cohort]
    assert empty
    assert all(record.virtual_seconds == record.virtual_joules == 0 for record in empty)
    assert all(np.isfinite(record.virtual_seconds) for record in run.history)


def test_the_clock_adds_no_path_that_nobody_owns() -> None:
    """Clients that share no sensor may have encoders of different width; the whole model of each
    kind, which the clock looks at, is nobody's."""
    fleet = pamap2()
    kinds = [TINY] * 4 + [replace(TINY, width=8)] * 4
    apart = replace(fleet, suites=[("acc",)] * 4 + [("gyro",)] * 4, models=kinds)
    for method in (FedAvg(), Relief()):
        timed, plain = (
            FleetClients(apart, method),
            FleetClients(replace(apart, devices=(), profiles={}), method),
        )
        assert timed.clock is not None
        timed.pace(timed.cards[0])
        assert list(timed.params) == list(plain.params)
        assert list(method.start_server(timed).w) == list(plain.params)


def test_what_a_step_costs_does_not_depend_on_who_is_counted_first() -> None:
    """A LoRA model merges its weights once per step, whatever the batch."""
    kind = Architecture("tiny", width=32, fusion="lora", embedding=64, weights="random")
    fleet = replace(pamap2(windows=2, steps=32, mode="exact"), models=(kind,), suites=[ONE] * 8)
    client_of = fleet.clients_of.copy()
    client_of[np.flatnonzero((client_of == 0) & (fleet.windows.split == 0))[1:]] = -1
    fleet = replace(fleet, client_of=client_of)  # the first client has one window, others two
    found = []
    for order in ((0, 1), (1, 0)):
        bound = FleetClients(fleet, FedAvg())
        costs = {i: bound.pace(bound.cards[i]).forward for i in order}
        found.append([costs[0], costs[1]])
    assert found[0] == found[1]


def test_without_devices_there_is_no_clock() -> None:
    fleet = replace(pamap2(), devices=(), profiles={})
    with Run(fleet, FedAvg(), Plan(rounds=1, workers=1, eval_every=0)) as run:
        (record,) = run
    assert np.isnan(record.virtual_seconds)
    assert run.folder.clock().num_rows == 0
    assert run.folder.log().num_rows == 0


def test_pooled_data_has_no_clock() -> None:
    with Run(pamap2(), Centralized(), Plan(rounds=1, workers=1, eval_every=0)) as run:
        (record,) = run
    assert np.isnan(record.virtual_seconds)


def test_devices_for_some_clients_only_are_refused() -> None:
    fleet = replace(pamap2(), devices=["", *DEVICES[1:]])
    with pytest.raises(CommunisError, match="clients 0 have no device profile"):
        Run(fleet, FedAvg(), Plan(rounds=1, workers=1)).close()


def test_passes_that_train_nothing_are_paid_for() -> None:
    """FedProto looks at all windows once more for its prototypes."""
    with Run(pamap2(), FedProto(), Plan(rounds=1, workers=1, eval_every=0)) as run:
        list(run)
    log = run.folder.log().to_pandas()
    windows = log[log["name"] == "windows"].set_index("client")["value"]
    assert windows.tolist() == [6.0] * 8


def test_the_clock_changes_no_bit_of_training() -> None:
    timed, plain = pamap2(mode="exact"), replace(pamap2(), devices=(), profiles={})
    fleets = [replace(f, models=(replace(TINY, norm=True),)) for f in (timed, plain)]
    runs = [second_round(FedAvg(), fleet)[1] if fleet.devices else _ran(fleet) for fleet in fleets]
    for path, tensor in runs[0].server.w.items():
        assert tensor.equal(runs[1].server.w[path])


def _ran(fleet: Fleet) -> Run:
    with Run(fleet, FedAvg(), Plan(rounds=2, workers=1, eval_every=0)) as run:
        list(run)
    return run


def test_a_run_with_a_clock_is_continued_by_its_own_devices_only(tmp_path: Path) -> None:
    plan = Plan(rounds=1, workers=1, eval_every=0)
    with Run(pamap2(), Relief(), plan, folder=tmp_path) as run:
        list(run)
    more = replace(plan, rounds=2)
    with pytest.raises(CommunisError, match="another experiment"):
        Run(pamap2(mode="exact"), Relief(), more, folder=tmp_path)
    with Run(pamap2(), Relief(), more, folder=tmp_path) as run:
        list(run)
    assert run.folder.clock().num_rows == 16
    assert [np.isfinite(r.virtual_seconds) for r in run.history] == [True, True]


def test_the_common_model_is_scored_with_sensors_that_clients_lack() -> None:
    """All sensors, and each alone, on everybody's windows: the same model for all."""
    plan = Plan(rounds=1, workers=1, eval_whole=True)
    with Run(pamap2(), Relief(), plan) as run:
        (record,) = run
    scores = run.scores()
    assert {f"test.accuracy@{view}" for view in ("all", *(f"only_{m}" for m in FULL))} <= set(
        record.scores
    )
    for view in ("all", "only_mag"):
        assert len(scores[scores["metric"] == f"accuracy@{view}"]) == 8
    whole = scores[scores["metric"] == "nll@all"].set_index("client")["value"]
    own = scores[(scores["metric"] == "nll") & scores["own"]].set_index("client")["value"]
    assert whole[:3].tolist() == pytest.approx(own[:3].tolist())  # they own all sensors
    assert (whole[3:] != own[3:]).all()


def test_a_method_with_private_parts_has_no_common_model_to_score() -> None:
    with Run(pamap2(), FedProto(), Plan(rounds=1, workers=1, eval_whole=True)) as run:
        (record,) = run
    assert not any("@all" in key for key in record.scores)
    assert not record.refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "rounds"),
    [
        ({}, []),
        ({"pairs": True}, [2, 3]),
        ({"pairs": True, "pairs_in": "every"}, [1, 2, 3]),
    ],
)
def test_pairs_are_written_in_the_rounds_that_are_asked_for(
    asked: dict[str, Any], rounds: list[int]
) -> None:
    with Run(pamap2(), FedAvg(), Plan(rounds=3, workers=1, eval_every=2, **asked)) as run:
        list(run)
    assert sorted(run.folder.pairs().to_pandas()["round"].unique()) == rounds


def test_pairs_are_of_those_that_have_the_sensor() -> None:
    plan = Plan(rounds=3, workers=1, eval_every=2, pairs=True)
    with Run(pamap2(), FedAvg(whole=True), plan) as run:
        list(run)
    pairs = run.folder.pairs().to_pandas()
    block = pairs[(pairs["round"] == 2) & (pairs["group"] == "fusion.blocks.mag")]
    assert {*block["one"], *block["other"]} == {0, 1, 2}  # those that have the sensor
    assert pairs["cosine"].between(-1, 1).all()
    log = run.folder.log().to_pandas()
    assert (log["name"] == "spread/fusion.blocks.mag").sum() == 2
