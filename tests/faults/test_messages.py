"""One client's message, however strange, is refused by name and stops nobody else."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from communis import Plan, Run, wire
from communis.backends.mock import Mock, corrupt
from communis.core import CommunisError
from tests.fleets import make, mixed_fleet

MUTATIONS = 150  # of one message


def file_of(entries: dict[str, Any], data: bytes = b"") -> bytes:
    """A safetensors file with this header."""
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(shape: list[int], size: int, at: int = 0, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}


HOSTILE = {
    "dimensions": file_of({"w/head.out.bias": entry([1] * 65, 4)}, bytes(4)),
    "fields": file_of({f"w/{i}": entry([0], 0) for i in range(wire.MAX_FIELDS + 1)}),
    "header": struct.pack("<Q", wire.MAX_HEADER + 1) + b"{" + b" " * 10_000,
    "a header beyond the end": struct.pack("<Q", 1 << 20) + b"{}",
    "nothing": b"",
    "a shape beyond memory": file_of({"w/a": entry([1 << 40, 1 << 40], 4)}, bytes(4)),
    "a negative offset": file_of({"w/a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}),
    "deep nesting": struct.pack("<Q", 40_000) + b'{"a":' * 8_000,
    "a name of control characters": file_of({"w/\\u0000\\u001b[31m": entry([1], 4)}, bytes(4)),
    "a number that is no float32": file_of(
        {"w/head.out.bias": entry([1], 8, dtype="F64")}, bytes(8)
    ),
    "another field": file_of({"x": entry([1], 4)}, bytes(4)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_message_costs_its_sender_the_round(name: str) -> None:
    fleet, method = mixed_fleet(), make("fedavg")
    with Run(fleet, method, Plan(rounds=2, workers=1, eval_every=0)) as run:
        run.backend = Mock(run.backend, corrupt(lambda _: HOSTILE[name], 2))
        records = list(run)
    for record in records:
        assert [client for client, _ in record.refused] == [2]
        (_, why) = record.refused[0]
        assert why.isprintable()
        assert 0 < len(why) <= 310
    assert all(bool(t.isfinite().all()) for t in run.server.w.values())


def test_many_fields_are_refused_before_they_are_built() -> None:
    with pytest.raises(wire.WireError, match=f"at most {wire.MAX_FIELDS} may be"):
        wire.load(HOSTILE["fields"])


def test_whatever_decoding_raises_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what nobody has thought of."""

    def broken(*_: object, **__: object) -> None:
        raise RecursionError("too deep")

    with Run(mixed_fleet(), make("fedavg"), Plan(rounds=1, workers=1, eval_every=0)) as run:
        monkeypatch.setattr(wire, "check", broken)
        (record,) = run
    assert len(record.refused) == 5
    assert all("RecursionError: too deep" in why for _, why in record.refused)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed, removed, doubled or cut off."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(found)))
        kind = int(rng.integers(4))
        if kind == 0:
            found[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del found[at : at + int(rng.integers(1, 9))]
        elif kind == 2:
            found[at:at] = found[at : at + int(rng.integers(1, 9))]
        else:
            del found[max(1, at) :]
    return bytes(found)


@pytest.mark.parametrize("name", ["fedavg", "fedproto", "relief"])
def test_mutated_messages_are_read_or_refused(name: str) -> None:
    """Nothing but a refusal comes out of decoding and checking them."""
    method = make(name)
    with Run(mixed_fleet(), method, Plan(rounds=1, workers=1, eval_every=0)) as run:
        seen: list[bytes] = []

        def listen(data: bytes) -> bytes:
            seen.append(data)
            return data

        run.backend = Mock(run.backend, corrupt(listen, 0))
        list(run)
        card = run.cards[0]
    *_, up = wire.payload_types(type(method))
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(MUTATIONS):
        try:
            payload = wire.decode(mutated(seen[0], rng), up)
            wire.check(payload, card, method.sends(card), method.partial)
            method.vet(card, payload)
        except CommunisError:
            refused += 1
    assert refused > MUTATIONS / 4
