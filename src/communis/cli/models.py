"""The command line's part for models: models list, models show, pretrain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from communis.cli.console import Json, listing, out, say
from communis.cli.lazily import done_by
from communis.cli.listing import Named, begins
from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.run import keys

app = typer.Typer(
    cls=Named,
    help="""List the models, or look into one with `models show`.

    Their names go into [fleet] models or into a role. Methods that exchange prototypes can mix
    models whose embeddings have one size.
    """,
)


def complete_model(typed: str) -> list[str]:
    return begins(list(keys.models()), typed)


def _unknown(name: str) -> str:
    known = list(keys.models())
    return f"no architecture {name!r}{nearest(name, known)}; there are {', '.join(known)}"


@app.command("list")
def list_(json: Json = False) -> None:
    """List the models with the size of their embedding."""
    if json:
        found = {
            name: {"embedding": one["x-embedding"], "for": one["description"]}
            for name, one in keys.models().items()
        }
        return say({"event": "models", "models": found})
    rows = [
        (name, str(one["x-embedding"]), one["description"]) for name, one in keys.models().items()
    ]
    out.print(listing(("model", "embedding", "what it is for"), rows, numbers=["embedding"]))
    out.print('\nUse one: models = ["NAME"] in [fleet]. Look into one: communis models show NAME')


@app.command()
@done_by("layers")
def show(
    name: Annotated[str, typer.Argument(help="A model.", autocompletion=complete_model)],
    window: Annotated[
        list[str] | None,
        typer.Option(
            help="A sensor's window: channels,steps or channels,rows,columns (repeatable, one per "
            "sensor); else 3,128."
        ),
    ] = None,
    outputs: Annotated[int, typer.Option(min=1, help="How many classes.")] = 10,
    weights: Annotated[
        str, typer.Option(help="Where weights lie, for models that need pretrained ones.")
    ] = "random",
    json: Json = False,
) -> None:
    """Show every layer of a model with the shape of its output, and what the model costs.

    How large a model is depends on the windows: of a series, (channels, steps); of CSI or an image,
    (channels, rows, columns). FLOPs are those of a forward pass of one window, a multiply-add as 2.
    They are said twice. Without elementwise work they are what the device clock counts: matrix
    products and convolutions. With it they are what many papers print: normalisation adds 2 per
    value, an activation 1, pooling 1 per value that goes in.

    Example: communis models show large_convnet4 --window 1,1000,242 --outputs 20
    """
    if name not in keys.models():
        raise CommunisError(_unknown(name))


@done_by("layers")
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
    json: Json = False,
) -> None:
    """Pretrain the backbone of `tiny_lora` without labels, by filling in hidden patches.

    Take another dataset than the one that the fleet will learn from.

    Example: communis pretrain --on usc_had --output tiny.safetensors
    """
