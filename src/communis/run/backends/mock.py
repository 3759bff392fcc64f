"""A backend for tests: changes the answers of another backend as a bad network or a bad client
would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from communis.exchange.messages import Answer, Ask, Backend

Tamper = Callable[[Ask, Answer], Answer]


@dataclass
class Mock:
    inner: Backend
    tamper: Tamper = lambda ask, answer: answer
    asks: list[Ask] = field(default_factory=list)  # all asks, for assertions

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        self.asks.extend(asks)
        for ask, answer in zip(asks, self.inner.perform(asks), strict=True):
            yield self.tamper(ask, answer)

    def commit(self, *checkpoints: Sequence[int]) -> None:
        self.inner.commit(*checkpoints)

    def close(self) -> None:
        self.inner.close()


def silence(*clients: int) -> Tamper:
    """Loses the messages of these clients, which still train."""

    def tamper(ask: Ask, answer: Answer) -> Answer:
        lost = ask.kind == "train" and ask.client in clients
        return replace(answer, up=b"", failure="no answer") if lost else answer

    return tamper


def corrupt(change: Callable[[bytes], bytes], *clients: int) -> Tamper:
    """Changes the messages of these clients on the way."""
    return lambda ask, answer: (
        replace(answer, up=change(answer.up)) if ask.client in clients and answer.up else answer
    )
