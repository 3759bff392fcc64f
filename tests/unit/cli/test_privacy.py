"""The privacy part of the command line as a user meets it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from typer.testing import CliRunner

from communis.cli.privacy import app
from communis.core.errors import CommunisError
from communis.exchange.privacy import gaussian

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
    assert found["noise"] == pytest.approx(6.270, rel=5e-4)  # it is found within 1e-4
    assert found["sigma"] == found["noise"] / 2
    assert found["epsilon"]["pld"] < found["epsilon"]["rdp"] <= 2
    assert found["noise_length_of_mean"] == pytest.approx(138.4 / 2, rel=1e-3)
    text = plan(*asked, "--clients", "100", "--parameters", "780000")
    assert "one client more or less" in text
    assert "noise / C 6.27" in text
    assert 1.83 < found["epsilon"]["pld"] < 1.835  # and is rounded up
    assert "epsilon 2 by rdp, 1.84 by pld, at delta 1e-05" in text
    assert "a sum of 780,000 numbers has length 5,53" in text
    assert "the mean of the 40 expected clients, the noise has length 138" in text


def test_central_says_what_noise_is_worth() -> None:
    found = values("--noise", "6.3", "--rounds", "50", "--participation", "0.4")
    assert found["noise"] == 6.3
    assert found["epsilon"]["rdp"] == pytest.approx(1.988, rel=1e-3)
    assert found["epsilon"]["pld"] == pytest.approx(1.823, rel=1e-3)
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
    once = gaussian.epsilon_of(gaussian.mu_of(8.0, 1e-5) / math.sqrt(20), 1e-5)
    for one in (found, back):
        assert one["epsilon_of_a_round"] == pytest.approx(once, rel=1e-8)  # 1e-9 more noise
    fewer = values(*asked, "--epsilon", "8", "--participations", "5")
    assert fewer["noise"] == pytest.approx(found["noise"] / 2)
    text = plan(*asked, "--epsilon", "8", "--parameters", "10000")
    assert "messages up to 2 C apart" in text
    assert "the message itself, which is clipped, at most 2." in text
    assert "Every number of a message gets noise" in plan(*asked, "--epsilon", "8")


def test_paper_shows_what_its_epsilon_comes_to() -> None:
    asked = ("--mode", "paper", "--epsilon", "2", "--participation", "0.4")
    found = values(*asked, "--rounds", "1000")
    assert found["epsilon_of_a_round"] == pytest.approx({"C": 1.610316, "2C": 3.511178}, rel=1e-6)
    assert found["epsilon"] == pytest.approx({"C": 68.5, "2C": 206}, rel=2e-3)
    assert found["noise"] == pytest.approx(2.422403, rel=1e-6)
    half = values(*asked, "--rounds", "1", "--kappa", "0.5")
    assert half["epsilon"] == pytest.approx({"C": 3.51, "2C": 7.9}, rel=3e-3)
    text = plan(*asked, "--rounds", "200", "--parameters", "256")
    assert "claimed 2 - one round 1.62 3.52 80 rounds of a client 22 58 " in text
    assert "the message as a whole has no guarantee" in text
    assert "The noise on 256 numbers has at least length 38.8" in text
    assert "claimed" not in plan("--mode", "paper", "--noise", "2.4", "--rounds", "1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either --epsilon, .* or --noise"),
        (["--epsilon", "1", "--noise", "1"], "either --epsilon"),
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
    assert "is at most e^epsilon times that without them, plus delta" in text


@pytest.mark.slow
def test_printed_noise_keeps_the_promise() -> None:
    """Who types in what is printed has no less privacy than was asked for, and no other noise is
    printed than was given."""
    for epsilon in ("0.7", "2", "8"):
        for mode in ("local", "central"):
            asked = ("--mode", mode, "--rounds", "50", "--participation", "0.4")
            name = "noise / 2 C" if mode == "local" else "noise / C"
            text = plan(*asked, "--epsilon", epsilon)
            shown = text.partition(name)[2].split()[0]
            found = values(*asked, "--noise", shown)["epsilon"]
            assert (found["rdp"] if mode == "central" else found) <= float(epsilon)
            assert f"{name} {shown} " in plan(*asked, "--noise", shown)


def test_a_run_draws_a_whole_number_of_clients() -> None:
    """Of 7 clients 0.4 are 3 in every round: 22 of 50 rounds of each, not 20."""
    asked = ("--mode", "local", "--rounds", "50", "--participation", "0.4", "--epsilon", "8")
    assert values(*asked)["participations"] == 20
    assert values(*asked, "--clients", "100")["participations"] == 20
    assert values(*asked, "--clients", "7")["participations"] == 22
