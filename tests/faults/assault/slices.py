"""Cases, a slice at a time, each slice in a process of its own: one that crashes or hangs costs a
case, and what it leaves behind goes with it. Every kind of fault gets the same time."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from communis.run.backends import inprocess
from tests.faults.assault.case import Case
from tests.faults.assault.outcome import Outcome, Results, repeat, signature

KINDS = (
    "cuts",
    "kills",
    "workers",
    "damage",
    "messages",
    "configurations",
    "files",
    "archives",
    "pages",
)
SECONDS = 10.0  # of a slice, about
MEMORY = 12 << 30  # bytes of address space for a process, torch's own included
TEMPORARY = 4 << 30  # bytes that one file may have
KEPT = 20  # folders of harmful cases
NEWS = 30.0  # seconds between two lines of progress


class Slice:
    """Some cases of one kind, and the process that does them."""

    def __init__(
        self, kind: str, seed: int, numbers: range, home: Path, keep: Path | None = None
    ) -> None:
        """keep: where folders of harmful cases are moved to."""
        self.kind, self.seed, self.numbers = kind, seed, numbers
        self.limit: float = importlib.import_module(f"tests.faults.assault.{kind}").LIMIT
        self.outcomes: dict[int, Outcome] = {}
        self.begun = self._since = time.monotonic()
        self.place = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=home))
        self._keep = keep
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=self._work, args=(theirs, home))
        self._process.start()
        theirs.close()

    def _work(self, pipe: Connection, home: Path) -> None:
        """In the new process."""
        os.setsid()  # Ctrl-C is for the parent, which ends this group
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (TEMPORARY, TEMPORARY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        torch.set_num_threads(1)
        tempfile.tempdir = str(self.place)
        setattr(inprocess, "shared_memory", lambda: None)  # noqa: B010 - not exported
        os.environ["COMMUNIS_DATA"] = str(self.place / "data")
        shared = self.place / "shared"
        shared.mkdir()
        attempt = importlib.import_module(f"tests.faults.assault.{self.kind}").attempt
        for number in self.numbers:
            scratch = self.place / f"{number}"
            scratch.mkdir()
            try:
                outcome: Outcome = attempt(
                    Case(self.kind, self.seed, number, home, scratch, shared)
                )
            except Exception:
                outcome = Outcome("traceback", traceback.format_exc())
            self._tidy(scratch, number, outcome)
            pipe.send((number, outcome))

    def _tidy(self, scratch: Path, number: int, outcome: Outcome) -> None:
        if self._keep is not None and outcome.harmful and scratch.exists():
            self._keep.mkdir(parents=True, exist_ok=True)
            if len(list(self._keep.iterdir())) < KEPT:
                for image in scratch.glob("*.img"):
                    image.unlink()
                shutil.copytree(scratch, self._keep / f"{self.kind}-{number}", dirs_exist_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def hear(self) -> bool:
        """Takes what there is to hear; whether there is more to come."""
        try:
            while self.pipe.poll():
                number, outcome = self.pipe.recv()
                self.outcomes[number] = outcome
                self._since = time.monotonic()
        except (EOFError, OSError):
            self._process.join()
            if len(self.outcomes) < len(self.numbers):
                self._fail(Outcome("traceback", f"the process died: {self._process.exitcode}"))
            return False
        if time.monotonic() - self._since > self.limit:
            self.end()
            self._fail(Outcome("hang", f"no end within {self.limit:g} s"))
            return False
        return True

    def _fail(self, outcome: Outcome) -> None:
        """Of the case that was under way."""
        self.outcomes[self.numbers[len(self.outcomes)]] = outcome

    def finish(self) -> dict[int, Outcome]:
        """Waits until all is done."""
        while self.hear():
            wait([self.pipe], timeout=0.2)
        self.close()
        return self.outcomes

    def end(self) -> None:
        """The process and all that it has started."""
        with suppress(ProcessLookupError):
            for pid in _session(self._process.pid or 0):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self.end()
        self.pipe.close()
        shutil.rmtree(self.place, ignore_errors=True)


def _session(leader: int) -> list[int]:
    """The processes of a session: those that a slice has started are in groups of their own."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            pid = int(path.name)
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


class Assault:
    def __init__(self, kinds: Sequence[str], seed: int, home: Path, results: Results) -> None:
        self._kinds, self._seed, self._home, self._results = kinds, seed, home, results
        self._keep = results.path.with_suffix(".harm")
        shutil.rmtree(self._keep, ignore_errors=True)
        self._seconds = dict.fromkeys(kinds, 0.0)  # spent by each
        self._next = dict.fromkeys(kinds, 0)  # number of its next case
        self._done: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
        self._active: list[Slice] = []
        self._known: set[tuple[str, str, str]] = set()  # causes of harm that were told

    def go(self, workers: int, seconds: float) -> None:
        """For so many seconds, and until every kind was tried."""
        begun = news = time.monotonic()
        while self._active or self._goes_on(begun + seconds):
            while len(self._active) < workers and self._goes_on(begun + seconds):
                self._active.append(self._slice())
            wait([one.pipe for one in self._active], timeout=0.2)
            for one in [one for one in self._active if not one.hear()]:
                self._active.remove(one)
                self._count(one)
            if time.monotonic() > news + NEWS:
                news = time.monotonic()
                self._tell(news - begun)

    def _goes_on(self, until: float) -> bool:
        return time.monotonic() < until or not all(self._next.values())

    def close(self) -> None:
        """Of slices that were under way, what is done counts."""
        while self._active:
            one = self._active.pop()
            one.hear()
            self._count(one)

    def _slice(self) -> Slice:
        """Of the kind that had the least time, with as many cases as fit in."""
        spent = {kind: self._seconds[kind] for kind in self._kinds}
        for one in self._active:
            spent[one.kind] += max(SECONDS, one.seconds)
        kind = min(self._kinds, key=lambda k: spent[k])
        done = self._done[kind].total()
        count = max(1, int(SECONDS * done / self._seconds[kind])) if done else 1
        first = self._next[kind]
        self._next[kind] += count
        numbers = range(first, first + count)
        return Slice(kind, self._seed, numbers, self._home, self._keep)

    def _count(self, one: Slice) -> None:
        seconds = one.seconds
        one.close()
        counts: Counter[str] = Counter(outcome.result for outcome in one.outcomes.values())
        self._seconds[one.kind] += seconds
        self._done[one.kind].update(counts)
        for number, outcome in one.outcomes.items():
            if outcome.harmful:
                self._results.harm(one.kind, self._seed, number, outcome)
                self._cry(one.kind, number, outcome)
        self._results.tried(one.kind, one.numbers[0], seconds, counts)

    def _cry(self, kind: str, number: int, outcome: Outcome) -> None:
        """Once for every cause; the list at the end has all."""
        cause = kind, outcome.result, signature(outcome.detail)
        if cause in self._known:
            return
        self._known.add(cause)
        print(
            f"{outcome.result}: ... {cause[2]}\n    {repeat(kind, self._seed, number)}", flush=True
        )

    def _tell(self, seconds: float) -> None:
        counts = ", ".join(f"{kind} {n.total():,}" for kind, n in self._done.items())
        print(f"{seconds / 60:.1f} min: {counts}", flush=True)
