"""The commands `data list`, `show`, `fetch`, `init`, `doctor` and `preview`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from communis.cli.console import Json, Stacked, out, say
from communis.cli.folders import refuse_absent
from communis.cli.help import Commands
from communis.cli.lazily import done_by
from communis.cli.listing import Listing, begins
from communis.cli.names import described, key_table
from communis.cli.trust import Trust
from communis.core import plugins
from communis.core.errors import CommunisError
from communis.core.extras import EXTRAS, command
from communis.run import keys

app = Commands(cls=Listing, help="Datasets: list, fetch, check and preview them.")
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, e.g. --set data.window=4 (repeatable)."),
]


def complete_data(typed: str) -> list[str]:
    return begins(plugins.names("data"), typed)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the datasets, their licences and where they are installed."""
    # Imported here because it needs numpy, which no other list does.
    from communis.data.recordings.files import home

    entries = [_entry(name, listed) for name, listed in keys.entries("data").items()]
    if json:
        return say({"event": "data", "home": str(home()), "datasets": entries})
    table = Stacked("dataset", "here", "licence", "what it is", text=("licence", "what it is"))
    for entry in entries:
        table.add_row(entry["dataset"], entry["here"], entry["licence"], entry["what"])
    out.print(table)
    out.print()
    for entry in entries:
        if entry["where"]:
            out.print(f"{entry['dataset']} is in {entry['where']}", soft_wrap=True)
    out.print(f"Datasets are searched below {home()} ($COMMUNIS_DATA) or in data.folder.")
    out.print("(?): the licence was not checked with the owner.")
    out.print("Get one: communis data fetch NAME. Settings of one: communis data show NAME.")


def _entry(name: str, listed: keys.Schema) -> dict[str, Any]:
    from communis.data.recordings.files import home, matching

    about = keys.definition("data", name)["x-about"]
    entry = {"dataset": name, "licence": about["licence"], "what": listed["description"]}
    entry |= {"where": "", "files": 0}
    if not listed["x-recorded"]:
        return {**entry, "here": "generated"}
    extra = about["extra"]
    if extra and not EXTRAS[extra].installed:
        return {**entry, "here": f"no: {command(extra)}"}
    if name == "own":
        return {**entry, "here": "data.folder"}
    place = home() / name
    try:
        count = len(matching(place, about["files"]))
    except CommunisError:
        return {**entry, "here": "no"}
    expected = about["count"]
    here = f"{count} of {expected} files" if expected else f"{count} files"
    return {**entry, "here": here, "where": str(place), "files": count}


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A dataset; see `data list`.", autocompletion=complete_data)
    ],
) -> None:
    """Show the licence, the address and the settings of a dataset."""
    table = described("data", "data", name)
    about = table.get("x-about", {})
    out.print(f"{table['description']}\n")
    count = f" ({about['count']})" if about.get("count") else ""
    for label, text in (
        ("licence", about.get("licence")),
        ("cite", about.get("citation")),
        ("address", about.get("address")),
        ("files", f"{about['files']}{count}" if about.get("files") else ""),
    ):
        if text:
            out.print(f"{label}: {text}")
    out.print()
    out.print(key_table(table, "data"))


@app.command("fetch")
@done_by("datasets")
def fetch_(
    name: Annotated[
        str, typer.Argument(help="A dataset; see `data list`.", autocompletion=complete_data)
    ],
    source: Annotated[
        Path | None, typer.Option("--from", help="An archive or folder that you already have.")
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", help="The folder to put it in; default: below the data folder."),
    ] = None,
) -> None:
    """Download a dataset, or explain how to get it.

    A dataset is downloaded where its owner allows it. The same command continues an interrupted
    download.

    Example: communis data fetch usc_had --from USC-HAD.zip
    """


@app.command()
@done_by("datasets")
def init(
    folder: Annotated[Path, typer.Argument(help="A folder of CSV, Parquet or NPY files.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing manifest.")] = False,
    anonymous: Annotated[
        bool,
        typer.Option("--anonymous", help="Results show numbers, not the subjects' own names."),
    ] = False,
) -> None:
    """Write a first manifest for your own recordings.

    It states what the files show, and marks every guess with CHECK.
    """
    refuse_absent(folder)


@app.command()
@done_by("datasets")
def doctor(
    what: Annotated[
        str, typer.Argument(help="A TOML file, a preset, a dataset or a folder that holds one.")
    ],
    settings: Settings = None,
    cell: Annotated[str, typer.Option(help="The cell of a grid, e.g. severe/moderate.")] = "",
    json: Json = False,
    trust: Trust = False,
) -> None:
    """Check a dataset and name the remedy of every problem.

    Checked are files, columns, rates, units, gaps, classes, copies and leaks; of a TOML file the
    split and the clients that it describes. The exit code is 1 if there are errors.

    Example: communis data doctor usc_had --set data.split=subject
    """


@app.command("preview")
@done_by("datasets")
def preview_(
    what: Annotated[str, typer.Argument(help="A TOML file, a preset, a dataset or a folder.")],
    client: Annotated[int, typer.Option(help="The client whose sensors are drawn.")] = 0,
    settings: Settings = None,
    cell: Annotated[str, typer.Option(help="The cell of a grid, e.g. severe/moderate.")] = "",
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "preview.html"
    ),
    save: Annotated[
        Path | None, typer.Option(help="Also save the trace; fleet.trace replays it.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Draw which client has which sensor, and when.

    The page shows all clients, when the sensors of one client are present, and one of its windows.

    Example: communis data preview watch --client 3 --set fleet.dropout.kind=markov
    --set fleet.dropout.preset=pamap2-severe
    """
