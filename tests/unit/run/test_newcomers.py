"""Runs with clients that take no part in training: what members get is not changed by them, and
what they get is what the common model says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from communis import CommunisError, FedAvg, Fleet, Plan, Run
from communis.core.contract import Batch, Client
from communis.data.recordings.windows import TRAIN, UNUSED, VAL
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.topology import ring
from communis.exchange.wire import encode
from communis.fleet.attack import Attack
from communis.fleet.fleet import AnyMethod
from communis.fleet.newcomers import hold_out
from communis.methods.fedblock import FedBlock
from communis.methods.fedproto import FedProto
from communis.models.zoo import Architecture
from communis.run.config import load, parse
from communis.run.jobs import fleet_settings
from tests.fleets import SMALL, make, mixed_fleet

NEW = (1, 3)
PLAN = Plan(rounds=2, workers=1, eval_every=1, newcomers=NEW)
PLAIN = replace(PLAN, newcomers=0.0)
AVERAGING = FedAvg(batch=8, buffers="average")
SUITES = [("m0", "m1")] * 5


def fleet(**changes: Any) -> Fleet:
    """Five clients with two of three sensors, in windows that lack some."""
    return mixed_fleet(suites=SUITES, **changes)


def ran(
    fleet: Fleet, method: AnyMethod = AVERAGING, plan: Plan = PLAN, **settings: Any
) -> tuple[Run, pd.DataFrame]:
    with Run(fleet, method, plan, **settings) as run:
        list(run)
        return run, run.scores()


def of_members(table: pd.DataFrame) -> pd.DataFrame:
    return table[~table["client"].isin(NEW)].reset_index(drop=True)


def of_newcomers(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["split"] == "newcomers"].reset_index(drop=True)


def states(run: Run) -> list[bytes]:
    return [encode(server).data for server in run.servers.values()]


def changed(fleet: Fleet, **arrays: Any) -> Fleet:
    return replace(fleet, windows=replace(fleet.windows, **arrays))


@pytest.mark.parametrize("name", ["fedavg", "fedduet", "harmony", "fedproto", "centralized"])
def test_members_are_as_in_a_fleet_where_newcomers_have_nothing_to_train(name: str) -> None:
    """Their scores, records and server states, to the bit."""
    whole = fleet()
    known = np.isin(whole.windows.owner, NEW) & np.isin(whole.windows.split, (TRAIN, VAL))
    without = changed(whole, split=np.where(known, UNUSED, whole.windows.split).astype(np.int8))
    settings: dict[str, Any] = {"dt": False} if name == "fedduet" else {}
    run, table = ran(whole, make(name, **settings))
    other, theirs = ran(without, make(name, **settings), PLAIN)
    assert states(run) == states(other)
    assert of_members(table).equals(of_members(theirs))
    assert [r.bytes_up for r in run.history] == [r.bytes_up for r in other.history]
    assert [r.loss for r in run.history] == [r.loss for r in other.history]
    assert all(set(record.cohort).isdisjoint(NEW) for record in run.history)


@pytest.mark.parametrize("buffers", ["average", "recalibrate"])
def test_labels_of_newcomers_reach_nobody(buffers: Any) -> None:
    """Their scores change with the labels; nothing else does."""
    method = replace(AVERAGING, buffers=buffers)
    whole = fleet()
    target = whole.windows.target.copy()
    new = np.isin(whole.windows.owner, NEW)
    target[new] = (target[new] + 1) % 3
    run, table = ran(whole, method)
    other, theirs = ran(changed(whole, target=target), method)
    assert states(run) == states(other)
    assert of_members(table).equals(of_members(theirs))
    assert not of_newcomers(table)["value"].equals(of_newcomers(theirs)["value"])
    before, after = (t[t["metric"] == "nll"] for t in map(of_newcomers, (table, theirs)))
    assert len(before) == len(after) > 0


def test_only_labels_of_test_windows_are_read() -> None:
    """To forge those of the windows that a newcomer recorded before changes nothing at all."""
    method = replace(AVERAGING, buffers="recalibrate")
    held = hold_out(fleet(), NEW)
    assert held.unlabelled is not None
    target = held.windows.target.copy()
    target[held.unlabelled] = (target[held.unlabelled] + 1) % 3
    run, table = ran(held, method)
    other, theirs = ran(changed(held, target=target), method)
    assert states(run) == states(other)
    assert table.equals(theirs)


@pytest.mark.parametrize("normalise", ["fleet", "none"])
def test_windows_of_newcomers_before_the_test_can_be_deleted(normalise: Any) -> None:
    held = hold_out(fleet(normalise=normalise), NEW)
    gone = np.where(held.windows.split == UNUSED, -1, held.clients_of)
    run, table = ran(held)
    other, theirs = ran(replace(held, client_of=gone))
    assert states(run) == states(other)
    assert table.equals(theirs)


def test_with_a_scale_of_their_own_only_newcomers_need_them() -> None:
    held = hold_out(fleet(), NEW)
    gone = np.where(held.windows.split == UNUSED, -1, held.clients_of)
    run, table = ran(held)
    other, theirs = ran(replace(held, client_of=gone))
    assert states(run) == states(other)
    assert of_members(table).equals(of_members(theirs))
    assert not of_newcomers(table)["value"].equals(of_newcomers(theirs)["value"])


def test_records_keep_them_apart(tmp_path: Path) -> None:
    run, table = ran(fleet(), folder=tmp_path)
    scores = run.history[-1].scores
    last = table[(table["round"] == 2) & table["own"] & (table["metric"] == "accuracy")]
    of = {split: last[last["split"] == split] for split in ("test", "val", "newcomers")}
    assert scores["newcomers.accuracy"] == pytest.approx(of["newcomers"]["value"].mean())
    assert scores["test.accuracy"] == pytest.approx(of["test"]["value"].mean())
    assert set(of["newcomers"]["client"]) == set(NEW)
    assert set(of["test"]["client"]) == set(of["val"]["client"]) == {0, 2, 4}
    subsets = table[table["split"] == "newcomers"]["subset"].unique().tolist()
    assert sorted(subsets) == ["m0", "m0+m1", "m1"]
    about = json.loads((tmp_path / "fleet.json").read_text())
    assert about["newcomers"] == [{"id": 1, "unscored": ""}, {"id": 3, "unscored": ""}]
    assert about["evaluation"] == {"clients": 3, "of": 3}


def test_without_newcomers_nothing_is_said_of_them(tmp_path: Path) -> None:
    run, table = ran(fleet(), plan=PLAIN, folder=tmp_path)
    assert "newcomers" not in json.loads((tmp_path / "fleet.json").read_text())
    assert set(table["split"]) == {"val", "test"}
    assert not any("newcomers" in key for key in run.history[-1].scores)


@pytest.mark.parametrize(
    ("method", "models", "reason"),
    [
        (make("local"), (SMALL,), "the model stays with the clients"),
        (make("fedproto"), (SMALL,), "the model stays with the clients"),
        (make("fedper"), (SMALL,), "a part of the model stays with the clients"),
        (make("fedbn"), (SMALL,), "a part of the model stays with the clients"),
        (make("fedavg"), (SMALL,), "BatchNorm statistics stay with the clients; buffers = "),
        (FedProto(batch=8, exchange=False), (SMALL,), "nothing is exchanged"),
    ],
)
def test_without_a_common_model_there_is_no_entry(
    method: AnyMethod, models: Any, reason: str, tmp_path: Path
) -> None:
    _, table = ran(fleet(models=models), method, folder=tmp_path)
    found = json.loads((tmp_path / "fleet.json").read_text())["newcomers"]
    assert [newcomer["id"] for newcomer in found] == list(NEW)
    assert all(newcomer["unscored"].startswith(reason) for newcomer in found)
    assert set(table["split"]) == {"val", "test"}
    assert set(table["client"]) == {0, 2, 4}


def test_a_model_that_no_member_has_is_not_scored() -> None:
    other = Architecture(width=5, embedding=8)
    models = [Architecture(width=4, embedding=8)] * 5
    models[3] = other
    run, table = ran(fleet(models=models), FedAvg(batch=8, by_model=True))
    assert run._newcomers == {1: "", 3: f"no member has its model, {run.cards[3].model}"}
    assert set(of_newcomers(table)["client"]) == {1}


class Biased(FedAvg):
    """Says class 0 of everything."""

    def predict(self, client: Client, state: Any, batch: Batch) -> Tensor:
        return torch.tensor([[9.0, 0.0, 0.0]]).expand(len(batch), -1)


def test_what_no_sensor_saw_is_the_most_frequent_class_of_members() -> None:
    """And so is the control, for every window. The frequencies are those of the members' training
    windows, whatever the newcomer's own labels are."""
    whole = fleet()
    blind = np.isin(whole.windows.owner, NEW)
    there = dict.fromkeys(whole.windows.modalities, ~blind)
    target = np.where(blind, 1, np.where(whole.windows.owner == 0, 0, 2))
    data = replace(whole.windows, present=there, target=target)
    held = replace(whole, windows=data)
    for method in (Biased(batch=8, buffers="average"), AVERAGING):
        _, table = ran(held, method)
        rows = of_newcomers(table)
        rows = rows[(rows["class"] == -1) & rows["own"] & (rows["round"] == 2)]
        values = rows.groupby("metric")["value"].mean()
        assert values["accuracy"] == values["accuracy@most_frequent"] == 0.0
        assert values["nll"] == pytest.approx(values["nll@most_frequent"])
    seen = replace(whole.windows, target=np.where(blind, 2, target))
    _, table = ran(replace(whole, windows=seen), Biased(batch=8, buffers="average"))
    rows = of_newcomers(table)
    rows = rows[(rows["class"] == -1) & rows["own"]]
    values = rows.groupby("metric")["value"].agg(["min", "max"])
    assert values.loc["accuracy@most_frequent"].tolist() == [1.0, 1.0]
    assert values.loc["accuracy@seen"].tolist() == [0.0, 0.0]  # it says class 0 of these


