"""The implementation of the commands `data fetch`, `init`, `doctor` and `preview`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from communis.cli.console import err, out, say
from communis.core import plugins
from communis.core.disk import replace_file
from communis.core.errors import CommunisError, visible
from communis.core.streams import Streams
from communis.data.doctor import Clients, Finding, examine
from communis.data.fetch import adopt, fetch
from communis.data.own.guess import write_manifest
from communis.data.own.manifest import NAME as MANIFEST
from communis.data.recordings.about import About
from communis.data.recordings.files import home, matching
from communis.data.recordings.windows import Windows
from communis.fleet.gaps import trace_of
from communis.results.report import preview
from communis.run import config as configs
from communis.run import presets

ANY_NAME = ("reli11d", "wifi_csi")  # any file names are allowed, so a folder does not identify them
MARKS = {
    "error": ("x", "red"),
    "warning": ("!", "yellow"),
    "note": ("-", "cyan"),
    "ok": ("+", "green"),
}


def fetch_(name: str, source: Path | None, into: Path | None) -> None:
    about = _about(name)
    place = (into or home() / name).absolute()
    with _transfer() as progress:
        if source is None:
            outcome = fetch(name, about, place, progress)
        else:
            outcome = adopt(name, source, about, place, progress)
    out.print(outcome.text)
    if not outcome.found:
        raise typer.Exit(1)


def init(folder: Path, force: bool, anonymous: bool) -> None:
    with _counted() as progress:
        path, remarks = write_manifest(folder, force, anonymous, progress)
    out.print(f"wrote {path}")
    for remark in remarks:
        out.print(f"  - {visible(remark)}", markup=False)
    # With "./", a folder cannot be taken for the name of a dataset.
    place = folder if len(folder.parts) > 1 else f"./{folder}"
    out.print(f"Read and correct it, then run: communis data doctor {place}")


def doctor(what: str, settings: list[str] | None, cell: str, json: bool, trust: bool) -> None:
    config = _config(what, settings or [], cell)
    streams = Streams(config.seed)
    # A dataset alone has no clients yet.
    described = Path(what).suffix == ".toml" or what in presets.names()

    def clients_of(windows: Windows) -> Clients:
        client_of = config.partition.clients_of(windows, streams)
        return Clients(client_of, config.partition.names_of(windows, client_of))

    levels = []
    for finding in examine(config.make_source(), streams, clients_of if described else None):
        levels.append(finding.level)
        _print_finding(finding, json)
    errors = levels.count("error")
    warnings = levels.count("warning")
    if json:
        say({"event": "doctor", "errors": errors, "warnings": warnings})
    else:
        out.print(f"\n{_plural(errors, 'error')}, {_plural(warnings, 'warning')}")
    if errors:
        raise typer.Exit(1)


def preview_(
    what: str,
    client: int,
    settings: list[str] | None,
    cell: str,
    output: Path,
    save: Path | None,
    trust: bool,
) -> None:
    fleet = _config(what, settings or [], cell).make_fleet()
    trace = trace_of(fleet)
    out.print(preview.text(fleet, trace, client))
    replace_file(output, preview.page(fleet, trace, client, f"communis: {what}").encode())
    out.print(f"\npage: {output}")
    if save:
        trace.save(save)
        out.print(f"trace: {save}")


def _about(name: str) -> About:
    """The description of a source that the user named."""
    plugins.trust_asked(name)
    kind = plugins.find("data", name)
    about = getattr(importlib.import_module(kind.__module__), "ABOUT", None)
    if not isinstance(about, About):
        raise CommunisError(
            f"{name!r}: its module has no constant ABOUT, as modules of communis.data.sources have"
        )
    return about


def _config(what: str, settings: list[str], cell: str) -> configs.Config:
    """The configuration of a file or preset, or one that holds only a dataset."""
    if Path(what).suffix == ".toml" or what in presets.names():
        return configs.load(what, settings, cell)
    return configs.bare(_data(what), settings)


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
        f"{folder}: not a known dataset, and it has no {MANIFEST}: for your own recordings run "
        f"`communis data init {folder}`"
    )


def _holds(folder: Path, about: About) -> bool:
    try:
        return bool(matching(folder, about.files))
    except CommunisError:
        return False


def _print_finding(finding: Finding, json: bool) -> None:
    if json:
        return say({"event": "finding", **vars(finding)})
    mark, colour = MARKS[finding.level]
    out.print(f"{mark} ", style=colour, end="")
    out.print(f"{finding.about}: {finding.text}", soft_wrap=True)
    if finding.fix:
        out.print(f"    {finding.fix}", soft_wrap=True)


def _plural(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


@contextmanager
def _counted() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar that counts files."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def step(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield step


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
