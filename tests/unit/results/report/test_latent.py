"""What the report says of a common latent space."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape

from communis import Fleet, Plan, Run
from communis.exchange.messages import Noted
from communis.methods.comfed import CoMFed
from communis.results import latent as latent_space
from communis.results.compare import Finished, collect
from communis.results.curves import by_round
from communis.results.report import latent, round_curves
from communis.results.report.page import render
from tests.unit import folders, small
from tests.unit.results.report.test_report import Balanced, outside

SHADES = dict.fromkeys(("comfed", "fedavg"), "#123456")
TITLE = "The common latent space"


def write(
    home: Path, log: Sequence[Sequence[Noted]], attackers: Sequence[int] = (), seed: int = 0
) -> Finished:
    history = {"test.accuracy": [{0: 0.5}] * len(log)}
    fleet = {"attackers": list(attackers)}
    path = folders.write(home, "comfed", seed, history, fleet=fleet, rows={"log": log})
    return collect([path])[0]


def noted(values: Mapping[int, float], name: str) -> list[Noted]:
    return [Noted(client, f"latent/{name}", value) for client, value in values.items()]


def points(text: str, title: str) -> list[str]:
    """The points of one chart."""
    chart = next(part for part in text.split("<svg") if f">{escape(title)}</text>" in part)
    return re.findall(r"<title>comfed: (\S+ at \d+)</title></circle>", chart)


def test_curves_are_means_over_honest_clients(tmp_path: Path) -> None:
    log = [noted({0: 1.0, 1: 3.0, 2: 99.0}, "distance"), noted({0: 1.0, 2: 99.0}, "distance")]
    text = latent.section([write(tmp_path, log, attackers=[2])], SHADES)
    assert points(text, "Distance to the target") == ["2 at 1", "1 at 2"]
    assert text.count("<svg") == 1  # nothing else was noted


def test_every_chart_says_how_to_read_it(tmp_path: Path) -> None:
    names = [key.removeprefix("latent/") for key in latent.CHARTS]
    rounds = [[x for name in names for x in noted({0: 1.0 / r}, name)] for r in (1, 2)]
    text = latent.section([write(tmp_path, rounds)], SHADES)
    assert text.count("<svg") == 4
    for said in ("collapse", "does not reach the network", "come to agree", "cancel each other"):
        assert said in text


def test_what_is_noted_every_tenth_round_only(tmp_path: Path) -> None:
    rounds = [noted({0: 0.5}, "distance") for _ in range(20)]
    for r in (10, 20):
        rounds[r - 1] += noted({0: r / 10, 1: r / 5}, "pull")
    text = latent.section([write(tmp_path, rounds)], SHADES)
    assert points(text, "Pull on the network") == ["1.5 at 10", "3 at 20"]
    assert len(points(text, "Distance to the target")) == 20


def test_bands_are_over_seeds(tmp_path: Path) -> None:
    runs = [
        write(tmp_path / str(seed), [noted({0: value}, "separation")] * rounds, seed=seed)
        for seed, value, rounds in ((0, 1.0, 3), (1, 2.0, 2))
    ]
    found = {"comfed": [latent_space.noted(run)["latent/separation"] for run in runs]}
    text = round_curves.by_round(by_round(found), SHADES, "t", "y")
    assert points(text, "t") == ["1.5 at 1", "1.5 at 2"]  # the rounds that both have


@pytest.mark.parametrize(("values", "first"), [((100.0, 1.0), "2"), ((0.0, 2.0), "0")])
def test_powers_of_ten_where_values_span_many(
    tmp_path: Path, values: Sequence[float], first: str
) -> None:
    """Zeros alone do not make a span; on a scale of powers of ten they have no place."""
    run = write(tmp_path, [noted({0: value}, "separation") for value in values])
    found = points(latent.section([run], SHADES), "Separation of a client's classes")
    assert found[0] == f"{first} at 1"


def test_empty_without_such_a_space(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare", [[Noted(0, "loss", 1.0)]])
    assert latent.section([bare], SHADES) == ""
    assert TITLE not in render([bare], "accuracy", "t")
    path = folders.write(tmp_path / "none", "fedavg", 0, {"test.accuracy": [{0: 0.5}]})
    assert latent.section(collect([path]), SHADES) == ""


@pytest.mark.slow
def test_a_real_run_beside_one_without(tmp_path: Path) -> None:
    owner = np.repeat(np.arange(3), 8).tolist()
    data = small.windows(split=[0, 0, 0, 0, 0, 1, 2, 2] * 3, owner=owner)
    fleet = Fleet.of(data, models=(small.TINY,))
    config = 'name = "x"\nseed = 0\n[data]\nname = "d"\n[method]\nname = "comfed"\n'
    config += "[run]\nrounds = 10\n"
    plan, home = Plan(rounds=10, eval_every=10), tmp_path / "comfed"
    with Run(fleet, CoMFed(d=4), plan, folder=home, config=config) as run:
        list(run)
    folders.write(tmp_path / "fedavg", "fedavg", 0, {"test.accuracy": [{0: 0.5}]})
    runs = collect([tmp_path])
    text = render(runs, "accuracy", "t")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert outside(text) == []
    assert f"<h2>{TITLE}</h2>" in text
    for title, _, _ in latent.CHARTS.values():
        assert len(points(text, title)) == (1 if "Pull" in title else 10)
    (comfed,) = [run for run in runs if run.method == "comfed"]
    log = comfed.log
    mean = log[(log["name"] == "latent/separation") & (log["round"] == 3)]["value"].mean()
    assert latent_space.noted(comfed).loc[3, "latent/separation"] == pytest.approx(mean)
