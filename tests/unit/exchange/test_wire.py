"""The codec: what is declared comes back to the bit, everything else is refused by name."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Optional

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from communis import Batch, FedAvg, Method, State
from communis.core.contract import Card, Sent
from communis.exchange import wire
from communis.exchange.wire import (
    Message,
    Received,
    WireError,
    decode,
    encode,
    flatten,
    payload_types,
)
from communis.methods import fedavg
from communis.methods.fedper import FedPer
from tests.unit.small import card, random, same_bits


@dataclass(frozen=True)
class Full:
    """One field of every kind that may be declared."""

    w: State
    c: Annotated[Tensor, "classes", "embedding"]
    t: Tensor
    n: int
    x: float
    yes: bool
    named: Mapping[str, Tensor]
    maybe: State | None = None
    perhaps: Tensor | None = None
    number: Optional[float] = None  # noqa: UP045 # the old spelling must work too


@dataclass(frozen=True)
class Small:
    w: State
    n: int


@dataclass(frozen=True)
class Shaped:
    c: Annotated[Tensor, "classes", "embedding"]
    fixed: Annotated[Tensor, 2, "outputs"]


def full(**changes: Any) -> Full:
    made: dict[str, Any] = {
        "w": State({"b.weight": random(2, 3), "a.bias": random(4, seed=1)}),
        "c": random(3, 2, seed=2),
        "t": torch.tensor([[1, -2]]),
        "n": -(2**62),
        "x": 0.1,
        "yes": True,
        "named": {"k/with/slashes": random(2, seed=3), "half": random(3, seed=4).half()},
    }
    return Full(**(made | changes))


def raw(arrays: Mapping[str, Tensor]) -> bytes:
    """A message as a stranger would write it, not through `encode`."""
    return safetensors.torch.save({k: t.contiguous() for k, t in arrays.items()})


def raw_header(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    flat_a, flat_b = flatten(a), flatten(b)
    assert set(flat_a) == set(flat_b)
    assert all(same_bits(flat_a[k], flat_b[k]) for k in flat_a)


def check(payload: Any, card: Card, sent: Sent | None = None) -> None:
    wire.check(Received(payload, flatten(payload)), card, sent)


OWNED = {"b.weight": (2, 3), "a.bias": (4,)}


def receive(data: bytes) -> Full:
    """What an aggregator does with a message."""
    received: Full = decode(data, Full)
    check(received, card(OWNED))
    return received


def test_arrays_arrive_in_the_order_in_which_they_were_flattened() -> None:
    """Sums of floats over them keep their bits."""
    received = wire.receive(encode(full()).data, Full)
    expected = flatten(received.payload)
    assert list(received.arrays) == list(expected)
    assert all(same_bits(received.arrays[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"maybe": State({"p": random(2)}), "perhaps": torch.tensor(1.5), "number": -0.0},
        {"w": State(), "named": {}},
        {"w": State({"scalar": torch.tensor(2.0), "empty": torch.zeros(0, 5)})},
        {"x": float("inf"), "n": 2**63 - 1, "yes": False},
        {"t": random(6, 4).t()[1::2]},  # a view that does not lie in one piece
        {"t": random(3).requires_grad_()},
    ],
    ids=["plain", "optional", "empty", "odd shapes", "extremes", "strided", "graph"],
)
def test_every_kind_of_field_comes_back_to_the_bit(changes: dict[str, Any]) -> None:
    sent = full(**changes)
    received = decode(encode(sent).data, Full)
    assert_same(received, sent)
    assert type(received.n) is int
    assert type(received.x) is float
    assert type(received.yes) is bool
    assert isinstance(received.w, State)
    assert isinstance(received.named, Mapping)
    assert (received.n, received.x, received.yes) == (sent.n, sent.x, sent.yes)
    for name in ("maybe", "perhaps", "number"):
        assert (getattr(received, name) is None) == (getattr(sent, name) is None)


def test_nan_in_a_scalar_survives_the_codec_and_is_left_to_check() -> None:
    received = decode(encode(full(x=float("nan"))).data, Full)
    assert received.x != received.x


def test_a_bare_state_and_nothing_at_all_are_payloads_too() -> None:
    state = State({"z": random(2), "a/b": torch.tensor(3), "state": random(1)})
    received = decode(encode(state).data, State)
    assert_same(received, state)
    assert_same(decode(encode(State()).data, State), State())
    assert decode(encode(None).data, type(None)) is None
    assert decode(encode(None).data, None) is None
    with pytest.raises(WireError, match="unknown field state/z"):
        decode(encode(State({"z": random(1)})).data, None)


def test_received_tensors_may_be_written_to() -> None:
    """They must not lie in the read-only bytes of the message."""
    message = encode(full())
    received = decode(message.data, Full)
    received.t.add_(1)
    received.w["a.bias"].zero_()
    assert_same(decode(message.data, Full), full())


def test_bytes_are_payload_plus_framing() -> None:
    sent = full(perhaps=random(5, seed=9).double())
    message = encode(sent)
    expected = sum(t.numel() * t.element_size() for t in flatten(sent).values())
    # w 6 + 4 floats, c 6 floats, t 2 int64, n, x, yes, named 2 floats + 3 halves, perhaps 5 doubles
    assert expected == 4 * 10 + 4 * 6 + 8 * 2 + 8 + 8 + 1 + (4 * 2 + 2 * 3) + 8 * 5
    assert message.payload == expected
    assert len(message.data) == message.payload + message.framing
    assert message.framing > 0
    assert encode(State()).payload == encode(None).payload == 0


def test_encoding_what_is_flattened_already_gives_the_same_bytes() -> None:
    assert encode(flatten(full())) == encode(full())
    assert isinstance(encode(full()), Message)


def test_equal_payloads_give_equal_bytes_in_any_order_of_paths() -> None:
    forward = State({"a": random(2), "b": random(3, seed=1)})
    backward = State({"b": forward["b"], "a": forward["a"]})
    assert encode(forward).data == encode(backward).data


def test_an_unknown_field_is_refused_by_name() -> None:
    flat = flatten(full())
    for name in ("stray", "t/inside", "w", "n2"):
        with pytest.raises(WireError, match=f"unknown field {name}$"):
            decode(raw(flat | {name: torch.zeros(1)}), Full)


@pytest.mark.parametrize("name", ["c", "t", "n", "x", "yes"])
def test_a_missing_field_is_refused_by_name(name: str) -> None:
    flat = flatten(full())
    del flat[name]
    with pytest.raises(WireError, match=f"field {name} is missing"):
        decode(raw(flat), Full)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", torch.tensor(1, dtype=torch.int32)),
        ("n", torch.tensor(1.0, dtype=torch.float64)),
        ("n", torch.tensor([1])),
        ("n", torch.zeros(0, dtype=torch.int64)),
        ("x", torch.tensor(1.0)),
        ("x", torch.tensor(1)),
        ("yes", torch.tensor(1, dtype=torch.uint8)),
        ("yes", torch.tensor([True])),
        ("number", torch.tensor(1.0)),
    ],
)
def test_a_scalar_of_another_type_or_shape_is_refused_by_name(name: str, value: Tensor) -> None:
    with pytest.raises(WireError, match=f"field {name} is torch"):
        decode(raw(flatten(full()) | {name: value}), Full)


def test_every_truncation_is_refused_and_nothing_else_is_raised() -> None:
    data = encode(Small(State({"a": torch.ones(2)}), 3)).data
    assert decode(data, Small).n == 3
    for length in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:length], Small)
    with pytest.raises(WireError):
        decode(data + b"\0", Small)


def test_corrupted_bytes_either_decode_or_are_refused() -> None:
    rng = np.random.default_rng(8)
    data = encode(full(maybe=State({"a.bias": random(4)}))).data
    header = 8 + struct.unpack("<Q", data[:8])[0]
    outcomes = set()
    for case in range(600):
        changed = bytearray(data)
        # Half of the blows go to the header, where the parser can stumble.
        at = int(rng.integers(header if case % 2 else len(data)))
        changed[at] ^= int(rng.integers(1, 256))
        try:
            receive(bytes(changed))
            outcomes.add("read")
        except WireError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_random_bytes_are_refused() -> None:
    rng = np.random.default_rng(9)
    for size in (1, 7, 8, 9, 64, 1000):
        for _ in range(20):
            with pytest.raises(WireError, match="not a readable message"):
                decode(rng.bytes(size), Small)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"\xff\xfe{}",
        raw_header({"n": 1}),
        raw_header({"n": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}}),
        raw_header({"n": {"dtype": "I64", "shape": [], "data_offsets": [8, 0]}}, b"\0" * 8),
        raw_header({"n": {"dtype": "I64", "shape": [-1], "data_offsets": [0, 8]}}, b"\0" * 8),
        raw_header({"n": {"dtype": "I64", "shape": [2**64], "data_offsets": [0, 8]}}, b"\0" * 8),
        raw_header({"n": {"dtype": "I64", "shape": [2**63, 0], "data_offsets": [0, 0]}}),
        raw_header({"n": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}, b"\0" * 8),
        raw_header({"n": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}, b"\0" * 8),
    ],
)
def test_malformed_headers_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="not a readable message"):
        decode(data, Small)


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "it ran"),)

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(WireError, match="not a readable message"):
            decode(pickle.dumps(Trap(), protocol), Small)
    assert list(tmp_path.iterdir()) == []


def test_an_oversize_message_is_refused_unread() -> None:
    data = encode(full()).data
    assert decode(data, Full, max_bytes=len(data)).n == full().n
    with pytest.raises(WireError, match=f"message of {len(data)} bytes is over the limit of"):
        decode(data, Full, max_bytes=len(data) - 1)
    # Bytes that no parser could read: the size alone decides.
    with pytest.raises(WireError, match="over the limit of 10"):
        decode(b"x" * 11, Full, max_bytes=10)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("field", ["w", "c", "t", "x", "named", "maybe"])
def test_nan_and_inf_are_refused_wherever_they_hide(field: str, bad: float) -> None:
    poisoned = random(2, 3)
    poisoned[1, 2] = bad
    changes: dict[str, Any] = {
        "w": State({"a.bias": random(4), "b.weight": poisoned}),
        "c": poisoned.view(3, 2),
        "t": poisoned,
        "x": bad,
        "named": {"k": poisoned},
        "maybe": State({"b.weight": poisoned}),
    }
    check(full(), card(OWNED))
    with pytest.raises(WireError, match=rf"^{field}(/\S+)? holds NaN or Inf$"):
        check(full(**{field: changes[field]}), card(OWNED))


def test_inf_and_minus_inf_do_not_cancel() -> None:
    both = torch.tensor([1.0, float("inf"), float("-inf")])
    with pytest.raises(WireError, match="t holds NaN or Inf"):
        check(full(t=both), card(OWNED))


@pytest.mark.parametrize(
    "value",
    [
        torch.full((4,), 3e38),
        torch.full((4,), -3e38),
        torch.full((4,), 6e4, dtype=torch.float16),
        torch.full((4,), 1.7e308, dtype=torch.float64),
    ],
)
def test_finite_values_whose_sum_overflows_are_accepted(value: Tensor) -> None:
    assert not value.sum().isfinite() or value.dtype is torch.float16
    check(full(t=value), card(OWNED))
    if value.dtype is torch.float32:
        check(full(w=State({"a.bias": value})), card(OWNED))


def test_nan_in_a_bare_state_is_refused() -> None:
    with pytest.raises(WireError, match="state/a holds NaN or Inf"):
        check(State({"a": torch.tensor([float("nan")])}), card({"a": (1,)}))
    check(None, card())


def test_a_path_that_the_client_does_not_own_is_refused() -> None:
    stray = State({"a.bias": random(4), "c.bias": random(4)})
    with pytest.raises(WireError, match=r"w/c\.bias is not a path of client 7"):
        check(full(w=stray), card(OWNED, id=7))
    with pytest.raises(WireError, match=r"maybe/c\.bias is not a path of client 7"):
        check(full(maybe=stray), card(OWNED, id=7))


@pytest.mark.parametrize("shape", [(5,), (2, 2), (1, 4), (), (0,)])
def test_a_path_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(WireError, match=r"w/a\.bias has shape .* expected \(4,\)"):
        check(full(w=State({"a.bias": torch.zeros(shape)})), card(OWNED))


@pytest.mark.parametrize(
    "kind", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
def test_a_path_of_another_type_is_refused(kind: torch.dtype) -> None:
    wrong = State({"a.bias": torch.zeros(4, dtype=kind)})
    with pytest.raises(WireError, match=r"w/a\.bias is torch\.\w+, expected torch\.float32"):
        check(full(w=wrong), card(OWNED))


def test_part_of_the_owned_paths_is_enough() -> None:
    check(full(w=State({"a.bias": random(4)})), card(OWNED))
    check(full(w=State()), card(OWNED))


def test_declared_shapes_are_those_of_the_card() -> None:
    right = Shaped(c=random(3, 2), fixed=random(2, 3))
    check(right, card())
    for c in (random(2, 3), random(3, 3), random(6), random(3, 2, 1), torch.zeros(())):
        with pytest.raises(WireError, match=r"c has shape .*, declared \(3, 2\)"):
            check(Shaped(c=c, fixed=right.fixed), card())
    with pytest.raises(WireError, match=r"fixed has shape \(3, 3\), declared \(2, 3\)"):
        check(Shaped(c=right.c, fixed=random(3, 3)), card())


@dataclass(frozen=True)
class ByModality:
    sums: Annotated[State, "classes", 2]


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        ({"a": random(3, 2)}, ""),
        ({}, ""),  # nothing to tell; whether it may be so is the method's to vet
        ({"a": random(3, 2), "b": random(3, 2)}, "sums/b is not a modality of client 0"),
        ({"a": random(2, 2)}, r"sums/a has shape \(2, 2\), declared \(3, 2\)"),
        ({"a": random(3, 2).double()}, "sums/a is torch.float64"),
        ({"a": random(3, 2) / 0}, "sums/a holds NaN or Inf"),
    ],
)
def test_a_state_by_modality_has_one_declared_tensor_for_each_of_the_card_or_nothing(
    sums: dict[str, Tensor], message: str
) -> None:
    sent = decode(encode(ByModality(State(sums))).data, ByModality)
    if not message:
        return check(sent, card(), Sent(()))
    with pytest.raises(WireError, match=message):
        check(sent, card(), Sent(()))


@pytest.mark.parametrize("tensor", [torch.zeros(9), torch.zeros(4).double()])
def test_a_bare_state_is_held_to_the_card(tensor: Tensor) -> None:
    with pytest.raises(WireError):
        check(State({"a.bias": tensor}), card(OWNED))


def test_nan_in_complex_numbers_is_refused() -> None:
    poisoned = torch.tensor([[1, float("nan")]] * 3, dtype=torch.complex64)
    with pytest.raises(WireError):
        receive(raw(flatten(full()) | {"c": poisoned}))


@pytest.mark.parametrize("field", ["c", "w/a.bias"])
def test_eight_bit_floats_do_not_end_the_round(field: str) -> None:
    strange = torch.zeros(4 if field == "w/a.bias" else (3, 2)).to(torch.float8_e4m3fn)
    with pytest.raises(WireError):
        receive(raw(flatten(full()) | {field: strange}))


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.bool])
def test_a_declared_tensor_of_another_type_is_refused(kind: torch.dtype) -> None:
    with pytest.raises(WireError):
        check(Shaped(c=torch.zeros(3, 2, dtype=kind), fixed=random(2, 3)), card())


def test_an_int_in_a_float_field_arrives_as_a_float() -> None:
    """Python's own typing lets an int stand for a float."""
    received = decode(encode(full(x=1)).data, Full)
    assert type(received.x) is float


