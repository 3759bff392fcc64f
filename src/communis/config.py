"""TOML -> validated frozen dataclasses -> fleet, method and plan.

An unknown key or a bad value is an error that names the file, the key and the nearest valid one.

    name = "trial"                  # the run's folder is runs/trial
    seed = 0
    [data]      name = "watch"      # a source of communis.data; other keys are its settings
    [partition] by = "subject"      # windows -> clients
    [fleet]     models = ["cnn"]    # and [[fleet.roles]], [fleet.suites], [fleet.dropout], ...
    [method]    name = "fedavg"     # a method of communis.methods; other keys are its settings
    [methods.fedprox] mu = 0.1      # settings for one method only; they add to those of [method]
    [topology]  kind = "star"
    [run]       rounds = 20         # the fields of communis.run.Plan
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from communis.core import CommunisError
from communis.exchange import Topology
from communis.fleet import AnyMethod, Fleet
from communis.fleet.muster import FleetConfig
from communis.partition.settings import Partition
from communis.plan import Plan
from communis.plugins import find, nearest
from communis.recordings.windows import Windows
from communis.schema import SchemaError, build
from communis.streams import Streams
from communis.topology import Star, complete, custom, ring

Table = dict[str, Any]


@dataclass(frozen=True)
class TopologyConfig:
    """Who hears whom."""

    kind: Literal["star", "complete", "ring", "edges"] = "star"
    edges: tuple[tuple[int, int], ...] = ()  # pairs of clients, with kind = "edges"

    def make(self, clients: int) -> Topology:
        if self.kind == "star":
            return Star()
        if self.kind == "edges":
            return custom(self.edges)
        return ring(clients) if self.kind == "ring" else complete(clients)


@dataclass(frozen=True)
class Config:
    name: str = "trial"
    seed: int = 0
    data: Table = field(default_factory=lambda: {"name": "synthetic"})
    partition: Partition = field(default_factory=Partition)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    method: Table = field(default_factory=lambda: {"name": "fedavg"})
    methods: Table = field(default_factory=dict)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    run: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        if not usable_name(self.name):
            raise SchemaError(f"name: {self.name!r} cannot be the name of a folder")
        if self.seed < 0:
            raise SchemaError(f"seed: must be at least 0, got {self.seed}")
        for table in ("data", "method"):
            if not isinstance(getattr(self, table).get("name"), str):
                raise SchemaError(f"missing key {table}.name")
        for name, settings in self.methods.items():
            if not isinstance(settings, Mapping):
                raise SchemaError(f"methods.{name}: expected a table, got {settings!r}")
            build(find("methods", name), settings, f"methods.{name}")
        self.make_method()
        self.make_source()

    @property
    def method_name(self) -> str:
        return str(self.method["name"])

    def make_method(self) -> AnyMethod:
        settings = {**self.method, **self.methods.get(self.method_name, {})}
        del settings["name"]
        method: AnyMethod = build(find("methods", self.method_name), settings, "method")
        return method

    def make_fleet(self) -> Fleet:
        streams = Streams(self.seed)
        windows: Windows = self.make_source().load(streams)
        return self.fleet.make(windows, self.partition, streams)

    def make_topology(self, fleet: Fleet) -> Topology:
        return self.topology.make(len(fleet))

    def to_toml(self) -> str:
        """This configuration with every default written out; parsing it gives the same run."""
        method = {"name": self.method_name, **_settings(self.make_method())}
        data = {"name": self.data["name"], **_settings(self.make_source())}
        tables = {
            "data": data,
            "partition": _settings(self.partition),
            "fleet": _settings(self.fleet),
            "method": method,
            "topology": _settings(self.topology),
            "run": _settings(self.run),
        }
        lines = [f"name = {_toml(self.name)}", f"seed = {self.seed}"]
        for name, table in tables.items():
            given = {key: value for key, value in table.items() if value is not None}
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in given.items())]
        return "\n".join(lines) + "\n"

    def make_source(self) -> Any:
        settings = {key: value for key, value in self.data.items() if key != "name"}
        return build(find("data", str(self.data["name"])), settings, "data")


def load(source: str, overrides: Sequence[str] = (), **tables: Any) -> Config:
    """The configuration in a file, or of a preset by name, with `key=value` overrides."""
    text, where = _read(source)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"{where}: not valid TOML: {error}") from None
    for override in overrides:
        _override(table, override)
    try:
        config: Config = build(Config, {**table, **tables}, "")
        return config
    except CommunisError as error:
        raise SchemaError(f"{where}: {error}") from None


def bare(data: Table, overrides: Sequence[str] = ()) -> Config:
    """Nothing but a dataset, everything else as it is by default."""
    table: Table = {"data": dict(data)}
    for override in overrides:
        _override(table, override)
    config: Config = build(Config, table, "")
    return config


def usable_name(name: str) -> bool:
    """Whether a folder can be called so, in its parent and on every system."""
    return name not in ("", ".", "..") and not any(c in name for c in '/\\:*?"<>|\n')


def presets() -> list[str]:
    folder = resources.files("communis") / "presets"
    return sorted(path.name[:-5] for path in folder.iterdir() if path.name.endswith(".toml"))


def _override(table: Table, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SchemaError(f"--set {override}: expected key=value, such as method.lr=0.1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a word without quotes
    *parents, last = key.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise SchemaError(f"--set {override}: {parent} is not a table")
    table[last] = value


def _read(source: str) -> tuple[str, str]:
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaError(f"{path}: cannot be read: {error}") from None
    if source not in presets():
        hint = nearest(source, presets())
        raise SchemaError(
            f"{source}: neither a file nor a preset{hint}; presets are {', '.join(presets())}"
        )
    text = (resources.files("communis") / "presets" / f"{source}.toml").read_text(encoding="utf-8")
    return text, f"preset {source}"


def _settings(thing: Any) -> Table:
    return {f.name: getattr(thing, f.name) for f in fields(thing)}


def _toml(value: Any) -> str:
    if is_dataclass(value):
        inner = ", ".join(f"{k} = {_toml(v)}" for k, v in _settings(value).items())
        return f"{{ {inner} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