def test_workers_and_resuming_change_no_bit(tmp_path: Path) -> None:
    run, table = ran(fleet())
    two, theirs = ran(fleet(), plan=replace(PLAN, workers=2))
    assert states(run) == states(two)
    assert table.equals(theirs)
    for _ in range(2):
        with Run(fleet(), AVERAGING, PLAN, folder=tmp_path) as part:
            next(iter(part))
            scores = part.scores()
    assert states(part) == states(run)
    assert scores.equals(table)


def test_a_folder_with_other_newcomers_is_refused(tmp_path: Path) -> None:
    with Run(fleet(), AVERAGING, PLAN, folder=tmp_path) as run:
        next(iter(run))
    for other in (0.0, (1,), (0, 3)):
        with pytest.raises(CommunisError, match="another experiment"):
            Run(fleet(), AVERAGING, replace(PLAN, newcomers=other), folder=tmp_path)


def test_some_of_many_newcomers_are_drawn_for_an_evaluation() -> None:
    plan = replace(PLAN, eval_clients=1, rounds=6)
    _, table = ran(fleet(), plan=plan)
    per_round = table.groupby(["round", "split"])["client"].nunique()
    assert set(per_round) == {1}
    assert set(of_newcomers(table)["client"]) == set(NEW)


def test_the_whole_model_is_scored_on_members_only() -> None:
    _, table = ran(fleet(), plan=replace(PLAN, eval_whole=True))
    whole = table[table["metric"].str.endswith("@all")]
    assert set(whole["client"]) == {0, 2, 4}


