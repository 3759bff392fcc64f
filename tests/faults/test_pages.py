"""A run folder of a stranger puts nothing live into a report, and steers no terminal."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from html.parser import HTMLParser
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from communis import CommunisError
from communis.cli.main import app, main
from communis.cli.terminal import Display, out, results
from communis.core.errors import visible
from communis.exchange.messages import Link
from communis.results.compare import Finished, collect
from communis.results.report.labelled_points import Point, point_chart
from communis.results.report.page import render, write
from communis.results.wording.scores import default_metric
from communis.results.wording.warnings import warnings
from communis.run.folder import RunFolder
from tests.faults.test_damage import run
from tests.unit import folders, relief_like
from tests.unit.results.report import (
    test_attack,
    test_graph,
    test_latent,
    test_privacy,
    test_report,
    test_similarity,
)

COUNTS = ("hits", "said")  # metrics that pooled scores are made of, and that nobody is shown
MARK = "zz9"  # in every payload, so that it is found again
PAYLOADS = (
    f"<script>alert('{MARK}')</script>",
    f'"><img src=x onerror=alert({MARK})>',
    f"'><svg onload={MARK}>",
    f"' onmouseover='{MARK}",
    f"</style><b onclick={MARK}>",
    f"</title></text></svg><iframe srcdoc={MARK}>",
    f"javascript:alert({MARK})",
    f"]]><i {MARK}=1>",
    f"{{0}}{{x.__class__}}%s%(a)s{{{MARK}!r}}",
    f"<!--{MARK}",
    f"&lt;u&gt;{MARK}&#60;u&#62;",
    f"\x1b]0;{MARK}\x07\x1b[31m\x9b1m\r[red][/red][link=http://x]:skull:\u202e",
)
PLACES = 40  # poisoned in one kind of folder, at most


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shape: set[tuple[str, str]] = set()  # tags with the names of their attributes
        self.values: list[str] = []  # of attributes that a browser acts upon
        self.texts: list[str] = []
        self.styles: list[str] = []
        self._in_style = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"
        self.shape |= {(tag, ""), *((tag, name) for name, _ in attrs)}
        self.values += [value or "" for name, value in attrs if name != "aria-label"]

    def handle_data(self, data: str) -> None:
        (self.styles if self._in_style else self.texts).append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")


def graph(home: Path) -> None:
    links = [Link(0, 1, 100, 5), Link(1, 0, 100, 5), Link(1, 2, 300, 5)]
    about = {"attackers": [2], "links": links, "distances": (2.0, 1.0)}
    test_graph.folder(home, [(0, 1), (1, 2)], 3, parts=[[0, 1], [2]], **about)


def attack(home: Path) -> None:
    scores = {0: 0.5, 1: 0.5, 2: 0.5}
    test_attack.write(home, {**scores, 3: 0.6}, [4], rule="median", more='consensus = "x"')
    test_attack.write(home, {**scores, 3: 0.6, 4: 0.7}, rule="median")


def similarity(home: Path) -> None:
    log = [test_similarity.flat(), test_similarity.flat()]
    models = ("cnn", "tiny")
    found = test_similarity.folder(home, log, models=models, settings="by_model = true")
    test_report.trace(3).save(found.path / "availability.parquet")


def latent(home: Path) -> None:
    names = ("distance", "separation", "target_separation", "pull")
    one = [row for name in names for row in test_latent.noted({0: 1.0, 1: 2.0}, name)]
    test_latent.write(home / "a", [one, one])


def grid(home: Path) -> None:
    test_report.grid_of(home, clients=2, seeds=1, rounds=1)
    for path in home.glob("*-severe"):
        shutil.rmtree(path)


def clock(home: Path) -> None:
    relief_like.write(home, ("coverage_40", "fedavg", "relief"), seeds=1, rounds=3)


def alone(home: Path) -> None:
    """Scores of sensors by their owners; classes; refusals that are shown."""
    relief_like.write(home, ("relief",), seeds=1, rounds=3, whole=False)
    history = {"test.macro_f1": [{0: 0.5}], "test.f1.0": [{0: 0.5}], "test.f1.1": [{0: 0.4}]}
    fleet = {
        "labels": ["sit", "walk"],
        "notes": ["a warning"],
        "clients": [{"id": 0, "sensors": ["acc"], "device": "d", "model": "m"}],
    }
    refused = ((0, "a value is not finite"),)
    folders.write(home / "a", "alpha", 0, history, fleet=fleet, refused=refused)
    about = {"python": "3.11", "packages": {"torch": "2"}, "machine": ["cpu"]}
    (home / "a" / "environment.json").write_text(json.dumps(about))


def real(home: Path) -> None:
    run(home / "a", rounds=1, privacy=True, method="fedavg")


def clear(home: Path) -> None:
    run(home / "a", rounds=1, method="fedavg")


def privacy(home: Path) -> None:
    test_privacy.grid(home)
    for path in home.glob("*1"):  # the second seed
        shutil.rmtree(path)


KINDS = (graph, attack, similarity, latent, grid, clock, alone, real, clear, privacy)
HEADINGS = (  # of all sections that depend on a text of the folder
    "Which method serves this fleet, at which cost?",
    "Who hears whom",
    "Under attack",
    "Who learns from whom",
    "The common latent space",
    "in every cell",
    "Every cell by itself",
    "Other ways to predict",
    "What methods measure",
    "Does the model know when it fails?",
    "Time and energy",
    "What was trained",
    "How far clients differ",
    "Do clients pull in the same direction?",
    "of each modality",
    "Test F1 of every class",
    "What left the clients, and is it private?",
    "Which sensors, and when",
    "Overhead against",
)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of every kind, with no harm in it."""
    found = {make.__name__: tmp_path_factory.mktemp(make.__name__) for make in KINDS}
    for make in KINDS:
        make(found[make.__name__])
    return found


