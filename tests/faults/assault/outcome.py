"""What came of a fault, the file in which that is kept, and the table of it."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Result = Literal[
    "survived",  # the numbers, or the page, are what they would have been
    "refused",  # one line that names the file, the client or the key
    "silent difference",  # other numbers, and nobody says so
    "traceback",  # also: a process that crashed, or a run that another's fault has stopped
    "nameless refusal",  # one that does not say of what
    "escape",  # something was written, shown or run where it must not be
    "hang",  # no end within the time limit
]
HARM = get_args(Result)[2:]


@dataclass(frozen=True)
class Outcome:
    result: Result
    detail: str = ""  # of harm: what happened

    @property
    def harmful(self) -> bool:
        return self.result in HARM


SURVIVED = Outcome("survived")
REFUSED = Outcome("refused")


class Results:
    """A file of JSON lines, written as the results come: a crash of the assault loses nothing but
    the slices that are under way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def tried(self, kind: str, first: int, seconds: float, outcomes: Counter[str]) -> None:
        """A slice of cases, `first` the number of the first one."""
        self._add({"kind": kind, "first": first, "seconds": round(seconds, 2), **outcomes})

    def harm(self, kind: str, seed: int, number: int, outcome: Outcome) -> None:
        about = {"harm": kind, "seed": seed, "case": number}
        self._add({**about, "result": outcome.result, "detail": outcome.detail[-4000:]})

    def _add(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read(path: Path) -> dict[str, Counter[str]]:
    """By kind of fault: how often what came of it. A last line cut short is passed over."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in _lines(path):
        if "kind" in line:
            found[line["kind"]].update({key: line[key] for key in get_args(Result) if key in line})
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError:
            if number < len(lines):
                raise


def table(found: dict[str, Counter[str]], order: Iterable[str]) -> str:
    """Markdown."""
    columns = ("survived", "refused", *HARM)
    heads = ("fault", "tried", "survived", "refused by name", *(f"{name}s" for name in HARM))
    rows = [heads, ("---", *["---:"] * (len(heads) - 1))]
    for kind in order:
        if kind in found:
            counts = found[kind]
            rows.append(
                (kind, *(f"{n:,}" for n in (counts.total(), *(counts[c] for c in columns))))
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def causes(path: Path) -> str:
    """What did harm, each cause with its number of cases and the command that repeats the first."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in _lines(path):
        if "harm" in line:
            found[line["harm"], line["result"], signature(line["detail"])].append(line)
    said = []
    for (kind, result, cause), lines in found.items():
        said.append(f"{len(lines)} x {kind}, {result}: ... {cause}")
        said.append(f"    {repeat(kind, lines[0]['seed'], lines[0]['case'])}")
    return "\n".join(said)


def signature(detail: str) -> str:
    """The end of what was said, without what differs from case to case: numbers, folders, and the
    first line of several."""
    said = detail.partition("\n")[2] or detail
    text = re.sub(r"\S*/assault-\S*", "FILE", " ".join(said.split()))
    return re.sub(r"\d+", "N", text)[-160:]


def repeat(kind: str, seed: int, number: int) -> str:
    other = f" --seed {seed}" if seed else ""
    return f"python -m tests.faults.assault --only {kind} --case {number}{other}"


def harm(found: dict[str, Counter[str]]) -> int:
    """How many cases did harm."""
    return sum(counts[result] for counts in found.values() for result in HARM)
