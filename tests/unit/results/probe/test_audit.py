"""Audits of real runs: what is private survives, what is broken does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from communis.core.errors import CommunisError
from communis.core.settings import build
from communis.core.streams import Streams
from communis.exchange.privacy import central, gaussian, guard
from communis.results.probe.audit import audit
from communis.results.probe.canaries import LOUD, Canaries, planted, singing
from communis.run.config import Config
from tests.unit.small import random

FEW = 30


def config(privacy: Mapping[str, Any], **changes: Any) -> Config:
    table: dict[str, Any] = {
        "data": {"name": "synthetic", "clients": 3, "windows": 60, "modalities": 1, "steps": 8},
        "fleet": {"models": ["cnn_small"], "embedding": 8},
        "method": {"name": "fedavg", "uniform": True},
        "privacy": dict(privacy),
        "run": {"rounds": 2, "workers": 1},
    }
    made: Config = build(Config, {**table, **changes}, "")
    return made


def silence(like: Tensor, generator: np.random.Generator) -> Tensor:
    return torch.zeros_like(like)


def test_local_privacy_survives_and_its_claim_is_what_was_asked_for() -> None:
    told: list[tuple[int, int]] = []
    found = audit(
        config({"mode": "local", "epsilon": 4.0}), FEW, lambda done, of: told.append((done, of))
    )
    assert found.claimed == pytest.approx(4.0, rel=1e-8)  # a budget leaves 1e-9 of the noise
    assert found.claimed <= 4.0
    assert found.adjacency == "one client's data replaced"
    assert (found.rounds, found.bound.canaries) == (2, FEW)
    assert not found.refuted
    assert told == [(1, 2), (2, 2)]


def test_local_privacy_without_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "normal", silence)
    found = audit(config({"mode": "local", "epsilon": 1.0}), FEW)
    assert found.bound.right == found.bound.guesses
    assert found.bound.epsilon == found.bound.highest > found.claimed
    assert found.refuted


def test_local_privacy_without_clipping_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "clip", lambda change, bound: (dict(change), False))
    assert audit(config({"mode": "local", "epsilon": 1.0}), FEW).refuted


@pytest.mark.slow
def test_echoes_of_all_rounds_add_up() -> None:
    """Four rounds of mu = 1.5 are one of mu = 3; more is proved than one could give."""
    private = config({"mode": "local", "noise": 1 / 1.5}, run={"rounds": 4, "workers": 1})
    found = audit(private, 50)
    assert found.claimed == pytest.approx(gaussian.epsilon_of(3.0, 1e-5), rel=1e-9)
    assert not found.refuted
    assert found.bound.gaussian is not None
    assert found.bound.gaussian > gaussian.epsilon_of(1.5, 1e-5)


@pytest.mark.slow
def test_central_privacy_survives() -> None:
    private = config({"mode": "central", "epsilon": 1.0}, run={"rounds": 2, "participation": 0.7})
    found = audit(private, FEW)
    assert found.adjacency == "one client more or less"
    assert 0.9 < found.claimed <= 1.0
    assert not found.refuted
    assert found.bound.gaussian is None  # they meet in one sum


def test_central_privacy_without_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(central, "normal", silence)
    found = audit(config({"mode": "central", "epsilon": 1.0}), FEW)
    assert found.bound.right == found.bound.guesses == FEW
    assert found.refuted


def test_without_privacy_everything_is_seen() -> None:
    found = audit(config({}), 8)
    assert found.claimed == np.inf
    assert not found.refuted  # nothing was claimed
    assert found.bound.right == found.bound.guesses == 8


def test_the_papers_mechanism_leaves_the_rest_in_clear() -> None:
    found = audit(
        config(
            {"mode": "paper", "epsilon": 0.5},
            method={"name": "umeda", "rank": 2, "consensus": "spectral_mean"},
            fleet={"models": ["sglt"], "embedding": 8, "sglt": {"layers": 1, "heads": 2}},
            run={"rounds": 1, "workers": 1},
        ),
        FEW,
    )
    assert found.bound.right == found.bound.guesses
    assert found.refuted


def test_what_cannot_be_audited_is_refused() -> None:
    private = {"mode": "central", "epsilon": 1.0}
    with pytest.raises(CommunisError, match=r"method\.name=fedavg"):
        audit(config(private, method={"name": "fedopt"}), 5)
    with pytest.raises(CommunisError, match=r"500 canaries: .* expected 1 to 54"):
        audit(config({}), 500)


def test_canaries_take_over_windows_and_their_hosts_sensors() -> None:
    fleet = build(
        Config, {"data": {"name": "synthetic", "clients": 3, "windows": 20}}, ""
    ).make_fleet()
    more = planted(fleet, 6)
    assert len(more) == 9
    counts, _ = more.counts
    assert counts[3:].tolist() == [1] * 6
    assert counts.sum() == fleet.counts[0].sum()
    assert more.suites[3:] == [fleet.suites[0]] * 6
    assert len(fleet) == 3


def test_what_canaries_send_and_hear() -> None:
    birds = Canaries(5, 3, Streams(0), clip=2.0, clips={"v": 0.5})
    down = {"w/a": random(4, 3), "w/b": random(6, seed=1), "n": torch.tensor(3)}
    up = {**down, "v/c": random(5, seed=2)}
    assert [birds.has(i) for i in (4, 5, 7, 8)] == [False, True, True, False]
    for client in (5, 6, 7):
        sent = birds.message(client, up, down)
        change = {k: sent[k] - down[k] if k in down else sent[k] for k in ("w/a", "w/b", "v/c")}
        whole = torch.cat([change["w/a"].flatten(), change["w/b"]])
        assert float(whole.norm()) == pytest.approx(LOUD * 2.0, rel=1e-5)
        assert float(change["v/c"].norm()) == pytest.approx(LOUD * 0.5, rel=1e-5)
        assert sent["n"] == 3
        clipped = {k: t / LOUD for k, t in change.items()}
        assert birds.echo(client, clipped) == pytest.approx(
            birds.coin(client), rel=1e-5
        )  # single precision
        other = 5 if client != 5 else 6
        assert abs(birds.echo(other, clipped)) < 0.9


def test_tails_is_no_change_under_add_or_remove() -> None:
    birds = Canaries(0, 20, Streams(1), signed=False)
    down = {"w/a": random(50)}
    for client, coin in enumerate(birds.coins):
        same = torch.equal(birds.message(client, down, down)["w/a"], down["w/a"])
        assert same == (coin < 0)
    assert 4 <= (birds.coins > 0).sum() <= 16


def test_others_train_as_ever() -> None:
    method = config({}).make_method()
    made = singing(method, Canaries(3, 2, Streams(0)))
    assert isinstance(made, type(method))
    assert vars(made) == vars(method)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"method": {"name": "local"}}, "there would be none"),
        ({"method": {"name": "centralized"}}, "there would be none"),
        ({"run": {"rounds": 0, "workers": 1}}, "there would be none"),
    ],
)
def test_without_messages_there_is_nothing_to_audit(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CommunisError, match=text):
        audit(config({}, **changes), 5)


def test_a_bound_that_adapts_is_not_audited() -> None:
    adaptive = {"mode": "central", "noise": 1.0, "adaptive": True}
    with pytest.raises(CommunisError, match="audit with adaptive = false"):
        audit(config(adaptive, method={"name": "fedavg", "uniform": True}), 5)
