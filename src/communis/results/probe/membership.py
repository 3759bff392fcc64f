"""Membership inference: can a window's loss tell whether it was trained on? Yeom et al. 2018.

Members are the training windows of a run's clients, non-members their test windows. Both come from
other trials or days, so losses may differ for reasons that have nothing to do with training. Two
controls in which nobody is a member show how much: the model as it was before the first round, on
the same windows, and the finished model on validation windows against test windows.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from communis.core.arrays import Array
from communis.core.contract import Client, Prediction, Score
from communis.core.errors import CommunisError
from communis.core.scratch import Scratch
from communis.core.streams import Streams
from communis.exchange import wire
from communis.exchange.messages import Ask, ScoreColumns, Scored
from communis.fleet.clients import FleetClients
from communis.run.backends.executor import Executor, StateStore
from communis.run.config import Config, load
from communis.run.folder import RunFolder
from communis.run.loop import Run

BATCH = 256
RESAMPLES = 500  # of clients, for intervals


@dataclass(frozen=True)
class Losses:
    """The losses of windows, with the clients that own these."""

    value: Array  # (n,)
    client: Array  # (n,)


@dataclass(frozen=True)
class Separation:
    """How well low losses tell members from others. Intervals: 95 %, by drawing clients anew."""

    members: int
    others: int
    auc: float  # probability that a member's loss is the lower one; 0.5: nothing is learned
    auc_interval: tuple[float, float]
    tpr_at_1: float  # share of members found if 1 % of the others may be taken for members
    tpr_at_10: float
    advantage: float  # right minus false alarms, if losses below the members' mean are called so
    advantage_interval: tuple[float, float]


@dataclass(frozen=True)
class Membership:
    """An attack on one run, and the same attack where there are no members."""

    attack: Separation
    untrained: Separation  # the same windows before the first round
    validation: Separation | None  # validation windows in the place of members, if there are any


def separation(members: Losses, others: Losses, streams: Streams) -> Separation:
    """How well losses tell members from others. Windows of one client are alike, so intervals come
    from drawing clients and not windows."""
    draw = streams.generator("membership")
    everybody = np.unique(np.concatenate([members.client, others.client]))
    rows_of_members = {int(i): np.flatnonzero(members.client == i) for i in everybody}
    rows_of_others = {int(i): np.flatnonzero(others.client == i) for i in everybody}
    resampled = []
    for _ in range(RESAMPLES):
        chosen = draw.choice(everybody, len(everybody))
        inside = np.concatenate([rows_of_members[int(i)] for i in chosen])
        outside = np.concatenate([rows_of_others[int(i)] for i in chosen])
        if len(inside) and len(outside):
            drawn = members.value[inside], others.value[outside]
            resampled.append((auc(*drawn), advantage(*drawn)))
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    losses = members.value, others.value
    return Separation(
        members=len(members.value),
        others=len(others.value),
        auc=auc(*losses),
        auc_interval=(float(low[0]), float(high[0])),
        tpr_at_1=caught(*losses, 0.01),
        tpr_at_10=caught(*losses, 0.1),
        advantage=advantage(*losses),
        advantage_interval=(float(low[1]), float(high[1])),
    )


def auc(members: Array, others: Array) -> float:
    """The probability that a member's loss is lower than another's, ties counting half."""
    ordered = np.sort(others)
    lower = np.searchsorted(ordered, members, "left")
    lower_or_equal = np.searchsorted(ordered, members, "right")
    above = len(others) - (lower + lower_or_equal) / 2
    return float(above.mean() / len(others))


def caught(members: Array, others: Array, false_alarms: float) -> float:
    """The share of members below the highest threshold with so few false alarms."""
    allowed = math.floor(false_alarms * len(others) + 1e-9)
    threshold = np.sort(others)[allowed] if allowed < len(others) else np.inf
    return float((members < threshold).mean())


def advantage(members: Array, others: Array) -> float:
    """The share of members minus that of others whose loss is at most the mean of the members'."""
    threshold = members.mean()
    return float((members <= threshold).mean() - (others <= threshold).mean())


