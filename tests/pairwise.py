"""Samples of a product of parameters in which every pair of values occurs: enough where a fault
needs one value or two that meet. A product whose combinations are the claim stays a product."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Axes = Mapping[str, Sequence[Any]]
Traits = Mapping[str, Callable[[Any], tuple[Hashable, ...]]]


def covering(axes: Axes, traits: Traits | None = None) -> list[tuple[Any, ...]]:
    """Rows of the product in which every value occurs, and every pair of values of two axes.

    traits: what of a value matters for the other axes, where many values are alike in it. Every
    value still occurs, but it is each of its traits that meets all values of the others. The same
    input gives the same rows: the next one has most that is new, then what was rare, then the first
    place in the product.
    """
    rows = list(product(*(range(len(values)) for values in axes.values())))
    covers = {row: _covered(row, axes, traits or {}) for row in rows}
    missing = {part for found in covers.values() for part in found}
    used = {(axis, n): 0 for axis, values in axes.items() for n in range(len(values))}
    chosen = []
    while missing:

        def rank(row: tuple[int, ...]) -> tuple[int, int]:
            new = sum(part in missing for part in covers[row])
            return -new, sum(used[part] for part in zip(axes, row, strict=True))

        best = min(rows, key=rank)
        missing.difference_update(covers[best])
        for part in zip(axes, best, strict=True):
            used[part] += 1
        chosen.append(best)
    return [
        tuple(values[n] for values, n in zip(axes.values(), row, strict=True)) for row in chosen
    ]


def _covered(row: tuple[int, ...], axes: Axes, traits: Traits) -> list[Hashable]:
    """The values of a row and its pairs of values, or of traits."""
    parts: list[list[Hashable]] = []  # of every axis
    for (axis, values), n in zip(axes.items(), row, strict=True):
        matters = traits[axis](values[n]) if axis in traits else (n,)
        parts.append([(axis, *numbered) for numbered in enumerate(matters)])
    met = [pair for two in combinations(parts, 2) for pair in product(*two)]
    return [*zip(axes, row, strict=True), *met]


def pairwise(axes: Axes, traits: Traits | None = None) -> pytest.MarkDecorator:
    """`parametrize` with a covering sample. An axis "size, steps" has a pair of parameters."""
    names = [name.strip() for axis in axes for name in axis.split(",")]
    cases = []
    for row in covering(axes, traits):
        case: list[Any] = []
        for axis, value in zip(axes, row, strict=True):
            case.extend(value if "," in axis else [value])
        cases.append(tuple(case))
    return pytest.mark.parametrize(names, cases)
