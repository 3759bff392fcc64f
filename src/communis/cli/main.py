"""The command line: run, compare, resume, watch, report, new, methods, models, presets, data,
device, settings, privacy, pretrain, extras."""

from __future__ import annotations

import logging
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from communis.cli import data, device, models, names, privacy
from communis.cli.console import LONGEST, Json, LogToStderr, err, mistake, out
from communis.cli.folders import (
    refuse_without_any_run,
    refuse_without_configuration,
    refuse_without_runs,
)
from communis.cli.help import Commands
from communis.cli.lazily import done_by
from communis.cli.names import complete_method, complete_preset
from communis.cli.trust import Trust
from communis.core import memory, metrics, start_up
from communis.core.errors import CommunisError, plain, readable
from communis.core.selection import Select
from communis.run import grid, keys, presets, reading

app = Commands(
    help="Train models across fleets whose devices sense differently.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        out.print(f"communis {version('communis')}")
        raise typer.Exit


@app.callback()
def _options(
    show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train models across fleets whose devices sense differently."""


Where = Annotated[
    str,
    typer.Argument(
        help="A TOML file, or a preset (see `communis presets`).", autocompletion=complete_preset
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings to change, e.g. method.lr=0.1 (see `communis settings`).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="The same as KEY=VALUE, e.g. --set method.lr=0.1 (repeatable)."),
]
Folder = Annotated[Path, typer.Option("--into", help="Where run folders are made.")]
Name = Annotated[str, typer.Option(help="Name of the run's folder; the configuration's if empty.")]
Metric = Annotated[str, typer.Option(help="The score to judge by, e.g. accuracy or macro_f1.")]
Selection = Annotated[
    Select | None,
    typer.Option(
        "--select",
        help="The round whose test scores rank methods: the last; the common one with the best "
        "mean validation score; every client's own best, which favours personalised methods; or "
        "the tail: the mean of the last five evaluated rounds. Else as the configuration says.",
    ),
]
Target = Annotated[
    list[float] | None,
    typer.Option(
        help="A score until which rounds, time, energy and traffic are counted (repeatable); else "
        "those of the configuration, or for time and energy the highest multiple of 0.05 that all "
        "methods reached.",
        min=0.0,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        help="How many runs at the same time; default: one per core, or per run.workers cores "
        "where that is set. Cores that are left over are shared out as workers.",
        min=1,
    ),
]
Shard = Annotated[
    str,
    typer.Option(
        metavar="I/N",
        help="Only the I-th of N shares of the runs, e.g. 2/4, in the same folder as the others; "
        "`report` joins them.",
    ),
]
Engine = Annotated[
    Literal["local", "ray"],
    typer.Option(
        help="Where runs go on: processes of this machine, or a Ray cluster (the extra `ray`), "
        "whose nodes share the folder of the runs.",
    ),
]
Address = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="The head of the Ray cluster, or auto on one of its nodes; else RAY_ADDRESS, or a Ray "
        "of this machine alone.",
    ),
]
TrainedRun = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
Round = Annotated[
    str,
    typer.Option(help="last, best (the round with the best validation score), or its number."),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="The folder of a finished run: models begin with its common model (fleet.start).",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]


@app.command()
@done_by("experiments")
def run(
    source: Where,
    changes: Changes = None,
    settings: Settings = None,
    cell: Annotated[str, typer.Option(help="The cell of a grid, e.g. severe/moderate.")] = "",
    into: Folder = Path("runs"),
    name: Name = "",
    metric: Metric = "",
    select: Selection = None,
    target: Target = None,
    start: From = None,
    trust: Trust = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run one experiment; everything it measures goes into its folder.

    Example: communis run watch method.name=fedproto run.rounds=10
    """
    _refuse_early(source, [*(changes or ()), *(settings or ())], {"compare": ()}, metric)


@app.command()
@done_by("experiments")
def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            help="Methods (see `methods`) or variants of the file, else its own list; and settings "
            "to change, as KEY=VALUE.",
            autocompletion=complete_method,
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on", help="A TOML file or a preset; see `presets`.", autocompletion=complete_preset
        ),
    ] = "watch",
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds, starting at the file's own.")
    ] = 3,
    settings: Settings = None,
    cell: Annotated[
        list[str] | None,
        typer.Option(help="Only this cell of the grid, e.g. severe/moderate (repeatable)."),
    ] = None,
    into: Folder = Path("runs"),
    name: Name = "",
    metric: Metric = "",
    select: Selection = None,
    target: Target = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove earlier results first.")] = False,
    start: From = None,
    jobs: Jobs = None,
    shard: Shard = "",
    engine: Engine = "local",
    address: Address = "",
    trust: Trust = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run several methods on the same fleet with paired seeds.

    The result says which differences count. A file with a grid is run in all its cells. Finished
    runs in the folder are kept, so the same command continues after an interruption.

    Example: communis compare fedavg fedper fedproto local --on watch --seeds 5

    In one cell: communis compare fedavg fedduet --on fedduet/dsads --cell severe/severe
    """
    changes = [word for word in methods or () if "=" in word]
    named = [word for word in methods or () if "=" not in word]
    _refuse_early(on, [*changes, *(settings or ())], {"compare": named} if named else {}, metric)


@app.command()
@done_by("experiments")
def resume(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or a comparison's.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="More rounds, as run.rounds=50; other settings stay."),
    ] = None,
    metric: Metric = "",
    select: Selection = None,
    target: Target = None,
    jobs: Jobs = None,
    shard: Shard = "",
    engine: Engine = "local",
    address: Address = "",
    trust: Trust = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue what was interrupted, with the same numbers.

    They are those of a run without interruption, to the bit. --set run.rounds=N adds rounds.

    Example: communis resume runs/demo --set run.rounds=50
    """
    refuse_without_configuration(folder)


