"""The command line's `privacy` part: plan, verdict, and attacks: invert, membership, audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from communis.cli.console import Json
from communis.cli.lazily import done_by
from communis.cli.trust import Trust

app = typer.Typer(
    help="Differential privacy: what a promise costs, and what a run kept of it.",
    no_args_is_help=True,
)


@app.command()
@done_by("promise")
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
        Literal["rdp", "pld"],
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


@app.command()
@done_by("promise")
def verdict(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    json: Json = False,
) -> None:
    """Say what runs may promise their clients, or why nothing: what left them, what of it was
    covered, and what the rounds add up to.

    With --json, one object per run, with what every client had spent after each of its rounds.

    Example: communis privacy verdict runs/synthetic-fedavg
    """


@app.command()
@done_by("probe")
def invert(
    kind: Annotated[
        Literal["image", "series"], typer.Option("--of", help="What is to be reconstructed.")
    ] = "image",
    samples: Annotated[int, typer.Option(min=1, help="How many windows.")] = 3,
    restarts: Annotated[
        int, typer.Option(min=1, help="Searches per window and label, at most.")
    ] = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Steps of a search.")] = 500,
    epsilon: Annotated[
        float, typer.Option(help="Of the one message, by each mechanism's own reckoning.")
    ] = 2.0,
    regime: Annotated[
        list[str] | None, typer.Option(help="Only this way to protect (repeatable).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Other windows, weights and noise.")] = 0,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with originals and reconstructions.")
    ] = None,
    json: Json = False,
) -> None:
    """Reconstruct generated windows from their gradients, under every way of protecting these.

    A server that knows the model reads the gradient of a single window, the easiest case for it; a
    client that has taken many steps sends no gradient, and this says nothing on that. SSIM is 1 if
    the reconstruction equals the window, and about 0 if it has nothing in common with it.

    Example: communis privacy invert --samples 3 --html inversion.html
    """


@app.command()
@done_by("probe")
def membership(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Try to tell a run's training windows from its test windows by their loss.

    Test windows come from other trials than training windows, so losses may differ without any
    training. Two controls, in which nothing can be found, show how much: the model before the
    first round, and validation windows in the place of training windows.

    Example: communis privacy membership runs/watch-fedavg
    """


@app.command()
@done_by("probe")
def audit(
    source: Annotated[str, typer.Argument(help="A TOML file or a preset, with [privacy].")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, e.g. --set privacy.epsilon=8 (repeatable)."),
    ] = None,
    cell: Annotated[str, typer.Option(help="The cell of a grid, e.g. local/8.")] = "",
    canaries: Annotated[
        int, typer.Option(min=1, help="Clients that are added; each tosses a coin.")
    ] = 100,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Run an experiment with canaries and say whether its privacy claim survives.

    Every canary sends its coin as loudly as clipping allows; the auditor guesses it from what the
    adversary of the mode sees. Many right guesses refute the claim. Few prove nothing.

    Example: communis privacy audit watch --set privacy.mode=local --set privacy.epsilon=8
    """
