"""What may be promised to clients, and what attackers change."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from communis.core.selection import Select
from communis.exchange.privacy import gaussian
from communis.results import attack
from communis.results.finished import Finished
from communis.results.frames.columns import ESTIMATE, METHOD, RUN, frame, of_estimate, of_run
from communis.results.privacy import points, prices
from communis.results.verdict import Verdict, epsilon_by_round, privacy_verdict


def privacy(finished: Sequence[Finished]) -> pd.DataFrame:
    """The verdict on every run."""
    columns = (
        *RUN,
        "mode",
        "private",
        "verdict",
        "epsilon",
        "median_epsilon",
        "delta",
        "sampling",
        "rounds",
        "rounds_planned",
        "most_rounds_of_a_client",
        "median_rounds_of_a_client",
        "clients_stopped",
        "noised_field",
        "epsilon_noised_at_c",
        "epsilon_noised_at_2c",
        "epsilon_noised_claimed",
        "reasons",
    )
    return frame(({**of_run(run), **_judged(privacy_verdict(run))} for run in finished), columns)


def _judged(judgement: Verdict) -> dict[str, object]:
    about = {
        "mode": judgement.mode,
        "private": judgement.private,
        "verdict": judgement.line,
        "epsilon": judgement.epsilon,
        "median_epsilon": judgement.median_epsilon,
        "delta": judgement.delta,
        "sampling": judgement.sampling,
        "clients_stopped": judgement.stopped,
        "reasons": "; ".join(judgement.reasons),
    }
    if judgement.rounds is not None:
        about["rounds"] = judgement.rounds.done
        about["rounds_planned"] = judgement.rounds.planned
        about["most_rounds_of_a_client"] = judgement.rounds.most
        about["median_rounds_of_a_client"] = judgement.rounds.median
    noised = judgement.noised
    if noised is not None:
        about["noised_field"] = noised.name
        about["epsilon_noised_at_c"] = noised.at_c
        about["epsilon_noised_at_2c"] = noised.at_2c
        about["epsilon_noised_claimed"] = noised.claimed
    return about


def privacy_price(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """What privacy changes of the primary metric, against the runs without it, seed by seed."""
    table = []
    judged = points(finished)
    paid = prices(judged, finished, metric, select)
    for point in judged:
        if point.name in paid:
            about = {"method": point.method, "cell": point.place}
            table.append({**about, **of_estimate(paid[point.name])})
    return frame(table, (*METHOD, *ESTIMATE))


def privacy_messages(finished: Sequence[Finished]) -> pd.DataFrame:
    """What left the clients, part by part."""
    table = []
    for run in finished:
        for part in privacy_verdict(run).table:
            table.append({**of_run(run), **vars(part)})
    return frame(table, (*RUN, "field", "part", "tensors", "numbers", "covered", "why"))


def privacy_clients(finished: Sequence[Finished]) -> pd.DataFrame:
    """What every client had spent after each of its rounds, where epsilon is counted by client."""
    table = []
    for run in finished:
        judgement = privacy_verdict(run)
        for client in judgement.per_client:
            for round, mu in client.mu_by_round.items():
                spent = gaussian.epsilon_of(mu, judgement.delta)
                about = {"client": client.client, "round": round, "mu": mu, "epsilon": spent}
                table.append({**of_run(run), **about})
    return frame(table, (*RUN, "client", "round", "mu", "epsilon"))


def privacy_rounds(finished: Sequence[Finished]) -> pd.DataFrame:
    """The largest epsilon of a client after rounds; the last round is among them."""
    table = []
    for run in finished:
        for round, epsilon in epsilon_by_round(run).items():
            table.append({**of_run(run), "round": round, "epsilon": epsilon})
    return frame(table, (*RUN, "round", "epsilon"))


def attackers(finished: Sequence[Finished]) -> pd.DataFrame:
    """Who attacks, and how."""
    table = []
    for run in finished:
        for client in run.attackers:
            about = {"attack": attack.described(run), "client": client}
            table.append({**of_run(run), **about, "clients": len(run.clients)})
    return frame(table, (*RUN, "attack", "client", "clients"))


def attacks(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The primary metric of the honest clients, what attackers change of it, and how far they moved
    the aggregate."""
    table = []
    for row in attack.attacks(finished, metric, select):
        about = {"method": row.method, "cell": row.place, "rule": row.rule}
        quantities = {"score": row.score, "change": row.change, "distance": row.moved}
        for name, estimate in quantities.items():
            if estimate is not None:
                table.append({**about, "quantity": name, **of_estimate(estimate)})
    return frame(table, (*METHOD, "rule", "quantity", *ESTIMATE))


def attack_runs(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The values that `attacks` has means of; base: the folder of the run without attackers."""
    table = []
    for run in finished:
        if not run.attackers:
            continue
        base = attack.unattacked(run, finished)
        table.append(
            {
                **of_run(run),
                "score": run.final(metric, select),
                "change": attack.change(run, base, metric, select) if base else None,
                "distance": attack.distance(run),
                "base": str(base.path) if base else "",
            }
        )
    return frame(table, (*RUN, "score", "change", "distance", "base"))
