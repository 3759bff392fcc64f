"""What clients sent, as it arrives: read, checked, and refused by name if it cannot be true."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from communis.core import diagnostics
from communis.core.contract import Card, UpMessage
from communis.core.errors import CommunisError, readable
from communis.exchange import wire
from communis.exchange.ledger import Ledger
from communis.exchange.messages import Answer
from communis.fleet.fleet import AnyMethod
from communis.run.round_log import RoundLog
from communis.run.summary import weighted_mean


@dataclass
class Inbox:
    """The messages and failures of one round."""

    method: AnyMethod
    cards: Sequence[Card]
    max_bytes: int
    arriving: Collection[int]  # whose messages reach anybody
    sent: dict[int, wire.Received] = field(default_factory=dict)  # what could be read at all
    sound: list[int] = field(default_factory=list)  # clients whose messages passed all checks
    messages: dict[int, wire.Received] = field(default_factory=dict)  # what is to be used
    refused: list[tuple[int, str]] = field(default_factory=list)  # who, and why
    kept: list[int] = field(default_factory=list)  # who has a new private state
    losses: dict[int, float] = field(default_factory=dict)  # of training

    def read(self, answers: Iterator[Answer], ledger: Ledger, round_log: RoundLog) -> None:
        """Reads messages while other clients still work. A client that failed, or whose message was
        refused, keeps the private state from before the round. A client whose message was lost
        keeps its new one."""
        *_, kind = wire.payload_types(type(self.method))
        for answer in answers:
            card = self.cards[answer.client]
            self.losses[card.id] = answer.log.get(diagnostics.LOSS.name, math.nan)
            self.refused += answer.failures
            if answer.log or not answer.failure:  # a process that died left no log
                round_log.hear(answer)
            if answer.failure:
                continue
            payload = len(answer.up)  # of a message that cannot be read, everything counts
            try:
                received = wire.receive(answer.up, kind, max_bytes=self.max_bytes)
                self.sent[card.id] = received
                payload = sum(array.nbytes for array in received.arrays.values())
                wire.check(received, card, self.method.sends(card))
                if isinstance(received.payload, UpMessage):
                    received.payload.check(card, self.method)
                self.sound.append(card.id)
                if card.id in self.arriving:
                    self.messages[card.id] = received
                else:  # nobody heard it, but it has trained
                    round_log.lose(card.id)
                if answer.keeps_state:
                    self.kept.append(card.id)
            except CommunisError as error:
                self.refused.append((card.id, readable(str(error))))
            except Exception as error:  # whatever a message makes of us, it stops nobody else
                why = f"not a message that can be read: {type(error).__name__}: {error}"
                self.refused.append((card.id, readable(why)))
            ledger.up(card.id, wire.Message(answer.up, payload))

    def loss(self, cards: Sequence[Card], attackers: Collection[int]) -> float:
        """Returns the mean training loss of the honest clients, weighted by samples. Clients do not
        send it: only a simulation knows it. cards: with the true numbers of samples, which privacy
        may hide from the server."""
        honest = [client for client in sorted(self.losses) if client not in attackers]
        there = [cards[client] for client in honest]
        return weighted_mean([(self.losses[card.id], card.samples) for card in there])
