"""The privacy part of the command line as a user meets it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from communis.cli_privacy import app
from communis.core import CommunisError

pytest.importorskip("dp_accounting")


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def values(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan(*arguments, "--json"))
    return found


def test_central_says_how_much_noise_a_promise_takes() -> None:
    asked = ("--epsilon", "2", "--rounds", "50", "--participation", "0.4")
    found = values(*asked, "--clients", "100", "--parameters", "780000", "--clip", "0.5")
    assert found["noise"] == pytest.approx(6.27, abs=0.01)
    assert found["sigma"] == found["noise"] / 2
    assert found["epsilon"]["pld"] < found["epsilon"]["rdp"] <= 2
    assert found["noise_length_of_mean"] == pytest.approx(138 / 2, abs=0.5)
    text = plan(*asked, "--clients", "100", "--parameters", "780000")
    assert "one client more or less" in text
    assert "noise / C 6.27" in text
    assert "epsilon 2 by rdp, 1.83 by pld, at delta 1e-05" in text
    assert "a sum of 780,000 numbers has length 5,53" in text
    assert "the mean of the 40 clients to be expected, the noise has length 138" in text


def test_central_says_what_noise_is_worth() -> None:
    found = values("--noise", "6.3", "--rounds", "50", "--participation", "0.4")
    assert found["noise"] == 6.3
    assert found["epsilon"]["rdp"] == pytest.approx(1.99, abs=0.005)
    assert found["epsilon"]["pld"] == pytest.approx(1.82, abs=0.005)
    text = plan("--noise", "6.3", "--rounds", "50", "--participation", "0.4")
    assert "Every number of a sum gets noise of standard deviation 6.3." in text


def test_local_counts_the_rounds_of_one_client() -> None:
    asked = ("--mode", "local", "--rounds", "50", "--participation", "0.4", "--clip", "2")
    found = values(*asked, "--epsilon", "8", "--parameters", "10000")
    assert found["participations"] == 20
    assert found["epsilon"] == pytest.approx(8)
    assert found["sigma"] == pytest.approx(4 * found["noise"])
    assert found["noise_length"] == pytest.approx(100 * found["sigma"])
    back = values(*asked, "--noise", str(found["noise"]))
    assert back["epsilon"] == pytest.approx(8)
    assert (
        back["epsilon_of_a_round"] == found["epsilon_of_a_round"] == pytest.approx(1.44, abs=0.01)
    )
    fewer = values(*asked, "--epsilon", "8", "--participations", "5")
    assert fewer["noise"] == pytest.approx(found["noise"] / 2)
    text = plan(*asked, "--epsilon", "8", "--parameters", "10000")
    assert "messages up to 2 C apart" in text
    assert "the message itself, which is clipped, at most 2." in text
    assert "Every number of a message gets noise" in plan(*asked, "--epsilon", "8")


def test_paper_shows_what_its_epsilon_comes_to() -> None:
    asked = ("--mode", "paper", "--epsilon", "2", "--participation", "0.4")
    found = values(*asked, "--rounds", "1000")
    assert found["epsilon_of_a_round"] == pytest.approx({"C": 1.61, "2C": 3.51}, abs=0.01)
    assert found["epsilon"] == pytest.approx({"C": 68.5, "2C": 206}, rel=2e-3)
    assert found["noise"] == pytest.approx(2.422, abs=1e-3)
    half = values(*asked, "--rounds", "1", "--kappa", "0.5")
    assert half["epsilon"] == pytest.approx({"C": 3.51, "2C": 7.9}, rel=3e-3)
    text = plan(*asked, "--rounds", "200", "--parameters", "256")
    assert "claimed 2 - one round 1.61 3.51 80 rounds of a client 21.9 58 " in text
    assert "the message as a whole has no guarantee" in text
    assert "The noise on 256 numbers has at least length 38.8" in text
    assert "claimed" not in plan("--mode", "paper", "--noise", "2.4", "--rounds", "1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --epsilon .* or --noise"),
        (["--epsilon", "1", "--noise", "1"], "one of them"),
        (["--epsilon", "0"], "--epsilon and --noise must be positive and finite, got 0.0"),
        (["--epsilon", "-2"], "must be positive and finite, got -2.0"),
        (["--noise", "nan"], "must be positive and finite, got nan"),
        (["--epsilon", "1", "--delta", "0"], r"delta must be in \(0, 1\), got 0.0"),
        (["--epsilon", "1", "--delta", "1"], r"delta must be in \(0, 1\), got 1.0"),
        (["--epsilon", "1", "--delta", "0.01", "--clients", "100"], "choose delta below 0.01"),
        (["--epsilon", "1", "--participation", "0"], r"--participation in \(0, 1\], got 10 and 0"),
        (["--epsilon", "1", "--participation", "1.5"], "got 10 and 1.5"),
        (["--epsilon", "1", "--rounds", "0"], "--rounds must be 1 to 1,000,000 .* got 0 and 1"),
        (["--epsilon", "1", "--clip", "0"], "clip must be positive"),
        (["--epsilon", "1", "--participations", "3"], "participations = 3 has no meaning"),
        (["--epsilon", "1", "--mode", "local", "--accountant", "pld"], "accountant = pld has no"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(CommunisError, match=words):
        plan("--rounds", "10", *arguments)


def test_help_teaches() -> None:
    text = plan("--help").replace("│", " ")
    assert "communis privacy plan --mode paper --epsilon 2 --rounds 1000" in text
    assert "e^epsilon times as likely" in text