@app.command()
@done_by("watch")
def watch(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or one that holds runs.")],
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="The port of the page; a free one if it is 0 or taken."
        ),
    ] = 8470,
) -> None:
    """Show runs on a page of this machine while they go on.

    The page only reads, and nobody else in the network can open it. Ctrl-C ends it.

    Example: communis watch runs/watch-compare
    """
    refuse_without_any_run(folder)


@app.command()
@done_by("experiments")
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write every table as a CSV file into a folder."),
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the table of scores and costs for LaTeX."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write every figure as an SVG file."),
    ] = None,
    metric: Metric = "",
    select: Selection = None,
    target: Target = None,
    json: Json = False,
) -> None:
    """Write one HTML file with the tables and curves of finished runs.

    For a paper: communis report runs/demo --csv tables --latex table.tex --figures figures
    """
    for folder in folders:
        refuse_without_runs(folder)


@app.command()
@done_by("trained")
def predict(
    run: TrainedRun,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="New recordings, without labels: files of your own as in training, or a folder in "
            "the format of the run's dataset."
        ),
    ],
    client: Annotated[
        str, typer.Option(help="Whose model: the number or name of a client of the run.")
    ] = "",
    newcomer: Annotated[
        bool, typer.Option("--newcomer", help="The common model, for somebody new.")
    ] = False,
    normalise: Annotated[
        Literal["", "own", "fleet"],
        typer.Option(
            help="For a newcomer: by the values of these recordings, or by those of the fleet's "
            "training windows. Else as in training, and by the fleet's if there are few windows."
        ),
    ] = "",
    model: Annotated[
        str, typer.Option(help="For a newcomer: the architecture, if the fleet has several.")
    ] = "",
    round: Round = "last",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A CSV or Parquet file for the whole table."),
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Predict for new recordings with a model that a run has learned.

    They are resampled, cut into windows and normalised as in training. Sensors may be missing.

    Example: communis predict runs/my-fedavg recordings/new.csv --newcomer -o new-labels.csv
    """
    refuse_without_runs(run)


@app.command()
@done_by("trained")
def export(
    run: TrainedRun,
    client: Annotated[str, typer.Option(help="Whose model: the number or name of a client.")] = "",
    common: Annotated[
        bool, typer.Option("--common", help="The common model, for somebody new.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="With --common: the architecture, if the fleet has several.")
    ] = "",
    to: Annotated[
        Literal["onnx", "pt2", "safetensors"],
        typer.Option(
            help="onnx: for onnxruntime and others (the extra `export`); pt2: a program for "
            "torch.export.load; safetensors: the tensors alone."
        ),
    ] = "onnx",
    round: Round = "last",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write.")
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Write a trained model with its preprocessing as one file.

    A model card lies beside it. The model in the file is compared with the trained one.

    Example: communis export runs/watch-fedavg --client 3 --to onnx
    """
    refuse_without_runs(run)


@app.command()
def new(
    file: Annotated[Path, typer.Argument(help="The TOML file to write.")],
    preset: Annotated[
        str, typer.Option("--from", help="A preset.", autocompletion=complete_preset)
    ] = "synthetic",
) -> None:
    """Write the file of a preset under another name, to change it.

    Example: communis new my.toml --from watch
    """
    text = presets.text(preset)
    if file.suffix != ".toml":
        raise CommunisError(f"{file}: expected the name of a TOML file, such as {file.stem}.toml")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(f"#:schema {keys.FILE}\n{text}")
    except FileExistsError:
        raise CommunisError(f"{file}: there is such a file; choose another name") from None
    out.print(f"wrote {file}; run it with: communis run {file}", soft_wrap=True)


app.add_typer(names.methods, name="methods")
app.add_typer(models.app, name="models")
app.add_typer(names.presets, name="presets")
app.add_typer(data.app, name="data")
app.add_typer(device.app, name="device")
app.command()(names.settings)
app.add_typer(privacy.app, name="privacy")
app.command()(models.pretrain)
app.command()(names.extras)


def _refuse_early(source: str, settings: list[str], instead: dict[str, Any], metric: str) -> None:
    """Refuses a configuration that cannot be right, or that trains nothing, and a metric that no
    task has, without importing torch: unknown keys first, because values take NumPy to check."""
    table, changed, _ = reading.read(source, settings, instead)
    from communis.run import early  # here, because help and lists take no NumPy

    early.refuse(source, settings, instead)
    for cell in grid.tables_by_cell(table, changed).values():
        if cell.get("run", {}).get("rounds") == 0:
            raise CommunisError(f"{source}: run.rounds = 0 trains nothing; set it to at least 1")
        if ":" not in cell.get("data", {}).get("name", ""):  # a third-party task has its own
            metrics.refuse_unknown(metric or cell.get("metric", ""))


def main() -> None:
    """Entry point: refusals are one clear line. A mistake of ours is one line as well, and its
    traceback goes into a file."""
    logging.basicConfig(level=logging.INFO, handlers=[LogToStderr()])
    try:
        app()
    except CommunisError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.filename}: {plain(error)}" if error.filename else plain(error), 2)
    except Exception as error:
        if memory.is_short(error):
            _fail(memory.SHORT, 2)
        what = f"{type(error).__name__}: {error}"
        _fail(f"communis {mistake(what, traceback.format_exc())}", 1)
    finally:
        start_up.leaving()


def _fail(why: str, code: int) -> NoReturn:
    """Ends with one line that can be printed, whatever it quotes."""
    err.print(f"error: {readable(why, LONGEST)}", style="red", markup=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
