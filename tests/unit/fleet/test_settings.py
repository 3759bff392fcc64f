"""From configuration tables to a fleet: suites, dropout, traces, types, devices, online."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from communis import CommunisError, FedAvg, Fleet, Plan, Run, Streams
from communis.core.errors import CommunisError as Refused
from communis.core.settings import SchemaError
from communis.data.recordings.windows import TEST, TRAIN, Windows
from communis.data.sources.synthetic import Synthetic
from communis.exchange.topology import ring
from communis.fleet.availability.dropout import Dropout
from communis.fleet.availability.online import Online
from communis.fleet.availability.roles import Role
from communis.fleet.availability.suites import Suites
from communis.fleet.availability.trace import Trace
from communis.fleet.clients import FleetClients
from communis.fleet.partition.settings import Partition
from communis.fleet.settings import FleetConfig
from communis.methods.local import Local
from communis.models.sglt import Sglt
from communis.run.config import bare

SOURCE = Synthetic(clients=6, windows=40, modalities=3, channels=2, steps=16, classes=3)
BURSTS = Dropout(kind="markov", operating=10.0, missing=5.0)


def data(**changes: Any) -> Windows:
    return replace(SOURCE.load(Streams(0)), **changes)


def made(seed: int = 0, partition: Partition | None = None, **settings: Any) -> Fleet:
    return FleetConfig(**settings).make(data(), partition or Partition(), Streams(seed))


def test_by_default_everybody_has_everything_always() -> None:
    fleet = made()
    assert fleet.suites == [("m0", "m1", "m2")] * 6
    assert fleet.outages is None
    assert fleet.coarse == fleet.devices == ()
    assert fleet.online == Online()


def test_a_sensor_that_a_client_never_had_is_not_its_own() -> None:
    owner = SOURCE.load(Streams(0)).owner
    found = data(present={"m1": owner != 2, "m2": (owner < 4) & (np.arange(240) % 2 == 0)})
    fleet = FleetConfig().make(found, Partition(), Streams(0))
    everything = ("m0", "m1", "m2")
    assert fleet.suites == [everything] * 2 + [("m0", "m2"), everything] + [("m0", "m1")] * 2


def test_a_sensor_that_nobody_drew_is_named(caplog: pytest.LogCaptureFixture) -> None:
    rare = Suites(a=1.0, b=60.0)
    fleets = [made(seed, suites=rare) for seed in range(4)]
    said = [record.getMessage() for record in caplog.records]
    unowned = [{"m0", "m1", "m2"} - set(fleet.union) for fleet in fleets]
    assert len(said) == sum(map(bool, unowned)) > 0
    assert f"no client drew {min(next(filter(None, unowned)))}" in said[0]


def test_suites_are_drawn() -> None:
    fleet = made(suites=Suites("severe"))
    assert len(set(fleet.suites)) > 1
    assert fleet.suites == made(suites=Suites("severe")).suites
    assert fleet.suites != made(1, suites=Suites("severe")).suites


def test_roles_bring_devices_and_models() -> None:
    roles = (
        Role(("m0",), 2, device="relief-low", model="cnn_small"),
        Role(("m0", "m1", "m2"), 4, device="relief-full"),
    )
    fleet = made(roles=roles)
    cards = FleetClients(fleet, FedAvg()).cards
    small = [c for c in cards if c.modalities == ("m0",)]
    assert len(small) == 2
    assert {(c.device, c.model) for c in small} == {("relief-low", "cnn_small")}
    rest = {(c.device, c.model) for c in cards if c not in small}
    assert rest == {("relief-full", "cnn")}


def sized(*training: int, **settings: Any) -> Fleet:
    """A fleet whose clients have so many training windows."""
    source = replace(SOURCE, clients=len(training)).load(Streams(0))
    split = np.full(len(source), TEST)
    for client, count in enumerate(training):
        split[np.flatnonzero(source.owner == client)[:count]] = TRAIN
    windows = replace(source, split=split)
    return FleetConfig(**settings).make(windows, Partition(), Streams(3))


THREE = ("cnn_small", "cnn", "cnn_large")


def test_models_are_dealt_by_size() -> None:
    """The fewest windows first, ties by number, in equal shares or with one more in the first."""
    fleet = sized(9, 5, 30, 5, 20, 7, models=THREE, deal="size")
    small, middle, large = THREE
    assert fleet.models == [middle, small, large, small, large, middle]
    seven = sized(9, 5, 30, 5, 20, 7, 6, models=THREE, deal="size").models
    assert seven == [middle, small, large, small, large, middle, small]
    assert sized(9, 5, models=THREE, deal="size").models == [middle, small]
    cards = FleetClients(fleet, Local()).cards
    by_size = sorted(cards, key=lambda card: card.samples)
    assert [card.model for card in by_size] == [name for name in THREE for _ in range(2)]


def test_a_window_that_no_sensor_saw_gives_no_size() -> None:
    source = SOURCE.load(Streams(0))
    asleep = (source.owner == 4) & (np.arange(len(source)) % 2 == 0)
    windows = replace(source, present=dict.fromkeys(source.modalities, ~asleep))
    config = FleetConfig(models=("cnn_small", *["cnn"] * 5), deal="size")
    assert config.make(windows, Partition(), Streams(0)).models.index("cnn_small") == 4


def test_models_are_dealt_by_device() -> None:
    everything = ("m0", "m1", "m2")
    names = ("relief-full", "relief-low", "relief-mid")
    roles = tuple(Role(everything, 2, device=name) for name in names)
    fleet = made(roles=roles, models=THREE, deal="device")
    fit = {"relief-low": "cnn_small", "relief-mid": "cnn", "relief-full": "cnn_large"}
    assert fleet.models == [fit[name] for name in fleet.devices]
    with pytest.raises(CommunisError, match='deal = "device", but no client has a device'):
        made(models=THREE, deal="device")
    some = (Role(everything, 5), Role(everything, 1, device="relief-low"))
    with pytest.raises(CommunisError, match="have no device profile"):
        made(roles=some, models=THREE, deal="device")
    assert made(deal="device").models == ["cnn"]  # nothing to deal


def test_a_roles_own_model_goes_before_what_is_dealt() -> None:
    roles = (Role(("m0",), 2, model="gru"), Role(("m0", "m1"), 4))
    for deal in ("seed", "size"):
        models = made(roles=roles, models=("cnn_small", "cnn"), deal=deal).models
        assert models.count("gru") == 2
    assert sorted(map(str, models)) == ["cnn"] * 2 + ["cnn_small"] * 2 + ["gru"] * 2


def test_a_deal_by_seed_is_drawn() -> None:
    drawn = [made(seed, models=THREE).models for seed in range(4)]
    assert all(sorted(map(str, models)) == sorted(THREE * 2) for models in drawn)
    assert len({tuple(models) for models in drawn}) > 1


def test_all_models_can_have_another_embedding(tmp_path: Path) -> None:
    roles = (Role(("m0",), 2, model="gru"), Role(("m0", "m1"), 4))
    settings: dict[str, Any] = {"roles": roles, "models": ("cnn_small", "cnn"), "deal": "size"}
    cards = FleetClients(made(embedding=24, **settings), Local()).cards
    assert {card.sizes["embedding"] for card in cards} == {24}
    assert {card.model for card in cards} == {"gru-24", "cnn_small-24", "cnn-24"}
    assert {c.sizes["embedding"] for c in FleetClients(made(**settings), Local()).cards} == {128}
    assert FleetClients(made(embedding=128), Local()).cards[0].model == "cnn"  # its own size
    with Run(made(), FedAvg(batch=8), Plan(rounds=1, workers=1), folder=tmp_path / "run") as run:
        list(run)
    with pytest.raises(CommunisError):  # a run is not continued with other models
        Run(made(embedding=24), FedAvg(batch=8), Plan(rounds=2, workers=1), folder=tmp_path / "run")


def test_models_on_tokens_have_settings_of_their_own() -> None:
    def names(**settings: Any) -> set[str]:
        return {card.model for card in FleetClients(made(**settings), Local()).cards}

    given = Sglt(tau=0.1, layers=1)
    assert names(models=("sglt",), sglt=given) == {"sglt-tau=0.1-layers=1"}
    # Each follows what makes a difference to it, and keeps its own where nothing is given.
    mixed = ("sglt", "gat", "cnn")
    assert names(models=mixed, sglt=given) == {"sglt-tau=0.1-layers=1", "gat-layers=1", "cnn"}
    assert names(models=("lat",), sglt=given, embedding=16) == {"lat-16-tau=0.1-layers=1"}
    assert names(models=("self_attention",)) == {"self_attention"}
    config = bare({"name": "synthetic"}, ["fleet.models=['sglt']", "fleet.sglt.gate=hard"])
    assert config.fleet.sglt == Sglt(gate="hard")
    again = tomllib.loads(config.to_toml())["fleet"]["sglt"]
    assert (again["gate"], again["tau"], again["relative"]) == ("hard", 0.05, True)


@pytest.mark.slow
def test_clients_of_all_types_train_one_model_on_tokens() -> None:
    """Coarse and dense ones, on every kind of window; a path has one shape in all of them."""
    changes = {"clients": 8, "windows": 20, "target": "all", "lidar_points": 16}
    changes |= {"sensors": ["acc", "csi", "lidar", "depth"], "sites": ["wrist"]}
    small = ["fleet.models=['sglt']", "fleet.types=[0.5, 0.25, 0.25]", "fleet.embedding=8"]
    fleet = bare({"name": "world", **changes}, [*small, "fleet.sglt.layers=1"]).make_fleet()
    assert len(set(fleet.suites)) == 5
    with Run(fleet, FedAvg(batch=16, lr=0.01), Plan(rounds=2, workers=1)) as run:
        losses = [record.loss for record in run]
    assert losses[1] < losses[0]


def test_an_unknown_device_is_refused_and_a_measured_one_is_read(tmp_path: Path) -> None:
    roles = (Role(("m0",), 6, device="my-watch"),)
    with pytest.raises(CommunisError, match="my-watch"):
        made(roles=roles)
    profile = tmp_path / "devices.toml"
    numbers = "flops = 1e9\npower_active = 1\npower_idle = 0.1\npower_radio = 1\nup = 1e6\n"
    profile.write_text(f"[my-watch]\n{numbers}down = 1e6\n")
    assert made(roles=roles, profiles=str(profile)).devices == ["my-watch"] * 6


def test_dropout_makes_samples_zero_and_windows_absent() -> None:
    fleet = made(dropout=BURSTS)
    assert fleet.outages is not None
    trace = fleet.outages.trace
    assert trace is not None
    bound = FleetClients(fleet, FedAvg())
    partly = 0
    for i in range(len(fleet)):
        client, rows = bound.client(i, 1), np.arange(240)[fleet.rows(i)]
        train = rows[fleet.windows.split[rows] == TRAIN]
        # 16 samples in each second of window; timelines of these windows start at 0.
        every = fleet.windows.start[train, None] + np.arange(16) / 16
        lost = [trace.missing(i, m, TRAIN, every).mean(1) > 0.5 for m in fleet.suites[i]]
        some = ~np.all(lost, axis=0)  # the others do not train
        for m in fleet.suites[i]:
            gone = torch.from_numpy(trace.missing(i, m, TRAIN, every)[some])
            values = client.train.inputs[m]
            assert bool((values[gone] == 0).all())
            enough = (~gone).float().mean(1) >= 0.5
            assert torch.equal(client.train.present[m], enough)
            assert bool((values[~enough] == 0).all())
            partly += int((gone.any(1) & ~gone.all(1)).sum())
            assert client.card.samples_by_modality[m] == int(enough.sum())
        assert client.card.samples == some.sum()
    assert partly  # so that the two rules were really put to the test


def test_test_time_may_differ_from_training() -> None:
    never, always = Dropout(), Dropout(kind="iid", rate=0.9)
    clean = FleetClients(made(dropout=never, dropout_test=always), FedAvg()).client(0, 1)
    assert all(bool(flags.all()) for flags in clean.train.present.values())
    assert sum(int(f.sum()) for f in clean.test.present.values()) < 10
    same = FleetClients(made(dropout=always), FedAvg()).client(0, 1)
    assert sum(int(f.sum()) for f in same.test.present.values()) < 10
    spared = FleetClients(made(dropout=always, dropout_test=never), FedAvg()).client(0, 1)
    assert all(bool(flags.all()) for flags in spared.test.present.values())


def test_held_out_windows_are_scored_under_several_draws() -> None:
    """The first draw, training windows and their scale are what they are with one draw; further
    ones are the same windows with other gaps."""
    one = FleetClients(made(dropout=BURSTS), FedAvg())
    three = FleetClients(made(dropout=BURSTS, test_draws=3), FedAvg())
    assert one.cards == three.cards
    patterns = []
    for i in range(6):
        a, b = one.client(i, 1), three.client(i, 1)
        n = len(a.test)
        assert len(b.test) == 3 * n
        assert len(b.val) == 3 * len(a.val)
        assert torch.equal(b.test.target, a.test.target.repeat(3))
        for m in a.card.modalities:
            assert torch.equal(a.train.inputs[m], b.train.inputs[m])
            assert torch.equal(a.test.inputs[m], b.test.inputs[m][:n])
            parts = torch.split(b.test.present[m], n)
            patterns.append(tuple(tuple(part.tolist()) for part in parts))
            both = parts[0] & parts[1]  # what was there in both draws was measured once
            first, second = b.test.inputs[m][:n][both], b.test.inputs[m][n : 2 * n][both]
            whole = (first != 0).all((1, 2)) & (second != 0).all((1, 2))
            assert torch.equal(first[whole], second[whole])
    assert any(len(set(draws)) == 3 for draws in patterns)
    again = FleetClients(made(dropout=BURSTS, test_draws=3), FedAvg()).client(0, 1)
    assert all(
        torch.equal(again.test.present[m], three.client(0, 1).test.present[m])
        for m in again.card.modalities
    )


def test_streams_that_single_windows_lack_are_drawn_again_too() -> None:
    fleet = made(types=(0.0, 0.0, 1.0), type_drop=0.5, test_draws=2)
    test = FleetClients(fleet, FedAvg()).client(0, 1).test
    flags = torch.stack(list(test.present.values()))
    first, second = torch.split(flags, len(test) // 2, dim=1)
    assert not torch.equal(first, second)


def test_several_draws_of_nothing_are_refused() -> None:
    with pytest.raises(CommunisError, match="but there is no dropout to draw"):
        made(test_draws=2)
    with pytest.raises(CommunisError, match="nothing drops out of validation and test windows"):
        made(dropout=BURSTS, dropout_test=Dropout(), test_draws=2)


def test_a_checkpoint_is_not_continued_under_other_draws(tmp_path: Path) -> None:
    plan = Plan(rounds=1, workers=1)
    with Run(made(dropout=BURSTS), FedAvg(batch=8), plan, folder=tmp_path / "run") as run:
        list(run)
    with pytest.raises(CommunisError):
        Run(made(dropout=BURSTS, test_draws=2), FedAvg(batch=8), plan, folder=tmp_path / "run")


def test_normalisation_sees_only_what_was_there() -> None:
    client = FleetClients(made(dropout=BURSTS), FedAvg()).client(2, 1)
    for m, values in client.train.inputs.items():
        there = values[client.train.present[m]]
        known = there[(there != 0).any(-1)]
        assert known.mean(0) == pytest.approx([0, 0], abs=0.25)
        assert known.std(0) == pytest.approx([1, 1], abs=0.25)


def test_a_saved_trace_is_replayed(tmp_path: Path) -> None:
    first = made(dropout=BURSTS)
    assert first.outages is not None
    assert first.outages.trace is not None
    path = tmp_path / "trace.parquet"
    first.outages.trace.save(path)
    again = made(5, trace=str(path))
    for i in range(6):
        a, b = (FleetClients(f, FedAvg()).client(i, 1) for f in (first, again))
        for m in a.train.present:
            assert torch.equal(a.train.present[m], b.train.present[m])
    other = FleetConfig(trace=str(path))
    with pytest.raises(Refused, match="is of 6 clients"):
        other.make(data(), Partition(by="dirichlet", clients=3), Streams(0))


def test_a_run_keeps_its_trace_and_resumes_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plan = Plan(rounds=2, workers=1)
    with Run(made(dropout=BURSTS), FedAvg(batch=8), plan, folder=folder) as run:
        list(run)
    kept = Trace.load(folder / "availability.parquet")
    trace = made(dropout=BURSTS).outages
    assert trace is not None
    assert trace.trace is not None
    assert np.array_equal(kept.start, trace.trace.start)
    other = made(dropout=Dropout(kind="markov", operating=5.0, missing=5.0))
    with pytest.raises(CommunisError):
        Run(other, FedAvg(batch=8), Plan(rounds=3, workers=1), folder=folder)


def test_client_types_see_coarse_dense_or_mixed() -> None:
    fleet = made(types=(0.5, 0.25, 0.25), type_drop=0.5)
    assert fleet.outages is not None
    bound = FleetClients(fleet, FedAvg())
    steps = {i: bound.client(i, 1).train.inputs for i in range(6)}
    coarse = [i for i in range(6) if fleet.coarse[i]]
    assert len(coarse) == 3
    for i, inputs in steps.items():
        lengths = {x.shape[1] for x in inputs.values()}
        assert lengths == ({4} if i in coarse else {16})
    mixed = [i for i in range(6) if len(fleet.suites[i]) == 3]
    for i in mixed:
        flags = torch.stack(list(bound.client(i, 1).train.present.values()))
        assert 0.2 < float((~flags).float().mean()) < 0.7
        assert bool(flags.any(0).all())  # never all streams at once
        assert bound.cards[i].samples_by_modality["m0"] == int(flags[0].sum())
    with Run(fleet, FedAvg(batch=8), Plan(rounds=2, workers=1)) as run:
        assert all(np.isfinite(record.loss) for record in run)


def test_a_fleet_may_be_scaled_as_a_whole() -> None:
    parts = [FleetClients(made(normalise="fleet"), FedAvg()).client(i, 1).train for i in range(6)]
    pooled = torch.cat([part.inputs["m1"] for part in parts]).reshape(-1, 2)
    assert pooled.mean(0) == pytest.approx([0, 0], abs=1e-4)
    assert pooled.std(0) == pytest.approx([1, 1], abs=1e-3)
    own = parts[0].inputs["m1"].reshape(-1, 2)
    assert abs(float(own.std(0)[0]) - 1) > 1e-3


def test_who_is_offline_is_not_asked() -> None:
    fleet = made(online=Online(kind="iid", share=0.4))
    with Run(fleet, FedAvg(batch=8), Plan(rounds=6, workers=1, eval_every=0)) as run:
        records = list(run)
    for record in records:
        there = fleet.online.who(6, record.round, fleet.streams)
        assert set(record.cohort) == set(np.flatnonzero(there).tolist())
    assert len({record.cohort for record in records}) > 1


def test_a_round_in_which_nobody_is_online_changes_nothing() -> None:
    fleet = made(online=Online(kind="iid", share=1e-9))
    with Run(fleet, FedAvg(batch=8), Plan(rounds=2, workers=1)) as run:
        before = run.server
        records = list(run)
        assert run.server is before or run.server == before
    assert [record.cohort for record in records] == [(), ()]
    assert records[0].bytes_up == records[0].bytes_down == 0
    assert records[-1].scores  # everybody is still scored


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"roles": (Role(("m0",), 6),), "suites": Suites("severe")}, "give only one"),
        ({"types": (0.5, 0.5)}, "three shares"),
        ({"trace": "x.parquet", "dropout": BURSTS}, "give only one"),
        ({"trace": "x.parquet", "test_draws": 2}, "a saved trace is one draw"),
        ({"test_draws": 0}, "test_draws must be at least 1, got 0"),
        ({"models": ("cnm",)}, "did you mean 'cnn'"),
        ({"embedding": -1}, "embedding must be at least 0"),
        (
            {"models": ("cnn", "tpn"), "embedding": 64},
            "embedding = 64: the embedding size of tpn follows",
        ),
        (
            {"roles": (Role(("m0",), 6, model="cnn_attention"),), "embedding": 64},
            "the embedding size of cnn_attention follows",
        ),
        ({"models": ("large_convnet4",), "embedding": 63}, "large_convnet4 needs an even number"),
        ({"models": ("sglt",), "embedding": 30}, "heads = 4 does not divide an embedding of 30"),
        ({"sglt": Sglt(tau=0.1)}, "sglt: tau would change nothing in cnn; .* it: sglt, sglt_paper"),
        (
            {"models": ("gat", "cnn"), "sglt": Sglt(gate="hard", knn=3)},
            "sglt: gate would change nothing in gat, cnn; .* uses it: sglt, sglt_paper, lat$",
        ),
        ({"roles": (Role(("m0",), 6, model="cnm"),)}, "did you mean 'cnn'"),
    ],
)
def test_tables_that_contradict_themselves_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(CommunisError, match=said):
        FleetConfig(**settings)


def test_everything_can_be_said_in_toml_and_said_again() -> None:
    config = bare(
        {"name": "synthetic"},
        [
            "partition.by=virtual",
            "partition.per_owner=2",
            "fleet.suites.preset=moderate",
            'fleet.models=["cnn_small","cnn"]',
            "fleet.deal=size",
            "fleet.embedding=32",
            "fleet.dropout.kind=markov",
            "fleet.dropout.preset=pamap2-severe",
            "fleet.online.kind=daily",
            "fleet.online.share=0.5",
        ],
    )
    fleet = config.make_fleet()
    assert len(fleet) == 20
    import tomllib

    from communis.core.settings import build
    from communis.run.config import Config

    again: Config = build(Config, tomllib.loads(config.to_toml()), "")
    assert again.fleet == config.fleet
    assert again.partition == config.partition
    assert again.make_fleet().suites == fleet.suites
    assert again.make_fleet().models == fleet.models


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("fleet.dropout.kind=markof", "did you mean 'markov'"),
        ("fleet.dropout_test.kind=iid", r"\[fleet.dropout_test\]"),
        ("partition.bye=subject", "did you mean 'by'"),
        ("fleet.suites=3", "expected a table"),
        ("fleet.deal=sise", "did you mean 'size'"),
    ],
)
def test_mistakes_in_tables_name_the_key(override: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        bare({"name": "synthetic"}, [override])


def test_windows_that_no_sensor_saw_do_not_train_but_are_tested() -> None:
    present = {m: np.ones(240, bool) for m in ("m0", "m1", "m2")}
    for flags in present.values():
        flags[:10] = False  # of the first client
        flags[36:40] = False  # its last test windows
    roles = (Role(("m0", "m1", "m2"), 6),)
    fleet = FleetConfig(roles=roles).make(data(present=present), Partition(), Streams(0))
    client = FleetClients(fleet, FedAvg()).client(0, 1)
    assert len(client.train) == client.card.samples == 14  # of 24
    assert client.card.samples_by_modality["m1"] == 14
    assert len(client.test) == 8
    assert not client.test.present["m0"][4:].any()


def test_samples_missing_before_count_when_sensors_fall_silent() -> None:
    source = data(present={"m0": np.ones(240, bool)})
    source.inputs["m0"][:, :, :8] = np.nan  # half of every window, just enough
    fleet = FleetConfig(dropout=BURSTS).make(source, Partition(), Streams(0))
    assert fleet.outages is not None
    trace = fleet.outages.trace
    assert trace is not None
    partly = 0
    for i in range(6):
        client, rows = FleetClients(fleet, FedAvg()).client(i, 1), fleet.rows(i)
        test = rows[fleet.windows.split[rows] == TEST]
        times = fleet.windows.start[test, None] + np.arange(16) / 16
        there = ~trace.missing(i, "m0", TEST, times)
        expected = there[:, 8:].mean(1) == 1  # any more loss is too much
        partly += int((there.any(1) & ~there.all(1)).sum())
        assert client.test.present["m0"].tolist() == expected.tolist()
    assert partly


def test_the_fleet_is_scaled_by_what_its_owners_sensed() -> None:
    roles = (Role(("m0",), 3), Role(("m1",), 3))
    plain = FleetConfig(normalise="fleet", roles=roles).make(data(), Partition(), Streams(0))
    loud = data()
    strangers = [i for i in range(6) if plain.suites[i] != ("m0",)]
    loud.inputs["m0"][np.isin(loud.owner, strangers)] *= 100
    other = FleetConfig(normalise="fleet", roles=roles).make(loud, Partition(), Streams(0))
    mine = next(i for i in range(6) if plain.suites[i] == ("m0",))
    a, b = (FleetClients(f, FedAvg()).client(mine, 1).train.inputs["m0"] for f in (plain, other))
    assert torch.equal(a, b)


def test_a_trace_of_other_timelines_is_refused_and_least_travels_with_it(tmp_path: Path) -> None:
    strict = Dropout(kind="markov", operating=10.0, missing=5.0, least=0.9)
    first = made(dropout=strict)
    assert first.outages is not None
    assert first.outages.trace is not None
    assert first.outages.trace.least == (0.9, 0.9, 0.9)
    lenient = made(dropout=BURSTS).counts[1]["m0"].sum()
    assert 0 < first.counts[1]["m0"].sum() < lenient  # the same bursts, judged more strictly
    first.outages.trace.save(tmp_path / "t.parquet")
    again = made(trace=str(tmp_path / "t.parquet"))
    for i in range(6):
        a, b = (FleetClients(f, FedAvg()).client(i, 1).train.present for f in (first, again))
        assert all(torch.equal(a[m], b[m]) for m in a)
    longer = data(seconds=2.0, start=np.tile(np.arange(40) * 2.0, 6))
    with pytest.raises(CommunisError, match="drawn for other windows"):
        FleetConfig(trace=str(tmp_path / "t.parquet")).make(longer, Partition(), Streams(0))
    with pytest.raises(CommunisError, match="no such trace"):
        made(trace=str(tmp_path / "gone.parquet"))


def test_a_checkpoint_is_not_continued_with_other_windows(tmp_path: Path) -> None:
    plan = Plan(rounds=1, workers=1)
    with Run(made(), FedAvg(batch=8), plan, folder=tmp_path / "run") as run:
        list(run)
    other = data()
    other.inputs["m2"][0] += 1
    fleet = FleetConfig().make(other, Partition(), Streams(0))
    with pytest.raises(CommunisError):
        Run(fleet, FedAvg(batch=8), Plan(rounds=2, workers=1), folder=tmp_path / "run")


def test_in_a_graph_nodes_that_are_offline_hear_nothing() -> None:
    fleet = made(3, online=Online(kind="iid", share=0.5))
    with Run(fleet, FedAvg(batch=8), Plan(rounds=1, workers=1), topology=ring(6)) as run:
        before = dict(run.servers)
        (record,) = list(run)
        links = run.links()
    there = fleet.online.who(6, 1, fleet.streams)
    assert set(record.cohort) == set(np.flatnonzero(there).tolist())
    assert 0 < there.sum() < 6
    for node in range(6):
        assert (run.servers[node] is before[node]) == (not there[node])
    assert all(there[int(receiver)] for receiver in links["receiver"])


def test_padding_adds_no_point_to_a_cloud() -> None:
    rng = np.random.default_rng(0)
    cloud = rng.standard_normal((12, 4, 10)).astype(np.float32)
    cloud[:, :, 6:] = np.nan
    cloud[3] = np.nan  # nothing at all
    changes: dict[str, Any] = {"inputs": {"lidar": cloud}, "kinds": {"lidar": "points"}}
    changes |= {name: getattr(data(), name)[:12] for name in ("target", "split", "owner", "start")}
    few = data(
        **changes, present={}, scene=[0] * 12, session=[0] * 12, trial=[0] * 12, recording=[0] * 12
    )
    train = FleetClients(Fleet.of(few), FedAvg()).client(0, 1).train
    points = train.inputs["lidar"]
    first = points[:, :1].expand(-1, 4, -1)
    assert torch.equal(points[:, 6:], first)
    assert len(points) == 11  # the empty one does not train


@pytest.mark.slow
def test_runs_that_differ_in_partition_do_not_share_a_fleet(tmp_path: Path) -> None:
    from communis.cli.jobs import View, carry_out
    from communis.run.jobs import Home, Job

    todo = []
    for by, clients in (("subject", 10), ("virtual", 20)):
        extra = ["partition.per_owner=2"] if by == "virtual" else []
        settings = [f"partition.by={by}", *extra, "run.rounds=1", "run.workers=1"]
        config = bare({"name": "synthetic", "windows": 60}, settings)
        todo.append((Job(config, tmp_path / by), clients))
    carry_out([job for job, _ in todo], Home(tmp_path), View(quiet=True))
    for job, clients in todo:
        import json

        assert len(json.loads((job.folder / "fleet.json").read_text())["clients"]) == clients
