"""Time, energy and targets by the device clock, on run folders made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from communis.cli.terminal import as_json, out, results
from communis.core.errors import CommunisError
from communis.results.compare import collect
from communis.results.timing import Timing, automatic, named, progress, timing
from communis.results.wording.clock import about_time, spent
from tests.unit import folders


def write(
    home: Path,
    method: str,
    seed: int,
    scores: Sequence[float],
    pace: float = math.nan,
    metric: str = "accuracy",
    **about: object,
) -> Path:
    """A run of one client whose rounds take `pace` seconds and ten times as many joules."""
    rounds = len(scores)
    clock = {"seconds": [pace] * rounds, "joules": [10 * pace] * rounds}
    history = {f"test.{metric}": [{0: score} for score in scores]}
    where = home / str(about.get("cell", "")) / f"{method}-{about.get('variant', '')}{seed}"
    return folders.write(where, method, seed, history, **clock, **about)  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path, "fedavg", 0, [0.5, 0.62, 0.70], 4.0)
    write(tmp_path, "fedavg", 1, [0.5, 0.60, 0.74], 6.0)
    write(tmp_path, "relief", 0, [0.5, 0.64, 0.66], 2.0)
    write(tmp_path, "relief", 1, [0.61, 0.65, 0.68], 2.0)
    return tmp_path


def found(home: Path, *targets: float, metric: str = "accuracy") -> Timing:
    times = timing(collect([home]), metric, "last", targets)
    assert times is not None
    return times


def test_by_hand(home: Path) -> None:
    """Mean curves: fedavg .5, .61, .72; relief .555, .645, .67: both reach .65, not .70."""
    times = found(home)
    assert (times.target, times.given, times.base) == (0.65, False, "fedavg")
    fedavg, relief = times.rows
    assert (fedavg.method, relief.method) == ("fedavg", "relief")
    assert (fedavg.seconds.mean, fedavg.joules.mean) == (5.0, 50.0)
    assert fedavg.seconds.spread == pytest.approx(math.sqrt(2))  # of 4 and 6
    assert (fedavg.speedup.mean, fedavg.speedup.spread) == (1.0, 0.0)
    assert relief.speedup.mean == 2.5  # 4 / 2 and 6 / 2
    until = fedavg.until
    assert (until.rounds.mean, until.seconds.mean, until.joules.mean) == (3, 15, 150)
    assert until.megabytes.mean == pytest.approx(3 * 410e-6)
    assert (until.reached, until.runs) == (2, 2)
    # relief: round 3 with seed 0, 6 s; round 2 with seed 1, 4 s
    assert (relief.until.rounds.mean, relief.until.seconds.mean) == (2.5, 5)
    assert relief.until.seconds.spread == pytest.approx(math.sqrt(2))


def test_a_target_that_few_or_none_reach(home: Path) -> None:
    times = found(home, 0.72)
    assert (times.target, times.given) == (0.72, True)
    fedavg, relief = times.rows
    assert (fedavg.until.reached, relief.until.reached) == (1, 0)
    assert spent(fedavg.until.seconds, fedavg.until) == "> 15"  # 12, all it took, and 18
    assert spent(relief.until.seconds, relief.until) == "-"
    runs = collect([home])
    text = about_time(runs, times, "accuracy")
    assert "a test accuracy of 0.72, which was asked for" in text
    assert "> marks a lower bound" in text
    assert "lower bound" not in about_time(runs, found(home), "accuracy")
    assert "the highest multiple of 0.05 that the mean" in about_time(runs, found(home), "accuracy")


def test_a_score_that_is_exactly_the_target_counts(tmp_path: Path) -> None:
    """0.05 x 14 is more than 0.7 in binary."""
    write(tmp_path, "fedavg", 0, [0.3, 0.1 + 0.6], 1.0)
    times = found(tmp_path)
    assert times.target == 0.7
    assert times.rows[0].until.rounds.mean == 2


def test_the_target_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, "fedavg", 0, [0.3, 0.6], 1.0, target=0.55)
    write(tmp_path, "relief", 0, [0.56, 0.9], 1.0, target=0.55)
    assert (found(tmp_path).target, found(tmp_path).given) == (0.55, True)
    assert found(tmp_path, 0.3).target == 0.3
    write(tmp_path, "local", 0, [0.56, 0.9], 1.0, target=0.7)  # another: none is taken
    assert (found(tmp_path).target, found(tmp_path).given) == (0.6, False)
    assert named(collect([tmp_path]), "accuracy") == ()
    assert all("not comparable" not in row["verdict"] for row in as_json(
        collect([tmp_path]), "accuracy")["rows"])  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "target", "why"),
    [
        ((0.62, 0.5, 0.72), 0.62, "0.62, the highest of those asked for that every run reached"),
        ((0.9, 0.69), 0.69, "0.69, the lowest of those asked for, of which none was reached by"),
        ((0.72, 0.72), 0.72, "0.72, which was asked for"),
        ((0.0,), 0.65, "0.65, the highest multiple of 0.05"),
    ],
)
def test_one_of_several_targets_counts(
    home: Path, asked: tuple[float, ...], target: float, why: str
) -> None:
    """relief never has more than 0.66 with seed 0."""
    times = found(home, *asked)
    assert times.target == target
    assert why in about_time(collect([home]), times, "accuracy")


def test_where_less_is_better_the_lowest_target_is_the_hardest(tmp_path: Path) -> None:
    write(tmp_path, "fedavg", 0, [2.0, 1.1], 1.0, "mae")
    runs = collect([tmp_path])
    assert named(runs, "mae", (1.0, 1.5, 1.2)) == (1.5, 1.2, 1.0)
    assert found(tmp_path, 1.0, 1.5, 1.2, metric="mae").target == 1.2
    assert found(tmp_path, 1.0, 0.5, metric="mae").target == 1.0
    times = found(tmp_path, 1.0, 0.5, metric="mae")
    assert "the highest of those asked for, of which none" in about_time(runs, times, "mae")


@pytest.mark.parametrize("target", [math.nan, math.inf])
def test_targets_are_finite(home: Path, target: float) -> None:
    with pytest.raises(CommunisError, match="target: expected a finite number"):
        found(home, 0.5, target)


def test_without_a_clock(tmp_path: Path) -> None:
    write(tmp_path, "fedavg", 0, [0.3, 0.6])
    runs = collect([tmp_path])
    assert timing(runs, "accuracy") is None
    assert timing(runs, "accuracy", targets=(0.5,)) is None
    assert as_json(runs, "accuracy")["timing"] == []
    with out.capture() as said:
        out.print(results(runs, "accuracy"))
    assert "simulated" not in said.get().lower()


def test_records_of_older_versions_have_no_clock(tmp_path: Path) -> None:
    path = write(tmp_path, "fedavg", 0, [0.3], 2.0)
    (record,) = folders.records_in(path)
    assert record.pop("virtual_seconds") == 2.0
    record.pop("virtual_joules")
    folders.write_records(path, [record])
    run = collect([tmp_path])[0]
    assert math.isnan(run.records[0].virtual_seconds)
    assert (len(run.clock), len(run.log), len(run.pairs)) == (0, 0, 0)
    assert timing([run], "accuracy") is None


def test_some_with_and_some_without_a_clock(home: Path) -> None:
    write(home, "local", 0, [0.7, 0.7, 0.7])
    local = next(row for row in found(home).rows if row.method == "local")
    assert math.isnan(local.speedup.mean)
    assert math.isnan(local.seconds.mean)
    assert (local.until.rounds.mean, local.until.reached) == (1, 1)
    with out.capture() as said:
        out.print(results(collect([home]), "accuracy", quiet=True))
    assert "nan" not in said.get()
    assert "diverged" not in said.get()


def test_without_fedavg_the_slowest_is_the_base(tmp_path: Path) -> None:
    for method, pace in {"quick": 1.0, "slow": 4.0, "odd": math.nan}.items():
        write(tmp_path, method, 0, [0.5], pace)
    times = found(tmp_path)
    assert times.base == "slow"
    assert {row.method: row.speedup.mean for row in times.rows if row.method != "odd"} == {
        "quick": 4.0,
        "slow": 1.0,
    }
    assert "slow, whose rounds take longest" in about_time(collect([tmp_path]), times, "accuracy")


def test_speedups_pair_seeds(home: Path) -> None:
    """The base's slow seed 1 says nothing about a method that was run with seed 0 only."""
    write(home, "quick", 0, [0.5, 0.5, 0.7], 1.0)
    write(home, "apart", 7, [0.5, 0.5, 0.7], 1.0)
    rows = {row.method: row for row in found(home).rows}
    assert (rows["quick"].speedup.mean, rows["quick"].speedup.seeds) == (4.0, 1)
    assert math.isnan(rows["apart"].speedup.mean)


