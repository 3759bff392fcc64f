"""A message is flattened once where it is sent and rebuilt once where it arrives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from communis import FedAvg, Plan, Run
from communis.exchange import wire
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.topology import ring
from communis.fleet.attack import Attack
from communis.methods import fedavg
from communis.run.backends import executor
from tests.fleets import mixed_fleet

CLIENTS = len(mixed_fleet())
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "local privacy": {"privacy": PrivacyConfig(mode="local", epsilon=50.0)},
    "central privacy": {"privacy": PrivacyConfig(mode="central", noise=1.0)},
    "attack": {"attack": Attack("sign_flip", (1,))},
    "replay": {"attack": Attack("replay", (1,))},
    "graph": {"topology": ring(CLIENTS)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_message_is_flattened_once_and_rebuilt_once(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()
    rebuild = wire.unflatten

    def flatten(payload: Any, take_apart: Any = wire.flatten) -> Any:
        counted[f"flattened {type(payload).__name__}"] += 1
        return take_apart(payload)

    def unflatten(flat: Any, kind: Any) -> Any:
        counted[f"rebuilt {getattr(kind, '__name__', kind)}"] += 1
        return rebuild(flat, kind)

    for module in (wire, executor):
        monkeypatch.setattr(module, "flatten", flatten)
        monkeypatch.setattr(module, "unflatten", unflatten)
    options = dict(CASES[case])
    fleet = replace(mixed_fleet(), attack=options.pop("attack", Attack()))
    plan = Plan(rounds=1, workers=1, eval_every=9)
    central = case == "central privacy"
    with Run(fleet, FedAvg(batch=8, uniform=central), plan, **options) as run:
        counted.clear()  # what a rehearsal took
        record = run._next()
    senders = len(record.cohort)
    assert senders == CLIENTS
    assert counted[f"flattened {fedavg.Up.__name__}"] == senders
    sums = 2 if central else 0  # the noised sum, and what it is a change of
    assert counted[f"rebuilt {fedavg.Up.__name__}"] == senders + sums
