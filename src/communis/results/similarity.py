"""Who learns from whom: how alike the clients' class prototypes are, round by round, and the
weights that clients give each other for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from communis.core import diagnostics
from communis.core.contract import SERVER
from communis.core.diagnostics import Diagnostic
from communis.results.finished import Finished
from communis.results.report.graph import NODES
from communis.results.selection import Scores

_KINDS = f"{diagnostics.ALIKE_PAIR.name}|{diagnostics.WEIGHT.name}"
PAIR = rf"^(?P<kind>{_KINDS})(?P<one>\d+)-(?P<other>\d+)$"  # names in the log


@dataclass(frozen=True)
class Learning:
    """What the server of a run noted of its clients' prototypes."""

    run: Finished
    mean: Scores  # similarity by round
    pairs: pd.DataFrame  # kind (alike, weight), one, other, round, value, ...
    moved: float  # share of the weights that similarity moved in the last round

    @cached_property
    def clients(self) -> list[int]:
        """Those of a kind side by side."""
        return sorted(self.kinds, key=lambda client: (rank(self.kinds[client]), client))

    @cached_property
    def rounds(self) -> list[int]:
        """Those whose pairs can be shown."""
        found: list[int] = np.unique(self.pairs["round"]).tolist()
        return found if 1 < len(self.clients) <= NODES else []

    @cached_property
    def mixed(self) -> bool:
        return len({client.get("model", "") for client in self.run.clients}) > 1

    @cached_property
    def kinds(self) -> dict[int, str]:
        """What clients are coloured by: their model, if there are several, or their sensors."""
        models = {c.get("id"): str(c.get("model", "")) for c in self.run.clients}
        suites = {client: "+".join(suite) for client, suite in self.run.sensors.items()}
        found = models if self.mixed else suites
        everybody = {*self.run.sensors, *self.pairs["one"], *self.pairs["other"]}
        return {client: found.get(client) or "not described" for client in everybody}

    def table(self, what: Diagnostic, round: int) -> pd.DataFrame:
        """Clients x clients; NaN where nothing was noted."""
        t = self.pairs[(self.pairs["kind"] == what.name) & (self.pairs["round"] == round)]
        wide = t.pivot(index="one", columns="other", values="value")
        return wide.reindex(index=self.clients, columns=self.clients).astype(float)

    def alike(self, round: int) -> pd.DataFrame:
        """Both halves."""
        half = self.table(diagnostics.ALIKE_PAIR, round)
        return half.where(half.notna(), half.T)

    @cached_property
    def weights(self) -> pd.DataFrame:
        """Of the last round, without lines of clients that have no class at all."""
        found = self.table(diagnostics.WEIGHT, self.rounds[-1])
        return found[found.sum(axis=1) > 0]

    @cached_property
    def selfish(self) -> bool:
        """Whether clients give weight to themselves."""
        return bool(self.run.config["method"].get("include_self", True))

    @cached_property
    def peers(self) -> int:
        """Among how many weights would be shared equally if everybody had every class."""
        return max(1, int((self.weights > 0).any().sum()) - (not self.selfish))

    @cached_property
    def form(self) -> str:
        """How weights are written."""
        return ".3f" if self.peers <= 10 else ".4f"


def rank(kind: str) -> tuple[int, str]:
    """Few sensors come first."""
    return kind.count("+"), kind


def learning(run: Finished) -> Learning:
    names = pc.field("name").isin([diagnostics.ALIKE.name, diagnostics.MOVED.name])
    names |= pc.match_substring_regex(pc.field("name"), PAIR)
    log = run.rows("log", (pc.field("client") == SERVER) & names)
    mine = log[np.isfinite(log["value"])]
    mean = mine[mine["name"] == diagnostics.ALIKE.name].set_index("round")["value"]
    known = pd.DataFrame({"name": mine["name"].unique()})  # far fewer than lines
    parsed = known.join(known["name"].str.extract(PAIR)).dropna()
    pairs = parsed.merge(mine[["name", "round", "value"]], on="name")
    moved = mine[mine["name"] == diagnostics.MOVED.name]["value"]
    last = float(moved.iloc[-1]) if len(moved) else math.nan
    return Learning(run, mean, pairs.astype({"one": int, "other": int}), last)
