"""Warnings for readers of the scores: about the data, clients that diverged, clients that attack,
and clients that cannot learn from each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from communis.core.names import BY_MODEL
from communis.exchange.wire import NOT_FINITE
from communis.results.compare import mixed, runs_by_method
from communis.results.finished import Finished
from communis.results.wording.numbers import span

SETS = 4  # of attackers that are named at most
NAMED = 12  # clients that are listed at most


def warnings(runs: Sequence[Finished]) -> list[str]:
    """All warnings: notes on the data, clients that diverged, clients that attack, and clients that
    cannot learn from each other, because of the graph or because their models differ."""
    noted = sorted({note for run in runs for note in run.fleet.get("notes", ())})
    diverged = _diverged(runs)
    return [*noted, *diverged, *_attacks(runs), *_apart(runs), *_by_model(runs), *_across(runs)]


def _diverged(runs: Sequence[Finished]) -> list[str]:
    """A line for every method whose honest clients had results refused as not finite. A client
    whose private state was refused at the end scores NaN; a refused message costs only its
    round."""
    lines = []
    for method, group in runs_by_method(runs).items():
        refusals = [
            (run, record.round, client, reason)
            for run in group
            for record in run.records
            for client, reason in record.refused
            if NOT_FINITE in reason and client not in run.attackers
        ]
        if not refusals:
            continue
        who = len({(run.path, client) for run, _, client, _ in refusals})
        trained = sum(len(record.cohort) for run in group for record in run.records)
        run, round, client, reason = refusals[0]
        lines.append(
            f"{method}: {len(refusals)} of {trained} results of training were refused as not "
            f"finite, of {who} client{'s' * (who > 1)} over all seeds (first: seed {run.seed}, "
            f"round {round}, {run.called(client)}: {reason})"
        )
    return lines


def _attacks(runs: Sequence[Finished]) -> list[str]:
    """A line for every set of attackers; where there are many, one for all of them."""
    seeds_by_attack: dict[tuple[str, int, tuple[str, ...]], list[int]] = {}
    for run in runs:
        if who := tuple(_named(run, run.attackers)):
            kind = str(run.config.get("attack", {}).get("kind", "attack"))
            seeds_by_attack.setdefault((kind, len(run.clients), who), []).append(run.seed)
    if len(seeds_by_attack) > SETS:
        kinds = ", ".join(dict.fromkeys(kind for kind, _, _ in seeds_by_attack))
        many = span([len(who) for _, _, who in seeds_by_attack])
        return [f"{many} clients attack ({kinds}), by seed and cell: scores are of the others"]
    lines = []
    for (kind, clients, who), seeds in seeds_by_attack.items():
        several = sorted(set(seeds)) if len(seeds_by_attack) > 1 else []
        how = ", ".join([kind, *(f"seed {seed}" for seed in several)])
        says = f"clients {listed(who)} attack" if len(who) > 1 else f"client {who[0]} attacks"
        lines.append(f"{says} ({how}): scores are of the other {clients - len(who)}")
    return lines


def _apart(runs: Sequence[Finished]) -> list[str]:
    """A line for every way in which graphs fall into parts."""
    sizes = [sorted(map(len, run.fleet.get("topology", {}).get("parts", ()))) for run in runs]
    return [
        f"the graph falls into {len(parts)} parts, of {listed(parts[::-1])} clients: no consensus "
        "across them"
        for parts in dict.fromkeys(map(tuple, sizes))
        if len(parts) > 1
    ]


def _by_model(runs: Sequence[Finished]) -> list[str]:
    """The methods that averaged only among clients with the same model, and these clients."""
    averaging = [run for run in runs if run.config["method"].get(BY_MODEL) and mixed([run])]
    if not averaging:
        return []
    methods = listed(list(dict.fromkeys(run.method for run in averaging)))
    text = f"{methods} averaged parameters among clients with the same model only"
    dealt = {
        tuple(zip(_named(run, run.models), run.models.values(), strict=True)) for run in averaging
    }
    if len(dealt) > 1:
        models = sorted({name for run in averaging for name in run.models.values()})
        return [f"{text}; who has which of {listed(models)} differs by seed or cell"]
    owners: dict[str, list[str]] = {}
    for client, name in dealt.pop():
        owners.setdefault(name, []).append(client)
    return [f"{text}: {', '.join(f'{name} ({_who(them)})' for name, them in owners.items())}"]


def _across(runs: Sequence[Finished]) -> list[str]:
    """The methods that averaged across models, which is possible for common parts only."""
    averaging = [
        run for run in runs if run.config["method"].get(BY_MODEL) is False and mixed([run])
    ]
    if not averaging:
        return []
    methods = listed(list(dict.fromkeys(run.method for run in averaging)))
    return [f"{methods} averaged across models what these have in common by name, as a head"]


def _named(run: Finished, clients: Iterable[int]) -> list[str]:
    """The names of clients, or their numbers where they have none."""
    return [run.names.get(client, str(client)) for client in clients]


def _who(clients: Sequence[str]) -> str:
    if len(clients) > NAMED:
        return f"{len(clients)} clients"
    return f"client{'s' * (len(clients) > 1)} {', '.join(clients)}"


def listed(names: Sequence[object]) -> str:
    *rest, last = map(str, names)
    return f"{', '.join(rest)} and {last}" if rest else last
