"""A run as read from its folder."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import StatisticsError, fmean
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from communis.core.contract import SERVER
from communis.core.disk import regular
from communis.core.errors import CommunisError, readable
from communis.core.names import NEWCOMERS
from communis.core.pooled import HITS, SAID, Count, is_pooled, of_client, pooled_f1, sibling
from communis.core.selection import Select
from communis.core.settings import SchemaError, refuse_line_breaks
from communis.exchange.messages import RoundRecord
from communis.fleet.availability.trace import Trace
from communis.results import expected
from communis.results.selection import Scores, chosen
from communis.run import tables
from communis.run.folder import RunFolder

LONGEST_NAME = 60  # characters of a client's name
# Settings that change no number of a run, or that runs to be averaged over may differ in.
_FREE = ("name", "variant", "seed", "metric", "select", "target", "run.workers", "run.start_method",
         "run.backend", "run.together",
         "run.checkpoint_every", "run.device", "run.eval_whole", "run.pairs",
         "run.pairs_in")  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """A run as read from its folder."""

    path: Path
    config: Mapping[str, Any]
    records: Sequence[RoundRecord]
    label: str = ""  # the method, with its settings where runs differ in them; see `collect`

    @property
    def method(self) -> str:
        return self.label or str(self.config.get("variant") or self.config["method"]["name"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def cell(self) -> Mapping[str, str]:
        """The place of the run in the grid of its experiment: the level of every axis."""
        return {axis: str(level) for axis, level in self.config.get("cell", {}).items()}

    @cached_property
    def place(self) -> str:
        """The cell's name."""
        return ", ".join(f"{axis} {level}" for axis, level in self.cell.items())

    @cached_property
    def position(self) -> tuple[int, ...]:
        """The place of the cell in the order of the experiment's file: the number of its level on
        every axis. Folders of older versions do not have the order."""
        numbers = []
        for axis, level in self.cell.items():
            levels = [str(known) for known in self.config.get("levels", {}).get(axis, ())]
            numbers.append(levels.index(level) if level in levels else len(levels))
        return tuple(numbers)

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """Every setting that can change a number of the run, by dotted key; values as JSON."""
        flat = {}
        for table, content in self.config.items():
            items = content.items() if isinstance(content, Mapping) else [("", content)]
            for key, value in items:
                flat[f"{table}.{key}".rstrip(".")] = json.dumps(value, default=str)
        if "brought" in self.fleet:  # the content of these files counts, not their names
            flat.pop("fleet.profiles", None)
            flat.pop("fleet.weights", None)
            for key, value in self.fleet["brought"].items():
                flat[f"brought.{key}"] = json.dumps(value, sort_keys=True)
        return {
            key: value
            for key, value in flat.items()
            if key not in _FREE and not key.startswith("levels.")
        }

    @cached_property
    def bench(self) -> Mapping[str, str]:
        """The settings that runs must share for their difference to mean something."""
        own = ("method.", "privacy.")
        return {k: v for k, v in self.settings.items() if not k.startswith(own)}

    @property
    def targets(self) -> Sequence[float]:
        """The target scores of the experiment's file, which has a number, a list or nothing."""
        asked = self.config.get("target", 0)
        values = asked if isinstance(asked, list) else [asked]
        return [float(value) for value in values if value]

    @property
    def evaluated(self) -> Sequence[RoundRecord]:
        """The records of the rounds that were evaluated."""
        return [record for record in self.records if record.scores]

    @property
    def planned(self) -> int:
        """The number of rounds in the settings; 0 where they have none."""
        return int(self.config["run"]["rounds"])

    @property
    def complete(self) -> bool:
        """Whether all rounds are done, or the budget of privacy is spent."""
        done = len(self.records)
        return done == self.planned or (done > 0 and done == self.privacy.get("ended"))

    @cached_property
    def privacy(self) -> Mapping[str, Any]:
        """The account of what left the clients and how it was protected; empty in folders of older
        versions."""
        account = RunFolder(self.path).accounted()
        expected.check(self.path / "privacy.json", account, expected.ACCOUNT)
        return account

    @cached_property
    def fleet(self) -> Mapping[str, Any]:
        """The class names and clients, as they were written when the run began."""
        path = self.path / "fleet.json"
        fleet: Mapping[str, Any] = RunFolder(self.path).fleet()
        expected.check_fleet(path, fleet)
        return fleet

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """The versions of packages, and the machine."""
        environment = RunFolder(self.path).environment()
        expected.check(self.path / "environment.json", environment, {})
        return environment

    @cached_property
    def trace(self) -> Trace | None:
        """The trace of missing sensors; None if none was ever missing."""
        path = self.path / "availability.parquet"
        if not path.exists() and not self.fleet.get("availability"):
            return None
        trace = Trace.load(path)
        expected.check_trace(path, trace, self.fleet)
        return trace

    @property
    def clients(self) -> Sequence[Mapping[str, Any]]:
        """The clients of the fleet. With pooled data, the last one stands for the server and is not
        among them."""
        described: Sequence[Mapping[str, Any]] = self.fleet["clients"]
        return described[:-1] if self.fleet["pooled"] else described

    @property
    def newcomers(self) -> Mapping[int, str]:
        """The clients that took no part in training, with the reason why they were not scored; it
        is empty if they were."""
        return {found["id"]: found["unscored"] for found in self.fleet.get("newcomers") or ()}

    @property
    def attackers(self) -> list[int]:
        """The clients that attack; none in folders of older versions."""
        return list(self.fleet.get("attackers", ()))

    @cached_property
    def sensors(self) -> Mapping[int, tuple[str, ...]]:
        """The sensors that every described client owns."""
        return {c["id"]: tuple(c.get("sensors", ())) for c in self.clients if "id" in c}

    @cached_property
    def models(self) -> Mapping[int, str]:
        """The architecture of every client whose description has one."""
        return {c["id"]: c["model"] for c in self.clients if "id" in c and c.get("model")}

    @cached_property
    def names(self) -> Mapping[int, str]:
        """The own name of every client that has one, such as a subject's, on one printable line."""
        named = [c for c in self.clients if "id" in c and c.get("name")]
        return {c["id"]: readable(c["name"], LONGEST_NAME) for c in named}

    def called(self, client: int) -> str:
        """What pages call a client: its own name, or its number."""
        return self.names.get(client, f"client {client}")

    @cached_property
    def kinds(self) -> Mapping[int, str]:
        """The kind of every client: its device, if it is known, and its sensors."""
        devices = {client.get("id"): client.get("device", "") for client in self.clients}
        kinds = {}
        for client, suite in self.sensors.items():
            kinds[client] = ", ".join(filter(None, [devices[client], "+".join(suite)]))
        return kinds

    @property
    def scores(self) -> pd.DataFrame:
        """All scores, by round, client, sensors, metric and class. A long run has many, so they are
        read anew each time."""
        return pd.DataFrame(self.rows("scores"))

    @cached_property
    def last_scores(self) -> pd.DataFrame:
        """All scores of the last evaluated round."""
        last = [record.round for record in self.evaluated[-1:]]
        return pd.DataFrame(self.rows("scores", rounds=last))

    @property
    def clock(self) -> pd.DataFrame:
        """Simulated seconds and joules by round and client."""
        return pd.DataFrame(self.rows("clock"))

    @property
    def log(self) -> pd.DataFrame:
        """The log of clients and of the server (client -1), by round."""
        return pd.DataFrame(self.rows("log"))

    @property
    def pairs(self) -> pd.DataFrame:
        """The cosines of the updates of two clients, by round and group of parameters."""
        return pd.DataFrame(self.rows("pairs"))

    def rows(
        self,
        room: str,
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        rounds: Collection[int] | None = None,
    ) -> Any:
        """The rows of the tables of a room as a data frame, or those that `tables.read` chooses."""
        table = tables.read(self.path, room, self.records, where, columns, rounds).to_pandas()
        expected.check_rows(self.path / room, table, self.clients)
        return table

    @cached_property
    def senders(self) -> Mapping[int, int]:
        """The clients that sent a payload, with the first round in which they did."""
        sent = (pc.field("sender") != SERVER) & (pc.field("payload") > 0)
        links = self.rows("links", sent, ["sender", "round"])
        first = links.groupby("sender")["round"].min()
        return {int(client): int(round) for client, round in first.items()}

    def _history(self, metric: str) -> tuple[Scores, Scores]:
        """The test and the validation scores of clients with all their sensors, by client and
        round."""
        if metric not in self._histories:
            table = self._own(metric)
            test = table[table["split"] == "test"]["value"]
            validation = table[table["split"] == "val"]["value"]
            self._histories[metric] = test, validation
        return self._histories[metric]

    @cached_property
    def _histories(self) -> dict[str, tuple[Scores, Scores]]:
        """The histories that were read before: those of the metrics that choose a round."""
        return {}

    def _test(self, metric: str, there: pd.Index[Any]) -> Scores:
        """The test scores of these clients and rounds, and maybe of others."""
        if metric in self._histories:
            return self._histories[metric][0]
        table = self._own(metric, there.get_level_values("round").unique().tolist())
        return table[table["split"] == "test"]["value"]

    def _own(self, metric: str, rounds: Collection[int] | None = None) -> pd.DataFrame:
        """The scores of clients with all their sensors, by client and round."""
        where = pc.field("own") & (pc.field("class") == -1) & (pc.field("metric") == metric)
        columns = ["client", "round", "split", "value"]
        table = self.rows("scores", where, columns, rounds)
        return pd.DataFrame(table.set_index(["client", "round"]).sort_index())

    def by_client(self, metric: str, select: Select = "last", by: str = "") -> Scores:
        """The test score of every client with all its sensors, in the round that counts or as the
        mean over those that count. The validation scores of the metric `by` choose the round (if
        it is empty, those of this metric), so that several metrics describe the same model."""
        metric_of_client = of_client(metric)
        chosen_by = by or metric
        key = metric_of_client, select, chosen_by
        if key not in self._chosen:
            counting = self._counting(select, chosen_by)
            scores = self._test(metric_of_client, counting)
            by_client = scores[scores.index.isin(counting)].groupby("client")
            all_finite = by_client.count() == by_client.size()
            self._chosen[key] = by_client.mean().where(all_finite)
        return self._chosen[key]

    def _counting(self, select: Select, by: str) -> pd.Index[Any]:
        """Every client with the rounds that count. Rounds are chosen by means over clients, also
        those of a pooled score."""
        metric = of_client(by)
        return chosen(*self._history(metric), metric, select)

    @cached_property
    def _chosen(self) -> dict[tuple[str, Select, str], Scores]:
        """The results of `by_client`, which tables and pages ask for many times."""
        return {}

    def of_newcomers(self, metric: str, select: Select = "last", by: str = "") -> Scores:
        """The score of every newcomer with all its sensors, in the rounds that count for all other
        clients. A newcomer has no validation windows to choose a round of its own: then the last
        one counts."""
        key = metric, select, by or metric
        if key not in self._welcomed:
            last = [record.round for record in self.evaluated[-1:]]
            counting = self._counting(select, by or metric).get_level_values("round").unique()
            rounds = last if select == "client" else counting.tolist()
            where = pc.field("own") & (pc.field("class") == -1) & (pc.field("metric") == metric)
            where &= pc.field("split") == NEWCOMERS
            table = self.rows("scores", where, ["client", "round", "value"], rounds)
            by_client = table.groupby("client")["value"]
            all_finite = by_client.count() == by_client.size()
            self._welcomed[key] = by_client.mean().where(all_finite)
        return self._welcomed[key]

    @cached_property
    def _welcomed(self) -> dict[tuple[str, Select, str], Scores]:
        """The results of `of_newcomers`."""
        return {}

    def final(self, metric: str, select: Select = "last", by: str = "") -> float:
        """The mean of `by_client` over clients, or the pooled score; NaN if there is none."""
        if is_pooled(metric):
            return self._pooled(metric, select, by or metric)
        key = metric, select, by or metric
        if key not in self._finals:
            self._finals[key] = float(self.by_client(metric, select, by).mean(skipna=False))
        return self._finals[key]

    @cached_property
    def _finals(self) -> dict[tuple[str, Select, str], float]:
        """The results of `final` that are means over clients."""
        return {}

    def by_class(self, metric: str, column: str) -> pd.DataFrame:
        """Clients x classes: a column of the test scores by class, of clients with all their
        sensors, in the last evaluated round. Empty where there are none."""
        key = metric, column
        if key not in self._classes:
            table = self.last_scores
            counting = (table["metric"] == metric) & (table["split"] == "test") & table["own"]
            rows = table[counting]
            clients, down = np.unique(rows["client"], return_inverse=True)
            classes, across = np.unique(rows["class"], return_inverse=True)
            values = np.zeros((len(clients), len(classes)))
            np.add.at(values, (down, across), rows[column].to_numpy(float))
            self._classes[key] = pd.DataFrame(values, clients, classes)
        return self._classes[key]

    @cached_property
    def _classes(self) -> dict[tuple[str, str], pd.DataFrame]:
        """The results of `by_class`."""
        return {}

    def _pooled(self, metric: str, select: Select, by: str) -> float:
        """The macro-F1 of the windows of all clients together, each in the round that counts for
        it. Where several rounds count for all clients, the mean over these rounds."""
        key = metric, select, by
        if key not in self._pools:
            counting = self._counting(select, by)
            rounds = counting.get_level_values("round").unique().tolist()
            names = [sibling(metric, HITS), sibling(metric, SAID)]
            where = pc.field("own") & (pc.field("split") == "test")
            where &= pc.field("metric").isin(names)
            columns = ["client", "round", "metric", "class", "value", "support"]
            table = self.rows("scores", where, columns, rounds).set_index(["client", "round"])
            table = table[table.index.isin(counting)]
            if select == "client":
                parts = [table]
            else:
                parts = [part for _, part in table.groupby("round")]
            try:
                values = [_f1(part) for part in parts if len(part)]
            # No windows, infinitely many, or no class at all.
            except (ZeroDivisionError, OverflowError, StatisticsError):
                raise CommunisError(
                    f"{self.path / 'scores'}: {names[0]} and {names[1]} count windows, but some "
                    "are no numbers of windows; put back a copy, or run it again"
                ) from None
            self._pools[key] = fmean(values) if values else math.nan
        return self._pools[key]

    @cached_property
    def _pools(self) -> dict[tuple[str, Select, str], float]:
        """The results of `_pooled`."""
        return {}


