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

import pandas as pd
import pyarrow.compute as pc

from communis.core import disk
from communis.core.contract import SERVER
from communis.core.errors import CommunisError, readable
from communis.core.pooled import HITS, SAID, Count, is_pooled, of_client, pooled_f1, sibling
from communis.core.selection import Select
from communis.exchange.messages import RoundRecord
from communis.fleet.availability.trace import Trace
from communis.results import expected
from communis.results.selection import Scores, chosen
from communis.run import tables
from communis.run.folder import RunFolder

# Settings that change no number of a run, or that runs to be averaged over may differ in.
_FREE = ("name", "variant", "seed", "metric", "select", "target", "run.workers", "run.start_method",
         "run.checkpoint_every", "run.device", "run.eval_whole", "run.pairs",
         "run.pairs_in")  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """A run as read from its folder."""

    path: Path
    config: Mapping[str, Any]
    records: Sequence[RoundRecord]
    label: str = ""  # the method, with what tells it from others of its name; see `collect`

    @property
    def method(self) -> str:
        return self.label or str(self.config.get("variant") or self.config["method"]["name"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def cell(self) -> Mapping[str, str]:
        """Where in an experiment's grid it lies: axis -> level."""
        return {axis: str(level) for axis, level in self.config.get("cell", {}).items()}

    @cached_property
    def place(self) -> str:
        """The cell's name."""
        return ", ".join(f"{axis} {level}" for axis, level in self.cell.items())

    @cached_property
    def position(self) -> tuple[int, ...]:
        """Where the cell stands in the order of the experiment's file; old folders do not say."""
        found = []
        for axis, level in self.cell.items():
            levels = [str(one) for one in self.config.get("levels", {}).get(axis, ())]
            found.append(levels.index(level) if level in levels else len(levels))
        return tuple(found)

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """Every setting that matters, by dotted key."""
        flat = {}
        for table, content in self.config.items():
            items = content.items() if isinstance(content, Mapping) else [("", content)]
            for key, value in items:
                flat[f"{table}.{key}".rstrip(".")] = json.dumps(value, default=str)
        if "brought" in self.fleet:  # what counts is in the files, not what they are called
            flat = {k: v for k, v in flat.items() if k not in ("fleet.profiles", "fleet.weights")}
            brought = self.fleet["brought"].items()
            flat |= {f"brought.{k}": json.dumps(v, sort_keys=True) for k, v in brought}
        return {k: v for k, v in flat.items() if k not in _FREE and not k.startswith("levels.")}

    @cached_property
    def bench(self) -> Mapping[str, str]:
        """The settings that runs must share for their difference to mean something."""
        own = ("method.", "privacy.")
        return {k: v for k, v in self.settings.items() if not k.startswith(own)}

    @property
    def targets(self) -> Sequence[float]:
        """Of the score to judge by, as its file has them: a number, a list or nothing."""
        found = self.config.get("target", 0)
        return [float(one) for one in (found if isinstance(found, list) else [found]) if one]

    @property
    def evaluated(self) -> Sequence[RoundRecord]:
        return [record for record in self.records if record.scores]

    @property
    def planned(self) -> int:
        """How many rounds it is to have; 0 where its settings do not say."""
        return int(self.config["run"]["rounds"])

    @property
    def complete(self) -> bool:
        planned, ended = self.planned, self.privacy.get("ended")
        return len(self.records) == planned or (bool(self.records) and len(self.records) == ended)

    @cached_property
    def privacy(self) -> Mapping[str, Any]:
        """What left the clients and how it was protected; empty in folders of older versions."""
        path = self.path / "privacy.json"
        found = RunFolder(self.path).accounted()
        expected.check(path, found, expected.ACCOUNT)
        return found

    @cached_property
    def fleet(self) -> Mapping[str, Any]:
        """Class names and clients, as written when the run began."""
        path = self.path / "fleet.json"
        found: Mapping[str, Any] = disk.read_json(path)
        expected.check_fleet(path, found)
        return found

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Versions and machine."""
        found = RunFolder(self.path).environment()
        expected.check(self.path / "environment.json", found, {})
        return found

    @cached_property
    def trace(self) -> Trace | None:
        """When which sensor was missing; None if none was."""
        path = self.path / "availability.parquet"
        if not path.exists() and not self.fleet.get("availability"):
            return None
        found = Trace.load(path)
        expected.check_trace(path, found, self.fleet)
        return found

    @property
    def clients(self) -> Sequence[Mapping[str, Any]]:
        """The fleet's clients; with pooled data, the one beside the server is none of them."""
        found: Sequence[Mapping[str, Any]] = self.fleet["clients"]
        return found[:-1] if self.fleet["pooled"] else found

    @property
    def attackers(self) -> list[int]:
        """Who attacks; nobody in old folders."""
        return list(self.fleet.get("attackers", ()))

    @cached_property
    def sensors(self) -> Mapping[int, tuple[str, ...]]:
        """What every client owns, as far as it is described."""
        return {c["id"]: tuple(c.get("sensors", ())) for c in self.clients if "id" in c}

    @cached_property
    def models(self) -> Mapping[int, str]:
        """The architecture of every client, as far as it is described."""
        return {c["id"]: c["model"] for c in self.clients if "id" in c and c.get("model")}

    @cached_property
    def kinds(self) -> Mapping[int, str]:
        """What every client is: its device, if it is known, and its sensors."""
        devices = {c.get("id"): c.get("device", "") for c in self.clients}
        return {
            client: ", ".join(filter(None, [devices[client], "+".join(suite)]))
            for client, suite in self.sensors.items()
        }

    @property
    def scores(self) -> pd.DataFrame:
        """Everything that was scored; of a long run that is a lot, so it is not kept."""
        return pd.DataFrame(self.rows("scores"))

    @cached_property
    def last_scores(self) -> pd.DataFrame:
        """Everything that was scored in the last evaluated round."""
        last = [record.round for record in self.evaluated[-1:]]
        return pd.DataFrame(self.rows("scores", rounds=last))

    @property
    def clock(self) -> pd.DataFrame:
        """Simulated seconds and joules by round and client."""
        return pd.DataFrame(self.rows("clock"))

    @property
    def log(self) -> pd.DataFrame:
        """What clients and the server (-1) noted, by round."""
        return pd.DataFrame(self.rows("log"))

    @property
    def pairs(self) -> pd.DataFrame:
        """How alike the updates of two clients were, by round and group."""
        return pd.DataFrame(self.rows("pairs"))

    def rows(
        self,
        room: str,
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        rounds: Collection[int] | None = None,
    ) -> Any:
        """A data frame of what a room's tables say, or of a part of it, as in `tables.read`."""
        table = tables.read(self.path, room, self.records, where, columns, rounds).to_pandas()
        expected.check_rows(self.path / room, table, self.clients)
        return table

    @cached_property
    def senders(self) -> Mapping[int, int]:
        """The clients that ever sent a payload, with the round in which they first did."""
        sent = (pc.field("sender") != SERVER) & (pc.field("payload") > 0)
        links = self.rows("links", sent, ["sender", "round"])
        first = links.groupby("sender")["round"].min()
        return {int(client): int(round) for client, round in first.items()}

    def _history(self, metric: str) -> tuple[Scores, Scores]:
        """What clients score in test and validation with all their sensors, by client and round."""
        if metric not in self._histories:
            table = self._own(metric)
            of = {split: part["value"] for split, part in table.groupby("split")}
            none = table["value"][:0]
            self._histories[metric] = of.get("test", none), of.get("val", none)
        return self._histories[metric]

    @cached_property
    def _histories(self) -> dict[str, tuple[Scores, Scores]]:
        """What `_history` has read already: only of the metrics that choose a round."""
        return {}

    def _test(self, metric: str, there: pd.Index[Any]) -> Scores:
        """The test scores of at least these clients and rounds."""
        if metric in self._histories:
            return self._histories[metric][0]
        table = self._own(metric, there.get_level_values("round").unique().tolist())
        return table[table["split"] == "test"]["value"]

    def _own(self, metric: str, rounds: Collection[int] | None = None) -> pd.DataFrame:
        """What clients score with all their sensors, by client and round."""
        where = pc.field("own") & (pc.field("class") == -1) & (pc.field("metric") == metric)
        columns = ["client", "round", "split", "value"]
        table = self.rows("scores", where, columns, rounds)
        return pd.DataFrame(table.set_index(["client", "round"]).sort_index())

    def by_client(self, metric: str, select: Select = "last", by: str = "") -> Scores:
        """The test score of every client with all its sensors, in the round that counts or as the
        mean of those that do: chosen by the validation scores of the metric `by` (if empty, of this
        one), so that several metrics describe the same model."""
        key = of_client(metric), select, by or metric
        if key not in self._chosen:
            there = self._counting(select, key[2])
            scores = self._test(key[0], there)
            found = scores[scores.index.isin(there)].groupby("client")
            self._chosen[key] = found.mean().where(found.count() == found.size())
        return self._chosen[key]

    def _counting(self, select: Select, by: str) -> pd.Index[Any]:
        """Every client with the rounds that count. Rounds are chosen by means over clients, also
        those of a pooled score."""
        metric = of_client(by)
        return chosen(*self._history(metric), metric, select)

    @cached_property
    def _chosen(self) -> dict[tuple[str, Select, str], Scores]:
        """What `by_client` has found already: tables and pages ask for it again and again."""
        return {}

    def final(self, metric: str, select: Select = "last", by: str = "") -> float:
        """The mean over clients of that test score, or the pooled one; NaN if there is none."""
        if is_pooled(metric):
            return self._pooled(metric, select, by or metric)
        return float(self.by_client(metric, select, by).mean(skipna=False))

    def _pooled(self, metric: str, select: Select, by: str) -> float:
        """The macro-F1 of all clients' windows together, each in the round that counts for it;
        where several rounds count for all, the mean of theirs."""
        key = metric, select, by
        if key not in self._pools:
            there = self._counting(select, by)
            rounds = there.get_level_values("round").unique().tolist()
            names = [sibling(metric, HITS), sibling(metric, SAID)]
            where = pc.field("own") & (pc.field("split") == "test")
            where &= pc.field("metric").isin(names)
            columns = ["client", "round", "metric", "class", "value", "support"]
            table = self.rows("scores", where, columns, rounds).set_index(["client", "round"])
            table = table[table.index.isin(there)]
            parts = [table] if select == "client" else [t for _, t in table.groupby("round")]
            try:
                found = [_f1(part) for part in parts if len(part)]
            # Of no windows, of infinitely many, or of no class at all.
            except (ZeroDivisionError, OverflowError, StatisticsError):
                raise CommunisError(
                    f"{self.path / 'scores'}: {names[0]} and {names[1]} count windows, but some "
                    "are no numbers of windows; put back a copy, or run it again"
                ) from None
            self._pools[key] = fmean(found) if found else math.nan
        return self._pools[key]

    @cached_property
    def _pools(self) -> dict[tuple[str, Select, str], float]:
        """What `_pooled` has found already."""
        return {}


def _f1(table: pd.DataFrame) -> float:
    """The macro-F1 of all windows that these rows of scores count."""
    rows = zip(table["metric"], table["class"], table["value"], table["support"], strict=True)
    return pooled_f1(Count(*row) for row in rows)


def read(path: Path) -> Finished:
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
    """The settings of a run, as far as results are read by them. A file that lacks the method, the
    seed or the rounds is refused: a run writes all of its settings, so that they were lost."""
    path = folder / "config.toml"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        expected.check(path, found, expected.CONFIG)
        name, seed = found["method"]["name"], found["seed"]
        # A run that was made in Python need not say how it went, and on what.
        found = {"data": {"name": "not said"}, "run": {}, **found}
        found["run"] = {"rounds": 0, **found["run"]}
        expected.check(path, found["run"], expected.RUN, "run")
        data, rounds = found["data"]["name"], found["run"]["rounds"]
    except (OSError, ValueError, KeyError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CommunisError(
            f"{path}: not the settings of a run ({readable(what)}); put back a copy"
        ) from None
    if not (isinstance(name, str) and isinstance(data, str) and rounds >= 0 and seed >= 0):
        raise CommunisError(
            f"{path}: expected method.name and data.name as text, and rounds and seed of at least 0"
        )
    target = found.get("target", 0)
    if not all(
        type(one) in (int, float) for one in (target if isinstance(target, list) else [target])
    ):
        raise CommunisError(f"{path}: target: expected a number or a list of numbers")
    return found
