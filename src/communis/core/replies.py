"""Replies: the messages of clients as an aggregator may see them, and their sums and means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from communis.core.contract import Card, Path, modality_of
from communis.core.state import State

U = TypeVar("U")  # Up
V = TypeVar("V", State, Tensor, float)  # a value that can be summed
W = TypeVar("W", State, Tensor)  # a value with one row per class
# A replacement of the mean: points (N, K, D) and weights (N, K) of N clients for K problems -> (K,
# D). The weight is 0 where a client has no point for a problem. See reductions/rules.py.
Rule = Callable[[Tensor, Tensor], Tensor]

Weight = Callable[[Card, Path], float]  # of a client in the mean of a path


def uniform(card: Card, path: Path) -> float:
    return 1.0


def samples(card: Card, path: Path) -> float:
    return float(card.samples)


def presence(card: Card, path: Path) -> float:
    """The number of training windows in which the path's modality is present; all training windows
    for other paths."""
    modality = modality_of(path)
    return float(card.samples_by_modality.get(modality, 0) if modality else card.samples)


class Replies(Generic[U]):
    """The messages of a cohort as an aggregator may see them. Sums and means are key-wise over the
    clients that hold a key."""

    def __init__(self, received: Sequence[tuple[Card, U]], rule: Rule | None = None) -> None:
        """rule: replaces means. It takes all keys that the same clients hold with the same weights
        as one vector, and thus whole models if all clients hold them."""
        self._received = received  # in client order
        self._rule = rule

    def __len__(self) -> int:
        return len(self._received)

    def each(self) -> Sequence[tuple[Card, U]]:
        """All single messages, for methods that sums are not enough for. It is refused if only sums
        may be revealed."""
        return self._received

    def sum(self, pick: Callable[[U], V]) -> V:
        """The sum over holders. With a robust rule: its result times the number of holders."""
        if self._rule is not None:
            return self._robust(pick, uniform, self._rule, summed=True)
        return self._fold(pick, lambda total, value, share: total + value, uniform)

    def mean(self, pick: Callable[[U], V], *, by: Weight) -> V:
        """The mean over holders, weighted by `uniform`, `samples`, `presence` or another function.
        It is a running mean, exact for one holder and for equal values. Keys without any weight are
        left out."""
        if self._rule is not None:
            return self._robust(pick, by, self._rule)
        return self._fold(pick, torch.lerp, by)

    def classwise(
        self, sums: Callable[[U], W], counts: Callable[[U], W], rule: Rule | None = None
    ) -> tuple[W, W]:
        """The mean of every class (row) over the clients that have samples of it, and the number of
        these samples. The row of a class without samples is zero. rule: replaces the mean, unless
        the run has a rule."""
        rule = self._rule or rule
        like = sums(self._received[-1][1])
        held: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for _, up in self.each() if rule else self._received:
            counts_by_key = _parts(counts(up))
            for key, total in _parts(sums(up)).items():
                held.setdefault(key, []).append((total, counts_by_key[key]))
        means: dict[str, Tensor] = {}
        numbers: dict[str, Tensor] = {}
        for key, pairs in held.items():
            n = reduce(torch.add, [count for _, count in pairs])
            numbers[key] = n
            if rule is None:
                means[key] = reduce(torch.add, [t for t, _ in pairs]) / n.clamp_min(1)[:, None]
            else:
                points = torch.stack([t / count.clamp_min(1)[:, None] for t, count in pairs])
                means[key] = rule(points, torch.stack([count for _, count in pairs]))
        return cast(W, _whole(means, like)), cast(W, _whole(numbers, like))

    def coverage(self, pick: Callable[[U], State]) -> Mapping[Path, float]:
        """The share of the cohort's training samples that belongs to the holders of each path."""
        total = sum(card.samples for card, _ in self._received) or 1
        held: dict[Path, int] = {}
        for card, up in self._received:
            for path in pick(up):
                held[path] = held.get(path, 0) + card.samples
        return {path: n / total for path, n in held.items()}

    def _fold(
        self,
        pick: Callable[[U], V],
        join: Callable[[Tensor, Tensor, float], Tensor],
        weigh: Weight,
    ) -> V:
        totals: dict[str, Tensor] = {}
        weights: dict[str, float] = {}
        value: Any = State()
        for card, up in self._received:
            value = pick(up)
            for key, part in _parts(value).items():
                weight = weigh(card, key)
                if not weight:
                    continue
                weights[key] = weights.get(key, 0.0) + weight
                share = weight / weights[key]
                totals[key] = join(totals[key], part, share) if key in totals else part
        return cast(V, _whole(totals, value))

    def _robust(self, pick: Callable[[U], V], weigh: Weight, rule: Rule, summed: bool = False) -> V:
        sent = [(card, pick(up)) for card, up in self.each()]
        holders: dict[str, list[tuple[int, float]]] = {}  # by key: places in `sent` and weights
        for place, (card, value) in enumerate(sent):
            for key in _parts(value):
                weight = weigh(card, key)
                if weight:
                    holders.setdefault(key, []).append((place, weight))
        cohorts: dict[tuple[tuple[int, float], ...], list[str]] = {}
        for key, who in holders.items():
            cohorts.setdefault(tuple(who), []).append(key)
        totals: dict[str, Tensor] = {}
        for cohort, keys in cohorts.items():
            parts = []
            for place, _ in cohort:
                tensors = _parts(sent[place][1])
                parts.append([tensors[key] for key in keys])
            points = torch.stack([torch.cat([t.flatten() for t in own]) for own in parts])
            weights = torch.tensor([weight for _, weight in cohort], dtype=points.dtype)
            centre = rule(points[:, None], weights[:, None])[0]
            if summed:
                centre = centre * len(cohort)
            pieces = torch.split(centre, [t.numel() for t in parts[0]])
            for key, t, like in zip(keys, pieces, parts[0], strict=True):
                totals[key] = t.view_as(like)
        return cast(V, _whole({key: totals[key] for key in holders}, sent[-1][1]))


def _parts(value: State | Tensor | float) -> Mapping[str, Tensor]:
    """The tensors of a value by key; a number becomes a tensor in double precision."""
    if isinstance(value, State):
        return value
    if isinstance(value, Tensor):
        return {"": value}
    return {"": torch.tensor(value, dtype=torch.float64)}


def _whole(totals: Mapping[str, Tensor], like: State | Tensor | float) -> State | Tensor | float:
    """The reverse of `_parts`."""
    if isinstance(like, State):
        return State(totals)
    return totals[""] if isinstance(like, Tensor) else float(totals[""])
