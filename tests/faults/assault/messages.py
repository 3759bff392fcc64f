"""One client's message is changed on its way, for every method that sends any. Nobody trains here:
the answers are recorded once, then the server's side of one round is done again and again."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from communis import CommunisError, Plan, Run
from communis.exchange.messages import Answer, Ask, Backend
from tests.contract.abilities import SENDING
from tests.faults.assault.case import Case
from tests.faults.assault.outcome import REFUSED, SURVIVED, Outcome
from tests.faults.test_messages import HOSTILE, mutated
from tests.fleets import TOKENS, make, mixed_fleet

LIMIT = 60.0
TURN = 500  # messages of one method, then comes the next
CLIENT = 2  # whose message is changed
STRANGE: Sequence[Any] = (
    None, True, -1, 0, 1, 1.5, 2**31, 2**63, 2**70, "", "F64", "I64", "BOOL", "F8_E4M3", "x" * 5000,
    [], [0], [-1], [1 << 40, 1 << 40], [1] * 70, {}, {"a": []},
)  # fmt: skip
NUMBERS = (math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e-45, 1e20, 0.0)


@dataclass
class Recorded:
    """The answers of a round, without anybody who works; one of them can be exchanged."""

    inner: Backend
    known: dict[tuple[str, int], Answer]
    instead: bytes | None = None  # of CLIENT's message

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        for ask in asks:
            key = ask.kind, ask.client
            if key not in self.known:
                (self.known[key],) = self.inner.perform([ask])
            answer = self.known[key]
            if self.instead is not None and key == ("train", CLIENT):
                answer = replace(answer, up=self.instead)
            yield answer

    def commit(self, *checkpoints: Sequence[int]) -> None:
        """Every round begins from the same states."""

    def close(self) -> None:
        self.inner.close()


class Server:
    """Of one method: one round, as often as one likes, from the same state."""

    def __init__(self, name: str) -> None:
        fleet = mixed_fleet(models=(TOKENS,)) if name == "umeda" else mixed_fleet()
        self._run = Run(fleet, make(name), Plan(rounds=3, workers=1, eval_every=0))
        self._backend = Recorded(self._run.backend, {})
        self._run.backend = self._backend
        self._servers, self._since = self._run.servers, self._run._since.copy()
        self.refused = self._round(None)
        self.message = self._backend.known["train", CLIENT].up

    def hear(self, message: bytes) -> Outcome:
        try:
            refused = self._round(message)
        except CommunisError as error:
            return Outcome("traceback", f"the run was stopped: {error}")
        finite = all(_finite(server) for server in self._run.servers.values())
        if not finite:
            return Outcome("silent difference", "what the server has learned is not finite")
        return REFUSED if refused > self.refused else SURVIVED

    def _round(self, message: bytes | None) -> int:
        """How many were refused."""
        run = self._run
        run.round, run.servers, run._since = 0, self._servers, self._since.copy()
        run._diverged = frozenset()
        run.history.clear()
        self._backend.instead = message
        return len(next(iter(run)).refused)


def attempt(case: Case) -> Outcome:
    rng = case.rng
    name = SENDING[case.number // TURN % len(SENDING)]
    server = _server(name)
    outcome = server.hear(changed(server.message, rng))
    return Outcome(outcome.result, f"{name}: {outcome.detail}") if outcome.harmful else outcome


@cache
def _server(name: str) -> Server:
    return Server(name)


def changed(message: bytes, rng: np.random.Generator) -> bytes:
    """Bytes anywhere, bytes of the header, what the header says, or numbers."""
    kind = int(rng.integers(20))
    if kind == 0:
        return list(HOSTILE.values())[int(rng.integers(len(HOSTILE)))]
    if kind < 6:
        return mutated(message, rng)
    (length,) = struct.unpack("<Q", message[:8])
    header, data = message[8 : 8 + length], message[8 + length :]
    if kind < 10:
        return message[:8] + mutated(header, rng) + data
    if kind < 15:
        return _packed(_other(json.loads(header), rng), data)
    return message[:8] + header + _other_numbers(data, rng)


def _packed(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _other(header: dict[str, Any], rng: np.random.Generator) -> Any:
    """One entry is missing, has another name, comes twice, or says something else of itself."""
    key = list(header)[int(rng.integers(len(header)))]
    rest = {k: v for k, v in header.items() if k != key}
    strange = STRANGE[int(rng.integers(len(STRANGE)))]
    kind = int(rng.integers(5))
    if kind == 0:
        return rest
    if kind == 1:
        return {**rest, f"{key}x": header[key]}
    if kind == 2:
        return {**header, str(strange)[:50]: header[key]}
    if kind == 3 or not isinstance(header[key], dict) or not header[key]:
        return {**rest, key: strange}
    inner = list(header[key])[int(rng.integers(len(header[key])))]
    return {**rest, key: {**header[key], inner: strange}}


def _other_numbers(data: bytes, rng: np.random.Generator) -> bytes:
    """One to three of the float32 are strange."""
    numbers = np.frombuffer(data[: len(data) // 4 * 4], "<f4").copy()
    if not len(numbers):
        return data + b"\0"
    for _ in range(int(rng.integers(1, 4))):
        numbers[int(rng.integers(len(numbers)))] = NUMBERS[int(rng.integers(len(NUMBERS)))]
    return numbers.tobytes() + data[len(data) // 4 * 4 :]


def _finite(value: Any) -> bool:
    """All tensors below."""
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all()) if value.is_floating_point() else True
    if hasattr(value, "values"):
        return all(_finite(inner) for inner in value.values())
    if hasattr(value, "__dataclass_fields__"):
        return all(_finite(inner) for inner in vars(value).values())
    return True