def test_a_round_without_time_has_no_speedup(home: Path) -> None:
    write(home, "local", 0, [0.7, 0.7, 0.7], 0.0)
    local = next(row for row in found(home).rows if row.method == "local")
    assert math.isnan(local.speedup.mean)


def test_cells_are_averaged_seed_by_seed(tmp_path: Path) -> None:
    paces = {"near": (2.0, 1.0), "far": (30.0, 5.0)}
    for level, (slow, quick) in paces.items():
        for seed in range(2):
            write(tmp_path, "fedavg", seed, [0.4, 0.6], slow, cell={"gap": level})
            write(tmp_path, "relief", seed, [0.6, 0.6], quick, cell={"gap": level})
    write(tmp_path, "relief", 2, [0.1, 0.1], 1.0, cell={"gap": "near"})  # one cell only
    rows = {row.method: row for row in found(tmp_path, 0.6).rows}
    assert rows["fedavg"].seconds.mean == 16.0
    assert rows["relief"].speedup.mean == 4.0  # 2 and 6
    assert rows["relief"].speedup.seeds == rows["relief"].seconds.seeds == 2
    assert rows["relief"].until.seconds.mean == 3.0
    times = as_json(collect([tmp_path]), "accuracy", targets=(0.6,))["timing"]
    assert [one["cell"] for one in times] == [{"gap": "far"}, {"gap": "near"}, None]
    assert times[0]["rows"][1]["speedup"]["mean"] == 6.0


