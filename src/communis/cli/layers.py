"""The implementation of the commands `models show` and `pretrain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from communis.cli.console import Stacked, err, out, say
from communis.core import plugins
from communis.core.contract import Model
from communis.core.disk import replace_file
from communis.core.errors import CommunisError
from communis.core.settings import build
from communis.core.streams import Streams
from communis.models import tiny
from communis.models.flops import forward_flops
from communis.models.own import Own, named
from communis.models.zoo import Architecture, architecture
from communis.run import config as configs
from communis.run import grid
from communis.run.backends.machine import one_thread


def show(
    name: str,
    window: list[str] | None,
    outputs: int,
    weights: str,
    settings: list[str] | None,
    json: bool,
) -> None:
    windows = [_shape(text) for text in window or ["3,128"]]
    sensors = ["sensor"] if len(windows) == 1 else [f"sensor{i + 1}" for i in range(len(windows))]
    shapes = dict(zip(sensors, windows, strict=True))
    kind = _own(name, settings or ()) if ":" in name else architecture(name, weights=weights)
    model = _built(kind, shapes, outputs)
    layers, flops, elementwise = _inspected(model, shapes)
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if json:
        return say(
            {
                "event": "model",
                "model": name,
                "windows": shapes,
                "outputs": outputs,
                "embedding": model.embedding_size,
                "layers": [asdict(layer) for layer in layers],
                "parameters": total,
                "trained": trained,
                "flops": flops,
                "flops_elementwise": elementwise,
            }
        )
    table = Stacked("layer", "kind", "output", "parameters", numbers=["parameters"])
    for layer in layers:
        shape = " x ".join(map(str, layer.output)) or "-"
        table.add_row(layer.path, layer.kind, shape, f"{layer.parameters:,}")
    out.print(table)
    frozen = f", of which {trained:,} are trained" if trained < total else ""
    out.print(f"\nembedding   {model.embedding_size}")
    out.print(f"parameters  {total:,}{frozen}")
    out.print(
        f"MFLOPs      {elementwise / 1e6:,.3f} with elementwise work, {flops / 1e6:,.3f} without"
    )


def _own(name: str, settings: Sequence[str]) -> Own:
    """Returns the network of the user with its settings, `own.KEY=VALUE` or `embedding=SIZE`."""
    plugins.trust_asked(name)
    table: grid.Table = {}
    for setting in settings:
        grid.override(table, setting)
    given = build(_Settings, table, "")
    kind = named(name, given.own, given.embedding)
    for setting in given.own:
        if not kind.accepts(setting):
            raise kind.refusal(f"its constructor has no {setting}; it has {kind.parameters()}")
    return kind


@dataclass(frozen=True)
class _Settings:
    """The settings of networks of the user, as in [fleet]."""

    own: dict[str, Any] = field(default_factory=dict)
    embedding: int = 0


def _built(kind: Architecture | Own, shapes: dict[str, tuple[int, ...]], outputs: int) -> Model:
    with one_thread(), Streams().torch("build"):
        return kind.build(shapes, outputs)


@dataclass(frozen=True)
class Layer:
    """A module with parameters of its own."""

    path: str
    kind: str
    output: tuple[int, ...]  # shape for one window; empty if the module itself is not called
    parameters: int


def _inspected(
    model: Model, shapes: dict[str, tuple[int, ...]]
) -> tuple[list[Layer], float, float]:
    """The layers in order, and the FLOPs without and with elementwise operations."""
    shape_of: dict[nn.Module, tuple[int, ...]] = {}

    def record(module: nn.Module, inputs: object, output: Any) -> None:
        # A GRU returns its state beside its output.
        first = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(first, Tensor):
            shape_of[module] = tuple(first.shape[1:])

    own = {path: m for path, m in model.named_modules() if [*m.parameters(recurse=False)]}
    hooks = [module.register_forward_hook(record) for module in own.values()]
    flops = forward_flops(model, shapes)
    for hook in hooks:
        hook.remove()
    layers = [
        Layer(
            model.path_of(path),
            type(module).__name__,
            shape_of.get(module, ()),
            sum(p.numel() for p in module.parameters(recurse=False)),
        )
        for path, module in own.items()
    ]
    return layers, flops, forward_flops(model, shapes, elementwise=True)


def _shape(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) not in (2, 3) or not all(p.strip().isdecimal() and int(p) for p in parts):
        raise CommunisError(
            f"--window {text}: expected channels,steps or channels,rows,columns, all at least "
            "1, as in --window 3,128 or --window 1,1000,242"
        )
    return tuple(map(int, parts))


def pretrain(
    on: str, output: Path, steps: int, settings: list[str] | None, seed: int, json: bool
) -> None:
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise CommunisError(f"--output {output}: expected a file, in a folder that exists")
    streams = Streams(seed)
    plugins.trust_asked(on)
    windows = configs.bare({"name": on}, settings or ()).make_source().load(streams)
    # One thread, so that a seed gives the same file with any number of cores.
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
        errors = {"before": made.before, "after": made.after}
        return say({"event": "pretrain", **about, **errors, "file": str(output)})
    out.print(
        f"{on}: error on hidden patches of held-out windows {made.before:.3f} before, "
        f"{made.after:.3f} after {steps} steps (guessing the mean: 1)",
        soft_wrap=True,
    )
    if not made.after < made.before:
        err.print("The model has not improved: try more --steps or other data.", style="yellow")
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
