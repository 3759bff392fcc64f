"""The command line's `privacy` part: plan, verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from communis.cli.terminal import out, say
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
app = typer.Typer(no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]


@app.callback()
def privacy() -> None:
    """Differential privacy: what a promise costs, and what a run kept of it."""


@app.command()
def plan(
    rounds: Annotated[int, typer.Option(help="How many rounds the run has.")],
    mode: Annotated[
        Literal["central", "local", "paper"],
        typer.Option(
            help="central: a trusted server noises sums. local: every client noises what it sends. "
            "paper: UMEDA's mechanism, with an epsilon for every round."
        ),
    ] = "central",
    epsilon: Annotated[
        float | None,
        typer.Option(help="What is promised for the whole run; with paper, for every round."),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Instead of epsilon: the standard deviation of the noise over the clipping bound; "
            "with local, over twice the bound."
        ),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="What the promise adds to probabilities; below 1 / clients.")
    ] = 1e-5,
    participation: Annotated[
        float, typer.Option(help="The probability of a client to be in a round.")
    ] = 1.0,
    participations: Annotated[
        int, typer.Option(help="With local: rounds that one client is in, if not those expected.")
    ] = 0,
    clip: Annotated[float, typer.Option(help="The clipping bound C.")] = 1.0,
    kappa: Annotated[
        float, typer.Option(help="With paper: noise outside the subspace over noise inside.")
    ] = 4.0,
    kind: Annotated[
        accountant.Kind,
        typer.Option("--accountant", help="With central: rdp, or pld, which is tighter."),
    ] = "rdp",
    clients: Annotated[int, typer.Option(min=0, help="Clients of the fleet; 0: not said.")] = 0,
    parameters: Annotated[
        int, typer.Option(min=0, help="How many numbers a client sends; 0: not said.")
    ] = 0,
    json: Json = False,
) -> None:
    """Say how much noise a promise takes, or what a given noise is worth.

    The promise is made to every client for all of its data: whatever might be seen of the run, its
    probability with them is at most e^epsilon times that without them, plus delta. Epsilon 1 is a
    strong promise; at 10, with a factor of 22,000, little is left of it.

    How much noise does epsilon 2 take?
    communis privacy plan --epsilon 2 --rounds 1000 --participation 0.4 --clients 100
    --parameters 780000

    What is noise 6.3 worth?
    communis privacy plan --noise 6.3 --rounds 50 --participation 0.4 --accountant pld

    And with no server to trust?
    communis privacy plan --mode local --epsilon 8 --rounds 50 --participation 0.4

    What does an epsilon for every round come to?
    communis privacy plan --mode paper --epsilon 2 --rounds 1000 --participation 0.4
    """
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


@app.command()
def verdict(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    json: Json = False,
) -> None:
    """Say what runs may promise their clients, or why nothing: what left them, what of it was
    covered, and what the rounds add up to.

    With --json, one object per run, with what every client had spent after each of its rounds.

    Example: communis privacy verdict runs/synthetic-fedavg
    """
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
