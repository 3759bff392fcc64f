"""Configurations and run folders that nobody in their senses would write, and what becomes of them.

`hostile` draws the text of a configuration: every key of the schema may get a value that is huge,
negative, zero, not finite, of another type, too long, or deep. `attempt` goes as far with it as a
user would. `damaged` hurts one file of a run folder, and `look` reads that folder with the commands
that do. Each outcome is "ran", "refused" or "traceback: ..."; only the last one is a fault.
"""

from __future__ import annotations

import json
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from communis import CommunisError
from communis.cli.jobs import View, show
from communis.core.plugins import find, names
from communis.data.sources.synthetic import Synthetic
from communis.models.zoo import ZOO
from communis.results.compare import collect
from communis.results.finished import read
from communis.results.verdict import privacy_verdict
from communis.run.config import Config, load_cells
from communis.run.folder import RECORDS, RunFolder
from communis.run.jobs import Job
from tests.unit.folders import forge_rows, rows_of, seal

LONGEST = 2000  # characters of a refusal
PATIENCE = 4.0  # seconds after which a configuration counts as one that runs
READING = 120.0  # seconds after which reading a small folder counts as one that never ends
BASE = {  # a small experiment; dotted keys and values as they stand in TOML
    "name": '"trial"',
    "seed": "0",
    "data.name": '"synthetic"',
    "data.clients": "4",
    "data.windows": "12",
    "data.steps": "16",
    "data.channels": "2",
    "data.classes": "3",
    "fleet.models": '["cnn_small"]',
    "method.name": '"fedavg"',
    "run.rounds": "1",
    "run.workers": "1",
}
CONTEXTS: Sequence[dict[str, str]] = (  # so that settings which mean something only there do
    {},
    {},
    {"privacy.mode": '"local"', "privacy.noise": "2.0"},
    {"privacy.mode": '"central"', "privacy.noise": "2.0", "run.participation": "0.5",
     "method.uniform": "true"},
    {"privacy.mode": '"paper"', "privacy.noise": "2.0", "method.name": '"umeda"',
     "fleet.models": '["sglt"]'},
    {"privacy.mode": '"central"', "privacy.epsilon": "2.0", "run.participation": "0.5",
     "method.uniform": "true"},
    {"topology.kind": '"regular"', "topology.degree": "2"},
    {"topology.kind": '"erdos_renyi"', "topology.probability": "0.7"},
    {"attack.kind": '"sign_flip"', "attack.count": "1"},
    {"attack.kind": '"gaussian"', "attack.count": "1", "robust.rule": '"trimmed_mean"'},
    {"fleet.dropout.kind": '"iid"', "fleet.dropout.rate": "0.3"},
    {"fleet.dropout.kind": '"markov"', "fleet.dropout.operating": "8.0",
     "fleet.dropout.missing": "2.0"},
    {"fleet.online.kind": '"markov"', "fleet.online.online": "20.0", "fleet.online.offline": "5.0"},
    {"fleet.roles": '[{modalities = ["m0"], count = 2}, {modalities = ["m0", "m1"], count = 2}]'},
    {"fleet.models": '["sglt"]'},
    {"fleet.models": '["cnn_attention", "tpn_mini"]', "method.name": '"fedproto"'},
    {"partition.by": '"dirichlet"', "partition.clients": "3", "partition.least": "1"},
    {"partition.by": '"virtual"', "partition.per_owner": "2", "partition.least": "1"},
    {"grid.H.one.run.participation": "0.5", "grid.H.two.run.participation": "1.0"},
    {"variants.mine.name": '"fedprox"', "variants.mine.mu": "0.1", "compare": '["mine"]'},
    {"data.name": '"world"', "data.steps": "", "data.channels": "", "data.classes": "",
     "data.windows": "20", "data.clients": "2"},
)  # fmt: skip

