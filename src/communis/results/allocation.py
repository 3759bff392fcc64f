"""What was trained: which groups of parameters, by whom and when, and how far clients differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from communis.core import diagnostics
from communis.core.diagnostics import Diagnostic
from communis.core.groups import modality_of_group
from communis.results.curves import Bands, joined, of_table
from communis.results.finished import Finished
from communis.results.selection import Scores

COLUMNS = 12  # of a map, at most; more rounds share a column
SHARES = ["seed", "round", "group", "share"]
READ = (diagnostics.TRAINED, diagnostics.BUDGET, diagnostics.DIVERGENCE, diagnostics.SPREAD)
PREFIXES = tuple(what.name for what in READ)  # of names in the log


@dataclass(frozen=True)
class Allocation:
    """What the runs of one method in one cell noted of their training."""

    runs: Sequence[Finished]
    logs: Sequence[pd.DataFrame]  # see `log_of`

    @cached_property
    def shares(self) -> pd.DataFrame:
        """See `trained`."""
        return trained(self.runs, self.logs)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """See `per_client`."""
        return per_client(self.runs, self.logs)

    @cached_property
    def divergence(self) -> Mapping[str, Sequence[Scores]]:
        """See `divergence`."""
        return divergence(self.logs)

    @property
    def elastic(self) -> bool:
        """Whether some owner did not train some group in some round."""
        return len(self.shares) > 0 and bool(self.shares["share"].min() < 1)

    @property
    def bands(self) -> Bands:
        """How far clients differ, by group of parameters: logarithms to base 10."""
        tables = {group: joined(by_seed) for group, by_seed in self.divergence.items()}
        return {group: of_table(table, powers=True) for group, table in tables.items()}


def allocation(runs: Sequence[Finished]) -> Allocation:
    return Allocation(runs, [log_of(run) for run in runs])


def log_of(run: Finished) -> pd.DataFrame:
    """The lines of the log that are about training."""
    first, *others = (pc.starts_with(pc.field("name"), prefix) for prefix in PREFIXES)
    return pd.DataFrame(run.rows("log", reduce(or_, others, first)))


def trained(group: Sequence[Finished], logs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The columns of SHARES: of the owners in the cohort, how many trained the group."""
    parts = [_shares(run, log).assign(seed=run.seed) for run, log in zip(group, logs, strict=True)]
    parts = [part for part in parts if len(part)]
    if not parts:
        return pd.DataFrame(columns=SHARES)
    return pd.concat(parts, ignore_index=True)[SHARES]


def _shares(run: Finished, log: pd.DataFrame) -> pd.DataFrame:
    """Columns round, group, share of one run. Who ever trained a group counts as an owner: some
    methods give everybody all branches."""
    did = noted(log, diagnostics.TRAINED)
    did = did[did["value"] > 0]
    if did.empty:
        return pd.DataFrame(columns=SHARES)
    names = list(dict.fromkeys(did["name"]))
    ever = set(zip(did["client"], did["name"], strict=True))
    clients = sorted({client for record in run.records for client in record.cohort})
    present = [[client in record.cohort for client in clients] for record in run.records]
    owned = []
    for client in clients:
        modalities = ("", *run.sensors.get(client, ()))
        owned.append(
            [(client, name) in ever or modality_of_group(name) in modalities for name in names]
        )
    owners = np.array(present, float) @ np.array(owned, float)  # rounds x groups
    rounds = pd.Index([record.round for record in run.records], name="round")
    counts = did.groupby(["round", "name"])["client"].nunique().unstack(fill_value=0)
    counts = counts.reindex(index=rounds, columns=pd.Index(names, name="group"), fill_value=0)
    share = counts.div(np.where(owners > 0, owners, np.nan))
    return share.reset_index().melt("round", var_name="group", value_name="share").dropna()


def noted(log: pd.DataFrame, what: Diagnostic) -> pd.DataFrame:
    """The lines of a diagnostic, named by what each is about."""
    lines = log[log["name"].str.startswith(what.name)]
    return lines.assign(name=lines["name"].str.removeprefix(what.name))


def divergence(logs: Sequence[pd.DataFrame]) -> dict[str, list[Scores]]:
    """How far clients differ in every group of parameters, by round in every run: what the method
    noted for its own use, or else what was measured. Empty where some run has neither."""
    by_run = [noted(log, diagnostics.DIVERGENCE) for log in logs]
    if not all(map(len, by_run)):
        by_run = [noted(log, diagnostics.SPREAD) for log in logs]
    if not all(map(len, by_run)):
        return {}
    tables = [lines.pivot(index="round", columns="name", values="value") for lines in by_run]
    groups = in_order(by_run[0]["name"].unique())
    return {group: [table[group] for table in tables if group in table] for group in groups}


def over_rounds(shares: pd.DataFrame) -> pd.DataFrame:
    """Groups x rounds, or stretches of rounds: means over rounds and seeds."""
    rounds = sorted(shares["round"].unique())
    size = math.ceil(len(rounds) / COLUMNS)
    stretches = [rounds[i : i + size] for i in range(0, len(rounds), size)]
    names = {round: _span(stretch) for stretch in stretches for round in stretch}
    named = shares.assign(rounds=shares["round"].map(names))
    wide = named.pivot_table(index="group", columns="rounds", values="share", sort=False)
    order = in_order(shares["group"].unique())
    return wide.reindex(index=order, columns=list(dict.fromkeys(names.values())))


def in_order(groups: Iterable[str]) -> list[str]:
    """The blocks of the fusion, its other parts, encoders, then the rest; layers by number."""
    parts = ("fusion.blocks.", "fusion.", "encoders.", "")

    def place(group: str) -> tuple[int, list[tuple[bool, int, str]]]:
        words = re.split(r"(\d+)", group)
        numbered = [(word.isdigit(), int(word) if word.isdigit() else 0, word) for word in words]
        return next(i for i, part in enumerate(parts) if group.startswith(part)), numbered

    return sorted(groups, key=place)


def _span(rounds: Sequence[int]) -> str:
    first, last = int(rounds[0]), int(rounds[-1])
    return str(first) if first == last else f"{first}-{last}"


def per_client(group: Sequence[Finished], logs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """By client and what it is: groups that it trained per round, and its budget; means over rounds
    and seeds. Roles are drawn by seed, so a client can be several things."""
    parts = []
    for run, log in zip(group, logs, strict=True):
        did = noted(log, diagnostics.TRAINED)
        counts = did[did["value"] > 0].groupby(["client", "round"]).size().groupby("client").mean()
        told = noted(log, diagnostics.BUDGET)
        told = told[told["name"].str.fullmatch(r"[0-9]{1,9}")]  # a folder of others may name others
        budgets = told.groupby("name")["value"].mean()
        budgets.index = budgets.index.astype(int)
        part = pd.DataFrame({"groups": counts, "budget": budgets.reindex(counts.index)})
        parts.append(part.assign(kind=[run.kinds.get(c, "") for c in part.index]))
    by_run = pd.concat(parts).rename_axis("client").reset_index()
    return by_run.groupby(["client", "kind"])[["groups", "budget"]].mean()