def shown(runs: list[Finished]) -> str:
    return render(runs, default_metric(runs), "t")


@pytest.fixture(scope="module")
def clean(homes: dict[str, Path]) -> Page:
    """All of these pages in one, with what is drawn of long names only."""
    long = [Point("a long name" * 3, "#000", 1.0, 1.0, 0.1, 0.1)] * 3
    pages = [shown(collect([home])) for home in homes.values()]
    return Page("".join([*pages, point_chart(long, [], "t", "x", "y", least=(0.0, 2.0))]))


@pytest.mark.slow
def test_every_section_is_tried(clean: Page) -> None:
    text = "\n".join(clean.texts)
    assert [title for title in HEADINGS if title not in text] == []


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where texts stand in a JSON value, and the keys of its tables."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key, None)  # the key itself
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:2]):
            yield from places(inner, (*path, i))
    elif isinstance(value, str):
        yield path


def poisoned(value: Any, path: tuple[Any, ...], payload: str) -> Any:
    """The value with the payload added in that place."""
    if path == ():
        return f"{value}{payload}"
    first, *rest = path
    if rest == [None] and isinstance(value, dict):
        return {f"{key}{payload}" if key == first else key: x for key, x in value.items()}
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[first] = poisoned(copy[first], tuple(rest), payload)
    return copy


