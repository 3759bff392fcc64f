"""What the report says of who learns from whom."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import Fleet, Plan, Run
from communis.core.arrays import Array
from communis.exchange.messages import Noted
from communis.methods.fedapa import FedAPA
from communis.results.compare import Finished, collect
from communis.results.report import similarity
from communis.results.report.page import render
from communis.results.similarity import learning
from tests.unit import folders, small
from tests.unit.results.report.test_page import lines_of
from tests.unit.results.report.test_report import Balanced, outside

SHADES = dict.fromkeys(("fedapa", "fedpcl", "local"), "#123456")
TITLE = "<h2>Who learns from whom</h2>"


def noted(alike: Mapping[tuple[int, int], float], weights: Array, mean: float) -> list[Noted]:
    """A round's lines of the log."""
    found = [Noted(-1, f"alike/{i}-{j}", value) for (i, j), value in alike.items()]
    found += [Noted(-1, f"weight/{i}-{j}", float(w)) for (i, j), w in np.ndenumerate(weights)]
    return [*found, Noted(-1, "alike", mean)] if math.isfinite(mean) else found


def folder(
    home: Path,
    log: Sequence[Sequence[Noted]],
    clients: int = 3,
    models: Sequence[str] = ("cnn",),
    attackers: Sequence[int] = (),
    seed: int = 0,
    method: str = "fedapa",
    **about: Any,
) -> Finished:
    """A run with these lines in its log, round by round."""
    suites = [("acc", "gyro"), ("acc",)]
    described = [
        {"id": i, "sensors": suites[i % 2], "model": models[i % len(models)]}
        for i in range(clients)
    ]
    fleet = {"clients": described, "attackers": list(attackers)}
    history = {"test.accuracy": [{0: 0.5}] * len(log)}
    path = home / f"{method}{seed}"
    folders.write(path, method, seed, history, fleet=fleet, rows={"log": log}, **about)
    return collect([path])[0]


def flat(clients: int = 3, mean: float = 0.5, alike: float = 0.5) -> list[Noted]:
    """A round in which all pairs are alike and all weights equal."""
    pairs = {(i, j): alike for j in range(clients) for i in range(j)}
    return noted(pairs, np.full((clients, clients), 1 / clients), mean)


def widths(text: str) -> list[dict[str, float]]:
    """Of every picture, by the ends of a line."""
    line = r"stroke-width='([\d.]+)'[^>]*><title>(\d+ - \d+): "
    pictures = [part for part in text.split("<svg") if "similarity of clients" in part]
    return [{who: float(width) for width, who in re.findall(line, part)} for part in pictures]


def nodes(text: str) -> list[list[str]]:
    """Of every picture: where clients stand and what they are called."""
    pictures = [part for part in text.split("<svg") if "similarity of clients" in part]
    return [re.findall(r"<circle (cx='.*? r=).*?<title>(.*?)</title>", one) for one in pictures]


def test_the_width_of_a_line_is_the_similarity(tmp_path: Path) -> None:
    """On the same scale in all rounds; negative ones are dashed, missing ones not drawn."""
    rounds = [
        noted({(0, 1): 1.0, (0, 2): 0.25, (1, 2): -0.5}, np.full((3, 3), 1 / 3), 0.25),
        noted({(0, 1): 0.5, (0, 2): 0.1}, np.full((3, 3), 1 / 3), 0.3),
    ]
    text = similarity.section([folder(tmp_path, rounds)], SHADES)
    first, last = widths(text)
    assert first == {"0 - 1": 6.0, "0 - 2": 1.5, "1 - 2": 3.0}
    assert last == {"0 - 1": 3.0, "0 - 2": 0.6}
    assert re.findall(r"dasharray='4 3'><title>(\d - \d: \S+)</title>", text) == ["1 - 2: -0.500"]
    assert ">-0.50 to 1.00</text>" in text
    assert ">0.10 to 0.50</text>" in text
    scale = text[text.index("width of a line by similarity") :].partition("</svg>")[0]
    assert re.findall("<text.*?>(.*?)<", scale) == ["1", "0.5", "0.1", "-0.5"]
    assert re.findall(r"stroke-width='([\d.]+)'", scale) == ["6.00", "3.00", "0.60", "3.00"]


def test_five_moments_with_everybody_at_the_same_place(tmp_path: Path) -> None:
    rounds = [[Noted(-1, "alike", 0.1)], *([flat()] * 12)]  # the first has no pairs
    text = similarity.section([folder(tmp_path, rounds)], SHADES)
    assert re.findall("class='title'>round (.*?)<", text) == ["2", "5", "8", "10", "13"]
    assert len(nodes(text)) == 5
    assert all(one == nodes(text)[0] for one in nodes(text))
    short = similarity.section([folder(tmp_path / "short", rounds[:3])], SHADES)
    assert re.findall("class='title'>round (.*?)<", short) == ["2", "3"]


