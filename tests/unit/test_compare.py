"""Statistics of a comparison, on run folders made by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from communis import CommunisError, RoundRecord, Score
from communis.compare import Estimate, better, collect, metrics, paired, rows, verdict
from communis.exchange import Link, Scored
from communis.report.words import number
from communis.runfolder import RunFolder


def write(home: Path, method: str, seed: int, values: Mapping[int, float], metric: str) -> Path:
    """A run of one round whose clients scored `values`."""
    folder = RunFolder(home / method / f"seed{seed}")
    folder.open()
    scores = [
        Scored(c, "test", "acc", True, Score(metric, v, support=9)) for c, v in values.items()
    ]
    mean = sum(values.values()) / len(values)
    record = RoundRecord(
        1, (0, 1), 0.5, 100, 300, 10, 2.0, refused=((1, "NaN"),), scores={f"test.{metric}": mean}
    )
    folder.record(record, [Link(-1, 0, 100, 5), Link(0, -1, 300, 5)], scores)
    config = f'name = "x"\nseed = {seed}\n[method]\nname = "{method}"\n[run]\nrounds = 1\n'
    (folder.path / "config.toml").write_text(config + '[data]\nname = "d"\n')
    (folder.path / "fleet.json").write_text(
        json.dumps({"labels": [], "pooled": False, "clients": []})
    )
    return folder.path


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

    from communis.compare import _T

    for degrees, value in enumerate(_T, 1):
        assert value == pytest.approx(stats.t.ppf(0.975, degrees), abs=6e-4)
