"""The command line: run, compare, resume, report, methods, data, extras."""

from __future__ import annotations

import importlib
import logging
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from communis import cli_data, jobs, plugins
from communis import config as configs
from communis.compare import collect, rows
from communis.core import CommunisError
from communis.extras import EXTRAS, command
from communis.jobs import Job
from communis.report import page
from communis.report.words import default_metric
from communis.terminal import Said, comparison, err, out, say

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


app.add_typer(cli_data.app, name="data")

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
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]


@app.command()
def run(
    source: Where,
    settings: Settings = None,
    into: Folder = Path("runs"),
    name: Name = "",
    metric: Metric = "",
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run one experiment; everything it measures goes into its folder.

    Example: communis run watch --set method.name=fedproto --set run.rounds=10
    """
    config = configs.load(source, settings or ())
    default = f"{config.name}-{config.method_name.rpartition(':')[2]}"
    folder = jobs.place(into, name) if name else jobs.free(jobs.place(into, default))
    if (folder / "config.toml").exists():
        raise CommunisError(
            f"{folder} holds a run already: continue it with `communis resume {folder}`, "
            "or choose another --name"
        )
    jobs.carry_out([Job(config, folder)], folder, metric, quiet, json)
    jobs.conclude([folder], folder, metric, config.name, quiet, json)


@app.command()
def compare(
    methods: Annotated[list[str], typer.Argument(help="Two or more methods; see `methods`.")],
    on: Annotated[str, typer.Option("--on", help="A TOML file or a preset.")] = "watch",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from the file's own.")] = 3,
    settings: Settings = None,
    into: Folder = Path("runs"),
    name: Name = "",
    metric: Metric = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove earlier results first.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run several methods on the same fleet with paired seeds and say which differences count.

    Finished runs in the folder are kept, so the same command continues after an interruption.

    Example: communis compare fedavg fedper fedproto local --on watch --seeds 5
    """
    base = configs.load(on, settings or ())
    home = jobs.place(into, name or f"{base.name}-compare")
    todo = []
    for seed in range(base.seed, base.seed + seeds):
        for method in dict.fromkeys(methods):
            config = replace(base, method={**base.method, "name": method}, seed=seed)
            label = method.rpartition(":")[2]
            todo.append(Job(config, home / label / f"seed{seed}"))
    jobs.prepare(todo, fresh)
    jobs.carry_out(todo, home, metric, quiet, json)
    jobs.conclude([job.folder for job in todo], home, metric, base.name, quiet, json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or a comparison's.")],
    metric: Metric = "",
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue what was interrupted: the numbers are those of a run without interruption."""
    found = sorted(path.parent for path in folder.rglob("config.toml"))
    if not found:
        raise CommunisError(f"{folder}: no run to resume here (no config.toml)")
    todo = [Job(configs.load(str(path / "config.toml")), path) for path in found]
    jobs.carry_out(todo, folder, metric, quiet, json)
    jobs.conclude(found, folder, metric, todo[0].config.name, quiet, json)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
    metric: Metric = "",
    json: Json = False,
) -> None:
    """Write one HTML file with the tables and curves of finished runs."""
    runs = collect(folders)
    chosen = metric or default_metric(runs)
    page.write(runs, output, chosen, f"communis: {', '.join(str(f) for f in folders)}")
    if json:
        say({"event": "report", "path": str(output)})
    else:
        out.print(comparison(rows(runs, chosen), chosen))
        out.print(f"report: {output}")


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
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method")
    table.add_column("what it does")
    for key, text in entries.items():
        table.add_row(key, text)
    out.print(table)
    out.print("\nSettings of one: communis methods NAME")


@app.command()
def extras(json: Json = False) -> None:
    """List the optional parts, what they are for and which are installed."""
    if json:
        return say({"event": "extras", "extras": {n: e.installed for n, e in EXTRAS.items()}})
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("extra", "installed", "for", "install with"):
        table.add_column(column)
    for name, extra in EXTRAS.items():
        table.add_row(name, "yes" if extra.installed else "no", extra.purpose, command(name))
    out.print(table)


def main() -> None:
    """Entry point: refusals are one clear line, not a traceback."""
    logging.basicConfig(level=logging.INFO, handlers=[Said()])
    try:
        app()
    except CommunisError as error:
        err.print(f"error: {error}", style="red")
        sys.exit(2)
    except OSError as error:
        err.print(f"error: {error}", style="red")
        sys.exit(2)


def _about(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _method(name: str, json: bool) -> None:
    kind = plugins.find("methods", name)
    found = plugins.settings(kind)
    if json:
        about = {
            key: {"default": default, "meaning": text} for key, (default, text) in found.items()
        }
        return say({"event": "method", "method": name, "settings": about})
    out.print((importlib.import_module(kind.__module__).__doc__ or "").strip())
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("setting", "default", "meaning"):
        table.add_column(column)
    for key, (default, text) in found.items():
        table.add_row(f"method.{key}", repr(default), text)
    out.print()
    out.print(table)


if __name__ == "__main__":
    main()
