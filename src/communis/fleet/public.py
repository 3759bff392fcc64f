"""Whose windows are public, for methods that need windows which everybody has."""

from __future__ import annotations

from communis.core.errors import CommunisError
from communis.fleet.fleet import Fleet


def public_client(fleet: Fleet) -> int:
    """The client whose training windows everybody has: the first that owns all of the fleet's
    sensors, unless one is named. Should it lie, its windows stay as they were recorded."""
    windows = fleet.counts[0]
    able = [i for i, suite in enumerate(fleet.suites) if suite == fleet.union and windows[i]]
    if any(fleet.coarse) or not able or fleet.public not in (-1, *able):
        who = f"{fleet.public} is no such client" if fleet.public != -1 else "there is none"
        who += f", but {', '.join(map(str, able[:8]))} would do" if able else ""
        raise CommunisError(
            f"public windows must be those of a client with all of the fleet's sensors "
            f"({', '.join(fleet.union)}), in full detail, that has training windows; {who}: see "
            "public and roles in [fleet]"
        )
    return able[0] if fleet.public < 0 else fleet.public
