"""Traffic until targets are reached, on run folders made by hand: every round of one has 300 bytes
up, 100 down and 10 of framing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from communis.cli.main import main
from communis.cli.terminal import as_json, out, results
from communis.core.settings import SchemaError
from communis.exchange.messages import Link
from communis.results.compare import collect
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.report.page import render
from communis.results.traffic import Sent, traffic
from communis.results.wording.traffic import about_traffic, volume
from communis.run import config as configs
from communis.run.jobs import Home, Job, prepare
from tests.unit import folders
from tests.unit.results.report.test_page import lines_of


def write(
    home: Path,
    method: str,
    seed: int,
    scores: Sequence[float | None],
    metric: str = "accuracy",
    **about: object,
) -> Path:
    """None: a round that was not evaluated."""
    history = {f"test.{metric}": [{} if score is None else {0: score} for score in scores]}
    where = home / str(about.get("cell", "")) / f"{method}{seed}"
    return folders.write(where, method, seed, history, **about)  # type: ignore[arg-type]


def found(
    home: Path | Sequence[Finished], *targets: float, metric: str = "accuracy"
) -> dict[float, dict[str, Sent]]:
    """By target and method."""
    runs = collect([home]) if isinstance(home, Path) else home
    every = traffic(runs, metric, "last", targets)
    return {one.target: {row.method: row for row in one.rows} for one in every}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path, "comfed", 0, [0.3, 0.4, 0.5])
    write(tmp_path, "comfed", 1, [0.4, 0.45, 0.5])
    write(tmp_path, "fedavg", 0, [0.1, 0.2, 0.42])
    write(tmp_path, "fedavg", 1, [0.1, 0.2, 0.3])
    return tmp_path


def test_by_hand(home: Path) -> None:
    by_target = found(home, 0.5, 0.4)
    assert [*by_target] == [0.4, 0.5]  # the easiest first
    first, second = by_target[0.4]["comfed"], by_target[0.5]["comfed"]
    # Seed 0 is there in round 2, seed 1 in round 1: 600 and 300 bytes.
    assert (first.rounds.mean, first.uplink.mean, first.total.mean) == (1.5, 450, 615)
    assert first.uplink.spread == pytest.approx(300 / math.sqrt(2))
    assert (first.reached, first.runs) == (2, 2)
    assert (second.uplink.mean, second.uplink.spread, second.total.mean) == (900, 0, 1230)
    assert list(by_target[0.4]) == ["comfed", "fedavg"]  # the order of the comparison


def test_targets_that_not_every_seed_reached(home: Path) -> None:
    """No mean over the seeds that did: it would flatter."""
    by_target = found(home, 0.4, 0.9)
    fedavg = by_target[0.4]["fedavg"]
    assert (fedavg.reached, fedavg.runs) == (1, 2)
    for estimate in (fedavg.rounds, fedavg.uplink, fedavg.per_client, fedavg.total):
        assert math.isnan(estimate.mean)
    assert by_target[0.9]["comfed"].reached == 0
    with out.capture() as said:
        out.print(results(collect([home]), "accuracy", quiet=True, targets=(0.4, 0.9)))
    lines = [line.split() for line in said.get().splitlines()]
    assert ["fedavg", "NA", "NA", "NA", "NA", "1", "of", "2"] in lines
    assert ["comfed", "NA", "NA", "NA", "NA", "0", "of", "2"] in lines


def test_per_client_of_those_that_sent_by_then(tmp_path: Path) -> None:
    """The server is no client, a message without payload is nothing, and client 2 begins late."""
    first = [Link(1, -1, 0, 40), Link(-1, 1, 100, 5)]
    rows = {"links": [first, [Link(2, -1, 50, 5), Link(3, 0, 20, 5)]]}
    folder = write(tmp_path, "comfed", 0, [0.3, 0.6], rows=rows)
    by_target = found(tmp_path, 0.3, 0.6)
    assert collect([folder])[0].senders == {0: 1, 2: 2, 3: 2}
    assert by_target[0.3]["comfed"].per_client.mean == 300  # client 0 alone
    assert by_target[0.6]["comfed"].per_client.mean == 200  # 600 bytes of three


def test_who_sends_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, "local", 0, [0.5])
    (record,) = folders.records_in(folder)
    record |= {"bytes_up": 0, "bytes_down": 0, "bytes_framing": 0}
    record["tables"] = {"scores": record["tables"]["scores"]}  # and no links
    folders.write_records(folder, [record])
    local = found(tmp_path, 0.5)[0.5]["local"]
    assert (local.uplink.mean, local.per_client.mean, local.total.mean) == (0, 0, 0)
    assert volume(local.uplink) == "0 B"


def test_bytes_are_those_up_to_the_evaluated_round(tmp_path: Path) -> None:
    write(tmp_path, "comfed", 0, [None, None, 0.45, None, None, 0.6])
    by_target = found(tmp_path, 0.4, 0.5)
    assert by_target[0.4]["comfed"].uplink.mean == 3 * 300
    assert by_target[0.5]["comfed"].uplink.mean == 6 * 300


def test_the_same_run_twice_counts_once(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "again", "comfed", 0, [0.3, 0.4, 0.5])
    comfed = found(home, 0.5)[0.5]["comfed"]
    assert (comfed.reached, comfed.runs, comfed.uplink.mean) == (2, 2, 900)


def test_where_less_is_better(tmp_path: Path) -> None:
    write(tmp_path, "comfed", 0, [2.0, 1.5, 1.0], metric="mae")
    by_target = found(tmp_path, 1.0, 1.6, 0.5, metric="mae")
    assert {target: rows["comfed"].reached for target, rows in by_target.items()} == {
        1.6: 1,
        1.0: 1,
        0.5: 0,
    }
    assert [*by_target] == [1.6, 1.0, 0.5]
    assert by_target[1.6]["comfed"].rounds.mean == 2


def test_a_score_that_is_not_finite_reaches_nothing(tmp_path: Path) -> None:
    write(tmp_path, "wild", 0, [math.nan, math.nan])
    assert found(tmp_path, 0.1)[0.1]["wild"].reached == 0


def test_only_where_targets_are_named(home: Path) -> None:
    runs = collect([home])
    assert traffic(runs, "accuracy") == []
    assert traffic(runs, "accuracy", targets=(0.0,)) == []
    assert as_json(runs, "accuracy")["traffic"] == []
    assert "Traffic" not in render(runs, "accuracy", "t")
    with out.capture() as said:
        out.print(results(runs, "accuracy"))
    assert "Traffic" not in said.get()


@pytest.mark.parametrize(("written", "targets"), [("0.4", [0.4]), ("[0.5, 0.4]", [0.4, 0.5]),
                                                  ("0", []), ("[]", [])])  # fmt: skip
def test_targets_of_the_files(home: Path, written: str, targets: list[float]) -> None:
    """A number, as older folders have it, or a list."""
    for path in home.rglob("config.toml"):
        path.write_text(f"target = {written}\n{path.read_text('utf-8')}", "utf-8")
    assert [*found(home)] == targets
    assert [*found(home, 0.3)] == [0.3]
    path = next(home.rglob("config.toml"))
    path.write_text(path.read_text("utf-8").replace(f"= {written}", "= 0.7", 1), "utf-8")
    assert [*found(home)] == ([] if targets else [0.7])  # they have to agree, if they name any


def test_cells_are_averaged_seed_by_seed(tmp_path: Path) -> None:
    for level, scores in {"near": [0.5, 0.5], "far": [0.1, 0.5]}.items():
        for seed in range(2):
            write(tmp_path, "comfed", seed, scores, cell={"gap": level})
    comfed = found(tmp_path, 0.5)[0.5]["comfed"]
    assert (comfed.uplink.mean, comfed.uplink.spread, comfed.runs) == (450, 0, 4)
    runs = collect([tmp_path])
    cells = [
        (one["cell"], one["target"])
        for one in as_json(runs, "accuracy", targets=(0.5, 0.6))["traffic"]
    ]
    assert cells == [
        (cell, target) for cell in ({"gap": "far"}, {"gap": "near"}, None) for target in (0.5, 0.6)
    ]  # fmt: skip
    text = render(runs, "accuracy", "t", targets=(0.5,))
    first, *each = text.split("<details class='cell'>")
    assert [part.count("until a score is reached</h2>") for part in (first, *each)] == [1, 1, 1]
    assert text.count("Traffic is counted up to") == 1
    assert ["comfed", "2.00 ± 0.00", "600 ± 0 B", "600 ± 0 B", "820 ± 0 B", "2 of 2"] in lines_of(
        each[0]
    )


def test_the_page_and_its_words(home: Path) -> None:
    runs = collect([home])
    text = render(runs, "accuracy", "t", targets=(0.4, 0.5))
    lines = lines_of(text[text.index("Traffic until") :])
    heads = ["rounds", "up, fleet", "up, per client", "up and down, fleet", "runs that did"]
    assert ["to accuracy 0.4", *heads] in lines
    assert ["to accuracy 0.5", *heads] in lines
    shown = ["comfed", "1.50 ± 0.71", "450 ± 212 B", "450 ± 212 B", "615 ± 290 B", "2 of 2"]
    assert shown in lines
    assert ["fedavg", "NA", "NA", "NA", "NA", "0 of 2"] in lines


def test_what_is_said_depends_on_the_runs(tmp_path: Path) -> None:
    plain = collect([write(tmp_path / "plain", "comfed", 0, [0.5])])
    text = about_traffic(plain, "macro_f1")
    assert "mean test macro f1 reached the target" in text
    assert not any(word in text for word in ("attackers", "graph", "(every"))
    folder = write(tmp_path / "odd", "comfed", 0, [0.5], fleet={"attackers": [1]})
    path = folder / "config.toml"
    more = path.read_text("utf-8").replace(
        "[run]", '[topology]\nkind = "ring"\n[run]\neval_every = 5'
    )
    path.write_text(more, "utf-8")
    text = about_traffic(plain + collect([folder]), "accuracy")
    for words in ("(every 5 rounds)", "all clients, attackers included, sent", "In a graph, up is"):
        assert words in text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([999.4], "999 B"),
        ([999.6], "1 KB"),
        ([768_000.0], "768 KB"),
        ([1_730_000.0], "1.73 MB"),
        ([4.39e9, 4.41e9], "4.40 ± 0.01 GB"),
        ([5e15], "5,000 TB"),
        ([410_000.0, 430_000.0], "420 ± 14 KB"),
        ([1.0, math.nan], "-"),
        ([], "-"),
    ],
)
def test_units(values: list[float], text: str) -> None:
    assert volume(Estimate.of(values)) == text


def test_the_terminal_stays_within_its_width(home: Path) -> None:
    for seed in range(2):
        scores = [0.1 * seed, 0.3, 0.6]
        write(home, "comfed", seed + 2, scores, variant="a variant with a long name", target=0.5)
    with out.capture() as said:
        out.print(results(collect([home]), "accuracy", targets=(0.1, 0.3, 0.5)))
    text = said.get()
    assert max(map(len, text.splitlines())) <= 110
    assert "…" not in text
    assert "nan" not in text
    assert [text.count(f"to accuracy {target}") for target in (0.1, 0.3, 0.5)] == [1, 1, 1]
    assert "Traffic is counted up to the first evaluated round" in " ".join(text.split())


def test_json_is_complete(home: Path) -> None:
    one, other = as_json(collect([home]), "accuracy", targets=(0.4, 0.5))["traffic"]
    assert (one["cell"], one["target"], other["target"]) == ({}, 0.4, 0.5)
    comfed, fedavg = one["rows"]
    assert (comfed["method"], comfed["uplink"]["mean"], comfed["reached"]) == ("comfed", 450, 2)
    assert (fedavg["method"], fedavg["reached"], fedavg["runs"]) == ("fedavg", 1, 2)


def config(folder: Path, *settings: str) -> configs.Config:
    path = folder / "small.toml"
    path.write_text('metric = "accuracy"\n[data]\nname = "synthetic"\nwindows = 20\n', "utf-8")
    return configs.load(str(path), settings)


@pytest.mark.parametrize(
    ("written", "targets"),
    [("0.85", (0.85,)), ("[0.4, 0.5, 0.58]", (0.4, 0.5, 0.58)), ("50", (50.0,)), ("[]", ())],
)
def test_targets_of_a_configuration(
    tmp_path: Path, written: str, targets: tuple[float, ...]
) -> None:
    made = config(tmp_path, f"target={written}")
    assert made.target == targets
    again = tmp_path / "again.toml"
    again.write_text(made.to_toml(), "utf-8")
    assert configs.load(str(again)).to_toml() == made.to_toml()
    assert configs.load(str(again)).target == targets
    assert config(tmp_path).target == ()
    assert "\ntarget = " not in config(tmp_path).to_toml()


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("-0.1", "target: must be at least 0, got -0.1"),
        ("[0.5, -1]", "target: must be at least 0, got -1.0"),
        ("high", r"target\[0\]: expected a finite number, got 'high'"),
        ("[0.5, inf]", r"target\[1\]: expected a finite number, got inf"),
        ("true", r"target\[0\]: expected a finite number, got True"),
    ],
)
def test_wrong_targets_are_refused(tmp_path: Path, written: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        config(tmp_path, f"target={written}")


def test_other_targets_are_no_other_settings(tmp_path: Path) -> None:
    """A folder as older versions wrote it is continued under any target."""
    made = config(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(f"target = 0.85\n{made.to_toml()}", "utf-8")
    for target in ("0.5", "[0.4, 0.5]"):
        jobs = [Job(config(tmp_path, f"target={target}"), folder)]
        prepare(jobs, fresh=False)
        Home(folder).write_down(jobs)
    assert "target = [\n    0.4,\n    0.5,\n]" in (folder / "config.toml").read_text("utf-8")


def test_the_command_line_takes_several(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = home / "report.html"
    command = ["communis", "report", str(home), "--output", str(page), "--metric", "accuracy"]
    monkeypatch.setattr("sys.argv", [*command, "--target", "0.5", "--target", "0.4", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    said = json.loads(capsys.readouterr().out)
    assert [one["target"] for one in said["traffic"]] == [0.4, 0.5]
    assert said["traffic"][0]["rows"][1]["uplink"]["mean"] is None  # strict JSON knows no NaN
    assert "to accuracy 0.5" in page.read_text("utf-8")