SMALL = ("0", "1", "2", "3", "4", "5", "7", "16", "64", "999")
INTEGERS = (
    "0", "-1", "1", "2", "3", "7", "64", "1000", "100000", "2147483647", "2147483648",
    "-2147483649",
    "9223372036854775807", "9223372036854775808", "1000000000", "1000000000000", "1" + "0" * 30,
    "9" * 4000, "9" * 6000, "-" + "9" * 5000, "0x" + "f" * 6000,
)  # fmt: skip
FLOATS = (
    "0.0", "-0.0", "-1.0", "1.0", "0.5", "1.0000001", "nan", "-nan", "inf", "-inf", "1e308",
    "-1e308",
    "1e-308", "5e-324", "1e999", "1e39", "1e-46", "123456789.0", "0.9999999999999999",
)  # fmt: skip
STRINGS = (
    '""', '" "', '"."', '".."', '"../../etc"', '"/"', '"a/b"', r'"C:\\x"', '"con"', '"~"', '"-x"',
    r'"\u0000"', r'"a\u0000b"', r'"\u001b[31m"', r'"\u202eevil"', r'"\r\n"', r'"\u007f"',
    '"\\uFEFF"',
    '"' + "x" * 300 + '"', '"' + "x" * 200_000 + '"', '"\U0001f600"', '"e\u0301"',
    '"[bold]x[/bold]"',
    '"math:pi"', '"math:"', '":"', '"os:path"', '"collections:OrderedDict"', '"communis:load"',
    '"communis.methods.fedavg:"', '"communis.core.contract:Card"', '"communis.cli.main:app"',
    '"communis..x:y"', '"communis.run.config:Config"', '"communis.methods:fedavg"',
    '"communis.data.sources.synthetic:Synthetic"',
    '"no.such:Thing"', '"a:b:c"', '"nothing"', '"local"', '"{0}"', '"%s"', "'''\na\nb'''",
)  # fmt: skip
OTHERS = (
    "true", "false", "[]", "{}", "[[]]", "[1]", "[1, 2, 3]", '["a", 1, true]', "[nan]", "[{}]",
    "{ a = 1 }", "{ a = { b = { c = 1 } } }", "[" * 90 + "]" * 90, "[" * 3000 + "]" * 3000,
    "1979-05-27T07:32:00Z", "1979-05-27", "07:32:00", "[" + "1," * 20_000 + "]",
    '{ "" = 1 }', r'{ "\u0000" = 1 }', '{ "a.b" = 1, "c d" = 2 }', "[-1]", "[0]", "[1e308, 1e308]",
)  # fmt: skip
BROKEN = (  # lines that are added as they are
    "a = 1\na = 2", "= 1", "[", "[run]\nrounds = 1\n[run]", 'x = "', "x = [", "\x00", "\ud800 = 1",
    '"\ud800" = 1', "[a.b]\n[a]\nb = 1", "[[grid]]\n[[grid]]", "a" * 300_000,
    "[" + "a." * 3000 + "b]",
    "x = " + "{a=" * 3000 + "1" + "}" * 3000, "a.b = 1\na.b.c = 2", "grid = 3", "grid.H = []",
    "[grid.H.a]\nrun.rounds = 1\n[grid.J.a]\nrun.rounds = 2", "[grid.H.'']", "[grid.H.'../x']",
    "[methods]\nfedavg = 3", "[methods.nothing]\nlr = 1", "[variants]\na = 3",
    "[variants.'../x']\nname='fedavg'",
    "[variants.a]\nname = 'a'", "[variants.a]\nname = ['fedavg']", "compare = [3]",
    "compare = ['', 'x']",
    "[cell]\nH = '../x'", "[levels]\nH = 'x'", "[cell]\n'' = ''", "[nothing]\na = 1", "\ufeff",
    "[grid." + "].x=1\n[grid.".join(f"{c}.a{i}" for i, c in enumerate("abc")) + "]",
)  # fmt: skip