def test_payload_types_are_found_through_inheritance() -> None:
    expected = (fedavg.Server, State, fedavg.Down, fedavg.Up)
    assert payload_types(FedAvg) == expected
    assert payload_types(FedPer) == expected

    class Twice(FedPer):
        pass

    assert payload_types(Twice) == expected

    class Other(FedPer, Method[Small, None, Small, Full]):
        """The nearest declaration counts."""

    assert payload_types(Other) == (Small, type(None), Small, Full)


def test_a_method_without_payload_types_is_told_what_to_write() -> None:
    class Bare(Method):
        def predict(self, client: Any, state: Any, batch: Batch) -> Tensor:
            return batch.target

    with pytest.raises(TypeError, match=r"Bare must derive from Method\[Server"):
        payload_types(Bare)


def test_messages_are_safetensors_files() -> None:
    """Ours are read by the library, and the library's by us."""
    mixed = {
        "x/a": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)),
        "x/b": torch.zeros(0, 4),
        "n": torch.tensor(7),
        "flags": torch.tensor([True, False, True]),
        "half": torch.ones(5, dtype=torch.float16),
    }
    data = encode(mixed).data
    read = safetensors.torch.load(data)
    assert sorted(read) == sorted(mixed)
    assert all(torch.equal(read[key], tensor) for key, tensor in mixed.items())
    state = State({"a": mixed["x/a"]})
    theirs = safetensors.torch.save({"state/a": state["a"]})
    assert torch.equal(decode(theirs, State)["a"], state["a"])
