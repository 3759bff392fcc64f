"""TOML -> validated frozen dataclasses -> fleet, method and plan.

An unknown key or a bad value is an error that names the file, the key and the nearest valid one.

    name = "trial"                  # the run's folder is runs/trial
    seed = 0
    metric = "macro_f1"             # the score to judge by; select = "tail": in which round
    [data]      name = "watch"      # a source of communis.data.sources; other keys are its settings
    [partition] by = "subject"      # windows -> clients
    [fleet]     models = ["cnn"]    # and [[fleet.roles]], [fleet.suites], [fleet.dropout], ...
    [method]    name = "fedavg"     # a method of communis.methods; other keys are its settings
    [methods.fedprox] mu = 0.1      # settings for one method only; they add to those of [method]
    [topology]  kind = "star"       # who hears whom
    [attack]    kind = "sign_flip"  # who lies, and how
    [robust]    rule = "krum"       # what stands in for means
    [privacy]   mode = "local"      # what clients or the server do to what is sent
    [run]       rounds = 20         # the fields of communis.run.loop.Plan

An experiment has many of them in one file:

    compare = ["fedavg", "small_steps"]  # what `communis compare --on FILE` runs
    [variants.small_steps]               # a method under other settings, on top of the above
    name = "fedavg"
    lr = 0.001
    [grid.H.severe]                      # axis and level; see grid.py
    fleet.suites.preset = "severe"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tomli_w

from communis.core import memory
from communis.core.errors import CommunisError
from communis.core.plugins import find, names, nearest, trust_asked
from communis.core.reductions.rules import RobustConfig
from communis.core.selection import Select
from communis.core.settings import SchemaError, build, plain, refuse_strange, shown, table_of
from communis.core.streams import Streams
from communis.data.recordings.windows import Windows
from communis.exchange.messages import Topology
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.topology import TopologyConfig
from communis.fleet.attack import AttackConfig
from communis.fleet.device import ClockConfig
from communis.fleet.fleet import AnyMethod, Fleet
from communis.fleet.partition.settings import Partition
from communis.fleet.settings import FleetConfig
from communis.run import grid as grids
from communis.run import reading
from communis.run.grid import Table
from communis.run.plan import Plan


@dataclass(frozen=True)
class Config:
    name: str = "trial"  # name of the experiment, and of its folder below runs/
    seed: int = 0  # root of every random draw; the same seed gives the same bits
    data: Table = field(default_factory=lambda: {"name": "synthetic"})  # where windows come from
    partition: Partition = field(default_factory=Partition)  # how windows become clients
    # which client has which sensors, model and device, and when
    fleet: FleetConfig = field(default_factory=FleetConfig)
    clock: ClockConfig = field(default_factory=ClockConfig)  # how seconds and joules are counted
    method: Table = field(default_factory=lambda: {"name": "fedavg"})  # what is trained, and how
    methods: Table = field(default_factory=dict)  # settings of single methods, by method
    # which client receives whose messages
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)  # clients that send wrong messages
    robust: RobustConfig = field(default_factory=RobustConfig)  # what replaces means
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)  # differential privacy
    run: Plan = field(default_factory=Plan)  # rounds, cohorts, evaluation, processes
    compare: tuple[str, ...] = ()  # methods and variants that `communis compare --on FILE` runs
    variants: dict[str, Table] = field(default_factory=dict)  # methods under other settings
    grid: Table = field(default_factory=dict)  # of a file; `cells` makes a Config of every cell
    cell: dict[str, str] = field(default_factory=dict)  # the level of every axis, as a label
    levels: dict[str, tuple[str, ...]] = field(default_factory=dict)  # all levels, in order
    variant: str = ""  # the name by which these settings of the method go
    metric: str = ""  # the score to judge by, such as macro_f1
    select: Select = "last"  # the round whose scores rank methods
    # scores until which rounds, seconds, joules and bytes are counted; a number or a list
    target: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.grid:
            raise SchemaError("grid: a single configuration is expected here")
        folders = {"name": self.name} | ({"variant": self.variant} if self.variant else {})
        folders |= {f"cell.{axis}": level for axis, level in self.cell.items()}
        folders |= {f"variants.{name}": name for name in self.variants}
        for key, name in folders.items():
            if not usable_name(name):
                raise SchemaError(f"{key}: {shown(name)} cannot be the name of a folder")
        for key, least in {"seed": self.seed, "target": min(self.target, default=0)}.items():
            if least < 0:
                raise SchemaError(f"{key}: must be at least 0, got {least}")
        named = {"data": self.data, "method": self.method}
        named |= {f"variants.{name}": settings for name, settings in self.variants.items()}
        for key, table in named.items():
            if not isinstance(table.get("name"), str):
                raise SchemaError(f"missing key {key}.name")
        for name, settings in self.methods.items():
            if not isinstance(settings, Mapping):
                raise SchemaError(f"methods.{name}: expected a table, got {shown(settings)}")
            build(find("methods", name), settings, f"methods.{name}")
        self.make_method()
        self.make_source()
        for name in self.variants:
            if name in names("methods"):
                raise SchemaError(f"variants.{name}: a method is called so; choose another name")
        for name in (*self.variants, *self.compare):
            self.under(name)

    @property
    def method_name(self) -> str:
        return str(self.method["name"])

    @property
    def label(self) -> str:
        """The variant or the method, as folders are called."""
        return self.variant or self.method_name.rpartition(":")[2]

    def under(self, name: str) -> Config:
        """The same with a method, or a variant of one: the configuration of a single run."""
        known = [*names("methods"), *self.variants]
        if ":" not in name and name not in known:
            raise SchemaError(
                f"no method {name!r}{nearest(name, known)}; there are {', '.join(known)}"
            )
        variant = name if name in self.variants else ""
        own: Table = {"method": self._method(name), "variant": variant}
        try:
            return replace(self, methods={}, compare=(), variants={}, **own)
        except CommunisError as error:
            raise SchemaError(f"{name}: {error}") from None

    def make_method(self) -> AnyMethod:
        settings = self._method(self.method_name)
        method: AnyMethod = build(find("methods", settings.pop("name")), settings, "method")
        return method

    def _method(self, name: str) -> Table:
        """The settings of a method or variant, with the method's name."""
        own = self.variants.get(name, {"name": name})
        return {**self.method, **self.methods.get(own["name"], {}), **own}

    def make_fleet(self) -> Fleet:
        streams = Streams(self.seed)
        windows: Windows = self.make_source().load(streams)
        fleet = self.fleet.make(windows, self.partition, streams)
        return replace(fleet, clock=self.clock, attack=self.attack.make(len(fleet), streams))

    def make_topology(self, fleet: Fleet) -> Topology:
        if self.topology.kind in ("complete", "erdos_renyi"):
            memory.require(
                100.0 * len(fleet) ** 2,
                f'topology: kind = "{self.topology.kind}" of {len(fleet):,} clients',
                "the number of clients, or choose another topology.kind",
            )
        return self.topology.make(len(fleet), fleet.streams)

    def to_toml(self) -> str:
        """This configuration with every default written out; parsing it gives the same run."""
        method = {"name": self.method_name, **table_of(self.make_method())}
        data = {"name": self.data["name"], **table_of(self.make_source())}
        tables: dict[str, Mapping[str, Any]] = {
            "cell": self.cell,
            "levels": self.levels,
            "data": data,
            "partition": table_of(self.partition),
            "fleet": table_of(self.fleet),
            "clock": table_of(self.clock),
            "method": method,
            "topology": table_of(self.topology),
            "attack": table_of(self.attack),
            "robust": table_of(self.robust),
            "privacy": table_of(self.privacy),
            "run": table_of(self.run),
        }
        top = {key: getattr(self, key) for key in ("variant", "metric", "target")}
        top |= {"select": self.select} if self.select != "last" else {}
        top = {"name": self.name, "seed": self.seed} | {key: v for key, v in top.items() if v}
        given = {name: table for name, table in tables.items() if table}
        return tomli_w.dumps(plain({**top, **given}))

    def make_source(self) -> Any:
        settings = {key: value for key, value in self.data.items() if key != "name"}
        return build(find("data", str(self.data["name"])), settings, "data")


