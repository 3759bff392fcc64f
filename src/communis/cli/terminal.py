"""What a person or a program sees while runs go on: a live bar, plain lines, or JSON lines."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from types import FrameType
from typing import Any

from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from communis.cli.console import Stacked, err, out, say
from communis.core.errors import CommunisError, visible
from communis.core.plugins import nearest
from communis.core.selection import Select
from communis.exchange.messages import RoundRecord
from communis.results.cells import Line, Selected, lines, mark
from communis.results.compare import LEADING, Row, cells, rows, scored
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.modalities import alone
from communis.results.privacy import as_json as promised
from communis.results.timing import Clocked, timing
from communis.results.traffic import Sent, traffic
from communis.results.wording.clock import about_time, goal, of_rounds, of_target
from communis.results.wording.numbers import count, kilobytes, number, plain, versus
from communis.results.wording.privacy import lines as verdicts
from communis.results.wording.scores import CHOICES, choices, how_to_read, scope
from communis.results.wording.traffic import COLUMNS, about_traffic

COSTS: Mapping[str, Callable[[Row], str]] = {
    "parameters": lambda row: count(row.parameters),
    "KB up/down": lambda row: f"{kilobytes(row.bytes_up)}/{kilobytes(row.bytes_down)}",
    "MB in all": lambda row: f"{row.total_bytes / 1e6:,.1f}",
    "s/round": lambda row: f"{row.seconds:.2f}",
}
REFUSED: Mapping[str, Callable[[Row], str]] = {"refused": lambda row: count(row.refused)}


class Display:
    """Progress of one or more runs. Modes: live (a terminal), lines (no terminal), json, quiet."""

    def __init__(self, total_rounds: int, metric: str, json_lines: bool, quiet: bool) -> None:
        self.metric, self._asked = metric or "accuracy", bool(metric)
        self._json, self._quiet = json_lines, quiet
        self._total, self._done, self._label, self._traffic = total_rounds, 0, "", 0
        self._score = ""
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Display:
        if out.is_terminal and not self._json and not self._quiet:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[note]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=out,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._total, note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, label: str, done: int = 0) -> None:
        """A run starts, or goes on after `done` rounds."""
        self._label, self._traffic, self._score = label, 0, ""
        self._done += done
        self._update("")

    def record(self, record: RoundRecord, rounds: int, **about: Any) -> None:
        self._done += 1
        self._traffic += record.bytes_up + record.bytes_down
        self._check_metric(record)
        value = record.scores.get(f"test.{self.metric}")
        if value is not None:
            self._score = f"{self.metric} {value:.3f} (round {record.round})  "
        loss = f"{record.loss:.3f}" if not record.loss > 1e4 else f"{record.loss:.1e}"
        note = f"loss {loss}  {self._score}{self._traffic / 1e6:.1f} MB"
        self._update(note)
        if self._json:
            say({"event": "round", **about, **asdict(record)})
        elif self._bar is None and not self._quiet:
            every = max(1, rounds // 5)
            if record.round % every == 0 or record.round == rounds:
                seconds = f"{record.seconds:.2f} s/round"
                out.print(f"{self._label}  round {record.round}/{rounds}  {note}  {seconds}")
        for client, reason in record.refused:
            err.print(f"round {record.round}: client {client} refused: {reason}", style="yellow")

    def _check_metric(self, record: RoundRecord) -> None:
        """A mistyped metric is found at the first evaluation, not after the last run."""
        found = [key[5:] for key in record.scores if key.startswith("test.")]
        if self._asked and found and self.metric not in found:
            hint = nearest(self.metric, found)
            raise CommunisError(f"no metric {self.metric!r}{hint}; there are {', '.join(found)}")

    def _update(self, note: str) -> None:
        if self._bar is not None and self._task is not None:
            label, note = visible(self._label), visible(note)
            self._bar.update(self._task, completed=self._done, description=label, note=note)


def results(
    runs: Sequence[Finished],
    metric: str,
    select: Select = "last",
    quiet: bool = False,
    targets: Sequence[float] = (),
) -> Group:
    """The comparison of the methods, or for a grid the methods x cells, what they take by the
    device clock, what they send until they reach the targets and whether that is private; unless
    `quiet` with how to read it. targets: see `timing.named`."""
    found: Sequence[Selected]
    seen = scored(runs)
    if len(places := cells(seen)) > 1:
        found = averages = lines(seen, metric, select)
        view = _grid(averages, metric, list(places))
    else:
        found = table = rows(seen, metric, select)
        view = comparison(table, metric)
    parts: list[RenderableType] = [view]
    words = f"{scope(runs)} {how_to_read(seen, found, metric, select)}"
    if times := timing(seen, metric, select, targets):
        parts += _each("method", of_rounds(times), times.rows)
        parts += _each(goal(times.target, metric), of_target(times), times.rows)
        words += f" {about_time(seen, times, metric)}"
    if sent := traffic(seen, metric, select, targets):
        for one in sent:
            parts += _each(goal(one.target, metric), COLUMNS, one.rows)
        words += f" {about_traffic(seen, metric)}"
    parts += ["", *verdicts(seen)]
    return Group(*parts) if quiet else Group(*parts, f"\n{words}")


def comparison(table: Sequence[Row], metric: str) -> Group:
    """The rows of a comparison for the terminal, with the verdicts below. With more than two scores
    the costs do not fit beside them."""
    shown = [m for m in table[0].scores if m == metric or m in LEADING]
    scores = {plain(m): partial(_score, metric=m) for m in shown} | {"weakest": _weakest}
    costs = {**COSTS, **REFUSED} if any(row.refused for row in table) else COSTS
    tables = [scores, costs] if len(shown) > 2 else [{**scores, **costs}]
    parts = [part for columns in tables for part in _each("method", columns, table)]
    return Group(*parts[1:], "", _selections(f"{plain(metric)} of", table))


def _score(row: Row, metric: str) -> str:
    return number(row.scores[metric])


def _weakest(row: Row) -> str:
    return f"{row.weakest.mean:.3f}" if math.isfinite(row.weakest.mean) else "-"


def _each(
    corner: str, columns: Mapping[str, Callable[[Any], str]], found: Sequence[Row | Clocked | Sent]
) -> list[RenderableType]:
    """A small table with a line for every method; none without columns."""
    view = Stacked(corner, *columns, numbers=list(columns))
    for row in found:
        view.add_row(row.method, *(show(row) for show in columns.values()))
    return ["", view] if columns else []


def _selections(corner: str, found: Sequence[Selected]) -> Stacked:
    """The ways to choose a round side by side, with the verdicts of the one that was used."""
    ways = choices(found)
    numbers = [CHOICES[s] for s in ways]
    against = [f"against {found[0].method}, 95 % interval"] if len(found) > 1 else []
    view = Stacked(corner, *numbers, *against, numbers=numbers)
    for one in found:
        verdict = [versus(one.difference, one.verdict)] if len(found) > 1 else []
        view.add_row(one.method, *(number(one.selected[s]) for s in ways), *verdict)
    return view


def _grid(found: Sequence[Line], metric: str, places: Sequence[str]) -> Group:
    """Methods x cells; too long a line is broken before the spread."""

    def cell(estimate: Estimate, verdict: str) -> str:
        mean, _, spread = number(estimate).partition(" ± ")
        return f"{mean}{mark(verdict)} ±{spread}" if spread else f"{mean}{mark(verdict)}"

    view = Table(box=None, header_style="bold", pad_edge=False)
    view.add_column("method", no_wrap=True)
    for name in (*places, "average"):
        view.add_column(name.replace(", ", "\n"), justify="right")
    for line in found:
        shown = [line.cells.get(place) for place in places]
        values = [cell(row.scores[metric], row.verdict) if row else "-" for row in shown]
        view.add_row(line.method, *values, cell(line.average, line.verdict))
    return Group(view, "", _selections("average of", found))


def as_json(
    runs: Sequence[Finished], metric: str, select: Select = "last", targets: Sequence[float] = ()
) -> dict[str, Any]:
    """The same for programs: rows with their cell, and for a grid the averages over cells; by the
    device clock (`timing`) and until the targets (`traffic`) each cell, then all; what may be
    promised of every run (`privacy`)."""
    found: dict[str, Any] = {"metric": metric, "select": select, "rows": []}
    groups = cells(scored(runs))
    for group in groups.values():
        found["rows"] += [{"cell": group[0].cell, **asdict(r)} for r in rows(group, metric, select)]
    if len(groups) > 1:
        averages = [asdict(line) for line in lines(runs, metric, select)]
        found["averages"] = [{k: v for k, v in x.items() if k != "cells"} for x in averages]
    found |= {"timing": [], "traffic": [], "modalities": []}
    for part in (*groups.values(), *([scored(runs)] if len(groups) > 1 else [])):
        about = {"cell": part[0].cell if len(cells(part)) == 1 else None}  # None: over all
        if times := timing(part, metric, select, targets):
            found["timing"].append(about | asdict(times))
        found["traffic"] += [about | asdict(x) for x in traffic(part, metric, select, targets)]
        if scores := alone(part, metric, select):
            found["modalities"].append(about | asdict(scores))
    return found | {"privacy": [promised(run) for run in scored(runs)]}


class Stop:
    """Whether Ctrl-C was pressed."""

    requested = False


@contextmanager
def stop_after_round() -> Iterator[Stop]:
    """Ctrl-C, or a request of the system to end (SIGTERM), lets the round finish and be saved; a
    second one ends it at once."""
    stop = Stop()

    def handler(number: int, frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        again = "press Ctrl-C again" if number == signal.SIGINT else "send the signal again"
        err.print(f"stopping after this round; {again} to stop at once")

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old)
