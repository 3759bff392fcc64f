"""A file of a run folder is damaged; then the run is reported on, judged and resumed.

A command shows what it would have shown, or refuses and names the file. `config.toml` is meant to
be edited, so that a change of it which is a valid configuration cannot be told from a wish: for
that file only crashes and hangs count.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from communis.results.verdict import OLD
from communis.run.folder import BEST
from communis.run.learned import FOLDER, INDEX
from tests.faults.assault.case import Case
from tests.faults.assault.experiment import (
    EXPERIMENTS,
    LogToStderr,
    Look,
    again,
    different,
    look,
    numbers,
    refusal,
)
from tests.faults.assault.home import expected, place, seen
from tests.faults.assault.outcome import REFUSED, SURVIVED, Outcome
from tests.faults.hostile_configs import damaged
from tests.faults.test_damage import cut, flipped, gone

LIMIT = 120.0


def zeroed(path: Path, rng: np.random.Generator) -> None:
    """A block of it is zeros, as after a bad sector."""
    data = bytearray(path.read_bytes())
    at = int(rng.integers(len(data)))
    length = min(int(rng.integers(1, 513)), len(data) - at)
    data[at : at + length] = bytes(length)
    path.write_bytes(bytes(data))


def swapped(path: Path, rng: np.random.Generator) -> None:
    """It has the content of its neighbour, as after a mistake with a backup."""
    others = [p for p in sorted(path.parent.iterdir()) if p.suffix == path.suffix and p != path]
    if not others:
        return flipped(path, rng)
    path.write_bytes(others[int(rng.integers(len(others)))].read_bytes())


def doubled(path: Path, rng: np.random.Generator) -> None:
    """Its end comes twice."""
    data = path.read_bytes()
    path.write_bytes(data + data[int(rng.integers(len(data))) :])


def edited(path: Path, rng: np.random.Generator) -> None:
    """As a person, or another version, might have written it."""
    with_others = path.parent / "alone"
    with_others.mkdir()
    alone = with_others / path.name
    alone.write_bytes(path.read_bytes())
    damaged(with_others, rng)
    path.unlink()
    if alone.is_dir():
        path.mkdir()
    elif alone.exists():
        path.write_bytes(alone.read_bytes())
    shutil.rmtree(with_others)


WAYS: tuple[Callable[[Path, np.random.Generator], None], ...] = (
    flipped,
    flipped,
    cut,
    gone,
    zeroed,
    swapped,
    doubled,
    edited,
)


def attempt(case: Case) -> Outcome:
    rng = case.rng
    state = ("whole", "half")[int(rng.integers(2))]
    folder = case.scratch / "run"
    shutil.copytree(place(case.home, state, case.name), folder)
    others = [place(case.home, state, name) for name in EXPERIMENTS if name != case.name]
    hurt, way = _hurt(folder, others, rng)
    before = seen(case.home, state, case.name)
    outcome = _shown(look(folder, case.scratch), before, hurt, folder)
    if not outcome.harmful:
        after = _resumed(case, folder, hurt)
        outcome = after if after.harmful or outcome == SURVIVED else outcome
    hurt_file = hurt.relative_to(folder)
    what = f"{case.name}, {state}\n{hurt_file} {way}: {outcome.detail}"
    return Outcome(outcome.result, what) if outcome.harmful else outcome


def _hurt(folder: Path, others: Sequence[Path], rng: np.random.Generator) -> tuple[Path, str]:
    """Damages a file, or replaces it by that of another run. Rooms are drawn first: tables are
    many, and what matters most is not."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
    rooms: dict[Path, list[Path]] = {}
    for file in files:
        rooms.setdefault(file if file.parent == folder else file.parent, []).append(file)
    room = list(rooms.values())[int(rng.integers(len(rooms)))]
    hurt = room[int(rng.integers(len(room)))]
    way = WAYS[int(rng.integers(len(WAYS)))]
    same_name = [other / hurt.relative_to(folder) for other in others]
    foreign = [path for path in same_name if path.is_file()]
    if foreign and rng.random() < 1 / len(WAYS):
        hurt.write_bytes(foreign[int(rng.integers(len(foreign)))].read_bytes())
        return hurt, "of another run"
    way(hurt, rng)
    return hurt, way.__name__


def _names(hurt: Path, folder: Path) -> list[str]:
    """What a refusal must name one of: the file, or the room that it is in."""
    return [hurt.name] if hurt.parent == folder else [hurt.name, str(hurt.parent)]


def _shown(found: Look, before: Look, hurt: Path, folder: Path) -> Outcome:
    """What is shown of the folder is what was shown before, or refused."""
    refused = False
    pairs: list[tuple[LogToStderr, LogToStderr]] = [
        (found.report, before.report),
        (found.verdict, before.verdict),
    ]
    for said, known in pairs:
        outcome = refusal(said, *_names(hurt, folder))
        if outcome is None and said != known and OLD in said.text:
            outcome = REFUSED
        if outcome is not None and outcome.harmful:
            return outcome
        refused |= outcome is not None
        if outcome is None and said.text != known.text and hurt.name != "config.toml":
            return Outcome("silent difference", _first_difference(said.text, known.text))
    # A page goes on without the predictions of a damaged file, and says so.
    kept = hurt.name == INDEX or hurt.parent.name == FOLDER
    refused |= kept and found.page.count(hurt.name) > before.page.count(hurt.name)
    if not refused and found.page != before.page and hurt.name != "config.toml":
        return Outcome("silent difference", f"page: {_first_difference(found.page, before.page)}")
    return REFUSED if refused else SURVIVED


def _first_difference(found: str, known: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(found, known, strict=False)) if a != b), 0)
    return f"{known[max(0, at - 60) : at + 60]!r} became {found[max(0, at - 60) : at + 60]!r}"


def _resumed(case: Case, folder: Path, hurt: Path) -> Outcome:
    said = again(folder, case.experiment, case.scratch)
    outcome = refusal(said, *_names(hurt, folder))
    if outcome is not None:
        return outcome
    if hurt.name == "config.toml":
        return SURVIVED
    whole = expected(case.home, case.name)
    own = str(hurt.relative_to(folder))
    other = [name for name in different(numbers(folder), whole) if name != own]
    if other and hurt.name.startswith(BEST) and said.names(hurt.name):
        return REFUSED  # the run goes on without the best round, and says so
    if other:
        return Outcome("silent difference", f"after resuming: {', '.join(other[:5])}")
    if numbers(folder).get(own) == whole.get(own):
        return SURVIVED
    return _still_hurt(case, folder, hurt)


def _still_hurt(case: Case, folder: Path, hurt: Path) -> Outcome:
    """Resuming needed the file for nothing: then whoever reads it must see that it is damaged, or
    show what is shown of a whole run."""
    found = look(folder, case.scratch)
    for said in (found.report, found.verdict):
        outcome = refusal(said, *_names(hurt, folder))
        if outcome is not None:
            return outcome
    if OLD in found.verdict.text:
        return REFUSED
    if found.results != seen(case.home, "whole", case.name).results:
        return Outcome("silent difference", "the results after resuming")
    return SURVIVED
