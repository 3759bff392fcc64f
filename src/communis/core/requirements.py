"""What a method needs of a fleet, refused in words where it is not so."""

from __future__ import annotations

from collections.abc import Iterable

from communis.core.contract import FleetView, Needs
from communis.core.errors import CommunisError
from communis.core.plugins import find, names

SHOWN = 8  # clients named in a message


def mixed(*kinds: str) -> str:
    """The methods of this package that take mixed models, or such of these kinds, by name. Asked
    for in a refusal only, as it imports them all."""
    kinds = kinds or ("any", "one_embedding")
    return ", ".join(name for name in names("methods") if _needs(name).models in kinds)


def _needs(method: str) -> Needs:
    """With the settings that are its defaults."""
    found: Needs = find("methods", method)().needs
    return found


def same_shapes(method: object, path: str, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Clients have a path in one shape."""
    if one == other:
        return
    kind = type(method).__name__
    mend = f"choose a method for mixed models ({mixed()})"
    if hasattr(method, "by_model"):
        mend += (
            ", or let only clients with the same model share: "
            f"methods.{kind.lower()}.by_model = true"
        )
    raise CommunisError(
        f"{kind} averages parameters, but clients have {path} in shapes {one} and {other}: give "
        f"all clients one model in [fleet] models and one detail, or {mend}"
    )


def at_least(method: object, **least: float) -> None:
    """These settings of a method are not below so much."""
    for name, value in least.items():
        if not getattr(method, name) >= value:
            kind = type(method).__name__.lower()
            raise CommunisError(f"{kind} needs {name} >= {value}, got {getattr(method, name)}")


def classes(fleet: FleetView, method: str, why: str) -> None:
    """The task is to predict one class."""
    if not fleet.task.classes or fleet.task.classes != fleet.task.outputs:
        raise CommunisError(f"{method} needs a classification or counting task: {why}")


def local_data(fleet: FleetView, part: str, mend: str) -> None:
    """Every client has a training window."""
    empty = [str(card.id) for card in fleet.cards if not card.samples]
    if empty:
        more = f" and {len(empty) - SHOWN} more" if len(empty) > SHOWN else ""
        raise CommunisError(
            f"{part} is trained on a client's own windows, but client "
            f"{', '.join(empty[:SHOWN])}{more} has none that a sensor saw: give it data (fewer "
            f"clients in [partition], other shares in [data], less dropout), or {mend}"
        )


def held_modalities(fleet: FleetView, part: str) -> None:
    """Every modality that a client owns is there in some training window of the fleet."""
    windows: dict[str, int] = {}
    for card in fleet.cards:
        for m, n in card.samples_by_modality.items():
            windows[m] = windows.get(m, 0) + n
    unheld = sorted(m for m, n in windows.items() if not n)
    if unheld:
        raise CommunisError(
            f"no client has a training window with {', '.join(unheld)}, so {part} would stay as it "
            "began: take it out of the sensors in [fleet] roles or [data], or lessen the dropout"
        )


def one_size(sizes: Iterable[int], method: str) -> int:
    """The size of every encoder's features."""
    found = sorted(set(sizes))
    if len(found) != 1:
        raise CommunisError(
            f"{method} needs features of one size from all encoders, got {found}: give all clients "
            f"one model in [fleet] models, or choose a method for mixed ones ({mixed()})"
        )
    return found[0]


def one_embedding(fleet: FleetView, method: str) -> int:
    """The size of every client's embedding."""
    sizes = sorted({card.sizes["embedding"] for card in fleet.cards})
    if len(sizes) != 1:
        raise CommunisError(
            f"{method} needs one embedding size for all clients, got {sizes}: choose models that "
            f"share it or set [fleet] embedding; {mixed('any')} do without"
        )
    return sizes[0]


def embedding(fleet: FleetView, least: int, what: str, mend: str) -> None:
    """Every model's embedding has at least so many numbers."""
    smallest = min(card.sizes["embedding"] for card in fleet.cards)
    if smallest < least:
        raise CommunisError(f"{what} needs embeddings of {least}, got {smallest}: {mend}")


def blocks(fleet: FleetView, method: str) -> None:
    if not any(path.startswith("fusion.blocks.") for path in fleet.params):
        raise CommunisError(
            f"{method} needs a model whose fusion has a block per modality, such as lite or cnn"
        )


def devices(fleet: FleetView, what: str) -> None:
    without = [card.id for card in fleet.cards if not card.device]
    if without:
        raise CommunisError(f"{what} needs a device in every role; clients {without} have none")
