"""Texts of a run folder that are live HTML: shown as text on the page and in the terminal, or
refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from communis.run.folder import RunFolder
from tests.faults.assault.case import Case
from tests.faults.assault.experiment import command, refusal
from tests.faults.assault.home import place
from tests.faults.assault.outcome import SURVIVED, Outcome
from tests.faults.test_pages import places
from tests.unit.folders import forge_rows, rows_of

LIMIT = 60.0
MARK = "zq7"  # nobody else writes this
POISONS = (
    f"<script>{MARK}(1)</script>",
    f"<img src=x onerror={MARK}(1)>",
    f'"><svg onload={MARK}(1)>',
    f"' onmouseover='{MARK}(1)",
    f'" onfocus="{MARK}(1)" autofocus x="',
    f"</title></style></textarea><iframe src=javascript:{MARK}(1)>",
    f"<a href='javascript:{MARK}(1)'>x</a>",
    f"--><base href=//{MARK}.example>",
    f"]]><{MARK}>",
    f"&lt;{MARK}&gt;<{MARK}>",
    f"</text></svg><{MARK} onclick=x>",
    f"url(javascript:{MARK})",
    f"\u202e<{MARK}>",
)


class Live(HTMLParser):
    """Finds what a browser would take for more than text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            # A label is read aloud, whatever it says.
            acts = name != "aria-label" and "javascript:" in (value or "")
            if name.startswith("on") or MARK in name or acts:
                self.found.append(f"<{tag} {name}={value!r}>")
        if MARK in tag or tag in ("script", "iframe", "base", "img", "object", "embed", "form"):
            self.found.append(f"<{tag}>")

    def handle_comment(self, data: str) -> None:
        if MARK in data:
            self.found.append(f"<!--{data}-->")


def attempt(case: Case) -> Outcome:
    rng = case.rng
    folder = case.scratch / "run"
    shutil.copytree(place(case.home, "whole", case.name), folder)
    poison = POISONS[int(rng.integers(len(POISONS)))]
    kinds = (".json", ".jsonl", ".toml", ".parquet", ".arrows")
    files = sorted(p for p in folder.rglob("*") if p.suffix in kinds)
    path = files[int(rng.integers(len(files)))]
    where = _poison(path, poison, rng)
    page = case.scratch / "page.html"
    said = command(case.scratch, "report", str(folder), "-o", str(page)).wait()
    what = f"{case.name}, {poison!r}\n{path.relative_to(folder)}, {where}"
    outcome = refusal(said, path.name, str(path.parent))
    if outcome is not None:
        return Outcome(outcome.result, f"{what}: {outcome.detail}") if outcome.harmful else outcome
    live = Live()
    live.feed(page.read_text("utf-8"))
    return Outcome("escape", f"{what}: {live.found[:3]}") if live.found else SURVIVED


def _poison(path: Path, poison: str, rng: Any) -> str:
    """Puts it into one of the texts of a file; where that is."""
    if path.suffix in (".parquet", ".arrows"):
        return _poison_table(path, poison, rng)
    if path.suffix == ".toml":
        return _poison_line(path, poison, rng)
    lines = path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else None
    at = int(rng.integers(len(lines))) if lines else 0
    value = json.loads(lines[at] if lines else path.read_text("utf-8"))
    value.pop("digest", None)  # as one who forges would
    known = list(places(value))
    place = known[int(rng.integers(len(known)))]
    text = json.dumps(_with(value, place, poison))
    if lines:
        lines[at] = text
        text = "\n".join(lines)
    path.write_text(text + "\n", "utf-8")
    return str(place)


def _with(value: Any, path: Sequence[Any], poison: str) -> Any:
    """The value with the poison in that place; a last step of None is the key itself."""
    if not path:
        return poison
    first, *rest = path
    if rest == [None]:
        return {poison if key == first else key: inner for key, inner in value.items()}
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[first] = _with(copy[first], rest, poison)
    return copy


def _poison_table(path: Path, poison: str, rng: Any) -> str:
    """One text of a column, or all."""
    alone = path.suffix == ".parquet"
    last = 0 if alone else RunFolder(path.parent).records()[-1].round
    table = pq.read_table(path) if alone else rows_of(path, last)
    texts = [f.name for f in table.schema if pa.types.is_string(f.type)]
    if not texts:
        return "no text"
    name = texts[int(rng.integers(len(texts)))]
    values = table[name].to_pylist()
    chosen = values[int(rng.integers(len(values)))]
    values = [poison if value == chosen else value for value in values]
    at = table.column_names.index(name)
    changed = table.set_column(at, name, pa.array(values, pa.string()))
    if alone:
        pq.write_table(changed, path, write_page_checksum=True)
    else:
        forge_rows(path, last, changed)
    return f"{name} {chosen!r}"


def _poison_line(path: Path, poison: str, rng: Any) -> str:
    """A text of a configuration."""
    lines = path.read_text("utf-8").splitlines()
    texts = [i for i, line in enumerate(lines) if '= "' in line]
    at = texts[int(rng.integers(len(texts)))]
    key = lines[at].partition("=")[0].strip()
    lines[at] = f"{key} = {json.dumps(poison)}"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return key