def test_tables_of_the_last_round(tmp_path: Path) -> None:
    weights = np.array([[0.5, 0.3, 0.2], [0.25, 0.6, 0.15], [0.4, 0.2, 0.4]])
    rounds = [flat(), noted({(0, 1): 0.8, (1, 2): -0.2}, weights, 0.3)]
    run = folder(tmp_path, rounds, attackers=[2])
    text = similarity.section([run], SHADES)
    assert lines_of(text) == [
        ["client", "1", "0", "2"],  # those with the same sensors side by side
        ["1: acc", "-", "0.800", "-0.200"],
        ["0: acc+gyro", "0.800", "-", "-"],
        ["2: acc+gyro, attacks", "-0.200", "-", "-"],
        ["client", "1", "0", "2"],
        ["1: acc", "0.600", "0.250", "0.150"],
        ["0: acc+gyro", "0.300", "0.500", "0.200"],
        ["2: acc+gyro, attacks", "0.200", "0.400", "0.400"],
    ]
    assert "Similarity in round 2; palest -0.2, darkest 1<" in text
    assert "Weight in round 2; palest 0, darkest 0.667<" in text  # equal ones are in the middle


def test_the_sentence_holds_weights_against_equal_ones(tmp_path: Path) -> None:
    weights = np.array([[0.5, 0.3, 0.2], [0.25, 0.6, 0.15], [0.4, 0.2, 0.4]])
    text = similarity.section([folder(tmp_path / "a", [noted({}, weights, 0.3)])], SHADES)
    assert "Seed 0, round 1 of 1: clients give each other weights of 0.150 to 0.400" in text
    assert "and themselves 0.400 to 0.600." in text
    assert "would be 1/3 = 0.333: these are 0.45 to 1.80 times that." in text
    plain = similarity.section([folder(tmp_path / "b", [flat()])], SHADES)
    assert "weights of 0.333 and themselves 0.333." in plain
    assert "these are 1.00 times that." in plain


def test_clients_that_do_not_count_for_themselves(tmp_path: Path) -> None:
    weights = np.full((3, 3), 0.5) - 0.5 * np.eye(3)
    run = folder(tmp_path, [noted({(0, 1): 0.5}, weights, 0.5)], settings="include_self = false")
    text = similarity.section([run], SHADES)
    assert "equal weights would be 1/2 = 0.500: these are 1.00 times" in text


