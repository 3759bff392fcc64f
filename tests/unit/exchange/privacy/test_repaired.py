"""Messages that local privacy has noised are still messages: no server refuses them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Plan, Run
from communis.exchange.privacy.central import blind
from communis.exchange.privacy.guard import Block, Guard
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.wire import Received, check, flatten, payload_types, unflatten
from tests.contract.abilities import SENDING
from tests.fleets import make, mixed_fleet
from tests.unit.methods.tiny import THREE, Game, fleet, play, same

LOCAL = PrivacyConfig(mode="local", noise=1.0)
REPAIRED = ["caring", "fednova", "fedproto", "pmcmfl", "fedpcl", "fedapa", "fedapa sparse"]


@cache
def game(name: str) -> Game:
    """Two rounds of three clients, who have all classes, two of them and one."""
    name, _, option = name.partition(" ")
    return play(fleet(THREE), make(name, **({option: True} if option else {})), rounds=2)


def noised(up: Any, kind: Any, sigma: float, seed: int) -> Any:
    flat = flatten(up)
    guard = Guard({key.partition("/")[0]: Block(1.0, sigma) for key in flat})
    sent, _ = guard.protect(flat, {}, {}, 1, np.random.default_rng(seed))
    return unflatten(sent, kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", SENDING)
def test_nobody_is_refused(name: str) -> None:
    plan = Plan(rounds=2, workers=1, eval_every=0)
    with Run(mixed_fleet(), make(name), plan, privacy=LOCAL) as run:
        assert [record.refused for record in run] == [()] * 2


@pytest.mark.parametrize("name", REPAIRED)
def test_a_true_message_keeps_its_bits(name: str) -> None:
    played = game(name)
    for sent in played.ups:
        for up in sent.values():
            assert same(flatten(up.repaired()), flatten(up))


@pytest.mark.parametrize("name", REPAIRED)
@pytest.mark.parametrize("sigma", [3.0, 1e4, 1e12, 1e30])
def test_no_noise_is_too_much(name: str, sigma: float) -> None:
    played = game(name)
    kind, refused = payload_types(type(played.method))[-1], 0
    for sent in played.ups:
        for id, up in sent.items():
            card, raw = blind(played.bound.cards[id]), noised(up, kind, sigma, id)
            try:
                raw.check(card, played.method)
            except CommunisError:
                refused += 1
            repaired = raw.repaired()
            check(Received(repaired, flatten(repaired)), card, played.method.sends(card))
            repaired.check(card, played.method)
            assert same(flatten(repaired.repaired()), flatten(repaired))
    assert refused  # or there was nothing to repair
