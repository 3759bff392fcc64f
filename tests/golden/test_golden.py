"""One small run per method, with its numbers on file: a change of behaviour cannot go unnoticed.

Numbers are compared with a relative tolerance, because matrix libraries add up in another order on
other processors. Those on file come from another one than AMD's EPYC with AVX-512 (family 26, torch
2.13.0), where they were measured again, also restricted to AVX2, to SSE4.1 with plain kernels
(ATEN_CPU_CAPABILITY=default, ONEDNN_MAX_CPU_ISA=SSE41, MKL_CBWR=COMPATIBLE), and with four threads.
Largest relative deviations: 5e-6 of a loss and 6e-6 of an NLL (fedpcl), 2.1e-5 of a norm (umeda on
sglt); without these two methods 3e-7. RELATIVE is ten times the largest.

After a change that is meant: `COMMUNIS_GOLDEN=write pytest tests/golden`; the commit says why.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from communis import Fleet, Plan, Run
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.wire import flatten
from tests.contract.abilities import METHODS
from tests.fleets import TOKENS, make, mixed_fleet
from tests.unit.methods import tiny

RELATIVE = 2e-4
FILE = Path(__file__).with_name("golden.json")


# What a method's defaults on the common fleet do not show: its settings.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "umeda on sglt": ("umeda", {"rank": 3, "warmup": 1}),
    "fedavg under local privacy": ("fedavg", {}),
    "fedavg under central privacy": ("fedavg", {"uniform": True}),
}
PRIVACY = {
    "fedavg under local privacy": PrivacyConfig(mode="local", noise=0.01),
    "fedavg under central privacy": PrivacyConfig(mode="central", noise=0.01, adaptive=True),
}


def many() -> Fleet:
    """Nine clients on tokens: enough for a diffusion."""
    targets = [(0, 1, 2, i % 3) for i in range(9)]
    return tiny.fleet(targets, models=(TOKENS,), held_out=3)


def measure(name: str) -> dict[str, object]:
    method, settings = OTHERS.get(name, (name, {}))
    fleet = many() if name == "umeda on sglt" else mixed_fleet()
    plan, privacy = Plan(rounds=4, workers=1, eval_every=2), PRIVACY.get(name)
    with Run(fleet, make(method, **settings), plan, privacy=privacy) as run:
        records = list(run)
    weights = [t.double() for t in flatten(run.server).values() if t.is_floating_point()]
    return {
        "loss": [record.loss for record in records],
        "bytes_up": [record.bytes_up for record in records],
        "bytes_down": [record.bytes_down for record in records],
        "nll": records[-1].scores["test.nll"],
        "server_norm": float(sum(t.square().sum() for t in weights)) ** 0.5,
    }


@pytest.mark.parametrize("name", [*METHODS, *OTHERS])
def test_numbers_are_those_on_file(name: str) -> None:
    found = measure(name)
    golden = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    if os.environ.get("COMMUNIS_GOLDEN") == "write":
        text = json.dumps({**golden, name: found}, indent=1, sort_keys=True)
        FILE.write_text(text + "\n", "utf-8")
        return
    expected = golden[name]
    assert found["bytes_up"] == expected["bytes_up"]
    assert found["bytes_down"] == expected["bytes_down"]
    # No absolute tolerance: pytest's own, 1e-12, would be one.
    for key in ("loss", "nll", "server_norm"):
        assert found[key] == pytest.approx(expected[key], rel=RELATIVE, abs=0.0), key
