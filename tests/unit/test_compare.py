"""Statistics of a comparison, on run folders made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from communis import CommunisError
from communis.compare import cells, collect, metrics, paired, rows
from communis.finished import read
from communis.metrics.estimate import QUANTILES, Estimate, better, verdict
from communis.report.cells import lines, mark
from communis.report.words import how_to_read, number
from communis.terminal import as_json, out, results
from tests.unit import folders


def write(home: Path, method: str, seed: int, values: Mapping[int, float], metric: str) -> Path:
    """A run of one round whose clients scored `values`."""
    return folders.write(home / method / f"seed{seed}", method, seed, {f"test.{metric}": [values]})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for seed, (a, b, c) in enumerate([(0.9, 0.8, 0.5), (0.7, 0.65, 0.3), (0.8, 0.75, 0.35)]):
        write(tmp_path, "alpha", seed, {0: a, 1: a}, "accuracy")
        write(tmp_path, "beta", seed, {0: b + 0.1, 1: b - 0.1}, "accuracy")
        write(tmp_path, "gamma", seed, {0: c, 1: c}, "accuracy")
    return tmp_path


def test_rows_by_hand(home: Path) -> None:
    table = rows(collect([home]), "accuracy")
    assert [row.method for row in table] == ["alpha", "beta", "gamma"]
    alpha, beta, gamma = table
    assert alpha.scores["accuracy"].mean == pytest.approx(0.8)
    assert alpha.scores["accuracy"].spread == pytest.approx(0.1)  # of 0.9, 0.7, 0.8
    assert beta.weakest.mean == pytest.approx((0.7 + 0.55 + 0.65) / 3)
    assert (alpha.bytes_up, alpha.bytes_down) == (150, 50)  # two clients took part
    assert alpha.total_bytes == 410
    assert alpha.seconds == 2.0
    assert alpha.refused == 3
    assert alpha.verdict == ""
    # beta - alpha: -0.1, -0.05, -0.05; mean -0.0667, sd 0.0289, t(2) = 4.303
    assert beta.difference.mean == pytest.approx(-0.2 / 3)
    assert beta.difference.half_width == pytest.approx(4.303 * 0.028867 / math.sqrt(3), rel=1e-3)
    assert beta.verdict == "within the spread"
    assert gamma.verdict == "worse than the best"


def test_pairing_uses_common_seeds_only(home: Path) -> None:
    runs = collect([home])
    alpha = [r for r in runs if r.method == "alpha"]
    beta = [r for r in runs if r.method == "beta" and r.seed != 1]
    assert paired(beta, alpha, "accuracy").seeds == 2


def test_lower_is_better_for_errors(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, "good", seed, {0: 1.0, 1: 2.0}, "mae")
        write(tmp_path, "bad", seed, {0: 3.0 + 0.01 * seed, 1: 4.0}, "mae")
    good, bad = rows(collect([tmp_path]), "mae")
    assert (good.method, bad.method) == ("good", "bad")
    assert good.weakest.mean == 2.0
    assert bad.verdict == "worse than the best"
    assert better("count.mae") == -1
    assert better("accuracy") == 1
    assert better("nll@tempered") == -1
    assert better("mean@sigma_f") == 1


def test_a_diverged_seed_is_not_dropped(tmp_path: Path) -> None:
    """Averaging over the survivors would flatter a method that diverges."""
    for seed in range(3):
        write(tmp_path, "wild", seed, {0: math.nan if seed == 1 else 0.99}, "accuracy")
        write(tmp_path, "calm", seed, {0: 0.5}, "accuracy")
    calm, wild = rows(collect([tmp_path]), "accuracy")
    assert (calm.method, wild.method) == ("calm", "wild")
    assert math.isnan(wild.scores["accuracy"].mean)
    assert number(wild.scores["accuracy"]) == "diverged in 1 of 3"
    assert wild.verdict == "diverged"


def test_runs_with_other_settings_are_told_apart(tmp_path: Path) -> None:
    """Two experiments must not be averaged as if they were two seeds of one."""
    for folder, rate in (("a", "0.1"), ("b", "0.2")):
        path = write(tmp_path / folder, "alpha", 0, {0: 0.5}, "accuracy") / "config.toml"
        path.write_text(path.read_text().replace('name = "alpha"', f'name = "alpha"\nlr = {rate}'))
    names = sorted(row.method for row in rows(collect([tmp_path]), "accuracy"))
    assert names == ["alpha (lr=0.1)", "alpha (lr=0.2)"]


def test_other_data_is_not_compared(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path, "alpha", seed, {0: 0.9}, "accuracy")
        path = write(tmp_path, "beta", seed, {0: 0.5}, "accuracy") / "config.toml"
        path.write_text(path.read_text().replace('name = "d"', 'name = "other"'))
    assert rows(collect([tmp_path]), "accuracy")[1].verdict.endswith("not comparable")


def test_one_seed_gives_no_verdict() -> None:
    assert Estimate.of([0.5]).seeds == 1
    assert math.isnan(Estimate.of([0.5]).spread)
    assert verdict(Estimate.of([-0.5]), "accuracy") == "one seed: no spread"
    assert math.isnan(Estimate.of([]).mean)
    assert verdict(Estimate.of([]), "accuracy") == "no seed in common"


def test_equal_methods_are_within_the_spread() -> None:
    assert verdict(Estimate.of([0.0, 0.0, 0.0]), "accuracy") == "within the spread"


def test_mistakes_are_named(home: Path, tmp_path: Path) -> None:
    runs = collect([home])
    assert metrics(runs) == ["accuracy"]
    with pytest.raises(CommunisError, match="no metric 'f1' in these runs; there are accuracy"):
        rows(runs, "f1")
    with pytest.raises(CommunisError, match="no such folder"):
        collect([tmp_path / "nowhere"])
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CommunisError, match="holds no run"):
        collect([empty])
    (home / "alpha" / "seed0" / "config.toml").write_text("nonsense")
    with pytest.raises(CommunisError, match="not a run folder"):
        collect([home])


def test_t_quantiles_match_scipy() -> None:
    from scipy import stats

    for degrees, value in enumerate(QUANTILES, 1):
        assert value == pytest.approx(stats.t.ppf(0.975, degrees), abs=6e-4)


HISTORY = {  # the best round is 3 on average and for client 1, 2 (as good as 3) for client 0
    "val.accuracy": [{0: 0.1, 1: 0.5}, {0: 0.9, 1: 0.6}, {0: 0.9, 1: 0.7}, {0: 0.2, 1: 0.1}],
    "test.accuracy": [
        {0: 0.11, 1: 0.12, 2: 0.13},
        {0: 0.21, 1: 0.22, 2: 0.23},
        {0: 0.31, 1: 0.32, 2: 0.33},
        {0: 0.41, 1: 0.42, 2: 0.43},
    ],
}


def test_the_round_that_counts(tmp_path: Path) -> None:
    """Client 2 has no validation windows."""
    run = read(folders.write(tmp_path, "alpha", 0, HISTORY))
    assert run.final("accuracy") == pytest.approx(0.42)
    assert run.final("accuracy", "common") == pytest.approx(0.32)  # means .3, .75, .8, .15
    assert dict(run.by_client("accuracy", "client")) == {0: 0.21, 1: 0.32, 2: 0.43}
    assert run.final("accuracy", "client") == pytest.approx((0.21 + 0.32 + 0.43) / 3)
    assert math.isnan(run.final("f1", "client"))


def test_lower_validation_errors_are_better(tmp_path: Path) -> None:
    history = {key.replace("accuracy", "nll"): values for key, values in HISTORY.items()}
    run = read(folders.write(tmp_path, "alpha", 0, history))
    assert run.final("nll", "common") == pytest.approx(0.42)  # .15 in round 4
    assert dict(run.by_client("nll", "client")) == {0: 0.11, 1: 0.42, 2: 0.43}


def test_of_equal_rounds_the_earliest_counts(tmp_path: Path) -> None:
    history = {"val.accuracy": [{0: 0.5}] * 3, "test.accuracy": [{0: 0.1}, {0: 0.2}, {0: 0.3}]}
    run = read(folders.write(tmp_path, "alpha", 0, history))
    assert (run.final("accuracy", "common"), run.final("accuracy", "client")) == (0.1, 0.1)


def test_without_validation_the_last_round_counts(tmp_path: Path) -> None:
    history = {"test.accuracy": HISTORY["test.accuracy"]}
    run = read(folders.write(tmp_path, "alpha", 0, history))
    for select in ("common", "client"):
        assert run.final("accuracy", select) == pytest.approx(0.42)  # type: ignore[arg-type]


def test_a_round_that_cannot_be_validated_is_not_chosen(tmp_path: Path) -> None:
    nan = math.nan
    history = {
        "val.accuracy": [{0: 0.9, 1: nan}, {0: 0.5, 1: 0.5}, {0: nan, 1: nan}],
        "test.accuracy": [{0: 0.1, 1: 0.1}, {0: 0.2, 1: 0.4}, {0: nan, 1: nan}],
    }
    run = read(folders.write(tmp_path, "alpha", 0, history))
    assert math.isnan(run.final("accuracy"))
    assert run.final("accuracy", "common") == pytest.approx(0.3)
    assert dict(run.by_client("accuracy", "client")) == {0: 0.1, 1: 0.4}


def test_rank_and_verdict_follow_the_selection(tmp_path: Path) -> None:
    for seed in range(3):
        steady = {"val.accuracy": [{0: 0.5}] * 2, "test.accuracy": [{0: 0.5}, {0: 0.6}]}
        early = {"val.accuracy": [{0: 0.9}, {0: 0.1}], "test.accuracy": [{0: 0.7}, {0: 0.1}]}
        folders.write(tmp_path / f"a{seed}", "steady", seed, steady)
        folders.write(tmp_path / f"b{seed}", "early", seed, early)
    runs = collect([tmp_path])
    assert [row.method for row in rows(runs, "accuracy")] == ["steady", "early"]
    table = rows(runs, "accuracy", "client")
    assert [row.method for row in table] == ["early", "steady"]
    assert {s: e.mean for s, e in table[0].selected.items()} == pytest.approx(
        {"last": 0.1, "common": 0.7, "client": 0.7}
    )
    assert table[0].scores["accuracy"] == table[0].selected["client"]
    assert table[1].verdict == "worse than the best"
    assert "best round of every client" in how_to_read(table, "accuracy", "client")
    assert "favours personalised methods" in how_to_read(table, "accuracy")


def test_views_are_no_columns_but_can_be_asked_for(tmp_path: Path) -> None:
    history = {"test.accuracy": [{0: 0.5}], "test.accuracy@tempered": [{0: 0.7}]}
    history["test.mean@available"] = [{0: 2.0}]
    folders.write(tmp_path / "a", "alpha", 0, history)
    runs = collect([tmp_path])
    assert metrics(runs) == ["accuracy"]
    assert list(rows(runs, "accuracy")[0].scores) == ["accuracy"]
    row = rows(runs, "accuracy@tempered")[0]
    assert list(row.scores) == ["accuracy@tempered", "accuracy"]
    assert row.scores["accuracy@tempered"].mean == 0.7
    write(tmp_path, "beta", 0, {0: 0.5}, "accuracy")
    with pytest.raises(CommunisError, match="no metric 'accuracy@tempered' in these runs; there"):
        rows(collect([tmp_path]), "accuracy@tempered")


def test_a_variant_is_called_by_its_name(tmp_path: Path) -> None:
    for variant, settings in (("", "ut = true"), ("no UT", "ut = false")):
        history = {"test.accuracy": [{0: 0.5}]}
        place = tmp_path / (variant or "full")
        folders.write(place, "duet", 0, history, variant=variant, settings=settings)
    runs = collect([tmp_path])
    assert sorted(run.method for run in runs) == ["duet", "no UT"]
    assert all("not comparable" not in row.verdict for row in rows(runs, "accuracy"))


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two methods in two cells, three seeds; the second method lacks a seed in one of them."""
    scores = {
        ("alpha", "low"): (0.80, 0.82, 0.84),
        ("alpha", "high"): (0.50, 0.54, 0.52),
        ("beta", "low"): (0.82, 0.80, 0.87),
        ("beta", "high"): (0.30, 0.35),
    }
    for (method, level), values in scores.items():
        for seed, value in enumerate(values):
            history = {"test.accuracy": [{0: value, 1: value}]}
            place = tmp_path / f"{level}-{method}-{seed}"
            folders.write(place, method, seed, history, cell={"H": level})
    return tmp_path


