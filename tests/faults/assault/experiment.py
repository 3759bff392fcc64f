"""Small experiments that are interrupted and damaged, and how `communis` is called on them.

Every call is a fork of a process that has imported everything and computed nothing: as good as a
new process, without the seconds that importing torch takes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from communis.cli import main as cli
from communis.run.backends import inprocess
from tests.faults.assault.outcome import REFUSED, Outcome
from tests.faults.test_power_cuts import content

ROUNDS = 10
SETTINGS = """
name = "assault"
seed = {seed}
[data]
name = "synthetic"
clients = 5
windows = 20
classes = 3
steps = 16
channels = 2
missing = 0.2
noise = 0.5
[fleet]
models = ["cnn_small"]
roles = [
    {{ modalities = ["m0"], count = 1 }},
    {{ modalities = ["m1"], count = 2 }},
    {{ modalities = ["m0", "m1", "m2"], count = 2 }},
]
{tables}
[method]
batch = 8
{method}
[run]
rounds = {rounds}
workers = {workers}
{run}
"""


@dataclass(frozen=True)
class Experiment:
    """What one run can hold that another does not."""

    method: str
    seed: int = 0
    run: str = ""  # lines of [run]
    tables: str = ""  # further tables

    def settings(self, workers: int = 1, rounds: int = ROUNDS) -> str:
        return SETTINGS.format(
            seed=self.seed,
            method=self.method,
            tables=self.tables,
            run=self.run,
            workers=workers,
            rounds=rounds,
        )


EXPERIMENTS = {
    "private states": Experiment('name = "fedper"'),
    "optimiser memory": Experiment('name = "local"\ncarry = true\nmomentum = 0.9', seed=1),
    "server notes": Experiment('name = "relief"', seed=2),
    "replayed messages": Experiment(
        'name = "fedavg"', tables='[attack]\nkind = "replay"\ncount = 1', seed=3
    ),
    "local privacy": Experiment(
        'name = "fedavg"', tables='[privacy]\nmode = "local"\nnoise = 2.0', seed=4
    ),
    "central privacy": Experiment(
        'name = "fedavg"\nuniform = true',
        tables='[privacy]\nmode = "central"\nnoise = 2.0',
        run="participation = 0.5",
        seed=5,
    ),
    "few checkpoints": Experiment('name = "fedrep"', run="checkpoint_every = 3\npairs = true"),
    "control variates": Experiment('name = "scaffold"', run="cohort = 3", seed=6),
    "a graph": Experiment('name = "fedavg"', tables='[topology]\nkind = "ring"', seed=7),
    "prototypes": Experiment('name = "fedproto"', run="eval_every = 2", seed=8),
}


@dataclass(frozen=True)
class LogToStderr:
    """What a command printed, and its exit code; negative: the signal that ended it."""

    code: int
    text: str

    def names(self, *words: str) -> bool:
        """Whether it speaks of one of these; the terminal breaks long lines anywhere."""
        text = "".join(self.text.split())
        return any("".join(word.split()) in text for word in words)


class Forked:
    """A function in a process of its own, at the head of a process group of its own."""

    def __init__(self, act: Callable[[], object], scratch: Path) -> None:
        """scratch: where its output and its temporary files go."""
        self._said = Path(tempfile.mkdtemp(prefix="said-", dir=scratch)) / "said"
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            os._exit(self._perform(act, scratch))

    def _perform(self, act: Callable[[], object], scratch: Path) -> int:
        """In the new process."""
        file = os.open(self._said, os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # A process that is killed leaves its temporary files: they go with the scratch folder.
        tempfile.tempdir = str(scratch)
        setattr(inprocess, "shared_memory", lambda: None)  # noqa: B010 - not exported
        torch.set_num_threads(1)
        try:
            act()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        return code

    def running(self) -> bool:
        """Without collecting it."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found is None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end_all(self) -> None:
        """Whatever is left of it and of the processes that it has started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def wait(self) -> LogToStderr:
        _, status = os.waitpid(self.pid, 0)
        text = self._said.read_text("utf-8", "replace") if self._said.exists() else ""
        shutil.rmtree(self._said.parent, ignore_errors=True)
        return LogToStderr(os.waitstatus_to_exitcode(status), text)


def command(scratch: Path, *words: str) -> Forked:
    """`communis` with these words."""

    def act() -> None:
        sys.argv = ["communis", *words]
        cli.main()

    return Forked(act, scratch)


def begin(folder: Path, experiment: Experiment, scratch: Path, workers: int = 1) -> Forked:
    """A run is started in a folder."""
    settings = scratch / "experiment.toml"
    settings.write_text(experiment.settings(workers))
    place = ("--into", str(folder.parent), "--name", folder.name)
    return command(scratch, "run", str(settings), *place, "--quiet")


def again(folder: Path, experiment: Experiment, scratch: Path) -> LogToStderr:
    """What a user does after a crash: resume, or run if there was nothing to resume yet."""
    if (folder / "config.toml").exists():
        return command(scratch, "resume", str(folder), "--quiet").wait()
    return begin(folder, experiment, scratch).wait()


def refusal(said: LogToStderr, *names: str) -> Outcome | None:
    """What is to be said of a command that did not succeed; None: it did. names: what a refusal
    must speak of."""
    if said.code == 0:
        return None
    if said.code != 2 or "Traceback" in said.text:
        return Outcome("traceback", f"exit code {said.code}: {said.text}")
    if not said.names(*names):
        return Outcome("nameless refusal", said.text)
    return REFUSED


def different(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The files of a run that are missing or not as they were expected."""
    return [name for name in expected if found.get(name) != expected[name]]


