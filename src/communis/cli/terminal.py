"""What a person or a program sees while runs go on: a live bar, plain lines, or JSON lines."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.styled import Styled

from communis.cli.console import Stacked, err, out, say
from communis.core.errors import CommunisError, visible
from communis.core.plugins import nearest
from communis.core.selection import Select
from communis.exchange.messages import RoundRecord
from communis.results.alarms import alarms
from communis.results.compare import LEADING, Row, rows, runs_by_cell, scored
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.modalities import alone
from communis.results.newcomers import Newcomers, newcomers
from communis.results.over_cells import Line, Selected, lines, mark
from communis.results.privacy import as_json as promised
from communis.results.timing import Clocked, timing
from communis.results.traffic import Sent, traffic
from communis.results.wording.alarms import sentences as alarms_in_words
from communis.results.wording.clock import about_time, goal, of_rounds, of_target
from communis.results.wording.headline import headline
from communis.results.wording.newcomers import CONTROL, about_newcomers, against
from communis.results.wording.numbers import count, kilobytes, number, plain, versus
from communis.results.wording.privacy import lines as verdicts
from communis.results.wording.scores import CHOICES, choices, how_to_read, scope
from communis.results.wording.traffic import COLUMNS, about_traffic
from communis.run.config import Config
from communis.run.engine import Stop
from communis.run.jobs import Job

COSTS: Mapping[str, Callable[[Row], str]] = {
    "parameters": lambda row: count(row.parameters),
    "KB up/down": lambda row: f"{kilobytes(row.bytes_up)}/{kilobytes(row.bytes_down)}",
    "MB in all": lambda row: f"{row.total_bytes / 1e6:,.1f}",
    "s/round": lambda row: f"{row.seconds:.2f}",
}
REFUSED: Mapping[str, Callable[[Row], str]] = {"refused": lambda row: count(row.refused)}


@dataclass
class _Line:
    """What is known of a run under way."""

    traffic: int = 0  # bytes
    score: str = ""  # the last one, in words
    task: TaskID | None = None  # of the live display
    round: int = 0  # the last one that was completed


class Display:
    """Progress of one or more runs. Modes: live (a terminal), lines (no terminal), json, quiet. The
    live display has a bar for all runs; where several are under way, each has a line of its own
    below."""

    def __init__(
        self, jobs: Sequence[Job], metric: str, json_lines: bool, quiet: bool, at_once: int = 1
    ) -> None:
        """at_once: the number of runs under way at the same time."""
        self.metric = metric or "accuracy"
        self._asked = bool(metric)
        self._json = json_lines
        self._quiet = quiet
        self._several = at_once > 1
        self._runs = len(jobs)
        self._total = sum(job.config.run.rounds for job in jobs)
        self._done = 0  # rounds
        self._ended = 0  # runs
        self._lines: dict[Path, _Line] = {}
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

    def skip(self, job: Job) -> None:
        """A run is finished already."""
        self._done += job.config.run.rounds
        self._ended += 1
        self._show_all(job.label, "")

    def begin(self, job: Job, done: int = 0) -> None:
        """A run starts, or goes on after `done` rounds. It may go on from an earlier round than the
        last one shown, if its process died."""
        line = self._lines.setdefault(job.folder, _Line())
        self._done += done - line.round
        line.round = done
        label = visible(job.label)
        if self._bar is not None and self._several and line.task is None:
            rounds = job.config.run.rounds
            line.task = self._bar.add_task(label, total=rounds, completed=done, note="")
        self._show_all(label, "")

    def record(self, job: Job, record: RoundRecord) -> None:
        """A round of a run is complete."""
        line = self._lines[job.folder]
        rounds = job.config.run.rounds
        self._done += 1
        line.round = record.round
        line.traffic += record.bytes_up + record.bytes_down
        self._check_metric(record)
        value = record.scores.get(f"test.{self.metric}")
        if value is not None:
            line.score = f"{self.metric} {value:.3f} (round {record.round})  "
        loss = f"{record.loss:.3f}" if not record.loss > 1e4 else f"{record.loss:.1e}"
        note = f"loss {loss}  {line.score}{line.traffic / 1e6:.1f} MB"
        if self._bar is not None and line.task is not None:
            self._bar.update(line.task, completed=record.round, note=visible(note))
        self._show_all(job.label, note)
        if self._json:
            say({"event": "round", **_about(job.config), **asdict(record)})
        elif self._bar is None and not self._quiet:
            every = max(1, rounds // 5)
            if record.round % every == 0 or record.round == rounds:
                seconds = f"{record.seconds:.2f} s/round"
                line_of_round = f"{job.label}  round {record.round}/{rounds}  {note}  {seconds}"
                out.print(line_of_round, soft_wrap=True)
        for client, reason in record.refused:
            why = f"client {client} refused: {reason}"
            err.print(f"{job.label}, round {record.round}: {why}", style="yellow")

    def end(self, job: Job) -> None:
        """A run is over."""
        self._ended += 1
        line = self._lines.pop(job.folder, None)
        if self._bar is not None and line is not None and line.task is not None:
            self._bar.remove_task(line.task)
        self._show_all(job.label, "")

    def _check_metric(self, record: RoundRecord) -> None:
        """Refuses a metric that this evaluation lacks. Metrics of the task are checked before the
        first round (`run.jobs.refuse_metric`); those of a method's own, such as mean@gate, here."""
        known = [key[5:] for key in record.scores if key.startswith("test.")]
        if self._asked and known and self.metric not in known:
            hint = nearest(self.metric, known)
            raise CommunisError(f"no metric {self.metric!r}{hint}; there are {', '.join(known)}")

    def _show_all(self, label: str, note: str) -> None:
        """Moves the bar for all runs. It names the run under way, if there is only one."""
        if self._bar is None or self._task is None:
            return
        if self._several:
            label = f"{self._ended} of {self._runs} runs"
            note = ""
        label = visible(label)
        self._bar.update(self._task, completed=self._done, description=label, note=visible(note))


