"""The budget of privacy that the clients of a run have spent, as its folder has it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from communis.core import diagnostics
from communis.core.contract import SERVER
from communis.core.errors import CommunisError
from communis.exchange.privacy import accountant, gaussian
from communis.exchange.privacy.protection import PAID, SEEN
from communis.exchange.privacy.settings import Mode
from communis.exchange.privacy.spending import Spending
from communis.results import expected
from communis.results.finished import Finished
from communis.run.folder import RunFolder

MODES = get_args(Mode)
MOST_CLIENTS = 10**8


@dataclass(frozen=True)
class Part:
    """Some arrays of a message."""

    field: str
    part: str
    tensors: int
    numbers: int
    covered: bool
    why: str  # why noise does not cover it


@dataclass(frozen=True)
class Rounds:
    planned: int
    done: int
    most: int  # rounds that a client took part in
    median: float  # rounds that a client took part in, over clients


@dataclass(frozen=True)
class ClientSpending:
    """What one client has spent by noising its own messages."""

    client: int
    mu: float  # of all its rounds together
    epsilon: float
    mu_by_round: Mapping[int, float]  # mu up to and with each of its rounds


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
        settings: Mapping[str, Any] = self.account["settings"]
        return settings

    @property
    def delta(self) -> float:
        return float(self.settings["delta"])

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of messages that left the clients."""
        return tuple(Part(**row) for row in self.account["tensors"])

    @cached_property
    def rounds(self) -> Rounds:
        records = self.run.records
        by_client = Counter(client for record in records for client in record.cohort)
        counts = list(by_client.values())
        counts += [0] * (self.account["clients"] - len(by_client))  # clients that never took part
        counts = counts or [0]
        return Rounds(self.run.planned, len(records), max(counts), float(median(counts)))

    @cached_property
    def released(self) -> dict[int, tuple[float, float]]:
        """Sampling rate q and noise multiplier z by round, of the mode central."""
        log = self._log[self._log["client"] == SERVER]
        columns = [diagnostics.PRIVACY_Q.name, diagnostics.PRIVACY_Z.name]
        wide = log.pivot_table("value", "round", "name").reindex(columns=columns)
        return {int(row[0]): (row[1], row[2]) for row in wide.dropna().itertuples(name=None)}

    @cached_property
    def clients(self) -> list[ClientSpending]:
        """The clients that sent something, of the modes local and paper."""
        spent = []
        for _, rows in self._mus.groupby("client"):
            totals = (rows["value"] ** 2).cumsum() ** 0.5
            mu_by_round = dict(zip(rows["round"], totals, strict=True))
            total = float(mu_by_round[max(mu_by_round)])
            client = int(rows["client"].iloc[0])
            spent.append(
                ClientSpending(client, total, gaussian.epsilon_of(total, self.delta), mu_by_round)
            )
        return spent

    def epsilon(self, until: float = math.inf) -> float:
        """The epsilon of the client that has spent most by the end of that round."""
        if self.mode == "central":
            rounds = [pair for round, pair in self.released.items() if round <= until]
            return accountant.epsilon_of_rounds(rounds, self.delta, self.settings["accountant"])
        mus = self._mus[self._mus["round"] <= until]
        squares = (mus["value"] ** 2).groupby(mus["client"]).sum()
        return gaussian.epsilon_of(math.sqrt(squares.max()), self.delta) if len(squares) else 0.0

    @cached_property
    def missing(self) -> list[int]:
        """Rounds whose cost is not in the log: to leave them out would flatter the run. They are
        known from the account that the run keeps in its checkpoint."""
        folder = RunFolder(self.run.path)
        in_checkpoint = folder.tensor(PAID)
        paid_for = set(in_checkpoint.tolist()) if in_checkpoint is not None else set()
        unlogged = paid_for - set(folder.paid())
        return sorted(unlogged | self._unlogged())

    @cached_property
    def outdated(self) -> bool:
        """Whether the account names fewer arrays than the checkpoint counts."""
        seen = RunFolder(self.run.path).tensor(SEEN)
        return seen is not None and len(self.account.get("arrays", ())) < int(seen)

    def _unlogged(self) -> set[int]:
        """Rounds with a record whose cost is not in the log."""
        if self.mode == "central":
            return {r.round for r in self.run.records} - self.released.keys()
        paid = set(zip(self._mus["round"], self._mus["client"], strict=True))
        return {r.round for r in self.run.records for i in r.cohort if (r.round, i) not in paid}

    @cached_property
    def stopped(self) -> int:
        """The number of clients whose budget is too small for the next round, or was too small for
        the last one."""
        if self.mode != "local" or not self.settings["epsilon"] or not self.clients:
            return 0
        if self.account.get("mu") is None:
            raise CommunisError(f"{self.run.path / 'privacy.json'}: it lacks mu; run it again")
        then = min(self.rounds.done + 1, self.rounds.planned)
        cost = self.account["mu"] ** 2 * self._weight(then) / self._weight(1)
        limit = gaussian.mu_of(self.settings["epsilon"], self.delta) ** 2
        limit *= 1 + 1e-8  # runs of older versions spent up to the limit itself, to rounding
        return sum(
            max(client.mu_by_round) < then and client.mu**2 + cost > limit
            for client in self.clients
        )

    @cached_property
    def over(self) -> bool:
        """Whether the run ended early because the budget is spent."""
        return bool(self.account.get("ended"))

    def _weight(self, round: int) -> float:
        late = self.settings["spend"] == "late"
        return Spending(self.rounds.planned if late else 0).weight(round)

    @cached_property
    def _mus(self) -> pd.DataFrame:
        mus = self._log[self._log["name"] == diagnostics.PRIVACY_MU.name]
        return mus.sort_values(["client", "round"])

    @cached_property
    def _log(self) -> pd.DataFrame:
        read = (diagnostics.PRIVACY_MU, diagnostics.PRIVACY_Z, diagnostics.PRIVACY_Q)
        names = [what.name for what in read]
        table = self.run.rows("log", pc.field("name").isin(names))
        wrong = table[~np.isfinite(table["value"]) | (table["value"] < 0)]
        if len(wrong):
            raise CommunisError(
                f"{self.run.path / 'log'}: {wrong['name'].iloc[0]} is {wrong['value'].iloc[0]}, as "
                "no run has it; put back a copy, or run it again"
            )
        return pd.DataFrame(table)