def numbers(folder: Path) -> dict[str, Any]:
    """Every file of a run without what may differ: seconds, workers, the page about it."""
    found = content(folder)
    found.pop("report.html", None)
    if "config.toml" in found:
        found["config.toml"] = re.sub(rb"(?m)^workers = .*$", b"", found["config.toml"])
    return found


def records(folder: Path) -> int:
    """How many rounds a run has written down by now."""
    try:
        return (folder / "records.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def await_round(process: Forked, folder: Path, round: int) -> bool:
    """Waits until so many rounds are done; whether the process is still running."""
    while records(folder) < round:
        if not process.running():
            return False
        time.sleep(0.001)
    return process.running()


@dataclass(frozen=True)
class Look:
    """What `report` and `privacy verdict` say of a folder."""

    report: LogToStderr
    verdict: LogToStderr
    page: str

    @property
    def results(self) -> Any:
        """Without seconds."""
        return [_timeless(json.loads(said.text or "null")) for said in (self.report, self.verdict)]


def look(folder: Path, scratch: Path) -> Look:
    page = scratch / "page.html"
    page.unlink(missing_ok=True)
    report = command(scratch, "report", str(folder), "-o", str(page), "--json").wait()
    verdict = command(scratch, "privacy", "verdict", str(folder), "--json").wait()
    text = page.read_text("utf-8") if page.exists() else ""
    return Look(
        _placeless(report, folder, page),
        _placeless(verdict, folder, page),
        text.replace(str(folder), "RUN"),
    )


def _placeless(said: LogToStderr, folder: Path, page: Path) -> LogToStderr:
    """Only if it went well: a refusal is to name its file."""
    if said.code != 0:
        return said
    return LogToStderr(0, said.text.replace(str(page), "PAGE").replace(str(folder), "RUN"))


def _timeless(value: Any) -> Any:
    """The value without seconds, and without the sentences that name some."""
    if isinstance(value, dict):
        timed = [key for key in value if key.startswith(("seconds", "summary"))]
        return {key: _timeless(inner) for key, inner in value.items() if key not in timed}
    return [_timeless(one) for one in value] if isinstance(value, list) else value
