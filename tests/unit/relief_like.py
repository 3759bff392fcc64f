"""Run folders of an elastic method and its baselines on three kinds of devices, made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path

import numpy as np

from communis.core.contract import Score
from communis.exchange.messages import Noted, Pair, Scored
from communis.fleet.device import DeviceCost
from tests.unit import folders

SUITES = [("acc", "gyro", "mag")] * 3 + [("acc", "gyro")] * 3 + [("acc",)] * 2
DEVICES = ["big"] * 3 + ["mid"] * 3 + ["low"] * 2
PACE = {"big": 0.1, "mid": 0.8, "low": 3.0}  # seconds per group
MODALITIES = ("acc", "gyro", "mag")
GROUPS = [
    *(f"fusion.blocks.{m}" for m in MODALITIES),
    "fusion.shared",
    *(f"encoders.{m}.layer{i}" for m in MODALITIES for i in (1, 2)),
    "head.out",
]
METHODS: Mapping[str, tuple[str, float]] = {  # method and share of the groups that train
    "fedavg": ("fedavg", 1.0),
    "fedprox": ("fedprox", 1.0),
    "without_elastic": ("relief", 1.0),
    "coverage_40": ("relief", 0.4),
    "relief": ("relief", 0.6),
    "coverage_80": ("relief", 0.8),
}


def write(
    home: Path,
    names: Sequence[str] = tuple(METHODS),
    seeds: int = 3,
    rounds: int = 24,
    whole: bool = True,
    cell: Mapping[str, str] | None = None,
) -> Path:
    """whole: the common model is scored on everybody's windows; else clients' sensors alone."""
    for name, seed in product(names, range(seeds)):
        _run(home / name / f"seed{seed}", name, seed, rounds, whole, cell)
    return home


def owned(client: int) -> list[str]:
    """The groups that a client can train."""
    return [g for g in GROUPS if not set(MODALITIES) & set(g.split(".")) - set(SUITES[client])]


def _run(
    path: Path, name: str, seed: int, rounds: int, whole: bool, cell: Mapping[str, str] | None
) -> None:
    rng = np.random.default_rng([seed, *map(ord, name)])
    method, share = METHODS[name]
    spent, noted, pairs, alone, history = [], [], [], [], dict[str, list[dict[int, float]]]()
    seconds, joules = [], []
    for r in range(1, rounds + 1):
        chosen = {c: _chosen(c, 1.0 if r == 1 else share, rng) for c in range(len(SUITES))}
        spent.append(_spent(chosen, method == "fedavg" or method == "fedprox"))
        seconds.append(max(s.compute + s.down + s.up for s in spent[-1]))
        joules.append(sum(s.joules for s in spent[-1]))
        notes = [Noted(c, f"trained/{g}", 1.0) for c, groups in chosen.items() for g in groups]
        if method == "relief":
            notes += [Noted(-1, f"budget/{c}", float(_budget(c, share))) for c in chosen]
            sizes = enumerate(GROUPS, 1)
            notes += [
                Noted(-1, f"divergence/{g}", 10.0 ** (-i / 3) * (1 + 4 / r)) for i, g in sizes
            ]
        noted.append(notes)
        evaluated = r % 3 == 0
        pairs.append(_pairs(chosen, r, rng) if evaluated else [])
        level = 0.9 - 0.6 * np.exp(-r / 8) - 0.04 * (1 - share) + rng.normal(0, 0.01)
        own = {c: float(level - 0.05 * (3 - len(s))) for c, s in enumerate(SUITES)}
        found = {"macro_f1": own, "accuracy": {c: v + 0.02 for c, v in own.items()}}
        if whole:
            found["macro_f1@all"] = {c: float(level) for c in own}
            for m, loss in zip(MODALITIES, (0.1, 0.3, 0.5), strict=True):
                found[f"macro_f1@only_{m}"] = {c: float(level) - loss for c in own}
        for key, values in found.items():
            history.setdefault(f"test.{key}", []).append(values if evaluated else {})
        alone.append(_alone(own) if evaluated and not whole else [])
    folders.write(
        path,
        method,
        seed,
        history,
        variant="" if name == method else name,
        settings=f"coverage = {share}" if method == "relief" and share < 1 else "",
        cell=cell,
        cohort=tuple(range(len(SUITES))),
        seconds=seconds,
        joules=joules,
        fleet={
            "clients": [
                {"id": c, "sensors": SUITES[c], "device": DEVICES[c], "parameters": 80_000}
                for c in range(len(SUITES))
            ]
        },
        rows={"clock": spent, "log": noted, "pairs": pairs, "scores": alone},
    )
    text = (path / "config.toml").read_text("utf-8")
    clock = '[clock]\nmode = "flop_prop"\nshare = 1.0\n'
    (path / "config.toml").write_text(text + clock, "utf-8")


def _budget(client: int, share: float) -> int:
    slow = DEVICES[client] != "big"
    groups = len(owned(client))
    return max(len(SUITES[client]), round(share * groups)) if slow else groups


def _chosen(client: int, share: float, rng: np.random.Generator) -> list[str]:
    """The fusion blocks, and some of the others."""
    groups = owned(client)
    first = len(SUITES[client])
    rest = rng.permutation(groups[first:])[: _budget(client, share) - first]
    return [g for g in groups if g in groups[:first] or g in rest]


def _spent(chosen: Mapping[int, Sequence[str]], everything: bool) -> list[DeviceCost]:
    """everything: clients compute all groups of the fleet, whatever they own."""
    work = {
        c: PACE[DEVICES[c]] * (len(GROUPS) if everything else len(g)) for c, g in chosen.items()
    }
    slowest = max(work.values())
    return [
        DeviceCost(c, busy, 0.5, 0.5, slowest - busy, 10 * busy + 2 * (slowest - busy))
        for c, busy in work.items()
    ]


def _pairs(chosen: Mapping[int, Sequence[str]], round: int, rng: np.random.Generator) -> list[Pair]:
    """Clients of one kind pull together, others less and less."""
    found = []
    for one, other in combinations(chosen, 2):
        alike = 0.8 if SUITES[one] == SUITES[other] else 0.5 - 0.02 * round
        found += [
            Pair(g, one, other, float(np.clip(alike + rng.normal(0, 0.05), -1, 1)))
            for g in chosen[one]
            if g in chosen[other]
        ]
    return found


def _alone(own: Mapping[int, float]) -> list[Scored]:
    """Clients with more sensors than one, with each of them alone."""
    return [
        Scored(c, "test", m, False, Score("macro_f1", value - 0.1 * i, -1, support=9))
        for c, value in own.items()
        for i, m in enumerate(SUITES[c])
        if len(SUITES[c]) > 1
    ]
