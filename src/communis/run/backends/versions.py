"""The versions of private client states on disk, one per round that a checkpoint may need."""

from __future__ import annotations

from collections.abc import Sequence

from communis.run.backends.executor import StateStore


class Versions:
    """The rounds for which each client has a private state on disk."""

    def __init__(self, store: StateStore, clients: Sequence[int]) -> None:
        self._store = store
        known = set(clients)  # files of others do not belong to the run
        found = store.versions()
        self._rounds = {client: found[client] for client in found if client in known}
        self._unsettled = set(self._rounds)  # clients with versions since the last commit

    def add(self, client: int, round: int) -> None:
        """Notes a state that was written."""
        self._rounds.setdefault(client, set()).add(round)
        self._unsettled.add(client)

    def commit(self, checkpoints: Sequence[Sequence[int]]) -> None:
        """Deletes states that no checkpoint needs. checkpoints: the round of every client's state
        in each of them. Only clients with several versions are examined, so that the time does not
        grow with the number of clients."""
        for client in sorted(self._unsettled):
            needed = {int(rounds[client]) for rounds in checkpoints}
            for old in sorted(self._rounds[client] - needed):
                self._store.drop(client, old)
                self._rounds[client].discard(old)
            if len(self._rounds[client]) <= 1:
                self._unsettled.discard(client)