def _f1(table: pd.DataFrame) -> float:
    """The macro-F1 of the windows that these rows of scores count."""
    rows = zip(table["metric"], table["class"], table["value"], table["support"], strict=True)
    return pooled_f1(Count(*row) for row in rows)


def read(path: Path) -> Finished:
    """The run in this folder. A run without a finished round, or with a gap between its rounds, is
    refused."""
    config = settings_in(path)
    records = RunFolder(path).complete_records()
    if not records:
        raise CommunisError(
            f"{path}: {config['method']['name']}, seed {config['seed']}, has no finished round yet"
        )
    gaps = [round for round, record in enumerate(records, 1) if record.round != round]
    if gaps:
        raise CommunisError(
            f"{path / 'records.jsonl'}: has no record of round {gaps[0]}, though of later ones, so "
            "sums over rounds would be wrong; put back a copy of the file, or run it again"
        )
    for record in records:
        expected.check_record(path / "records.jsonl", record)
    return Finished(path, config, records)


def settings_in(folder: Path) -> Mapping[str, Any]:
    """The settings of the run in this folder. A file without the method, the seed or the rounds is
    refused: a run writes all of its settings, so they were lost."""
    path = folder / "config.toml"
    try:
        settings = tomllib.loads(regular(path).read_text(encoding="utf-8"))
        expected.check(path, settings, expected.CONFIG)
        name = settings["method"]["name"]
        seed = settings["seed"]
        # The settings of a run that was made in Python may lack the data and the rounds.
        settings = {"data": {"name": "not said"}, "run": {}, **settings}
        settings["run"] = {"rounds": 0, **settings["run"]}
        expected.check(path, settings["run"], expected.RUN, "run")
        data = settings["data"]["name"]
        rounds = settings["run"]["rounds"]
        refuse_line_breaks(settings)
    except SchemaError as error:
        raise CommunisError(f"{path}: {error}") from None
    except (OSError, ValueError, KeyError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CommunisError(
            f"{path}: not the settings of a run ({readable(what)}); put back a copy"
        ) from None
    if not (isinstance(name, str) and isinstance(data, str) and rounds >= 0 and seed >= 0):
        raise CommunisError(
            f"{path}: expected method.name and data.name as text, and rounds and seed of at least 0"
        )
    target = settings.get("target", 0)
    targets = target if isinstance(target, list) else [target]
    if any(type(value) not in (int, float) for value in targets):
        raise CommunisError(f"{path}: target: expected a number or a list of numbers")
    return settings
