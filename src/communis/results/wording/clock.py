"""The device clock in words and columns, for the terminal and the page alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from communis.core.metrics import better
from communis.results.compare import BASE
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.timing import STEP, Clocked, Reach, Timing
from communis.results.wording.numbers import number, plain, quantity, sized

Columns = Mapping[str, Callable[[Clocked], str]]


def of_rounds(timing: Timing) -> Columns:
    """What a round takes."""
    columns: Columns = {
        "simulated s/round": lambda row: quantity(row.seconds),
        "J/round": lambda row: quantity(row.joules),
    }
    if len(timing.rows) < 2:
        return columns
    return {**columns, f"speedup against {timing.base}": lambda row: times(row.speedup)}


def of_target(timing: Timing) -> Columns:
    """What it took to reach the target; nothing where there is none."""
    if math.isnan(timing.target):
        return {}
    return {
        "rounds": lambda row: spent(row.until.rounds, row.until),
        "seconds": lambda row: spent(row.until.seconds, row.until),
        "joules": lambda row: spent(row.until.joules, row.until),
        "MB": lambda row: spent(row.until.megabytes, row.until),
        "runs that did": lambda row: f"{row.until.reached} of {row.until.runs}",
    }


def goal(target: float, metric: str) -> str:
    return f"to {plain(metric)} {target:g}"


def about_time(runs: Sequence[Finished], timing: Timing, metric: str) -> str:
    """How the device clock and the target are to be read."""
    return f"{_about_clock(runs, timing)} {_about_target(timing, metric)}"


def _about_clock(runs: Sequence[Finished], timing: Timing) -> str:
    clocks = [run.config.get("clock", {}) for run in runs]
    modes = sorted({str(clock["mode"]) for clock in clocks if "mode" in clock})
    shares = sorted({f"{clock['share']:g}" for clock in clocks if "share" in clock})
    how = [f"mode {', '.join(modes)}"] * bool(modes)
    how += [f"share {', '.join(shares)} of a device's FLOP/s"] * bool(shares)
    model = f"a model of the devices ({', '.join(how)})" if how else "a model of the devices"
    plain = any(r.config["method"]["name"] == BASE for r in runs if r.method == timing.base)
    slowest = "" if plain else ", whose rounds take longest,"
    speedup = (
        f" A speedup is the simulated seconds per round of {timing.base}{slowest} over the "
        "method's own, in the same seeds and cells."
    )
    return (
        f"Simulated time is {model}: a round lasts until the slowest device is done, joules are "
        "those of the whole fleet. With nominal TOPS only ratios mean something."
        f"{speedup if len(timing.rows) > 1 else ''}"
    )


def _about_target(timing: Timing, metric: str) -> str:
    name = plain(metric)
    if math.isnan(timing.target):
        return (
            f"The mean curves of all methods share no multiple of {STEP:g} of the test {name}, so "
            "no target was chosen; name one with --target."
        )
    text = (
        f"The target is a test {name} of {timing.target:g}, {_why(timing, metric)}; what it took "
        "is counted until the first evaluated round that reached it, MB for the whole fleet in "
        "both directions."
    )
    if any(0 < row.until.reached < row.until.runs for row in timing.rows):
        text += " A run that never did counts with all it took, so > marks a lower bound."
    return text


def _why(timing: Timing, metric: str) -> str:
    """How the target came to be it."""
    hardest, easiest = ("highest", "lowest")[:: better(metric)]
    if not timing.given:
        return f"the {hardest} multiple of {STEP:g} that the mean curve of every method reached"
    if not timing.several:
        return "which was asked for"
    if all(row.until.reached == row.until.runs for row in timing.rows):
        return f"the {hardest} of those asked for that every run reached"
    return f"the {easiest} of those asked for, of which none was reached by every run"


def spent(estimate: Estimate, until: Reach) -> str:
    """What it took to reach the target."""
    if not until.reached or not math.isfinite(estimate.mean):
        return "-"
    return f"> {sized(estimate.mean)}" if until.reached < until.runs else quantity(estimate)


def times(estimate: Estimate) -> str:
    """A factor with its spread."""
    return f"{number(estimate, 2)} x" if math.isfinite(estimate.mean) else "-"
