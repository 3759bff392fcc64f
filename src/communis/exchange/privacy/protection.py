"""The privacy of a run: which clients may take part, what a round costs, and the account of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from communis.core import diagnostics
from communis.core.contract import SERVER, Card, DownMessage, FleetView
from communis.core.errors import CommunisError
from communis.core.groups import group_of
from communis.core.replies import Replies, Rule
from communis.core.tasks import scaled
from communis.exchange import wire
from communis.exchange.messages import Noted
from communis.exchange.privacy import accountant, gaussian
from communis.exchange.privacy.central import (
    Central,
    NoisedReplies,
    Released,
    blind,
    central_of,
    layout,
)
from communis.exchange.privacy.guard import guard_of
from communis.exchange.privacy.messages import fractions, mechanism_of
from communis.exchange.privacy.settings import PrivacyConfig, Setting
from communis.fleet.clients import FleetClients

UNDECLARED = "fields that nobody declared"  # the part of all names that a client made up

# What a checkpoint keeps: mu^2 of every client, the rounds whose cost the log must have, and the
# number of arrays that privacy.json must name.
SPENT, PAID = "privacy:spent", "privacy:rounds"
SEEN = "privacy:arrays"


class Protection:
    """Its state changes from round to round: the budgets that clients have spent and, if it is
    adaptive, the bound C."""

    def __init__(
        self,
        settings: PrivacyConfig,
        fleet: FleetClients,
        setting: Setting,
    ) -> None:
        self.settings = settings
        self._fleet = fleet
        self._setting = setting
        self._method = fleet.method
        cards = fleet.cards
        method = fleet.method
        *_, self._up = wire.payload_types(type(method))
        self._mechanism = mechanism_of(self._up)
        self._private = settings.mode in ("local", "central")
        self._limited = settings.mode == "local" and settings.epsilon > 0  # clients have a budget
        self.cards = [blind(card) for card in cards] if self._private else list(cards)
        self._trainers = [self.cards[i] for i in fleet.trainers]
        settings.check(len(self._trainers))
        self._refuse()
        self.guard = guard_of(settings, self._covered(), setting.rounds, setting.share)
        self.central: Central | None = None
        if self._up not in (None, type(None)):
            self.central = central_of(settings, setting.rounds, setting.participation)
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
        self._written = dict(self._left)  # what of it the run's folder has

    @property
    def view(self) -> FleetView:
        """The fleet as the server sees it."""
        return _View(self._fleet, self.cards, self.settings.mode != "none")

    def rehearse(self, server: Any) -> None:
        """Raises the error that a method without support for this privacy would raise in its first
        round."""
        down = self._method.down(server, self._trainers[0])
        paper = self._mechanism if self.settings.mode == "paper" else None
        if paper and not any(key.startswith(f"{paper.field}/") for key in wire.flatten(down)):
            raise CommunisError(
                f"privacy.mode = paper noises {paper.symbol}, which this fleet's models do not "
                f"have: {paper.mend}, or mode = local"
            )
        shaped = self.guard is not None and self.guard.kappa != 1
        named = isinstance(down, DownMessage) and bool(down.subspace(self._method))
        if shaped and not named:
            plain = "privacy.kappa = 1" if paper else "privacy.mechanism = gaussian"
            raise CommunisError(
                f"{type(self._method).__name__} with these settings has no subspace that could get "
                f"less noise: set {plain}"
            )
        if self._layout is not None:
            zeros = {key: torch.zeros_like(t) for key, t in self._layout.zeros.items()}
            self._method.aggregate(server, self._noised(self._reference(server), zeros))

    def over(self, round: int, paying: Sequence[int] = ()) -> bool:
        """Whether the whole budget is spent before this round. paying: the clients in the round
        before, which is not over yet."""
        if self.central is not None:
            return round > self._last
        if not self._limited:
            return False
        everybody = [card.id for card in self._trainers]
        return not self.able(everybody, round, paying)

    def able(self, clients: Sequence[int], round: int, paying: Sequence[int] = ()) -> list[int]:
        """The clients whose budget is sufficient for this round."""
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
        """The messages of clients as an aggregator may see them."""
        if self.central is None or self._layout is None:
            return Replies([(card, message.payload) for card, message in received], rule)
        sent = [message.arrays for _, message in received]
        noise = self._fleet.streams.generator("privacy", round)
        reference = self._reference(server)
        released = self.central.release(sent, reference, self._layout, self._clip, round, noise)
        self._released = self._released or released  # later calls of a round are comparisons
        return self._noised(reference, released.total)

    def begin_round(self) -> None:
        """Forgets what a round left behind that failed."""
        self._released = None

    def costs(self, cohort: Sequence[int], round: int) -> list[Noted]:
        """What a round costs, for the log. Who was asked pays, heard or not."""
        if self.guard is not None:
            mu = self.guard.mu(round)
            return [Noted(client, diagnostics.PRIVACY_MU.name, mu) for client in cohort]
        if self.central is None or self._released is None:
            return []
        notes = {
            diagnostics.PRIVACY_Z: self.central.z_of(round),
            diagnostics.PRIVACY_Q: self.central.q,
            diagnostics.PRIVACY_CLIP: self._clip,
            diagnostics.PRIVACY_CLIPPED: self._released.clipped / max(1, len(cohort)),
        }
        return [Noted(SERVER, what.name, value) for what, value in notes.items()]

    def pay(self, cohort: Sequence[int], round: int) -> None:
        """The round is over and in the log. A round that fails is done again, and paid for once."""
        if self.guard is not None:
            self._spent[list(cohort)] += self.guard.mu(round) ** 2
            self.paid += [round] if cohort else []
        elif self._released is not None:
            self._clip = self._released.clip
            self._released = None
            self.paid.append(round)

    @property
    def mechanisms(self) -> tuple[object, ...]:
        """The mechanisms of the run, which are part of its identity: a run that spreads its budget
        over more rounds is another run."""
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
            SEEN: torch.tensor(len(self._written)),
            "privacy:clip": clip,
        }

    def restore(self, tensors: dict[str, Tensor], account: Mapping[str, Any]) -> None:
        """Takes what is its own out of a checkpoint's tensors, and goes on with the account."""
        self._left = {key: (n, fraction) for key, n, fraction in account.get("arrays", ())}
        if self.settings.mode != "none":
            self._spent = tensors.pop(SPENT).numpy().copy()
            self.paid = tensors.pop(PAID).tolist()
            self._clip = float(tensors.pop("privacy:clip"))
            seen = tensors.pop(SEEN, None)  # older versions did not count them
            if seen is not None and len(self._left) < int(seen):
                raise CommunisError(
                    f"privacy.json names {len(self._left)} arrays that left the clients, but the "
                    f"checkpoint counts {int(seen)}: it is an older copy; put back the last one, "
                    "or begin anew in another folder"
                )

    def see(self, sent: Mapping[int, wire.Received], sound: Collection[int]) -> bool:
        """Looks at what left the clients; whether the folder lacks any of it. sound: the clients
        whose messages were checked. Names in others may be anything and any number: those that the
        client's card does not have are one entry of their field."""
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
        return self._left != self._written

    def written(self) -> None:
        """The account is in the run's folder."""
        self._written = dict(self._left)

    def account(self, ended: int = 0) -> dict[str, Any]:
        """What the run's folder keeps: what was promised, what left the clients, what of
        it is covered. ended: the round after which everything was spent."""
        parts: dict[tuple[str, str], dict[str, Any]] = {}
        for key, (numbers, fraction) in sorted(self._left.items()):
            name, _, path = key.partition("/")
            part = group_of(path) if "." in path else path
            why = self._uncovered(name, fraction)
            row = {"field": name, "part": part, "tensors": 0, "numbers": 0}
            entry = parts.setdefault((name, part), {**row, "covered": not why, "why": why})
            entry["tensors"] += 1
            entry["numbers"] += numbers
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
        """The reason why an array of the field is not covered; empty if it is."""
        if not fraction:
            return "whole numbers take no Gaussian noise"
        if self.central is not None or (self.guard is not None and name in self.guard.blocks):
            return ""
        if self._mechanism is not None and self.settings.mode == "paper":
            return f"the paper's own mechanism covers the {self._mechanism.field} only"
        return "sent in clear"

    def _leaks(self) -> list[str]:
        """What a client reveals in other ways than by its messages."""
        fleet = self._fleet.fleet
        borrowed = fleet.borrowed
        start = fleet.start
        leaks = {
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
            "models begin with what another run learned from the same dataset "
            f"({start.run if start else ''})": start is not None and start.same_data,
            "who has which model follows from how many training windows clients have "
            '(fleet.deal = "size")': fleet.dealt_by_size,
        }
        return [why for why, so in leaks.items() if so]

    def _refuse(self) -> None:
        """Refuses what is incompatible with the privacy mode."""
        if self.settings.mode == "none" or not self._method.needs.raw_data:
            reasons = {
                "cohort draws a fixed number of clients, but the guarantee needs clients that are "
                "drawn independently: use run.participation": self._setting.by_number,
                "in a graph, no node is trusted with the messages of all clients: use mode = "
                "local, or a star": not self._setting.star,
                "[robust] needs single messages: use mode = local, or the mean": (
                    self._setting.rule
                ),
            }
            for why, applies in reasons.items():
                if applies and self.settings.mode == "central":
                    raise CommunisError(f"privacy.mode = central: {why}")
            return
        raise CommunisError(
            f"the clients of {type(self._method).__name__} hand over raw data: privacy.mode = "
            f"{self.settings.mode} could not protect anything"
        )

    def _last_round(self) -> int:
        """The last round before epsilon is spent, with central privacy."""
        s = self.settings
        central = self.central
        if central is None or not (s.epsilon and s.noise):
            return self._setting.rounds
        every = [(central.q, central.z_of(r)) for r in range(1, self._setting.rounds + 1)]
        low = 0
        high = len(every)
        while low < high:
            middle = (low + high + 1) // 2
            enough = (
                accountant.epsilon_of_rounds(every[:middle], s.delta, s.accountant) <= s.epsilon
            )
            if enough:
                low = middle
            else:
                high = middle - 1
        return low

    def _reference(self, server: Any) -> dict[str, Tensor]:
        """The arrays that clients received, relative to which they send changes."""
        one_of_each_model = {id(card.params): card for card in self._trainers}
        arrays: dict[str, Tensor] = {}
        for card in one_of_each_model.values():
            arrays |= wire.flatten(self._method.down(server, card))
        return arrays

    def _noised(
        self, reference: Mapping[str, Tensor], total: Mapping[str, Tensor]
    ) -> NoisedReplies[Any]:
        assert self._layout is not None
        assert self.central is not None
        return NoisedReplies(self._layout, reference, total, self.central.q)


def _declared(key: str, card: Card) -> bool:
    """Whether a name in a readable message, whose field the method therefore has, is one that the
    client's card has."""
    _, mapped, path = key.partition("/")
    return not mapped or path in card.shapes or path in card.modalities


@dataclass(frozen=True)
class _View:
    """The fleet as its server sees it."""

    fleet: FleetView
    cards: Sequence[Card]  # without numbers of windows, if privacy hides them
    noised: bool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fleet, name)
