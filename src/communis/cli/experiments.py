"""The implementation of the commands `run`, `compare`, `resume` and `report`."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from pathlib import Path

import typer

from communis.cli.console import err
from communis.cli.jobs import EngineName, Means, View, carry_out, conclude, show
from communis.core.errors import CommunisError
from communis.core.selection import Select
from communis.core.start_up import STOPPED
from communis.results.compare import collect
from communis.results.experiment import Results
from communis.results.finished import settings_in
from communis.results.report import paper
from communis.run import config as configs
from communis.run.cost import shard_of
from communis.run.jobs import (
    Home,
    Job,
    begun_in,
    claimed,
    comparison,
    folder_for,
    free_folder,
    prepare,
    refuse_changed_files,
)


def run(
    source: str,
    changes: list[str] | None,
    settings: list[str] | None,
    cell: str,
    into: Path,
    name: str,
    metric: str,
    select: Select | None,
    target: list[float] | None,
    start: Path | None,
    trust: bool,
    quiet: bool,
    json: bool,
) -> None:
    config = configs.load(source, [*(changes or ()), *(settings or ()), *_starting(start)], cell)
    default = "-".join([config.name, *config.cell.values(), config.label])
    folder = folder_for(into, name) if name else free_folder(folder_for(into, default))
    if (folder / "config.toml").exists():
        raise CommunisError(
            f"{folder} holds a run already: continue it with `communis resume {folder}`, "
            "or choose another --name"
        )
    view = View(config.name, metric, select, target or (), quiet, json)
    jobs = [Job(config, folder, source)]
    home = Home(folder)
    _exit_if_stopped(carry_out(jobs, home, view))
    conclude(jobs, home, view)


def compare(
    methods: list[str] | None,
    on: str,
    seeds: int,
    settings: list[str] | None,
    cell: list[str] | None,
    into: Path,
    name: str,
    metric: str,
    select: Select | None,
    target: list[float] | None,
    fresh: bool,
    start: Path | None,
    jobs: int | None,
    shard: str,
    engine: EngineName,
    address: str,
    trust: bool,
    quiet: bool,
    json: bool,
) -> None:
    words = methods or ()
    changes = [word for word in words if "=" in word]
    named = [word for word in words if "=" not in word]
    by_cell = configs.load_cells(on, [*changes, *(settings or ()), *_starting(start)], named)
    chosen = [configs.pick(by_cell, name, on) for name in dict.fromkeys(cell or by_cell)]
    base = chosen[0]
    if not base.compare:
        raise CommunisError(
            f"{on}: no methods to compare: name them, as in `communis compare fedavg local --on "
            f'{on}`, or list them in the file, as in compare = ["fedavg", "local"]'
        )
    home = folder_for(into, name or f"{base.name}-compare")
    planned = comparison(chosen, seeds, home, on)
    view = View(base.name, metric, select, target or (), quiet, json)
    own = _of_shard(planned, shard)
    with claimed(home, shared=bool(shard)) as claim:
        prepare(own, fresh)
        place = Home(home, claim, shard, planned)
        _exit_if_stopped(carry_out(own, place, view, Means(jobs or 0, engine, address)))
    conclude(own, place, view)


def resume(
    folder: Path,
    settings: list[str] | None,
    metric: str,
    select: Select | None,
    target: list[float] | None,
    jobs: int | None,
    shard: str,
    engine: EngineName,
    address: str,
    trust: bool,
    quiet: bool,
    json: bool,
) -> None:
    for path in sorted(folder.rglob("config.toml")):
        settings_in(path.parent)  # a file that lost its settings would be read as the default
    planned = begun_in(folder, settings or ())
    view = View(planned[0].config.name, metric, select, target or (), quiet, json)
    own = _of_shard(planned, shard)
    with claimed(folder, shared=bool(shard)) as claim:
        refuse_changed_files(own)
        place = Home(folder, claim, shard, planned)
        _exit_if_stopped(carry_out(own, place, view, Means(jobs or 0, engine, address)))
    conclude(own, place, view)


def report(
    folders: list[Path],
    output: Path,
    csv: Path | None,
    latex: Path | None,
    figures: Path | None,
    metric: str,
    select: Select | None,
    target: list[float] | None,
    json: bool,
) -> None:
    title = ", ".join(map(str, folders[:3]))
    if len(folders) > 3:
        title += f" and {len(folders) - 3} more"
    view = View(title, metric, select, target or (), json=json)
    runs = collect(folders)
    show(runs, output, view)
    if csv is None and latex is None and figures is None:
        return
    results = Results.of(runs, metric, select, target or ())
    if csv is not None:
        _written("tables", paper.write_tables(results, csv), csv)
    if latex is not None:
        _written("table", [paper.write_latex(results, latex)], latex)
    if figures is not None:
        _written("figures", paper.write_figures(results, figures, title), figures)


def _written(what: str, paths: Sequence[Path], where: Path) -> None:
    """Says which files a report for a paper has."""
    number = f" ({len(paths)} files)" if len(paths) > 1 else ""
    err.print(f"{what}: {where}{number}", soft_wrap=True)


def _starting(start: Path | None) -> list[str]:
    """Returns the setting by which models begin with those of a run."""
    return [] if start is None else [f"fleet.start={dumps(str(start), ensure_ascii=False)}"]


def _of_shard(jobs: Sequence[Job], shard: str) -> list[Job]:
    """Returns the jobs of a shard such as 2/4; all of them without one."""
    if not shard:
        return list(jobs)
    number, _, of = shard.partition("/")
    if not (number.isdecimal() and of.isdecimal()):
        raise CommunisError(f"--shard {shard}: expected I/N, as in 2/4")
    return shard_of(jobs, int(number), int(of))


def _exit_if_stopped(done: bool) -> None:
    if not done:
        raise typer.Exit(STOPPED)
