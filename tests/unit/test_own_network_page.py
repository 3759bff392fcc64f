"""The encoder of a library on the page of own networks, where the library is installed."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from communis import FedAvg, Fleet, Plan, Run, Streams
from communis.data.sources.synthetic import Synthetic

PAGE = Path(__file__).parents[2] / "docs" / "start" / "own-network.md"


def test_the_encoder_of_braindecode_trains() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what braindecode imports
        try:
            import braindecode.models  # noqa: F401
        except (ImportError, OSError) as error:  # torchaudio of another build than torch
            pytest.skip(f"braindecode cannot be imported: {error}")
        (block,) = re.findall(r"```python\n(# eeg_network\.py.*?)```", PAGE.read_text(), re.DOTALL)
        space: dict[str, object] = {"__name__": "eeg_network"}
        exec(compile(block, "eeg_network.py", "exec", dont_inherit=True), space)
        windows = Synthetic(clients=3, windows=20, classes=3).load(Streams(0))
        suites = [("m0", "m1", "m2"), ("m1",), ("m0", "m2")]
        fleet = Fleet(windows, suites, models=(space["EEG"],))  # type: ignore[arg-type]
        with Run(fleet, FedAvg(batch=8), Plan(rounds=2, workers=1)) as run:
            records = list(run)
    assert not any(record.refused for record in records)
    assert np.isfinite(run.scores()["value"]).all()
    assert any(path.startswith("encoders.m1.net.") for path in run.cards[1].params)
