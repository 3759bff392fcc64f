"""One client's message, however strange, is refused by name and stops nobody else."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from communis import Plan, Run
from communis.cli.main import app
from communis.core.contract import UpMessage
from communis.core.errors import CommunisError
from communis.exchange import wire
from communis.exchange.privacy.settings import PrivacyConfig
from communis.run.backends.mock import Mock, corrupt
from communis.run.config import parse
from tests.fleets import make, mixed_fleet

MUTATIONS = 150  # of one message


def file_of(entries: dict[str, Any], data: bytes = b"") -> bytes:
    """A safetensors file with this header."""
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(shape: list[int], size: int, at: int = 0, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}


def escaped(message: bytes) -> bytes:
    """The same header with the names of its keys written otherwise, as JSON permits."""
    header = message[8:].replace(b'"dtype"', b'"\\u0064type"')
    return struct.pack("<Q", len(header)) + header


MANY = file_of({f"w/{i}": entry([0], 0) for i in range(wire.MAX_FIELDS + 1)})
HOSTILE = {
    "dimensions": file_of({"w/head.out.bias": entry([1] * 65, 4)}, bytes(4)),
    "fields": MANY,
    "fields in disguise": escaped(MANY),
    "overlapping": file_of({"w/a": entry([2], 8), "w/b": entry([2], 8, at=4)}, bytes(12)),
    "a name of 100,000 characters": file_of({"w/" + "x" * 100_000: entry([1], 4)}, bytes(4)),
    "metadata": file_of({"__metadata__": {"a": 3}, "w/a": entry([1], 4)}, bytes(4)),
    "no entry": file_of({"w/a": 3}),
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


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["fields", "fields in disguise"])
def test_many_fields_are_refused_before_they_are_built(name: str) -> None:
    with pytest.raises(wire.WireError, match=f"at most {wire.MAX_FIELDS} are allowed"):
        wire.load(HOSTILE[name])


def test_an_array_has_at_most_eight_dimensions() -> None:
    """By a limit of our own: torch itself takes 64."""
    name = "w/head.out.bias"
    assert wire.load(file_of({name: entry([1] * 8, 4)}, bytes(4)))[name].ndim == 8
    with pytest.raises(wire.WireError, match=f"{name} has 9 dimensions; at most 8 are allowed"):
        wire.load(file_of({name: entry([1] * 9, 4)}, bytes(4)))


def test_whatever_decoding_raises_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what nobody has thought of."""

    def broken(*_: object, **__: object) -> None:
        raise RecursionError("too deep")

    with Run(mixed_fleet(), make("fedavg"), Plan(rounds=1, workers=1, eval_every=0)) as run:
        monkeypatch.setattr(wire, "check", broken)
        (record,) = run
    assert len(record.refused) == 5
    assert all("RecursionError: too deep" in why for _, why in record.refused)


def renamed(data: bytes, *names: str) -> bytes:
    """The same message with arrays of these names besides."""
    return wire.encode(wire.load(data) | {name: torch.zeros(1) for name in names}).data


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["none", "local"])
def test_names_that_a_client_makes_up_do_not_reach_the_account(mode: str, tmp_path: Path) -> None:
    """However many and whatever they are: what reads the folder afterwards works."""
    fleet, method = mixed_fleet(), make("fedavg")
    privacy = PrivacyConfig(mode=mode, clip=1.0, noise=1.0 if mode == "local" else 0.0)
    sizes = []
    plan, config = Plan(rounds=3, workers=1), replace(parse("name = 'a'"), privacy=privacy)
    with Run(fleet, method, plan, folder=tmp_path, config=config.to_toml(), privacy=privacy) as run:
        sent = count()

        def change(data: bytes) -> bytes:
            made_up = [f"w/{next(sent)}-{'x' * 100}" for _ in range(2_000)]
            return renamed(data, "w/\x1b[31mevil\n", *made_up)

        run.backend = Mock(run.backend, corrupt(change, 2))
        for record in run:
            assert [client for client, _ in record.refused] == [2]
            sizes.append((tmp_path / "privacy.json").stat().st_size)
    assert max(sizes) == min(sizes)
    parts = json.loads((tmp_path / "privacy.json").read_text())["tensors"]
    (other,) = [part for part in parts if part["part"] == "fields that nobody declared"]
    assert (other["field"], other["tensors"], other["numbers"]) == ("w", 1, 2_001)
    output = str(tmp_path / "report.html")
    for words in (["report", str(tmp_path), "-o", output], ["privacy", "verdict", str(tmp_path)]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (done.output, done.exception)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed, removed, doubled or cut off."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if not found:
            break
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


def edited(data: bytes, rng: np.random.Generator) -> bytes:
    """A header that says something else, or other numbers."""
    length = int.from_bytes(data[:8], "little")
    entries, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    name = sorted(entries)[int(rng.integers(len(entries)))]
    about = entries[name]
    start, end = about["data_offsets"]
    changes: list[dict[str, Any]] = [
        {"shape": [1] * int(rng.choice([9, 33, 64, 65, 1000]))},
        {"shape": [-1]},
        {"shape": [1 << 62, 4]},
        {"shape": [*about["shape"], 1]},
        {"shape": about["shape"][::-1]},
        {"dtype": str(rng.choice(["F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E5M2", "X"]))},
        {"data_offsets": [int(x) for x in rng.integers(-9, len(body) + 99, 2)]},
        {"data_offsets": [0, 0], "shape": [0]},
        {"more": 1},
    ]
    kind = int(rng.integers(len(changes) + 3))
    if kind < len(changes):
        entries[name] = {**about, **changes[kind]}
    elif kind == len(changes):
        entries[str(rng.choice(["", "w", "w/", "\x00", "w/\u202e"]))] = entries.pop(name)
    else:
        value = float(rng.choice([np.nan, np.inf, -np.inf, 3e38, -1.0, 1e-45]))
        strange = np.full((end - start) // 4 + 1, value, "<f4").tobytes()
        body[start:end] = strange[: end - start] if kind % 2 else rng.bytes(end - start)
    return file_of(entries, bytes(body))


@pytest.mark.parametrize("name", ["fedavg", "fedproto", "relief", "fedapa", "comfed", "scaffold"])
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
    for number in range(2 * MUTATIONS):
        try:
            received = wire.receive((mutated, edited)[number % 2](seen[0], rng), up)
            wire.check(received, card, method.sends(card))
            if isinstance(received.payload, UpMessage):
                received.payload.check(card, method)
        except CommunisError:
            refused += 1
    assert refused > MUTATIONS / 2
