"""The command line's `data` part: list, fetch, init, doctor, preview."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from communis.cli.terminal import err, out, say
from communis.cli.trust import Trust
from communis.core import plugins
from communis.core.disk import replace_file
from communis.core.errors import CommunisError
from communis.core.extras import EXTRAS, command
from communis.data.doctor import Finding, examine
from communis.data.fetch import adopt, fetch
from communis.data.own.guess import write_manifest
from communis.data.own.manifest import NAME as MANIFEST
from communis.data.recordings.about import About
from communis.data.recordings.files import home, matching
from communis.data.recordings.source import Recorded
from communis.fleet.gaps import trace_of
from communis.results.report import preview
from communis.run import config as configs

app = typer.Typer(
    help="Datasets: what there is, getting it, checking it, looking at it.", no_args_is_help=True
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, e.g. --set data.window=4 (repeatable)."),
]
ANY_NAME = ("reli11d", "wifi_csi")  # their files may be called anything: not told by a folder
MARKS = {
    "error": ("x", "red"),
    "warning": ("!", "yellow"),
    "note": ("-", "cyan"),
    "ok": ("+", "green"),
}


@app.command("list")
def list_(json: Json = False) -> None:
    """List the datasets, what is installed and where, and the owners' terms."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("dataset", "here", "licence", "what it is"):
        table.add_column(column)
    entries = []
    for name in plugins.names("data"):
        entry = _entry(name)
        entries.append(entry)
        table.add_row(name, entry["here"], entry["licence"], entry["what"])
    if json:
        return say({"event": "data", "home": str(home()), "datasets": entries})
    out.print(table)
    out.print()
    for entry in entries:
        if entry["where"]:
            out.print(f"{entry['dataset']} is in {entry['where']}", soft_wrap=True)
    out.print(f"Datasets are looked for below {home()} ($COMMUNIS_DATA) or in data.folder.")
    out.print("(?): the licence was not checked with the owner.")
    out.print("Get one: communis data fetch NAME. Settings of one: communis data show NAME.")


@app.command()
def show(name: Annotated[str, typer.Argument(help="A dataset; see `data list`.")]) -> None:
    """Show a dataset's terms, its address and its settings."""
    kind, about = _found(name)
    out.print((importlib.import_module(kind.__module__).__doc__ or "").strip() + "\n")
    for label, text in (
        ("licence", about.licence),
        ("cite", about.citation),
        ("address", about.address),
        ("files", f"{about.files} ({about.count})" if about.count else about.files),
    ):
        if text:
            out.print(f"{label}: {text}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("setting", "default", "meaning"):
        table.add_column(column)
    for key, (default, text) in plugins.settings(kind).items():
        table.add_row(f"data.{key}", repr(default), text)
    out.print()
    out.print(table)


@app.command("fetch")
def fetch_(
    name: Annotated[str, typer.Argument(help="A dataset; see `data list`.")],
    source: Annotated[
        Path | None, typer.Option("--from", help="An archive or folder that you have already.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", help="The folder to put it in; else below data home.")
    ] = None,
) -> None:
    """Download a dataset where its owner allows it, or say how to get it.

    An interrupted download is continued by the same command.

    Example: communis data fetch usc_had --from USC-HAD.zip
    """
    _, about = _found(name)
    place = (into or home() / name).absolute()
    with _transfer() as progress:
        if source is None:
            outcome = fetch(name, about, place, progress)
        else:
            outcome = adopt(name, source, about, place, progress)
    out.print(outcome.text)
    if not outcome.found:
        raise typer.Exit(1)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A folder of CSV, Parquet or NPY files.")],
    force: Annotated[bool, typer.Option("--force", help="Write over the manifest there.")] = False,
) -> None:
    """Write a first manifest for your own recordings by looking at the files."""
    path, remarks = write_manifest(folder, force)
    out.print(f"wrote {path}")
    for remark in remarks:
        out.print(f"  - {remark}")
    place = (
        folder if len(folder.parts) > 1 else f"./{folder}"
    )  # not to be taken for a dataset's name
    out.print(f"Read it, mend it, then: communis data doctor {place}")


