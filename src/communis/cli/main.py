"""The command line: run, compare, resume, report, methods, presets, data, device, models, privacy,
pretrain, extras."""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.table import Table

from communis.cli import data, device, jobs, models, probe
from communis.cli.jobs import Job
from communis.cli.terminal import LogToStderr, err, out, say
from communis.cli.trust import Trust
from communis.core import memory, plugins, start_up
from communis.core.errors import CommunisError, readable
from communis.core.extras import EXTRAS, command
from communis.core.selection import Select
from communis.results.compare import collect
from communis.results.finished import settings_in
from communis.run import config as configs

LONGEST = 3000  # characters of a refusal

app = typer.Typer(
    help="Train models across fleets whose devices sense differently.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
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


app.add_typer(data.app, name="data")
app.add_typer(device.app, name="device")
app.add_typer(models.app, name="models")
app.add_typer(probe.app, name="privacy")

Where = Annotated[
    str, typer.Argument(help=f"A TOML file, or a preset: {', '.join(configs.presets())}.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, e.g. --set method.lr=0.1 (repeatable)."),
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
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]


@app.command()
def run(
    source: Where,
    settings: Settings = None,
    cell: Annotated[str, typer.Option(help="The cell of a grid, e.g. severe/moderate.")] = "",
    into: Folder = Path("runs"),
    name: Name = "",
    metric: Metric = "",
    select: Selection = None,
    target: Target = None,
    trust: Trust = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run one experiment; everything it measures goes into its folder.

    Example: communis run watch --set method.name=fedproto --set run.rounds=10
    """
    config = configs.load(source, settings or (), cell)
    default = "-".join([config.name, *config.cell.values(), config.label])
    folder = jobs.place(into, name) if name else jobs.free(jobs.place(into, default))
    if (folder / "config.toml").exists():
        raise CommunisError(
            f"{folder} holds a run already: continue it with `communis resume {folder}`, "
            "or choose another --name"
        )
    jobs.carry_out([Job(config, folder, source)], folder, metric, quiet, json)
    jobs.conclude([folder], folder, metric, select, target or (), config.name, quiet, json)


@app.command()
def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Methods (see `methods`) or variants of the file; else its own list."),
    ] = None,
    on: Annotated[
        str, typer.Option("--on", help="A TOML file or a preset; see `presets`.")
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
    trust: Trust = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run several methods on the same fleet with paired seeds and say which differences count.

    A file with a grid is run in all its cells. Finished runs in the folder are kept, so the same
    command continues after an interruption.

    Example: communis compare fedavg fedper fedproto local --on watch --seeds 5

    In one cell: communis compare fedavg fedduet --on fedduet/dsads --cell severe/severe
    """
    found = configs.cells(on, settings or (), methods or ())
    chosen = [configs.pick(found, name, on) for name in dict.fromkeys(cell or found)]
    base = chosen[0]
    if not base.compare:
        raise CommunisError(
            f"{on}: no methods to compare: name them, as in `communis compare fedavg local --on "
            f'{on}`, or list them in the file, as in compare = ["fedavg", "local"]'
        )
    home = jobs.place(into, name or f"{base.name}-compare")
    todo = []
    for seed in range(base.seed, base.seed + seeds):
        for config in chosen:  # methods innermost: they share a fleet
            place = home / "-".join(config.cell.values())
            for method in dict.fromkeys(base.compare):
                run = replace(config.under(method), seed=seed)
                todo.append(Job(run, place / run.label / f"seed{seed}", on))
    jobs.refuse_shared(todo)
    with jobs.claimed(home):
        jobs.prepare(todo, fresh)
        jobs.carry_out(todo, home, metric, quiet, json)
    jobs.conclude(
        [job.folder for job in todo], home, metric, select, target or (), base.name, quiet, json
    )


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or a comparison's.")],
    metric: Metric = "",
    select: Selection = None,
    target: Target = None,
    trust: Trust = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue what was interrupted: the numbers are those of a run without interruption."""
    found = sorted(path.parent for path in folder.rglob("config.toml"))
    if not found:
        raise CommunisError(f"{folder}: no run to resume here (no config.toml)")
    for path in found:
        settings_in(path)  # else a file that lost them would be read as the default experiment
    todo = [Job(configs.load(str(path / "config.toml")), path) for path in found]
    todo.sort(key=lambda job: (job.config.seed, *job.config.cell.values()))  # by shared fleets
    with jobs.claimed(folder):
        jobs.refuse_mixed(todo)
        jobs.carry_out(todo, folder, metric, quiet, json)
    jobs.conclude(found, folder, metric, select, target or (), todo[0].config.name, quiet, json)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
    metric: Metric = "",
    select: Selection = None,
    target: Target = None,
    json: Json = False,
) -> None:
    """Write one HTML file with the tables and curves of finished runs."""
    title = ", ".join(map(str, folders[:3])) + (
        f" and {len(folders) - 3} more" * (len(folders) > 3)
    )
    jobs.show(collect(folders), output, metric, select, target or (), title, quiet=False, json=json)


@app.command()
def methods(
    name: Annotated[str, typer.Argument(help="Show one method's settings.")] = "",
    json: Json = False,
) -> None:
    """List the methods, or the settings of one."""
    if name:
        return _method(name, json)
    entries = {n: _about(plugins.find("methods", n)) for n in plugins.names("methods")}
    if json:
        return say({"event": "methods", "methods": entries})
    out.print(_table(("method", "what it does"), entries.items()))
    out.print("\nSettings of one: communis methods NAME")


@app.command()
def presets(json: Json = False) -> None:
    """List the experiments that come along."""
    entries = {name: configs.about(name) for name in configs.presets()}
    if json:
        return say({"event": "presets", "presets": entries})
    out.print(_table(("preset", "what it is"), entries.items()))
    out.print("\nRun one: communis run NAME. Compare methods on it: communis compare --on NAME.")


@app.command()
def extras(json: Json = False) -> None:
    """List the optional parts, what they are for and which are installed."""
    if json:
        return say({"event": "extras", "extras": {n: e.installed for n, e in EXTRAS.items()}})
    lines = [(n, "yes" if e.installed else "no", e.purpose, command(n)) for n, e in EXTRAS.items()]
    out.print(_table(("extra", "installed", "for", "install with"), lines))


app.command()(models.pretrain)


def main() -> None:
    """Entry point: refusals are one clear line. A mistake of ours is one line as well, and its
    traceback goes into a file."""
    logging.basicConfig(level=logging.INFO, handlers=[LogToStderr()])
    try:
        start_up.ready()
        app()
    except (CommunisError, OSError) as error:
        _fail(str(error), 2)
    except Exception as error:
        if memory.is_short(error):
            _fail(memory.SHORT, 2)
        what = readable(f"{type(error).__name__}: {error}")
        _fail(
            f"communis failed with {what}; this should not happen, please report it with "
            f"{_kept_traceback()}",
            1,
        )


def _kept_traceback() -> str:
    """The file that holds the traceback of the error at hand, or why there is none."""
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="communis-traceback-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",  # of a name that is not UTF-8
        ) as file:
            file.write(traceback.format_exc())
    except OSError as error:
        return f"what you did (its traceback could not be written: {error.strerror or error})"
    return file.name


def _fail(why: str, code: int) -> NoReturn:
    """Ends with one line that can be printed, whatever it quotes."""
    err.print(f"error: {readable(why, LONGEST)}", style="red", markup=False, soft_wrap=True)
    sys.exit(code)


def _about(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _method(name: str, json: bool) -> None:
    plugins.trust_asked(name)
    kind = plugins.find("methods", name)
    found = plugins.settings(kind)
    if json:
        about = {
            key: {"default": default, "meaning": text} for key, (default, text) in found.items()
        }
        return say({"event": "method", "method": name, "settings": about})
    out.print((importlib.import_module(kind.__module__).__doc__ or "").strip())
    lines = [(f"method.{key}", repr(default), text) for key, (default, text) in found.items()]
    out.print()
    out.print(_table(("setting", "default", "meaning"), lines))


def _table(columns: Iterable[str], lines: Iterable[Iterable[str]]) -> Table:
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for line in lines:
        table.add_row(*line)
    return table


if __name__ == "__main__":
    main()
