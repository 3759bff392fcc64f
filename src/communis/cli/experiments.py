"""The commands run, compare, resume and report, done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from communis.cli import jobs
from communis.cli.jobs import Job
from communis.core.errors import CommunisError
from communis.core.selection import Select
from communis.results.compare import collect
from communis.results.finished import settings_in
from communis.run import config as configs


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
    trust: bool,
    quiet: bool,
    json: bool,
) -> None:
    config = configs.load(source, [*(changes or ()), *(settings or ())], cell)
    default = "-".join([config.name, *config.cell.values(), config.label])
    folder = jobs.place(into, name) if name else jobs.free(jobs.place(into, default))
    if (folder / "config.toml").exists():
        raise CommunisError(
            f"{folder} holds a run already: continue it with `communis resume {folder}`, "
            "or choose another --name"
        )
    jobs.carry_out([Job(config, folder, source)], folder, metric, quiet, json)
    jobs.conclude([folder], folder, metric, select, target or (), config.name, quiet, json)


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
    trust: bool,
    quiet: bool,
    json: bool,
) -> None:
    words = methods or ()
    changes = [word for word in words if "=" in word]
    named = [word for word in words if "=" not in word]
    found = configs.cells(on, [*changes, *(settings or ())], named)
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


def resume(
    folder: Path,
    metric: str,
    select: Select | None,
    target: list[float] | None,
    trust: bool,
    quiet: bool,
    json: bool,
) -> None:
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


def report(
    folders: list[Path],
    output: Path,
    metric: str,
    select: Select | None,
    target: list[float] | None,
    json: bool,
) -> None:
    title = ", ".join(map(str, folders[:3])) + (
        f" and {len(folders) - 3} more" * (len(folders) > 3)
    )
    jobs.show(collect(folders), output, metric, select, target or (), title, quiet=False, json=json)
