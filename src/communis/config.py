"""TOML -> validated frozen dataclasses -> fleet, method and plan.

An unknown key or a bad value is an error that names the file, the key and the nearest valid one.

    name = "trial"                  # the run's folder is runs/trial
    seed = 0
    [data]      name = "watch"      # a source of communis.data; other keys are its settings
    [fleet]     models = ["cnn"]    # and [[fleet.roles]]: modalities, count
    [method]    name = "fedavg"     # a method of communis.methods; other keys are its settings
    [methods.fedprox] mu = 0.1      # settings for one method only; they add to those of [method]
    [topology]  kind = "star"
    [run]       rounds = 20         # the fields of communis.run.Plan
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from communis.availability.roles import Role, assign
from communis.core import CommunisError
from communis.exchange import Topology
from communis.fleet import AnyMethod, Fleet
from communis.models.zoo import ZOO
from communis.partition.natural import by_owner
from communis.plan import Plan
from communis.plugins import find, nearest
from communis.streams import Streams
from communis.topology import Star, complete, custom, ring

Table = dict[str, Any]


class ConfigError(CommunisError):
    """A configuration that cannot be used; the text says where and why."""


@dataclass(frozen=True)
class FleetConfig:
    """Who senses what with which model."""

    models: tuple[str, ...] = ("cnn",)  # names in models/zoo.py; several: dealt out by seed
    roles: tuple[Role, ...] = ()  # who has which modalities; none: everybody has all
    normalise: Literal["client", "none"] = "client"

    def __post_init__(self) -> None:
        for name in self.models:
            if name not in ZOO:
                hint = nearest(name, list(ZOO))
                raise ConfigError(f"models: no architecture {name!r}{hint}; see {', '.join(ZOO)}")


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
    fleet: FleetConfig = field(default_factory=FleetConfig)
    method: Table = field(default_factory=lambda: {"name": "fedavg"})
    methods: Table = field(default_factory=dict)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    run: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        if not usable_name(self.name):
            raise ConfigError(f"name: {self.name!r} cannot be the name of a folder")
        if self.seed < 0:
            raise ConfigError(f"seed: must be at least 0, got {self.seed}")
        for table in ("data", "method"):
            if not isinstance(getattr(self, table).get("name"), str):
                raise ConfigError(f"missing key {table}.name")
        for name, settings in self.methods.items():
            build(
                find("methods", name), _value(Table, settings, f"methods.{name}"), f"methods.{name}"
            )
        self.make_method()
        self._source()

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
        windows = self._source().load(streams)
        client_of = by_owner(windows)
        clients = int(client_of.max()) + 1
        suites = assign(self.fleet.roles, clients, windows.modalities, streams)
        models = self.fleet.models
        if len(models) > 1:
            dealt = streams.generator("models").permutation(clients)
            models = tuple(models[i % len(models)] for i in dealt)
        return Fleet(windows, suites, models, client_of, streams, self.fleet.normalise)

    def make_topology(self, fleet: Fleet) -> Topology:
        return self.topology.make(len(fleet))

    def to_toml(self) -> str:
        """This configuration with every default written out; parsing it gives the same run."""
        method = {"name": self.method_name, **_settings(self.make_method())}
        data = {"name": self.data["name"], **_settings(self._source())}
        tables = {
            "data": data,
            "fleet": _settings(self.fleet),
            "method": method,
            "topology": _settings(self.topology),
            "run": _settings(self.run),
        }
        lines = [f"name = {_toml(self.name)}", f"seed = {self.seed}"]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    def _source(self) -> Any:
        settings = {key: value for key, value in self.data.items() if key != "name"}
        return build(find("data", str(self.data["name"])), settings, "data")


def load(source: str, overrides: Sequence[str] = (), **tables: Any) -> Config:
    """The configuration in a file, or of a preset by name, with `key=value` overrides."""
    text, where = _read(source)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from None
    for override in overrides:
        _override(table, override)
    try:
        config: Config = build(Config, {**table, **tables}, "")
        return config
    except CommunisError as error:
        raise ConfigError(f"{where}: {error}") from None


def usable_name(name: str) -> bool:
    """Whether a folder can be called so, in its parent and on every system."""
    return name not in ("", ".", "..") and not any(c in name for c in '/\\:*?"<>|\n')


def presets() -> list[str]:
    folder = resources.files("communis") / "presets"
    return sorted(path.name[:-5] for path in folder.iterdir() if path.name.endswith(".toml"))


def build(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """The dataclass `kind` from a table whose keys and values are checked."""
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}
    for key in table:
        if key not in known:
            options = ", ".join(known)
            hint = nearest(key, list(known))
            raise ConfigError(f"unknown key {_at(where, key)}{hint}; there are {options}")
    missing = [
        _at(where, name)
        for name, f in known.items()
        if name not in table and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"missing key {', '.join(missing)}")
    values = {key: _value(hints[key], value, _at(where, key)) for key, value in table.items()}
    try:
        return kind(**values)
    except ConfigError:
        raise
    except (CommunisError, ValueError) as error:
        raise ConfigError(f"[{where}] {error}" if where else str(error)) from None


def _value(hint: Any, value: Any, where: str) -> Any:
    """`value` as the declared type, or an error that says what was expected."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in arguments:
            close = nearest(str(value), [str(a) for a in arguments])
            raise ConfigError(f"{where}: {value!r} is not one of {_listed(arguments)}{close}")
        return value
    if is_dataclass(hint) and isinstance(value, Mapping):
        return build(hint, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        if arguments[-1] is Ellipsis:
            return tuple(_value(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        if len(value) == len(arguments):
            return tuple(_value(a, v, where) for a, v in zip(arguments, value, strict=True))
    if origin is dict and isinstance(value, Mapping):
        return dict(value)
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    names = {float: "a finite number", int: "a whole number", str: "text", bool: "true or false"}
    expected = names.get(hint, "a list" if origin is tuple else "a table")
    raise ConfigError(f"{where}: expected {expected}, got {value!r}")


def _override(table: Table, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: expected key=value, such as method.lr=0.1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a word without quotes
    *parents, last = key.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {parent} is not a table")
    table[last] = value


def _read(source: str) -> tuple[str, str]:
    path = Path(source)
    if path.suffix == ".toml" or path.exists():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
    if source not in presets():
        hint = nearest(source, presets())
        raise ConfigError(
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


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _listed(options: Sequence[Any]) -> str:
    return ", ".join(repr(option) for option in options)
