"""The results of an experiment for programs: every number of its report, in data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from communis.core.errors import CommunisError
from communis.core.selection import SELECTS, Select
from communis.results.compare import Row, collect, refuse_unknown, scored
from communis.results.finished import Finished
from communis.results.frames import curves, fleet, protection, scores, spending, training
from communis.results.over_cells import Line
from communis.results.predict import Normalise, predicted
from communis.results.predictor import Predictor
from communis.results.timing import named
from communis.results.trained import Trained
from communis.results.wording.scores import default_metric, default_select
from communis.run.learned import INDEX


@dataclass(frozen=True)
class Results:
    """Every number of a report, in tidy data frames. Nothing is rendered.

    Each property is one frame; `frames()` has those with rows. A frame has one row per method and
    cell, or per run where its name or its columns say so: the column `seed` then tells runs apart.
    The column `cell` is the name of the cell of a grid; it is empty without a grid, and `all cells`
    for means over the cells of a grid, seed by seed. Estimates are `mean` and `spread` (sample
    standard deviation) over `seeds`, of which `diverged` have no finite value, with the 95 %
    interval of the mean from `low` to `high`. A number that does not exist is NaN.
    """

    read_runs: Sequence[Finished]
    metric: str  # the score to judge by, which also chooses the round
    select: Select  # the round that counts
    targets: Sequence[float]  # scores to be reached, from the easiest to the hardest

    @classmethod
    def read(
        cls,
        folders: str | Path | Iterable[str | Path],
        *,
        metric: str = "",
        select: Select | None = None,
        targets: Sequence[float] = (),
    ) -> Results:
        """The runs at these folders and below. What is not given is taken from the file of the
        experiment, as `communis report` does: metric, select (last, common, client or tail) and
        targets."""
        paths = [folders] if isinstance(folders, (str, Path)) else folders
        return cls.of(collect(paths), metric, select, targets)

    @classmethod
    def of(
        cls, runs: Sequence[Finished], metric: str, select: Select | None, targets: Sequence[float]
    ) -> Results:
        """The results of runs that have been read; see `read`."""
        chosen = metric or default_metric(runs)
        refuse_unknown(runs, chosen)
        if select is not None and select not in SELECTS:
            raise CommunisError(f"select: expected {', '.join(SELECTS)}, got {select!r}")
        way = select or default_select(runs)
        return cls(runs, chosen, way, named(scored(runs), chosen, targets))

    def only(self, method: str = "", seed: int | None = None, cell: str | None = None) -> Results:
        """The same of some of the runs: those of a method, a seed or a cell."""
        kept = [
            run
            for run in self.read_runs
            if (not method or run.method == method)
            and (seed is None or run.seed == seed)
            and (cell is None or run.place == cell)
        ]
        if not kept:
            there = ", ".join(dict.fromkeys(_called(run) for run in self.read_runs))
            raise CommunisError(f"no such run; there are {there}")
        return Results(kept, self.metric, self.select, self.targets)

    @property
    def run(self) -> Finished:
        """The run, if there is one only."""
        if len(self.read_runs) > 1:
            there = "; ".join(_called(run) for run in self.read_runs[:4])
            raise CommunisError(
                f"there are {len(self.read_runs)} runs, such as {there}: choose one by "
                "results.only(method=..., seed=...)"
            )
        return self.read_runs[0]

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the run, with every default written out."""
        return self.run.config

    def model(self, client: int | str, round: int | str = "last") -> Predictor:
        """The trained model of a client of the run, with its preprocessing: a torch module that
        takes raw windows. client: number or name. round: `last`, or `best` by validation."""
        trained = Trained(self.run.path)
        return trained.model(trained.client(str(client)), round)

    def common_model(self, model: str = "", round: int | str = "last") -> Predictor:
        """The model that somebody gets who took no part in training, normalised by the fleet's
        training windows. model: which architecture, if there are several."""
        return Trained(self.run.path).common(model, round)

    def predict(
        self,
        recordings: str | Path | Iterable[str | Path],
        client: int | str = "",
        normalise: Normalise = "",
        model: str = "",
        round: int | str = "last",
    ) -> pd.DataFrame:
        """What `communis predict` says of new recordings, one row per window. client: whose model;
        without it the common model, for somebody new. model: which architecture of it, if there are
        several. What the windows were normalised by is in the attribute `attrs` of the frame."""
        paths = [recordings] if isinstance(recordings, (str, Path)) else recordings
        files = [Path(path) for path in paths]
        found = predicted(Trained(self.run.path), files, str(client), normalise, model, round)
        found.table.attrs["normalised_by"] = found.normalised_by
        return found.table

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """One row per run and test window, after the last round: client, row in the data, target
        and scores in half precision; of the runs that keep them (`run.keep`)."""
        frames = []
        for run in self.read_runs:
            if (run.path / INDEX).exists():
                frame = Trained(run.path).predictions()
                frame.insert(0, "method", run.method)
                frame.insert(1, "cell", run.place)
                frame.insert(2, "seed", run.seed)
                frames.append(frame)
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def _repr_html_(self) -> str:
        """A notebook shows the scores in the round that counts."""
        shown = self.scores.query("over_clients == 'mean' and metric == @self.metric")
        columns = ["method", "cell", "metric", "mean", "spread", "seeds"]
        table: str = shown[columns].to_html(index=False, float_format="{:.3f}".format)
        names = ", ".join(self.frames())
        count = len(self.read_runs)
        return f"{table}<p>{count} run{'s' * (count > 1)}; frames: {names}</p>"

    def frames(self) -> dict[str, pd.DataFrame]:
        """The frames that have rows, by the name of their property."""
        frames = {name: getattr(self, name) for name in FRAMES}
        return {name: frame for name, frame in frames.items() if len(frame)}

    @cached_property
    def _scored(self) -> list[Finished]:
        """The runs that count; see `compare.scored`."""
        return scored(self.read_runs)

    @cached_property
    def _by_cell(self) -> dict[str, list[Row]]:
        return scores.compared(self._scored, self.metric, self.select)

    @cached_property
    def _over_cells(self) -> list[Line]:
        return scores.over_cells(self._scored, self.metric, self.select)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run: its folder, how far it came, and its costs."""
        return scores.runs(self.read_runs)

    @cached_property
    def levels(self) -> pd.DataFrame:
        """One row per cell and axis of a grid: the level."""
        return scores.levels(self.read_runs)

    @cached_property
    def settings(self) -> pd.DataFrame:
        """One row per run and setting: the dotted key, and the value as JSON."""
        return scores.settings(self.read_runs)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per run and round: loss, bytes, seconds, joules, distances. Bytes and joules are
        of the whole fleet, `seconds` is wall time without evaluation."""
        return scores.rounds(self.read_runs)

    @cached_property
    def round_scores(self) -> pd.DataFrame:
        """One row per run, evaluated round, split and metric: the mean over clients."""
        return scores.round_scores(self.read_runs)

    @cached_property
    def run_scores(self) -> pd.DataFrame:
        """One row per run and score: what `scores` and `selections` are means of."""
        return scores.run_scores(self._scored, self.metric, self.select)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Test scores by metric in the round that counts: means over clients, and the weakest
        client (`over_clients`)."""
        return scores.scores(self._scored, self._by_cell, self.metric, self.select)

    @cached_property
    def selections(self) -> pd.DataFrame:
        """The metric by each way to choose the round that counts (`select`)."""
        return scores.selections(self._by_cell, self._over_cells)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """The metric minus that of the best method (`against`), paired by seed, with the verdict;
        that of the best method itself is empty."""
        return scores.differences(self._by_cell, self._over_cells)

    @cached_property
    def paired_differences(self) -> pd.DataFrame:
        """The metric minus that of training alone, or of another reference (`against`), paired by
        client within seeds: the interval and the p-value of a bootstrap over seeds and clients, the
        p-value after Holm's correction, how many clients are better or worse off, the verdict."""
        return scores.paired_differences(self._scored, self.metric, self.select)

    @cached_property
    def alarms(self) -> pd.DataFrame:
        """What weakens the scores (`alarm`): too few seeds (value: how many), nothing learned
        (value: the score over that of always saying the most frequent class), a class that is
        never predicted (value: its share of the test windows), a loss that still falls (value: the
        share of its fall that the last quarter of the rounds brought), training alone that is not
        beaten (value: the best difference to it)."""
        return scores.alarms(self._scored, self.metric, self.select)

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Parameters, bytes, seconds and refused messages. Bytes per client and round are payload;
        `bytes_total` is of a whole run with its framing."""
        return scores.costs(self._by_cell)

    @cached_property
    def overhead(self) -> pd.DataFrame:
        """Costs and their ratios to fedavg in the same cells and seeds."""
        return spending.overhead(self._scored)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The points of all curves over seeds: scores along rounds, megabytes, seconds and joules,
        loss, distances, and what methods note."""
        return curves.curves(self._scored, self.metric, self.select, self.targets)

    @cached_property
    def client_scores(self) -> pd.DataFrame:
        """One row per run and client: its sensors, model, device and score."""
        return scores.client_scores(self._scored, self.metric, self.select)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """The score of every client: means over seeds."""
        return scores.clients(self._scored, self.metric, self.select)

    @cached_property
    def newcomers(self) -> pd.DataFrame:
        """Scores of clients that took no part in training (`run.newcomers`), with the common model,
        and of always saying the members' most frequent class (method `most_frequent`). `unscored`
        says why a method has none."""
        return scores.newcomers(self._scored, self.metric, self.select)

    @cached_property
    def newcomer_differences(self) -> pd.DataFrame:
        """The metric on newcomers minus that of the method that is best on them (`against`), paired
        by seed, with the verdict."""
        return scores.newcomer_differences(self._scored, self.metric, self.select)

    @cached_property
    def newcomer_scores(self) -> pd.DataFrame:
        """One row per run and newcomer that was scored."""
        return scores.newcomer_scores(self._scored, self.metric, self.select)

    @cached_property
    def sensor_scores(self) -> pd.DataFrame:
        """The score by the sensors that were there, after the last round."""
        return scores.sensor_scores(self._scored, self.metric)

    @cached_property
    def class_scores(self) -> pd.DataFrame:
        """F1 of every class, after the last round."""
        return scores.class_scores(self._scored)

    @cached_property
    def confusions(self) -> pd.DataFrame:
        """Test windows by actual (`label`) and predicted class, over the clients and seeds of the
        runs that keep predictions (`run.keep`): after the last round, or after the best one where
        validation chooses the round."""
        return scores.confusions(self._scored, self.select)

    @cached_property
    def modalities(self) -> pd.DataFrame:
        """The score with all sensors and with single ones (`view`), of the common model or of the
        sensors' owners."""
        return scores.modalities(self._scored, self.metric, self.select)

    @cached_property
    def views(self) -> pd.DataFrame:
        """Scores of other ways to predict; the view of the prediction itself is empty."""
        return scores.views(self._scored, self.metric, self.select)

    @cached_property
    def measures(self) -> pd.DataFrame:
        """What methods say of the test windows beside their predictions."""
        return scores.measures(self._scored, self.metric, self.select)

    @cached_property
    def timing(self) -> pd.DataFrame:
        """Simulated seconds and joules of a round, and the speedup against `base`."""
        return spending.timing(self._scored, self.metric, self.select, self.targets)

    @cached_property
    def time_to_target(self) -> pd.DataFrame:
        """Rounds, simulated seconds, joules and megabytes until the target was reached; with fewer
        `reached` than `runs` the means are lower bounds."""
        return spending.targets(self._scored, self.metric, self.select, self.targets)

    @cached_property
    def traffic_to_target(self) -> pd.DataFrame:
        """Rounds and bytes until each target was reached; NaN where not every run reached it."""
        return spending.traffic(self._scored, self.metric, self.select, self.targets)

    @cached_property
    def devices(self) -> pd.DataFrame:
        """Mean simulated seconds of a round by kind of client: computing, communicating, idle."""
        return spending.devices(self._scored)

    @cached_property
    def device_rounds(self) -> pd.DataFrame:
        """One row per run, round and client: simulated seconds and joules."""
        return spending.client_rounds(self._scored)

    @cached_property
    def busy(self) -> pd.DataFrame:
        """The share of computing in the time that devices are busy, by cell."""
        return spending.busy(self._scored)

    @cached_property
    def privacy(self) -> pd.DataFrame:
        """One row per run: the verdict on privacy, epsilon, delta, and why there is no promise."""
        return protection.privacy(self._scored)

    @cached_property
    def privacy_price(self) -> pd.DataFrame:
        """What privacy changes of the score, against the same runs without it."""
        return protection.privacy_price(self._scored, self.metric, self.select)

    @cached_property
    def privacy_messages(self) -> pd.DataFrame:
        """One row per run and part of a message: its size, and whether noise covers it."""
        return protection.privacy_messages(self._scored)

    @cached_property
    def privacy_clients(self) -> pd.DataFrame:
        """One row per run, client and round in which it took part: what it had spent by then."""
        return protection.privacy_clients(self._scored)

    @cached_property
    def privacy_rounds(self) -> pd.DataFrame:
        """One row per run and round: the largest epsilon of a client."""
        return protection.privacy_rounds(self._scored)

    @cached_property
    def attackers(self) -> pd.DataFrame:
        """One row per run and attacker."""
        return protection.attackers(self._scored)

    @cached_property
    def attacks(self) -> pd.DataFrame:
        """The score of the honest clients, what attackers change of it, and the distance by which
        they moved the aggregate (`quantity`)."""
        return protection.attacks(self._scored, self.metric, self.select)

    @cached_property
    def attack_runs(self) -> pd.DataFrame:
        """One row per run with attackers: what `attacks` has means of."""
        return protection.attack_runs(self._scored, self.metric, self.select)

    @cached_property
    def latent(self) -> pd.DataFrame:
        """One row per run, round and diagnostic of a common latent space."""
        return training.latent(self._scored)

    @cached_property
    def similarities(self) -> pd.DataFrame:
        """One row per run and round: the mean cosine of two clients' prototypes."""
        return training.similarities(self._scored)

    @cached_property
    def similarity_pairs(self) -> pd.DataFrame:
        """One row per run, round and pair of clients: its cosine, or the weight that `one` gives to
        `other`."""
        return training.similarity_pairs(self._scored)

    @cached_property
    def weights(self) -> pd.DataFrame:
        """One row per run: the weights of the last round, and how many times an equal weight they
        are."""
        return training.weights(self._scored)

    @cached_property
    def trained(self) -> pd.DataFrame:
        """One row per run, round and group of parameters: the share of its owners that trained
        it."""
        return training.trained(self._scored)

    @cached_property
    def allocations(self) -> pd.DataFrame:
        """The means of `trained` over seeds and stretches of rounds."""
        return training.allocations(self._scored)

    @cached_property
    def allocation_clients(self) -> pd.DataFrame:
        """The groups that a client trained per round, and its budget."""
        return training.allocation_clients(self._scored)

    @cached_property
    def divergence(self) -> pd.DataFrame:
        """One row per run, round and group of parameters: how far clients differ."""
        return training.divergence(self._scored)

    @cached_property
    def update_cosines(self) -> pd.DataFrame:
        """The mean cosine of two clients' updates by what they sense, in the first and in the last
        third of the rounds."""
        return training.update_cosines(self._scored)

    @cached_property
    def uncertainty(self) -> pd.DataFrame:
        """Rank correlations of uncertainty and score."""
        return training.uncertainty(self._scored)

    @cached_property
    def uncertainty_points(self) -> pd.DataFrame:
        """One row per run and client: uncertainty, score and mean number of sensors."""
        return training.uncertainty_points(self._scored)

    @cached_property
    def graphs(self) -> pd.DataFrame:
        """One row per run without a server in the middle: its graph in numbers."""
        return fleet.graphs(self._scored)

    @cached_property
    def graph_edges(self) -> pd.DataFrame:
        """One row per run and edge: the bytes that it carried."""
        return fleet.graph_edges(self._scored)

    @cached_property
    def neighbours(self) -> pd.DataFrame:
        """One row per run and client of a graph: its number of neighbours."""
        return fleet.neighbours(self._scored)

    @cached_property
    def sensors(self) -> pd.DataFrame:
        """One row per run, client and sensor: the share of training time that it is missing."""
        return fleet.sensors(self.read_runs)

    @cached_property
    def missing_time(self) -> pd.DataFrame:
        """One row per run with dropout: the share of all sensors' training time."""
        return fleet.missing_time(self.read_runs)


def open(folders: str | Path | Iterable[str | Path], **settings: Any) -> Results:
    """The results of a run or a comparison: `Results.read`."""
    return Results.read(folders, **settings)


def _called(run: Finished) -> str:
    """What tells a run apart: its method, cell and seed."""
    cell = f", cell {run.place!r}" if run.place else ""
    return f"method {run.method!r}{cell}, seed {run.seed}"


FRAMES = tuple(
    name
    for name, value in vars(Results).items()
    if isinstance(value, cached_property) and not name.startswith("_") and name != "predictions"
)
