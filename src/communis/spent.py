"""What the clients of a run have spent on privacy, as its folder says."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import median
from typing import Any, get_args

import pandas as pd
import pyarrow.compute as pc

from communis.core import CommunisError
from communis.finished import Finished
from communis.privacy import accountant, gaussian
from communis.privacy.guard import Spending
from communis.privacy.protection import PAID
from communis.privacy.settings import Mode
from communis.runfolder import RunFolder
from communis.topology import SERVER

MODES = get_args(Mode)


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
class Books:
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
        planned = int(self.run.config["run"]["rounds"])
        return Rounds(planned, len(records), max(counts), float(median(counts)))

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
        table = RunFolder(self.run.path).log(pc.field("name").isin(names))
        return pd.DataFrame(table.to_pandas())


def books(run: Finished) -> Books | None:
    """None where the folder says nothing of privacy, being older."""
    path = run.path / "privacy.json"
    try:
        found = Books(run, json.loads(path.read_text("utf-8")))
        if "leaks" in found.account:  # else it is damaged or old, and the verdict says so
            _check(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CommunisError(
            f"{path}: cannot be read ({what}), so nothing can be said of privacy; run it again"
        ) from None
    return found


def _check(found: Books) -> None:
    """Looks at all that a verdict needs of the account, so that what is missing is said here."""
    if found.mode not in MODES:
        raise ValueError(f"no mode {found.mode!r}")
    settings = ("delta", "epsilon", "noise", "kappa", "spend", "accountant")
    missing = [key for key in settings if key not in found.settings]
    missing += [key for key in ("clients", "tensors") if key not in found.account]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    if not all(isinstance(text, str) for text in found.account["leaks"]):
        raise ValueError("leaks are no texts")
    for part in found.parts:
        if not isinstance(part.tensors + part.numbers, int):
            raise ValueError("numbers of arrays are no numbers")


@lru_cache(maxsize=4096)
def epsilon_of(mu: float, delta: float) -> float:
    """Clients that took part equally often have the same."""
    return gaussian.epsilon_of(mu, delta)
