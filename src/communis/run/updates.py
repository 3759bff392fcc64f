"""Similarity and divergence of the clients' updates in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch

from communis.core import diagnostics
from communis.core.contract import SERVER, Card
from communis.core.groups import divergence, groups, modality_of_group
from communis.core.replies import Replies
from communis.core.state import State
from communis.exchange.messages import Noted, Pair


def sent(before: State, received: Mapping[int, Any], cards: Sequence[Card]) -> dict[int, State]:
    """Returns each client's change of the common model `w`, in the groups whose sensors it owns.
    BatchNorm statistics do not count as parameters."""
    updates = {}
    for client, up in received.items():
        w: State = up.w
        card = cards[client]
        owned = ("", *card.modalities)
        trained = [path for path in w if path in before and path not in card.statistics]
        mine = [
            path
            for group, paths in groups(trained).items()
            if modality_of_group(group) in owned
            for path in paths
        ]
        updates[client] = State({path: w[path] - before[path] for path in mine})
    return updates


def pairs(updates: Mapping[int, State]) -> list[Pair]:
    """Returns the cosine between the updates of any two clients, group by group. A client that did
    not change a group has no direction in it."""
    flat: dict[str, dict[int, torch.Tensor]] = {}
    for client, update in updates.items():
        for group, paths in groups(update).items():
            vector = torch.cat([update[path].flatten() for path in paths]).double()
            if bool(vector.any()):
                flat.setdefault(group, {})[client] = vector / vector.norm()
    similarities: list[Pair] = []
    for group, vectors in flat.items():
        clients = list(vectors)
        directions = torch.stack(list(vectors.values()))
        cosines = (directions @ directions.T).clamp(-1, 1)
        for i, j in combinations(range(len(clients)), 2):
            similarities.append(Pair(group, clients[i], clients[j], float(cosines[i, j])))
    return similarities


def spread(updates: Mapping[int, State], cards: Sequence[Card]) -> list[Noted]:
    """Returns the divergence of each group over the clients that hold it."""
    replies = Replies([(cards[client], update) for client, update in updates.items()])
    by_group = divergence(replies, lambda update: update)
    return [
        Noted(SERVER, diagnostics.SPREAD.of(group), float(value))
        for group, value in by_group.items()
    ]
