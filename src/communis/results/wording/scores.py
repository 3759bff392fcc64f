"""Numbers and verdicts in words, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from communis.core.pooled import is_pooled
from communis.core.selection import Select
from communis.results.compare import known, metrics, ranking, runs_by_cell, runs_by_method, scored
from communis.results.estimate import FEWEST
from communis.results.finished import Finished
from communis.results.over_cells import Selected
from communis.results.wording.numbers import (
    number,
    plain,
    span,
)

CHOICES: Mapping[Select, str] = {
    "last": "last round",
    "common": "common best",
    "client": "own best",
    "tail": "last five",
}
TOGETHER = (
    "A pooled macro f1 is no mean over clients, but that of one confusion of all their windows."
)


def choices(compared: Sequence[Selected]) -> list[Select]:
    """The ways to choose a round that are worth a column. Without validation windows the common and
    the own best round are the last one, and have none."""
    validated: tuple[Select, ...] = ("common", "client")
    alike = all(
        number(row.selected[way]) == number(row.selected["last"])
        for row in compared
        for way in validated
    )
    return [way for way in CHOICES if not alike or way not in validated]


def counts(select: Select, metric: str) -> str:
    """The round whose scores count, in words; metric: the one that chooses it."""
    if select == "last":
        return "the last evaluated round"
    if select == "tail":
        return "the last five evaluated rounds (their mean)"
    if select == "common":
        return f"the evaluated round with the best mean validation {plain(metric)}"
    return f"the best round of every client by its own validation {plain(metric)}"


def scope(runs: Sequence[Finished]) -> str:
    """What was compared, and which runs are unfinished."""
    counting = scored(runs)
    shared = metrics(counting)
    clients = [len(run.by_client(shared[0])) for run in counting] if shared else [0]
    asked = any(run.config["run"].get("eval_clients", 0) for run in runs)
    scored_clients = f"{_clients(runs, clients)}{' scored in a round' if asked else ''}"
    data = dict.fromkeys(str(run.config["data"]["name"]) for run in runs)
    places = runs_by_cell(runs)
    where = f"{len(places)} cells" if len(places) > 1 else next(iter(places))
    seeds = sorted({run.seed for run in runs})
    about = [
        f"Data {', '.join(data)}",
        where,
        _sample(runs) or scored_clients,
        _newcomers(runs),
        f"{span([int(run.config['run']['rounds']) for run in runs])} rounds",
        f"{len(seeds)} seed{_s(seeds)} ({', '.join(map(str, seeds))})",
    ]
    text = f"{', '.join(filter(None, about))}."
    unfinished = sum(not run.complete for run in runs)
    if unfinished:
        text += f" {unfinished} of {len(runs)} runs {'is' if unfinished == 1 else 'are'} unfinished"
        left_out = len(counting) < len(runs)
        text += ", left out where others of a method are." if left_out else "."
    waiting = sum(not run.evaluated for run in runs)
    if waiting:
        have = "has" if waiting == 1 else "have"
        text += f" {waiting} of {len(runs)} runs {have} not been evaluated yet."
    return text


def _sample(runs: Sequence[Finished]) -> str:
    """How many clients were drawn to be scored; empty where all clients are scored, or where the
    settings ask for a number of them."""
    asked = any(run.config["run"].get("eval_clients", 0) for run in runs)
    samples = [run.fleet.get("evaluation") or {} for run in runs]
    if asked or not all(sample.get("clients", 0) < sample.get("of", 0) for sample in samples):
        return ""
    drawn = span([sample["clients"] for sample in samples])
    everybody = span([sample["of"] for sample in samples])
    return f"a sample of {drawn} of {everybody} clients"


def _newcomers(runs: Sequence[Finished]) -> str:
    """The number of clients that took no part in training; empty where all did."""
    found = [len(run.newcomers) for run in runs if run.newcomers]
    return f"{span(found)} newcomer{_s(range(max(found)))}" if found else ""


def _clients(runs: Sequence[Finished], scored: Sequence[int]) -> str:
    """The number of clients and, where some attack, of those that are scored."""
    if not any(run.attackers for run in runs):
        return f"{span(scored)} clients"
    everybody = span([len(run.clients) for run in runs])
    return f"{everybody} clients ({span(scored)} scored, as the others attack)"


def how_to_read(
    runs: Sequence[Finished], compared: Sequence[Selected], metric: str, select: Select = "last"
) -> str:
    """What the numbers of a comparison mean, and which differences count. compared: the methods,
    the best first."""
    text = [
        f"Scores are means over clients in {counts(select, metric)}, then mean ± standard "
        "deviation over seeds.",
        TOGETHER if any(map(is_pooled, known(runs))) else "",
        _choices(runs),
    ]
    grid = len(runs_by_cell(runs)) > 1
    if grid:
        text.append(
            "The average is taken over cells first, seed by seed, then over seeds. "
            "* marks the best mean of a cell, ~ those that cannot be told apart from it."
        )
    else:
        text.append("Bytes are payload per client and round.")
    if grid and len({tuple(run.attackers) for run in runs if run.seed == runs[0].seed}) > 1:
        text.append(
            "Cells differ in who attacks, so in who is scored; the report compares them on the "
            "same clients (Under attack)."
        )
    if grid or len(compared) > 1:
        text += [_ranked(runs, metric, select), _differences(compared[0])]
    return " ".join(filter(None, text))


def _choices(runs: Sequence[Finished]) -> str:
    if not any(key.startswith("val.") for run in scored(runs) for key in run.evaluated[-1].scores):
        return (
            "No client has validation windows, so the common and the own best round are the last "
            "evaluated one."
        )
    return (
        "Choosing the round per client favours personalised methods; to choose it so for "
        "them and in common for the others, as the FedDUET paper does, is biased."
    )


def _ranked(runs: Sequence[Finished], metric: str, select: Select) -> str:
    """Which seeds decide, where methods were run with different ones."""
    runs = scored(runs)
    _, shared = ranking(runs, metric, select)
    if not shared:
        return "No seed is shared by all methods: each is ranked by its own."
    seeds = {run.seed for run in runs}
    if all(
        {run.seed for run in group} == seeds == set(shared)
        for group in runs_by_method(runs).values()
    ):
        return ""
    return (
        f"Methods are ranked by seed{_s(shared)} {', '.join(map(str, shared))}, which all have or, "
        "if that were a single one, those with most seeds; a mean is over all seeds of its method."
    )


def _differences(best: Selected) -> str:
    if best.verdict:
        return "No method has a score in all of its seeds, so none is called the best."
    if best.difference.seeds < FEWEST:
        return ""  # an alarm says so
    return (
        f"Differences to {best.method} are paired by seed, with their 95 % interval; a method "
        "whose interval holds zero cannot be told apart from it, nor can one with "
        f"fewer than {FEWEST} seeds in common with it. "
        "Several methods are compared at once, so read a single verdict with care."
    )


def _s(compared: Sequence[int]) -> str:
    return "s" if len(compared) > 1 else ""


def default_metric(runs: Sequence[Finished]) -> str:
    """The metric that the experiment's file names, else accuracy, else the first metric."""
    named = {str(run.config["metric"]) for run in runs if run.config.get("metric")}
    if len(named) == 1 and named <= set(known(runs)):
        return named.pop()
    available = metrics(runs)
    return "accuracy" if "accuracy" in available or not available else available[0]


def default_select(runs: Sequence[Finished]) -> Select:
    """The selection that the experiment's files name, if they agree; else the last round."""
    named: set[Select] = {run.config.get("select", "last") for run in runs}
    return named.pop() if len(named) == 1 else "last"
