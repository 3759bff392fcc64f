"""What messages of a type hold, before there are any."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, get_args, get_origin

import torch
from torch import Tensor

from communis.core.contract import Card, Mechanism, UpMessage
from communis.core.state import State
from communis.exchange.wire import SCALARS, WireError, bare, extent, schema


def blank(kind: Any, card: Card, paths: Collection[str]) -> dict[str, Tensor]:
    """The flat arrays, all zero, of a message of type `kind` from a client that sends `paths`."""
    flat: dict[str, Tensor] = {}
    for name, hint in schema(kind).items():
        inner, sizes = bare(hint), get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if inner is State and sizes:
            flat |= {f"{name}/{m}": torch.zeros(extent(sizes, card)) for m in card.modalities}
        elif inner is State:
            flat |= {f"{name}/{path}": torch.zeros(card.shapes[path]) for path in paths}
        elif inner is Tensor and sizes:
            flat[name] = torch.zeros(extent(sizes, card))
        elif inner in SCALARS:
            flat[name] = torch.zeros((), dtype=SCALARS[inner])
        else:
            raise WireError(f"the extent of field {name} is not declared")
    return flat


def fractions(kind: Any) -> list[str]:
    """The fields of a message of type `kind` that may hold other than whole numbers."""
    declared = {} if kind in (None, type(None)) else schema(kind)
    return [name for name, hint in declared.items() if bare(hint) not in (int, bool)]


def mechanism_of(kind: Any) -> Mechanism | None:
    """What the paper of a method with messages of type `kind` noises by itself."""
    declares = isinstance(kind, type) and issubclass(kind, UpMessage)
    return kind.mechanism if declares else None
