"""The codec: a declared payload <-> flat named arrays <-> safetensors bytes. No pickle is used.

The dataclass is the schema. A field may be a `State` (sent as `field/path`), a `Tensor`, an int, a
float, a bool, or a mapping from names to tensors; an empty optional mapping is decoded as None.
`Annotated[Tensor, "classes", "embedding"]` declares a shape by the named sizes of the client's
card. `Annotated[State, "classes"]` declares one such tensor for each of the client's modalities, or
none at all. `decode` builds only what is declared and refuses everything else by name.
"""

from __future__ import annotations

import json
import math
import struct
import types
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from communis.core.contract import Card, Method, Sent
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.exchange.limits import MAX_BYTES, MAX_DIMENSIONS, MAX_FIELDS, MAX_HEADER

NOT_FINITE = "holds NaN or Inf"  # in the reason of a refusal
SCALARS = {int: torch.int64, float: torch.float64, bool: torch.bool}
_NAMES = {  # types that a message may hold: those that can be checked for NaN and Inf
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ROOT = "state"  # the field name under which a payload that is itself a State travels


class WireError(CommunisError):
    """The refusal of a message; the text names the field and the reason."""


@dataclass(frozen=True)
class Message:
    data: bytes
    payload: int  # bytes of the arrays alone

    @property
    def framing(self) -> int:
        return len(self.data) - self.payload


@dataclass(frozen=True)
class Received:
    """A message at its receiver."""

    payload: Any
    arrays: Mapping[str, Tensor]  # the flat arrays of the payload, in the order of `flatten`


def flatten(payload: Any) -> dict[str, Tensor]:
    """The flat named arrays of a payload, in field order."""
    if payload is None:
        return {}
    if isinstance(payload, State):
        return {f"{_ROOT}/{path}": tensor for path, tensor in payload.items()}
    flat: dict[str, Tensor] = {}
    for f in fields(payload):
        value = getattr(payload, f.name)
        if isinstance(value, Mapping):
            flat.update({f"{f.name}/{key}": tensor for key, tensor in value.items()})
        elif isinstance(value, Tensor):
            flat[f.name] = value
        elif value is not None:
            kind = bare(schema(payload.__class__)[f.name])
            flat[f.name] = torch.tensor(value, dtype=SCALARS[kind])
    return flat


def identity(tensor: Tensor) -> Hashable:
    """A key by which equal tensors are recognised: by content if they are small, otherwise only if
    they are the same object."""
    if tensor.numel() > 64:
        return id(tensor)
    return tensor.dtype, tuple(tensor.shape), tensor.detach().cpu().numpy().tobytes()


def encode(payload: Any) -> Message:
    """Encodes a payload, or the flat arrays of one."""
    flat = payload if isinstance(payload, dict) else flatten(payload)
    # The widest numbers come first, so that all are aligned.
    flat = dict(sorted(flat.items(), key=lambda item: (-item[1].element_size(), item[0])))
    arrays = [t.detach().cpu().contiguous().numpy() for t in flat.values()]
    layout = tuple((k, t.dtype, tuple(t.shape)) for k, t in flat.items())
    data = b"".join([_header(layout), *(a.tobytes() for a in arrays)])
    return Message(data, sum(a.nbytes for a in arrays))


@lru_cache(maxsize=256)
def _header(layout: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> bytes:
    """The safetensors header of arrays in this order. It is cached, because clients send the same
    layout in every round, and safetensors would take ten times as long for it as for the rest."""
    entries: dict[str, Any] = {}
    end = 0
    for name, dtype, shape in layout:
        start = end
        end = start + dtype.itemsize * math.prod(shape)
        entries[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def decode(
    data: bytes, kind: Any, *, max_bytes: int = MAX_BYTES, device: torch.device | None = None
) -> Any:
    """Returns the payload of type `kind` that `data` holds. Raises WireError if it holds anything
    else."""
    return receive(data, kind, max_bytes=max_bytes, device=device).payload


def receive(
    data: bytes, kind: Any, *, max_bytes: int = MAX_BYTES, device: torch.device | None = None
) -> Received:
    """Returns the payload with its flat arrays, for checks of single arrays."""
    loaded = load(data, max_bytes=max_bytes, device=device)
    payload = unflatten(dict(loaded), kind)
    return Received(payload, _in_field_order(loaded, kind))


def _in_field_order(flat: Mapping[str, Tensor], kind: Any) -> dict[str, Tensor]:
    """Sorts the arrays of a payload of type `kind` in the order of `flatten`. Sums of floats depend
    on the order, and so does the array that a refusal names if several are broken."""
    declared = [_ROOT] if kind in (State, None, type(None)) else list(schema(kind))
    place = {name: index for index, name in enumerate(declared)}
    names = sorted(flat, key=lambda name: (place[name.partition("/")[0]], name))
    return {name: flat[name] for name in names}


def load(
    data: bytes, *, max_bytes: int = MAX_BYTES, device: torch.device | None = None
) -> dict[str, Tensor]:
    """Returns the flat named arrays that `data` holds."""
    if len(data) > max_bytes:
        raise WireError(f"message of {len(data)} bytes is over the limit of {max_bytes}")
    _check_header(data)
    try:
        flat = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise WireError(f"not a readable message: {error}") from None
    foreign = [name for name, tensor in flat.items() if tensor.dtype not in _NAMES]
    if foreign:
        name = min(foreign)
        raise WireError(f"{name} is {flat[name].dtype}, which no field may be")
    for name, tensor in flat.items():
        if tensor.ndim > MAX_DIMENSIONS:
            raise WireError(
                f"{name} has {tensor.ndim} dimensions; at most {MAX_DIMENSIONS} are allowed"
            )
    if device is not None and device.type != "cpu":
        flat = {key: tensor.to(device) for key, tensor in flat.items()}
    return dict(flat)


def _check_header(data: bytes) -> None:
    """Refuses a message whose names and shapes alone take long to read. safetensors itself refuses
    a malformed header."""
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER:
        raise WireError(
            f"not a readable message: its header of {length} bytes is over the limit of "
            f"{MAX_HEADER}"
        )
    fields = data.count(b"{", 8, 8 + length) - 1  # one per field, and one around all
    if fields > MAX_FIELDS:
        raise WireError(
            f"not a readable message: it has {fields} fields; at most {MAX_FIELDS} are allowed"
        )


def unflatten(flat: dict[str, Tensor], kind: Any) -> Any:
    """Returns the payload of type `kind` with these flat named arrays, and empties `flat`. It is
    the reverse of `flatten`."""
    if kind is type(None) or kind is None:
        _refuse_rest(flat)
        return None
    if kind is State:
        value = State(_take_mapping(flat, _ROOT))
        _refuse_rest(flat)
        return value
    built = {name: _take(flat, name, hint) for name, hint in schema(kind).items()}
    _refuse_rest(flat)
    return kind(**built)


def check(received: Received, card: Card, sent: Sent | None = None) -> None:
    """Refuses NaN and Inf, paths that the client does not own, and undeclared shapes. sent: the
    paths that every State must hold."""
    _check_layout(received.payload, card, sent)
    for name in not_finite(received.arrays):
        raise WireError(f"{name} {NOT_FINITE}")


def _check_layout(payload: Any, card: Card, sent: Sent | None) -> None:
    if isinstance(payload, State):
        _check_paths(_ROOT, payload, card, sent)
    if not is_dataclass(payload):
        return
    for field_name, hint in schema(payload.__class__).items():
        value = getattr(payload, field_name)
        if get_origin(hint) is Annotated and isinstance(value, State):
            own = Sent(card.modalities, optional=() if value else card.modalities)
            _check_keys(field_name, value, own, f"a modality of client {card.id}")
            for modality, tensor in value.items():
                _check_shape(f"{field_name}/{modality}", tensor, get_args(hint)[1:], card)
        elif isinstance(value, State):
            _check_paths(field_name, value, card, sent)
        elif isinstance(value, Tensor) and get_origin(hint) is Annotated:
            _check_shape(field_name, value, get_args(hint)[1:], card)


def not_finite(flat: Mapping[str, Tensor]) -> list[str]:
    """The names of the arrays that hold NaN or Inf."""
    floats = {k: t for k, t in flat.items() if t.is_floating_point() and t.numel()}
    # The sum of all norms is fast and not finite if any array is not; then each one is examined.
    total = sum(t.item() for t in torch._foreach_norm(list(floats.values()), 1)) if floats else 0.0
    if math.isfinite(total):
        return []
    return [name for name, tensor in floats.items() if not bool(torch.isfinite(tensor).all())]


def payload_types(method: type[Method[Any, Any, Any, Any]]) -> tuple[Any, Any, Any, Any]:
    """The types (Server, client state, Down, Up) that a method class declares in `Method[...]`."""
    for base in method.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            origin = get_origin(generic)
            if isinstance(origin, type) and issubclass(origin, Method):
                server, state, down, up = get_args(generic)
                return server, state, down, up
    raise TypeError(f"{method.__name__} must derive from Method[Server, ClientState, Down, Up]")


@cache
def schema(kind: Any) -> dict[str, Any]:
    """The declared type of every field of a payload."""
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in fields(kind)}


def bare(hint: Any) -> Any:
    """The type without its annotation and without `| None`."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(a for a in get_args(hint) if a is not type(None))
    return hint


def _take(flat: dict[str, Tensor], name: str, hint: Any) -> Any:
    kind = bare(hint)
    absent = name not in flat and not any(key.startswith(name + "/") for key in flat)
    if absent and get_origin(hint) in (Union, types.UnionType):
        return None
    if kind is State:
        return State(_take_mapping(flat, name))
    if get_origin(kind) is not None and issubclass(get_origin(kind), Mapping):
        return _take_mapping(flat, name)
    if name not in flat:
        raise WireError(f"field {name} is missing")
    tensor = flat.pop(name)
    if kind is Tensor:
        return tensor
    if tensor.ndim or tensor.dtype is not SCALARS[kind]:
        raise WireError(
            f"field {name} is {tensor.dtype} {tuple(tensor.shape)}, expected one {kind.__name__}"
        )
    return tensor.item()


def _take_mapping(flat: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    keys = [key for key in flat if key.startswith(name + "/")]
    return {key[len(name) + 1 :]: flat.pop(key) for key in sorted(keys)}


def _refuse_rest(flat: Mapping[str, Tensor]) -> None:
    if flat:
        some = sorted(flat)[:3]
        more = f" and {len(flat) - len(some)} more" if len(flat) > len(some) else ""
        raise WireError(f"unknown field {', '.join(some)}{more}")


def extent(sizes: tuple[str | int, ...], card: Card) -> tuple[int, ...]:
    """A declared shape with the named sizes of the client's card filled in."""
    return tuple(card.sizes[size] if isinstance(size, str) else size for size in sizes)


def _check_shape(name: str, tensor: Tensor, sizes: tuple[str | int, ...], card: Card) -> None:
    expected = extent(sizes, card)
    if tuple(tensor.shape) != expected:
        raise WireError(f"{name} has shape {tuple(tensor.shape)}, declared {expected}")
    if tensor.dtype is not torch.float32:
        raise WireError(f"{name} is {tensor.dtype}, expected torch.float32")


def _check_keys(field_name: str, state: State, sent: Sent, meaning: str) -> None:
    """Refuses a State with a key that is not among the sent ones, or without a required one."""
    allowed, optional = frozenset(sent.paths), frozenset(sent.optional)
    for key in [key for key in state if key not in allowed]:
        raise WireError(f"{field_name}/{key} is not {meaning}")
    for key in [key for key in sent.paths if key not in state and key not in optional]:
        raise WireError(f"{field_name}/{key} is missing")


def _check_paths(field_name: str, state: State, card: Card, sent: Sent | None) -> None:
    if sent is not None:
        _check_keys(field_name, state, sent, f"a path that client {card.id} may send")
    shapes = card.shapes
    for path, tensor in state.items():
        if path not in shapes:
            raise WireError(f"{field_name}/{path} is not a path of client {card.id}")
        if tuple(tensor.shape) != tuple(shapes[path]):
            raise WireError(
                f"{field_name}/{path} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(shapes[path])}"
            )
        if tensor.dtype is not torch.float32:
            raise WireError(f"{field_name}/{path} is {tensor.dtype}, expected torch.float32")
