"""Central privacy: a trusted server releases noised sums only.

Clients are sampled independently (Poisson sampling). Every message is clipped over all of its
fields together. The sum over the clients of a round receives Gaussian noise once and is divided by
the expected number of clients, whatever their actual number. Neighbouring datasets differ by the
presence of one client.
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
from communis.exchange.privacy import accountant
from communis.exchange.privacy.accountant import split
from communis.exchange.privacy.guard import Flat, change_of, clip, normal, rounded
from communis.exchange.privacy.messages import blank
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.privacy.spending import Spending

U = TypeVar("U")
V = TypeVar("V", State, Tensor, float)
MOST_ROUNDS = 1_000_000  # for which noise is computed from epsilon
UNTOLD = 2**30  # windows; more than any client has, so that no count is refused as too high


@dataclass(frozen=True)
class Layout:
    """The arrays that clients of the fleet may send. It is fixed before the first round, so that
    the noise does not depend on the clients that take part."""

    kind: Any  # type of the message
    zeros: Flat
    holders: Mapping[str, int]  # number of clients that send each array
    clients: int


@dataclass(frozen=True)
class Central:
    """The mechanism of the server: sampling, clipping, noise and adaptive clipping."""

    z: float  # standard deviation of the noise on the sum, relative to C
    clip: float  # C in the first round
    q: float  # probability that a client is sampled
    spending: Spending = field(default_factory=Spending)
    quantile: float = 0.0  # quantile of the norms of updates that C follows; 0: C is constant
    rate: float = 0.0

    def draw(self, clients: Sequence[int], generator: np.random.Generator) -> list[int]:
        """Samples each client with probability q."""
        chosen = generator.random(len(clients)) < self.q
        return [client for client, drawn in zip(clients, chosen, strict=True) if drawn]

    def z_of(self, round: int) -> float:
        """Returns the noise of a round, which depends on its share of the budget."""
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
        """Returns the noised sum of the clients' changes, and the bound for the next round."""
        z = self.z_of(round)
        count_noise = 0.0
        if self.quantile:  # a part of the budget pays for the share of updates below the bound
            expected = self.q * layout.clients
            count_noise = max(expected / 20, z)
            z = split(z, count_noise)
        total = {key: torch.zeros_like(t) for key, t in layout.zeros.items()}
        clipped = 0
        for up in sent:
            known = {key: t for key, t in up.items() if key in total}
            changes = {key: change_of(key, known, reference) for key in known}
            change, was_clipped = clip(changes, bound)
            clipped += was_clipped
            for key, value in change.items():
                total[key] += value
        noised = {}
        for key, t in total.items():
            noised[key] = rounded(t.double() + normal(t, generator) * (z * bound), t)
        next_bound = bound
        if self.quantile:  # Andrew et al. 2021: geometric steps towards the quantile
            below = len(sent) - clipped - 0.5 * len(sent)
            below += count_noise * generator.standard_normal()
            next_bound = bound * math.exp(-self.rate * (below / expected + 0.5 - self.quantile))
        return Released(noised, next_bound, clipped)


def central_of(settings: PrivacyConfig, rounds: int, participation: float) -> Central | None:
    """Returns the mechanism of the server, or None with other modes."""
    if settings.mode != "central":
        return None
    if not settings.noise and rounds > MOST_ROUNDS:
        raise CommunisError(
            f"mode = 'central' with epsilon is possible for {MOST_ROUNDS:,} rounds at most, "
            f"got run.rounds = {rounds:,}: lower it, or give noise instead of epsilon"
        )
    spending = settings.spending(rounds)
    z = settings.noise
    if not z:
        z = accountant.noise_for(
            settings.epsilon,
            settings.delta,
            participation,
            max(1, rounds),
            settings.accountant,
            [spending.weight(round) for round in range(1, max(1, rounds) + 1)],
        )
    if not settings.adaptive:
        return Central(z, settings.clip, participation, spending)
    return Central(z, settings.clip, participation, spending, settings.quantile, settings.clip_rate)


@dataclass(frozen=True)
class Released:
    """The result of a round under central privacy."""

    total: Flat
    clip: float  # the bound of the next round
    clipped: int  # number of messages that were clipped


class NoisedReplies(Replies[U]):
    """The replies under central privacy: means and sums of the fields of messages, and nothing
    about single clients."""

    def __init__(self, layout: Layout, reference: Flat, total: Flat, q: float) -> None:
        super().__init__([])
        self._layout = layout
        self._q = q
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
        picked = self._picked(pick)
        if any(self._own[id(t)] in self._relative for t in picked.values()):
            raise _refusal("sums up what was not sent as a change")
        return pick(self._total)

    def mean(self, pick: Callable[[U], V], *, by: Weight) -> V:
        if by is not uniform:
            raise CommunisError(
                "privacy.mode = central: weighing clients by their samples lets one of them count "
                "for more than the clipping bound: set method.uniform = true"
            )
        reference = pick(self._reference)
        old = reference if isinstance(reference, State) else {"": reference}
        means = {}
        for key, total in self._picked(pick).items():
            expected = self._q * self._layout.holders[self._own[id(total)]]
            means[key] = old[key] + total / expected
        result: Any = State(means) if isinstance(reference, State) else means[""]
        return cast(V, result)

    def _picked(self, pick: Callable[[U], V]) -> Mapping[str, Tensor]:
        """Returns the tensors that a method picks. They must be noised fields: anything computed
        from a message per client would need a bound of its own."""
        value = pick(self._total)
        picked: Mapping[str, Any] = value if isinstance(value, State) else {"": value}
        if not all(id(t) in self._own for t in picked.values()):
            raise _refusal("computes something from single messages before taking the mean")
        return picked


def layout(kind: Any, cards: Sequence[Card], sends: Callable[[Card], Sent]) -> Layout:
    """Returns the layout of the messages that these clients may send."""
    zeros: dict[str, Tensor] = {}
    holders: dict[str, int] = {}
    alike: dict[int, list[Card]] = {}  # clients with the same model and sensors share their shapes
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
    integers = [key for key, t in zeros.items() if not t.is_floating_point()]
    if integers:
        raise _refusal(f"sends whole numbers ({integers[0]}), which take no noise")
    return Layout(kind, zeros, holders, len(cards))


def blind(card: Card) -> Card:
    """Returns the card without the number of windows, so that all clients weigh the same. That a
    newcomer has none for training is no secret."""
    if card.newcomer:
        return card
    return replace(card, samples=UNTOLD, samples_by_modality=dict.fromkeys(card.modalities, UNTOLD))


def _refusal(why: str) -> CommunisError:
    return CommunisError(
        f"privacy.mode = central releases noised sums only, but this method {why}: choose "
        "mode = local, or a method such as fedavg with uniform = true, fedopt or scaffold"
    )