def toml(table: dict[str, Any]) -> str:
    """As TOML; strings and keys are written as JSON does, which TOML understands."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items()]
    for name, inner in table.items():
        if isinstance(inner, dict):
            lines += [f"[{json.dumps(name)}]", toml(inner)]
    return "\n".join(lines)


Poison = Callable[[str], None]


def in_json(path: Path) -> Iterator[tuple[str, Poison]]:
    first, *rest = path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else [
        path.read_text("utf-8")
    ]  # fmt: skip
    content = json.loads(first)
    content.pop("digest", None)
    for place in places(content):

        def poison(payload: str, place: tuple[Any, ...] = place) -> None:
            changed = json.dumps(poisoned(content, place, payload))
            path.write_text("\n".join([changed, *rest]) + "\n", "utf-8")
            if "digest" in json.loads(first):
                folders.seal(path)  # as one who forges could

        yield f"{path.name}: {place}", poison


def in_toml(path: Path) -> Iterator[tuple[str, Poison]]:
    """Values; of keys those that the user chooses."""
    config = tomllib.loads(path.read_text("utf-8"))
    for place in places(config):
        if place[-1] is not None or (place[0] in ("cell", "levels") and len(place) > 2):

            def poison(payload: str, place: tuple[Any, ...] = place) -> None:
                path.write_text(toml(poisoned(config, place, payload)), "utf-8")

            yield f"{path.name}: {place}", poison
    for key in ("name", "variant", "metric", "select"):

        def named(payload: str, key: str = key) -> None:
            path.write_text(toml({**config, key: payload}), "utf-8")

        yield f"{path.name}: {key} for another", named


def in_table(path: Path) -> Iterator[tuple[str, Poison]]:
    """Texts of a table; of those of a run, in its last round."""
    trace = path.name == "availability.parquet"
    last = RunFolder(path.parent).records()[-1].round
    table = pq.read_table(path) if trace else folders.rows_of(path, last)
    for column in table.schema:
        if not pa.types.is_string(column.type) and not pa.types.is_dictionary(column.type):
            continue
        values = table[column.name].cast(pa.string()).to_pylist()
        shown = [text for text in dict.fromkeys(values) if text not in COUNTS]
        for chosen in shown[:12]:

            def poison(payload: str, column: pa.Field = column, chosen: str = chosen) -> None:
                found = table[column.name].cast(pa.string()).to_pylist()
                changed = [f"{text}{payload}" if text == chosen else text for text in found]
                where = table.schema.get_field_index(column.name)
                one = pa.array(changed).cast(column.type)
                poisoned = table.set_column(where, column, one)
                if trace:
                    pq.write_table(poisoned, path)
                else:
                    folders.forge_rows(path, last, poisoned)

            yield f"{path.name}: {column.name} {chosen}", poison


def poisons(folder: Path) -> Iterator[tuple[Path, str, Poison]]:
    """Every place of a run's folder that can hold a text."""
    for name in ("fleet.json", "privacy.json", "environment.json", "records.jsonl"):
        if (folder / name).exists():
            yield from ((folder / name, *found) for found in in_json(folder / name))
    yield from ((folder / "config.toml", *found) for found in in_toml(folder / "config.toml"))
    for room in ("scores", "log", "pairs"):
        path = folder / f"{room}.arrows"
        if path.exists():
            yield from ((path, *found) for found in in_table(path))
    if (folder / "availability.parquet").exists():
        path = folder / "availability.parquet"
        yield from ((path, *found) for found in in_table(path))


def check(runs: list[Finished], clean: Page, what: str) -> bool:
    """Nothing of the payload is alive; whether it was shown."""
    page = Page(shown(runs))
    assert page.shape <= clean.shape, (what, page.shape - clean.shape)
    assert not [value for value in page.values if MARK in value], what
    assert page.styles == clean.styles[:1], what
    with out.capture() as captured:
        out.print(results(runs, default_metric(runs)))
        for text in warnings(runs):
            out.print(text)
    said = captured.get()
    assert visible(said) == said, what
    assert "💀" not in said, what
    return MARK in "".join(page.texts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [make.__name__ for make in KINDS])
