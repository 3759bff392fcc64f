"""The configuration: TOML -> validated frozen dataclasses -> fleet, method and plan.

An unknown key or a bad value is refused; the error names the file, the key and the nearest valid
one.

    name = "trial"                  # the run's folder is runs/trial
    seed = 0
    metric = "macro_f1"             # the score that ranks methods; select = "tail": in which round
    [data]      name = "watch"      # a source of communis.data.sources; other keys are its settings
    [partition] by = "subject"      # windows -> clients
    [fleet]     models = ["cnn"]    # and [[fleet.roles]], [fleet.suites], [fleet.dropout], ...
    [method]    name = "fedavg"     # a method of communis.methods; other keys are its settings
    [methods.fedprox] mu = 0.1      # settings for one method only; they add to those of [method]
    [topology]  kind = "star"       # which aggregator receives whose messages
    [attack]    kind = "sign_flip"  # clients that send wrong messages
    [robust]    rule = "krum"       # the rule that replaces means in aggregation
    [privacy]   mode = "local"      # the noise that clients or the server add to messages
    [run]       rounds = 20         # the fields of communis.run.plan.Plan

One file can describe an experiment of many runs:

    compare = ["fedavg", "small_steps"]  # the methods that `communis compare --on FILE` runs
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
from pathlib import Path
from typing import Any

import tomli_w

from communis.core import memory
from communis.core.errors import CommunisError
from communis.core.plugins import find, names, nearest, trust_asked
from communis.core.reductions.settings import RobustConfig
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
from communis.fleet.start import Start
from communis.run import early, reading
from communis.run import grid as grids
from communis.run.grid import Table
from communis.run.plan import Plan
from communis.run.start import start_of


@dataclass(frozen=True)
class Config:
    """The configuration of a run."""

    name: str = "trial"  # name of the experiment, and of its folder below runs/
    seed: int = 0  # root of every random draw; the same seed gives the same bits
    data: Table = field(default_factory=lambda: {"name": "synthetic"})  # source of the windows
    partition: Partition = field(default_factory=Partition)  # how windows become clients
    # sensors, model and device of each client, and when sensors are missing
    fleet: FleetConfig = field(default_factory=FleetConfig)
    clock: ClockConfig = field(default_factory=ClockConfig)  # how seconds and joules are counted
    method: Table = field(default_factory=lambda: {"name": "fedavg"})  # federated method
    methods: Table = field(default_factory=dict)  # settings of single methods, by method
    # which client receives whose messages
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)  # clients that send wrong messages
    robust: RobustConfig = field(default_factory=RobustConfig)  # rule that replaces means
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)  # differential privacy
    run: Plan = field(default_factory=Plan)  # rounds, cohorts, evaluation, processes
    compare: tuple[str, ...] = ()  # methods and variants that `communis compare --on FILE` runs
    variants: dict[str, Table] = field(default_factory=dict)  # methods under other settings
    grid: Table = field(default_factory=dict)  # axes and levels; every cell is a Config of its own
    cell: dict[str, str] = field(default_factory=dict)  # the level of every axis, as a label
    levels: dict[str, tuple[str, ...]] = field(default_factory=dict)  # all levels, in order
    variant: str = ""  # name of these settings of the method
    metric: str = (
        ""  # the score that ranks methods, such as macro_f1; empty: accuracy, if the task has it
    )
    select: Select = "last"  # the round whose scores rank methods
    # target scores: the report counts rounds, seconds, joules and bytes until each is reached; a
    # number or a list
    target: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.grid:
            raise SchemaError("grid: a single configuration is expected here")
        early.check_labels(table_of(self))
        self._check_tables()
        self.make_method()
        self.make_source()
        for name in self.variants:
            if name in names("methods"):
                raise SchemaError(f"variants.{name}: a method has this name; choose another one")
        for name in (*self.variants, *self.compare):
            self.under(name)

    def _check_tables(self) -> None:
        """Refuses tables of methods and data without a name or with settings that do not fit."""
        named = {"data": self.data, "method": self.method}
        named |= {f"variants.{name}": settings for name, settings in self.variants.items()}
        for key, table in named.items():
            early.refuse_nameless(table, key)
        for name, settings in self.methods.items():
            if not isinstance(settings, Mapping):
                raise SchemaError(f"methods.{name}: expected a table, got {shown(settings)}")
            build(find("methods", name), settings, f"methods.{name}")

    @property
    def method_name(self) -> str:
        return str(self.method["name"])

    @property
    def label(self) -> str:
        """The name of the variant or of the method, used in folder names."""
        return self.variant or self.method_name.rpartition(":")[2]

    def under(self, name: str) -> Config:
        """Returns the configuration of a single run with this method or variant."""
        early.refuse_unknown_method(name, self.variants)
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
        """Returns the settings of a method or variant, including the method's name."""
        own = self.variants.get(name, {"name": name})
        return {**self.method, **self.methods.get(own["name"], {}), **own}

    def make_fleet(self) -> Fleet:
        streams = Streams(self.seed)
        windows: Windows = self.make_source().load(streams)
        fleet = self.fleet.make(windows, self.partition, streams, self.run.newcomers)
        attack = self.attack.make(len(fleet), streams, fleet.newcomers)
        return replace(fleet, clock=self.clock, attack=attack, start=self._start())

    def external_files(self) -> dict[str, Any]:
        """Returns the content of the external files that the run depends on."""
        return self.fleet.external_files(self._start())

    def _start(self) -> Start | None:
        """Returns what models begin with; None: random values."""
        if not self.fleet.start:
            return None
        return start_of(Path(self.fleet.start), self.data)

    def make_topology(self, fleet: Fleet) -> Topology:
        if self.topology.kind in ("complete", "erdos_renyi"):
            memory.require(
                100.0 * len(fleet) ** 2,
                f'topology: kind = "{self.topology.kind}" of {len(fleet):,} clients',
                "the number of clients, or choose another topology.kind",
            )
        return self.topology.make(len(fleet), fleet.streams)

    def to_toml(self) -> str:
        """Returns this configuration with every default written out; `parse` reads it."""
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
        top: dict[str, Any] = {"name": self.name, "seed": self.seed}
        for key in ("variant", "metric", "target"):
            if getattr(self, key):
                top[key] = getattr(self, key)
        if self.select != "last":
            top["select"] = self.select
        filled = {name: table for name, table in tables.items() if table}
        return tomli_w.dumps(plain({**top, **filled}))

    def make_source(self) -> Any:
        settings = {key: value for key, value in self.data.items() if key != "name"}
        return build(find("data", str(self.data["name"])), settings, "data")


