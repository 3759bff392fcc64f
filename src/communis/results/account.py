"""What the clients of a run have spent on privacy, as its folder says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from communis.core.contract import SERVER
from communis.core.errors import CommunisError
from communis.exchange.privacy import accountant, gaussian
from communis.exchange.privacy.guard import Spending
from communis.exchange.privacy.protection import PAID
from communis.exchange.privacy.settings import Mode
from communis.results import expected
from communis.results.finished import Finished
from communis.run.folder import RunFolder

MODES = get_args(Mode)
MOST_CLIENTS = 10**8


@dataclass(frozen=True)
class Part:
    """Some arrays of the message."""

    field: str
    part: str
    tensors: int
    numbers: int
    covered: bool
    why: str  # it is not covered


@dataclass(frozen=True)
class Rounds:
    planned: int
    done: int
    most: int  # that a client took part in
    median: float  # over clients


@dataclass(frozen=True)
class Spent:
    """What one client has spent by noising its own messages."""

    client: int
    mu: float  # of all its rounds together
    epsilon: float
    course: Mapping[int, float]  # mu up to and with each of its rounds


@dataclass(frozen=True)
class PrivacyAccount:
    """A run with its privacy.json."""

    run: Finished
    account: Mapping[str, Any]

    @property
    def mode(self) -> str:
        return str(self.account["mode"])

    @property
    def settings(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.account["settings"]
        return found

    @property
    def delta(self) -> float:
        return float(self.settings["delta"])

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What left the clients."""
        return tuple(Part(**row) for row in self.account["tensors"])

    @cached_property
    def rounds(self) -> Rounds:
        records = self.run.records
        took = Counter(client for record in records for client in record.cohort)
        counts = [*took.values(), *[0] * (self.account["clients"] - len(took))] or [0]
        return Rounds(self.run.planned, len(records), max(counts), float(median(counts)))

    @cached_property
    def released(self) -> dict[int, tuple[float, float]]:
        """Central: (q, z) by round."""
        log = self._log[self._log["client"] == SERVER]
        wide = log.pivot_table("value", "round", "name").reindex(columns=["privacy/q", "privacy/z"])
        return {int(row[0]): (row[1], row[2]) for row in wide.dropna().itertuples(name=None)}

    @cached_property
    def clients(self) -> list[Spent]:
        """Local and paper: those who ever sent something."""
        found = []
        for _, rows in self._mus.groupby("client"):
            mus = dict(zip(rows["round"], (rows["value"] ** 2).cumsum() ** 0.5, strict=True))
            total = float(mus[max(mus)])
            found.append(
                Spent(int(rows["client"].iloc[0]), total, epsilon_of(total, self.delta), mus)
            )
        return found

    def epsilon(self, until: float = math.inf) -> float:
        """Of the client that has spent most up to and with that round."""
        if self.mode == "central":
            rounds = [pair for round, pair in self.released.items() if round <= until]
            return accountant.epsilon_of(rounds, self.delta, self.settings["accountant"])
        mus = self._mus[self._mus["round"] <= until]
        squares = (mus["value"] ** 2).groupby(mus["client"]).sum()
        return epsilon_of(math.sqrt(squares.max()), self.delta) if len(squares) else 0.0

    @cached_property
    def missing(self) -> list[int]:
        """Rounds of which the log does not say what they cost: to leave them out would flatter. The
        run keeps an account of its own in the checkpoint."""
        known = RunFolder(self.run.path).tensor(PAID)
        paid_for = set(known.tolist()) if known is not None else set()
        unlogged = paid_for - set(RunFolder(self.run.path).paid())
        return sorted(unlogged | self._unlogged())

    def _unlogged(self) -> set[int]:
        """Rounds with a record whose cost is not in the log."""
        if self.mode == "central":
            return {r.round for r in self.run.records} - self.released.keys()
        paid = set(zip(self._mus["round"], self._mus["client"], strict=True))
        return {r.round for r in self.run.records for i in r.cohort if (r.round, i) not in paid}

    @cached_property
    def stopped(self) -> int:
        """How many clients cannot afford the next round, or could not afford the last one."""
        if self.mode != "local" or not self.settings["epsilon"] or not self.clients:
            return 0
        if self.account.get("mu") is None:
            raise CommunisError(f"{self.run.path / 'privacy.json'}: it lacks mu; run it again")
        then = min(self.rounds.done + 1, self.rounds.planned)
        cost = self.account["mu"] ** 2 * self._weight(then) / self._weight(1)
        limit = gaussian.mu_of(self.settings["epsilon"], self.delta) ** 2
        limit *= 1 + 1e-8  # runs of older versions spent up to the limit itself, to rounding
        return sum(max(one.course) < then and one.mu**2 + cost > limit for one in self.clients)

    @cached_property
    def over(self) -> bool:
        """Whether the run ended early because nothing is left to spend."""
        return bool(self.account.get("ended"))

    def _weight(self, round: int) -> float:
        late = self.settings["spend"] == "late"
        return Spending(self.rounds.planned if late else 0).weight(round)

    @cached_property
    def _mus(self) -> pd.DataFrame:
        found = self._log[self._log["name"] == "privacy/mu"]
        return found.sort_values(["client", "round"])

    @cached_property
    def _log(self) -> pd.DataFrame:
        names = [f"privacy/{name}" for name in ("mu", "z", "q")]
        table = self.run.rows("log", pc.field("name").isin(names))
        wrong = table[~np.isfinite(table["value"]) | (table["value"] < 0)]
        if len(wrong):
            raise CommunisError(
                f"{self.run.path / 'log'}: {wrong['name'].iloc[0]} is {wrong['value'].iloc[0]}, as "
                "no run has it; put back a copy, or run it again"
            )
        return pd.DataFrame(table)


def books(run: Finished) -> PrivacyAccount | None:
    """None where the folder says nothing of privacy, or nothing of what leaks, being older."""
    path = run.path / "privacy.json"
    if "leaks" not in run.privacy:
        return None
    found = PrivacyAccount(run, run.privacy)
    needed = ("mode", "settings", "clients", "tensors")
    lacking = [key for key in needed if found.account.get(key) is None]
    if lacking:
        raise CommunisError(
            f"{path}: it lacks {', '.join(lacking)}, so nothing can be said of privacy; run it "
            "again"
        )
    expected.check(path, found.settings, expected.SETTINGS, "settings", all=True)
    for number, part in enumerate(found.account["tensors"]):
        expected.check(path, part, expected.PART, f"tensors[{number}]", all=True)
    _check(path, found)
    return found


def _check(path: Path, found: PrivacyAccount) -> None:
    """Refuses an account by which nothing can be reckoned."""
    known = [f.name for f in fields(Part)]
    if any(sorted(part) != sorted(known) for part in found.account["tensors"]):
        raise CommunisError(f"{path}: expected {', '.join(known)} of every one of its tensors")
    if found.mode not in MODES or found.settings["accountant"] not in get_args(accountant.Kind):
        raise CommunisError(f"{path}: no mode {found.mode!r} or no such accountant")
    if found.mode != "none" and not 0 < found.delta < 1:
        raise CommunisError(f"{path}: delta is {found.delta}, as no run has it")
    least = (found.settings["epsilon"], found.settings["noise"], found.account["clients"])
    if min(least) < 0 or found.account["clients"] > MOST_CLIENTS:
        raise CommunisError(f"{path}: epsilon, noise and clients are {least}, as no run has them")


@lru_cache(maxsize=4096)
def epsilon_of(mu: float, delta: float) -> float:
    """Clients that took part equally often have the same."""
    return gaussian.epsilon_of(mu, delta)
