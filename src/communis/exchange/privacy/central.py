"""Central privacy: a trusted server that releases nothing but noised sums.

Clients are drawn by independent coins (Poisson sampling). Every message is clipped as a whole, all
fields together; the sum over the round's clients gets Gaussian noise once and is divided by the
number of clients that were to be expected, whoever came. Adjacency: one client more or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from communis.core.contract import Card, Sent
from communis.core.errors import CommunisError
from communis.core.replies import Replies, Weight, uniform
from communis.core.state import State
from communis.exchange import wire
from communis.exchange.privacy.accountant import split
from communis.exchange.privacy.guard import Flat, Spending, change_of, clip, normal, rounded
from communis.exchange.privacy.messages import blank

U = TypeVar("U")
V = TypeVar("V", State, Tensor, float)
UNTOLD = 2**30  # windows: more than anybody has, so that no count is too high to be true


@dataclass(frozen=True)
class Layout:
    """What any client of the fleet may send, known before anybody does: so the noise does not
    depend on who came."""

    kind: Any  # type of the message
    zeros: Flat
    holders: Mapping[str, int]  # how many clients have each array to send
    clients: int


@dataclass(frozen=True)
class Central:
    z: float  # standard deviation of the noise on the sum, over C
    clip: float  # C, at first
    q: float  # probability of a client to be drawn
    spending: Spending = field(default_factory=Spending)
    quantile: float = 0.0  # of the lengths of updates that C follows; 0: C stays
    rate: float = 0.0

    def draw(self, clients: Sequence[int], generator: np.random.Generator) -> list[int]:
        chosen = generator.random(len(clients)) < self.q
        return [client for client, drawn in zip(clients, chosen, strict=True) if drawn]

    def z_of(self, round: int) -> float:
        return self.z / math.sqrt(self.spending.weight(round))

    def release(
        self,
        sent: Sequence[Flat],
        reference: Flat,
        layout: Layout,
        bound: float,
        round: int,
        generator: np.random.Generator,
    ) -> Released:
        """The noised sum of what clients changed, and the bound for the next round."""
        z, coin = self.z_of(round), 0.0
        if self.quantile:  # a part of the budget goes to the share of updates below the bound
            expected = self.q * layout.clients
            coin = max(expected / 20, z)
            z = split(z, coin)
        total = {key: torch.zeros_like(t) for key, t in layout.zeros.items()}
        clipped = 0
        for up in sent:
            known = {key: t for key, t in up.items() if key in total}
            change, shrunk = clip({key: change_of(key, known, reference) for key in known}, bound)
            clipped += shrunk
            for key, value in change.items():
                total[key] += value
        noised = {
            k: rounded(t.double() + normal(t, generator) * (z * bound), t) for k, t in total.items()
        }
        following = bound
        if self.quantile:  # Andrew et al. 2021: geometric steps towards the quantile
            short = len(sent) - clipped - 0.5 * len(sent) + coin * generator.standard_normal()
            following = bound * math.exp(-self.rate * (short / expected + 0.5 - self.quantile))
        return Released(noised, following, clipped)


@dataclass(frozen=True)
class Released:
    total: Flat
    clip: float  # of the next round
    clipped: int


class NoisedReplies(Replies[U]):
    """What a method sees under central privacy: means and sums of fields as they were sent, and
    nothing of single clients."""

    def __init__(self, layout: Layout, reference: Flat, total: Flat, q: float) -> None:
        super().__init__([])
        self._layout, self._q = layout, q
        self._total: U = wire.unflatten(dict(total), layout.kind)
        known = {k: reference.get(k, z) for k, z in layout.zeros.items()}
        self._reference: U = wire.unflatten(known, layout.kind)
        self._own = {id(t): key for key, t in total.items()}
        self._relative = frozenset(key for key in layout.zeros if key in reference)

    def __len__(self) -> int:
        return max(1, round(self._q * self._layout.clients))

    def each(self) -> Sequence[tuple[Card, U]]:
        raise _refusal("looks at single messages")

    def classwise(self, *args: Any, **kwargs: Any) -> Any:
        raise _refusal("needs counts as well as sums of every class")

    def coverage(self, *args: Any, **kwargs: Any) -> Any:
        raise _refusal("weighs by how many samples clients have (ema)")

    def sum(self, pick: Callable[[U], V]) -> V:
        found = self._picked(pick)
        if any(self._own[id(t)] in self._relative for t in found.values()):
            raise _refusal("sums up what was not sent as a change")
        return pick(self._total)

    def mean(self, pick: Callable[[U], V], *, by: Weight) -> V:
        if by is not uniform:
            raise CommunisError(
                "privacy.mode = central: weighing clients by their samples lets one of them count "
                "for more than the clipping bound: set method.uniform = true"
            )
        found, reference = self._picked(pick), pick(self._reference)
        old = reference if isinstance(reference, State) else {"": reference}
        means = {}
        for key, total in found.items():
            expected = self._q * self._layout.holders[self._own[id(total)]]
            means[key] = old[key] + total / expected
        made: Any = State(means) if isinstance(reference, State) else means[""]
        return cast(V, made)

    def _picked(self, pick: Callable[[U], V]) -> Mapping[str, Tensor]:
        """What a method takes must be what was noised: anything computed from it per client would
        need a bound of its own."""
        value = pick(self._total)
        found: Mapping[str, Any] = value if isinstance(value, State) else {"": value}
        if not all(id(t) in self._own for t in found.values()):
            raise _refusal("computes something from single messages before taking the mean")
        return found


def layout(kind: Any, cards: Sequence[Card], sends: Callable[[Card], Sent]) -> Layout:
    """Of the messages that these clients may send."""
    zeros: dict[str, Tensor] = {}
    holders: dict[str, int] = {}
    alike: dict[int, list[Card]] = {}  # clients of one kit share its parameters' shapes
    for card in cards:
        alike.setdefault(id(card.params), []).append(card)
    for same in alike.values():
        try:
            own = blank(kind, same[0], sends(same[0]).paths)
        except wire.WireError as error:
            raise _refusal(f"sends what is not known beforehand ({error})") from None
        for key, t in own.items():
            zeros.setdefault(key, t)
            holders[key] = holders.get(key, 0) + len(same)
    whole = [key for key, t in zeros.items() if not t.is_floating_point()]
    if whole:
        raise _refusal(f"sends whole numbers ({whole[0]}), which take no noise")
    return Layout(kind, zeros, holders, len(cards))


def blind(card: Card) -> Card:
    """As a server may see it that is not told how many windows a client has: all weigh alike."""
    return replace(card, samples=UNTOLD, samples_by_modality=dict.fromkeys(card.modalities, UNTOLD))


def _refusal(why: str) -> CommunisError:
    return CommunisError(
        f"privacy.mode = central releases noised sums only, but this method {why}: choose "
        "mode = local, or a method such as fedavg with uniform = true, fedopt or scaffold"
    )