@app.command()
def doctor(
    what: Annotated[str, typer.Argument(help="A dataset, or a folder with one.")],
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Check files, columns, rates, units, gaps, classes, copies and leaks; say what mends them.

    Exits with 1 if there are errors. Example: communis data doctor usc_had --set data.split=subject
    """
    source = _source(what, settings or [])
    levels = []
    for finding in examine(source):
        levels.append(finding.level)
        _tell(finding, json)
    errors, warnings = levels.count("error"), levels.count("warning")
    if json:
        say({"event": "doctor", "errors": errors, "warnings": warnings})
    else:
        out.print(f"\n{_plural(errors, 'error')}, {_plural(warnings, 'warning')}")
    if errors:
        raise typer.Exit(1)


@app.command("preview")
def preview_(
    what: Annotated[str, typer.Argument(help="A TOML file, a preset, a dataset or a folder.")],
    client: Annotated[int, typer.Option(help="Whose sensors to look at.")] = 0,
    settings: Settings = None,
    cell: Annotated[str, typer.Option(help="The cell of a grid, e.g. severe/moderate.")] = "",
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "preview.html"
    ),
    save: Annotated[
        Path | None, typer.Option(help="Also save the trace, to replay it as fleet.trace.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Draw who has which sensor, when a client's sensors are there, and one of its windows.

    Example: communis data preview watch --client 3 --set fleet.dropout.kind=markov
    --set fleet.dropout.preset=pamap2-severe
    """
    fleet = _config(what, settings or [], cell).make_fleet()
    trace = trace_of(fleet)
    out.print(preview.text(fleet, trace, client))
    replace_file(output, preview.page(fleet, trace, client, f"communis: {what}").encode())
    out.print(f"\npage: {output}")
    if save:
        trace.save(save)
        out.print(f"trace: {save}")


def _found(name: str) -> tuple[type[Any], About]:
    """A source that the user named, and what is to be known of it."""
    plugins.trust_asked(name)
    kind = plugins.find("data", name)
    about = getattr(importlib.import_module(kind.__module__), "ABOUT", None)
    if not isinstance(about, About):
        raise CommunisError(
            f"{name!r}: its module has no ABOUT, as those of communis.data.sources have"
        )
    return kind, about


def _entry(name: str) -> dict[str, Any]:
    module = importlib.import_module(f"communis.data.sources.{name}")
    about: About = module.ABOUT
    text = " ".join((module.__doc__ or "").partition(": ")[2].partition(".\n")[0].split())
    entry = {"dataset": name, "licence": about.licence, "what": text, "where": "", "files": 0}
    kind = plugins.find("data", name)
    if not issubclass(kind, Recorded):
        return {**entry, "here": "generated"}
    if about.extra and not EXTRAS[about.extra].installed:
        return {**entry, "here": f"no: {command(about.extra)}"}
    if name == "own":
        return {**entry, "here": "data.folder"}
    place = kind().place
    try:
        found = len(matching(place, about.files))
    except CommunisError:
        return {**entry, "here": "no"}
    complete = f"{found} of {about.count} files" if about.count else f"{found} files"
    return {**entry, "here": complete, "where": str(place), "files": found}


def _config(what: str, settings: list[str], cell: str) -> configs.Config:
    """A configuration as it is, or one with nothing but a dataset in it."""
    if Path(what).suffix == ".toml" or what in configs.presets():
        return configs.load(what, settings, cell)
    return configs.bare(_data(what), settings)


def _source(what: str, settings: list[str]) -> Any:
    return configs.bare(_data(what), settings).make_source()


def _data(what: str) -> dict[str, Any]:
    """The `[data]` table for a dataset's name, or for a folder that holds one."""
    folder = Path(what)
    if what in plugins.names("data") or (":" in what and not folder.exists()):
        plugins.trust_asked(what)
        return {"name": what}
    if not folder.is_dir():
        hint = plugins.nearest(what, plugins.names("data"))
        raise CommunisError(f"{what}: neither a dataset{hint} nor a folder; see `data list`")
    if (folder / MANIFEST).exists():
        return {"name": "own", "folder": what}
    for name in plugins.names("data"):
        about: About = importlib.import_module(f"communis.data.sources.{name}").ABOUT
        if name not in ANY_NAME and "/" in about.files and _holds(folder, about):
            return {"name": name, "folder": what}
    raise CommunisError(
        f"{folder}: no dataset that is known, and no {MANIFEST}: for your own recordings run "
        f"`communis data init {folder}`"
    )


def _holds(folder: Path, about: About) -> bool:
    try:
        return bool(matching(folder, about.files))
    except CommunisError:
        return False


def _tell(finding: Finding, json: bool) -> None:
    if json:
        return say({"event": "finding", **vars(finding)})
    mark, colour = MARKS[finding.level]
    out.print(f"{mark} ", style=colour, end="")
    out.print(f"{finding.about}: {finding.text}", soft_wrap=True)
    if finding.fix:
        out.print(f"    {finding.fix}", soft_wrap=True)


def _plural(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


class _transfer:  # noqa: N801 - a context manager that reads like a function
    """A progress bar for downloads and archives, one line per file."""

    def __enter__(self) -> Callable[[str, int, int], None]:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=err,
        )
        self._tasks: dict[str, Any] = {}
        self._bar.start()
        return self._step

    def _step(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total or None)
        self._bar.update(self._tasks[what], completed=done, total=total or None)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