def hostile(rng: np.random.Generator) -> str:
    """The text of a configuration with one to three keys that have strange values."""
    lines = {**BASE, **CONTEXTS[int(rng.integers(len(CONTEXTS)))]}
    if rng.random() < 0.4:
        lines["method.name"] = f'"{_one(rng, names("methods"))}"'
    if rng.random() < 0.2:
        lines["fleet.models"] = f'["{_one(rng, list(ZOO))}"]'
    keys = _keys(lines)
    for _ in range(_one(rng, (1, 1, 1, 2, 3))):
        key = _one(rng, list(keys))
        lines = {k: v for k, v in lines.items() if not (k + ".").startswith(key + ".")}
        lines[key] = _value(keys[key], rng)
    if rng.random() < 0.05:
        lines[_one(rng, ("x", "run.nothing", '"a b"', r'run."\u001b[2J"', "method.lrr"))] = "1"
    text = "".join(f"{key} = {value}\n" for key, value in lines.items() if value)
    return text + _one(rng, BROKEN) + "\n" if rng.random() < 0.08 else text


def attempt(text: str, folder: Path) -> str:
    """What becomes of a configuration: it is loaded, its fleet made and one round done."""
    path = folder / "config.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return _outcome(lambda: _go(path, folder), str(path))


def _go(path: Path, folder: Path) -> None:
    found = load_cells(str(path))
    config = next(iter(found.values()))
    for name in config.compare:
        config = config.under(name)
        break
    job = Job(config, folder / "run", str(path))
    with job.named():
        fleet = config.make_fleet()
    with job.open(fleet, workers=1) as run:
        next(iter(run), None)
    if config.run.rounds:
        Job(load_cells(str(job.folder / "config.toml"), alone=True)[""], job.folder).finished  # noqa: B018