def test_cells_are_neither_averaged_nor_paired(grid: Path) -> None:
    runs = collect([grid])
    assert {run.method for run in runs} == {"alpha", "beta"}  # other settings of a cell: no labels
    found = cells(runs)
    assert sorted(found) == ["H high", "H low"]
    assert found["H low"][0].cell == {"H": "low"}
    with pytest.raises(CommunisError, match="compare each cell by itself: H high; H low"):
        rows(runs, "accuracy")
    low = [run for run in found["H low"] if run.method == "alpha"]
    high = [run for run in found["H high"] if run.method == "beta"]
    assert paired(high, low, "accuracy").seeds == 0


def test_averages_over_cells_come_before_seeds(grid: Path) -> None:
    alpha, beta = lines(collect([grid]), "accuracy", "last")
    assert (alpha.method, beta.method) == ("alpha", "beta")
    assert alpha.average.mean == pytest.approx((0.65 + 0.68 + 0.68) / 3)
    assert alpha.average.spread == pytest.approx(0.0173205, rel=1e-4)
    assert beta.average.seeds == 2  # the seeds that both cells have: 0.56, 0.575
    assert beta.average.mean == pytest.approx(0.5675)
    assert beta.difference.mean == pytest.approx((0.56 + 0.575 - 0.65 - 0.68) / 2)
    assert beta.cells["H low"].scores["accuracy"].seeds == 3
    assert mark(beta.cells["H low"].verdict) == "*"
    assert mark(alpha.cells["H low"].verdict) == "~"  # -0.02, 0.02, -0.03
    assert mark("worse than the best") == mark("one seed: no spread") == ""


