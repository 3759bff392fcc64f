"""What the report says of attackers: who they are, what they move and whom they harm."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from communis import FedAvg, Fleet, Plan, Run
from communis.fleet.attack import AttackConfig
from communis.results import attack as attacks
from communis.results.compare import Finished, collect
from communis.results.estimate import Estimate
from communis.results.report import attack
from communis.results.report.page import render
from communis.results.wording import numbers
from communis.results.wording.warnings import warnings
from tests.unit import folders, small
from tests.unit.results.report.test_graph import record
from tests.unit.results.report.test_page import lines_of
from tests.unit.results.report.test_report import Balanced, outside

SHADES = dict.fromkeys(("alpha", "beta"), "#123456")
CLIENTS = 5


def write(
    home: Path,
    scores: Mapping[int, float],
    liars: Sequence[int] = (),
    *,
    method: str = "alpha",
    seed: int = 0,
    cell: str = "",
    kind: str = "sign_flip",
    rule: str = "",
    distances: Sequence[float | None] = (0.5, 1.5),
    more: str = "",
) -> Path:
    """A run of two rounds with these scores in the last. more: other settings of the method."""
    text = f'{more}\n[attack]\nkind = "{kind if liars else "none"}"\ncount = {len(liars)}\n'
    text += f'[robust]\nrule = "{rule}"\nliars = {len(liars)}\n' if rule else ""
    text += f'[cell]\nliars = "{cell}"\n[levels]\nliars = ["none", "one", "two"]\n' if cell else ""
    about = {"clients": [{"id": i, "sensors": ["acc"]} for i in range(CLIENTS)]}
    path = folders.write(
        home / f"{method}{seed}{cell}{kind}{rule}",
        method,
        seed,
        {"test.accuracy": [dict.fromkeys(scores, 0.1), scores]},
        settings=text,
        fleet={**about, "attackers": list(liars)},
    )
    record(path, attack_distance=distances if liars else (None, None))
    return path


def grid(home: Path) -> list[Finished]:
    """Client 4 is by far the best, and it is the one that attacks."""
    for seed, drop in ((0, 0.10), (1, 0.20)):
        calm = {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5, 4: 1.0}
        write(home, calm, seed=seed, cell="none")
        write(home, dict.fromkeys(range(4), 0.5 - drop), [4], seed=seed, cell="one")
        two = {0: 0.4, 1: 0.6, 2: 0.5}
        write(home, two, [3, 4], seed=seed, cell="two", distances=(2.0, 4.0))
    return collect([home])


def test_changes_are_of_the_clients_that_are_honest_in_both(tmp_path: Path) -> None:
    """The mean of all would fall by 0.1 already because the best client is not scored any more."""
    found = attacks.changes(grid(tmp_path), "accuracy", "last")
    assert found.keys() == {("alpha", "liars one"), ("alpha", "liars two")}
    one = found["alpha", "liars one"]
    assert one.mean == pytest.approx(-0.15)
    assert one.spread == pytest.approx(0.1 / math.sqrt(2))  # of -0.1 and -0.2
    assert one.seeds == 2
    assert found["alpha", "liars two"].mean == pytest.approx(0.0)  # -0.1, +0.1 and 0


def test_the_table_of_a_grid(tmp_path: Path) -> None:
    text = attack.section(grid(tmp_path), "accuracy", "last", SHADES)
    lines = lines_of(text)
    assert ["liars one", "sign flip x 5", "1 of 5: 4"] in lines
    assert ["liars two", "sign flip x 5", "2 of 5: 3 and 4"] in lines
    assert ["method", "rule", "liars one", "liars two"] in lines
    assert ["alpha", "mean", "-0.150 ± 0.071\u00a0?", "+0.000 ± 0.000\u00a0?"] in lines
    assert ["alpha", "mean", "1.00 ± 0.00", "3.00 ± 0.00"] in lines
    assert "honest clients only" in text
    assert "<svg" not in text  # curves are those of a cell


def test_a_page_of_a_grid(tmp_path: Path) -> None:
    text = render(grid(tmp_path), "accuracy", "t")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert outside(text) == []
    first, *cells = text.split("<details class='cell'>")
    assert first.count("What attackers change of") == 1
    assert [cell.count(">How far attackers moved the aggregate</text>") for cell in cells] == [
        0,
        1,
        1,
    ]
    assert text.count("honest clients only") == 1


def test_a_single_cell(tmp_path: Path) -> None:
    write(tmp_path, {0: 0.5, 1: 0.7}, [4], rule="geometric_median")
    write(tmp_path, {0: 0.5, 1: 0.5}, [4], method="beta", more='consensus = "median"')
    text = attack.section(collect([tmp_path]), "accuracy", "last", SHADES)
    assert ["alpha", "geometric median", "0.600", "1"] in lines_of(text)
    assert ["beta", "geometric median (its own)", "0.500", "1"] in lines_of(text)
    assert "change" not in text  # there is nothing to compare with
    assert "<title>alpha: 1.5 at 2</title>" in text
    assert text.count("<svg") == 1


def test_runs_without_a_grid_are_compared_by_their_settings(tmp_path: Path) -> None:
    """Their labels say in what they differ; the attack is all that may."""
    write(tmp_path, {0: 0.5, 1: 0.5})
    write(tmp_path / "lying", {0: 0.4, 1: 0.5}, [4])
    runs = collect([tmp_path])
    shades = {run.method: "#123456" for run in runs}
    assert len(shades) == 2
    text = attack.section(runs, "accuracy", "last", shades)
    assert any(line[2:4] == ["0.450", "-0.050\u00a0?"] for line in lines_of(text))


def test_which_run_is_the_one_without_attackers(tmp_path: Path) -> None:
    """Same seed and settings; the rule's expectation of liars goes with the attack, the rule does
    not."""
    calm = {0: 0.5}
    for rule in ("krum", "median"):
        write(tmp_path, calm, rule=rule, cell="none")
    write(tmp_path, calm, rule="krum", cell="none", seed=1)
    write(tmp_path, calm, rule="krum", cell="none", more="lr = 0.1", method="beta")
    write(tmp_path, calm, [4], rule="krum", cell="one")
    write(tmp_path, calm, [4], rule="krum", cell="one", method="beta")
    runs = collect([tmp_path])
    lying = {run.config["method"]["name"]: run for run in runs if run.fleet["attackers"]}
    base = attacks.unattacked(lying["alpha"], runs)
    assert base is not None
    assert (base.config["robust"]["rule"], base.seed) == ("krum", 0)
    # An older run that does not name a setting would do; one with another value does not.
    assert attacks.unattacked(lying["beta"], runs) is not None
    write(tmp_path / "x", calm, [4], rule="krum", cell="two", method="beta", more="lr = 0.2")
    other = collect([tmp_path / "x"])[0]
    assert attacks.unattacked(other, runs) is None


def test_a_diverged_client_leaves_no_change(tmp_path: Path) -> None:
    write(tmp_path, {0: 0.5, 1: 0.5}, cell="none")
    write(tmp_path, {0: 0.5, 1: math.nan}, [4], cell="one")
    text = attack.section(collect([tmp_path]), "accuracy", "last", SHADES)
    assert ["alpha", "mean", "diverged in 1 of 1"] in lines_of(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [(Estimate(0.1, 0.01, 3), "+0.100 ± 0.010"), (Estimate(-0.1, 0.2, 3), "-0.100 ± 0.200\u00a0~"),
     (Estimate(-0.1, math.nan, 1), "-0.100\u00a0?"), (Estimate.of([]), "-")],
)  # fmt: skip
def test_changes_in_words(change: Estimate, said: str) -> None:
    assert numbers.signed(change) == said


def test_distances_are_of_the_rounds_under_attack(tmp_path: Path) -> None:
    write(tmp_path, {0: 0.5}, [4], distances=(100.0, 3.0))
    late = write(tmp_path / "late", {0: 0.5}, [4], method="beta", distances=(100.0, 3.0))
    text = (late / "config.toml").read_text()
    (late / "config.toml").write_text(text.replace("[attack]\n", "[attack]\nstart = 2\n"))
    runs = collect([tmp_path])
    found = attacks.distances(runs)
    assert found["alpha", ""].mean == pytest.approx(51.5)
    assert found["beta", ""].mean == pytest.approx(3.0)
    assert "from round 2 on" in attack.section(runs, "accuracy", "last", SHADES)


def test_wide_spans_are_drawn_in_powers_of_ten(tmp_path: Path) -> None:
    for home, distances in (("wide", (0.001, 10.0)), ("narrow", (0.5, 1.5))):
        write(tmp_path / home, {0: 0.5}, [4], distances=distances)
    wide, narrow = (
        attack.section(collect([tmp_path / home]), "accuracy", "last", SHADES)
        for home in ("wide", "narrow")
    )
    assert "<title>alpha: -3 at 1</title>" in wide
    assert ">0.001</text>" in wide
    assert "<title>alpha: 0.5 at 1</title>" in narrow


def test_runs_without_attackers_say_nothing(tmp_path: Path) -> None:
    write(tmp_path, {0: 0.5})
    folders.write(tmp_path / "old", "beta", 0, {"test.accuracy": [{0: 0.5}] * 2})
    runs = collect([tmp_path])
    assert attack.section(runs, "accuracy", "last", SHADES) == ""
    assert warnings(runs) == []
    write(tmp_path / "lying", {0: 0.4}, [4], method="gamma")
    text = render(collect([tmp_path]), "accuracy", "t")
    assert [line[0] for line in lines_of(text) if len(line) > 1 and line[1] == "mean"] == ["gamma"]


def test_warnings_name_the_attackers_once(tmp_path: Path) -> None:
    for method in ("alpha", "beta"):
        write(tmp_path / "a", {0: 0.5}, [3, 4], method=method)
    runs = collect([tmp_path / "a"])
    assert warnings(runs) == ["clients 3 and 4 attack (sign_flip): scores are of the other 3"]
    write(tmp_path / "b", {0: 0.5}, [1], seed=1, kind="shift")
    said = warnings([*runs, *collect([tmp_path / "b"])])
    assert said == [
        "clients 3 and 4 attack (sign_flip, seed 0): scores are of the other 3",
        "client 1 attacks (shift, seed 1): scores are of the other 4",
    ]


def test_many_sets_of_attackers_are_one_warning(tmp_path: Path) -> None:
    for i in range(5):
        write(tmp_path, {0: 0.5}, [i, (i + 1) % 5][: 1 + i % 2], seed=i)
    said = warnings(collect([tmp_path]))
    assert said == ["1 to 2 clients attack (sign_flip), by seed and cell: scores are of the others"]


@pytest.mark.slow
def test_real_runs_with_and_without_attackers(tmp_path: Path) -> None:
    owner = np.repeat(np.arange(CLIENTS), 8).tolist()
    data = small.windows(split=[0, 0, 0, 0, 0, 1, 2, 2] * CLIENTS, owner=owner)
    for count in (0, 2):
        about = AttackConfig(kind="sign_flip", count=count, scale=9.0)
        fleet = Fleet.of(data, models=(small.TINY,))
        fleet = Fleet.of(data, models=(small.TINY,), attack=about.make(CLIENTS, fleet.streams))
        config = 'name = "x"\nseed = 0\n[data]\nname = "d"\n[method]\nname = "fedavg"\n'
        config += f'[run]\nrounds = 3\n[cell]\nliars = "{count}"\n'
        config += f'[attack]\nkind = "sign_flip"\ncount = {count}\nscale = 9.0\n'
        plan, home = Plan(rounds=3, eval_every=1), tmp_path / str(count)
        with Run(fleet, FedAvg(lr=0.1), plan, folder=home, config=config) as run:
            list(run)
    runs = collect([tmp_path])
    calm, lying = sorted(runs, key=lambda run: run.place)
    liars = lying.fleet["attackers"]
    assert len(liars) == 2
    shared = lying.by_client("accuracy").index
    assert set(shared) == set(range(CLIENTS)) - set(liars)
    expected = (lying.by_client("accuracy") - calm.by_client("accuracy")[shared]).mean()
    found = attacks.changes(runs, "accuracy", "last")["fedavg", "liars 2"]
    assert found.mean == pytest.approx(expected)
    assert attacks.distances([lying])["fedavg", "liars 2"].mean > 0
    text = render(runs, "accuracy", "t")
    assert "nan" not in re.sub("<pre>.*?</pre>", "", text, flags=re.DOTALL)
    assert "sign flip x 9" in text
    named = " and ".join(map(str, liars))
    assert f"clients {named} attack (sign_flip): scores are of the other 3" in text
