"""One run that may still go on: what its folder has had to say so far.

Only what was appended to the records since the last look is read. Files of the folder may be
damaged, half written or somebody else's: then `problems` says which one, and the rest is shown.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from communis.core.claim import is_held
from communis.core.errors import CommunisError, plain, readable
from communis.core.streams import Streams
from communis.exchange.messages import RoundRecord
from communis.fleet.availability.online import Online
from communis.results import expected
from communis.results.finished import Finished, settings_in
from communis.results.verdict import privacy_verdict
from communis.run.folder import RECORDS, RunFolder

LATEST = 20  # records and refusals that are kept whole
REASONS = 100  # different reasons that are counted apart
OTHERS = "other reasons"
LONGEST = 200  # characters of a reason
RARELY = 20.0  # a slow verdict is computed anew after this many times what it took
CONFIG, FLEET, ACCOUNT = "config.toml", "fleet.json", "privacy.json"
VERDICT = "verdict"  # a problem that is none of one file
Signature = tuple[int, int, int]  # of a file: its number, size and time
T = TypeVar("T")


@dataclass
class History:
    """What the records so far have said. Records themselves are not kept, because those of long
    runs with many clients take much memory; only the account of privacy needs them."""

    done: int = 0
    metric: str = ""  # of the scores; empty until the first evaluation
    losses: list[tuple[int, float]] = field(default_factory=list)
    test: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    down: int = 0
    up: int = 0
    framing: int = 0
    seconds: float = 0.0  # by the device clock; NaN without one
    joules: float = 0.0
    refusals: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    last_refusals: deque[tuple[int, int, str]] = field(default_factory=lambda: deque(maxlen=LATEST))
    last: RoundRecord | None = None
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))  # seconds per round

    def add(self, record: RoundRecord, metric: str) -> None:
        """Adds a round. metric: the one that the settings name."""
        self.done = record.round
        self.last = record
        self.losses.append((record.round, record.loss))
        self.down += record.bytes_down
        self.up += record.bytes_up
        self.framing += record.bytes_framing
        self.seconds += record.virtual_seconds
        self.joules += record.virtual_joules
        self.paces.append(record.seconds + record.seconds_evaluation)
        for client, why in record.refused:
            reason = readable(why, LONGEST)
            self.refusals += 1
            counted = reason in self.reasons or len(self.reasons) < REASONS
            self.reasons[reason if counted else OTHERS] += 1
            self.last_refusals.append((record.round, client, reason))
        self.metric = self.metric or _metric(record.scores, metric)
        for split, points in (("test", self.test), ("val", self.validation)):
            score = record.scores.get(f"{split}.{self.metric}")
            if score is not None:
                points.append((record.round, score))


def _metric(scores: Mapping[str, float], named: str) -> str:
    """The metric that the settings name, else accuracy, else the first one; empty if nothing was
    scored."""
    known = [key.removeprefix("test.") for key in scores if key.startswith("test.")]
    wanted = [name for name in (named, "accuracy") if name in known]
    return next((name for name in (*wanted, *known)), "")


class Followed:
    """A run's folder, read again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Mapping[str, Any] | None = None
        self.fleet: Mapping[str, Any] | None = None
        self.history = History()
        self.version = 0  # grows when something has changed
        self.held: bool | None = None
        self.problems: dict[str, str] = {}  # by file
        self.verdict = ""  # on privacy, in a few words
        self.sentence = ""  # the same, in full
        self._folder = RunFolder(path)
        self._signatures: dict[str, Signature | None] = {}
        self._place = 0  # byte of the records until which they were read
        self._account: Mapping[str, Any] = {}
        self._records: list[RoundRecord] = []  # with privacy only
        self._judged = 0  # rounds of the verdict
        self._judge_at = -math.inf

    def look(self) -> None:
        """Reads what has changed."""
        held = is_held(self.path)
        if held != self.held:
            self._judged = 0  # the last verdict may have met files that were just being written
            self._changed(True)
        self.held = held
        if self._is_new(CONFIG):
            self.config = self._tried(CONFIG, lambda: settings_in(self.path))
        if self._is_new(FLEET):
            self._begin_anew()
            self.fleet = self._tried(FLEET, self._read_fleet)
        if FLEET in self.problems:  # it says whose the other files are
            return
        before = self._signatures.get(RECORDS)
        if self._is_new(RECORDS):
            now = self._signatures[RECORDS]
            if before is not None and not _appended(before, now):
                self._begin_anew()  # the run was resumed at an earlier round, or is another one
            self._tried(RECORDS, self._read_records)
        if self._is_new(ACCOUNT):
            self._account = self._tried(ACCOUNT, self._folder.accounted) or {}
        self._judge()

    @property
    def planned(self) -> int:
        """The rounds in the settings; 0 where these are not known."""
        return int(self.config["run"]["rounds"]) if self.config else 0

    @property
    def complete(self) -> bool:
        done = self.history.done
        return done > 0 and done in (self.planned, self._account.get("ended"))

    @property
    def left(self) -> float:
        """The seconds that the remaining rounds take if they are like the last ones."""
        if not self.history.paces:
            return math.nan
        return fmean(self.history.paces) * max(0, self.planned - self.history.done)

    @property
    def clients(self) -> Sequence[Mapping[str, Any]]:
        """The clients as fleet.json describes them, with the server last if data are pooled."""
        found: Sequence[Mapping[str, Any]] = self.fleet["clients"] if self.fleet else ()
        return found

    def called(self, client: int) -> str:
        """What a client is called."""
        if self.fleet and self.fleet["pooled"] and client == len(self.clients) - 1:
            return "server (pooled data)"
        name = self.clients[client].get("name") if 0 <= client < len(self.clients) else ""
        return readable(str(name), LONGEST) if name else f"client {client}"

    def online(self) -> np.ndarray[Any, Any] | None:
        """(clients,): who was online in the last round; None where that is not known. It is drawn
        anew from the seed, as in the run itself."""
        if self.config is None or self.fleet is None or not self.history.done:
            return None
        table = self.config.get("fleet", {}).get("online")
        if not isinstance(table, Mapping) or self.fleet["pooled"]:
            return None
        try:
            streams = Streams(self.config["seed"])
            there = Online(**table).who(len(self.clients), self.history.done, streams)
        except (CommunisError, TypeError, ValueError, ArithmeticError):
            return None
        for newcomer in self.fleet.get("newcomers") or ():
            there[newcomer["id"]] = False
        return there

    def _read_fleet(self) -> Mapping[str, Any]:
        fleet = self._folder.fleet()
        expected.check_fleet(self.path / FLEET, fleet)
        return fleet

    def _read_records(self) -> None:
        history = self.history
        metric = str(self.config.get("metric", "")) if self.config else ""
        for record, end in self._folder.records_after(self._place, history.done):
            path = self.path / RECORDS
            expected.check_record(path, record)
            if record.round != history.done + 1:
                raise CommunisError(
                    f"{path}: after round {history.done} comes round {record.round}; put back a "
                    "copy of the file, or run it again"
                )
            self._place = end
            history.add(record, metric)
            self._records.append(record)
        self._changed(True)

    def _begin_anew(self) -> None:
        """Forgets what was read of files that depend on fleet.json: the next look reads them from
        their beginning."""
        for name in (RECORDS, ACCOUNT, VERDICT):
            self._signatures.pop(name, None)
            self.problems.pop(name, None)
        self._folder = RunFolder(self.path)
        self._account = {}
        self.verdict = self.sentence = ""
        self.history = History()
        self._records = []
        self._place = 0
        self._judged = 0
        self._judge_at = -math.inf

    def _judge(self) -> None:
        """Computes the verdict on privacy anew if there are further rounds. It reads the whole log,
        so where that takes long, it is done rarely."""
        mode = self._account.get("mode")
        if mode == "none":
            self._records = []
            self.verdict = "off"
            self.sentence = "privacy.mode = none: nothing that clients send is protected"
        if not mode or mode == "none" or not self.config or self._judged == self.history.done:
            return
        begun = time.monotonic()
        if begun < self._judge_at and self.held:
            return
        self._judged = self.history.done
        run = Finished(self.path, self.config, tuple(self._records))
        found = self._tried(VERDICT, lambda: privacy_verdict(run))
        self._judge_at = time.monotonic() + RARELY * (time.monotonic() - begun)
        self.verdict = found.brief if found else ""
        self.sentence = found.line if found else ""
        self._changed(True)

    def _tried(self, name: str, read: Callable[[], T]) -> T | None:
        """Reads a file; where that fails, says so in its place."""
        self._changed(self.problems.pop(name, None) is not None)
        try:
            return read()
        except CommunisError as error:
            self.problems[name] = readable(str(error), 600)
        except OSError as error:
            self.problems[name] = readable(f"{self.path / name}: {plain(error)}", 600)
        self._changed(True)
        return None

    def _is_new(self, name: str) -> bool:
        """Whether a file is another one than at the last look."""
        try:
            about = (self.path / name).stat()
            found = (about.st_ino, about.st_size, about.st_mtime_ns)
        except OSError:
            found = None
        known = name in self._signatures
        if known and self._signatures[name] == found:
            return False
        self._signatures[name] = found
        self._changed(True)
        return known or found is not None or name == CONFIG

    def _changed(self, so: bool) -> None:
        self.version += so


def _appended(before: Signature, now: Signature | None) -> bool:
    """Whether a file is the same one and has grown."""
    return now is not None and now[0] == before[0] and now[1] > before[1]