def test_a_method_without_a_cell_has_no_average(grid: Path) -> None:
    history = {"test.accuracy": [{0: 0.99}]}
    folders.write(grid / "gamma", "gamma", 0, history, cell={"H": "low"})
    found = lines(collect([grid]), "accuracy", "last")
    assert [line.method for line in found] == ["alpha", "beta", "gamma"]
    assert math.isnan(found[2].average.mean)
    assert found[2].verdict == "no seed in common"


def test_results_in_the_terminal_and_for_programs(grid: Path, home: Path) -> None:
    runs = [run for run in collect([grid]) if run.cell]
    with out.capture() as said:
        out.print(results(runs, "accuracy"))
    for word in ("H low", "average", "0.820~ ±0.020", "alpha", "2 cells", "within the spread"):
        assert word in " ".join(said.get().split())
    found = as_json(runs, "accuracy")
    assert [row["cell"]["H"] for row in found["rows"]] == ["high", "high", "low", "low"]
    assert [row["method"] for row in found["averages"]] == ["alpha", "beta"]
    assert found["select"] == "last"

    single = [run for run in collect([home]) if not run.cell]
    with out.capture() as said:
        out.print(results(single, "accuracy", "common", quiet=True))
    for word in ("last round", "common best", "own best", "against alpha", "within the spread"):
        assert word in said.get()
    assert "averages" not in as_json(single, "accuracy")
    assert as_json(single, "accuracy")["rows"][0]["cell"] == {}


def test_parameters_are_means_over_clients(tmp_path: Path) -> None:
    fleet = {"pooled": True, "clients": [{"parameters": n} for n in (10, 30, 1000)]}
    history = {"test.accuracy": [{0: 0.5}]}
    folders.write(tmp_path / "new", "new", 0, history, fleet=fleet)
    write(tmp_path, "old", 0, {0: 0.4}, "accuracy")
    new, old = rows(collect([tmp_path]), "accuracy")
    assert new.parameters == 20  # the last client sits beside the server
    assert math.isnan(old.parameters)