def _about(config: Config) -> dict[str, Any]:
    """Returns what tells a run from the others, for programs."""
    about: dict[str, Any] = {"method": config.method_name, "seed": config.seed}
    if config.variant:
        about["variant"] = config.variant
    if config.cell:
        about["cell"] = config.cell
    return about


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
    compared: Sequence[Selected]
    seen = scored(runs)
    if len(places := runs_by_cell(seen)) > 1:
        compared = averages = lines(seen, metric, select)
        view = _grid(averages, metric, list(places))
    else:
        compared = table = rows(seen, metric, select)
        view = comparison(table, metric)
    raised = alarms_in_words(alarms(seen, metric, select), metric, len(places))
    first = " ".join(headline(seen, metric, select))
    parts: list[RenderableType] = [f"{first}\n"]
    parts += [Styled(f"alarm: {text}\n", "yellow") for text in raised]
    parts.append(view)
    words = f"{scope(runs)} {how_to_read(seen, compared, metric, select)}"
    if new := newcomers(seen, metric, select):
        parts += _newcomers(new)
        words += f" {about_newcomers(new, metric, select)}"
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
    return _mean(row.weakest)


def _mean(estimate: Estimate) -> str:
    return f"{estimate.mean:.3f}" if math.isfinite(estimate.mean) else "-"


def _each(
    corner: str,
    columns: Mapping[str, Callable[[Any], str]],
    compared: Sequence[Row | Clocked | Sent],
) -> list[RenderableType]:
    """A small table with a line for every method; none without columns."""
    view = Stacked(corner, *columns, numbers=list(columns))
    for row in compared:
        view.add_row(row.method, *(show(row) for show in columns.values()))
    return ["", view] if columns else []


