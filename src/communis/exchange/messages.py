"""What a run, a topology and a backend say to each other: asks, answers, links, records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from communis.core.contract import Score
from communis.core.errors import readable

PRIVATE_STATE = "private state: "  # how the reason begins if what a client keeps is not finite


class Topology(Protocol):
    """Who hears whom (`topology`). A star has one aggregator, in a graph every client is one.
    Cohorts are in client order, and so are those who are heard."""

    @property
    def broadcast(self) -> bool:
        """Whether a message is sent once for all who are to hear it."""

    def at(self, round: int) -> Topology:
        """As it is in that round, with that round's losses."""

    def aggregators(self, clients: int) -> Sequence[int]: ...

    def aggregator_of(self, client: int) -> int:
        """Whose state the client's downlink comes from."""

    def reaches(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        """The members of the cohort that send to an aggregator, itself included."""

    def hears(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        """Those of them whose message arrives."""

    def describe(self, clients: int) -> dict[str, Any]:
        """For people and pictures, as JSON: `edges` are of the first graph, `parts` the clients
        that all rounds together connect."""


@dataclass(frozen=True)
class Ask:
    """A piece of work for one client."""

    kind: Literal["train", "after", "evaluate", "whole"]  # whole: evaluate with all sensors
    client: int
    round: int
    since: int  # the round of the client's last committed private state; -1: none yet
    down: bytes


@dataclass(frozen=True)
class Answer:
    client: int
    up: bytes = b""
    keeps_state: bool = False  # private state of this round was written
    log: Mapping[str, float] = field(default_factory=dict)  # what the client noted
    scores: Sequence[Scored] = ()
    failure: str = ""  # why there is neither message nor state, if the client has none to give
    unkept: str = ""  # why its private state stays that of before, though there is a message

    @property
    def failures(self) -> list[tuple[int, str]]:
        """What went wrong, if anything did, as it goes into the record."""
        reasons = [reason for reason in (self.failure, self.unkept) if reason]
        return [(self.client, readable(reason)) for reason in reasons]


class Backend(Protocol):
    """The one seam to the world: carries asks to clients and brings their answers, in the order of
    the asks."""

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]: ...
    def commit(self, *checkpoints: Sequence[int]) -> None:
        """The rounds of the clients' states, -1 for none, in every checkpoint that may be continued
        from; other versions may go."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Link:
    """Bytes over one link in one round: `payload` is the arrays alone, `framing` what the encoding
    adds."""

    sender: int
    receiver: int
    payload: int
    framing: int


@dataclass(frozen=True)
class Scored:
    """A score with where it belongs."""

    client: int
    split: str  # val or test
    subset: str  # the modalities that were there: "acc+gyro"
    own: bool  # they are all that the client owns
    score: Score


def unknown(scored: Scored) -> Scored:
    """The same without a value."""
    return replace(scored, score=replace(scored.score, value=math.nan))


@dataclass(frozen=True)
class Pair:
    """How alike the updates of two clients are."""

    group: str
    one: int
    other: int
    cosine: float


@dataclass(frozen=True)
class Noted:
    """A number that a client (or -1, the server) wrote down."""

    client: int
    name: str
    value: float


@dataclass(frozen=True)
class RoundRecord:
    round: int
    cohort: tuple[int, ...]
    loss: float  # mean training loss over the cohort, by samples
    bytes_down: int
    bytes_up: int
    bytes_framing: int
    seconds: float  # wall time of exchange, training and aggregation
    seconds_evaluation: float = 0.0
    seconds_aggregation: float = float("nan")  # of `seconds`, what aggregators took
    virtual_seconds: float = float("nan")  # by the device clock: until the slowest client was done
    virtual_joules: float = float("nan")  # of all clients together
    consensus_distance: float = float("nan")  # in graphs: of the nodes' aggregates from their mean
    attack_distance: float = float("nan")  # how far attackers moved aggregates, as a share of them
    refused: tuple[tuple[int, str], ...] = ()  # client, reason
    scores: Mapping[str, float] = field(default_factory=dict)  # means over clients, if evaluated
    # The digest of each table of the round by its name; None in records of older versions.
    tables: Mapping[str, str] | None = None


def not_finite(reason: str) -> bool:
    """Whether a client was refused because its private state was not finite."""
    return reason.startswith(PRIVATE_STATE)
