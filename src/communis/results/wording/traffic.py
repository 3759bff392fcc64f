"""Traffic until a score is reached, in words and columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.traffic import Sent
from communis.results.wording.numbers import plain, quantity

UNITS = ("B", "KB", "MB", "GB", "TB")
COLUMNS: Mapping[str, Callable[[Sent], str]] = {
    "rounds": lambda row: _or_na(row, quantity(row.rounds)),
    "up, fleet": lambda row: _or_na(row, volume(row.uplink)),
    "up, per client": lambda row: _or_na(row, volume(row.per_client)),
    "up and down, fleet": lambda row: _or_na(row, volume(row.total)),
    "runs that did": lambda row: f"{row.reached} of {row.runs}",
}


def about_traffic(runs: Sequence[Finished], metric: str) -> str:
    """How the traffic until a target is to be read."""
    every = max(int(run.config["run"].get("eval_every", 1)) for run in runs)
    rounds = f" (every {every} rounds)" if every > 1 else ""
    attackers = ", attackers included," if any(run.fleet.get("attackers") for run in runs) else ""
    text = (
        f"Traffic is counted up to the first evaluated round{rounds} whose mean test "
        f"{plain(metric)} reached the target. Up is the payload that all clients{attackers} sent "
        "until then; per client it is divided by those that sent anything. Both directions "
        "together count with their framing. Means ± standard deviation over seeds; NA: not every "
        "run reached it."
    )
    if any(run.config.get("topology", {}).get("kind", "star") != "star" for run in runs):
        text += " In a graph, up is what nodes send to their neighbours, and nothing comes down."
    return text


def volume(estimate: Estimate) -> str:
    """Bytes with their spread, in the unit that suits the mean."""
    if not math.isfinite(estimate.mean):
        return "-"
    step = next((i for i in range(len(UNITS)) if estimate.mean < 999.5 * 1000**i), len(UNITS) - 1)
    mean, spread = estimate.mean / 1000**step, estimate.spread / 1000**step
    return f"{quantity(replace(estimate, mean=mean, spread=spread))} {UNITS[step]}"


def _or_na(row: Sent, text: str) -> str:
    return text if row.reached == row.runs else "NA"
