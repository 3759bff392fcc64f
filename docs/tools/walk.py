"""Counts one walk through a run: how many rooms (folders of `src/communis`) it passes, and how many
calls cross from one room into another.

python docs/tools/walk.py [PRESET]

A call is a pair of functions, the one that calls and the one that is called, in different rooms; it
counts once, however often it happens. What happens in between in other libraries is skipped, and
inner functions count as the function around them. Everything is imported before, and the fleet has
been built once, so that what is cached by then does not count.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import communis
from communis.fleet.fleet import Fleet
from communis.results.compare import collect
from communis.results.report import page
from communis.results.wording.scores import default_metric, default_select
from communis.run.config import Config, load
from communis.run.loop import Run

ROOT = Path(communis.__file__).parent
ROUNDS = 3

T = TypeVar("T")


class Walk:
    """The rooms and calls of what is done between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self.rooms: set[str] = set()
        self.calls: set[tuple[str, str]] = set()

    def __enter__(self) -> Walk:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        called = room(frame.f_code)
        if event != "call" or not called:
            return
        caller = frame.f_back
        while caller is not None and not room(caller.f_code):
            caller = caller.f_back
        if caller is None or "<module>" in (frame.f_code.co_name, caller.f_code.co_name):
            return
        self.rooms |= {called, room(caller.f_code)}
        if called != room(caller.f_code):
            self.calls.add((name(caller.f_code), name(frame.f_code)))


def room(code: CodeType) -> str:
    """Returns the room of a function; empty for other libraries."""
    path = Path(code.co_filename)
    return path.relative_to(ROOT).parts[0] if path.is_relative_to(ROOT) else ""


def name(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_qualname.partition('.<locals>')[0]}"


def walked(title: str, action: Callable[[], T]) -> T:
    """Prints how far an action walks."""
    with Walk() as walk:
        outcome = action()
    print(f"{title:20} {len(walk.rooms):2} rooms, {len(walk.calls):3} calls")
    return outcome


def main(preset: str, home: Path) -> None:
    def prepared() -> tuple[Config, Fleet]:
        config = load(preset, [f"run.rounds={ROUNDS}"])
        return config, config.make_fleet()

    def started() -> Run:
        return Run(
            fleet,
            config.make_method(),
            config.run,
            folder=home / "run",
            config=config.to_toml(),
            topology=config.make_topology(fleet),
            rule=config.robust.make(),
            privacy=config.privacy,
        )

    def reported() -> None:
        runs = collect([home])
        page.write(runs, home / "report.html", default_metric(runs), preset, default_select(runs))

    prepared()
    config, fleet = walked("file to fleet", prepared)
    run = walked("Run()", started)
    with run:
        rounds = iter(run)
        walked("a round", lambda: next(rounds))
        for _ in rounds:
            pass
    walked("folder to report", reported)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else "synthetic", Path(folder))
