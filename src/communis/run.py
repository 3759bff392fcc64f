"""The round loop. A run is an iterator of RoundRecord; whatever a user wants done between rounds is the body of the loop."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from communis.backends.inprocess import InProcess, one_thread
from communis.core import Answer, Ask, Backend, Card, CommunisError, Link, Method, Replies, RoundRecord, Score, Topology
from communis.fleet import AnyMethod, Fleet
from communis.runfolder import RunFolder, link_rows, score_rows
from communis.topology import SERVER, Star
from communis.wire import MAX_BYTES, Message, WireError, check, decode, encode, flatten, payload_types, unflatten


@dataclass(frozen=True)
class Plan:
    """How a run goes: the `[run]` table of a configuration."""

    rounds: int = 20
    participation: float = 1.0  # share of the clients sampled per round
    cohort: int = 0  # clients sampled per round; 0: by participation
    eval_every: int = 1  # rounds between evaluations; 0: only after the last round
    eval_clients: int = 0  # evaluate so many clients, drawn anew each time; 0: all
    eval_subsets: Literal["own", "each"] = "each"  # score with all own modalities, and each of them alone
    checkpoint_every: int = 1  # rounds between checkpoints
    workers: int = 0  # processes; 0: one per core, 1: only this one. The numbers do not depend on it
    device: str = "cpu"  # cpu, cuda or mps (the last two are written for, but untried)
    max_message_mb: int = MAX_BYTES >> 20  # a client's message over this is refused

    def __post_init__(self) -> None:
        if self.rounds < 0 or self.cohort < 0 or self.checkpoint_every < 1:
            raise CommunisError("rounds and cohort must be at least 0, checkpoint_every at least 1")
        if not 0 < self.participation <= 1:
            raise CommunisError(f"participation is a share in (0, 1], got {self.participation}; for a number use cohort")


class Run:
    """`for record in Run(fleet, method, Plan(rounds=20)): ...`; afterwards `scores()`, `links()` and `records` as data frames."""

    def __init__(
        self,
        fleet: Fleet,
        method: AnyMethod,
        plan: Plan | None = None,
        *,
        folder: str | Path | None = None,
        config: str = "",
        topology: Topology | None = None,
        backend: Backend | None = None,
    ) -> None:
        """folder: where everything is written; a checkpoint there is continued. Without it the run is in memory only."""
        self.plan, self.method, self.topology = plan or Plan(), method, topology or Star()
        fleet = fleet.pool() if method.pools_data else fleet
        self._server_type, _, _, self._up_type = payload_types(type(method))
        self._fleet = fleet.bind(method)
        self._streams = fleet.streams
        self.cards: Sequence[Card] = self._fleet.cards
        self.folder = RunFolder(Path(folder)) if folder is not None else None
        self.servers = {a: method.start_server(self._fleet) for a in self.topology.aggregators(len(self.cards))}
        self.round = 0  # the last one completed
        self._since = np.full(len(self.cards), -1, np.int64)  # round of every client's private state
        self.history: list[RoundRecord] = []
        self._links: list[tuple[int, list[Link]]] = []
        self._scores: list[tuple[int, list[tuple[int, str, str, Score]]]] = []
        self._saved = -1
        if self.folder is not None:
            self._restore(config)
        self.backend = backend or InProcess(
            fleet,
            method,
            self.folder.clients if self.folder else None,
            workers=self.plan.workers,
            device=self.plan.device,
            subsets=self.plan.eval_subsets,
        )
        self.backend.commit(self._states())

    def __iter__(self) -> Iterator[RoundRecord]:
        while self.round < self.plan.rounds:
            yield self._next()
        self.save()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Saves what is not saved yet and ends the workers."""
        self.save()
        self.backend.close()

    def save(self) -> None:
        """The folder's checkpoint is the last completed round."""
        if self.folder is None or self._saved == self.round:
            return
        tensors = {f"{a}:{key}": t for a, server in self.servers.items() for key, t in flatten(server).items()}
        self.folder.save(self.round, {**tensors, "clients": torch.from_numpy(self._since)})
        self._saved = self.round
        self.backend.commit(self._states())

    @property
    def server(self) -> Any:
        """The state of the only aggregator (in a graph, use `servers`)."""
        return self.servers[SERVER]

    def records(self) -> pd.DataFrame:
        """One row per round."""
        rows = [{**{k: v for k, v in vars(r).items() if k != "scores"}, **r.scores} for r in self.history]
        return pd.DataFrame(rows)

    def scores(self) -> pd.DataFrame:
        """One row per evaluated round x client x split x modality subset x metric x class."""
        if self.folder is not None:
            return self.folder.scores().to_pandas()
        return pd.concat([score_rows(r, s).to_pandas() for r, s in self._scores] or [score_rows(0, ()).to_pandas()])

    def links(self) -> pd.DataFrame:
        """Bytes per round and link; the server is -1."""
        if self.folder is not None:
            return self.folder.links().to_pandas()
        return pd.concat([link_rows(r, x).to_pandas() for r, x in self._links] or [link_rows(0, ()).to_pandas()])

    def _next(self) -> RoundRecord:
        start, round = time.perf_counter(), self.round + 1
        cohort = self._cohort(round)
        ledger = _Ledger(self.topology, cohort)
        if self.method.pools_data:
            ledger.pool(self._fleet.fleet, first=round == 1)
        answers = self._ask("train", cohort, round, ledger)
        received, refused = self._read(answers, ledger)
        with one_thread():
            for aggregator in self.servers:
                heard = [(self.cards[i], received[i]) for i in self.topology.hears(aggregator, cohort) if i in received]
                if heard:
                    self.servers[aggregator] = self.method.aggregate(self.servers[aggregator], Replies(heard))
        if type(self.method).settle is not Method.settle:
            self._ask("settle", list(received), round, ledger)
        seconds = time.perf_counter() - start
        scores = self._evaluate(round)
        record = RoundRecord(
            round,
            tuple(cohort),
            self._loss(answers),
            ledger.total(down=True),
            ledger.total(down=False),
            sum(link.framing for link in ledger.links),
            seconds,
            time.perf_counter() - start - seconds,
            tuple(refused),
            self._summary(scores),
        )
        self._finish(record, ledger.links, scores)
        return record

    def _finish(self, record: RoundRecord, links: list[Link], scores: list[tuple[int, str, str, Score]]) -> None:
        self.round = record.round
        self.history.append(record)
        if self.folder is None:
            self._links.append((record.round, links))
            self._scores.append((record.round, scores))
            self.backend.commit(self._states())
            return
        self.folder.record(record, links, scores)
        if self.round % self.plan.checkpoint_every == 0:
            self.save()

    def _cohort(self, round: int) -> list[int]:
        trainers = self._fleet.trainers
        size = self.plan.cohort or max(1, round_half_up(self.plan.participation * len(trainers)))
        if size >= len(trainers):
            return list(trainers)
        chosen = self._streams.generator("participation", round).choice(len(trainers), size, replace=False)
        return [trainers[i] for i in np.sort(chosen)]

    def _ask(self, kind: Literal["train", "settle"], clients: Sequence[int], round: int, ledger: _Ledger) -> list[Answer]:
        messages = self._downs(clients)
        for i in clients:
            ledger.down(i, messages[i])
        asks = [Ask(kind, i, round, int(self._since[i]), messages[i].data) for i in clients]
        answers = list(self.backend.perform(asks))
        for answer in answers:
            if answer.keeps_state:
                self._since[answer.client] = round
        return answers

    def _downs(self, clients: Sequence[int]) -> dict[int, Message]:
        """The downlink of every client; one that consists of the same tensors is encoded once."""
        known: dict[tuple[Any, ...], Message] = {}
        messages = {}
        alive = []  # keeps the tensors alive, so that their ids stay unique
        for i in clients:
            flat = flatten(self.method.down(self.servers[self.topology.aggregator_of(i)], self.cards[i]))
            alive.append(flat)
            key = tuple((name, t.item() if t.ndim == 0 else id(t)) for name, t in flat.items())
            if key not in known:
                known[key] = encode(flat)
            messages[i] = known[key]
        return messages

    def _read(self, answers: Sequence[Answer], ledger: _Ledger) -> tuple[dict[int, Any], list[tuple[int, str]]]:
        """What was received, by client, and who was refused and why."""
        received: dict[int, Any] = {}
        refused = []
        for answer in answers:
            card = self.cards[answer.client]
            if answer.failure:
                refused.append((card.id, answer.failure))
                continue
            try:
                up = decode(answer.up, self._up_type, max_bytes=self.plan.max_message_mb << 20)
                ledger.up(card.id, Message(answer.up, sum(t.nbytes for t in flatten(up).values())))
                check(up, card)
                received[card.id] = up
            except WireError as error:
                refused.append((card.id, str(error)))
        return received, refused

    def _evaluate(self, round: int) -> list[tuple[int, str, str, Score]]:
        every = self.plan.eval_every
        if round != self.plan.rounds and (not every or round % every):
            return []
        clients = list(range(len(self._fleet.fleet)))
        if 0 < self.plan.eval_clients < len(clients):
            drawn = self._streams.generator("evaluation", round).choice(len(clients), self.plan.eval_clients, replace=False)
            clients = [int(i) for i in np.sort(drawn)]
        messages = self._downs(clients)
        asks = [Ask("evaluate", i, round, int(self._since[i]), messages[i].data) for i in clients]
        return [(a.client, split, subset, s) for a in self.backend.perform(asks) for split, subset, s in a.scores]

    def _summary(self, scores: Sequence[tuple[int, str, str, Score]]) -> Mapping[str, float]:
        """Means over clients of what each scores with all its own modalities, as `split.metric`."""
        values: dict[str, list[float]] = defaultdict(list)
        for client, split, subset, score in scores:
            if score.label < 0 and subset == "+".join(self.cards[client].modalities):
                values[f"{split}.{score.metric}"].append(score.value)
        return {key: float(np.mean(found)) for key, found in values.items()}

    def _loss(self, answers: Sequence[Answer]) -> float:
        known = [(a.loss, self.cards[a.client].samples) for a in answers if np.isfinite(a.loss)]
        weight = sum(n for _, n in known)
        return sum(loss * n for loss, n in known) / weight if weight else float("nan")

    def _states(self) -> dict[int, int]:
        return {int(i): int(self._since[i]) for i in np.flatnonzero(self._since >= 0)}

    def _restore(self, config: str) -> None:
        assert self.folder is not None
        checkpoint = self.folder.load()
        if checkpoint is None:
            self.folder.describe(config)
            return
        tensors = checkpoint.tensors
        self._since = tensors.pop("clients").numpy().copy()
        for a in self.servers:
            flat = {key.partition(":")[2]: t for key, t in tensors.items() if key.partition(":")[0] == str(a)}
            self.servers[a] = unflatten(flat, self._server_type)
        self.round = self._saved = checkpoint.round
        self.history = self.folder.records()


