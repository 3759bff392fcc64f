"""The contents of messages of a type, known before any message is sent."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, get_args, get_origin

import torch
from torch import Tensor

from communis.core.contract import Card, Mechanism, UpMessage
from communis.core.state import State
from communis.exchange.wire import SCALARS, WireError, bare, extent, schema


def blank(kind: Any, card: Card, paths: Collection[str]) -> dict[str, Tensor]:
    """Returns the flat arrays, all zero, of a message of type `kind` from a client that sends
    `paths`."""
    flat: dict[str, Tensor] = {}
    for name, hint in schema(kind).items():
        inner = bare(hint)
        sizes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if inner is State and sizes:
            flat |= {f"{name}/{m}": torch.zeros(extent(sizes, card)) for m in card.modalities}
        elif inner is State:
            flat |= {f"{name}/{path}": torch.zeros(card.shapes[path]) for path in paths}
        elif inner is Tensor and sizes:
            flat[name] = torch.zeros(extent(sizes, card))
        elif inner in SCALARS:
            flat[name] = torch.zeros((), dtype=SCALARS[inner])
        else:
            raise WireError(f"the shape of field {name} is not declared")
    return flat


def fractions(kind: Any) -> list[str]:
    """The fields of a message of type `kind` that are not whole numbers only."""
    declared = {} if kind in (None, type(None)) else schema(kind)
    return [name for name, hint in declared.items() if bare(hint) not in (int, bool)]


def mechanism_of(kind: Any) -> Mechanism | None:
    """The mechanism of the paper of a method with messages of type `kind`."""
    declares = isinstance(kind, type) and issubclass(kind, UpMessage)
    return kind.mechanism if declares else None