def _newcomers(found: Newcomers) -> list[RenderableType]:
    """The methods on newcomers; nothing if none has a common model."""
    best = found.rows[0]
    if not best.common:
        return []
    shown = [name for name in found.metrics if name in (found.metrics[0], *LEADING)]
    numbers = [*map(plain, shown), "weakest"]
    last = [f"against {best.method}, 95 % interval"] if len(found.rows) > 1 else []
    view = Stacked("newcomers", *numbers, *last, numbers=numbers, text=last)
    for row in found.rows:
        scores = [number(row.scores[name]) if row.common else "-" for name in shown]
        verdict = [against(row)] if last else []
        view.add_row(row.method, *scores, _mean(row.weakest), *verdict)
    if found.control:
        scores = [number(found.control[name]) for name in shown]
        view.add_row(CONTROL, *scores, "-", *[""] * len(last))
    return ["", view]


def _selections(corner: str, compared: Sequence[Selected]) -> Stacked:
    """The ways to choose a round side by side, with the verdicts of the one that was used."""
    ways = choices(compared)
    numbers = [CHOICES[way] for way in ways]
    against = [f"against {compared[0].method}, 95 % interval"] if len(compared) > 1 else []
    view = Stacked(corner, *numbers, *against, numbers=numbers, text=against)
    for row in compared:
        verdict = [versus(row.difference, row.verdict)] if len(compared) > 1 else []
        view.add_row(row.method, *(number(row.selected[way]) for way in ways), *verdict)
    return view


def _grid(compared: Sequence[Line], metric: str, places: Sequence[str]) -> Group:
    """Methods x cells."""
    heads = [place.replace(", ", "\n") for place in places]
    numbers = [*heads, "average"]
    view = Stacked("method", *numbers, numbers=numbers)
    for line in compared:
        values = []
        for place in places:
            row = line.cells.get(place)
            values.append(_marked(row.scores[metric], row.verdict) if row else "-")
        view.add_row(line.method, *values, _marked(line.average, line.verdict))
    return Group(view, "", _selections("average of", compared))


def _marked(estimate: Estimate, verdict: str) -> str:
    """A score with the mark of its verdict behind the mean."""
    mean, _, spread = number(estimate).partition(" ± ")
    marked = f"{mean}{mark(verdict)}"
    return f"{marked} ± {spread}" if spread else marked


def as_json(
    runs: Sequence[Finished], metric: str, select: Select = "last", targets: Sequence[float] = ()
) -> dict[str, Any]:
    """The same for programs: rows with their cell, and for a grid the averages over cells; by the
    device clock (`timing`) and until the targets (`traffic`) each cell, then all; what may be
    promised of every run (`privacy`)."""
    numbers: dict[str, Any] = {"metric": metric, "select": select, "rows": []}
    groups = runs_by_cell(scored(runs))
    for group in groups.values():
        numbers["rows"] += [
            {"cell": group[0].cell, **asdict(r)} for r in rows(group, metric, select)
        ]
    if len(groups) > 1:
        averages = [asdict(line) for line in lines(runs, metric, select)]
        numbers["averages"] = [{k: v for k, v in x.items() if k != "cells"} for x in averages]
    numbers |= {"timing": [], "traffic": [], "modalities": [], "newcomers": []}
    for part in (*groups.values(), *([scored(runs)] if len(groups) > 1 else [])):
        about = {"cell": part[0].cell if len(runs_by_cell(part)) == 1 else None}  # None: over all
        if times := timing(part, metric, select, targets):
            numbers["timing"].append(about | asdict(times))
        numbers["traffic"] += [about | asdict(x) for x in traffic(part, metric, select, targets)]
        if scores := alone(part, metric, select):
            numbers["modalities"].append(about | asdict(scores))
        if new := newcomers(part, metric, select):
            numbers["newcomers"].append(about | asdict(new))
    numbers["summary"] = headline(runs, metric, select)
    numbers["alarms"] = [asdict(alarm) for alarm in alarms(runs, metric, select)]
    return numbers | {"privacy": [promised(run) for run in scored(runs)]}


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