def membership(folder: Path, told: Callable[[int, int], None] | None = None) -> Membership:
    """The attack on a finished run, which stays as it is. told: clients done, of how many."""
    if not (folder / "checkpoint.safetensors").exists():
        raise CommunisError(
            f"{folder}: no checkpoint.safetensors, so no model to attack: expected the folder of a "
            "run with at least one finished round"
        )
    if not RunFolder(folder).records():
        raise CommunisError(f"{folder}: no round is finished, so nobody is a member yet")
    RunFolder(folder).last()  # before the data are read: refuses one that is damaged
    config = load(str(folder / "config.toml"))
    with Scratch() as scratch:
        copied = scratch / "run"  # opening a run writes
        shutil.copytree(folder, copied)
        trained, untrained = _losses(config, copied, told)
    return compare(trained, untrained, Streams(config.seed))


def compare(
    trained: Mapping[str, Losses], untrained: Mapping[str, Losses], streams: Streams
) -> Membership:
    """By split: the losses of the finished and of the untrained model."""
    for split, meaning in {"train": "members", "test": "non-members"}.items():
        if not len(trained[split].value):
            raise CommunisError(f"no client has {split} windows: there are no {meaning} to tell")
    checked = len(trained["val"].value) > 0
    return Membership(
        separation(trained["train"], trained["test"], streams),
        separation(untrained["train"], untrained["test"], streams),
        separation(trained["val"], trained["test"], streams) if checked else None,
    )


def _losses(
    config: Config, folder: Path, told: Callable[[int, int], None] | None
) -> tuple[dict[str, Losses], dict[str, Losses]]:
    """The losses of the finished model and of the untrained one, by split."""
    fleet = config.make_fleet()
    method = config.make_method()
    plan = replace(config.run, workers=1)
    since = RunFolder(folder).last().states.tolist()
    with Run(
        fleet,
        method,
        plan,
        folder=folder,
        topology=config.make_topology(fleet),
        rule=config.robust.make(),
        privacy=config.privacy,
    ) as run:
        fleet_clients = FleetClients(fleet.pool() if method.needs.raw_data else fleet, method)
        worker = _LossTeller(fleet_clients, StateStore(run.folder.clients, run.folder.experiment))
        start = method.start_server(fleet_clients)
        trainees = {i for record in run.history for i in record.cohort}
        attacked = [i for i in range(len(fleet)) if i in trainees or method.needs.raw_data]
        scored: dict[bool, list[Scored]] = {True: [], False: []}
        for done, i in enumerate(attacked, start=1):
            server = run.servers[run.topology.aggregator_of(i)]
            for trained, state, version in ((True, server, since[i]), (False, start, -1)):
                down = wire.encode(method.down(state, run.cards[i])).data
                scored[trained] += worker.perform(
                    Ask("evaluate", i, run.round, version, down)
                ).scores
            if told:
                told(done, len(attacked))
    return _by_split(scored[True]), _by_split(scored[False])


class _LossTeller(Executor):
    """A client that is asked to evaluate tells the loss of every window that a sensor saw."""

    def _scores(self, client: Client, state: Any) -> ScoreColumns:
        columns = ScoreColumns()
        client.model.eval()
        splits = {"train": client.train, "val": client.val, "test": client.test}
        loss_of_window = torch.vmap(lambda p, t: client.task.loss(p[None], t[None]))
        for split, samples in splits.items():
            for indices in torch.split(torch.arange(len(samples)), BATCH):
                batch = samples.batch(indices)
                sensed = torch.stack(list(batch.present.values())).any(0)
                predicted = Prediction.of(self.method.predict(client, state, batch)).scored
                losses = loss_of_window(predicted, batch.target)
                scores = [Score("loss", loss) for loss in losses[sensed].tolist()]
                columns.add(client.card.id, split, "", True, scores)
        return columns


def _by_split(rows: list[Scored]) -> dict[str, Losses]:
    by_split = {}
    for split in ("train", "val", "test"):
        own = [row for row in rows if row.split == split]
        values = np.array([row.score.value for row in own], np.float64)
        by_split[split] = Losses(values, np.array([row.client for row in own], np.int64))
    return by_split
