"""What was trained, how alike clients are, and whether models know when they fail."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from communis.core import diagnostics
from communis.results import latent as latent_space
from communis.results import similarity, updates
from communis.results.allocation import allocation, over_rounds
from communis.results.compare import runs_by_cell, runs_by_method
from communis.results.correlation import Correlation
from communis.results.finished import Finished
from communis.results.frames.columns import METHOD, RUN, frame, named, of_run, stack
from communis.results.uncertainty import SCORE, SENSORS, UNCERTAINTY, awareness


def trained(finished: Sequence[Finished]) -> pd.DataFrame:
    """Of the owners of a group of parameters in a round, the share that trained it."""
    parts = []
    for run in finished:
        parts.append(named(allocation([run]).shares, run))
    return stack(parts, (*RUN, "round", "group", "share"))


def allocations(finished: Sequence[Finished]) -> pd.DataFrame:
    """The means of `trained` over seeds and stretches of rounds, as the maps show them."""
    parts = []
    for place, inside in runs_by_cell(finished).items():
        for method, group in runs_by_method(inside).items():
            shares = allocation(group).shares
            if len(shares):
                wide = over_rounds(shares)
                long = wide.rename_axis("group").reset_index()
                long = long.melt("group", var_name="rounds", value_name="share").dropna()
                parts.append(long.assign(method=method, cell=place))
    return stack(parts, (*METHOD, "group", "rounds", "share"))


def allocation_clients(finished: Sequence[Finished]) -> pd.DataFrame:
    """The groups that a client trained per round, and how many it had time for: means over rounds
    and seeds."""
    parts = []
    for place, inside in runs_by_cell(finished).items():
        for method, group in runs_by_method(inside).items():
            trained_by = allocation(group)
            if len(trained_by.shares):
                table = trained_by.clients.reset_index()
                parts.append(table.assign(method=method, cell=place))
    columns = (*METHOD, "client", "kind", "groups_per_round", "budget")
    return stack([part.rename(columns={"groups": "groups_per_round"}) for part in parts], columns)


def divergence(finished: Sequence[Finished]) -> pd.DataFrame:
    """How far clients differ in a group of parameters (squared distance)."""
    table = []
    for run in finished:
        for group, by_seed in allocation([run]).divergence.items():
            for series in by_seed:
                for round, value in series.dropna().items():
                    about = {"round": round, "group": group, "divergence": value}
                    table.append({**of_run(run), **about})
    return frame(table, (*RUN, "round", "group", "divergence"))


def update_cosines(finished: Sequence[Finished]) -> pd.DataFrame:
    """The mean cosine of updates by what the two clients sense, in the first and in the last third
    of the rounds; n: pairs x rounds x seeds."""
    parts = []
    for place, inside in runs_by_cell(finished).items():
        for method, group in runs_by_method(inside).items():
            pairs = updates.pairs(group)
            if pairs.empty:
                continue
            for third, table in zip(("first", "last"), updates.thirds(pairs), strict=True):
                means = updates.cosines(table)
                parts.append(means.assign(method=method, cell=place, third=third))
    return stack(parts, (*METHOD, "third", "group", "kind", "cosine", "n"))


def latent(finished: Sequence[Finished]) -> pd.DataFrame:
    """What clients noted of a common latent space: means over honest clients."""
    parts = []
    for run in finished:
        wide = latent_space.noted(run)
        if len(wide):
            long = wide.reset_index().melt("round", var_name="diagnostic").dropna()
            parts.append(named(long, run))
    return stack(parts, (*RUN, "round", "diagnostic", "value"))


def similarities(finished: Sequence[Finished]) -> pd.DataFrame:
    """The mean similarity of two clients' prototypes."""
    table = []
    for run in finished:
        for round, value in similarity.learning(run).mean.items():
            table.append({**of_run(run), "round": round, "cosine": value})
    return frame(table, (*RUN, "round", "cosine"))


def similarity_pairs(finished: Sequence[Finished]) -> pd.DataFrame:
    """The similarity of every pair of clients, and the weight that `one` gives to `other`."""
    kinds = {diagnostics.ALIKE_PAIR.name: "similarity", diagnostics.WEIGHT.name: "weight"}
    parts = []
    for run in finished:
        pairs = similarity.learning(run).pairs
        parts.append(named(pairs.assign(kind=pairs["kind"].map(kinds)), run))
    return stack(parts, (*RUN, "round", "kind", "one", "other", "value"))


def weights(finished: Sequence[Finished]) -> pd.DataFrame:
    """The weights of the last round against equal ones."""
    columns = ("round", "moved", "low", "high", "own_low", "own_high", "peers")
    table = []
    for run in finished:
        learned = similarity.learning(run)
        given = learned.given if learned.rounds else None
        if given is None:
            continue
        own = given.own or (None, None)
        table.append(
            {
                **of_run(run),
                "round": learned.rounds[-1],
                "moved": given.moved,
                "low": given.others[0],
                "high": given.others[1],
                "own_low": own[0],
                "own_high": own[1],
                "peers": given.peers,
                "equal": 1 / given.peers,
                "times_low": given.times[0],
                "times_high": given.times[1],
            }
        )
    return frame(table, (*RUN, *columns, "equal", "times_low", "times_high"))


def uncertainty_points(finished: Sequence[Finished]) -> pd.DataFrame:
    """Uncertainty, score and mean number of sensors of every client and run; windows: those that
    some sensor saw, or every one."""
    names = {UNCERTAINTY: "uncertainty", SCORE: "macro_f1", SENSORS: "sensors", "place": "cell"}
    parts = []
    for method, aware in awareness(finished).items():
        for windows, points in (("seen", aware.points), ("every", aware.every_window)):
            parts.append(points.rename(columns=names).assign(method=method, windows=windows))
    return stack(parts, (*RUN, "windows", "client", "uncertainty", "macro_f1", "sensors"))


def uncertainty(finished: Sequence[Finished]) -> pd.DataFrame:
    """The rank correlations of uncertainty and score over all cells. `client` is empty where all
    clients count."""
    table = []
    for method, aware in awareness(finished).items():
        table.append(_correlated(method, "seen", "", aware.seen))
        table.append(_correlated(method, "seen, sensors held fixed", "", aware.sensors_fixed))
        table.append(_correlated(method, "every", "", aware.every))
        for client, correlation in aware.by_client.items():
            table.append(_correlated(method, "seen", client, correlation))
    return frame(table, ("method", "windows", "client", "rho", "p", "n"))


def _correlated(
    method: str, windows: str, client: int | str, correlation: Correlation
) -> dict[str, object]:
    about = {"method": method, "windows": windows, "client": client}
    return {**about, "rho": correlation.rho, "p": correlation.p, "n": correlation.n}
