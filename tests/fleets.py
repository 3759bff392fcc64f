"""Small fleets that the tests share."""

from __future__ import annotations

from typing import Any

from communis import Fleet, Streams
from communis.core.plugins import find, names
from communis.data.sources.synthetic import Synthetic
from communis.fleet.availability.roles import Role, cast
from communis.fleet.fleet import AnyMethod
from communis.models.sglt import Sglt
from communis.models.zoo import Architecture

SMALL = Architecture(width=4, embedding=8, norm=True)
TOKENS = Architecture(
    "tokens", fusion="sglt", embedding=8, sglt=Sglt(heads=2, layers=1, operator_rank=3)
)
METHODS = names("methods")
FEDERATED = [name for name in METHODS if not find("methods", name)().needs.raw_data]
SENDING = [name for name in FEDERATED if name != "local"]


def mixed_fleet(seed: int = 0, **changes: Any) -> Fleet:
    """Five clients, three sensor suites, windows with missing sensors, BatchNorm in the models."""
    streams = Streams(seed)
    source = Synthetic(
        clients=5, windows=20, classes=3, steps=16, channels=2, missing=0.2, noise=0.5
    )
    windows = source.load(streams)
    roles = [Role(("m0",), 1), Role(("m1",), 2), Role(("m0", "m1", "m2"), 2)]
    suites = [role.suite for role in cast(roles, 5, windows.modalities, streams)]
    settings: dict[str, Any] = {"models": (SMALL,), "suites": suites, "streams": streams}
    return Fleet(windows, **{**settings, **changes})


def make(name: str, **settings: Any) -> AnyMethod:
    method: AnyMethod = find("methods", name)(**{"batch": 8, **settings})
    return method
