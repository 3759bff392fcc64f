"""Similarity of the clients' class prototypes by round, and the weights that clients give each
other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from communis.core import diagnostics
from communis.core.arrays import Array
from communis.core.contract import SERVER
from communis.core.diagnostics import Diagnostic
from communis.results.compare import runs_by_method
from communis.results.curves import Bands, joined, of_table
from communis.results.finished import Finished
from communis.results.selection import Scores

_KINDS = f"{diagnostics.ALIKE_PAIR.name}|{diagnostics.WEIGHT.name}"
PAIR = rf"^(?P<kind>{_KINDS})(?P<one>\d+)-(?P<other>\d+)$"  # names in the log

PAIR_COLUMNS = ["name", "kind", "one", "other", "round", "value"]

Span = tuple[float, float]  # the lowest and the highest


@dataclass(frozen=True)
class Weights:
    """The weights of the last round against equal ones."""

    moved: float  # share of the weight that similarity moved; NaN where it was not noted
    others: Span  # weights that clients give to others
    own: Span | None  # weights that clients give to themselves, where they do
    peers: int  # among how many an equal weight would be shared
    times: Span  # weights over the equal one


@dataclass(frozen=True)
class Learning:
    """The similarities and weights that the server of a run recorded."""

    run: Finished
    mean: Scores  # similarity by round
    pairs: pd.DataFrame  # kind (alike, weight), one, other, round, value, ...
    moved: float  # share of the weights that similarity moved in the last round

    @cached_property
    def clients(self) -> list[int]:
        """The clients, sorted by kind."""
        return sorted(self.kinds, key=lambda client: (rank(self.kinds[client]), client))

    @cached_property
    def rounds(self) -> list[int]:
        """The rounds with values of single pairs of clients."""
        rounds: list[int] = np.unique(self.pairs["round"]).tolist()
        return rounds if len(self.clients) > 1 else []

    @cached_property
    def mixed(self) -> bool:
        return len({client.get("model", "") for client in self.run.clients}) > 1

    @cached_property
    def kinds(self) -> dict[int, str]:
        """The kind of every client, which decides its colour: its model if there are several, else
        its sensors."""
        models = {c.get("id"): str(c.get("model", "")) for c in self.run.clients}
        suites = {client: "+".join(suite) for client, suite in self.run.sensors.items()}
        kinds = models if self.mixed else suites
        everybody = {*self.run.sensors, *self.pairs["one"], *self.pairs["other"]}
        return {client: kinds.get(client) or "not described" for client in everybody}

    def table(self, what: Diagnostic, round: int) -> pd.DataFrame:
        """Returns a table clients x clients; NaN where nothing was recorded."""
        chosen = (self.pairs["kind"] == what.name) & (self.pairs["round"] == round)
        wide = self.pairs[chosen].pivot(index="one", columns="other", values="value")
        return wide.reindex(index=self.clients, columns=self.clients).astype(float)

    def alike(self, round: int) -> pd.DataFrame:
        """The similarities of a round as a symmetric table."""
        half = self.table(diagnostics.ALIKE_PAIR, round)
        return half.where(half.notna(), half.T)

    @cached_property
    def weights(self) -> pd.DataFrame:
        """The weights of the last round, without clients that have no class."""
        table = self.table(diagnostics.WEIGHT, self.rounds[-1])
        return table[table.sum(axis=1) > 0]

    @cached_property
    def selfish(self) -> bool:
        """Whether clients give weight to themselves."""
        return bool(self.run.config["method"].get("include_self", True))

    @cached_property
    def peers(self) -> int:
        """The number of clients that would share a weight equally if every client had every
        class."""
        receivers = int((self.weights > 0).any().sum())
        return max(1, receivers if self.selfish else receivers - 1)

    @cached_property
    def given(self) -> Weights | None:
        """The weights of the last round; None where no client gives any to another one."""
        values = self.weights.to_numpy()
        itself = np.equal.outer(self.weights.index, self.weights.columns)
        others = np.where(itself, np.nan, values)
        if not np.nansum(others):
            return None
        return Weights(
            moved=self.moved,
            others=span(others),
            own=span(values[itself]) if self.selfish else None,
            peers=self.peers,
            times=span((values if self.selfish else others) * self.peers),
        )


def span(values: Array) -> Span:
    return float(np.nanmin(values)), float(np.nanmax(values))


def rank(kind: str) -> tuple[int, str]:
    """Returns a sort key: kinds with few sensors come first."""
    return kind.count("+"), kind


def learning(run: Finished) -> Learning:
    names = pc.field("name").isin([diagnostics.ALIKE.name, diagnostics.MOVED.name])
    names |= pc.match_substring_regex(pc.field("name"), PAIR)
    log = run.rows("log", (pc.field("client") == SERVER) & names)
    finite = log[np.isfinite(log["value"])]
    mean = finite[finite["name"] == diagnostics.ALIKE.name].set_index("round")["value"]
    if not len(finite):  # of most methods; what follows takes longer than to read the log
        return Learning(run, mean, pd.DataFrame(columns=PAIR_COLUMNS), math.nan)
    known = pd.DataFrame({"name": finite["name"].unique()})  # far fewer than lines
    parsed = known.join(known["name"].str.extract(PAIR)).dropna()
    pairs = parsed.merge(finite[["name", "round", "value"]], on="name")
    moved = finite[finite["name"] == diagnostics.MOVED.name]["value"]
    last = float(moved.iloc[-1]) if len(moved) else math.nan
    return Learning(run, mean, pairs.astype({"one": int, "other": int}), last)


def by_method(runs: Sequence[Finished]) -> dict[str, list[Learning]]:
    """Returns the records of the methods that compare their clients, by seed."""
    by_name = {}
    for name, group in runs_by_method(runs).items():
        noted = [x for x in map(learning, group) if len(x.mean) or x.rounds]
        if noted:
            by_name[name] = sorted(noted, key=lambda x: x.run.seed)
    return by_name


def bands(noted: Mapping[str, Sequence[Learning]]) -> Bands:
    """The mean similarity by round; never in powers of ten, as cosines can be negative."""
    series = {name: [x.mean for x in group if len(x.mean)] for name, group in noted.items()}
    return {name: of_table(joined(by_seed)) for name, by_seed in series.items() if by_seed}
