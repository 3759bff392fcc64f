"""The implementation of the commands `privacy plan` and `privacy verdict`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from communis.cli.console import listing, out, say
from communis.core.errors import CommunisError
from communis.exchange.privacy import accountant, gaussian
from communis.exchange.privacy.central import MOST_ROUNDS, central_of
from communis.exchange.privacy.digits import upward
from communis.exchange.privacy.guard import Guard, guard_of
from communis.exchange.privacy.settings import PrivacyConfig
from communis.results.compare import collect
from communis.results.finished import Finished
from communis.results.privacy import as_json
from communis.results.verdict import privacy_verdict
from communis.run.plan import Plan

MESSAGE = "message"  # the one field that a planned message has


def plan(
    rounds: int,
    mode: Literal["central", "local", "paper"],
    epsilon: float | None,
    noise: float | None,
    delta: float,
    participation: float,
    participations: int,
    clip: float,
    kappa: float,
    kind: accountant.Kind,
    clients: int,
    parameters: int,
    json: bool,
) -> None:
    if (epsilon is None) == (noise is None):
        raise CommunisError(
            "give either --epsilon, to learn how much noise it needs, or --noise, to learn which "
            "epsilon it provides"
        )
    given = noise if epsilon is None else epsilon
    if given is None or not 0 < given < math.inf:
        raise CommunisError(f"--epsilon and --noise must be positive and finite, got {given}")
    if not 1 <= rounds <= MOST_ROUNDS or not 0 < participation <= 1:
        raise CommunisError(
            f"--rounds must be 1 to {MOST_ROUNDS:,} and --participation in (0, 1], got {rounds} "
            f"and {participation:g}"
        )
    settings = PrivacyConfig(
        mode=mode,
        epsilon=epsilon or 0.0,
        delta=delta,
        noise=noise or 0.0,
        clip=clip,
        kappa=kappa,
        participations=participations,
        accountant=kind,
    )
    if clients:
        settings.check(clients)
    run = Run(rounds, participation, clients, parameters)
    planned = {"central": _central, "local": _local, "paper": _paper}[mode](settings, run)
    if json:
        about = {"mode": mode, "delta": delta, "rounds": rounds, "participation": participation}
        return say({"event": "privacy_plan", **about, **planned.values})
    out.print(planned.table)
    out.print()
    for sentence in planned.meaning:
        out.print(sentence, soft_wrap=True)


@dataclass(frozen=True)
class Run:
    """The run that a guarantee is planned for."""

    rounds: int
    participation: float
    clients: int  # 0: not given
    parameters: int  # 0: not given


@dataclass(frozen=True)
class Planned:
    table: Table
    meaning: Sequence[str]  # sentences
    values: dict[str, Any]  # for programs


def _central(settings: PrivacyConfig, run: Run) -> Planned:
    central = central_of(settings, run.rounds, run.participation)
    assert central is not None
    clip = settings.clip
    every_round = [(central.q, central.z)] * run.rounds
    rdp = accountant.epsilon_of_rounds(every_round, settings.delta, "rdp")
    pld = accountant.epsilon_of_rounds(every_round, settings.delta, "pld")
    table = _table(
        ("server", "trusted; adds noise to the sum of a round's messages"),
        ("neighbours", "fleets with one client more or less, with all of its data"),
        ("rounds", f"{run.rounds:,}; every client is drawn with probability {central.q:g}"),
        ("noise / C", upward(central.z, 4)),
        ("epsilon", f"{upward(rdp)} by rdp, {upward(pld)} by pld, at delta {settings.delta}"),
    )
    sigma = central.z * clip
    values = {"noise": central.z, "sigma": sigma, "epsilon": {"rdp": rdp, "pld": pld}}
    meaning = [f"Every number of a sum gets noise of standard deviation {upward(sigma, 4)}."]
    if run.parameters:
        values["noise_length"] = length = sigma * math.sqrt(run.parameters)
        meaning = [
            f"The noise on a sum of {run.parameters:,} numbers has length {_long(length)}, and "
            f"messages are clipped to length {clip:g}: {math.ceil(length / clip):,} equal messages "
            "have a sum of that length."
        ]
        if run.clients:
            expected = central.q * run.clients
            values["noise_length_of_mean"] = length / expected
            meaning.append(
                f"On the mean of the {expected:,.4g} expected clients, the noise has length "
                f"{_long(length / expected)} and the mean itself at most {clip:g}."
            )
    return Planned(table, meaning, values)


def _local(settings: PrivacyConfig, run: Run) -> Planned:
    times, guard = _guarded(settings, run)
    mu = guard.mu(1)
    sigma = guard.blocks[MESSAGE].sigma
    noise = settings.noise or 1 / mu
    once = gaussian.epsilon_of(mu, settings.delta)
    spent = gaussian.epsilon_of(math.sqrt(times) * mu, settings.delta)
    table = _table(
        ("server", "not trusted; every client adds noise to its message"),
        ("neighbours", "any other data in place of those of a client: messages up to 2 C apart"),
        ("rounds", f"{times:,} of one client, whose participation is visible"),
        ("noise / 2 C", upward(noise, 4)),
        (
            "epsilon",
            f"{upward(spent)} in all, {upward(once)} in one round, at delta {settings.delta}",
        ),
    )
    values = {"participations": times, "noise": noise, "sigma": sigma}
    values |= {"epsilon": spent, "epsilon_of_a_round": once}
    meaning = f"Every number of a message gets noise of standard deviation {upward(sigma, 4)}."
    if run.parameters:
        values["noise_length"] = length = sigma * math.sqrt(run.parameters)
        meaning = (
            f"The noise on a message of {run.parameters:,} numbers has length {_long(length)}, the "
            f"message itself, which is clipped, at most {settings.clip:g}."
        )
    return Planned(table, [meaning], values)


def _paper(settings: PrivacyConfig, run: Run) -> Planned:
    times, guard = _guarded(settings, run)
    mu = guard.mu(1)  # if messages are 2 C apart; if C, it is half of that
    once = _by_distance(mu, settings.delta)
    spent = _by_distance(math.sqrt(times) * mu, settings.delta)
    claimed = [("claimed", f"{settings.epsilon:g}", "-")] if settings.epsilon else []
    table = _table(
        *claimed,
        ("one round", *map(upward, once.values())),
        (f"{times:,} rounds of a client", *map(upward, spent.values())),
        head=("epsilon", "messages C apart", "2 C apart"),
    )
    sigma = 2 * settings.clip / mu
    values: dict[str, Any] = {"participations": times, "noise": sigma / settings.clip}
    values |= {"sigma": sigma, "epsilon": spent, "epsilon_of_a_round": once}
    meaning = [
        f"Any two messages may be 2 C apart, so the last column applies, at delta "
        f"{settings.delta}. It covers the noised field only: the client sends everything else "
        "without noise, so the message as a whole has no guarantee."
    ]
    if run.parameters:
        values["noise_length"] = length = sigma * math.sqrt(run.parameters)
        meaning.append(
            f"The noise on {run.parameters:,} numbers has at least length {_long(length)}, the "
            f"field's change, which is clipped, at most {settings.clip:g}."
        )
    return Planned(table, meaning, values)


def _by_distance(mu: float, delta: float) -> dict[str, float]:
    """The epsilon for messages C apart and 2 C apart; mu is that of the latter."""
    return {"C": gaussian.epsilon_of(mu / 2, delta), "2C": gaussian.epsilon_of(mu, delta)}


def _guarded(settings: PrivacyConfig, run: Run) -> tuple[int, Guard]:
    """The number of rounds of a client, and the mechanism that clients apply in them."""
    share = run.participation
    if run.clients:  # a run draws an integer number of clients
        share = Plan(participation=run.participation).share(run.clients)
    guard = guard_of(settings, [MESSAGE], run.rounds, share)
    assert guard is not None
    return settings.times(run.rounds, share), guard


def _long(length: float) -> str:
    return f"{length:,.0f}" if length >= 100 else f"{length:.3g}"


def _table(*rows: Sequence[str], head: Sequence[str] = ()) -> Table:
    table = Table(*(head or ("", "")), box=None, pad_edge=False, show_header=bool(head))
    for row in rows:
        table.add_row(*row)
    return table


def verdict(folders: list[Path], json: bool) -> None:
    for run in collect(folders):
        if json:
            say({"event": "privacy_verdict", "run": str(run.path), **as_json(run, spent=True)})
        else:
            _judge(run)


def _judge(run: Finished) -> None:
    judgement = privacy_verdict(run)
    name = ", ".join(filter(None, [run.method, run.place, f"seed {run.seed}"]))
    out.print(f"{run.path}: {name}", style="bold", soft_wrap=True)
    out.print(f"{judgement.line}\n", soft_wrap=True)
    out.print(_table(*judgement.facts.items()))
    rows = [
        (p.field, p.part, f"{p.tensors:,}", f"{p.numbers:,}", "yes" if p.covered else p.why)
        for p in judgement.table
    ]
    if rows:
        out.print()
        heads = ("field", "part", "tensors", "numbers", "covered")
        out.print(listing(heads, rows, numbers=("tensors", "numbers")))
    for title, texts in {"why not": judgement.reasons, "condition": judgement.conditions}.items():
        for text in texts:
            out.print(f"{title}: {text}", soft_wrap=True)
    out.print()
