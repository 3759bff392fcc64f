"""Privacy in runs: every message covered, budgets kept, and what is written down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from communis import CommunisError, FedAvg, Fleet, Plan, Run, Streams
from communis.core.reductions.median import GeometricMedian
from communis.data.recordings.windows import TRAIN
from communis.data.sources.synthetic import Synthetic
from communis.exchange.privacy import accountant, gaussian
from communis.exchange.privacy.guard import Guard
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.topology import ring
from communis.fleet.attack import Attack
from communis.fleet.availability.roles import Role
from communis.fleet.partition.settings import Partition
from communis.fleet.settings import FleetConfig
from communis.methods.centralized import Centralized
from communis.methods.fedavg import Server
from communis.methods.fednova import FedNova
from communis.methods.fedopt import FedOpt
from communis.methods.fedproto import FedProto
from communis.methods.local import Local
from communis.methods.scaffold import Scaffold
from communis.results.finished import read
from communis.results.verdict import privacy_verdict
from tests.contract.abilities import SENDING
from tests.fleets import SMALL, make, mixed_fleet

LOCAL = PrivacyConfig(mode="local", noise=1.0)
CENTRAL = PrivacyConfig(mode="central", noise=1.0)


def ran(method: Any, privacy: PrivacyConfig, rounds: int = 2, **options: Any) -> Run:
    plan = Plan(**{"rounds": rounds, "workers": 1, "eval_every": 0, **options.pop("plan", {})})
    with Run(mixed_fleet(), method, plan, privacy=privacy, **options) as run:
        list(run)
    return run


def log(run: Run) -> pd.DataFrame:
    return pd.DataFrame(run.folder.log().to_pandas())


def account(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder.path / "privacy.json").read_text("utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SENDING)
def test_locally_every_fraction_of_every_message_is_noised(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    protect, seen = Guard.protect, []

    def watched(self: Guard, up: Any, *rest: Any) -> Any:
        sent, clipped = protect(self, up, *rest)
        seen.append((up, sent))
        return sent, clipped

    monkeypatch.setattr(Guard, "protect", watched)
    ran(make(name), LOCAL, rounds=1)
    assert seen
    for up, sent in seen:
        assert list(up) == list(sent)
        for key, value in up.items():
            if value.is_floating_point() and value.numel():
                assert bool((sent[key] != value).any()), key
                assert sent[key].dtype == value.dtype


def test_what_takes_no_noise_is_written_down() -> None:
    tensors = account(ran(FedProto(batch=8), LOCAL, rounds=1))["tensors"]
    uncovered = {row["field"]: row["why"] for row in tensors if not row["covered"]}
    assert set(uncovered.values()) <= {"whole numbers take no Gaussian noise"}
    open_to_all = account(ran(FedAvg(batch=8), PrivacyConfig(), rounds=1))
    assert {row["why"] for row in open_to_all["tensors"]} == {"sent in clear"}
    parts = {row["part"] for row in open_to_all["tensors"]}
    assert {"encoders.m0.conv1", "fusion.blocks.m1", "head.out"} <= parts


def test_numbers_of_windows_stay_with_their_client() -> None:
    """FedAvg weighs all clients alike if it is not told how many windows they have."""
    told = ran(FedAvg(batch=8, uniform=True), PrivacyConfig(mode="local", noise=1e-12, clip=1e6))
    blind = ran(FedAvg(batch=8), PrivacyConfig(mode="local", noise=1e-12, clip=1e6))
    for path, tensor in told.server.w.items():
        assert torch.equal(tensor, blind.server.w[path])


def test_a_client_that_has_spent_its_budget_stays_away() -> None:
    """Noise 2 is mu = 0.5 a round; epsilon 3 at 1e-5 allows for two of them, not for three."""
    config = PrivacyConfig(mode="local", noise=2.0, epsilon=3.0)
    assert gaussian.epsilon_of(0.5 * 2**0.5, 1e-5) < 3 < gaussian.epsilon_of(0.5 * 3**0.5, 1e-5)
    run = ran(FedAvg(batch=8), config, rounds=9, plan={"participation": 0.4})
    rows = log(run)
    paid = rows[rows["name"] == "privacy/mu"].groupby("client")["value"]
    assert (paid.count() == 2).all()
    assert (paid.max() == 0.5).all()
    assert run.spent
    assert run.round == 5  # five clients, two at a time, two rounds each
    assert run.history[-1].scores  # the last round is scored although nobody planned it


@pytest.mark.parametrize(
    "plan", [{"cohort": 1}, {"participation": 0.2}, {"participation": 0.1}, {"participation": 0.29}]
)
def test_a_budget_is_spread_over_the_rounds_that_a_client_is_drawn_for(
    plan: dict[str, Any],
) -> None:
    """One of five clients in each of ten rounds, whichever setting says so: two rounds of each."""
    run = ran(FedAvg(batch=8), PrivacyConfig(mode="local", epsilon=8.0), rounds=10, plan=plan)
    rows = log(run)
    paid = rows[rows["name"] == "privacy/mu"].groupby("client")["value"]
    assert {len(record.cohort) for record in run.history} == {1}
    assert (paid.count() == 2).all()
    spent = [gaussian.epsilon_of(mu, 1e-5) for mu in paid.agg(gaussian.composed)]
    assert spent == pytest.approx([8.0] * 5, rel=1e-8)  # noise is above the budget's by 1e-9
    assert run.round == 10
    assert account(run)["share"] == 0.2


@pytest.mark.slow
@pytest.mark.parametrize("plan", [{"cohort": 2}, {"cohort": 9}, {"participation": 0.5}])
@pytest.mark.parametrize(
    "config",
    [
        PrivacyConfig(mode="local", epsilon=2.0),
        PrivacyConfig(mode="local", epsilon=2.0, spend="late"),
        PrivacyConfig(mode="local", epsilon=2.0, participations=3),
        PrivacyConfig(mode="local", epsilon=2.0, noise=4.0),
    ],
)
def test_nobody_spends_more_than_epsilon(config: PrivacyConfig, plan: dict[str, Any]) -> None:
    run = ran(FedAvg(batch=8), config, rounds=7, plan=plan)
    rows = log(run)
    paid = rows[rows["name"] == "privacy/mu"].groupby("client")["value"]
    assert max(gaussian.epsilon_of(mu, 1e-5) for mu in paid.agg(gaussian.composed)) <= 2.0


def test_a_round_that_nobody_can_pay_is_refused_at_once() -> None:
    for config in (LOCAL, CENTRAL):
        with pytest.raises(CommunisError, match="a single round costs more than epsilon = 1"):
            ran(FedAvg(batch=8, uniform=True), replace(config, epsilon=1.0))


def test_central_privacy_stops_when_epsilon_is_spent() -> None:
    config = PrivacyConfig(mode="central", noise=4.0, epsilon=2.0)
    run = ran(FedAvg(batch=8, uniform=True), config, rounds=20, plan={"participation": 0.5})
    taken = accountant.epsilon_of_rounds([(0.5, 4.0)] * run.round, 1e-5)
    assert taken <= 2 < accountant.epsilon_of_rounds([(0.5, 4.0)] * (run.round + 1), 1e-5)
    assert run.spent
    rows = log(run)
    rows = rows[rows["client"] == -1].set_index("name")["value"]
    assert set(rows["privacy/z"]) == {4.0}
    assert set(rows["privacy/q"]) == {0.5}


def test_central_privacy_without_noise_is_a_mean_of_clipped_updates() -> None:
    """With everybody there and a bound that binds nobody it is uniform FedAvg."""
    wide = PrivacyConfig(mode="central", noise=1e-9, clip=1e4)
    plain = ran(FedAvg(batch=8, uniform=True), PrivacyConfig())
    noised = ran(FedAvg(batch=8, uniform=True), wide)
    for path, tensor in plain.server.w.items():
        # noise of 1e-9 C = 1e-5 on each of two rounds' sums, of up to five clients
        torch.testing.assert_close(noised.server.w[path], tensor, atol=2e-4, rtol=0)


@pytest.mark.parametrize("method", [FedOpt(batch=8), Scaffold(batch=8), FedAvg(uniform=True)])
def test_methods_of_sums_run_under_central_privacy(method: Any) -> None:
    run = ran(method, CENTRAL, plan={"participation": 0.1})  # sometimes nobody comes
    assert run.round == 2
    if isinstance(run.server, Server):
        assert all(bool(torch.isfinite(t).all()) for t in run.server.w.values())


@pytest.mark.parametrize(
    ("method", "options", "text"),
    [
        (FedAvg(), {}, r"set method\.uniform = true"),
        (FedNova(), {}, r"set method\.uniform = true"),
        (FedProto(), {}, "counts as well as sums"),
        (FedAvg(uniform=True), {"topology": ring(5)}, "in a graph, no node is trusted"),
        (FedAvg(uniform=True), {"rule": GeometricMedian()}, r"\[robust\] needs single"),
        (FedAvg(uniform=True), {"plan": {"cohort": 2}}, "drawn independently"),
        (Centralized(), {}, "hand over raw data"),
    ],
)
def test_what_central_privacy_does_not_suit_is_refused_before_the_first_round(
    method: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(CommunisError, match=text):
        ran(method, CENTRAL, rounds=0, **options)


def test_modes_that_need_umeda() -> None:
    with pytest.raises(CommunisError, match="FedAvg has none"):
        ran(FedAvg(), PrivacyConfig(mode="paper", epsilon=2.0))
    with pytest.raises(CommunisError, match="has no subspace"):
        ran(FedAvg(), PrivacyConfig(mode="local", epsilon=2.0, mechanism="subspace"))


def test_nothing_leaves_a_client_of_local_training() -> None:
    run = ran(Local(batch=8), PrivacyConfig(mode="local", epsilon=1.0))
    assert account(run)["tensors"] == []
    assert run.round == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        PrivacyConfig(mode="local", noise=2.0, epsilon=3.0, spend="late"),
        PrivacyConfig(mode="central", noise=2.0, adaptive=True),
    ],
)
def test_a_private_run_goes_on_where_it_stopped(config: PrivacyConfig, tmp_path: Path) -> None:
    """Budgets and the bound C are in the checkpoint; the noise is that of the round."""
    method = FedAvg(batch=8, uniform=True)
    plan = Plan(rounds=4, workers=1, participation=0.5)
    with Run(mixed_fleet(), method, plan, privacy=config) as whole:
        list(whole)
    for _ in range(2):
        with Run(mixed_fleet(), method, plan, privacy=config, folder=tmp_path) as run:
            for record in run:
                if record.round == 2:
                    break
    assert run.round == whole.round
    for path, tensor in whole.server.w.items():
        assert torch.equal(tensor, run.server.w[path])
    assert log(run).equals(log(whole))
    other = replace(config, delta=1e-6, clip=2.0)
    with pytest.raises(CommunisError, match="another experiment"):
        Run(mixed_fleet(), method, plan, privacy=other, folder=tmp_path)


def test_noise_does_not_depend_on_the_number_of_workers() -> None:
    one, two = (ran(FedAvg(batch=8), LOCAL, plan={"workers": n}) for n in (1, 2))
    for path, tensor in one.server.w.items():
        assert torch.equal(tensor, two.server.w[path])


def test_statistics_that_everybody_shares_are_leaks() -> None:
    fleet = mixed_fleet(normalise="fleet")
    with Run(fleet, FedAvg(batch=8), Plan(rounds=1, workers=1), privacy=LOCAL) as run:
        list(run)
    assert account(run)["leaks"] == [
        "windows are normalised by the whole fleet's statistics, shared in clear"
    ]


def leaks(fleet: Fleet, tmp_path: Path) -> list[str]:
    """What a private run of one round lists, and what its verdict says of it."""
    config = 'name = "x"\nseed = 0\n[data]\nname = "d"\n[method]\nname = "m"\n[run]\nrounds = 1\n'
    plan, method = Plan(rounds=1, workers=1), FedProto(batch=8)
    with Run(fleet, method, plan, privacy=LOCAL, folder=tmp_path, config=config) as run:
        list(run)
    found: list[str] = account(run)["leaks"]
    assert set(found) <= {*privacy_verdict(read(tmp_path)).reasons}
    return found


def test_models_that_are_dealt_by_private_counts_are_a_leak(tmp_path: Path) -> None:
    """Ranks of how many windows clients have are known to whoever knows the models."""
    windows = Synthetic(clients=4, windows=20, classes=3, steps=16, channels=2).load(Streams(0))

    def dealt(name: str, **changes: Any) -> list[str]:
        settings = {"models": ("cnn_small", "cnn"), "embedding": 8, "deal": "size", **changes}
        fleet = FleetConfig(**settings).make(windows, Partition(), Streams(0))
        return leaks(fleet, tmp_path / name)

    assert dealt("size") == [
        "who has which model follows from how many training windows clients have "
        '(fleet.deal = "size")'
    ]
    assert dealt("seed", deal="seed") == []
    assert dealt("one", models=("cnn_small",)) == []  # nothing to deal
    roles = (Role(("m0",), 2, model="cnn"), Role(("m0",), 2, model="cnn_small"))
    assert dealt("roles", roles=roles) == []  # nobody's model is dealt


def test_statistics_that_a_client_borrows_are_a_leak(tmp_path: Path) -> None:
    """Client 1 has no training windows of m1 but others to be judged by: they are normalised by
    the training windows of client 0."""
    windows = Synthetic(clients=2, windows=20, classes=3, steps=16, channels=2, modalities=2).load(
        Streams(0)
    )
    others = (windows.owner == 1) & (windows.split == TRAIN)
    lacking = replace(windows, present={"m1": ~others})
    listed = (
        "a client without training windows of a sensor gets the whole fleet's statistics of it, "
        "shared in clear (m1)"
    )
    assert leaks(Fleet.of(lacking, models=(SMALL,)), tmp_path / "lacking") == [listed]
    assert leaks(Fleet.of(windows, models=(SMALL,)), tmp_path / "all") == []
    nothing = Fleet.of(lacking, models=(SMALL,), normalise="none")
    assert leaks(nothing, tmp_path / "none") == []
    never = replace(windows, present={"m1": windows.owner != 1})  # nothing to be normalised
    assert leaks(Fleet.of(never, models=(SMALL,)), tmp_path / "never") == []
    nobody = replace(windows, present={"m1": windows.split != TRAIN})  # no statistics to share
    assert leaks(Fleet.of(nobody, models=(SMALL,)), tmp_path / "nobody") == []


def test_a_backend_without_guards_is_refused() -> None:
    with Run(mixed_fleet(), FedAvg(), Plan(workers=1)) as run:
        with pytest.raises(CommunisError, match="does not guard the messages"):
            Run(mixed_fleet(), FedAvg(), Plan(), privacy=LOCAL, backend=run.backend)
        central = replace(CENTRAL, noise=2.0)
        method = FedAvg(uniform=True)
        Run(mixed_fleet(), method, Plan(workers=1), privacy=central, backend=run.backend)


def test_what_liars_did_is_measured_without_changing_the_round() -> None:
    """The bound C follows the round as it was, not as it would have been without them."""
    adaptive = PrivacyConfig(mode="central", noise=1e-6, clip=1e-3, adaptive=True)
    clips = []
    for attack in (Attack(), Attack("sign_flip", (0, 1))):
        fleet = replace(mixed_fleet(), attack=attack)
        plan = Plan(rounds=3, workers=1, eval_every=0)
        with Run(fleet, FedAvg(batch=8, uniform=True), plan, privacy=adaptive) as run:
            list(run)
        rows = log(run)
        clips.append(rows[rows["name"] == "privacy/clipped"]["value"].tolist())
    assert clips[0][0] == 1.0
    assert clips[1][0] == 1.0  # of all five, liars included


def test_an_account_is_kept_over_an_interruption(tmp_path: Path) -> None:
    method, plan = FedAvg(batch=8), Plan(rounds=3, workers=1, participation=0.4)
    with Run(mixed_fleet(), method, plan, privacy=LOCAL, folder=tmp_path) as run:
        next(iter(run))
    before = account(run)["arrays"]
    with Run(mixed_fleet(), method, plan, privacy=LOCAL, folder=tmp_path) as again:
        assert account(again)["arrays"] == before
        list(again)
    assert len(account(again)["arrays"]) >= len(before)


def test_no_rounds_are_left_of_a_budget_but_they_count_as_done(tmp_path: Path) -> None:
    config = PrivacyConfig(mode="local", noise=2.0, epsilon=3.0)
    plan = Plan(rounds=5, workers=1)
    with Run(mixed_fleet(), FedAvg(batch=8), plan, privacy=config, folder=tmp_path) as run:
        list(run)
    assert account(run)["ended"] == run.round == 2
