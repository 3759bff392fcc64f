"""External files of a fleet: device profiles, pretrained weights, networks of the user and models
of an earlier run. Results depend on them, so a run is identified by their content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from communis.fleet.device import DeviceProfile, of_fleet, without_source
from communis.fleet.start import Start
from communis.models.own import Own
from communis.models.zoo import Architecture


def external_files(
    devices: Sequence[str],
    profiles: Mapping[str, DeviceProfile],
    models: Sequence[str | Architecture | Own],
    start: Start | None = None,
) -> dict[str, Any]:
    """Returns the profiles of the devices in use, the digests of pretrained weights, those of the
    sources of networks by name, and those of the models to start from by architecture."""
    used = without_source(of_fleet(devices, profiles))
    pretrained = [kind for kind in models if isinstance(kind, Architecture) and kind.weights]
    digests = sorted({kind.digest for kind in dict.fromkeys(pretrained)})
    networks = {kind.dotted: kind.digest for kind in models if isinstance(kind, Own)}
    contents = {
        "profiles": used,
        "weights": digests,
        "networks": dict(sorted(networks.items())),
        "start": dict(start.digests) if start else {},
    }
    return {name: content for name, content in contents.items() if content}