@pytest.mark.parametrize("mode", ["none", "local"])
def test_what_the_server_counts_over_clients_are_members(mode: Any) -> None:
    """Also where privacy hides how many windows a client has."""
    privacy = PrivacyConfig(mode=mode, noise=1.0 if mode == "local" else 0.0, clip=1.0)
    sensors = [("m0",), ("m0", "m1"), ("m0", "m1"), ("m0", "m1"), ("m0", "m1")]
    with Run(mixed_fleet(suites=sensors), FedBlock(batch=8), PLAN, privacy=privacy) as run:
        rates = {m: float(rate) for m, rate in run.server.rates.items()}
    assert rates == {"m0": 1.0, "m1": 1.5}  # of the clients 0, 2 and 4


def test_privacy_counts_members_only(tmp_path: Path) -> None:
    privacy = PrivacyConfig(mode="local", noise=1.0, clip=1.0)
    ran(fleet(), privacy=privacy, folder=tmp_path)
    whole = fleet()
    known = np.isin(whole.windows.owner, NEW) & np.isin(whole.windows.split, (TRAIN, VAL))
    without = changed(whole, split=np.where(known, UNUSED, whole.windows.split).astype(np.int8))
    ran(without, plan=PLAIN, privacy=privacy, folder=tmp_path / "other")
    ours = json.loads((tmp_path / "privacy.json").read_text())
    theirs = json.loads((tmp_path / "other" / "privacy.json").read_text())
    assert ours["clients"] == theirs["clients"]
    assert ours["mu"] == theirs["mu"]