def load(source: str, overrides: Sequence[str] = (), cell: str = "") -> Config:
    """The configuration in a file, or of a preset by name, with `key=value` overrides; of a grid
    the one in a cell, such as "severe/moderate". As method.name a variant will do."""
    config = pick(cells(source, overrides, alone=True), cell, source)
    return config.under(config.method_name) if config.method_name in config.variants else config


def cells(
    source: str, overrides: Sequence[str] = (), compare: Sequence[str] = (), alone: bool = False
) -> dict[str, Config]:
    """The configurations of all cells of a file's grid by their levels; without a grid a single
    one called "". `compare`: instead of the file's list; `alone`: nothing is compared at all."""
    trust_asked(*compare)
    instead = {"compare": () if alone else compare} if alone or compare else {}
    table, changed, where = reading.read(source, overrides, instead)
    try:
        found = _built(grids.cells(table, changed))
        for config in found.values():
            run = [config.method_name] if alone else config.compare
            grids.refuse_ignored(changed, run, config.methods, config.variants)
        return found
    except CommunisError as error:
        raise SchemaError(f"{where}: {error}") from None


def parse(text: str) -> Config:
    """The configuration in a text that `to_toml` wrote."""
    table = tomllib.loads(text)
    refuse_strange(table)
    return _built({"": table})[""]


def pick(found: Mapping[str, Config], cell: str, where: str) -> Config:
    """One of the cells of `where`."""
    if cell in found:
        return found[cell]
    if "" in found:
        raise SchemaError(f"{where}: without a grid there is no cell {cell!r}")
    why = f"no cell {cell!r}{nearest(cell, list(found))}" if cell else "a grid: choose with --cell"
    raise SchemaError(f"{where}: {why}; there are {', '.join(found)}")


def bare(data: Table, overrides: Sequence[str] = ()) -> Config:
    """Nothing but a dataset, everything else as it is by default."""
    table: Table = {"data": dict(data)}
    trust_asked(*(text.partition("=")[2] for text in overrides))
    for override in overrides:
        grids.override(table, override)
    refuse_strange(table)
    return _built({"": table})[""]


def usable_name(name: str) -> bool:
    """Whether a folder can be called so, in its parent and on every system."""
    return name not in ("", ".", "..") and not any(
        c in '/\\:*?"<>|' or not c.isprintable() for c in name
    )


def _built(tables: Mapping[str, Table]) -> dict[str, Config]:
    """The configuration of every cell; a mistake in all of them is no cell's own."""
    found, wrong = {}, {}
    for name, table in tables.items():
        try:
            single = not isinstance(target := table.get("target", ()), list | tuple)
            found[name] = build(Config, {**table, "target": [target]} if single else table, "")
        except CommunisError as error:
            wrong[name] = str(error)
    everywhere = not found and len(set(wrong.values())) == 1
    for name, why in wrong.items():
        raise SchemaError(why if everywhere else f"cell {name}: {why}")
    return found