def account_of(run: Finished) -> PrivacyAccount | None:
    """The account of a run; None where the folder, being older, has no record of privacy or of
    leaks."""
    path = run.path / "privacy.json"
    if "leaks" not in run.privacy:
        return None
    account = PrivacyAccount(run, run.privacy)
    needed = ("mode", "settings", "clients", "tensors")
    lacking = [key for key in needed if account.account.get(key) is None]
    if lacking:
        raise CommunisError(
            f"{path}: it lacks {', '.join(lacking)}, so nothing can be said of privacy; run it "
            "again"
        )
    expected.check(path, account.settings, expected.SETTINGS, "settings", all=True)
    for number, part in enumerate(account.account["tensors"]):
        expected.check(path, part, expected.PART, f"tensors[{number}]", all=True)
    _check(path, account)
    return account


def _check(path: Path, account: PrivacyAccount) -> None:
    """Refuses an account from which no epsilon can be computed."""
    known = [f.name for f in fields(Part)]
    if any(sorted(part) != sorted(known) for part in account.account["tensors"]):
        raise CommunisError(f"{path}: expected {', '.join(known)} of every one of its tensors")
    if account.mode not in MODES or account.settings["accountant"] not in get_args(accountant.Kind):
        raise CommunisError(f"{path}: no mode {account.mode!r} or no such accountant")
    if account.mode != "none" and not 0 < account.delta < 1:
        raise CommunisError(f"{path}: delta is {account.delta}, as no run has it")
    least = (account.settings["epsilon"], account.settings["noise"], account.account["clients"])
    if min(least) < 0 or account.account["clients"] > MOST_CLIENTS:
        raise CommunisError(f"{path}: epsilon, noise and clients are {least}, as no run has them")