def test_every_text_of_a_folder_is_shown_as_text(
    kind: str, homes: dict[str, Path], clean: Page, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(homes[kind], home)
    folder = min(path.parent for path in home.rglob("config.toml"))
    found = list(poisons(folder))
    step = -(-len(found) // PLACES)
    payloads, live = cycle(PAYLOADS), 0
    for path, what, poison in islice(found, 0, None, step):
        whole = path.read_bytes()
        records = (folder / "records.jsonl").read_bytes()  # they name the rows of tables
        payload = next(payloads)
        poison(payload)
        with suppress(CommunisError):
            live += check(collect([home]), clean, f"{what} with {payload!r}")
        (folder / "records.jsonl").write_bytes(records)
        path.write_bytes(whole)
    assert live > 3


@pytest.mark.slow
@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_payload_in_every_name_at_once(payload: str, clean: Page, tmp_path: Path) -> None:
    """Names that hang together, as those of sensors and methods do, in all places alike."""
    about = {"id": 0, "sensors": [f"acc{payload}"], "device": payload, "model": payload}
    fleet = {
        "labels": [payload, "b"],
        "notes": [payload],
        "clients": [about, {**about, "id": 1, "model": "other"}],
        "attackers": [1],
        "topology": {"kind": payload, "edges": [[0, 1]], "link": payload, "parts": [[0], [1]]},
    }
    method = {"name": payload, "by_model": True}
    for seed in range(2):
        path = tmp_path / f"{seed}"
        history = {"test.accuracy": [{0: 0.5}], "test.f1.0": [{0: 0.5}]}
        refused = ((0, f"a value is not finite {payload}"),)
        folders.write(path, "x", seed, history, fleet=fleet, refused=refused)
        config = tomllib.loads((path / "config.toml").read_text())
        config |= {"method": method, "name": payload, "cell": {payload: payload}}
        config |= {"robust": {"rule": payload}, "attack": {"kind": payload, "modality": payload}}
        config |= {"data": {"name": payload}, "topology": {"kind": payload}}
        config |= {"clock": {"mode": payload}, "privacy": {"mode": payload}}
        (path / "config.toml").write_text(toml(config), "utf-8")
        (path / "environment.json").write_text(json.dumps({payload: payload}))
    runs = collect([tmp_path])
    assert check(runs, clean, payload)
    text = "".join(Page(render(runs, "accuracy", payload)).texts)
    assert text.count(payload) > 10


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names of folders")
@pytest.mark.parametrize("payload", [p for p in PAYLOADS if "/" not in p])
def test_names_of_folders_are_shown_as_text(payload: str, clean: Page, tmp_path: Path) -> None:
    """Runs that differ in more than fits into a name are told apart by their folders."""
    for i, name in enumerate((f"a{payload}", "b")):
        many = "\n".join(f'setting{j} = "{i} and more of it"' for j in range(9))
        folders.write(tmp_path / name, "m", 0, {"test.accuracy": [{0: 0.5}]}, settings=many)
    assert check(collect([tmp_path]), clean, payload)


def test_halves_of_characters_are_written_out(tmp_path: Path) -> None:
    """JSON can hold them, UTF-8 cannot."""
    fleet = {"notes": ["half \ud800"], "clients": []}
    folders.write(tmp_path / "a", "alpha", 0, {"test.accuracy": [{0: 0.5}]}, fleet=fleet)
    runs = collect([tmp_path])
    path = write(runs, tmp_path / "report.html", "accuracy", "t")
    assert "half \\ud800" in path.read_text("utf-8")
    with out.capture() as said:
        out.print(warnings(runs)[0])
    assert said.get() == "half \\ud800\n"


STEERING = PAYLOADS[-1]
WRITTEN = r"\x1b]0;zz9\x07\x1b[31m\x9b1m\r[red][/red][link=http://x]:skull:\u202e"


@pytest.mark.parametrize("command", [["report"], ["privacy", "verdict"]])
def test_commands_show_names_as_they_are(command: list[str], tmp_path: Path) -> None:
    path = folders.write(tmp_path / "a", "m", 0, {"test.accuracy": [{0: 0.5}]})
    config = tomllib.loads((path / "config.toml").read_text())
    (path / "config.toml").write_text(toml({**config, "variant": STEERING}))
    output = ["--output", str(tmp_path / "r.html")] if command == ["report"] else []
    found = CliRunner().invoke(app, [*command, str(path), *output])
    assert found.exit_code == 0
    assert WRITTEN in found.output.replace("\n", "")
    assert visible(found.output) == found.output


@pytest.mark.parametrize("table", [{"variant": "m\n1 run is private"}, {"cell": {"a\nb": "c"}}])
def test_a_name_of_two_lines_is_refused(table: dict[str, Any], tmp_path: Path) -> None:
    path = folders.write(tmp_path / "a", "m", 0, {"test.accuracy": [{0: 0.5}]})
    config = tomllib.loads((path / "config.toml").read_text())
    (path / "config.toml").write_text(toml({**config, **table}))
    with pytest.raises(CommunisError, match=r"config.toml: \w+.*: a line break in "):
        collect([path])


def test_refusals_name_files_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["communis", "report", str(tmp_path / "a\x1b[31m[red]")])
    with pytest.raises(SystemExit):
        main()
    assert r"a\x1b[31m[red]: no such folder" in capsys.readouterr().err


def test_the_bar_shows_labels_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_force_terminal", True)
    config = SimpleNamespace(run=SimpleNamespace(rounds=3))
    job: Any = SimpleNamespace(label=STEERING, folder=Path("a"), config=config)
    for at_once in (1, 2):
        with (
            out.capture() as said,
            Display([job], "", json_lines=False, quiet=False, at_once=at_once) as display,
        ):
            display.begin(job)
            assert display._bar is not None
            task = display._bar.tasks[-1]
            columns = [column for column in display._bar.columns if hasattr(column, "markup")]
            drawn = [str(column(task)) for column in columns]
        assert WRITTEN in drawn
        assert "\x07" not in said.get()
