"""Parameter groups: the units of elastic training and of the device clock.

A group is a layer, named by its path: a modality's block of the fusion, the shared part of the
fusion, a layer of an encoder (or one block of a stack of blocks), or a layer of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TypeVar

import torch

from communis.core.contract import Modality, Path
from communis.core.replies import Replies, uniform
from communis.core.state import State

U = TypeVar("U")


@cache
def group_of(path: Path) -> str:
    """The group of a path: its module, or its block in a stack of blocks. The mark of the model
    ("@...") is kept."""
    bare, at, mark = path.partition("@")
    parts = bare.split(".")[:-1]
    if parts[0] == "fusion":
        return ".".join(parts[: 3 if parts[1] == "blocks" else 2]) + at + mark
    blocks = (i for i, part in enumerate(parts) if i > 1 and part.isdigit())
    number = next(blocks, len(parts))
    return ".".join(parts[: number + 1]) + at + mark


def groups(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """The paths of every group, in order of first occurrence."""
    by_group: dict[str, list[Path]] = {}
    for path in paths:
        by_group.setdefault(group_of(path), []).append(path)
    return by_group


def modality_of_group(group: str) -> Modality:
    """The modality of a group; empty if all modalities share the group."""
    first, *rest = group.partition("@")[0].split(".")
    if first in ("encoders", "unimodal"):
        return rest[0]
    return rest[1] if first == "fusion" and rest[0] == "blocks" else ""


def divergence(ups: Replies[U], pick: Callable[[U], State]) -> State:
    """The disagreement of clients in each group that several clients sent: the mean squared
    distance of their values from the unweighted mean. A shift that is common to all clients has no
    effect, so values and updates give the same result."""
    centre = ups.mean(pick, by=uniform)

    def squared_distances(up: U) -> State:
        squares = {
            path: (tensor - centre[path]).double().square().sum()
            for path, tensor in pick(up).items()
        }
        by_group = {}
        for group, paths in groups(squares).items():
            by_group[group] = torch.stack([squares[path] for path in paths]).sum()
        return State(by_group)

    senders = ups.sum(lambda up: State(dict.fromkeys(groups(pick(up)), torch.ones(()))))
    means = ups.mean(squared_distances, by=uniform)
    return means.pick(group for group, n in senders.items() if n > 1)
