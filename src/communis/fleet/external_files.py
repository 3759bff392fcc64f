"""What a fleet has from files besides its data. Results depend on it, so it is known by content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from communis.fleet.device import DeviceProfile, of_fleet, told
from communis.models.zoo import Architecture


def brought(
    devices: Sequence[str],
    profiles: Mapping[str, DeviceProfile],
    models: Sequence[str | Architecture],
) -> dict[str, Any]:
    """The profiles of the devices that it uses, and a digest of pretrained weights."""
    used = told(of_fleet(devices, profiles))
    kinds = [kind for kind in models if isinstance(kind, Architecture) and kind.weights]
    weights = sorted({kind.digest for kind in dict.fromkeys(kinds)})
    found = {"profiles": used, "weights": weights}
    return {name: content for name, content in found.items() if content}
