"""A run's privacy at work: who may take part, what a round costs, what is written down of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from communis.core.contract import Card, DownMessage, FleetView
from communis.core.errors import CommunisError
from communis.core.groups import group_of
from communis.core.replies import Replies, Rule
from communis.core.tasks import scaled
from communis.exchange import wire
from communis.exchange.messages import Noted
from communis.exchange.privacy import accountant, gaussian
from communis.exchange.privacy.central import NoisedReplies, Released, blind, layout
from communis.exchange.privacy.messages import fractions, mechanism_of
from communis.exchange.privacy.settings import PrivacyConfig
from communis.fleet.clients import FleetClients

SERVER = -1
UNDECLARED = "fields that nobody declared"  # the part of all names that a client made up

# What a checkpoint keeps: mu^2 of every client, and the rounds whose cost the log must have.
SPENT, PAID = "privacy:spent", "privacy:rounds"


@dataclass(frozen=True)
class Setting:
    """What privacy has to know of a run."""

    rounds: int
    participation: float  # central: the probability of every client's coin
    share: float  # of the clients that are in a round, where their number is fixed
    by_number: bool  # that number is given, as run.cohort
    star: bool
    rule: bool  # something stands in for means


class Protection:
    """Changes from round to round: what clients have spent and, if it adapts, the bound C."""

    def __init__(
        self,
        settings: PrivacyConfig,
        fleet: FleetClients,
        setting: Setting,
    ) -> None:
        self.settings, self._fleet, self._setting = settings, fleet, setting
        cards, method = fleet.cards, fleet.method
        self._method = method
        *_, self._up = wire.payload_types(type(method))
        self._mechanism = mechanism_of(self._up)
        self._private = settings.mode in ("local", "central")
        self._limited = settings.mode == "local" and settings.epsilon > 0  # clients have a budget
        self.cards = [blind(card) for card in cards] if self._private else list(cards)
        self._trainers = [self.cards[i] for i in fleet.trainers]
        settings.check(len(self._trainers))
        self._refuse()
        self.guard = settings.guard(self._covered(), setting.rounds, setting.share)
        sends = self._up not in (None, type(None))
        self.central = settings.central(setting.rounds, setting.participation) if sends else None
        self._layout = layout(self._up, self._trainers, method.sends) if self.central else None
        self._spent = np.zeros(len(cards))  # mu^2 of every client
        self.paid: list[int] = []  # the rounds whose cost is in the log
        self._clip = settings.clip
        self._released: Released | None = None  # by the round that is not over yet
        self._last = self._last_round()
        if setting.rounds and self.over(1):
            raise CommunisError(
                f"privacy: with noise = {settings.noise:g} a single round costs more than epsilon "
                f"= {settings.epsilon:g}: raise either; `communis privacy plan` helps"
            )
        self._left: dict[str, tuple[int, bool]] = {}  # every array that left a client: how many
        # numbers, and whether they are fractions

    @property
    def view(self) -> FleetView:
        """The fleet as the server may see it."""
        return _View(self._fleet, self.cards, self.settings.mode != "none")

    def rehearse(self, server: Any) -> None:
        """Raises what a method that this privacy does not suit would raise in its first round."""
        down = self._method.down(server, self._trainers[0])
        paper = self._mechanism if self.settings.mode == "paper" else None
        if paper and not any(key.startswith(f"{paper.field}/") for key in wire.flatten(down)):
            raise CommunisError(
                f"privacy.mode = paper noises {paper.symbol}, which this fleet's models have not: "
                f"{paper.mend}, or mode = local"
            )
        shaped = self.guard is not None and self.guard.kappa != 1
        named = isinstance(down, DownMessage) and bool(down.subspace(self._method))
        if shaped and not named:
            plain = "privacy.kappa = 1" if paper else "privacy.mechanism = gaussian"
            raise CommunisError(
                f"{type(self._method).__name__} with these settings names no subspace that noise "
                f"could spare: set {plain}"
            )
        if self._layout is not None:
            zeros = {key: torch.zeros_like(t) for key, t in self._layout.zeros.items()}
            self._method.aggregate(server, self._noised(self._reference(server), zeros))

    def over(self, round: int, paying: Sequence[int] = ()) -> bool:
        """Whether everything that may be spent is spent before this round. paying: who takes part
        in the one before, which is not over yet."""
        if self.central is not None:
            return round > self._last
        everybody = [card.id for card in self._trainers]
        return self._limited and not self.able(everybody, round, paying)

    def able(self, clients: Sequence[int], round: int, paying: Sequence[int] = ()) -> list[int]:
        """Those who can still afford this round."""
        if self.guard is None or not self._limited:
            return list(clients)
        limit = gaussian.mu_of(self.settings.epsilon, self.settings.delta) ** 2
        spent = self._spent.copy()
        spent[list(paying)] += self.guard.mu(round - 1) ** 2
        cost = self.guard.mu(round) ** 2
        return [i for i in clients if spent[i] + cost <= limit]

    def replies(
        self,
        server: Any,
        received: Sequence[tuple[Card, wire.Received]],
        rule: Rule | None,
        round: int,
    ) -> Replies[Any]:
        """What an aggregator sees of its clients' messages."""
        if self.central is None or self._layout is None:
            return Replies([(card, message.payload) for card, message in received], rule)
        sent = [message.arrays for _, message in received]
        noise = self._fleet.streams.generator("privacy", round)
        reference = self._reference(server)
        released = self.central.release(sent, reference, self._layout, self._clip, round, noise)
        self._released = self._released or released  # the round's own; others ask "what if"
        return self._noised(reference, released.total)

    def spend(self, cohort: Sequence[int], round: int) -> list[Noted]:
        """A round is over: what it cost, for the log. Who was asked has paid, heard or not."""
        if self.guard is not None:
            mu = self.guard.mu(round)
            self._spent[list(cohort)] += mu**2
            self.paid += [round] if cohort else []
            return [Noted(client, "privacy/mu", mu) for client in cohort]
        if self.central is None or self._released is None:
            return []
        found = {
            "z": self.central.z_of(round),
            "q": self.central.q,
            "clip": self._clip,
            "clipped": self._released.clipped / max(1, len(cohort)),
        }
        self._clip, self._released = self._released.clip, None
        self.paid.append(round)
        return [Noted(SERVER, f"privacy/{name}", value) for name, value in found.items()]

    @property
    def mechanisms(self) -> tuple[object, ...]:
        """What tells one protection from another: a run that spreads its budget over more rounds is
        another run."""
        return self.guard, self.central

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        if self.settings.mode == "none":
            return {}
        clip = torch.tensor(self._clip, dtype=torch.float64)
        return {
            SPENT: torch.from_numpy(self._spent.copy()),
            PAID: torch.tensor(self.paid, dtype=torch.int64),
            "privacy:clip": clip,
        }

    def restore(self, tensors: dict[str, Tensor], account: Mapping[str, Any]) -> None:
        """Takes what is its own out of a checkpoint's tensors, and goes on with the account."""
        self._left = {key: (n, fraction) for key, n, fraction in account.get("arrays", ())}
        if self.settings.mode != "none":
            self._spent = tensors.pop(SPENT).numpy().copy()
            self.paid = tensors.pop(PAID).tolist()
            self._clip = float(tensors.pop("privacy:clip"))

    def see(self, sent: Mapping[int, wire.Received], sound: Collection[int]) -> bool:
        """Looks at what left the clients; whether there was anything new to write down. sound: the
        clients whose messages were checked. Names in others may be anything and any number: those
        that the client's card does not have are one entry of their field."""
        before = dict(self._left)
        for client, message in sent.items():
            made_up: dict[str, int] = {}  # by field: how many numbers
            for key, t in message.arrays.items():
                if key in self._left or not t.numel():
                    continue
                if client in sound or _declared(key, self.cards[client]):
                    self._left[key] = t.numel(), t.is_floating_point()
                else:
                    field = f"{key.partition('/')[0]}/{UNDECLARED}"
                    made_up[field] = made_up.get(field, 0) + t.numel()
            for field, numbers in made_up.items():  # the most in one message
                most, _ = self._left.get(field, (0, True))
                self._left[field] = max(most, numbers), True
        return self._left != before

    def account(self, ended: int = 0) -> dict[str, Any]:
        """What the run's folder keeps: what was promised, what left the clients, what of
        it is covered. ended: the round after which everything was spent."""
        parts: dict[tuple[str, str], dict[str, Any]] = {}
        for key, (numbers, fraction) in sorted(self._left.items()):
            name, _, path = key.partition("/")
            part = group_of(path) if "." in path else path
            why = self._uncovered(name, fraction)
            row = {"field": name, "part": part, "tensors": 0, "numbers": 0}
            found = parts.setdefault((name, part), {**row, "covered": not why, "why": why})
            found["tensors"] += 1
            found["numbers"] += numbers
        return {
            "mode": self.settings.mode,
            "settings": asdict(self.settings),
            "clients": len(self._trainers),
            "rounds": self._setting.rounds,
            "participation": self._setting.participation,
            "cohort": self._setting.by_number,
            "share": self._setting.share,
            "star": self._setting.star,
            "mu": self.guard.mu(1) if self.guard else None,
            "z": self.central.z if self.central else None,
            "ended": ended,
            "tensors": list(parts.values()),
            "arrays": [(key, *about) for key, about in sorted(self._left.items())],
            "leaks": self._leaks(),
        }

    def _covered(self) -> list[str]:
        if self.settings.mode != "paper":
            return fractions(self._up)
        if self._mechanism is None:
            raise CommunisError(
                "privacy.mode = paper is the mechanism that a method's own paper describes; "
                f"{type(self._method).__name__} has none: choose local or central"
            )
        return [self._mechanism.field]

    def _uncovered(self, name: str, fraction: bool) -> str:
        """Why an array of that field is not covered; empty if it is."""
        if not fraction:
            return "whole numbers take no Gaussian noise"
        if self.central is not None or (self.guard is not None and name in self.guard.blocks):
            return ""
        if self._mechanism is not None and self.settings.mode == "paper":
            return f"the paper's own mechanism covers the {self._mechanism.field} only"
        return "sent in clear"

    def _leaks(self) -> list[str]:
        """What else a client gives away, whatever is noised."""
        fleet = self._fleet.fleet
        borrowed = fleet.borrowed
        found = {
            "raw windows are handed over to the server": self._method.needs.raw_data,
            "the training windows of one client are given to everybody": (
                self._method.needs.public_windows
            ),
            "which parts a client sends may depend on its data": any(
                self._method.sends(card).optional for card in self._trainers
            ),
            "windows are normalised by the whole fleet's statistics, shared in clear": (
                fleet.normalise == "fleet"
            ),
            "a client without training windows of a sensor gets the whole fleet's statistics of "
            f"it, shared in clear ({', '.join(borrowed)})": bool(borrowed),
            "targets are scaled by the whole fleet's statistics, shared in clear": scaled(
                fleet.windows.task
            ),
            "who has which model follows from how many training windows clients have "
            '(fleet.deal = "size")': fleet.dealt_by_size,
        }
        return [why for why, so in found.items() if so]

    def _refuse(self) -> None:
        """What central privacy cannot go together with."""
        if self.settings.mode == "none" or not self._method.needs.raw_data:
            reasons = {
                "cohort draws a fixed number of clients, but central privacy is reckoned for coins "
                "tossed for each: use run.participation": self._setting.by_number,
                "in a graph nobody is trusted with everybody's messages: use mode = local, or a "
                "star": not self._setting.star,
                "[robust] looks at single messages: use mode = local, or the mean": (
                    self._setting.rule
                ),
            }
            for why, so in reasons.items():
                if so and self.settings.mode == "central":
                    raise CommunisError(f"privacy.mode = central: {why}")
            return
        raise CommunisError(
            f"{type(self._method).__name__} hands over raw data: privacy.mode = "
            f"{self.settings.mode} could not protect anything"
        )

    def _last_round(self) -> int:
        """The last round of central privacy before epsilon is spent."""
        s, central = self.settings, self.central
        if central is None or not (s.epsilon and s.noise):
            return self._setting.rounds
        every = [(central.q, central.z_of(r)) for r in range(1, self._setting.rounds + 1)]
        low, high = 0, len(every)
        while low < high:
            middle = (low + high + 1) // 2
            enough = accountant.epsilon_of(every[:middle], s.delta, s.accountant) <= s.epsilon
            low, high = (middle, high) if enough else (low, middle - 1)
        return low

    def _reference(self, server: Any) -> dict[str, Tensor]:
        """What clients received, of which they send changes: the same for all."""
        one_of_a_kind = {id(card.params): card for card in self._trainers}
        found: dict[str, Tensor] = {}
        for card in one_of_a_kind.values():
            found |= wire.flatten(self._method.down(server, card))
        return found

    def _noised(
        self, reference: Mapping[str, Tensor], total: Mapping[str, Tensor]
    ) -> NoisedReplies[Any]:
        assert self._layout is not None
        assert self.central is not None
        return NoisedReplies(self._layout, reference, total, self.central.q)


def _declared(key: str, card: Card) -> bool:
    """Whether a name in a message that could be read, so that its field is one of the method's, is
    one that the client's card has."""
    _, mapped, path = key.partition("/")
    return not mapped or path in card.shapes or path in card.modalities


@dataclass(frozen=True)
class _View:
    """A fleet as its server sees it."""

    fleet: FleetView
    cards: Sequence[Card]  # blind: they do not say how many windows a client has
    noised: bool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fleet, name)
