"""Who hears whom, and which sensors were there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from communis.data.recordings.windows import TRAIN
from communis.results import graph
from communis.results.finished import Finished
from communis.results.frames.columns import RUN, frame, of_run
from communis.results.sensing import missing, missing_by_sensor


def graphs(finished: Sequence[Finished]) -> pd.DataFrame:
    """The graph of every run that has no server in the middle; bytes are payload over an edge, or
    of a broadcast, in a round."""
    columns = (
        *RUN,
        "graph",
        "edges",
        "fewest_neighbours",
        "most_neighbours",
        "diameter",
        "parts",
        "clients_by_part",
        "changes",
        "loss",
        "link",
        "bytes_per_round",
    )
    table = []
    for run, name in _on_graphs(finished):
        facts = graph.facts([run])
        table.append(
            {
                **of_run(run),
                "graph": name,
                "edges": facts.edges,
                "fewest_neighbours": facts.fewest_neighbours,
                "most_neighbours": facts.most_neighbours,
                "diameter": facts.diameter,
                "parts": max(1, len(facts.parts)),
                "clients_by_part": ", ".join(map(str, facts.parts)),
                "changes": facts.changes,
                "loss": facts.loss,
                "link": facts.link,
                "bytes_per_round": facts.bytes_per_round[run.method],
            }
        )
    return frame(table, columns)


def _on_graphs(finished: Sequence[Finished]) -> Iterator[tuple[Finished, str]]:
    """Every run on a graph, with the name of the graph among those of its seed."""
    there = [run for run in finished if graph.topology(run)]
    for seed in sorted({run.seed for run in there}):
        groups = graph.alike([run for run in there if run.seed == seed])
        for name, group in zip(graph.names(groups), groups, strict=True):
            for run in group:
                yield run, name


def graph_edges(finished: Sequence[Finished]) -> pd.DataFrame:
    """Every edge with the payload that it carried over the run; `later`: it was not there in the
    first round. Broadcasts are not counted by edge."""
    table = []
    for run, _ in _on_graphs(finished):
        sent = graph.by_edge(run)
        first = sorted((min(edge), max(edge)) for edge in graph.topology(run)["edges"])
        for edge in sorted({*first, *sent}):
            about = {"one": edge[0], "other": edge[1], "later": edge not in first}
            table.append({**of_run(run), **about, "bytes": sent.get(edge, 0.0)})
    return frame(table, (*RUN, "one", "other", "later", "bytes"))


def neighbours(finished: Sequence[Finished]) -> pd.DataFrame:
    """How many neighbours every client has."""
    table = []
    for run, _ in _on_graphs(finished):
        degrees = graph.degrees(graph.topology(run)["edges"], len(run.clients))
        for client, count in enumerate(degrees.tolist()):
            table.append({**of_run(run), "client": client, "neighbours": count})
    return frame(table, (*RUN, "client", "neighbours"))


def sensors(finished: Sequence[Finished]) -> pd.DataFrame:
    """The sensors of every client, with the share of its training time that each is missing."""
    table = []
    for run in finished:
        suites = _suites(run)
        trace = run.trace
        shares = missing_by_sensor(trace, suites) if trace else None
        for client, suite in enumerate(suites):
            for sensor in suite:
                share = 0.0
                seconds = None
                if trace is not None and shares is not None:
                    share = float(shares[client, trace.modalities.index(sensor)])
                    seconds = float(trace.seconds[client, TRAIN])
                about = {"client": client, "name": run.names.get(client, ""), "sensor": sensor}
                table.append({**of_run(run), **about, "missing": share, "seconds": seconds})
    return frame(table, (*RUN, "client", "name", "sensor", "missing", "seconds"))


def missing_time(finished: Sequence[Finished]) -> pd.DataFrame:
    """The share of the training time of all owned sensors that they are missing, by run."""
    table = []
    for run in finished:
        if run.trace is not None:
            table.append({**of_run(run), "missing": missing(run.trace, _suites(run))})
    return frame(table, (*RUN, "missing"))


def _suites(run: Finished) -> list[tuple[str, ...]]:
    return [tuple(client.get("sensors", ())) for client in run.clients]
