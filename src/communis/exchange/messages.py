"""What a run, a topology and a backend say to each other: asks, answers, links, records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload

from communis.core.contract import Score
from communis.core.errors import readable

PRIVATE_STATE = "private state: "  # prefix of the reason if a private state is not finite


class Topology(Protocol):
    """Which aggregator receives whose messages (`topology/`). A star has one aggregator; in a
    graph, every client is one. Cohorts and their parts are in client order."""

    @property
    def broadcast(self) -> bool:
        """Whether a message is sent once for all its receivers."""

    def at(self, round: int) -> Topology:
        """The topology of a round, with the losses of that round."""

    def aggregators(self, clients: int) -> Sequence[int]: ...

    def aggregator_of(self, client: int) -> int:
        """The aggregator that sends the client its messages."""

    def reaches(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        """The members of the cohort that send to an aggregator, including itself."""

    def hears(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        """The members of the cohort whose messages arrive at an aggregator."""

    def describe(self, clients: int) -> dict[str, Any]:
        """A description in JSON for reports. `edges` are those of the first graph, `parts` the
        connected components of the union of all rounds."""


@dataclass(frozen=True)
class Ask:
    """A request to one client."""

    # whole: evaluate with all of the fleet's sensors; keep: return what was learned for the client;
    # common: return what was learned for a newcomer with all of the fleet's sensors
    kind: Literal["train", "after", "evaluate", "whole", "keep", "common"]
    client: int
    round: int
    since: int  # the round of the client's last committed private state; -1: none yet
    down: bytes


@dataclass(frozen=True)
class Answer:
    client: int
    up: bytes = b""
    keeps_state: bool = False  # the private state of this round was written
    log: Mapping[str, float] = field(default_factory=dict)  # diagnostics of the client
    scores: Sequence[Scored] = ()
    failure: str = ""  # the reason if there is neither a message nor a state
    unkept: str = ""  # the reason if there is a message, but the private state was not updated

    @property
    def failures(self) -> list[tuple[int, str]]:
        """The failures of the client, as they go into the record."""
        reasons = [reason for reason in (self.failure, self.unkept) if reason]
        return [(self.client, readable(reason)) for reason in reasons]


class Backend(Protocol):
    """The only connection to clients: it carries requests to them and returns their answers in the
    order of the requests."""

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]: ...
    def commit(self, *checkpoints: Sequence[int]) -> None:
        """Tells which states the checkpoints need: for each checkpoint, the round of every client's
        state, or -1 for none. Other versions may be removed."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Link:
    """The bytes over one link in one round: `payload` are those of the arrays, `framing` those that
    the encoding adds."""

    sender: int
    receiver: int
    payload: int
    framing: int


@dataclass(frozen=True)
class Scored:
    """A score with where it belongs."""

    client: int
    split: str  # val or test; newcomers: test windows of a newcomer
    subset: str  # the modalities that were there: "acc+gyro"
    own: bool  # they are all that the client owns
    score: Score


class ScoreColumns(Sequence[Scored]):
    """Scores column by column. An evaluation has hundreds per client: as objects they would cost
    more to send and to write than to compute."""

    def __init__(self) -> None:
        self.client: list[int] = []
        self.split: list[str] = []
        self.subset: list[str] = []
        self.own: list[bool] = []
        self.metric: list[str] = []
        self.label: list[int] = []
        self.support: list[int] = []
        self.value: list[float] = []

    @classmethod
    def of(cls, rows: Sequence[Scored]) -> ScoreColumns:
        """Returns these scores in columns; they themselves if they are."""
        if isinstance(rows, ScoreColumns):
            return rows
        made = cls()
        for row in rows:
            made.add(row.client, row.split, row.subset, row.own, [row.score])
        return made

    def add(self, client: int, split: str, subset: str, own: bool, scores: Sequence[Score]) -> None:
        """Appends scores of one client, split and subset."""
        count = len(scores)
        self.client += [client] * count
        self.split += [split] * count
        self.subset += [subset] * count
        self.own += [own] * count
        self.metric += [score.metric for score in scores]
        self.label += [score.label for score in scores]
        self.support += [score.support for score in scores]
        self.value += [score.value for score in scores]

    def extend(self, other: ScoreColumns) -> None:
        """Appends other scores."""
        for mine, theirs in zip(self.columns(), other.columns(), strict=True):
            mine.extend(theirs)

    def unknown(self) -> ScoreColumns:
        """Returns the same scores without their values."""
        made = ScoreColumns()
        made.extend(self)
        made.value = [math.nan] * len(self)
        return made

    def columns(self) -> list[list[Any]]:
        """Returns the columns in the order of the table `scores`."""
        return [
            self.client,
            self.split,
            self.subset,
            self.own,
            self.metric,
            self.label,
            self.support,
            self.value,
        ]

    def __len__(self) -> int:
        return len(self.client)

    @overload
    def __getitem__(self, index: int) -> Scored: ...

    @overload
    def __getitem__(self, index: slice) -> list[Scored]: ...

    def __getitem__(self, index: int | slice) -> Scored | list[Scored]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        score = Score(self.metric[index], self.value[index], self.label[index], self.support[index])
        return Scored(
            self.client[index], self.split[index], self.subset[index], self.own[index], score
        )


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
class Block:
    """Where the rows of a round lie in the file of a table."""

    start: int  # of the first byte
    length: int
    digest: str

    @property
    def end(self) -> int:
        return self.start + self.length


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
    tables: Mapping[str, Block] = field(default_factory=dict)  # the rows in the run's folder


def not_finite(reason: str) -> bool:
    """Whether a client was refused because its private state was not finite."""
    return reason.startswith(PRIVATE_STATE)
