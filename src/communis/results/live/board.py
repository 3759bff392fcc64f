"""What a page shows of the runs of a folder, in values that JSON has: a row for each of them,
curves, and who takes part in those that go on."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from communis.core.claim import is_held
from communis.core.errors import CommunisError, readable
from communis.core.finite import strict
from communis.results.live.followed import CONFIG, LONGEST, Followed
from communis.results.report.svg import PALETTE
from communis.results.wording.numbers import plain
from communis.run.folder import RECORDS

POINTS = 500  # of a curve, at most
ALL_POINTS = 6000  # of all curves of a picture together, roughly
LEAST_POINTS = 40
MOST_RUNS = 300
MOST_DETAILS = 4  # runs whose clients and refusals are shown
MOST_CLIENTS = 500
SEARCH = 3.0  # seconds between two searches for runs
DEEPEST = 8  # folders below the one that is watched
Points = Sequence[tuple[int, float]]


class Board:
    """The runs in a folder and below it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[Path, Followed] = {}
        self._hidden: list[str] = []  # why runs are not shown
        self._searched = -math.inf
        self._seen: object = None
        self._shown: dict[str, Any] = {}

    def look(self) -> dict[str, Any]:
        """Returns what there is to show now."""
        self._search()
        for run in self._runs.values():
            run.look()
        homes = self._held_homes()
        versions = [(path, run.version) for path, run in self._runs.items()]
        seen = versions, homes, self._hidden
        if seen != self._seen:
            self._shown = strict(self._show(homes))
            self._seen = seen
        return self._shown

    def _search(self) -> None:
        """Finds runs that are new, and forgets those that are gone."""
        now = time.monotonic()
        if now - self._searched < SEARCH:
            return
        self._searched = now
        found: dict[Path, Followed] = {}
        self._hidden = []
        for path in _runs_below(self.folder):
            if len(found) == MOST_RUNS:
                self._hidden.append(
                    f"{self.folder}: holds more than {MOST_RUNS} runs; only so many are shown"
                )
                break
            try:
                found[path] = self._runs.get(path) or Followed(path)
            except CommunisError as error:
                self._hidden.append(str(error))
        self._runs = dict(sorted(found.items()))

    def _held_homes(self) -> list[Path]:
        """The folders above runs that somebody works on, such as that of a comparison."""
        above = {
            home
            for path in self._runs
            for home in path.parents
            if home == self.folder or self.folder in home.parents
        }
        return [home for home in sorted(above) if is_held(home)]

    def _show(self, homes: Sequence[Path]) -> dict[str, Any]:
        runs = list(self._runs.values())
        states = {}
        for run in runs:
            states[run.path] = _state(run, any(home in run.path.parents for home in homes))
        methods = list(dict.fromkeys(map(_method, runs)))
        problems = [*self._hidden, *(text for run in runs for text in run.problems.values())]
        if not runs:
            problems.append(f"{self.folder}: holds no run any more")
        return {
            "title": self._title(runs),
            "single": self._is_run(runs),
            "left": _left(runs, states),
            "runs": [self._row(run, states[run.path], methods) for run in runs],
            "curves": _curves(runs),
            "details": [self._detail(run) for run in _detailed(runs, states)],
            "problems": [readable(text, 700) for text in dict.fromkeys(problems)],
        }

    def _is_run(self, runs: Sequence[Followed]) -> bool:
        """Whether the folder is that of a single run."""
        return len(runs) == 1 and runs[0].path == self.folder

    def _title(self, runs: Sequence[Followed]) -> str:
        name = readable(self.folder.resolve().name or str(self.folder), LONGEST)
        if self._is_run(runs) and runs[0].config:
            return f"{name}: {_method(runs[0])}, seed {runs[0].config['seed']}"
        return name

    def _row(self, run: Followed, state: str, methods: Sequence[str]) -> dict[str, Any]:
        history = run.history
        last = history.last
        online = run.online()
        return {
            "name": self._name(run),
            "method": _method(run),
            "colour": PALETTE[methods.index(_method(run)) % len(PALETTE)],
            "seed": run.config["seed"] if run.config else None,
            "state": state,
            "round": history.done,
            "rounds": run.planned,
            "metric": plain(history.metric),
            "score": history.test[-1][1] if history.test else None,
            "loss": last.loss if last else None,
            "clients": len(run.clients),
            "cohort": len(last.cohort) if last else None,
            "online": None if online is None else int(online.sum()),
            "down": history.down,
            "up": history.up,
            "framing": history.framing,
            "seconds": history.seconds if last else None,
            "joules": history.joules if last else None,
            "privacy": run.verdict,
            "refused": history.refusals,
            "pace": fmean(history.paces) if history.paces else None,
            "left": run.left if state == "running" else None,
            "damaged": bool(run.problems),
        }

    def _name(self, run: Followed) -> str:
        """The place of a run below the folder that is watched; its own name if it is that one."""
        below = run.path.relative_to(self.folder)
        return readable(str(below) if below.parts else run.path.resolve().name, LONGEST)

    def _detail(self, run: Followed) -> dict[str, Any]:
        """Who took part in the last round, and what was refused."""
        history = run.history
        cohort = frozenset(history.last.cohort if history.last else ())
        online = run.online()
        gone = {found["id"] for found in (run.fleet or {}).get("newcomers") or ()}
        clients = []
        for number, client in enumerate(run.clients[:MOST_CLIENTS]):
            if number in cohort:
                state = "took part"
            elif number in gone:
                state = "newcomer"
            elif online is not None and not online[number]:
                state = "offline"
            else:
                state = "not drawn"
            sensors = "+".join(map(str, client.get("sensors") or ()))
            about = ", ".join(filter(None, [str(client.get("device") or ""), sensors]))
            clients.append([run.called(number), state, readable(about, LONGEST)])
        return {
            "name": self._name(run),
            "round": history.done,
            "privacy": run.sentence,
            "clients": clients,
            "more": max(0, len(run.clients) - MOST_CLIENTS),
            "reasons": history.reasons.most_common(),
            "refused": [
                [round, run.called(client), why]
                for round, client, why in reversed(history.last_refusals)
            ],
        }


