"""An audit of what [privacy] promises, with canaries in one run.

A canary's message passes the run's own machinery. The auditor sees what the adversary of the mode
sees, and guesses the coins:

local, paper, none: every message as it arrives at the server; of paper's only what it leaves in
    clear. Heads and tails are opposite directions, 2 C apart: one client's data replaced by others.
central: the model after every round. Heads and tails are a direction and no change, C apart: one
    client more or less.

So another coin is another client, and right guesses refute a claim (bound.py). A claim that is not
refuted is not proved: an audit finds mistakes, it gives no guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from torch import Tensor

from communis.core import diagnostics
from communis.core.arrays import Array
from communis.core.contract import Card
from communis.core.diagnostics import Diagnostic
from communis.core.errors import CommunisError
from communis.exchange import wire
from communis.exchange.messages import Answer, Ask, Backend
from communis.exchange.privacy import accountant, gaussian
from communis.exchange.privacy.guard import change_of
from communis.exchange.privacy.messages import mechanism_of
from communis.exchange.privacy.settings import PrivacyConfig
from communis.methods.fedavg import FedAvg
from communis.results.probe.bound import Bound, judge
from communis.results.probe.canaries import Canaries, planted, singing
from communis.run.config import Config
from communis.run.loop import Run


@dataclass(frozen=True)
class Audit:
    """A claim of privacy, and the bound that one run proves."""

    mode: str
    adjacency: str
    rounds: int
    delta: float
    claimed: float  # epsilon of the whole run by its own account; infinite without privacy
    bound: Bound

    @property
    def refuted(self) -> bool:
        return self.bound.epsilon > self.claimed or (self.bound.gaussian or 0.0) > self.claimed


def audit(
    config: Config, canaries: int = 100, told: Callable[[int, int], None] | None = None
) -> Audit:
    """Runs a configuration with canaries beside its clients; nothing is kept of it. told: rounds
    done, of how many."""
    privacy, method, fleet = config.privacy, config.make_method(), config.make_fleet()
    central = privacy.mode == "central"
    if central and type(method) is not FedAvg:
        raise CommunisError(
            f"method.name = {config.method_name}: with privacy.mode = central the audit reads the "
            "change of the model, which is the noised mean in FedAvg: set method.name=fedavg"
        )
    *_, up = wire.payload_types(type(method))
    if up in (None, type(None)) or method.needs.raw_data or config.run.rounds < 1:
        raise CommunisError(
            f"method.name = {config.method_name}, run.rounds = {config.run.rounds}: canaries speak "
            "in the messages of clients, and there would be none: choose another method, or rounds"
        )
    if privacy.adaptive:
        raise CommunisError(
            "privacy.adaptive = true: a canary moves the bound C by more than a client is "
            "accounted for; audit with adaptive = false"
        )
    planned = Canaries(
        len(fleet), canaries, fleet.streams, not central, privacy.clip, privacy.clips
    )
    plan = replace(config.run, workers=1, eval_every=0, eval_clients=1, pairs=False)
    with Run(planted(fleet, canaries), singing(method, planned), plan, privacy=privacy) as run:
        paper = mechanism_of(up) if privacy.mode == "paper" else None
        run.backend = ear = Ear(run.backend, planned, paper.field if paper else "")
        watch = Watch(planned, run.cards, run.server.w) if central else None
        for record in run:
            if watch:
                watch.observe(run.server.w)
            if told:
                told(record.round, plan.rounds)
        log = pd.DataFrame(run.folder.log().to_pandas())
        if watch:
            q = _of(log, diagnostics.PRIVACY_Q)
            z = _of(log, diagnostics.PRIVACY_Z)
            clip = _of(log, diagnostics.PRIVACY_CLIP)
            scores = watch.scores(q, z, clip)
        else:
            scores = ear.scores
    bound = judge(scores, planned.coins, privacy.delta, independent=not central)
    adjacency = "one client more or less" if central else "one client's data replaced"
    return Audit(privacy.mode, adjacency, run.round, privacy.delta, _claim(privacy, log), bound)


class Ear:
    """A backend that reads what arrives at the server; the one within does the work."""

    def __init__(self, within: Backend, canaries: Canaries, ignored: str = "") -> None:
        """ignored: a field of the messages."""
        self._within, self._canaries, self._ignored = within, canaries, ignored
        self.scores = np.zeros(canaries.count)  # by canary: the sum of its echoes

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        downs = {ask.client: ask.down for ask in asks if ask.kind == "train"}
        for answer in self._within.perform(asks):
            if answer.up and answer.client in downs and self._canaries.has(answer.client):
                up, down = wire.load(answer.up), wire.load(downs[answer.client])
                told = [key for key in up if key.partition("/")[0] != self._ignored]
                change = {key: change_of(key, up, down) for key in told}
                heard = self._canaries.echo(answer.client, change)
                self.scores[answer.client - self._canaries.first] += heard
            yield answer

    def commit(self, *checkpoints: Sequence[int]) -> None:
        self._within.commit(*checkpoints)

    def close(self) -> None:
        self._within.close()


class Watch:
    """An adversary that sees only the model after every round. The model moves by the noised sum of
    clipped changes over the number of clients that were expected."""

    def __init__(self, canaries: Canaries, cards: Sequence[Card], start: Mapping[str, Tensor]):
        self._canaries, self._cards, self._last = canaries, cards, start
        trainers = [card for card in cards if card.samples]
        self._holders = {path: sum(path in card.shapes for card in trainers) for path in start}
        self._echoes: list[list[float]] = []  # by round and canary

    def observe(self, now: Mapping[str, Tensor]) -> None:
        """Keeps the echo of every canary in the change of the model."""
        change = {f"w/{p}": (now[p] - self._last[p]) * n for p, n in self._holders.items()}
        first, count = self._canaries.first, self._canaries.count
        heard = []
        for card in self._cards[first : first + count]:
            own = {key: t for key, t in change.items() if key[2:] in card.shapes}
            heard.append(self._canaries.echo(card.id, own))
        self._echoes.append(heard)
        self._last = now

    def scores(self, q: Array, z: Array, clip: Array) -> Array:
        """(count,) the log-likelihood of heads minus that of tails. By round: a canary was drawn
        with probability q, and then its echo is N(1, z^2) with heads; otherwise it is N(0, z^2)."""
        q, z = q[:, None], np.maximum(z, 1e-3)[:, None]
        x = np.array(self._echoes) * q * (self._canaries.clip / clip)[:, None]
        with np.errstate(divide="ignore"):  # q = 1: always drawn
            odds = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * z**2))
        return np.asarray(odds.sum(0))


def _claim(privacy: PrivacyConfig, log: pd.DataFrame) -> float:
    """The epsilon that a run has spent by its own account, on the client that took part most."""
    if privacy.mode == "none":
        return math.inf
    if privacy.mode == "central":
        q = _of(log, diagnostics.PRIVACY_Q)
        z = _of(log, diagnostics.PRIVACY_Z)
        rounds = zip(q, z, strict=True)
        return accountant.epsilon_of_rounds(list(rounds), privacy.delta, privacy.accountant)
    spent = log[log["name"] == diagnostics.PRIVACY_MU.name].groupby("client")["value"]
    mu = float(spent.agg(gaussian.composed).max())
    return gaussian.epsilon_of(mu, privacy.delta)


def _of(log: pd.DataFrame, what: Diagnostic) -> Array:
    """A diagnostic in the server's log, by round."""
    own = log[log["name"] == what.name].sort_values("round")
    return own["value"].to_numpy(np.float64)
