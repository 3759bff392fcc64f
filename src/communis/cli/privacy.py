"""The commands `privacy plan` and `verdict`, and the attacks `invert`, `membership` and `audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from communis.cli.console import Json
from communis.cli.folders import refuse_absent, refuse_without_runs
from communis.cli.help import Commands
from communis.cli.lazily import done_by
from communis.cli.trust import Trust

app = Commands(
    help="Differential privacy: plan, judge and attack a guarantee.",
    no_args_is_help=True,
)


@app.command()
@done_by("promise")
def plan(
    rounds: Annotated[int, typer.Option(help="The number of rounds of the run.")],
    mode: Annotated[
        Literal["central", "local", "paper"],
        typer.Option(
            help="central: a trusted server adds noise to sums. local: every client adds noise to "
            "its message. paper: the mechanism of a method's own paper, which noises one field of "
            "the message, with an epsilon for every round."
        ),
    ] = "central",
    epsilon: Annotated[
        float | None,
        typer.Option(help="The epsilon of the whole run; with paper, of every round."),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Instead of epsilon: the standard deviation of the noise over the clipping bound; "
            "with local, over twice the bound."
        ),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="The delta of the guarantee; below 1 / clients.")
    ] = 1e-5,
    participation: Annotated[
        float, typer.Option(help="The probability that a client is in a round.")
    ] = 1.0,
    participations: Annotated[
        int, typer.Option(help="With local: rounds of one client; 0: the expected number.")
    ] = 0,
    clip: Annotated[float, typer.Option(help="The clipping bound C.")] = 1.0,
    kappa: Annotated[
        float, typer.Option(help="With paper: noise outside the subspace over noise inside.")
    ] = 4.0,
    kind: Annotated[
        Literal["rdp", "pld"],
        typer.Option("--accountant", help="With central: rdp, or pld, which is tighter."),
    ] = "rdp",
    clients: Annotated[int, typer.Option(min=0, help="Clients of the fleet; 0: not given.")] = 0,
    parameters: Annotated[
        int, typer.Option(min=0, help="Numbers that a client sends; 0: not given.")
    ] = 0,
    json: Json = False,
) -> None:
    """Compute the noise that a guarantee needs, or the reverse.

    With --noise, the command computes the guarantee that this noise provides. A guarantee covers
    all data of every client: the probability of any observation of the run with these data is at
    most e^epsilon times that without them, plus delta. Epsilon 1 is a strong guarantee; epsilon 10,
    a factor of 22,000, is a very weak one.

    How much noise does epsilon 2 need?
    communis privacy plan --epsilon 2 --rounds 1000 --participation 0.4 --clients 100
    --parameters 780000

    Which epsilon does noise 6.3 provide?
    communis privacy plan --noise 6.3 --rounds 50 --participation 0.4 --accountant pld

    How much noise is needed without a trusted server?
    communis privacy plan --mode local --epsilon 8 --rounds 50 --participation 0.4

    Which epsilon does the whole run have if every round has epsilon 2?
    communis privacy plan --mode paper --epsilon 2 --rounds 1000 --participation 0.4
    """


@app.command()
@done_by("promise")
def verdict(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    json: Json = False,
) -> None:
    """Judge which guarantee runs give their clients, if any.

    The verdict says what left the clients, which part of it was protected, the epsilon of all
    rounds together, and why there is no guarantee where there is none. With --json, one object per
    run, with the epsilon of every client after each of its rounds.

    Example: communis privacy verdict runs/synthetic-fedavg
    """
    for folder in folders:
        refuse_without_runs(folder)


@app.command()
@done_by("probe")
def invert(
    kind: Annotated[
        Literal["image", "series"], typer.Option("--of", help="The kind of window to reconstruct.")
    ] = "image",
    samples: Annotated[int, typer.Option(min=1, help="The number of windows.")] = 3,
    restarts: Annotated[
        int, typer.Option(min=1, help="Searches per window and label, at most.")
    ] = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Steps of a search.")] = 500,
    epsilon: Annotated[
        float, typer.Option(help="The epsilon of the one message, as each mechanism computes it.")
    ] = 2.0,
    regime: Annotated[
        list[str] | None, typer.Option(help="Only this way of protection (repeatable).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of windows, weights and noise.")] = 0,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with originals and reconstructions.")
    ] = None,
    json: Json = False,
) -> None:
    """Reconstruct generated windows from their gradients.

    It does so under every way of protection. The attacker is a server that knows the model and
    receives the gradient of a single window, which is its easiest case. A client that takes many
    local steps sends no gradient; the result does not apply to it. SSIM is 1 if the reconstruction
    equals the window, and about 0 if the two have nothing in common.

    Example: communis privacy invert --samples 3 --html inversion.html
    """


@app.command()
@done_by("probe")
def membership(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Try to tell training windows from test windows by their loss.

    Test windows come from other trials than training windows, so their losses may differ even
    without training. Two controls without any members show by how much: the model before the first
    round, and validation windows in place of training windows.

    Example: communis privacy membership runs/watch-fedavg
    """
    refuse_absent(folder)


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
        int, typer.Option(min=1, help="Clients that are added; each sends a random bit.")
    ] = 100,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Run an experiment with canaries, which may refute its guarantee.

    Every canary sends a random bit with the largest signal that clipping permits. The auditor
    guesses the bit from what the adversary of the mode observes. Many right guesses refute the
    claim; few prove nothing.

    Example: communis privacy audit watch --set privacy.mode=local --set privacy.epsilon=8
    """
