"""Differences paired by client within seeds: by hand, against simulated truths, and bounded."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from communis.results import Results
from communis.results.clientwise import RESAMPLES, against, clientwise, holm, interval, judged
from communis.results.compare import collect
from tests.unit import folders


def write(home: Path, method: str, seed: int, values: Mapping[int, float], **about: object) -> None:
    history = {"test.accuracy": [values]}
    place = home / f"{method}{seed}{about.get('cell', '')}"
    folders.write(place, method, seed, history, **about)  # type: ignore[arg-type]


def test_a_method_against_training_alone_by_hand(tmp_path: Path) -> None:
    """Means over clients, then over seeds, whose clients are not the same."""
    for seed in range(3):
        write(tmp_path, "local", seed, {0: 0.5, 1: 0.5, 2: 0.5})
    write(tmp_path, "fedavg", 0, {0: 0.75, 1: 0.25, 2: 0.75})
    write(tmp_path, "fedavg", 1, {0: 0.75, 1: 0.5})
    write(tmp_path, "fedavg", 2, {0: 0.75, 1: 0.5, 2: 0.625})
    (row,) = clientwise(collect([tmp_path]), "accuracy", "last")
    assert (row.method, row.against, row.seeds, row.clients) == ("fedavg", "local", 3, 3)
    assert row.mean == pytest.approx((0.25 / 3 + 0.25 / 2 + 0.375 / 3) / 3)
    assert (row.better, row.worse) == (2, 1)
    assert row.low < row.mean < row.high
    assert row.p == row.p_holm


def test_the_reference_is_training_alone_or_the_plainest_or_the_best(tmp_path: Path) -> None:
    for method, value in (("fedper", 0.9), ("scaffold", 0.8), ("fedavg", 0.7), ("local", 0.6)):
        write(tmp_path, method, 0, {0: value})
    runs = collect([tmp_path])
    for kept, base in ((4, "local"), (3, "fedavg"), (2, "fedper")):
        names = ("fedper", "scaffold", "fedavg", "local")[:kept]
        rows = clientwise([run for run in runs if run.method in names], "accuracy", "last")
        assert [row.method for row in rows] == [name for name in names if name != base]
        assert {row.against for row in rows} == {base}


def test_two_seeds_conclude_nothing(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, "local", seed, dict.fromkeys(range(20), 0.1))
        write(tmp_path, "fedavg", seed, dict.fromkeys(range(20), 0.9))
    (row,) = clientwise(collect([tmp_path]), "accuracy", "last")
    assert row.verdict == "too few seeds"
    assert row.mean == pytest.approx(0.8)
    assert row.better == row.clients == 20
    assert all(math.isnan(value) for value in (row.low, row.high, row.p, row.p_holm))


def test_smaller_errors_are_better(tmp_path: Path) -> None:
    for seed, method in product(range(3), ("local", "fedavg")):
        values = {i: (1.0 if method == "fedavg" else 2.0) + 0.01 * i for i in range(9)}
        folders.write(tmp_path / f"{method}{seed}", method, seed, {"test.mae": [values]})
    (row,) = clientwise(collect([tmp_path]), "mae", "last")
    assert row.mean == pytest.approx(-1)
    assert (row.better, row.verdict) == (9, "better than local")


def test_a_client_that_diverged_leaves_no_mean(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, "local", seed, {0: 0.5, 1: 0.5})
        write(tmp_path, "fedavg", seed, {0: math.nan if seed == 1 else 0.9, 1: 0.9})
    (row,) = clientwise(collect([tmp_path]), "accuracy", "last")
    assert row.verdict == "diverged"
    assert math.isnan(row.mean)


def test_other_data_is_not_compared(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, "local", seed, {0: 0.5})
        write(tmp_path, "fedavg", seed, {0: 0.9}, data="other")
    (row,) = clientwise(collect([tmp_path]), "accuracy", "last")
    assert row.verdict.endswith("not comparable")


def test_cells_count_equally_and_have_rows_of_their_own(tmp_path: Path) -> None:
    for seed, level in product(range(3), ("low", "high")):
        clients = range(2 if level == "low" else 4)
        gain = 0.25 if level == "low" else 0.5
        write(tmp_path, "local", seed, dict.fromkeys(clients, 0.25), cell={"H": level})
        write(tmp_path, "fedavg", seed, dict.fromkeys(clients, 0.25 + gain), cell={"H": level})
    table = Results.read(tmp_path).paired_differences.set_index("cell")
    means = {"H low": 0.25, "H high": 0.5, "all cells": 0.375}
    assert table["mean"].to_dict() == pytest.approx(means)
    assert table["clients"].to_dict() == {"H low": 2, "H high": 4, "all cells": 4}
    assert set(table["verdict"]) == {"better than local"}


def test_without_a_seed_in_common_nothing_is_said(tmp_path: Path) -> None:
    write(tmp_path, "local", 0, {0: 0.5})
    write(tmp_path, "fedavg", 1, {0: 0.5})
    (row,) = clientwise(collect([tmp_path]), "accuracy", "last")
    assert (row.seeds, row.verdict) == (0, "no seed in common")


def test_holm_by_hand() -> None:
    """The smallest p counts threefold, the next twice; none falls below one before it."""
    assert holm([0.02, math.nan, 0.01, 0.021]) == pytest.approx([0.04, math.nan, 0.03, 0.04],
                                                               nan_ok=True)  # fmt: skip
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_small_p_among_many_is_no_difference() -> None:
    """What stands alone at p = 0.03 does not among ten."""
    rng = np.random.default_rng(3)
    noise = {(seed, ""): pd.Series(rng.normal(0, 1, 12)) for seed in range(4)}
    zero = {key: 0 * values for key, values in noise.items()}
    found = against("a", noise, "local", zero, "accuracy", [""])
    alone = judged([found.__class__(**{**vars(found), "p": 0.03})], "accuracy")
    many = judged([found.__class__(**{**vars(found), "p": 0.03})] * 10, "accuracy")
    assert alone[0].verdict in ("better than local", "worse than local")
    assert {row.verdict for row in many} == {"cannot be told apart"}


def test_draws_are_the_same_each_time_and_p_agrees_with_the_interval() -> None:
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.2, 0.4, 0.6, 0.8):
        values = rng.normal(shift, 1, (3, 1, 23))
        low, high, p = interval(values)
        assert interval(values) == (low, high, p)
        assert (low > 0 or high < 0) == (p < 0.05)
        assert interval(-values)[2] == pytest.approx(p)


def test_nothing_varies_where_nothing_differs() -> None:
    assert interval(np.zeros((3, 1, 5))) == (0.0, 0.0, 1.0)
    low, high, p = interval(np.full((3, 2, 5), 0.25))
    assert (low, high) == pytest.approx((0.25, 0.25))
    assert p == pytest.approx(2 / (RESAMPLES + 1))


# (spread of seeds, of people, of windows) for which the module says what intervals hold.
@pytest.mark.slow
@pytest.mark.parametrize("spreads", [(1, 0, 1), (0.3, 1, 1), (0, 1, 0.5), (0.5, 0.5, 1)])
@pytest.mark.parametrize(("seeds", "clients"), [(3, 8), (3, 23), (5, 23)])
def test_intervals_hold_the_truth(
    spreads: tuple[float, float, float], seeds: int, clients: int
) -> None:
    """In 200 comparisons without a difference: at least 86 % of the intervals, which a rate of 0.91
    falls short of once in a hundred times."""
    rng = np.random.default_rng(1)
    of_seed, of_client, of_both = spreads
    held = 0
    for _ in range(200):
        values = rng.normal(0, of_seed or 1e-9, (seeds, 1, 1))
        values = values + rng.normal(0, of_client or 1e-9, (1, 1, clients))
        values = values + rng.normal(0, of_both, (seeds, 1, clients))
        low, high, _ = interval(values)
        held += low <= 0 <= high
    assert held >= 172


def test_people_are_not_counted_anew_in_every_seed() -> None:
    """Ten seeds of the same differences know no more of people than one."""
    people = np.random.default_rng(2).normal(0, 1, 23)
    widths = []
    for seeds in (3, 10):
        low, high, _ = interval(np.tile(people, (seeds, 1, 1)))
        widths.append(high - low)
    assert widths[0] == pytest.approx(widths[1], rel=0.1)
    # 2 x 1.96 standard errors, up to what 2,000 draws tell.
    assert widths[0] == pytest.approx(3.92 * people.std() / math.sqrt(23), rel=0.1)


def test_many_clients_take_bounded_time() -> None:
    """Ten thousand, in groups. Of windows without people, the interval is at most three times as
    wide as it had to be: people are drawn once for all three seeds."""
    values = np.random.default_rng(4).normal(0, 1, (3, 1, 10_000))
    begun = time.process_time()
    low, high, _ = interval(values)
    assert time.process_time() - begun < 5  # about 0.1 s; others may share the processor
    assert high - low < 3 * 3.92 * values.std() / math.sqrt(values.size)
    assert low < values.mean() < high
