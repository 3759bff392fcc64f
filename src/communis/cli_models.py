"""The command line's part for models: pretrain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from communis import config as configs
from communis.backends.machine import one_thread
from communis.core import CommunisError
from communis.models import tiny
from communis.runfolder import replace_file
from communis.streams import Streams
from communis.terminal import err, out, say


def pretrain(
    on: Annotated[str, typer.Option("--on", help="A dataset to learn from; see `data list`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "tiny.safetensors"
    ),
    steps: Annotated[int, typer.Option(min=1, help="How many batches to learn from.")] = 500,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, e.g. --set data.window=4 (repeatable)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other weights.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Pretrain the backbone of `tiny_lora` without labels, by filling in hidden patches.

    Take another dataset than the one that the fleet will learn from.

    Example: communis pretrain --on usc_had --output tiny.safetensors
    """
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise CommunisError(f"--output {output}: expected a file, in a folder that exists")
    streams = Streams(seed)
    windows = configs.bare({"name": on}, settings or ()).make_source().load(streams)
    # One thread, so that a seed gives the same file whatever the number of cores.
    with one_thread(), _progress() as bar:
        task = bar.add_task(on, total=steps, loss="")
        made = tiny.pretrain(
            windows,
            streams,
            steps,
            told=lambda step, loss: bar.update(task, completed=step, loss=f"loss {loss:.3f}"),
        )
    about = {"data": on, "window": windows.seconds, "steps": steps, "seed": seed}
    about |= {"settings": list(settings or ())}
    replace_file(output, made.packed(**about))
    if json:
        found = {"before": made.before, "after": made.after, "file": str(output)}
        return say({"event": "pretrain", **about, **found})
    out.print(
        f"{on}: error on hidden patches of held-out windows {made.before:.3f} before, "
        f"{made.after:.3f} after {steps} steps (guessing the mean: 1)",
        soft_wrap=True,
    )
    if not made.after < made.before:
        err.print("it has learned nothing: take more --steps or other data", style="yellow")
    out.print(f"wrote {output}; use it with --set fleet.weights={output}", soft_wrap=True)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(compact=True),
        console=err,
    )
