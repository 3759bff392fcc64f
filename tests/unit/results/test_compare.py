"""Statistics of a comparison, on run folders made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from communis import CommunisError
from communis.cli.jobs import View, carry_out
from communis.cli.terminal import as_json, out, results
from communis.core.metrics import better
from communis.fleet.availability.roles import Role
from communis.fleet.settings import FleetConfig
from communis.results.compare import collect, metrics, paired, ranking, rows
from communis.results.estimate import QUANTILES, Estimate, significance
from communis.results.report.page import render
from communis.results.wording.numbers import number
from communis.results.wording.scores import (
    CHOICES,
    choices,
    default_metric,
    default_select,
    how_to_read,
    scope,
)
from communis.run.config import bare
from communis.run.jobs import Home, Job
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
    assert beta.verdict == "cannot be told apart"
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


def test_a_seed_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    """A single run, and a comparison with the same one in it."""
    for seed, weakest in enumerate((0.1, 0.2)):
        write(tmp_path / "compare", "alpha", seed, {0: weakest, 1: 0.5}, "accuracy")
    alone = write(tmp_path / "alone", "alpha", 1, {0: 0.2, 1: 0.5}, "accuracy")
    runs = collect([tmp_path / "compare", alone])
    assert [run.seed for run in runs] == [0, 1]
    assert rows(runs, "accuracy")[0].weakest.mean == pytest.approx(0.15)
    assert len(collect([alone, alone / ".." / alone.name])) == 1


def test_of_a_run_done_twice_the_longer_one_counts(tmp_path: Path) -> None:
    short, long = ({"test.accuracy": [{0: 0.1}, {0: 0.2}][:n]} for n in (1, 2))
    folders.write(tmp_path / "a", "alpha", 0, short)
    folders.write(tmp_path / "b", "alpha", 0, long)
    config = (tmp_path / "a" / "config.toml").read_text()
    (tmp_path / "a" / "config.toml").write_text(config.replace("rounds = 1", "rounds = 2"))
    assert [run.path.name for run in collect([tmp_path])] == ["b"]


def test_runs_of_one_seed_that_disagree_are_named(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "alpha", 0, {0: 0.1}, "accuracy")
    other = write(tmp_path / "other", "alpha", 0, {0: 0.2}, "accuracy")
    with pytest.raises(CommunisError, match=f"{one} and {other}: both are alpha, seed 0"):
        collect([tmp_path])


@pytest.mark.parametrize("differences", [[-0.5], [-0.5, -0.5], [-0.5, 0.5], [0.0, 0.0]])
def test_fewer_than_three_seeds_give_no_verdict(differences: list[float]) -> None:
    """Neither "cannot be told apart", which two seeds nearly always are, nor a difference."""
    assert significance(Estimate.of(differences), "accuracy") == "too few seeds"
    assert significance(Estimate.of([*differences, math.nan]), "accuracy") == "diverged"
    assert significance(Estimate.of([-0.5, -0.5, -0.5]), "accuracy") == "worse than the best"


def test_few_seeds_in_words(home: Path) -> None:
    """In the terminal, the report and for programs: no interval, and no method is called the best
    or the same."""
    runs = [run for run in collect([home]) if run.seed != 1]
    with out.capture() as said:
        out.print(results(runs, "accuracy"))
    shown = " ".join(said.get().split())
    page = render(runs, "accuracy", "t")
    assert [row["verdict"] for row in as_json(runs, "accuracy")["rows"]] == [
        "", "too few seeds", "too few seeds"
    ]  # fmt: skip
    for text in (shown, page):
        assert "2 seeds are too few to judge any difference: run 3." in text
        assert "best mean" in text
        assert "-0.075 (too few seeds)" in text
        assert "cannot be told apart" not in text
        assert "worse than the best" not in text


def test_one_seed_has_no_spread() -> None:
    assert Estimate.of([0.5]).seeds == 1
    assert math.isnan(Estimate.of([0.5]).spread)
    assert math.isnan(Estimate.of([]).mean)
    assert significance(Estimate.of([]), "accuracy") == "no seed in common"


def test_equal_methods_are_within_the_spread() -> None:
    assert significance(Estimate.of([0.0, 0.0, 0.0]), "accuracy") == "cannot be told apart"


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
    with pytest.raises(CommunisError, match=r"config\.toml: not the settings of a run"):
        collect([home])


def test_t_quantiles_match_scipy() -> None:
    from scipy import stats

    for degrees, value in enumerate(QUANTILES, 1):
        assert value == pytest.approx(stats.t.ppf(0.975, degrees), abs=6e-4)


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


def test_parameters_are_means_over_clients(tmp_path: Path) -> None:
    fleet = {"pooled": True, "clients": [{"parameters": n} for n in (10, 30, 1000)]}
    history = {"test.accuracy": [{0: 0.5}]}
    folders.write(tmp_path / "new", "new", 0, history, fleet=fleet)
    write(tmp_path, "old", 0, {0: 0.4}, "accuracy")
    new, old = rows(collect([tmp_path]), "accuracy")
    assert new.parameters == 20  # the last client sits beside the server
    assert math.isnan(old.parameters)


def test_one_cell_in_the_terminal_and_for_programs(home: Path) -> None:
    single = collect([home])
    with out.capture() as said:
        out.print(results(single, "accuracy", "common", quiet=True))
    for word in ("last round", "last five", "against alpha", "cannot be told apart"):
        assert word in said.get()
    assert "common best" not in said.get()  # nothing was validated
    assert "averages" not in as_json(single, "accuracy")
    assert as_json(single, "accuracy")["rows"][0]["cell"] == {}


def test_ways_to_choose_a_round_that_make_a_difference(tmp_path: Path) -> None:
    for method, val in (("a", [{0: 0.9}, {0: 0.2}]), ("b", [{0: 0.1}, {0: 0.2}])):
        history = {"test.accuracy": [{0: 0.5}, {0: 0.6}], "val.accuracy": val}
        folders.write(tmp_path / method, method, 0, history)
    found = rows(collect([tmp_path]), "accuracy")
    assert choices(found) == list(CHOICES)
    assert choices([row for row in found if row.method == "b"]) == ["last", "tail"]


def test_counting_shows_accuracy_f1_and_error_side_by_side(tmp_path: Path) -> None:
    order = ("accuracy", "macro_f1", "nll", "brier", "mae")  # as a counting task scores them
    for seed, (method, mae) in product(range(3), (("a variant with a long name", 1.5), ("b", 2.5))):
        values = {"accuracy": 0.1 * mae, "mae": mae + 0.01 * seed}
        history = {f"test.{m}": [{0: values.get(m, 0.3)}] for m in order}
        folders.write(tmp_path / f"{method}{seed}", method, seed, history)
    runs = collect([tmp_path])
    best, worst = rows(runs, "mae")
    assert list(best.scores) == ["mae", "accuracy", "macro_f1", "nll", "brier"]
    assert (best.method, worst.verdict) == ("a variant with a long name", "worse than the best")
    assert rows(runs, "accuracy")[0].method == "b"
    found = as_json(runs, "accuracy")["rows"][0]["scores"]
    assert list(found)[:3] == ["accuracy", "macro_f1", "mae"]
    with out.capture() as said:
        out.print(results(runs, "accuracy", quiet=True))
    lines = [line.split() for line in said.get().splitlines()]
    head = ["method", "accuracy", "macro", "f1", "mae", "weakest"]
    lines = lines[lines.index(head) :]
    heads = ["method", "parameters", "KB", "up/down", "MB", "in", "all", "s/round", "refused"]
    assert heads in lines
    assert "…" not in said.get()
    text = render(runs, "accuracy", "t")
    assert "<th>accuracy</th><th>macro f1</th><th>mae</th><th>nll</th>" in text.replace(
        " scope='col'", ""
    )


def test_bytes_are_payload_by_client_and_round_where_clients_differ(tmp_path: Path) -> None:
    """Two of the clients have one sensor, so a smaller model to send."""
    roles = Role(("m0",), 2), Role(("m0", "m1"), 3)
    data = {"name": "synthetic", "clients": 5, "windows": 20, "steps": 16, "channels": 2}
    config = bare(data, ["data.modalities=2", "run.rounds=3", "run.workers=1"])
    config = replace(config, fleet=FleetConfig(roles=roles))
    carry_out([Job(config, tmp_path / "run")], Home(tmp_path), View(quiet=True))
    (run,) = collect([tmp_path])
    sizes = [4 * client["parameters"] for client in run.clients]
    assert len(set(sizes)) == 2
    (row,) = rows([run], "accuracy")
    assert row.bytes_up == row.bytes_down == sum(sizes) / 5
    assert row.total_bytes > 3 * 2 * sum(sizes)  # framing included
    both = f"{2 * row.bytes_up / 1000:,.1f}"
    up = f"{row.bytes_up / 1000:,.1f}"
    assert f"<td>{up}</td><td>{up}</td><td>{both}</td>" in render([run], "accuracy", "t")


def test_methods_are_ranked_by_the_seeds_they_share(tmp_path: Path) -> None:
    """Seed 1 is easy: who was run with it only looks better."""
    for method, scores in {"good": {0: 0.6, 2: 0.6}, "lucky": {0: 0.5, 1: 0.9, 2: 0.5}}.items():
        for seed, value in scores.items():
            write(tmp_path, method, seed, {0: value}, "accuracy")
    write(tmp_path, "wild", 1, {0: math.nan}, "accuracy")  # without a mean: keeps no seed away
    runs = collect([tmp_path])
    assert ranking(runs, "accuracy", "last") == (["good", "lucky", "wild"], [0, 2])
    good, lucky, wild = rows(runs, "accuracy")
    assert lucky.scores["accuracy"].mean > good.scores["accuracy"].mean
    assert (good.verdict, lucky.verdict) == ("", "too few seeds")
    assert math.isnan(wild.weakest.mean)
    assert "ranked by seeds 0, 2, which all have" in how_to_read(
        runs, [good, lucky, wild], "accuracy"
    )
    same = [run for run in runs if run.seed != 1]
    assert "ranked by" not in how_to_read(same, rows(same, "accuracy"), "accuracy")


def test_a_setting_that_an_older_run_does_not_know_tells_no_methods_apart(tmp_path: Path) -> None:
    for seed in (0, 1):
        write(tmp_path, "alpha", seed, {0: 0.5}, "accuracy")
    older = next(p for p in tmp_path.rglob("config.toml") if "seed = 0" in p.read_text("utf-8"))
    text = older.read_text("utf-8")
    newer = next(p for p in tmp_path.rglob("config.toml") if p != older)
    newer.write_text(newer.read_text("utf-8").replace("[method]\n", "[method]\nnew = 1\n"), "utf-8")
    assert "new = 1" in newer.read_text("utf-8")
    assert {run.method for run in collect([tmp_path])} == {"alpha"}
    older.write_text(text.replace("[method]\n", "[method]\nnew = 2\n"), "utf-8")
    assert {run.method for run in collect([tmp_path])} == {"alpha (new=1)", "alpha (new=2)"}


def test_an_unfinished_method_does_not_let_one_seed_decide(tmp_path: Path) -> None:
    """Seed 0 alone would make the worst of the finished methods the best."""
    finished = {"steady": {0: 0.5, 1: 0.7, 2: 0.7}, "fading": {0: 0.6, 1: 0.3, 2: 0.3}}
    for method, scores in (finished | {"begun": {0: 0.9}}).items():
        for seed, value in scores.items():
            write(tmp_path, method, seed, {0: value}, "accuracy")
    runs = collect([tmp_path])
    assert ranking(runs, "accuracy", "last") == (["steady", "fading", "begun"], [0, 1, 2])
    assert "ranked by seeds 0, 1, 2" in how_to_read(runs, rows(runs, "accuracy"), "accuracy")


def test_without_a_shared_seed_each_method_has_its_own(tmp_path: Path) -> None:
    write(tmp_path, "alpha", 0, {0: 0.5}, "accuracy")
    write(tmp_path, "beta", 1, {0: 0.6}, "accuracy")
    runs = collect([tmp_path])
    table = rows(runs, "accuracy")
    assert [row.method for row in table] == ["beta", "alpha"]
    assert table[1].verdict == "no seed in common"
    assert "No seed is shared" in how_to_read(runs, table, "accuracy")


def test_a_method_without_a_mean_is_not_the_best(tmp_path: Path) -> None:
    write(tmp_path, "wild", 0, {0: math.nan}, "accuracy")
    write(tmp_path, "wilder", 0, {0: math.nan}, "accuracy")
    runs = collect([tmp_path])
    table = rows(runs, "accuracy")
    assert [row.verdict for row in table] == ["diverged", "diverged"]
    assert "none is called the best" in how_to_read(runs, table, "accuracy")
    with out.capture() as said:
        out.print(results(runs, "accuracy", quiet=True))
    assert "best\n" not in said.get().replace("common best", "").replace("own best", "")
    assert " nan" not in said.get()


def test_runs_that_were_not_evaluated_yet_are_left_out(home: Path) -> None:
    folders.write(home / "new", "alpha", 3, {"test.accuracy": [{}]})
    runs = collect([home])
    alpha = rows(runs, "accuracy")[0]
    assert (alpha.scores["accuracy"].seeds, alpha.scores["accuracy"].diverged) == (3, 0)
    assert scope(runs).endswith("1 of 10 runs has not been evaluated yet.")
    folders.write(home / "newer", "delta", 0, {"test.accuracy": [{}]})
    assert len(rows(collect([home]), "accuracy")) == 3
    assert "2 of 11 runs have not been evaluated" in scope(collect([home]))
    only = [run for run in collect([home]) if run.method == "delta"]
    with pytest.raises(CommunisError, match="nothing was evaluated yet"):
        rows(only, "accuracy")


def test_a_sample_of_the_clients_is_called_one(tmp_path: Path) -> None:
    history = {"test.accuracy": [{0: 0.5, 1: 0.5}]}
    for seed, count in enumerate((2, 5)):
        fleet = {"evaluation": {"clients": count, "of": 5}}
        folders.write(tmp_path / f"{seed}", "alpha", seed, history, fleet=fleet)
    assert ", a sample of 2 of 5 clients, " in scope(collect([tmp_path / "0"]))
    assert ", 2 clients, " in scope(collect([tmp_path / "1"]))


def test_a_file_can_name_the_metric(tmp_path: Path) -> None:
    history = {"test.accuracy": [{0: 0.5}], "test.macro_f1": [{0: 0.4}]}
    folders.write(tmp_path / "a", "alpha", 0, history)
    assert default_metric(collect([tmp_path])) == "accuracy"
    folders.write(tmp_path / "b", "beta", 0, history, metric="macro_f1")
    runs = collect([tmp_path])
    assert default_metric(runs) == "macro_f1"
    assert "not comparable" not in rows(runs, "macro_f1")[1].verdict
    assert default_metric([*runs, *collect([folders.write(
        tmp_path / "c", "gamma", 0, history, metric="accuracy")])]) == "accuracy"  # fmt: skip
    folders.write(tmp_path / "b", "beta", 0, history, metric="ece")  # nobody has it
    assert default_metric(collect([tmp_path / "b"])) == "accuracy"


def test_a_file_can_say_which_round_counts(tmp_path: Path) -> None:
    history = {"test.accuracy": [{0: 0.5}]}
    folders.write(tmp_path / "a", "alpha", 0, history, select="tail")
    assert default_select(collect([tmp_path])) == "tail"
    folders.write(tmp_path / "b", "beta", 0, history)  # they disagree
    runs = collect([tmp_path])
    assert default_select(runs) == "last"
    assert "not comparable" not in rows(runs, "accuracy")[1].verdict


def test_unfinished_runs_do_not_drag_finished_ones_down(tmp_path: Path) -> None:
    """Of two seeds one stopped after the first of two rounds."""
    both = {"test.accuracy": [{0: 0.1}, {0: 0.5}]}
    folders.write(tmp_path / "a", "alpha", 0, both)
    stopped = folders.write(tmp_path / "b", "alpha", 1, {"test.accuracy": [{0: 0.1}]})
    text = (stopped / "config.toml").read_text("utf-8").replace("rounds = 1", "rounds = 2")
    (stopped / "config.toml").write_text(text, "utf-8")
    runs = collect([tmp_path])
    assert rows(runs, "accuracy")[0].scores["accuracy"].mean == 0.5
    assert "1 of 2 runs is unfinished, left out" in scope(runs)
    only = collect([tmp_path / "b"])  # better than nothing
    assert rows(only, "accuracy")[0].scores["accuracy"].mean == 0.1


def test_what_was_compared(tmp_path: Path) -> None:
    history = {"test.accuracy": [{0: 0.5, 1: 0.5}]}
    folders.write(tmp_path / "a", "alpha", 0, history, cell={"H": "low"}, eval_clients=2)
    one = scope(collect([tmp_path]))
    assert one == "Data d, H low, 2 clients scored in a round, 1 rounds, 1 seed (0)."
    three = {"test.accuracy": [{0: 0.5, 1: 0.5, 2: 0.5}] * 4}
    folders.write(tmp_path / "b", "alpha", 1, three, cell={"H": "high"}, data="e")
    text = scope([run for run in collect([tmp_path]) if run.seed or run.cell])
    assert text.startswith("Data d, e, 2 cells, 2 to 3 clients")
    assert "1 to 4 rounds, 2 seeds (0, 1)" in text


def test_labels_that_would_be_too_long_name_the_folder(tmp_path: Path) -> None:
    """One name for equal settings, another for others, also where folders are called alike."""
    for place, seed, setting in (("a", 0, "x"), ("a", 1, "x"), ("b", 0, "y")):
        folder = tmp_path / place / "trial" / "fedavg" / f"seed{seed}"
        folders.write(folder, "fedavg", seed, {"test.accuracy": [{0: 0.5}]})
        config = folder / "config.toml"
        text = config.read_text("utf-8").replace("[method]", f'[method]\nnote = "{setting * 80}"')
        config.write_text(text, "utf-8")
    found = {(run.path.parts[-4], run.seed): run.method for run in collect([tmp_path])}
    assert found["a", 0] == found["a", 1] != found["b", 0]
    assert set(found.values()) == {"fedavg (trial)", "fedavg (trial 2)"}
    assert {run.method for run in collect([tmp_path / "a"])} == {"fedavg"}