def _runs_below(folder: Path) -> Iterator[Path]:
    """The folders of runs. Within a run there are no others."""
    for place, inside, files in os.walk(folder):
        here = Path(place)
        if CONFIG in files or RECORDS in files:
            inside.clear()
            yield here
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        if len(here.relative_to(folder).parts) >= DEEPEST:
            inside.clear()


def _method(run: Followed) -> str:
    """What curves are named by: the method or its variant, with the cell of a grid."""
    if run.config is None:
        return "?"
    name = str(run.config.get("variant") or run.config["method"]["name"])
    cell = "/".join(str(level) for level in run.config.get("cell", {}).values())
    return readable(f"{cell}, {name}" if cell else name, LONGEST)


def _state(run: Followed, home_is_held: bool) -> str:
    """What a run does, in one word or two."""
    done = run.history.done
    if run.held:
        return "running" if done else "starting"
    if run.problems and not done:
        return "damaged"
    if run.complete:
        return "finished"
    if run.held is None:  # the system does not say
        return "unfinished"
    if done:
        return "stopped"
    return "waiting" if home_is_held else "not begun"


def _left(runs: Sequence[Followed], states: dict[Path, str]) -> float:
    """The seconds until all runs are done, if those at work go on beside each other at the pace of
    their last rounds, and those that wait are like them on average."""
    going = [run for run in runs if states[run.path] == "running"]
    waiting = [run for run in runs if states[run.path] in ("waiting", "starting")]
    if not going:
        return math.nan
    pace = fmean(pace for run in runs for pace in run.history.paces)
    ahead = sum(run.left for run in going) + sum(pace * run.planned for run in waiting)
    longest = max(run.left for run in going)
    at_work = sum(run.held is True for run in runs)
    return max(longest, ahead / at_work)


def _detailed(runs: Sequence[Followed], states: dict[Path, str]) -> list[Followed]:
    """The runs that go on; if none does, the only one or the last of those with records."""
    going = [run for run in runs if states[run.path] == "running"]
    done = [run for run in runs if run.history.done]
    return (going or done[-1:])[:MOST_DETAILS]


def _curves(runs: Sequence[Followed]) -> list[dict[str, Any]]:
    """The pictures: scores and loss. Of several runs each has a line that is named by its method: a
    mean over runs that are not equally far would jump where one of them ends."""
    begun = [run for run in runs if run.history.done]
    if not begun:
        return []
    metric = next((run.history.metric for run in begun if run.history.metric), "")
    alike = [run for run in begun if run.history.metric == metric]
    if len(runs) == 1:
        (run,) = begun
        scores = [("test", run.history.test), ("validation", run.history.validation)]
        losses = [("training loss", run.history.losses)]
        order = [name for name, _ in (*scores, *losses)]
    else:
        scores = [(_method(run), run.history.test) for run in alike]
        losses = [(_method(run), run.history.losses) for run in begun]
        order = list(dict.fromkeys(map(_method, runs)))
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(order)}
    pictures = {plain(metric): scores, "training loss": losses}
    return [
        {"title": title, "powers": lines is losses, "lines": _lines(lines, colours)}
        for title, lines in pictures.items()
        if title and any(points for _, points in lines)
    ]


def _lines(lines: Sequence[tuple[str, Points]], colours: Mapping[str, str]) -> list[dict[str, Any]]:
    limit = min(POINTS, max(LEAST_POINTS, ALL_POINTS // len(lines)))
    return [
        {"name": name, "colour": colours[name], "points": thinned(points, limit)}
        for name, points in lines
        if points
    ]


def thinned(points: Points, limit: int) -> Points:
    """At most so many of the points, evenly, with the first and the last one."""
    if len(points) <= limit:
        return points
    step = (len(points) - 1) / (limit - 1)
    return [points[round(i * step)] for i in range(limit)]
