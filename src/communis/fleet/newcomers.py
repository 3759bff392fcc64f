"""Newcomers: clients that take no part in training and are scored with what the others learned.

The members' run is that of a fleet whose newcomers have no training and no validation windows: such
windows are marked as unused, so that nothing counts, trains on or averages over them. Only the
newcomer itself reads them, without their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.recordings.windows import TEST, TRAIN, UNUSED, VAL, Windows

if TYPE_CHECKING:
    from communis.fleet.fleet import Fleet

Asked: TypeAlias = float | tuple[int, ...]  # a share of the clients, or the clients themselves


def hold_out(fleet: Fleet, asked: Asked) -> Fleet:
    """Returns the fleet with newcomers; itself if none are asked for, or if it has some already."""
    if not asked or fleet.newcomers:
        return fleet
    found = chosen(asked, fleet.windows, fleet.clients_of, fleet.suites, fleet.streams)
    attacking = sorted({*found} & {*fleet.attack.attackers})
    if attacking:
        raise CommunisError(
            f"newcomers: clients {attacking} are attackers, but newcomers take no part in "
            "training: choose other ones"
        )
    windows, unlabelled = without_labels(fleet.windows, fleet.clients_of, found)
    return replace(fleet, windows=windows, newcomers=found, unlabelled=unlabelled)


def without_labels(
    windows: Windows, client_of: Array, newcomers: Sequence[int]
) -> tuple[Windows, Array | None]:
    """Returns the windows with those for training and validation of newcomers marked as unused, and
    (N,) bool: which of these were for training. Nothing changes without newcomers."""
    if not newcomers:
        return windows, None
    new = np.isin(client_of, newcomers)
    known = np.isin(windows.split, (TRAIN, VAL))
    split = np.where(new & known, np.int8(UNUSED), windows.split)
    return replace(windows, split=split), new & (windows.split == TRAIN)


def chosen(
    asked: Asked,
    windows: Windows,
    client_of: Array,
    suites: Sequence[tuple[Modality, ...]],
    streams: Streams,
) -> tuple[int, ...]:
    """Returns the newcomers: those named, or as many as the share asks for, drawn by seed. A client
    can be one if it has test windows and if others train each of its sensors."""
    if not asked:
        return ()
    fleet = _Members(windows, client_of, suites)
    if isinstance(asked, tuple):
        return _named(asked, fleet)
    count = int(asked * len(suites) + 0.5)
    if not count:
        raise CommunisError(
            f"run.newcomers = {asked:g} of {len(suites)} clients is nobody: give at least "
            f"{0.5 / len(suites):.3g}, or a list of clients"
        )
    found: list[int] = []
    for client in streams.generator("newcomers").permutation(len(suites)).tolist():
        if len(found) < count and not fleet.refusal(client):
            fleet.remove(client)
            found.append(client)
    if len(found) < count:
        raise CommunisError(
            f"run.newcomers = {asked:g} of {len(suites)} clients is {count}, but only {len(found)} "
            "can be held out: a newcomer needs test windows, and others with training windows of "
            "each of its sensors; lower it, or give more clients the same sensors"
        )
    return tuple(sorted(found))


def _named(asked: Sequence[int], fleet: _Members) -> tuple[int, ...]:
    clients = len(fleet.suites)
    unknown = [client for client in asked if client >= clients]
    if unknown:
        raise CommunisError(
            f"run.newcomers names {unknown}, but the fleet has clients 0 to {clients - 1}"
        )
    for client in asked:
        fleet.remove(client)
    for client in asked:
        if why := fleet.refusal(client):
            raise CommunisError(f"run.newcomers: client {client} cannot be one: {why}")
    return tuple(sorted(asked))


class _Members:
    """The clients that are left to train, while newcomers are taken from them."""

    def __init__(
        self, windows: Windows, client_of: Array, suites: Sequence[tuple[Modality, ...]]
    ) -> None:
        self.suites = suites
        clients = len(suites)
        used = client_of >= 0
        tested = client_of[used & (windows.split == TEST)]
        self._tested = np.bincount(tested, minlength=clients) > 0
        training = used & (windows.split == TRAIN)
        self._trained: dict[Modality, Array] = {}  # (clients,) bool: trains this sensor
        for m in windows.modalities:
            sensed = training & windows.present[m] if m in windows.present else training
            owned = np.array([m in suite for suite in suites])
            self._trained[m] = owned & (np.bincount(client_of[sensed], minlength=clients) > 0)

    def remove(self, client: int) -> None:
        """Takes a client out of training."""
        for trained in self._trained.values():
            trained[client] = False

    def refusal(self, client: int) -> str:
        """Returns why a client cannot be a newcomer; empty if it can."""
        if not self._tested[client]:
            return "it has no test windows, so nothing could be scored"
        for m in self.suites[client]:
            others = self._trained[m].sum() - self._trained[m][client]
            if not others:
                return f"no other client has training windows with {m}, so nobody would train it"
        return ""
