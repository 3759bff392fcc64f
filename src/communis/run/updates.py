"""Do clients pull in the same direction? What their updates say about each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from communis.core import diagnostics
from communis.core.contract import SERVER, Card
from communis.core.groups import divergence, groups, modality_of_group
from communis.core.replies import Replies
from communis.core.state import State
from communis.exchange.messages import Noted, Pair


def sent(before: State, received: Mapping[int, Any], cards: Sequence[Card]) -> dict[int, State]:
    """What clients changed of the parameters of a common model `w`, in the groups whose sensors
    they own. BatchNorm's statistics in it are no parameters."""
    found = {}
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
        found[client] = State({path: w[path] - before[path] for path in mine})
    return found


def pairs(updates: Mapping[int, State]) -> list[Pair]:
    """The cosine between the updates of any two clients, group by group. A client that left a
    group as it was has no direction."""
    flat: dict[str, dict[int, torch.Tensor]] = {}
    for client, update in updates.items():
        for group, paths in groups(update).items():
            vector = torch.cat([update[path].flatten() for path in paths]).double()
            if bool(vector.any()):
                flat.setdefault(group, {})[client] = vector / vector.norm()
    found = []
    for group, vectors in flat.items():
        clients = list(vectors)
        cosines = torch.stack(list(vectors.values()))
        cosines = (cosines @ cosines.T).clamp(-1, 1)
        found += [
            Pair(group, one, other, float(cosines[i, j]))
            for i, one in enumerate(clients)
            for j, other in enumerate(clients)
            if i < j
        ]
    return found


def spread(updates: Mapping[int, State], cards: Sequence[Card]) -> list[Noted]:
    """How much the holders of each group disagree."""
    replies = Replies([(cards[client], update) for client, update in updates.items()])
    apart = divergence(replies, lambda update: update)
    return [
        Noted(SERVER, diagnostics.SPREAD.of(group), float(value)) for group, value in apart.items()
    ]
