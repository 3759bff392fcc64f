"""The plan of a run: the `[run]` table of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.exchange.limits import MAX_BYTES
from communis.exchange.privacy.settings import Setting

Rounds = Literal["evaluated", "every"]
SMALLEST = {  # values that are allowed
    "rounds": 0,
    "cohort": 0,
    "eval_every": 0,
    "eval_clients": 0,
    "workers": 0,
    "together": 1,
    "checkpoint_every": 1,
    "max_message_mb": 1,
}
MOST_EVALUATED = 1000  # clients, if `eval_clients` is 0


@dataclass(frozen=True)
class Plan:
    """Rounds, sampling, evaluation, checkpoints and processes of a run."""

    rounds: int = 20  # rounds of training
    participation: float = 1.0  # share of the clients sampled per round
    cohort: int = 0  # clients sampled per round; 0: by participation
    eval_every: int = 1  # rounds between evaluations; 0: only after the last round
    # clients sampled for each evaluation; 0: all clients, or the same random 1,000 of a larger
    # fleet in every evaluation
    eval_clients: int = 0
    # the sensors that a client is scored with; "own": all of its sensors, "each": also each of
    # its sensors alone
    eval_subsets: Literal["own", "each"] = "each"
    # also score the common model with all sensors of the fleet, and with each sensor alone, on
    # the test windows of all clients; not for methods with a private part of the model
    eval_whole: bool = False
    # share of the clients, drawn by seed, or a list of clients that take no part in training and
    # are only scored, with the common model; 0: none. See the guide to newcomers
    newcomers: float | tuple[int, ...] = 0.0
    pairs: bool = False  # record the cosine similarity between the updates of any two clients
    # rounds in which pairs are compared; "evaluated": those with an evaluation, "every": all
    pairs_in: Rounds = "evaluated"
    checkpoint_every: int = 1  # rounds between checkpoints
    # keep the models of the clients that are scored, and the predictions for their test windows,
    # after the last round and after the best one by validation
    keep: bool = True
    # who carries work to the clients; empty: processes of this machine, "ray": actors on a Ray
    # cluster, see the guide to clusters
    backend: Literal["", "ray"] = ""
    # worker processes; 1: no process besides the main one, 0: one per core where workers are
    # forked, otherwise none; with backend = "ray" the number of actors, 0: one per core
    workers: int = 0
    # how worker processes are started; empty: fork on Linux with device = "cpu", otherwise spawn
    start_method: Literal["", "fork", "spawn", "forkserver"] = ""
    device: str = "cpu"  # cpu, cuda or mps; cuda and mps have not been tested
    # clients trained at once as one batch of models, where method, model and number of windows
    # allow it; for cuda and mps, slower on a CPU; more than 1: without worker processes
    together: int = 1
    max_message_mb: int = MAX_BYTES >> 20  # largest message of a client; larger ones are refused

    def __post_init__(self) -> None:
        for name, smallest in SMALLEST.items():
            value = getattr(self, name)
            if value < smallest:
                raise CommunisError(f"{name} must be at least {smallest}, got {value}")
        _check_device(self.device)
        _check_newcomers(self.newcomers)
        if self.backend not in ("", "ray"):
            raise CommunisError(f'backend must be "" or "ray", got {self.backend!r}')
        if self.together > 1 and self.backend == "ray":
            raise CommunisError(
                "together has no effect with backend = 'ray', whose actors get one client at a "
                "time: use one of them"
            )
        if self.pairs_in not in get_args(Rounds):
            raise CommunisError(f"pairs_in must be 'evaluated' or 'every', got {self.pairs_in!r}")
        if self.pairs_in == "every" and not self.pairs:
            raise CommunisError('pairs_in = "every" has no effect without pairs = true: set both')
        if not 0 < self.participation <= 1:
            raise CommunisError(
                f"participation must be a share in (0, 1], got {self.participation}; "
                "for a number of clients, set cohort"
            )

    def evaluates(self, round: int) -> bool:
        """Returns whether clients are evaluated after a round."""
        return round == self.rounds or bool(self.eval_every and round % self.eval_every == 0)

    def evaluated(self, clients: Sequence[int], round: int, streams: Streams) -> list[int]:
        """Returns the clients that are scored in an evaluation: the same for all methods of a
        seed."""
        if self.eval_clients:
            return sample(clients, self.eval_clients, streams.generator("evaluation", round))
        return sample(clients, MOST_EVALUATED, streams.generator("evaluation"))

    def sampled(self, clients: int) -> bool:
        """Returns whether, by default, only a sample of that many clients is ever scored."""
        return not self.eval_clients and clients > MOST_EVALUATED

    def compares(self, evaluated: bool) -> bool:
        """Returns whether the updates of a round are compared in pairs."""
        return self.pairs and (evaluated or self.pairs_in == "every")

    def setting(self, trainers: int, star: bool, rule: bool) -> Setting:
        """Returns what the privacy account depends on. trainers: the number of clients that can
        train."""
        return Setting(
            rounds=self.rounds,
            participation=self.participation,
            share=self.share(trainers),
            by_number=self.cohort > 0,
            star=star,
            rule=rule,
        )

    def size(self, trainers: int) -> int:
        """Returns how many of the clients that can train are sampled for a round."""
        return self.cohort or max(1, int(self.participation * trainers + 0.5))

    def share(self, trainers: int) -> float:
        """Returns the probability that a client is sampled for a round."""
        return min(1.0, self.size(trainers) / trainers)


def sample(clients: Sequence[int], count: int, generator: np.random.Generator) -> list[int]:
    """Draws `count` of the clients without replacement and keeps their order; returns all clients
    if there are not more."""
    if count >= len(clients):
        return list(clients)
    chosen = np.sort(generator.choice(len(clients), count, replace=False))
    return [clients[i] for i in chosen]


def _check_newcomers(asked: float | tuple[int, ...]) -> None:
    if isinstance(asked, tuple):
        if min(asked, default=0) < 0 or len(set(asked)) < len(asked):
            raise CommunisError(
                f"newcomers must be different clients, numbered from 0, got {list(asked)}"
            )
    elif not 0 <= asked < 1:
        raise CommunisError(
            f"newcomers must be a share of the clients below 1, such as 0.2, got {asked:g}; "
            "for single clients, give a list, such as [3]"
        )


def _check_device(name: str) -> None:
    if name == "cpu":
        return
    import torch  # here, so that a plan for the CPU is checked without it

    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise CommunisError(f"device must be cpu, cuda or mps, got {name!r}") from None
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if not available.get(kind, False):
        raise CommunisError(f"device {name!r} is not available here; use device = 'cpu'")