def test_who_has_no_class_at_all_is_nobodys_peer(tmp_path: Path) -> None:
    """Nor is who was not heard yet: client 3 is not in the log."""
    weights = np.array([[0.6, 0.4, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    run = folder(tmp_path, [noted({(0, 1): 0.5}, weights, 0.5)], clients=4)
    text = similarity.section([run], SHADES)
    assert "equal weights would be 1/2 = 0.500: these are 0.00 to 1.20 times that." in text
    assert [len(found) for found in nodes(text)] == [4]
    assert ["0: acc+gyro", "0.400", "-", "0.600", "0.000"] in lines_of(text)
    assert [line[0] for line in lines_of(text)[6:]] == ["1: acc", "0: acc+gyro"]


def test_nobody_has_a_class_in_common(tmp_path: Path) -> None:
    text = similarity.section([folder(tmp_path, [noted({}, np.eye(3), math.nan)])], SHADES)
    assert "No two clients ever had a class in common." in text
    assert "Seed 0, round 1 of 1: no client gives any weight to another one." in text
    assert widths(text) == [{}]
    assert "nan" not in text


def test_colours_are_by_model_where_several_are_mixed(tmp_path: Path) -> None:
    run = folder(tmp_path, [flat(4)], clients=4, models=("tiny<", "large"), attackers=[1])
    text = similarity.section([run], SHADES)
    assert "coloured and ordered by model" in text
    assert re.findall("</span>(.*?)</span>", text) == ["fedapa", "large", "tiny&lt;"]
    (found,) = nodes(text)
    assert [name for _, name in found] == [
        "client 1: large, attacks",
        "client 3: large",
        "client 0: tiny&lt;",
        "client 2: tiny&lt;",
    ]
    assert text.count("stroke='#dc2626'") == 1
    assert "A red ring marks an attacker" in text
    calm = similarity.section([folder(tmp_path / "calm", [flat(4)], clients=4)], SHADES)
    assert "coloured and ordered by what they sense" in calm
    assert "red ring" not in calm


def test_the_curve_is_over_seeds_and_never_on_a_scale_of_powers(tmp_path: Path) -> None:
    means = {1: (0.3, -0.2, 0.9), 0: (0.1, 0.0)}  # seed 0 is not finished
    runs = [
        folder(tmp_path, [flat(mean=value) for value in by_round], seed=seed)
        for seed, by_round in means.items()
    ]
    text = similarity.section(runs, SHADES)
    assert re.findall(r"<title>fedapa: (\S+ at \d+)</title>", text) == ["0.2 at 1", "-0.1 at 2"]
    shown, folded = text.split("<details")
    assert "Seed 0, round 2 of 2" in shown
    assert "Seed 1, round 3 of 3" in folded
    assert "<summary>seed 1</summary>" in folded
    assert "<svg" not in folded
    assert len(lines_of(folded)) == 8


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    run = folder(tmp_path, [flat()] * 2)
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 9"))
    assert "round 2 of 9:" in similarity.section(collect([run.path]), SHADES)


def test_the_first_method_is_shown_and_others_unfold(tmp_path: Path) -> None:
    runs = [folder(tmp_path, [flat()], method=name) for name in ("fedapa", "fedpcl")]
    runs.append(folder(tmp_path, [[Noted(0, "loss", 1.0)]], method="local"))
    text = similarity.section(runs, SHADES)
    assert "<h3>fedapa</h3>" in text
    assert "<summary>fedpcl</summary>" in text
    assert "local" not in text


@pytest.mark.parametrize(("clients", "lines"), [(2, 1), (12, 66), (30, 435)])
def test_up_to_thirty_clients_are_drawn(tmp_path: Path, clients: int, lines: int) -> None:
    run = folder(tmp_path, [flat(clients, alike=1.0)], clients=clients)
    text = similarity.section([run], SHADES)
    (found,) = widths(text)
    assert len(found) == lines
    assert set(found.values()) == {min(6.0, max(1.0, round(200 / lines, 2)))}
    places = [tuple(map(float, re.findall(r"'([\d.]+)'", at))) for at, _ in nodes(text)[0]]
    gaps = [math.dist(a, b) for i, a in enumerate(places) for b in places[:i]]
    radius = float(re.findall(r"<circle [^>]* r='([\d.]+)' [^>]*><title>client", text)[0])
    assert min(gaps) > 2 * radius  # no node covers another
    assert ("all similarities and weights</summary>" in text) == (clients > 12)


def test_of_more_than_thirty_only_the_curve(tmp_path: Path) -> None:
    """Pairs of the rounds in which fewer had been heard are not drawn either."""
    run = folder(tmp_path, [flat(20), [Noted(-1, "alike", 0.4)]], clients=31)
    text = similarity.section([run], SHADES)
    assert text.count("<svg") == 1
    assert "Pairs are not shown of more than 30 clients." in text
    assert "<table" not in text


def test_empty_without_such_lines(tmp_path: Path) -> None:
    bare = folder(tmp_path / "bare", [[Noted(0, "loss", 1.0), Noted(-1, "alikeness", 1.0)]])
    lone = folder(tmp_path / "lone", [noted({}, np.ones((1, 1)), math.nan)], clients=1)
    path = folders.write(tmp_path / "none", "fedavg", 0, {"test.accuracy": [{0: 0.5}]})
    for runs in ([bare], [lone], collect([path])):
        assert similarity.section(runs, SHADES) == ""
        assert TITLE not in render(runs, "accuracy", "t")


def test_every_cell_has_its_own(tmp_path: Path) -> None:
    for level, value in (("low", 0.25), ("high", 0.75)):
        folder(tmp_path / level, [flat(alike=value)], cell={"skew": level})
    text = render(collect([tmp_path]), "accuracy", "t")
    before, *each = text.split("<details class='cell'>")
    assert TITLE not in before
    assert [widths(part)[0]["0 - 1"] for part in each] == [4.5, 1.5]


@pytest.mark.slow
def test_a_real_run(tmp_path: Path) -> None:
    owner = np.repeat(np.arange(4), 8).tolist()
    data = small.windows(split=[0, 0, 0, 0, 0, 1, 2, 2] * 4, owner=owner)
    fleet = Fleet.of(data, models=(small.TINY,))
    config = 'name = "x"\nseed = 0\n[data]\nname = "d"\n[method]\nname = "fedapa"\n'
    config += "[run]\nrounds = 3\n"
    plan = Plan(rounds=3, eval_every=3)
    with Run(fleet, FedAPA(), plan, folder=tmp_path, config=config) as run:
        list(run)
    (done,) = collect([tmp_path])
    text = render([done], "accuracy", "t")
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert outside(text) == []
    assert TITLE in text
    assert "nan" not in re.sub("<pre>.*?</pre>", "", text, flags=re.DOTALL)
    found = learning(done)
    assert found.weights.sum(axis=1).to_numpy() == pytest.approx(np.ones(4))
    alike = found.alike(3).to_numpy()
    assert np.array_equal(alike, alike.T, equal_nan=True)
    assert widths(text)[-1]["0 - 1"] == pytest.approx(6 * abs(alike[0, 1]), abs=0.01)
