"""What a reader of the scores should know: about the data, who diverged, who attacks, and who does
not hear of whom."""

from __future__ import annotations

from collections.abc import Sequence

from communis.exchange.wire import NOT_FINITE
from communis.results.compare import grouped, mixed
from communis.results.finished import Finished
from communis.results.wording.numbers import span

SETS = 4  # of attackers that are named at most
NAMED = 12  # clients that are listed at most


def warnings(runs: Sequence[Finished]) -> list[str]:
    """What a reader of the scores should know: about the data, who diverged, who attacks, and who
    does not hear of whom because of the graph or because models differ."""
    noted = sorted({note for run in runs for note in run.fleet.get("notes", ())})
    diverged = _diverged(runs)
    return [*noted, *diverged, *_attacks(runs), *_apart(runs), *_by_model(runs), *_across(runs)]


def _diverged(runs: Sequence[Finished]) -> list[str]:
    """A line for every method whose honest clients were refused for what is not finite. Whoever
    ended so with a private state scores NaN; a message that was refused costs its round only."""
    lines = []
    for method, group in grouped(runs).items():
        found = [
            (run, record.round, client, reason)
            for run in group
            for record in run.records
            for client, reason in record.refused
            if NOT_FINITE in reason and client not in run.attackers
        ]
        if not found:
            continue
        who = len({(run.path, client) for run, _, client, _ in found})
        trained = sum(len(record.cohort) for run in group for record in run.records)
        run, round, client, reason = found[0]
        lines.append(
            f"{method}: {len(found)} of {trained} results of training were refused as not finite, "
            f"of {who} client{'s' * (who > 1)} over all seeds (first: seed {run.seed}, round "
            f"{round}, client {client}: {reason})"
        )
    return lines


def _attacks(runs: Sequence[Finished]) -> list[str]:
    """A line for every set of attackers; where there are many, one for all of them."""
    found: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
    for run in runs:
        if who := tuple(run.attackers):
            kind = str(run.config.get("attack", {}).get("kind", "attack"))
            found.setdefault((kind, len(run.clients), who), []).append(run.seed)
    if len(found) > SETS:
        kinds = ", ".join(dict.fromkeys(kind for kind, _, _ in found))
        many = span([len(who) for _, _, who in found])
        return [f"{many} clients attack ({kinds}), by seed and cell: scores are of the others"]
    lines = []
    for (kind, clients, who), seeds in found.items():
        several = sorted(set(seeds)) if len(found) > 1 else []
        how = ", ".join([kind, *(f"seed {seed}" for seed in several)])
        says = f"clients {listed(who)} attack" if len(who) > 1 else f"client {who[0]} attacks"
        lines.append(f"{says} ({how}): scores are of the other {clients - len(who)}")
    return lines


def _apart(runs: Sequence[Finished]) -> list[str]:
    """A line for every way in which graphs fall into parts."""
    sizes = [sorted(map(len, run.fleet.get("topology", {}).get("parts", ()))) for run in runs]
    return [
        f"the graph falls into {len(found)} parts, of {listed(found[::-1])} clients: no consensus "
        "across them"
        for found in dict.fromkeys(map(tuple, sizes))
        if len(found) > 1
    ]


def _by_model(runs: Sequence[Finished]) -> list[str]:
    """Who averaged among clients with the same model only, and which these are."""
    found = [run for run in runs if run.config["method"].get("by_model") and mixed([run])]
    if not found:
        return []
    methods = listed(list(dict.fromkeys(run.method for run in found)))
    text = f"{methods} averaged parameters among clients with the same model only"
    dealt = {tuple(run.models.items()) for run in found}
    if len(dealt) > 1:
        models = sorted({name for run in found for name in run.models.values()})
        return [f"{text}; who has which of {listed(models)} differs by seed or cell"]
    owners: dict[str, list[int]] = {}
    for client, name in dealt.pop():
        owners.setdefault(name, []).append(client)
    return [f"{text}: {', '.join(f'{name} ({_who(them)})' for name, them in owners.items())}"]


def _across(runs: Sequence[Finished]) -> list[str]:
    """Who averaged across models, which can then only be parts of them."""
    found = [run for run in runs if run.config["method"].get("by_model") is False and mixed([run])]
    if not found:
        return []
    methods = listed(list(dict.fromkeys(run.method for run in found)))
    return [f"{methods} averaged across models what these have in common by name, as a head"]


def _who(clients: Sequence[int]) -> str:
    if len(clients) > NAMED:
        return f"{len(clients)} clients"
    return f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}"


def listed(found: Sequence[object]) -> str:
    *rest, last = map(str, found)
    return f"{', '.join(rest)} and {last}" if rest else last