def test_where_less_is_better(tmp_path: Path) -> None:
    write(tmp_path, "fedavg", 0, [2.0, 1.13, 1.2], 1.0, "mae")
    write(tmp_path, "relief", 0, [2.0, 1.16, 1.01], 1.0, "mae")
    times = found(tmp_path, metric="mae")
    assert times.target == 1.15
    assert {row.method: row.until.rounds.mean for row in times.rows} == {"fedavg": 2, "relief": 3}
    assert "the lowest multiple of 0.05" in about_time(collect([tmp_path]), times, "mae")


def test_scores_that_are_not_finite(tmp_path: Path) -> None:
    write(tmp_path, "fedavg", 0, [0.4, math.nan, 0.6], 1.0)
    write(tmp_path, "wild", 0, [math.nan, math.nan, math.nan], 1.0)
    times = found(tmp_path)
    assert times.target == 0.6  # a method without a curve has no say
    assert {row.method: row.until.reached for row in times.rows} == {"fedavg": 1, "wild": 0}
    only = [run for run in collect([tmp_path]) if run.method == "wild"]
    assert math.isnan(automatic(only, "accuracy"))
    alone = timing(only, "accuracy")
    assert alone is not None
    assert "no target was chosen" in about_time(only, alone, "accuracy")
    with out.capture() as said:
        out.print(results(only, "accuracy", quiet=True))
    assert "runs that did" not in said.get()


def test_hopeless_scores_have_no_target(tmp_path: Path) -> None:
    write(tmp_path, "fedavg", 0, [0.01, 0.02], 1.0)
    assert math.isnan(found(tmp_path).target)


def test_progress_counts_rounds_that_were_not_evaluated(tmp_path: Path) -> None:
    history = {"test.accuracy": [{}, {0: 0.5}, {}, {0: 0.7}]}
    clock = {"seconds": [1.0, 2.0, 3.0, 4.0], "joules": [1.0] * 4}
    folders.write(tmp_path, "fedavg", 0, history, **clock)  # type: ignore[arg-type]
    table = progress(collect([tmp_path])[0], "accuracy")
    assert table.index.tolist() == [2, 4]
    assert table["seconds"].tolist() == [3.0, 10.0]
    assert table["joules"].tolist() == [2.0, 4.0]
    assert table["score"].tolist() == [0.5, 0.7]


def test_one_method_has_no_speedup_to_show(tmp_path: Path) -> None:
    write(tmp_path, "relief", 0, [0.5, 0.7], 2.0)
    with out.capture() as said:
        out.print(results(collect([tmp_path]), "accuracy"))
    assert "simulated s/round" in said.get()
    assert "peedup" not in said.get()


def test_the_terminal_stays_within_its_width(home: Path) -> None:
    write(home, "relief", 0, [0.5, 0.6, 0.6543], 12345.678, variant="a variant with a long name")
    write(home, "relief", 1, [0.5, 0.6, 0.7], 23456.789, variant="a variant with a long name")
    with out.capture() as said:
        out.print(results(collect([home]), "accuracy"))
    text = said.get()
    assert max(map(len, text.splitlines())) <= 110
    assert "…" not in text
    for word in ("speedup against fedavg", "2.50 ± 0.71 x", "to accuracy 0.65", "2 of 2"):
        assert word in text
    assert "only ratios mean something" in " ".join(text.split())


def test_runs_on_other_devices_have_no_speedup(tmp_path: Path) -> None:
    """They differ in more than the method."""
    write(tmp_path, "fedavg", 0, [0.5], 4.0)
    folder = write(tmp_path, "relief", 0, [0.5], 2.0)
    config = folder / "config.toml"
    text = config.read_text("utf-8")
    config.write_text(text + '\n[clock]\nmode = "exact"\n', "utf-8")
    other = next(p for p in tmp_path.rglob("config.toml") if p != config)
    other.write_text(other.read_text("utf-8") + '\n[clock]\nmode = "flop_prop"\n', "utf-8")
    times = timing(collect([tmp_path]), "accuracy")
    assert times is not None
    speedups = {row.method: row.speedup.mean for row in times.rows}
    assert speedups["fedavg"] == 1.0
    assert math.isnan(speedups["relief"])
