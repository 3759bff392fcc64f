"""The commands `models list`, `models show` and `pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from communis.cli.console import Json, listing, out, say
from communis.cli.help import Commands
from communis.cli.lazily import done_by
from communis.cli.listing import Named, begins
from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.run import keys

app = Commands(
    cls=Named,
    help="""List the models, or show the layers of one with `models show`.

    The key `models` in [fleet] or in a role takes their names, and networks of your own as
    package.module:Class. Methods that exchange prototypes can mix models whose embeddings have the
    same size.
    """,
)


def complete_model(typed: str) -> list[str]:
    return begins(list(keys.models()), typed)


def _unknown(name: str) -> str:
    known = list(keys.models())
    return f"no architecture {name!r}{nearest(name, known)}; there are {', '.join(known)}"


@app.command("list")
def list_(json: Json = False) -> None:
    """List the models with the sizes of their embeddings."""
    if json:
        entries = {
            name: {"embedding": model["x-embedding"], "for": model["description"]}
            for name, model in keys.models().items()
        }
        return say({"event": "models", "models": entries})
    rows = [
        (name, str(model["x-embedding"]), model["description"])
        for name, model in keys.models().items()
    ]
    out.print(listing(("model", "embedding", "what it is for"), rows, numbers=["embedding"]))
    out.print('\nUse one: models = ["NAME"] in [fleet]. Show its layers: communis models show NAME')
    out.print('A network of your own: models = ["package.module:Class"].')


@app.command()
@done_by("layers")
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A model, or a network of your own as package.module:Class, whose code is run.",
            autocompletion=complete_model,
        ),
    ],
    window: Annotated[
        list[str] | None,
        typer.Option(
            help="The window of a sensor: channels,steps or channels,rows,columns (repeatable, one "
            "per sensor); default: 3,128."
        ),
    ] = None,
    outputs: Annotated[int, typer.Option(min=1, help="The number of classes.")] = 10,
    weights: Annotated[
        str,
        typer.Option(help="The weights of models that need pretrained ones: a path, or random."),
    ] = "random",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting in [fleet] of networks of your own, e.g. --set own.width=16 or "
            "--set embedding=64 (repeatable).",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show the layers of a model, and what the model costs.

    Every layer is shown with the shape of its output. The size of a model depends on its windows:
    (channels, steps) for a series, (channels, rows, columns) for CSI or an image. FLOPs are those
    of a forward pass of one window; a multiply-add counts as 2. Two numbers are printed. Without
    elementwise operations, only matrix products and convolutions count, as in the device clock.
    With them, as in many papers, normalisation adds 2 per value, an activation 1, and pooling 1 per
    input value.

    Example: communis models show large_convnet4 --window 1,1000,242 --outputs 20
    """
    if ":" not in name and name not in keys.models():
        raise CommunisError(_unknown(name))
    if settings and ":" not in name:
        raise CommunisError(f"--set {settings[0]}: only networks of your own have settings here")


@done_by("layers")
def pretrain(
    on: Annotated[str, typer.Option("--on", help="The dataset to pretrain on; see `data list`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "tiny.safetensors"
    ),
    steps: Annotated[int, typer.Option(min=1, help="The number of batches.")] = 500,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, e.g. --set data.window=4 (repeatable)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the weights and batches.")] = 0,
    json: Json = False,
) -> None:
    """Pretrain the backbone of `tiny_lora` without labels.

    It learns to reconstruct hidden patches. Use another dataset than the one that the fleet is
    trained on.

    Example: communis pretrain --on usc_had --output tiny.safetensors
    """
