"""No set is ever iterated: the numbers of a run do not depend on PYTHONHASHSEED."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.contract.abilities import METHODS

CODE = """
import hashlib
from tests.contract.test_methods import finished, numbers
from tests.contract.abilities import METHODS
for name in METHODS:
    print(name, hashlib.sha256(repr(numbers(finished(name))).encode()).hexdigest())
"""


@pytest.mark.slow
def test_two_hash_seeds_give_the_same_bits() -> None:
    """One process per seed runs every method."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", CODE],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == len(METHODS)