class _Ledger:
    """Bytes of one round, per link and direction. In a graph a downlink stays on its node and costs nothing."""

    def __init__(self, topology: Topology, cohort: Sequence[int]) -> None:
        self.topology, self.links = topology, list[Link]()
        self._beside = -1  # a client whose messages travel over no link
        self._hearers: dict[int, list[int]] = defaultdict(list)
        for aggregator in topology.aggregators(max(cohort, default=-1) + 1):
            for i in topology.hears(aggregator, cohort):
                if i != aggregator:
                    self._hearers[i].append(aggregator)

    def down(self, client: int, message: Message) -> None:
        sender = self.topology.aggregator_of(client)
        if client not in (sender, self._beside):
            self.links.append(Link(sender, client, message.payload, message.framing))

    def up(self, client: int, message: Message) -> None:
        to = self._hearers[client] if client != self._beside else []
        self.links += [Link(client, hearer, message.payload, message.framing) for hearer in to]

    def pool(self, fleet: Fleet, first: bool) -> None:
        """Centralised training: the pooled client sits beside the server, and everybody sends it the raw windows once."""
        self._beside = len(fleet)
        self.links += [Link(i, SERVER, fleet.training_bytes(i), 0) for i in range(len(fleet)) if first]

    def total(self, *, down: bool) -> int:
        return sum(link.payload for link in self.links if (link.sender == SERVER) == down)


def round_half_up(value: float) -> int:
    return int(value + 0.5)
