"""Aggregates: how far apart they are, and how far liars moved them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from communis import CommunisError, FedAvg, Plan, Run, State
from communis.core.reductions.median import GeometricMedian
from communis.core.reductions.settings import RobustConfig
from communis.exchange.privacy.protection import Protection, Setting
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.topology import Star, ring
from communis.fleet.attack import Attack
from communis.fleet.clients import FleetClients
from communis.methods import comfed
from communis.methods.centralized import Centralized
from communis.methods.comfed import CoMFed
from communis.methods.fedproto import FedProto
from communis.methods.local import Local
from communis.methods.parts import latent
from communis.methods.unifl import UniFL
from communis.run.aggregation import Aggregation
from tests.fleets import mixed_fleet


def open_to_all(method: Any) -> Aggregation:
    """Without any privacy."""
    setting = Setting(
        rounds=1, participation=1.0, share=1.0, by_number=False, star=True, rule=False
    )
    return Aggregation(
        method, Protection(PrivacyConfig(), FleetClients(mixed_fleet(), method), setting)
    )


consensus_distance = open_to_all(FedAvg()).consensus_distance
PLAN = Plan(rounds=2, workers=1, eval_every=1)


@dataclass(frozen=True)
class Server:
    w: State
    rounds: int = 0


def server(*values: float) -> Server:
    return Server(State({"x": torch.tensor(list(values))}), rounds=len(values))


def ran(method: Any = None, attack: Attack | None = None, **options: Any) -> Run:
    fleet = replace(mixed_fleet(), attack=attack or Attack())
    with Run(fleet, method or FedAvg(batch=8), options.pop("plan", PLAN), **options) as run:
        list(run)
    return run


def test_consensus_distance_by_hand() -> None:
    assert consensus_distance({0: server(0.5, 0.5), 1: server(2.5, 0.5)}) == 1
    assert consensus_distance({0: server(0.3), 1: server(0.3), 2: server(0.3)}) == 0
    assert math.isnan(consensus_distance({-1: server(1.5)}))
    assert math.isnan(open_to_all(Local()).consensus_distance({0: None, 1: None}))


def test_a_star_has_no_consensus_distance_and_a_ring_has_one() -> None:
    assert all(math.isnan(r.consensus_distance) for r in ran().history)
    on_ring = ran(topology=ring(5)).history
    assert all(r.consensus_distance > 0 for r in on_ring)


def test_nobody_lies_unless_told() -> None:
    assert all(math.isnan(r.attack_distance) for r in ran().history)


@pytest.mark.parametrize("method", [FedAvg(batch=8), FedProto(batch=8)])
def test_a_median_moves_less_than_a_mean(method: Any) -> None:
    attack = Attack("sign_flip", (1,), scale=50.0)
    mean, median = ran(method, attack), ran(method, attack, rule=GeometricMedian())
    assert mean.history[0].attack_distance > 3 * median.history[0].attack_distance > 0


def test_attackers_are_not_scored_and_their_loss_does_not_count(tmp_path: Path) -> None:
    run = ran(attack=Attack("label_flip", (0, 3)), folder=tmp_path)
    assert set(run.scores()["client"]) == {1, 2, 4}
    assert all(r.cohort == (0, 1, 2, 3, 4) for r in run.history)
    assert '"attackers": [\n  0,\n  3\n ]' in (tmp_path / "fleet.json").read_text()
    honest = ran(Local(batch=8))
    attacked = ran(Local(batch=8), Attack("label_flip", (0, 3)))
    losses = honest.records()["loss"], attacked.records()["loss"]
    assert losses[0][0] != losses[1][0]  # of three clients instead of five


def test_message_attacks_leave_the_liars_own_learning_alone() -> None:
    """Without an exchange nothing can be learned from a lie."""
    honest, attacked = ran(Local(batch=8)), ran(Local(batch=8), Attack("sign_flip", (0, 3)))
    mine, theirs = honest.scores(), attacked.scores()
    assert mine[mine["client"].isin([1, 2, 4])].reset_index(drop=True).equals(theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["gaussian", "sign_flip", "shift", "label_flip", "stuck_sensor", "axis_flip", "replay"]
)
def test_every_attack_runs_with_one_worker_or_two_and_after_a_stop(
    kind: Any, tmp_path: Path
) -> None:
    attack = Attack(kind, (2,))
    plan = replace(PLAN, rounds=3)
    one, two = ran(attack=attack, plan=plan), ran(attack=attack, plan=replace(plan, workers=2))
    assert one.scores().equals(two.scores())
    for _ in range(3):
        fleet = replace(mixed_fleet(), attack=attack)
        with Run(fleet, FedAvg(batch=8), plan, folder=tmp_path) as parts:
            next(iter(parts))
    assert parts.scores().equals(one.scores())
    assert not one.scores().equals(ran(plan=plan).scores().query("client != 2"))


def test_replay_sends_the_first_message_again() -> None:
    """With one client that lies and nobody else, the model stays what it was after round one."""
    plan = Plan(rounds=3, workers=1, eval_every=0)
    fleet = replace(mixed_fleet(), attack=Attack("replay", (0, 1, 2, 3)))
    states = []
    with Run(fleet, FedAvg(batch=8), plan) as run:
        for _ in run:
            states.append(run.server.w)
    alike = [torch.equal(states[0][p], states[2][p]) for p in states[0]]
    assert any(alike)  # what only liars own
    assert not all(alike)  # the honest one has trained on


def test_methods_that_pool_data_refuse_attackers() -> None:
    with pytest.raises(CommunisError, match="Centralized pools data at a server: nobody could lie"):
        ran(Centralized(), Attack("label_flip", (0,)))


def test_a_run_under_attack_is_not_continued_as_another(tmp_path: Path) -> None:
    ran(attack=Attack("shift", (0,)), folder=tmp_path)
    with pytest.raises(CommunisError, match="another experiment"):
        ran(attack=Attack("shift", (1,)), folder=tmp_path)
    with pytest.raises(CommunisError, match="another experiment"):
        ran(attack=Attack("shift", (0,)), rule=GeometricMedian(), folder=tmp_path)


def test_classes_that_a_node_has_not_heard_of_are_not_compared() -> None:
    method = CoMFed()

    def targets(*rows: list[float], age: tuple[float, float], who: int = -1) -> Any:
        u = torch.tensor([list(rows)])
        return comfed.Server(u, torch.tensor([age]), torch.tensor([who]))

    one = targets([0.5, 0.5], [9.5, 9.5], age=(0, 2))
    other = targets([2.5, 0.5], [0.0, 0.0], age=(0, latent.NEVER))
    measure = open_to_all(method).consensus_distance
    assert measure({0: one, 1: other}) == 1
    assert math.isnan(measure({0: one, 1: targets([2.5, 0.5], [1.0, 0.0], age=(0, 0), who=3)}))


def test_several_pulls_have_no_common_centre_to_be_compared() -> None:
    run = ran(CoMFed(batch=8, pull="multi"), topology=ring(5))
    assert all(math.isnan(r.consensus_distance) for r in run.history)
    assert math.isnan(ran(Local(batch=8), topology=ring(5)).history[-1].consensus_distance)


def test_liars_own_nodes_do_not_count() -> None:
    run = ran(attack=Attack("sign_flip", (2,), scale=9.0), topology=ring(5))
    honest = {a: s for a, s in run.servers.items() if a != 2}
    assert run.history[-1].consensus_distance == consensus_distance(honest)
    assert consensus_distance(run.servers) != run.history[-1].consensus_distance


def test_before_liars_begin_they_have_moved_nothing() -> None:
    run = ran(attack=Attack("sign_flip", (2,), start=2))
    assert math.isnan(run.history[0].attack_distance)
    assert run.history[1].attack_distance > 0


def test_the_rule_of_a_run_stands_in_for_a_methods_own() -> None:
    attack = Attack("gaussian", (0, 1))
    own = ran(CoMFed(batch=8), attack).history[0].attack_distance
    ruled = ran(CoMFed(batch=8), attack, rule=RobustConfig(rule="krum").make())
    assert ruled.history[0].attack_distance != own


@pytest.mark.slow
def test_who_is_not_heard_has_trained_all_the_same() -> None:
    """A lost message costs the aggregate, not the client's own learning."""
    plain, deaf = ran(Local(batch=8)), ran(Local(batch=8), topology=Star(loss=0.99))
    assert plain.scores().equals(deaf.scores())
    assert not any(r.refused for r in deaf.history)
    settled = ran(CoMFed(batch=8), topology=Star(loss=0.6), plan=replace(PLAN, rounds=4))
    log = settled.folder.log().to_pandas()
    assert (log["name"] == "lost").any()
    assert set(log[log["name"] == "lost"]["client"]) <= set(range(5))


def test_a_replayed_message_does_not_outlive_its_run(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir(parents=True)
    (tmp_path / "clients" / "000002.first").write_bytes(b"of a run that crashed at once")
    run = ran(attack=Attack("replay", (2,)), folder=tmp_path)
    assert not any(r.refused for r in run.history)


def test_attacked_variances_stay_possible() -> None:
    run = ran(UniFL(batch=8, buffers="average"), Attack("sign_flip", (2,)))
    assert not any(r.refused for r in run.history)
