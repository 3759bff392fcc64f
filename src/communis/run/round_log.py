"""The log of a round: diagnostics of clients and server, the cost on the devices, and the
similarity of updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from communis.core import diagnostics
from communis.core.contract import SERVER, Card
from communis.core.state import State
from communis.exchange.ledger import Ledger
from communis.exchange.messages import Answer, Noted, Pair
from communis.fleet.device import Clock, DeviceCost, Used
from communis.fleet.fleet import AnyMethod
from communis.run import updates


class RoundLog:
    """Collects what a round writes down besides scores and bytes."""

    def __init__(self, method: AnyMethod, cards: Sequence[Card]) -> None:
        self._method, self._cards = method, cards
        self._logs: dict[int, dict[str, float]] = {}
        self._pairs: list[Pair] = []
        self._noted: list[Noted] = []

    def hear(self, answer: Answer) -> None:
        """Adds the diagnostics of a client. One that works twice in a round is counted twice."""
        log = self._logs.setdefault(answer.client, {})
        for name, value in answer.log.items():
            log[name] = log.get(name, 0.0) + value

    def lose(self, client: int) -> None:
        """Notes that the message of a client was lost on the way."""
        self._logs.setdefault(client, {})[diagnostics.LOST.name] = 1.0

    def spent(self, clock: Clock | None, ledger: Ledger) -> list[DeviceCost]:
        """Returns the seconds and joules of the round for every client that answered; nothing
        without a clock."""
        if clock is None:
            return []
        down = ledger.received()
        up = ledger.sent()
        used = []
        for i, log in self._logs.items():
            card = self._cards[i]
            used.append(Used(i, card.device, log, down.get(i, 0), up.get(i, 0), card.model))
        return clock.round(used)

    def compare(self, servers: Mapping[int, Any], received: Mapping[int, Any]) -> None:
        """Notes how similar the updates of a common model are, and how far they diverge; nothing if
        the method has no such model. servers: the states before the round."""
        before = self._method.common(servers[SERVER]) if SERVER in servers else None
        if isinstance(before, State) and all(hasattr(up, "w") for up in received.values()):
            changed = updates.sent(before, received, self._cards)
            self._pairs = updates.pairs(changed)
            self._noted += updates.spread(changed, self._cards)

    def rows(
        self, servers: Mapping[int, Any], paid: Sequence[Noted] = ()
    ) -> dict[str, Sequence[Any]]:
        """Returns the rows of the round for the tables `pairs` and `log`. A loss is left out,
        because the record has it. In a graph, where every node has a server state, the mean over
        nodes is kept."""
        noted = [
            Noted(client, name, value)
            for client, log in self._logs.items()
            for name, value in log.items()
            if name != diagnostics.LOSS.name
        ]
        notes: dict[str, list[float]] = {}
        for node, server in servers.items():
            for name, value in self._method.notes(server, node).items():
                notes.setdefault(name, []).append(value)
        noted += [Noted(SERVER, name, fmean(values)) for name, values in notes.items()]
        # In an order of their own: that of a server's state is another after a resume.
        rows = sorted([*noted, *self._noted, *paid], key=lambda note: (note.client, note.name))
        return {"pairs": self._pairs, "log": rows}
