"""The curves of a report, point by point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from communis.core.selection import Select
from communis.results import curves as bands
from communis.results import latent, privacy, similarity
from communis.results.allocation import allocation
from communis.results.compare import runs_by_cell, runs_by_method
from communis.results.curves import Band, Bands
from communis.results.finished import Finished
from communis.results.frames.columns import METHOD, frame
from communis.results.timing import score_curves, timing

COLUMNS = (*METHOD, "curve", "group", "along", "x", "mean", "low", "high", "seeds", "scale")


def curves(
    finished: Sequence[Finished], metric: str, select: Select, targets: Sequence[float]
) -> pd.DataFrame:
    """Means over seeds, with the lowest and the highest of them, of every cell. `along` says what x
    counts; where `scale` is "log" the mean is the geometric one."""
    table: list[dict[str, Any]] = []
    for place, inside in runs_by_cell(finished).items():
        score = f"test {metric}"
        table += _points(place, score, "round", bands.scores_by_round(inside, metric))
        table += _points(place, score, "megabytes", bands.scores_by_megabytes(inside, metric))
        table += _points(place, "loss", "round", bands.losses(inside))
        times = timing(inside, metric, select, targets)
        for along in ("seconds", "joules") if times else ():
            by_time = score_curves(inside, times, metric, along) if times else {}
            table += _points(place, score, along, by_time)
        attacked = [run for run in inside if run.attackers]
        moved = bands.distances(attacked, "attack_distance")
        table += _points(place, "attack distance", "round", moved)
        apart = bands.distances(inside, "consensus_distance")
        table += _points(place, "consensus distance", "round", apart)
        for name, by_method in latent.bands(inside).items():
            table += _points(place, name, "round", by_method)
        alike = similarity.bands(similarity.by_method(inside))
        table += _points(place, "similarity", "round", alike)
        for method, group in runs_by_method(inside).items():
            for parameters, band in allocation(group).bands.items():
                table += _rows(method, place, "divergence", parameters, "round", band)
    for points, by_seed in privacy.epsilon_curves(privacy.points(finished)):
        band = bands.by_round({"": by_seed})[""]
        for point in points:
            table += _rows(point.method, point.place, "epsilon", "", "round", band)
    return frame(table, COLUMNS)


def _points(place: str, curve: str, along: str, by_method: Bands) -> list[dict[str, Any]]:
    rows = []
    for method, band in by_method.items():
        rows += _rows(method, place, curve, "", along, band)
    return rows


def _rows(
    method: str, place: str, curve: str, group: str, along: str, band: Band
) -> list[dict[str, Any]]:
    about = {"method": method, "cell": place, "curve": curve, "group": group, "along": along}
    scale = {"seeds": band.seeds, "scale": "log" if band.powers else "linear"}
    rows = []
    for x, mean, low, high in zip(band.x, band.mean, band.low, band.high, strict=True):
        values = {"mean": mean, "low": low, "high": high}
        if band.powers:
            values = {name: 10**value for name, value in values.items()}
        rows.append({**about, "x": x, **values, **scale})
    return rows
