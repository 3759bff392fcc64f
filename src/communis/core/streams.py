"""Named random streams from one seed.

Every draw in a run comes from `generator(name, *ids)`: the same name and ids give the same numbers
whatever was drawn before, in whichever process. So methods are compared on the same splits, masks,
cohorts and batches, and a resumed run needs no saved generator state. No global random state is
read or left changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Streams:
    """`seed` drives everything; streams in use: data, world, split, partition, roles, suites,
    models, dropout, drop, build, init, online, participation, batches, client, evaluation,
    allocation, clock, pretrain, frozen, graph, loss, attackers, attack, collusion, P, latents,
    public, privacy, diffusion; of the user's networks: trial, lazy; of probes: invert, membership,
    coin, canary, pictures, labels; of results: resample."""

    seed: int = 0

    def generator(self, name: str, *ids: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode()), len(ids), *ids])

    def number(self, name: str, *ids: int) -> int:
        """One integer of the stream, to seed something else with."""
        return int(self.generator(name, *ids).integers(2**63 - 1))

    @contextmanager
    def torch(self, name: str, *ids: int) -> Iterator[None]:
        """Within, torch's own draws (dropout, initialisers) follow this stream; afterwards they go
        on as before."""
        import torch  # here, because settings need streams, and refusals need no torch

        # torch.manual_seed would also queue a call, with its stack, for every absent accelerator.
        generators = [torch.default_generator]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            generators += list(torch.cuda.default_generators)
        before = [generator.get_state() for generator in generators]
        seed = self.number(name, *ids)
        for generator in generators:
            generator.manual_seed(seed)
        try:
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)
