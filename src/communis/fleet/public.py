"""The client whose windows are public, for methods that need windows shared by all clients."""

from __future__ import annotations

from communis.core.errors import CommunisError
from communis.fleet.fleet import Fleet


def public_client(fleet: Fleet) -> int:
    """Returns the client whose training windows are public: the configured one, or the first that
    owns all of the fleet's sensors. If it is an attacker, its public windows are not changed."""
    windows = fleet.counts[0]
    suitable = [i for i, suite in enumerate(fleet.suites) if suite == fleet.union and windows[i]]
    if any(fleet.coarse) or not suitable or fleet.public not in (-1, *suitable):
        problem = f"{fleet.public} is no such client" if fleet.public != -1 else "there is none"
        if suitable:
            problem += f", but {', '.join(map(str, suitable[:8]))} would do"
        raise CommunisError(
            f"public windows must be those of a client with all of the fleet's sensors "
            f"({', '.join(fleet.union)}), in full detail, that has training windows; {problem}: "
            "see public and roles in [fleet]"
        )
    return suitable[0] if fleet.public < 0 else fleet.public
