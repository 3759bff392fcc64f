"""A backend for tests: another backend whose answers are tampered with on the way, as a bad network
or a bad client would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from communis.exchange import Answer, Ask, Backend

Tamper = Callable[[Ask, Answer], Answer]


@dataclass
class Mock:
    inner: Backend
    tamper: Tamper = lambda ask, answer: answer
    asks: list[Ask] = field(default_factory=list)  # everything that was asked, for assertions

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        self.asks.extend(asks)
        for ask, answer in zip(asks, self.inner.perform(asks), strict=True):
            yield self.tamper(ask, answer)

    def commit(self, keep: Mapping[int, int]) -> None:
        self.inner.commit(keep)

    def close(self) -> None:
        self.inner.close()


def silence(*clients: int) -> Tamper:
    """These clients train but their messages never arrive."""
    return lambda ask, answer: (
        replace(answer, up=b"", failure="no answer") if ask.client in clients else answer
    )


def corrupt(change: Callable[[bytes], bytes], *clients: int) -> Tamper:
    """The messages of these clients arrive changed."""
    return lambda ask, answer: (
        replace(answer, up=change(answer.up)) if ask.client in clients and answer.up else answer
    )
