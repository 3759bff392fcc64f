"""The command line: `python -m tests.faults.assault --help`."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from communis.run.backends.machine import shared_memory
from tests.faults.assault import cuts, outcome
from tests.faults.assault.home import prepare
from tests.faults.assault.slices import KINDS, Assault, Slice


def main() -> int:
    asked = _arguments()
    if asked.table:
        return _conclude(asked.table)
    kinds = list(asked.only or KINDS)
    lacking = cuts.missing() if "cuts" in kinds else ""
    if lacking:
        print(f"power cuts are left out, they need {lacking}")
        kinds.remove("cuts")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # Forks are of this process: it imports everything and computes nothing.
    torch.set_num_threads(1)
    for kind in kinds:
        importlib.import_module(f"tests.faults.assault.{kind}")
    home = Path(tempfile.mkdtemp(prefix="assault-", dir=shared_memory()))
    try:
        _in_a_fork(home)
        if asked.case is not None:
            return _one(kinds, asked, home)
        return _all(kinds, asked, home)
    except KeyboardInterrupt:
        print("\nstopped")
        return 130
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Faults on purpose; see tests/faults/README.md.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=KINDS, action="append", help="this kind (repeatable)")
    parser.add_argument("--seed", type=int, default=0, help="other faults")
    parser.add_argument("--case", type=int, help="repeat one case of the kind that --only names")
    parser.add_argument("--results", type=Path, default=Path("runs/assault.jsonl"))
    parser.add_argument("--table", type=Path, metavar="FILE", help="the table of earlier results")
    asked = parser.parse_args()
    if asked.case is not None and len(asked.only or ()) != 1:
        parser.error("--case needs the kind: --only KIND")
    return asked


def _in_a_fork(home: Path) -> None:
    """The runs that others are compared with."""
    print("preparing ...", flush=True)
    pid = os.fork()
    if pid == 0:
        try:
            prepare(home)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    try:
        _, status = os.waitpid(pid, 0)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGKILL)
        raise
    if status:
        raise SystemExit("the runs to compare with could not be made")


def _one(kinds: Sequence[str], asked: argparse.Namespace, home: Path) -> int:
    """Repeats a case and says all about it."""
    keep = Path(tempfile.mkdtemp(prefix="assault-case-"))
    found = Slice(kinds[0], asked.seed, range(asked.case, asked.case + 1), home, keep).finish()
    (result,) = found.values()
    print(f"{kinds[0]} {asked.case}: {result.result}\n{result.detail}\nits files: {keep}")
    return int(result.harmful)


def _all(kinds: Sequence[str], asked: argparse.Namespace, home: Path) -> int:
    results = outcome.Results(asked.results)
    asked.results.unlink(missing_ok=True)
    assault = Assault(kinds, asked.seed, home, results)
    try:
        assault.go(asked.workers, 60 * asked.minutes)
    except KeyboardInterrupt:
        print("\nstopped")
    finally:
        assault.close()
    if not asked.results.exists():
        return 0
    return _conclude(asked.results)


def _conclude(path: Path) -> int:
    """The table of results, what did harm, and the exit code."""
    found = outcome.read(path)
    print(f"\n{outcome.table(found, KINDS)}\n\n{outcome.causes(path)}\nresults: {path}")
    return min(outcome.harm(found), 1)


if __name__ == "__main__":
    sys.exit(main())
