"""What was trained: which groups of parameters, by whom and when, and how far clients differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from communis.core import diagnostics
from communis.core.diagnostics import Diagnostic
from communis.core.groups import modality_of_group
from communis.results.finished import Finished

COLUMNS = 12  # of a map, at most; more rounds share a column
PREFIXES = ("trained/", "budget/", "divergence/", "spread/")  # of names in the log


def log_of(run: Finished) -> pd.DataFrame:
    """What this section shows of the log."""
    first, *others = (pc.starts_with(pc.field("name"), prefix) for prefix in PREFIXES)
    return pd.DataFrame(run.rows("log", reduce(or_, others, first)))


def trained(group: Sequence[Finished], logs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Columns round, group, share: of the owners in the cohort, how many trained the group. Who
    ever trained a group counts as an owner: some methods give everybody all branches."""
    parts = [pd.DataFrame(columns=["round", "group", "share"])]
    for run, log in zip(group, logs, strict=True):
        did = noted(log, diagnostics.TRAINED)
        did = did[did["value"] > 0]
        if did.empty:
            continue
        names = list(dict.fromkeys(did["name"]))
        ever = set(zip(did["client"], did["name"], strict=True))
        clients = sorted({client for record in run.records for client in record.cohort})
        there = [[client in record.cohort for client in clients] for record in run.records]
        owned = [
            [(c, g) in ever or modality_of_group(g) in ("", *run.sensors.get(c, ())) for g in names]
            for c in clients
        ]
        owners = np.array(there, float) @ np.array(owned, float)  # rounds x groups
        rounds = pd.Index([record.round for record in run.records], name="round")
        counts = did.groupby(["round", "name"])["client"].nunique().unstack(fill_value=0)
        counts = counts.reindex(index=rounds, columns=pd.Index(names, name="group"), fill_value=0)
        share = counts.div(np.where(owners > 0, owners, np.nan))
        long = share.reset_index().melt("round", var_name="group", value_name="share")
        parts.append(long.dropna())
    return pd.concat(parts[1:] or parts, ignore_index=True)


def noted(log: pd.DataFrame, what: Diagnostic) -> pd.DataFrame:
    """The lines of a diagnostic, named by what each is about."""
    found = log[log["name"].str.startswith(what.name)]
    return found.assign(name=found["name"].str.removeprefix(what.name))


def over_rounds(found: pd.DataFrame) -> pd.DataFrame:
    """Groups x rounds, or stretches of rounds."""
    rounds = sorted(found["round"].unique())
    size = -(-len(rounds) // COLUMNS)
    stretches = [rounds[i : i + size] for i in range(0, len(rounds), size)]
    names = {r: _span(stretch) for stretch in stretches for r in stretch}
    wide = found.assign(rounds=found["round"].map(names)).pivot_table(
        index="group", columns="rounds", values="share", sort=False
    )
    order = in_order(found["group"].unique())
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
    found = pd.concat(parts).rename_axis("client").reset_index()
    return found.groupby(["client", "kind"])[["groups", "budget"]].mean()
