"""The commands privacy plan and privacy verdict, done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from communis.cli.console import out, say
from communis.core.errors import CommunisError
from communis.exchange.privacy import accountant, gaussian
from communis.exchange.privacy.digits import upward
from communis.exchange.privacy.guard import Guard
from communis.exchange.privacy.settings import MOST_ROUNDS, PrivacyConfig
from communis.results.compare import collect
from communis.results.finished import Finished
from communis.results.report.privacy import as_json
from communis.results.verdict import verdict as judged
from communis.run.plan import Plan

MESSAGE = "message"  # as if it had one field
KINDS: tuple[accountant.Kind, ...] = ("rdp", "pld")


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
            "give --epsilon to learn how much noise it takes, or --noise to learn what it is "
            "worth: one of them"
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
    found = {"central": _central, "local": _local, "paper": _paper}[mode](settings, run)
    if json:
        about = {"mode": mode, "delta": delta, "rounds": rounds, "participation": participation}
        return say({"event": "privacy_plan", **about, **found.values})
    out.print(found.table)
    out.print()
    for sentence in found.meaning:
        out.print(sentence, soft_wrap=True)


@dataclass(frozen=True)
class Run:
    """What a promise has to last for."""

    rounds: int
    participation: float
    clients: int  # 0: not said
    parameters: int  # the same


@dataclass(frozen=True)
class Planned:
    table: Table
    meaning: Sequence[str]  # in plain sentences
    values: dict[str, Any]  # for programs


def _central(settings: PrivacyConfig, run: Run) -> Planned:
    central = settings.central(run.rounds, run.participation)
    assert central is not None
    every, clip = [(central.q, central.z)] * run.rounds, settings.clip
    rdp, pld = (accountant.epsilon_of(every, settings.delta, kind) for kind in KINDS)
    table = _table(
        ("server", "trusted; adds noise to the sum of a round's messages"),
        ("neighbours", "fleets with one client more or less, with all of its data"),
        ("rounds", f"{run.rounds:,}; a coin for every client, in with probability {central.q:g}"),
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
            f"messages are clipped to length {clip:g}: it takes {math.ceil(length / clip):,} equal "
            "ones for a sum as long."
        ]
        if run.clients:
            expected = central.q * run.clients
            values["noise_length_of_mean"] = length / expected
            meaning.append(
                f"On the mean of the {expected:,.4g} clients to be expected, the noise has length "
                f"{_long(length / expected)} and the mean itself at most {clip:g}."
            )
    return Planned(table, meaning, values)


def _local(settings: PrivacyConfig, run: Run) -> Planned:
    times, guard = _guarded(settings, run)
    mu, sigma = guard.mu(1), guard.blocks[MESSAGE].sigma
    noise = settings.noise or 1 / mu
    once, spent = (gaussian.epsilon_of(x * mu, settings.delta) for x in (1, math.sqrt(times)))
    table = _table(
        ("server", "not trusted; every client adds noise to what it sends"),
        ("neighbours", "any other data in place of a client's: messages up to 2 C apart"),
        ("rounds", f"{times:,} of one client, who is seen to take part"),
        ("noise / 2 C", upward(noise, 4)),
        (
            "epsilon",
            f"{upward(spent)} in all, {upward(once)} of one round, at delta {settings.delta}",
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
    once, spent = (
        {"C": gaussian.epsilon_of(x * mu / 2, settings.delta)}
        | {"2C": gaussian.epsilon_of(x * mu, settings.delta)}
        for x in (1, math.sqrt(times))
    )
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
        f"Any two messages may be 2 C apart, so the last column counts, at delta "
        f"{settings.delta}. It is about UMEDA's operator alone: what else a client sends leaves "
        "it in clear, so that the message as a whole has no guarantee."
    ]
    if run.parameters:
        values["noise_length"] = length = sigma * math.sqrt(run.parameters)
        meaning.append(
            f"The noise on {run.parameters:,} numbers has at least length {_long(length)}, the "
            f"operator's change, which is clipped, at most {settings.clip:g}."
        )
    return Planned(table, meaning, values)


def _guarded(settings: PrivacyConfig, run: Run) -> tuple[int, Guard]:
    """How many rounds a client is in, and what clients will really do in them."""
    share = run.participation
    if run.clients:  # a run draws a whole number of them
        share = Plan(participation=run.participation).share(run.clients)
    guard = settings.guard([MESSAGE], run.rounds, share)
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
    found = judged(run)
    name = ", ".join(filter(None, [run.method, run.place, f"seed {run.seed}"]))
    out.print(f"{run.path}: {name}", style="bold", soft_wrap=True)
    out.print(f"{found.line}\n", soft_wrap=True)
    out.print(_table(*found.facts.items()))
    rows = [
        (p.field, p.part, f"{p.tensors:,}", f"{p.numbers:,}", "yes" if p.covered else p.why)
        for p in found.table
    ]
    if rows:
        out.print()
        out.print(_table(*rows, head=("field", "part", "tensors", "numbers", "covered")))
    for title, texts in {"why not": found.reasons, "condition": found.conditions}.items():
        for text in texts:
            out.print(f"{title}: {text}", soft_wrap=True)
    out.print()
