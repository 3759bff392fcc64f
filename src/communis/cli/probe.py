"""The commands privacy invert, membership and audit, done."""

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

from communis.cli.console import err, out, say
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
PIXEL = 9


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
    found: list[Attempt] = []
    with one_thread(), _progress("windows") as told:
        made = attempts(
            scene.model, scene.task, scene.batches, chosen, streams, Search(restarts, iterations)
        )
        for attempt in made:
            found.append(attempt)
            told(len(found), len(chosen) * samples)
            if json:
                about = {"regime": attempt.regime, "sample": attempt.sample, "ssim": attempt.ssim}
                about |= {"label_found": attempt.label_found, "loss": attempt.found.loss}
                say({"event": "inversion", **about})
    if html:
        originals = [next(iter(batch.inputs.values()))[0] for batch in scene.batches]
        replace_file(html, _page(chosen, originals, found, epsilon).encode())
    if not json:
        out.print(_inversions(chosen, found, samples))
        labels = (
            "label: how often it was inferred rightly, by the signs of the last bias or, if that "
            "is noised, by the best match of all labels; where the head is not seen it is given."
        )
        out.print(f"\nepsilon {epsilon:g} for this one message, delta 1e-5. {labels}")
        if html:
            out.print(f"page: {html}")


def membership(folder: Path, trust: bool, json: bool) -> None:
    with one_thread(), _progress("clients") as told:
        found = memberships.membership(folder, told)
    if json:
        return say({"event": "membership", "run": str(folder), **asdict(found)})
    shown: dict[str, Separation | None] = {"training windows": found.attack}
    shown |= {"untrained model": found.untrained, "validation windows": found.validation}
    heads = ("", "members", "others", "AUC", "95 %", "TPR 1 %", "10 %", "advantage", "95 %")
    view = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        view.add_column(head, no_wrap=True, justify="right" if head else "left")
    for name, one in shown.items():
        if one is not None:
            low, high = one.auc_interval
            least, most = one.advantage_interval
            view.add_row(
                name,
                f"{one.members:,}",
                f"{one.others:,}",
                f"{one.auc:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{one.tpr_at_1:.3f}",
                f"{one.tpr_at_10:.3f}",
                f"{one.advantage:.3f}",
                f"{least:.3f} to {most:.3f}",
            )
    out.print(view)
    out.print(
        "\nAUC 0.5 and advantage 0: nothing can be told. The lower lines are controls in which "
        "nobody is a member; what the first finds beyond them is due to training. TPR: the share "
        "of members found, if 1 % or 10 % of the others are taken for members. It is one simple "
        "attack: others may find more.",
        soft_wrap=True,
    )


def audit(
    source: str, settings: list[str] | None, cell: str, canaries: int, trust: bool, json: bool
) -> None:
    config = configs.load(source, settings or (), cell)
    with one_thread(), _progress("rounds") as told:
        found = audits.audit(config, canaries, told)
    if json:
        about = {"event": "audit", "source": source, "refuted": found.refuted}
        return say({**about, **asdict(found)})
    bound = found.bound
    claimed = upward(found.claimed) if math.isfinite(found.claimed) else "none: nothing is private"
    proved, highest = downward(bound.epsilon), downward(bound.highest)
    lines = {
        "mode": f"{found.mode}; neighbours: {found.adjacency}",
        "claimed epsilon": f"{claimed} after {found.rounds} rounds, delta {found.delta}",
        "right guesses": f"{bound.right} of the {bound.guesses} surest, {bound.canaries} canaries",
        "epsilon, at least": f"{proved} (with all of them right: {highest})",
    }
    if bound.gaussian is not None:
        lines["if Gaussian"] = f"{downward(bound.gaussian)} at least"
    view = Table("", "", box=None, show_header=False, pad_edge=False)
    for line in lines.items():
        view.add_row(*line)
    out.print(view)
    if found.refuted:
        out.print("\nrefuted: the run reveals more than it claims (confidence 95 %)", style="red")
    elif found.mode == "none":
        out.print("\nnothing to refute: no privacy is claimed")
    elif bound.right == bound.canaries:
        out.print("\nnot refuted, but every guess was right: so few canaries cannot prove more")
    else:
        out.print("\nnot refuted, which proves nothing: more canaries would see more")


def _chosen(known: Sequence[Regime], names: Sequence[str] | None) -> list[Regime]:
    wrong = [name for name in names or () if name not in [one.name for one in known]]
    if wrong:
        listed = ", ".join(one.name for one in known)
        raise CommunisError(f"--regime {wrong[0]!r}: there are {listed}")
    return [one for one in known if not names or one.name in names]


def _inversions(chosen: Sequence[Regime], found: Sequence[Attempt], samples: int) -> Table:
    numbers = [f"SSIM {i + 1}" for i in range(samples)]
    view = Table(box=None, header_style="bold", pad_edge=False)
    view.add_column("regime", no_wrap=True)
    for name in (*numbers, "mean", "label"):
        view.add_column(name, justify="right")
    view.add_column("what the server makes use of")
    for one in chosen:
        own = [attempt for attempt in found if attempt.regime == one.name]
        values = [f"{attempt.ssim:.3f}" for attempt in own]
        inferred = [attempt.label_found for attempt in own if attempt.label_found is not None]
        label = f"{sum(inferred)}/{len(inferred)}" if inferred else "given"
        mean = f"{fmean(attempt.ssim for attempt in own):.3f}"
        view.add_row(one.name, *values, mean, label, one.about)
    return view


def _page(
    chosen: Sequence[Regime], originals: Sequence[Tensor], found: Sequence[Attempt], epsilon: float
) -> Markup:
    """Originals above, what was reconstructed below."""
    lines: list[list[Content]] = [["the window", *(_picture(x) for x in originals)]]
    for one in chosen:
        cells = [one.name + element("br") + element("small", one.about)]
        for attempt in (a for a in found if a.regime == one.name):
            picture = _picture(next(iter(attempt.found.windows.values())))
            cells.append(picture + element("br") + f"SSIM {attempt.ssim:.3f}")
        lines.append([*cells])
    heads = ["regime", *(f"sample {i + 1}" for i in range(len(originals)))]
    words = (
        f"What a server that knows the model reconstructs from the gradient of one window, at "
        f"epsilon {epsilon:g} for this message. Many local steps send no gradient: this says "
        "nothing on them."
    )
    title = element("h1", "Gradient inversion")
    return document("communis: gradient inversion", [title, note(words), table(heads, lines)])


def _picture(window: Tensor) -> Markup:
    """Grey pixels: an image's first channel, or channels x steps."""
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
    """Told how many of how many are done: a bar on standard error, or some lines where that is no
    terminal."""

    def told(done: int, of: int) -> None:
        bar.update(task, completed=done, total=of)
        if not err.is_terminal and (done == of or done % -(-of // 5) == 0):
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
        yield told
