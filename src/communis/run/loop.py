"""The round loop. A run is an iterator of RoundRecord; the body of the user's loop runs between
rounds."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from communis.core.arrays import Array
from communis.core.contract import SERVER, AfterExchange
from communis.core.errors import CommunisError
from communis.core.replies import Rule
from communis.core.scratch import Scratch
from communis.core.uninterrupted import uninterrupted
from communis.exchange import wire
from communis.exchange.ledger import Ledger
from communis.exchange.messages import (
    Answer,
    Ask,
    Backend,
    RoundRecord,
    ScoreColumns,
    Topology,
    not_finite,
)
from communis.exchange.privacy.settings import PrivacyConfig
from communis.fleet.fleet import AnyMethod, Fleet
from communis.models.own import Own
from communis.models.zoo import description
from communis.run.backends.choice import backend_of
from communis.run.backends.machine import one_thread
from communis.run.best import RunState, best_round
from communis.run.folder import STATES, Checkpoint, RunFolder
from communis.run.identity import digest
from communis.run.inbox import Inbox
from communis.run.learned import Index, LearnedFolder
from communis.run.plan import Plan, sample
from communis.run.round_log import RoundLog
from communis.run.setup import Setup
from communis.run.summary import summary

log = logging.getLogger("communis")


class Run:
    """A run of a method on a fleet: `for record in Run(fleet, method, Plan(rounds=20)): ...`

    Afterwards `records()`, `scores()` and `links()` return data frames, and `server` is the final
    state of the server.
    """

    def __init__(
        self,
        fleet: Fleet,
        method: AnyMethod,
        plan: Plan | None = None,
        *,
        folder: str | Path | None = None,
        config: str = "",
        topology: Topology | None = None,
        rule: Rule | None = None,
        privacy: PrivacyConfig | None = None,
        backend: Backend | None = None,
        metric: str = "",
    ) -> None:
        """folder: receives everything that is written; a checkpoint in it is continued. Without a
        folder the run leaves nothing behind. config: text for the folder's config.toml. rule:
        replaces means in aggregation, see core/reductions. privacy: see exchange/privacy. metric:
        the score by which the best round is chosen, see best.py."""
        self.plan = plan or Plan()
        self.method = method
        with one_thread():  # sums of several threads depend on how many there are
            setup = Setup(fleet, method, self.plan, topology, rule, privacy)
        if backend is not None and setup.privacy.guard is not None:
            raise CommunisError(
                "privacy: a backend that is passed to Run does not guard the messages of clients"
            )
        self.topology = setup.topology
        self.cards = setup.cards
        self.servers = setup.servers
        self._fleet = setup.clients
        self._streams = fleet.streams
        self._clock = setup.clock
        self._attackers = setup.attackers
        self._newcomers = setup.newcomers
        self._setup = setup
        self._privacy = setup.privacy
        self._aggregation = setup.aggregation
        self._server_type, *_ = wire.payload_types(type(method))
        self.round = 0  # the last one completed
        self.history: list[RoundRecord] = []
        self._since = np.full(len(self.cards), -1, np.int64)  # round of each client's private state
        self._metric = metric
        self._best: RunState | None = (
            None  # with `plan.keep`: the state after the best round so far
        )
        self._checkpoints: list[_Saved] = []  # those on disk, the last first
        self._diverged: frozenset[int] = frozenset()  # clients whose last training diverged
        self._lasting = folder is not None
        if folder is None:
            self._scratch = Scratch()  # removed when this object is collected
            folder = self._scratch.path / "run"
        self.folder = RunFolder(Path(folder))
        self.folder.open()
        try:
            self._saved = self._begin(config)
            self.backend = backend or backend_of(
                self.plan,
                self._fleet,
                self.folder.clients,
                self._privacy.guard,
                self._experiment,
            )
            self._commit()
        except BaseException:  # otherwise the folder stays locked while the error is referenced
            self.folder.close()
            raise

    def _begin(self, config: str) -> int:
        """Continues the folder's checkpoint, or describes the new run in the folder. Returns the
        round of the checkpoint, -1 if there is none."""
        saved = self._restore()
        if saved < 0:
            topology = self.topology.describe(len(self._fleet.fleet))
            about = {"topology": topology, **self._evaluation()}
            self.folder.describe(config, self._fleet, self._experiment, about)
        self._account()
        return saved

    def _account(self, ended: int = 0) -> None:
        """Writes what left the clients, and how it was protected."""
        self.folder.account(self._privacy.account(ended))
        self._privacy.written()

    def __iter__(self) -> Iterator[RoundRecord]:
        while self.round < self.plan.rounds and not self._privacy.over(self.round + 1):
            yield self._next()
        if self.spent:
            self._account(ended=self.round)
        self._finish()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Saves the last round and ends the workers, even if the disk is full."""
        try:
            self._finish()
        finally:
            self.backend.close()
            self.folder.close()

    def save(self) -> None:
        """Writes a checkpoint of the last completed round, if there is none yet."""
        if self._saved == self.round:
            return
        best = self._best
        if self._lasting:
            if best:
                of_best = _tensors(best.since, best.servers)
                self.folder.save_best(Checkpoint(best.round, self._experiment, of_best))
            tensors = _tensors(self._since, self.servers) | self._privacy.tensors
            number = best.round if best else 0
            self.folder.save(Checkpoint(self.round, self._experiment, tensors, number))
        self._saved = self.round
        previous = self._checkpoints[:1] if self._lasting else []
        self._checkpoints = [_Saved(self._since.copy(), best), *previous]
        if self._lasting:
            self.folder.forget_best([c.best.round for c in self._checkpoints if c.best])
        self._commit()

    def _commit(self) -> None:
        """Allows the backend to delete private states that no checkpoint needs."""
        needed = [self._since] if not self._checkpoints else []
        for checkpoint in self._checkpoints:
            needed.append(checkpoint.since)
            if checkpoint.best:
                needed.append(checkpoint.best.since)
        if self._best:
            needed.append(self._best.since)
        self.backend.commit(*(rounds.tolist() for rounds in needed))

    def _finish(self) -> None:
        """Keeps what was learned, if no round is left, and saves the last round. The checkpoint
        comes last: a run that has it is finished."""
        over = self.round >= self.plan.rounds or self.spent
        if over and self.round and self._lasting and self.plan.keep:
            self._keep()
        self.save()

    @one_thread()
    def _keep(self) -> None:
        """Writes the models and test predictions after the last round, and after the best one."""
        folder = LearnedFolder(self.folder.path, self.folder.owner)
        best = best_round(self.history, self._metric)
        if folder.holds(self.round, best):
            return
        states = [RunState(self.round, self._since, self.servers)]
        if self._best and self._best.round != self.round:
            states.append(self._best)
        rounds = {}
        for after in states:
            common, lacking = self._common(after)
            windows = self._fleet.fleet.windows
            learned = folder.write_round(after.round, self._learned(after), common, windows)
            rounds[after.round] = replace(learned, lacking=lacking)
        fleet = self._fleet.fleet
        kinds = map(description, dict.fromkeys(fleet.chosen))
        networks = {kind.name: kind.digest for kind in kinds if isinstance(kind, Own)}
        folder.write_index(Index(self.round, best, fleet.common_scales(), rounds, networks))

    def _learned(self, after: RunState) -> Iterator[Answer]:
        """Yields what was learned up to a round for every client that is scored after it. A client
        that diverged has learned nothing that could be used."""
        common = [i for i, why in self._newcomers.items() if not why]
        scored = [
            client
            for group in (self._honest, common)
            for client in self.plan.evaluated(group, after.round, self._streams)
        ]
        diverged = self._diverged if after.round == self.round else frozenset()
        clients = [i for i in scored if i not in diverged]
        messages = self._downs(clients, after.servers, "evaluate")
        asks = [Ask("keep", i, after.round, int(after.since[i]), messages[i].data) for i in clients]
        return self._insist(asks)

    def _insist(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        """Yields the answers. What failed, as in a worker that was killed, is asked once more at
        the end; what fails again is logged and left out."""
        failed = []
        for ask, answer in zip(asks, self.backend.perform(asks), strict=True):
            if answer.failure:
                failed.append(ask)
            else:
                yield answer
        for answer in self.backend.perform(failed) if failed else ():
            if answer.failure:
                log.warning("client %d: its model is not kept: %s", answer.client, answer.failure)
            else:
                yield answer

    def _common(self, after: RunState) -> tuple[dict[str, Answer], str]:
        """Returns the common model for newcomers, by architecture, and why there is none, or none
        of some architecture."""
        by_model: dict[str, int] = {}
        for client in self._honest:
            by_model.setdefault(self.cards[client].model, client)
        common = {}
        lacking = ""
        for name, client in by_model.items():
            card = replace(self._fleet.whole(client), newcomer=True)
            why = self._setup.lacking(card)
            if why:
                lacking = lacking or why
                continue
            message = self._downs([client], after.servers, "whole")[client]
            ask = Ask("common", client, after.round, -1, message.data)
            for answer in self._insist([ask]):
                common[name] = answer
        return common, lacking

    @property
    def server(self) -> Any:
        """The state of the server (in a graph, see `servers`)."""
        return self.servers[SERVER]

    @property
    def spent(self) -> bool:
        """Whether the run ended early because its privacy budget is spent."""
        return self.round < self.plan.rounds and self._privacy.over(self.round + 1)

    def records(self) -> pd.DataFrame:
        """Returns one row per round."""
        rows = [{**vars(record), **record.scores} for record in self.history]
        return pd.DataFrame(rows).drop(columns=["scores", "tables"], errors="ignore")

    def scores(self) -> pd.DataFrame:
        """Returns one row per evaluated round, client, split, modality subset, metric and class."""
        return pd.DataFrame(self.folder.scores().to_pandas())

    def links(self) -> pd.DataFrame:
        """Returns the bytes per round and link; the server is -1, all neighbours of a node -2."""
        return pd.DataFrame(self.folder.links().to_pandas())

    @one_thread()
    def _next(self) -> RoundRecord:
        """Performs one round. The run changes only at its end, so that a failure leaves the last
        round intact."""
        start = time.perf_counter()
        round = self.round + 1
        cohort, aggregators = self._draw(round)
        topology = self.topology.at(round)
        ledger = Ledger(topology, aggregators, cohort)
        round_log = RoundLog(self.method, self.cards)
        since = self._since.copy()
        self._privacy.begin_round()

        if self.method.needs.raw_data:
            ledger.pool(cohort[0], self._fleet.fleet.training_bytes() if round == 1 else {})
        senders = {a: topology.hears(a, cohort) for a in aggregators}
        expected = {client for clients in senders.values() for client in clients}
        inbox = Inbox(self.method, self._privacy.cards, self.plan.max_message_mb << 20, expected)
        inbox.read(
            self._ask("train", cohort, round, since, self.servers, ledger), ledger, round_log
        )
        received = inbox.messages
        refused = inbox.refused
        since[inbox.kept] = round

        heard = {a: [i for i in clients if i in received] for a, clients in senders.items()}
        aggregation_start = time.perf_counter()
        servers, failures = self._aggregation.all(self.servers, heard, received, round)
        seconds_aggregation = time.perf_counter() - aggregation_start
        if failures:  # then the round did not happen for the clients either
            refused = [*refused, *failures]
            since = self._since.copy()
        elif isinstance(self.method, AfterExchange):
            working = [i for i in cohort if since[i] == round or i in received]
            for answer in self._ask("after", working, round, since, servers, ledger):
                round_log.hear(answer)
                refused += answer.failures
                if answer.keeps_state:
                    since[answer.client] = round

        evaluation_start = time.perf_counter()
        diverged = self._diverged_after(cohort, refused)
        scores, unscored = self._evaluate(round, since, servers, cohort, diverged)
        refused += unscored
        if self.plan.compares(evaluated=bool(scores)):
            of_honest = {i: up.payload for i, up in received.items() if i not in self._attackers}
            round_log.compare(self.servers, of_honest)
        spent = round_log.spent(self._clock, ledger)
        no_cost = 0.0 if self._clock else math.nan
        others = {*self._attackers, *self._newcomers}
        honest = {a: server for a, server in servers.items() if a not in others}
        attacking = [i for i in self._attackers if self._fleet.fleet.attack.attacks(i, round)]
        attack_distance = self._aggregation.moved(
            self.servers, servers, heard, received, attacking, round
        )
        privacy_costs = self._privacy.costs(cohort, round)
        if self.method.needs.exchange and self._privacy.see(inbox.sent, inbox.sound):
            self._account()

        tables: dict[str, Sequence[Any]] = {"links": ledger.links, "scores": scores, "clock": spent}
        tables |= round_log.rows(honest, privacy_costs)
        record = RoundRecord(
            round=round,
            cohort=tuple(cohort),
            loss=inbox.loss(self.cards, self._attackers),
            bytes_down=ledger.bytes_down,
            bytes_up=ledger.bytes_up,
            bytes_framing=ledger.bytes_framing,
            seconds=evaluation_start - start,
            seconds_aggregation=seconds_aggregation,
            seconds_evaluation=time.perf_counter() - evaluation_start,
            virtual_seconds=max((s.compute + s.down + s.up for s in spent), default=no_cost),
            virtual_joules=sum((s.joules for s in spent), start=no_cost),
            consensus_distance=self._aggregation.consensus_distance(honest),
            attack_distance=math.nan if failures else attack_distance,
            refused=tuple(refused),
            scores=summary(scores),
        )
        with uninterrupted():
            self.folder.record(record, tables)
            self._privacy.pay(cohort, round)
            self.round = round
            self.servers = servers
            self._since = since
            self._diverged = diverged
            self.history.append(record)
            if self.plan.keep and best_round(self.history, self._metric) == round:
                self._best = RunState(round, since.copy(), servers)
        last = round == self.plan.rounds  # saved at the end, after what was learned
        if round % self.plan.checkpoint_every == 0 and not last:
            self.save()
        return record

    def _draw(self, round: int) -> tuple[list[int], list[int]]:
        """Returns the cohort, a sample of the clients that are online, and the aggregators that are
        online."""
        trainers = self._fleet.trainers
        fleet = self._fleet.fleet
        online = np.ones(len(self.cards), bool)  # a pooled client sits beside the server
        online[: len(fleet)] = fleet.online.who(len(fleet), round, self._streams) | fleet.pooled
        online[list(fleet.newcomers)] = False  # as nodes of a graph they hear nobody
        generator = self._streams.generator("participation", round)
        there = np.asarray(trainers)
        able = self._privacy.able(there[online[there]].tolist() if trainers else [], round)
        if self._privacy.central:
            cohort = self._privacy.central.draw(able, generator)
        else:
            cohort = sample(able, self.plan.size(len(trainers)), generator)
        return cohort, [a for a in self.servers if a == SERVER or online[a]]

    def _ask(
        self,
        kind: Literal["train", "after"],
        clients: Sequence[int],
        round: int,
        since: Array,
        servers: Mapping[int, Any],
        ledger: Ledger,
    ) -> Iterator[Answer]:
        """Sends the downlinks and yields the answers of the clients, each working from its private
        state of round `since`."""
        messages = self._downs(clients, servers, kind)
        for client in clients:
            ledger.down(client, messages[client])
        asks = [Ask(kind, i, round, int(since[i]), messages[i].data) for i in clients]
        return self.backend.perform(asks)

    def _downs(
        self, clients: Sequence[int], servers: Mapping[int, Any], kind: str
    ) -> dict[int, wire.Message]:
        """Returns the downlink of every client; with kind "whole", as if the client had all sensors
        of the fleet."""
        if kind == "whole":
            cards = {i: self._fleet.whole(i) for i in clients}
        else:
            cards = {i: self._privacy.cards[i] for i in clients}
        server_of = {i: servers[self.topology.aggregator_of(i)] for i in clients}
        return self._aggregation.downs(server_of, cards, after=kind == "after")

    def _diverged_after(
        self, cohort: Sequence[int], refused: Sequence[tuple[int, str]]
    ) -> frozenset[int]:
        """Returns the clients whose last training ended in a private state that is not finite."""
        now = {client for client, reason in refused if not_finite(reason)}
        return frozenset((self._diverged - set(cohort)) | now)

    def _evaluation(self) -> dict[str, Any]:
        """Returns which clients are scored, for fleet.json; reports show `notes` beside the
        scores."""
        honest = self._honest
        count = len(self.plan.evaluated(honest, 1, self._streams))
        notes = self._fleet.notes
        if self.plan.sampled(len(honest)):
            notes.append(
                f"scores are of a sample of {count:,} of {len(honest):,} clients, the same in all "
                "rounds and for all methods of a seed; "
                f"run.eval_clients = {len(honest)} scores all"
            )
            if self._lasting:
                log.info(notes[-1])
        about: dict[str, Any] = {"evaluation": {"clients": count, "of": len(honest)}}
        if self._newcomers:
            about["newcomers"] = [{"id": i, "unscored": why} for i, why in self._newcomers.items()]
        return {"notes": notes, **about}

    @cached_property
    def _honest(self) -> list[int]:
        """The clients that take part and can be scored."""
        fleet = self._fleet.fleet
        others = {*self._attackers, *fleet.newcomers}
        return [i for i in range(len(fleet)) if i not in others]

    def _evaluate(
        self,
        round: int,
        since: Array,
        servers: Mapping[int, Any],
        cohort: Sequence[int],
        diverged: Collection[int],
    ) -> tuple[ScoreColumns, list[tuple[int, str]]]:
        """Returns the scores of this round, if an evaluation is due or no round can follow, and the
        clients that could not be scored. A client that diverged scores NaN, because the score of
        its earlier state would flatter the method."""
        if not self.plan.evaluates(round) and not self._privacy.over(round + 1, cohort):
            return ScoreColumns(), []
        clients = self.plan.evaluated(self._honest, round, self._streams)
        common = [i for i, why in self._newcomers.items() if not why]
        everybody = [*clients, *self.plan.evaluated(common, round, self._streams)]
        messages = self._downs(everybody, servers, "evaluate")
        asks = [Ask("evaluate", i, round, int(since[i]), messages[i].data) for i in everybody]
        answers = list(self.backend.perform(asks))
        if self.plan.eval_whole and not self.method.needs.raw_data:
            messages = self._downs(clients, servers, "whole")
            answers += self.backend.perform(
                [Ask("whole", i, round, -1, messages[i].data) for i in clients]
            )
        scores = ScoreColumns()
        failed: list[tuple[int, str]] = []
        for answer in answers:
            failed += answer.failures
            of_client = ScoreColumns.of(answer.scores)
            scores.extend(of_client.unknown() if answer.client in diverged else of_client)
        return scores, failed

    @cached_property
    def _experiment(self) -> str:
        """The digest of everything that must be the same for a checkpoint to be continued. The plan
        is not part of it, so that a run can be continued for more rounds."""
        cards = [(c.id, c.modalities, c.samples, c.model) for c in self.cards]
        optional = [part for part in (self._aggregation.rule, *self._privacy.mechanisms) if part]
        fleet = self._fleet.fleet.digest
        return digest(self.method, self.topology, self._streams, fleet, cards, *optional)

    def _restore(self) -> int:
        """Continues the folder's checkpoint. Returns its round, -1 if there is none."""
        checkpoints = self.folder.load(self._experiment, self.plan.checkpoint_every)
        if not checkpoints:
            return -1
        last = checkpoints[0]
        tensors = dict(last.tensors)
        self._since = tensors.pop(STATES).numpy().copy()
        self._checkpoints = [self._saved_state(checkpoint) for checkpoint in checkpoints]
        self._best = self._checkpoints[0].best if self.plan.keep else None
        self._privacy.restore(tensors, self.folder.accounted())
        paid = {round for round in self._privacy.paid if round <= last.round}  # later: done again
        lost = sorted(paid - set(self.folder.paid()))
        if lost:
            raise CommunisError(
                f"{self.folder.path / 'log'}: does not say what round {lost[0]} cost in privacy "
                f"({len(lost)} rounds in all), so that epsilon would be understated; put back a "
                "copy of these files, or begin anew in another folder"
            )
        self.servers = self._servers_of(tensors)
        self.round = last.round
        self.history = self.folder.records()
        for record in self.history:
            self._diverged = self._diverged_after(record.cohort, record.refused)
        return last.round

    def _servers_of(self, tensors: Mapping[str, torch.Tensor]) -> dict[int, Any]:
        """Returns the states of all aggregators that a checkpoint holds."""
        by_server: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for key, tensor in tensors.items():
            aggregator, _, name = key.partition(":")
            by_server[aggregator][name] = tensor
        return {a: wire.unflatten(by_server[str(a)], self._server_type) for a in self.servers}

    def _saved_state(self, checkpoint: Checkpoint) -> _Saved:
        """Returns what a checkpoint on disk relies on."""
        since = checkpoint.states.numpy().copy()
        found = self.folder.best(checkpoint.best, self._experiment) if checkpoint.best else None
        if found is None:
            return _Saved(since, None)
        tensors = dict(found.tensors)
        best_since = tensors.pop(STATES).numpy().copy()
        return _Saved(since, RunState(found.round, best_since, self._servers_of(tensors)))


@dataclass(frozen=True)
class _Saved:
    """What a checkpoint on disk relies on."""

    since: Array  # (clients,) the round of each client's private state; -1: none
    best: RunState | None


def _tensors(since: Array, servers: Mapping[int, Any]) -> dict[str, torch.Tensor]:
    """Returns the tensors of a checkpoint, without those of privacy."""
    tensors = {STATES: torch.from_numpy(since)}
    for aggregator, server in servers.items():
        for key, tensor in wire.flatten(server).items():
            tensors[f"{aggregator}:{key}"] = tensor
    return tensors
