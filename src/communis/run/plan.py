"""Plan: how a run goes. The `[run]` table of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch

from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.exchange.privacy.protection import Setting
from communis.exchange.wire import MAX_BYTES

Rounds = Literal["evaluated", "every"]
LEAST = {
    "rounds": 0,
    "cohort": 0,
    "eval_every": 0,
    "eval_clients": 0,
    "workers": 0,
    "checkpoint_every": 1,
    "max_message_mb": 1,
}
MOST_EVALUATED = 1000  # clients, unless `eval_clients` says otherwise


@dataclass(frozen=True)
class Plan:
    """How a run goes: the `[run]` table of a configuration."""

    rounds: int = 20
    participation: float = 1.0  # share of the clients sampled per round
    cohort: int = 0  # clients sampled per round; 0: by participation
    eval_every: int = 1  # rounds between evaluations; 0: only after the last round
    eval_clients: int = (
        0  # evaluate so many, drawn anew each time; 0: all, or a fixed 1,000 of more
    )
    eval_subsets: Literal["own", "each"] = "each"  # score all own modalities, and each one alone
    eval_whole: bool = (
        False  # also score the common model with all of the fleet's sensors, and each
    )
    # alone, on everybody's windows; not for methods that keep a part of the model to themselves
    pairs: bool = False  # write down how alike any two clients' updates are
    pairs_in: Rounds = "evaluated"  # of which rounds: the evaluated ones, or every one
    checkpoint_every: int = 1  # rounds between checkpoints
    workers: int = 0  # processes; 1: only this one, 0: one per core where that is safe to assume
    start_method: Literal["", "fork", "spawn", "forkserver"] = ""  # of workers; empty: what suits
    device: str = "cpu"  # cpu, cuda or mps (the last two are written for, but untried)
    max_message_mb: int = MAX_BYTES >> 20  # a client's message over this is refused

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise CommunisError(f"{name} must be at least {least}, got {getattr(self, name)}")
        _check_device(self.device)
        if self.pairs_in not in get_args(Rounds):
            raise CommunisError(f"pairs_in must be 'evaluated' or 'every', got {self.pairs_in!r}")
        if self.pairs_in == "every" and not self.pairs:
            raise CommunisError('pairs_in = "every" says when pairs are compared: set pairs = true')
        if not 0 < self.participation <= 1:
            raise CommunisError(
                f"participation is a share in (0, 1], got {self.participation}; "
                "for a number of clients use cohort"
            )

    def evaluates(self, round: int) -> bool:
        """Whether a round is followed by an evaluation."""
        return round == self.rounds or bool(self.eval_every and round % self.eval_every == 0)

    def evaluated(self, clients: Sequence[int], round: int, streams: Streams) -> list[int]:
        """Who of the clients is scored in a round that is evaluated; the same for all methods of a
        seed."""
        if self.eval_clients:
            return some(clients, self.eval_clients, streams.generator("evaluation", round))
        return some(clients, MOST_EVALUATED, streams.generator("evaluation"))

    def sampled(self, clients: int) -> bool:
        """Whether some of so many clients are never scored, though nobody asked for that."""
        return not self.eval_clients and clients > MOST_EVALUATED

    def compares(self, evaluated: bool) -> bool:
        """Whether the updates of a round are compared with each other."""
        return self.pairs and (evaluated or self.pairs_in == "every")

    def setting(self, trainers: int, star: bool, rule: bool) -> Setting:
        """What privacy has to know. trainers: how many clients can train."""
        return Setting(
            rounds=self.rounds,
            participation=self.participation,
            share=self.share(trainers),
            by_number=self.cohort > 0,
            star=star,
            rule=rule,
        )

    def size(self, trainers: int) -> int:
        """How many of the clients that can train are sampled for a round."""
        return self.cohort or max(1, int(self.participation * trainers + 0.5))

    def share(self, trainers: int) -> float:
        """The probability of one of them to be in a round, if all are alike."""
        return min(1.0, self.size(trainers) / trainers)


def some(clients: Sequence[int], count: int, generator: np.random.Generator) -> list[int]:
    """So many of the clients, in their order; all if there are no more."""
    if count >= len(clients):
        return list(clients)
    chosen = np.sort(generator.choice(len(clients), count, replace=False))
    return [clients[i] for i in chosen]


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise CommunisError(f"device must be cpu, cuda or mps, got {name!r}") from None
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if not available.get(kind, False):
        raise CommunisError(f"device {name!r} is not available here; use device = 'cpu'")
