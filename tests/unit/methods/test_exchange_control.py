"""exchange = false: the same loss with the client's own prototypes, and nothing is sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Fleet, Plan, Run
from communis.core.plugins import find
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.topology import Apart, ring
from communis.exchange.wire import flatten, load
from communis.results.finished import read
from communis.results.graph import topology
from communis.results.wording.warnings import warnings
from communis.run.backends.executor import MEMORY, StateStore
from tests.contract.abilities import METHODS
from tests.fleets import make, mixed_fleet
from tests.unit.methods.tiny import fleet, mixed, play, same

CONTROLLED = [name for name in METHODS if "exchange" in find("methods", name).__dataclass_fields__]
PLAN = Plan(rounds=4, workers=1, eval_every=2)


def ran(name: str, made: Fleet, **options: Any) -> Run:
    with Run(made, make(name, exchange=False), PLAN, **options) as run:
        list(run)
    return run


def test_who_has_it() -> None:
    assert CONTROLLED == ["comfed", "fedapa", "fedpcl", "fedproto"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLLED)
def test_nothing_is_sent(name: str) -> None:
    """No link carries a byte, whatever topology was asked for; yet clients train and are scored."""
    for given in (None, ring(5)):
        run = ran(name, mixed_fleet(), topology=given)
        assert isinstance(run.topology, Apart)
        assert not len(run.links())
        assert {(r.bytes_up, r.bytes_down, r.bytes_framing) for r in run.history} == {(0, 0, 0)}
        assert not any(record.refused for record in run.history)
        assert set(run.scores()["client"]) == set(range(5))
        assert run.folder.accounted()["tensors"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLLED)
def test_a_client_does_not_depend_on_the_data_of_others(name: str) -> None:
    """With exchange it does."""
    made = mixed_fleet()
    others = made.clients_of != 4
    draw = np.random.default_rng(0)
    inputs = {m: x.copy() for m, x in made.windows.inputs.items()}
    for x in inputs.values():
        x[others] = draw.standard_normal(x[others].shape)
    changed = replace(made, windows=replace(made.windows, inputs=inputs))
    for exchange in (False, True):
        found = []
        for each in (made, changed):
            with Run(each, make(name, exchange=exchange), PLAN) as run:
                list(run)
            scores = run.scores().query("client == 4 and metric == 'nll'")
            found.append(scores["value"].tolist())
        assert (found[0] == found[1]) == (not exchange)


@pytest.mark.parametrize("name", CONTROLLED)
def test_it_is_a_fleet_in_which_the_others_are_silent(name: str) -> None:
    """The same bits as with a server that has heard of this client alone."""
    method = make(name, exchange=False)
    alone = play(mixed(), make(name), cohorts=[[0]] * 4)
    with Run(mixed(), method, PLAN) as run:
        list(run)
        kept = load(StateStore(run.folder.clients, run.folder.experiment).read(0, 4))
    found = {key: t for key, t in kept.items() if not key.startswith(MEMORY)}
    assert same(found, flatten(alone.states[0]))


def test_own_prototypes_pull() -> None:
    """It is not Local: the loss is there from the second round on."""
    local = play(fleet(), make("local"), rounds=3)
    for name, changes in (("fedproto", {}), ("fedapa", {"warmup": 0}), ("fedpcl", {})):
        game = play(fleet(), make(name, **changes), cohorts=[[0]] * 3)
        model = game.states[0].model
        assert any(not bool((model[k] == t).all()) for k, t in local.states[0].items())


def test_reports_speak_of_no_graph(tmp_path: Path) -> None:
    config = 'seed = 0\n[method]\nname = "fedproto"\n[run]\nrounds = 3\n'
    ran("fedproto", mixed_fleet(), folder=tmp_path, config=config)
    finished = read(tmp_path)
    assert finished.fleet["topology"]["kind"] == "apart"
    assert not topology(finished)
    assert not any("falls into" in text for text in warnings([finished]))


def test_privacy_of_what_never_leaves_is_refused() -> None:
    """It would noise a client's own prototypes and spend a budget for nothing."""
    for mode in ("local", "central"):
        privacy = PrivacyConfig(mode=mode, noise=1.0)
        with pytest.raises(CommunisError, match="exchange = false: nothing leaves a client"):
            Run(mixed_fleet(), make("fedproto", exchange=False), privacy=privacy)
