"""The implementation of the commands `privacy invert`, `membership` and `audit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Literal

from markupsafe import Markup
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from communis.cli.console import Stacked, err, out, say
from communis.core.disk import replace_file
from communis.core.errors import CommunisError
from communis.core.markup import Content, element
from communis.core.streams import Streams
from communis.exchange.privacy.digits import downward, upward
from communis.results.probe import audit as audits
from communis.results.probe import membership as memberships
from communis.results.probe import scenes
from communis.results.probe.inversion import Attempt, Search, attempts
from communis.results.probe.membership import Separation
from communis.results.probe.regimes import Regime, regimes
from communis.results.report.html import document, note, table
from communis.run import config as configs
from communis.run.backends.machine import one_thread

MAKERS = {"image": scenes.pictures, "series": scenes.movements}
PIXEL = 9  # width of a drawn value, in pixels of the page


def invert(
    kind: Literal["image", "series"],
    samples: int,
    restarts: int,
    iterations: int,
    epsilon: float,
    regime: list[str] | None,
    seed: int,
    html: Path | None,
    json: bool,
) -> None:
    if html and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise CommunisError(f"--html {html}: expected a file, in a folder that exists")
    streams = Streams(seed)
    scene = MAKERS[kind](samples, streams)
    chosen = _chosen(regimes(scene.model, epsilon), regime)
    search = Search(restarts, iterations)
    finished: list[Attempt] = []
    with one_thread(), _progress("windows") as progress:
        for attempt in attempts(scene.model, scene.task, scene.batches, chosen, streams, search):
            finished.append(attempt)
            progress(len(finished), len(chosen) * samples)
            if json:
                say(
                    {
                        "event": "inversion",
                        "regime": attempt.regime,
                        "sample": attempt.sample,
                        "ssim": attempt.ssim,
                        "label_found": attempt.label_found,
                        "loss": attempt.found.loss,
                    }
                )
    if html:
        originals = [next(iter(batch.inputs.values()))[0] for batch in scene.batches]
        replace_file(html, _page(chosen, originals, finished, epsilon).encode())
    if not json:
        out.print(_inversions(chosen, finished, samples))
        labels = (
            "label: how often it was inferred correctly, from the signs of the last bias or, if "
            "that is noised, from the best match of all labels; where the server does not see "
            "the head, the label is given."
        )
        out.print(f"\nepsilon {epsilon:g} for this one message, delta 1e-5. {labels}")
        if html:
            out.print(f"page: {html}")


def membership(folder: Path, trust: bool, json: bool) -> None:
    with one_thread(), _progress("clients") as progress:
        result = memberships.membership(folder, progress)
    if json:
        return say({"event": "membership", "run": str(folder), **asdict(result)})
    shown: dict[str, Separation | None] = {
        "training windows": result.attack,
        "untrained model": result.untrained,
        "validation windows": result.validation,
    }
    heads = ("", "members", "others", "AUC", "95 %", "TPR 1 %", "10 %", "advantage", "95 %")
    view = Stacked(*heads, numbers=heads[1:])
    for name, separation in shown.items():
        if separation is not None:
            low, high = separation.auc_interval
            least, most = separation.advantage_interval
            view.add_row(
                name,
                f"{separation.members:,}",
                f"{separation.others:,}",
                f"{separation.auc:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{separation.tpr_at_1:.3f}",
                f"{separation.tpr_at_10:.3f}",
                f"{separation.advantage:.3f}",
                f"{least:.3f} to {most:.3f}",
            )
    out.print(view)
    out.print(
        "\nAUC 0.5 and advantage 0: members cannot be distinguished. The lower lines are controls "
        "without members; what the first line has beyond them is due to training. TPR: the share "
        "of members found if 1 % or 10 % of the others are taken for members. This is one simple "
        "attack; others may find more.",
        soft_wrap=True,
    )


def audit(
    source: str, settings: list[str] | None, cell: str, canaries: int, trust: bool, json: bool
) -> None:
    config = configs.load(source, settings or (), cell)
    with one_thread(), _progress("rounds") as progress:
        result = audits.audit(config, canaries, progress)
    if json:
        about = {"event": "audit", "source": source, "refuted": result.refuted}
        return say({**about, **asdict(result)})
    bound = result.bound
    claims = math.isfinite(result.claimed)
    claimed = upward(result.claimed) if claims else "none: nothing is private"
    proved = downward(bound.epsilon)
    highest = downward(bound.highest)
    lines = {
        "mode": f"{result.mode}; neighbours: {result.adjacency}",
        "claimed epsilon": f"{claimed} after {result.rounds} rounds, delta {result.delta}",
        "right guesses": f"{bound.right} of the {bound.guesses} surest, {bound.canaries} canaries",
        "epsilon, at least": f"{proved} (with all of them right: {highest})",
    }
    if bound.gaussian is not None:
        lines["if Gaussian"] = f"{downward(bound.gaussian)} at least"
    view = Table("", "", box=None, show_header=False, pad_edge=False)
    for line in lines.items():
        view.add_row(*line)
    out.print(view)
    if result.refuted:
        out.print("\nrefuted: the run reveals more than it claims (confidence 95 %)", style="red")
    elif result.mode == "none":
        out.print("\nnothing to refute: no privacy is claimed")
    elif bound.right == bound.canaries:
        out.print(
            "\nnot refuted, but every guess was right: more canaries are needed to prove more"
        )
    else:
        out.print("\nnot refuted, which proves nothing: more canaries would detect more")


def _chosen(known: Sequence[Regime], names: Sequence[str] | None) -> list[Regime]:
    if not names:
        return list(known)
    known_names = [regime.name for regime in known]
    for name in names:
        if name not in known_names:
            raise CommunisError(f"--regime {name!r}: there are {', '.join(known_names)}")
    return [regime for regime in known if regime.name in names]


def _inversions(chosen: Sequence[Regime], finished: Sequence[Attempt], samples: int) -> Stacked:
    numbers = [*(f"SSIM {i + 1}" for i in range(samples)), "mean", "label"]
    about = "what the server uses"
    view = Stacked("regime", *numbers, about, text=[about], numbers=numbers)
    for regime in chosen:
        own = [attempt for attempt in finished if attempt.regime == regime.name]
        values = [f"{attempt.ssim:.3f}" for attempt in own]
        inferred = [attempt.label_found for attempt in own if attempt.label_found is not None]
        label = f"{sum(inferred)}/{len(inferred)}" if inferred else "given"
        mean = f"{fmean(attempt.ssim for attempt in own):.3f}"
        view.add_row(regime.name, *values, mean, label, regime.about)
    return view


def _page(
    chosen: Sequence[Regime],
    originals: Sequence[Tensor],
    finished: Sequence[Attempt],
    epsilon: float,
) -> Markup:
    """A page with the original windows above their reconstructions."""
    lines: list[list[Content]] = [["the window", *(_picture(x) for x in originals)]]
    for regime in chosen:
        cells = [regime.name + element("br") + element("small", regime.about)]
        for attempt in (a for a in finished if a.regime == regime.name):
            picture = _picture(next(iter(attempt.found.windows.values())))
            cells.append(picture + element("br") + f"SSIM {attempt.ssim:.3f}")
        lines.append([*cells])
    heads = ["regime", *(f"sample {i + 1}" for i in range(len(originals)))]
    words = (
        f"What a server that knows the model reconstructs from the gradient of one window, at "
        f"epsilon {epsilon:g} for this message. A client that takes many local steps sends no "
        "gradient; the result does not apply to it."
    )
    title = element("h1", "Gradient inversion")
    return document("communis: gradient inversion", [title, note(words), table(heads, lines)])


def _picture(window: Tensor) -> Markup:
    """Draws the first channel of an image, or channels x steps of a series, as grey pixels."""
    plane = window[0] if window.ndim == 3 else window
    rows, columns = plane.shape
    tall = PIXEL * (1 if window.ndim == 3 else 3)
    width, height = columns * PIXEL, rows * tall
    pixels = [
        element(
            "rect",
            x=c * PIXEL,
            y=r * tall,
            width=PIXEL,
            height=tall,
            fill=f"rgb({level},{level},{level})",
        )
        for r, line in enumerate((plane * 255).round().int().tolist())
        for c, level in enumerate(line)
    ]
    return element(
        "svg",
        *pixels,
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        style=f"width:{width}px",
        shape_rendering="crispEdges",
    )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how many of how many are done: as a bar on standard error, or as about
    five lines if that is no terminal."""

    def show(done: int, of: int) -> None:
        bar.update(task, completed=done, total=of)
        a_fifth = math.ceil(of / 5)
        if not err.is_terminal and (done == of or done % a_fifth == 0):
            err.print(f"{what} {done}/{of}")

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=None)
        yield show