def damaged(folder: Path, rng: np.random.Generator, forged: bool = False) -> Path:
    """One file of a run folder is not what it was any more; which one. forged: with the
    digests of what it holds now."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "lock")
    path = files[int(rng.integers(len(files)))]
    ways = [_flipped, _cut, _gone, _emptied, _foreign]
    edited = {
        ".json": _edited_json,
        ".jsonl": _edited_lines,
        ".toml": _edited_toml,
        ".parquet": _edited_table,
        ".arrows": _edited_rows,
    }
    ways += [edited[path.suffix]] * 6 if path.suffix in edited else []
    records = folder / RECORDS
    if not records.exists():  # a table alone: nothing says where its rows lie
        ways = [way for way in ways if way is not _edited_rows]
    way = ways[int(rng.integers(len(ways)))]
    said = records.read_bytes() if way is _edited_rows else b""
    way(path, rng)
    if way is _edited_rows and not forged:
        records.write_bytes(said)
    if forged and way in (_edited_json, _edited_lines):
        seal(path)
    return path


def look(folder: Path) -> str:
    """What becomes of a run folder when it is reported on, judged and continued. To train may take
    long, but not to read."""
    found = [
        _outcome(lambda: _report(folder), str(folder), READING, "hang"),
        _outcome(lambda: privacy_verdict(read(folder)) and None, str(folder), READING, "hang"),
        _outcome(lambda: _resume(folder), str(folder)),
    ]
    found.sort(key=lambda outcome: {"ran": 0, "refused": 1}.get(outcome, 2))
    return found[-1]


def _report(folder: Path) -> None:
    page = folder.parent / "page.html"
    show(collect([folder]), page, View("x", quiet=True, json=True))


def _resume(folder: Path) -> None:
    config = load_cells(str(folder / "config.toml"), alone=True)[""]
    job = Job(config, folder)
    with job.named():
        if job.finished:
            return
        with job.open(config.make_fleet(), workers=1) as run:
            next(iter(run), None)


def _outcome(
    act: Callable[[], None], named: str, patience: float = PATIENCE, late: str = "ran"
) -> str:
    """late: what becomes of that which takes longer."""
    try:
        with _patience(patience):
            act()
    except _EnoughError:
        return late
    except (CommunisError, OSError) as error:  # the command line says both in one line
        return _refusal(str(error), named)
    except Exception as error:
        return f"traceback: {_where(error)}: {type(error).__name__}: {str(error)[:200]}"
    return "ran"


def _refusal(text: str, named: str) -> str:
    """A refusal is one readable line that names the file."""
    if not text.isprintable():
        return f"traceback: not one readable line: {text[:200]!r}"
    if len(text) > LONGEST:
        return f"traceback: a refusal of {len(text)} characters: {text[:200]!r}"
    if named not in text:
        return f"traceback: a refusal that does not name its file: {text[:200]!r}"
    return "refused"


def _where(error: BaseException) -> str:
    """The last line of communis that an error went through."""
    place, trace = "?", error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if "communis" in file.parts:
            place = f"{file.name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


class _EnoughError(BaseException):
    """Not an Exception: nothing may catch it and go on."""


@contextmanager
def _patience(seconds: float = PATIENCE) -> Iterator[None]:
    """What trains for very long was accepted: that is all there is to know."""
    able = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

    def enough(number: int, frame: FrameType | None) -> None:
        raise _EnoughError

    before = signal.signal(signal.SIGALRM, enough) if able else None
    if able:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if able:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _keys(lines: Mapping[str, str]) -> dict[str, Any]:
    """Every dotted key that this configuration may have, with its declared type."""
    found = dict(_below(Config, ""))
    for room, key in (("data", "data"), ("methods", "method")):
        name = lines[f"{key}.name"].strip('"')
        kind = find(room, name) if name in names(room) else Synthetic
        found |= dict(_below(kind, key))
        found[f"{key}.name"] = str
    return found


def _below(kind: Any, above: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(kind)
    for f in fields(kind):
        key = f"{above}.{f.name}" if above else f.name
        hint = hints[f.name]
        yield key, hint
        inner = [a for a in (hint, *get_args(hint)) if is_dataclass(a)]
        for part in inner if get_origin(hint) is not tuple else ():
            yield from _below(part, key)


def _value(hint: Any, rng: np.random.Generator) -> str:
    """Strange, and more often than not of the right type."""
    if rng.random() < 0.15:
        return _one(rng, (*INTEGERS, *FLOATS, *STRINGS, *OTHERS))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, *([type(int | str)])):
        return _value(arguments[int(rng.integers(len(arguments)))], rng)
    if origin is Literal:
        return json.dumps(_one(rng, arguments))
    if origin is tuple:
        length = int(rng.integers(0, 4)) if arguments[-1] is Ellipsis else len(arguments)
        inner = [_value(arguments[0], rng) for _ in range(length)]
        return f"[{', '.join(inner)}]"
    if is_dataclass(hint):
        own = [(f.name, get_type_hints(hint)[f.name]) for f in fields(hint)]
        some = [pair for pair in own if rng.random() < 0.5]
        return "{ " + ", ".join(f"{name} = {_value(h, rng)}" for name, h in some) + " }"
    if origin is dict:
        return "{ " + f"{_one(rng, STRINGS[:20])} = {_one(rng, FLOATS)}" + " }"
    pools: dict[Any, Sequence[str]] = {
        int: INTEGERS if rng.random() < 0.5 else SMALL,
        float: (*FLOATS, *SMALL),
        str: STRINGS,
        bool: ("true", "false"),
    }
    return _one(rng, pools.get(hint, OTHERS))


def _one(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _flipped(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes() or b"x")
    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(bytes(data))


def _cut(path: Path, rng: np.random.Generator) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(rng.integers(len(data) + 1))])


def _gone(path: Path, rng: np.random.Generator) -> None:
    path.unlink()
    if rng.random() < 0.3:
        path.mkdir()  # something else has its name


def _emptied(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(b"")


def _foreign(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(_one(rng, (
        b"\xff\xfe\x00", b"{}", b"[]", b"null", b"3", b'"text"', b"{" * 5000, b"[" * 200_000,
        b"a = 1\n",
        b"seed = " + b"9" * 6000, b"[1" + b"0" * 6000 + b"]", b"\x00" * 100, b"PAR1PAR1",
        b'{"a": NaN}',
    )))  # fmt: skip


STRANGE: Sequence[Any] = (
    None, True, -1, 0, 1, 10**12, 10**30, 1.5, -1e308, float("nan"), float("inf"), "", "x",
    "\x1b[31m",
    "x" * 10_000, [], [1], [[]], {}, {"a": 1}, [None], ["\u202e"], [{}], "../x",
)  # fmt: skip


def _edited(value: Any, rng: np.random.Generator, strange: Sequence[Any]) -> Any:
    """Somewhere inside, something is missing, more than there was, or of another kind."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = _one(rng, list(value))
        kind = rng.random()
        if kind < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.25:
            return {**value, "of a newer version": _one(rng, strange)}
        return {**value, key: _edited(value[key], rng, strange)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = int(rng.integers(len(value)))
        if rng.random() < 0.2:
            return value[:at] + value[at + 1 :]
        return [*value[:at], _edited(value[at], rng, strange), *value[at + 1 :]]
    return _one(rng, strange)


def _edited_json(path: Path, rng: np.random.Generator) -> None:
    path.write_text(json.dumps(_edited(json.loads(path.read_text()), rng, STRANGE)))


def _edited_lines(path: Path, rng: np.random.Generator) -> None:
    lines = path.read_text().splitlines()
    at = int(rng.integers(len(lines)))
    lines[at] = json.dumps(_edited(json.loads(lines[at]), rng, STRANGE))
    path.write_text("\n".join(lines) + "\n")


def _edited_toml(path: Path, rng: np.random.Generator) -> None:
    strange = [value for value in STRANGE if value is not None and value != [None]]
    new = _edited(tomllib.loads(path.read_text()), rng, strange)
    path.write_text(tomli_w.dumps(new) if isinstance(new, dict) else "x = 3\n", encoding="utf-8")


def _edited_table(path: Path, rng: np.random.Generator) -> None:
    """Another type of a column, one more or less, other values, or no rows."""
    table = pq.read_table(path)
    at = int(rng.integers(table.num_columns))
    name = table.column_names[at]
    others = _columns(table.num_rows)
    kind = int(rng.integers(6))
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = table.append_column("more", others[0])
    elif kind == 2:
        table = table.slice(0, 0)
    else:
        table = table.set_column(at, name, _one(rng, others))
    pq.write_table(table, path)


def _edited_rows(path: Path, rng: np.random.Generator) -> None:
    """Other values of a column in a round, or no rows, as the records then say."""
    rounds = [r.round for r in RunFolder(path.parent).records() if path.stem in r.tables]
    round = rounds[int(rng.integers(len(rounds)))]
    table = rows_of(path, round)
    at = int(rng.integers(table.num_columns))
    column = table.schema[at]
    other = _one(rng, _columns(table.num_rows))
    try:
        other = other.cast(column.type)
    except pa.ArrowException:  # the file holds columns of given types only
        table = table.slice(0, 0)
        other = pa.array([], column.type)
    forge_rows(path, round, table.set_column(at, column.name, other))


def _columns(rows: int) -> Sequence[pa.Array]:
    """Columns that a table may not expect."""
    return (
        pa.array(["x"] * rows), pa.array([-1] * rows, pa.int64()), pa.array([float("nan")] * rows),
        pa.array([None] * rows, pa.int32()), pa.array([10**17] * rows), pa.array([[1]] * rows),
        pa.array([b"\xff"] * rows), pa.array([True] * rows), pa.array(["\x1b[31m"] * rows),
        pa.array([None] * rows, pa.string()), pa.array([float("inf")] * rows),
    )  # fmt: skip
