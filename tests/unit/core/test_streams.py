"""Streams: numbers depend on seed, name and ids and on nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from communis import Streams


def draws(streams: Streams, name: str, *ids: int) -> list[int]:
    return [int(i) for i in streams.generator(name, *ids).integers(2**62, size=4)]


def test_what_was_drawn_before_does_not_matter() -> None:
    expected = draws(Streams(5), "batches", 3, 7)
    streams = Streams(5)
    streams.generator("batches", 3, 7).standard_normal(1000)
    streams.generator("other").standard_normal(10)
    with streams.torch("batches", 3, 7):
        torch.rand(10)
    np.random.default_rng(0).random(10)
    assert draws(streams, "batches", 3, 7) == expected
    assert draws(Streams(5), "batches", 3, 7) == expected


def test_names_ids_and_seeds_all_matter() -> None:
    keys = [
        (seed, name, ids)
        for seed in (0, 1, 2**31, 2**40)
        for name in ("batches", "client", "init/a", "init/b")
        for ids in ((1,), (2,), (1, 1), (1, 2), (2, 1), (12,), (1, 2, 3))
    ]
    found = {tuple(draws(Streams(seed), name, *ids)) for seed, name, ids in keys}
    assert len(found) == len(keys)


def test_a_trailing_zero_id_matters() -> None:
    """numpy's SeedSequence reads [s, n] and [s, n, 0] as the same entropy."""
    assert draws(Streams(5), "x") != draws(Streams(5), "x", 0)
    assert draws(Streams(5), "x", 4) != draws(Streams(5), "x", 4, 0)


def test_neighbouring_ids_are_not_correlated() -> None:
    rows = np.stack([Streams(0).generator("client", 1, i).standard_normal(500) for i in range(40)])
    off_diagonal = np.corrcoef(rows)[~np.eye(40, dtype=bool)]
    assert np.abs(off_diagonal).max() < 0.25  # 5.6 standard deviations


def test_number_is_a_draw_of_the_stream_that_torch_can_take_as_a_seed() -> None:
    numbers = [Streams(1).number("client", 1, i) for i in range(200)]
    assert len(set(numbers)) == 200
    assert all(isinstance(n, int) and 0 <= n < 2**63 for n in numbers)
    assert Streams(1).number("client", 1, 3) == numbers[3]


def test_torch_draws_follow_the_stream() -> None:
    with Streams(1).torch("init/x"):
        first = torch.rand(5)
    torch.rand(3)
    with Streams(1).torch("init/x"):
        assert torch.equal(torch.rand(5), first)
    with Streams(1).torch("init/y"):
        assert not torch.equal(torch.rand(5), first)


def test_torch_leaves_the_global_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    with Streams(1).torch("init/x"):
        torch.rand(5)
        assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)


def test_torch_leaves_the_global_generator_as_it_was_after_an_error() -> None:
    def fail() -> None:
        with Streams(1).torch("init/x"):
            torch.rand(5)
            raise ZeroDivisionError

    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_torch_streams_nest() -> None:
    with Streams(1).torch("outer"):
        alone = torch.rand(4)
    with Streams(1).torch("outer"):
        first = torch.rand(2)
        with Streams(1).torch("inner"):
            torch.rand(7)
        rest = torch.rand(2)
    assert torch.equal(torch.cat([first, rest]), alone)


def test_numpy_global_state_is_untouched() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    Streams(1).generator("x").random(3)
    with Streams(1).torch("x"):
        torch.rand(3)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.slow
def test_the_hash_seed_of_the_process_does_not_matter() -> None:
    """Strings hash differently in every process; numbers, data, roles and start values must not."""
    script = textwrap.dedent("""
        import hashlib, torch
        from communis import Fleet, FedAvg, Streams
        from communis.fleet.clients import FleetClients
        from communis.fleet.availability.roles import Role, cast
        from communis.data.sources.synthetic import Synthetic

        streams, found = Streams(7), hashlib.sha256()
        found.update(str([streams.number("batches", 1, 2), streams.number("init/a")]).encode())
        with streams.torch("client", 3):
            found.update(torch.rand(4).numpy().tobytes())
        data = Synthetic(clients=4, windows=5, modalities=2, steps=8, missing=0.3).load(streams)
        for m in data.modalities:
            found.update(data.inputs[m].tobytes() + data.present[m].tobytes())
        roles = [Role(("m1", "m0"), 1), Role(("m0",), 3)]
        suites = [role.suite for role in cast(roles, 4, data.modalities, streams)]
        fleet = FleetClients(Fleet.of(data, seed=7, suites=suites), FedAvg())
        found.update(str([(c.id, c.modalities, list(c.params)) for c in fleet.cards]).encode())
        for path, tensor in fleet.params.items():
            found.update(path.encode() + tensor.numpy().tobytes())
        print(found.hexdigest())
    """)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": value, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for value in ("0", "4242")
    ]
    outputs = [process.communicate(timeout=120)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert len(outputs[0]) == 64
    assert outputs[0] == outputs[1]
