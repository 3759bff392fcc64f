"""One small run per method, with its numbers on file: a change of behaviour cannot go unnoticed.

Numbers are compared with a tolerance, because matrix libraries differ between processors.
After a change that is meant: `COMMUNIS_GOLDEN=write pytest tests/golden`; the commit says why.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from communis import Plan, Run
from communis.wire import flatten
from tests.fleets import METHODS, make, mixed_fleet

FILE = Path(__file__).with_name("golden.json")


def measure(name: str) -> dict[str, object]:
    with Run(mixed_fleet(), make(name), Plan(rounds=4, workers=1, eval_every=2)) as run:
        records = list(run)
    weights = [t.double() for t in flatten(run.server).values() if t.is_floating_point()]
    return {
        "loss": [record.loss for record in records],
        "bytes_up": [record.bytes_up for record in records],
        "bytes_down": [record.bytes_down for record in records],
        "nll": records[-1].scores["test.nll"],
        "server_norm": float(sum(t.square().sum() for t in weights)) ** 0.5,
    }


@pytest.mark.parametrize("name", METHODS)
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
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    assert found["nll"] == pytest.approx(expected["nll"], rel=5e-3)
    assert found["server_norm"] == pytest.approx(expected["server_norm"], rel=1e-3)
