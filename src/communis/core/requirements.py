"""Requirements of methods: each function refuses fleets that a method cannot be trained on."""

from __future__ import annotations

from collections.abc import Iterable

from communis.core.contract import FleetView, Needs
from communis.core.errors import CommunisError
from communis.core.names import BY_MODEL
from communis.core.plugins import find, names

SHOWN = 8  # clients that a message names at most


def mixed(*kinds: str) -> str:
    """The names of the methods that accept mixed models (of these kinds). It imports all methods
    and is therefore used in refusals only."""
    kinds = kinds or ("any", "one_embedding")
    return ", ".join(name for name in names("methods") if _needs(name).models in kinds)


def _needs(method: str) -> Needs:
    """The needs of a method with default settings."""
    needs: Needs = find("methods", method)().needs
    return needs


def same_shapes(method: object, path: str, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Requires that all clients have a path in the same shape."""
    if one == other:
        return
    kind = type(method).__name__
    mend = f"choose a method for mixed models ({mixed()})"
    if hasattr(method, BY_MODEL):
        mend += (
            ", or let only clients with the same model share: "
            f"methods.{kind.lower()}.{BY_MODEL} = true"
        )
    raise CommunisError(
        f"{kind} averages parameters, but clients have {path} in shapes {one} and {other}: give "
        f"all clients one model in [fleet] models and one detail, or {mend}"
    )


def at_least(method: object, **least: float) -> None:
    """Requires that settings of a method are at least these values."""
    for name, value in least.items():
        if not getattr(method, name) >= value:
            kind = type(method).__name__.lower()
            raise CommunisError(f"{kind} needs {name} >= {value}, got {getattr(method, name)}")


def classes(fleet: FleetView, method: str, why: str) -> None:
    """Requires that the task is to predict one class."""
    if not fleet.task.classes or fleet.task.classes != fleet.task.outputs:
        raise CommunisError(f"{method} needs a classification or counting task: {why}")


def local_data(fleet: FleetView, part: str, mend: str) -> None:
    """Requires that every client has a training window."""
    empty = [str(card.id) for card in fleet.cards if not card.samples and not card.newcomer]
    if empty:
        more = f" and {len(empty) - SHOWN} more" if len(empty) > SHOWN else ""
        raise CommunisError(
            f"{part} is trained on a client's own windows, but client "
            f"{', '.join(empty[:SHOWN])}{more} has none that a sensor saw: give it data (fewer "
            f"clients in [partition], other shares in [data], less dropout), or {mend}"
        )


def held_modalities(fleet: FleetView, part: str) -> None:
    """Requires that every modality that a client owns is present in a training window of the
    fleet."""
    windows: dict[str, int] = {}
    for card in fleet.cards:
        for m, n in card.samples_by_modality.items():
            windows[m] = windows.get(m, 0) + n
    unheld = sorted(m for m, n in windows.items() if not n)
    if unheld:
        raise CommunisError(
            f"no client has a training window with {', '.join(unheld)}, so {part} would never be "
            "trained: remove it from the sensors in [fleet] roles or [data], or reduce the dropout"
        )


def one_size(sizes: Iterable[int], method: str) -> int:
    """Returns the size of the features, which must be the same for all encoders."""
    different = sorted(set(sizes))
    if len(different) != 1:
        raise CommunisError(
            f"{method} needs features of one size from all encoders, got {different}: give all "
            "clients one model in [fleet] models, or choose a method for mixed ones "
            f"({mixed()})"
        )
    return different[0]


def one_embedding(fleet: FleetView, method: str) -> int:
    """Returns the size of the embedding, which must be the same for all clients."""
    sizes = sorted({card.sizes["embedding"] for card in fleet.cards})
    if len(sizes) != 1:
        raise CommunisError(
            f"{method} needs one embedding size for all clients, got {sizes}: choose models that "
            f"share it or set [fleet] embedding; {mixed('any')} do not need it"
        )
    return sizes[0]


def embedding(fleet: FleetView, least: int, what: str, mend: str) -> None:
    """Requires that the embedding of every model has at least this size."""
    smallest = min(card.sizes["embedding"] for card in fleet.cards)
    if smallest < least:
        raise CommunisError(f"{what} needs embeddings of {least}, got {smallest}: {mend}")


def blocks(fleet: FleetView, method: str) -> None:
    """Requires a fusion with a block per modality."""
    if not any(path.startswith("fusion.blocks.") for path in fleet.params):
        raise CommunisError(
            f"{method} needs a model whose fusion has a block per modality, such as lite or cnn"
        )


def devices(fleet: FleetView, what: str) -> None:
    """Requires a device profile for every client."""
    without = [card.id for card in fleet.cards if not card.device]
    if without:
        raise CommunisError(f"{what} needs a device in every role; clients {without} have none")
