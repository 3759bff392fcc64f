"""Parameter groups: what is trained, sent and averaged as one.

A group is a layer, named by its path: a modality's block of the fusion, the fusion's shared part, a
layer of an encoder (of a stack of blocks, one block), a layer of the head. These are the units of
elastic training and of the device clock.
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
    """The group of a path: its module; in a stack of blocks, the block. A mark of the model stays
    with it."""
    bare, at, mark = path.partition("@")
    parts = bare.split(".")[:-1]
    if parts[0] == "fusion":
        return ".".join(parts[: 3 if parts[1] == "blocks" else 2]) + at + mark
    blocks = (i for i, part in enumerate(parts) if i > 1 and part.isdigit())
    number = next(blocks, len(parts))
    return ".".join(parts[: number + 1]) + at + mark


def groups(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """The paths of every group, in the order in which they come."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        found.setdefault(group_of(path), []).append(path)
    return found


def modality_of_group(group: str) -> Modality:
    """The modality that a group belongs to; empty if it serves all."""
    first, *rest = group.partition("@")[0].split(".")
    if first in ("encoders", "unimodal"):
        return rest[0]
    return rest[1] if first == "fusion" and rest[0] == "blocks" else ""


def divergence(ups: Replies[U], pick: Callable[[U], State]) -> State:
    """How much clients disagree on each group that several sent: the mean squared distance of what
    they sent to their plain mean. A shift that all share makes no difference, so values serve as
    well as updates."""
    centre = ups.mean(pick, by=uniform)

    def apart(up: U) -> State:
        off = {
            path: (tensor - centre[path]).double().square().sum()
            for path, tensor in pick(up).items()
        }
        return State({g: torch.stack([off[p] for p in ps]).sum() for g, ps in groups(off).items()})

    senders = ups.sum(lambda up: State(dict.fromkeys(groups(pick(up)), torch.ones(()))))
    found = ups.mean(apart, by=uniform)
    return found.pick(group for group, n in senders.items() if n > 1)