def load(source: str, overrides: Sequence[str] = (), cell: str = "") -> Config:
    """Returns the configuration of a file or preset with `key=value` overrides. cell: the cell of a
    grid, such as "severe/moderate". `method.name` may also be a variant."""
    config = pick(load_cells(source, overrides, alone=True), cell, source)
    if config.method_name in config.variants:
        return config.under(config.method_name)
    return config


def load_cells(
    source: str, overrides: Sequence[str] = (), compare: Sequence[str] = (), alone: bool = False
) -> dict[str, Config]:
    """Returns the configurations of all cells of a file's grid by their levels; without a grid, a
    single one named "". compare: replaces the file's list; alone: the file's list is dropped."""
    trust_asked(*compare)
    instead: dict[str, Any] = {}
    if alone:
        instead["compare"] = ()
    elif compare:
        instead["compare"] = compare
    table, changed, where = reading.read(source, overrides, instead)
    try:
        configs = _built(grids.tables_by_cell(table, changed))
        for config in configs.values():
            run = [config.method_name] if alone else config.compare
            grids.refuse_ignored(changed, run, config.methods, config.variants)
        return configs
    except CommunisError as error:
        raise SchemaError(f"{where}: {error}") from None


def parse(text: str) -> Config:
    """Returns the configuration in a text that `to_toml` wrote."""
    table = tomllib.loads(text)
    refuse_strange(table)
    return _built({"": table})[""]


def pick(configs: Mapping[str, Config], cell: str, where: str) -> Config:
    """Returns the configuration of one cell of the file `where`."""
    if cell in configs:
        return configs[cell]
    if "" in configs:
        raise SchemaError(f"{where}: without a grid there is no cell {cell!r}")
    if cell:
        why = f"no cell {cell!r}{nearest(cell, list(configs))}"
    else:
        why = "a grid: choose a cell with --cell"
    raise SchemaError(f"{where}: {why}; there are {', '.join(configs)}")


def bare(data: Table, overrides: Sequence[str] = ()) -> Config:
    """Returns the default configuration of a dataset, with `key=value` overrides."""
    table: Table = {"data": dict(data)}
    trust_asked(*(text.partition("=")[2] for text in overrides))
    for override in overrides:
        grids.override(table, override)
    refuse_strange(table)
    return _built({"": table})[""]


def _built(tables: Mapping[str, Table]) -> dict[str, Config]:
    """Returns the configuration of every cell."""
    return early.each_cell(tables, _single)


def _single(table: Table) -> Config:
    config: Config = build(Config, table, "")
    return config