def test_in_a_graph_they_hear_nobody_and_have_no_entry() -> None:
    """Members exchange as they would with silent neighbours."""
    whole = fleet()
    run, table = ran(whole, topology=ring(5))
    assert set(run._newcomers.values()) == {
        "a graph has no server from which a newcomer could get a model"
    }
    assert of_newcomers(table).empty
    links = run.links()
    assert not {*links["sender"], *links["receiver"]} & {*NEW}
    known = np.isin(whole.windows.owner, NEW) & np.isin(whole.windows.split, (TRAIN, VAL))
    without = changed(whole, split=np.where(known, UNUSED, whole.windows.split).astype(np.int8))
    _, theirs = ran(without, plan=PLAIN, topology=ring(5))
    assert of_members(table).equals(of_members(theirs))
    first = Run(fleet(), AVERAGING, PLAN, topology=ring(5))
    with first:
        for i in NEW:
            assert encode(run.servers[i]).data == encode(first.servers[i]).data


def test_attackers_are_not_scored_beside_them() -> None:
    attack = Attack("sign_flip", (0,))
    _, table = ran(fleet(attack=attack))
    assert set(table["client"]) == {1, 2, 3, 4}
    assert set(of_newcomers(table)["client"]) == set(NEW)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", r"\[run\] newcomers must be a share of the clients below 1.*give a list, such as"),
        ("1.5", r"\[run\] newcomers must be a share of the clients below 1"),
        ("'3'", "run.newcomers: expected a finite number or a list, got '3'"),
        ("true", "run.newcomers: expected a finite number or a list, got True"),
        ("[0.5]", r"run.newcomers\[0\]: expected a whole number, got 0.5"),
        ("[-1]", "must be different clients, numbered from 0"),
    ],
)
def test_mistakes_in_a_configuration_are_named(value: str, message: str) -> None:
    with pytest.raises(CommunisError, match=message):
        load("synthetic", [f"run.newcomers={value}"])


@pytest.mark.parametrize(("value", "meant"), [("0.2", 0.2), ("0", 0.0), ("[3, 7]", (3, 7))])
def test_a_share_or_a_list_survives_its_file(value: str, meant: Any) -> None:
    config = load("synthetic", [f"run.newcomers={value}"])
    assert config.run.newcomers == parse(config.to_toml()).run.newcomers == meant


def test_of_a_configuration() -> None:
    config = load("synthetic", ["run.newcomers=0.2", "fleet.targets='metres'"])
    ours = config.make_fleet()
    again = load("synthetic", ["run.newcomers=0.2", "method.name='local'"]).make_fleet()
    assert ours.newcomers == again.newcomers  # the same for all methods of a seed
    assert load("synthetic", ["run.newcomers=[2, 0]"]).make_fleet().newcomers == (0, 2)
    none = load("synthetic")
    assert none.make_fleet().newcomers == ()
    assert fleet_settings(none) != fleet_settings(config)  # such runs share no fleet
