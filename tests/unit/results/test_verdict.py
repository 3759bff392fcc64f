"""What a run may promise, on run folders made by hand and on real ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, FedAvg, Fleet, Plan, Run
from communis.core.extras import EXTRAS
from communis.exchange.messages import Noted
from communis.exchange.privacy import gaussian
from communis.exchange.privacy.digits import upward
from communis.exchange.privacy.settings import PrivacyConfig
from communis.methods.local import Local
from communis.results.finished import read
from communis.results.verdict import Verdict, epsilon_by_round, privacy_verdict, worst
from tests.unit import folders, small

W = {"field": "w", "part": "head", "tensors": 2, "numbers": 1234, "covered": True, "why": ""}
CLEAR = W | {"covered": False, "why": "sent in clear"}
DELTA = 1e-5


def write(
    path: Path,
    mode: str = "local",
    log: Sequence[Mapping[int, Mapping[str, float]]] = ({},),
    *,
    tensors: Sequence[Mapping[str, Any]] = (W,),
    leaks: Sequence[str] = (),
    rounds: int = 0,
    method: str = "fedavg",
    seed: int = 0,
    score: float = 0.5,
    cell: Mapping[str, str] | None = None,
    fleet: str = "",
    about: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """log: by round, what was noted of whom. rounds: that were planned, if not these. about: what
    else the account says."""
    given = {"mode": mode, **settings}
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    text = "\n".join([*["[fleet]", fleet] * bool(fleet), "[privacy]", *lines])
    cohort = tuple(sorted({client for noted in log for client in noted if client >= 0})) or (0,)
    noted = [
        [Noted(i, f"privacy/{k}", v) for i, found in one.items() for k, v in found.items()]
        for one in log
    ]
    history = {"test.accuracy": [{0: score}] * len(log)}
    folders.write(path, method, seed, history, settings=text, cell=cell, rows={"log": noted})
    records = folders.records_in(path)
    for record, one in zip(records, log, strict=True):
        record["cohort"] = [i for i in one if i >= 0] if mode != "central" else list(cohort)
    folders.write_records(path, records)
    config = (path / "config.toml").read_text()
    planned = rounds or len(log)
    (path / "config.toml").write_text(config.replace(f"rounds = {len(log)}", f"rounds = {planned}"))
    account = {
        "mode": mode,
        "settings": asdict(PrivacyConfig()) | given,
        "clients": max(len(cohort), 2),
        "rounds": planned,
        "participation": 1.0,
        "mu": next((x["mu"] for one in log for x in one.values() if "mu" in x), None),
        "z": settings.get("noise"),
        "tensors": list(tensors),
        "leaks": list(leaks),
    }
    (path / "privacy.json").write_text(json.dumps(account | dict(about or {})))
    return path


def judged(path: Path) -> Verdict:
    return privacy_verdict(read(path))


def paid(mu: float, *clients: int) -> dict[int, dict[str, float]]:
    return {client: {"mu": mu} for client in clients}


def test_local_rounds_add_up_by_client(tmp_path: Path) -> None:
    log = [paid(0.3, 0, 1, 2), paid(0.3, 0, 1), paid(0.4, 0)]
    found = judged(write(tmp_path, "local", log, epsilon=9.0, about={"clients": 4}))
    assert found.private
    assert found.epsilon == pytest.approx(gaussian.epsilon_of(math.sqrt(0.34), DELTA))
    assert [one.client for one in found.per_client] == [0, 1, 2]
    assert [one.mu**2 for one in found.per_client] == pytest.approx([0.34, 0.18, 0.09])
    assert dict(found.per_client[1].mu_by_round) == pytest.approx({1: 0.3, 2: math.sqrt(0.18)})
    assert found.rounds is not None
    assert (found.rounds.most, found.rounds.median) == (3, 1.5)  # one client never took part
    assert found.reasons == ()
    middle = upward(gaussian.epsilon_of(math.sqrt(0.18), DELTA))
    assert f"{middle} in the median of those who took part" in found.facts["epsilon"]
    assert found.facts["adjacency"] == "one client's data replaced by any other"
    assert found.facts["sampling"].startswith("none assumed")
    assert found.line.startswith(f"epsilon {upward(found.epsilon)} at delta 1e-05 for every client")


def test_what_every_promise_depends_on(tmp_path: Path) -> None:
    text = " ".join(judged(write(tmp_path, "local", [paid(0.3, 0)], epsilon=9.0)).conditions)
    for words in ("run's seed", "on the device", "floating point", "Losses, scores",
                  "number of clients is taken for public", "has training windows",
                  "device must count its own budget", "choosing settings"):  # fmt: skip
        assert words in text


def test_epsilon_over_rounds(tmp_path: Path) -> None:
    log = [paid(0.1, i % 3) for i in range(40)]
    run = read(write(tmp_path, "local", log, epsilon=9.0))
    found = epsilon_by_round(run)
    assert 10 <= len(found) <= 24
    assert list(found.values()) == sorted(found.values())
    assert found[40] == privacy_verdict(run).epsilon
    assert found[40] == pytest.approx(gaussian.epsilon_of(0.1 * math.sqrt(14), DELTA))


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"leaks": ["raw windows are handed over to the server"]}, "raw windows"),
        ({"tensors": [W, W | {"field": "n", "covered": False, "why": "whole numbers"}]},
         "n (2 tensors, 1,234 numbers) left uncovered: whole numbers"),
        ({"log": [paid(0.3, 0), {0: {"clipped": 1.0}}]}, "what round 2 cost"),
        ({"log": [{0: {}}] * 9}, "what round 1, 2, 3, 4, 5 ... cost"),
    ],
)  # fmt: skip
def test_why_a_run_with_noise_is_not_private(
    tmp_path: Path, about: dict[str, Any], reason: str
) -> None:
    found = judged(write(tmp_path, **{"log": [paid(0.3, 0)], **about}, epsilon=9.0))
    assert not found.private
    assert math.isnan(found.epsilon)
    assert len(found.reasons) == 1
    assert reason in found.reasons[0]
    assert found.line == f"not DP: {found.reasons[0]}"
    assert found.conditions == ()
    assert epsilon_by_round(read(tmp_path)) == {}


def test_all_reasons_are_given(tmp_path: Path) -> None:
    found = judged(write(tmp_path, "local", [paid(0.3, 0)], epsilon=9.0,
                         tensors=[W, CLEAR], leaks=["this", "that"]))  # fmt: skip
    assert found.reasons == ("this", "that", "w (2 tensors, 1,234 numbers) left uncovered: "
                             "sent in clear")  # fmt: skip


def test_without_privacy(tmp_path: Path) -> None:
    found = judged(write(tmp_path, "none", [{}], tensors=[CLEAR]))
    assert (found.private, found.line) == (False, "not DP: everything left in clear")
    assert math.isnan(found.delta)
    assert "adjacency" not in found.facts


def test_nothing_leaves(tmp_path: Path) -> None:
    folder = write(tmp_path, "none", tensors=[])
    found = judged(folder)
    assert not found.private  # bytes were sent
    assert "nothing of it could be read" in found.line
    (record,) = folders.records_in(folder)
    folders.write_records(folder, [record | {"bytes_up": 0}])
    found = judged(folder)
    assert (found.private, found.epsilon, found.line) == (True, 0, "nothing leaves the clients")
    assert found.brief == "nothing leaves"


def test_folders_of_older_versions(tmp_path: Path) -> None:
    folders.write(tmp_path, "fedavg", 0, {"test.accuracy": [{0: 0.5}]})
    found = judged(tmp_path)
    assert not found.private
    assert "older version; treat as not DP" in found.line
    assert (found.brief, found.facts) == ("not DP", {"mode": "unknown"})
    assert epsilon_by_round(read(tmp_path)) == {}


def test_an_account_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "privacy.json").write_text("{")
    with pytest.raises(CommunisError, match=r"privacy.json: cannot be read .*run it again"):
        judged(tmp_path)


def test_what_was_spent_so_far(tmp_path: Path) -> None:
    log = [paid(0.3, 0, 1)] * 2
    found = judged(write(tmp_path, "local", log, epsilon=9.0, rounds=5))
    assert found.line.startswith("so far, in 2 of 5 rounds: epsilon")
    assert found.epsilon == pytest.approx(gaussian.epsilon_of(0.3 * math.sqrt(2), DELTA))


def test_clients_whose_budget_is_spent(tmp_path: Path) -> None:
    """Enough for two rounds each: client 1 has one left, and nobody misses a round after the
    last."""
    epsilon = gaussian.epsilon_of(0.3 * math.sqrt(2), DELTA)
    log = [paid(0.3, 0, 1), paid(0.3, 0)]
    found = judged(write(tmp_path / "a", "local", log, epsilon=epsilon, rounds=5))
    assert found.stopped == 1
    assert found.facts["budget"].startswith("1 clients stopped")
    assert judged(write(tmp_path / "b", "local", log, epsilon=epsilon)).stopped == 0
    log = [paid(0.3, 0, 1), paid(0.3, 0, 1)]
    ended = {"about": {"ended": 2}}
    found = judged(write(tmp_path / "c", "local", log, epsilon=epsilon, rounds=5, **ended))
    assert found.stopped == 2
    assert found.line.startswith("all that may be spent, after 2 of 5 rounds: ")
    assert judged(write(tmp_path / "d", "local", log, noise=1.0, rounds=5)).stopped == 0


def test_late_rounds_cost_more(tmp_path: Path) -> None:
    """By 1/2 + (round - 1/2) / rounds: of 4 rounds .625, .875, 1.125, 1.375."""
    unit = 0.3
    mus = [unit * math.sqrt(w) for w in (0.625, 0.875)]
    log = [paid(mu, 0) for mu in mus]
    for third, stopped in ((1.13, 0), (1.12, 1)):  # what is left after two rounds
        epsilon = gaussian.epsilon_of(unit * math.sqrt(1.5 + third), DELTA)
        folder = write(tmp_path / str(third), "local", log, epsilon=epsilon, rounds=4, spend="late")
        assert judged(folder).stopped == stopped


def test_the_mechanism_of_the_paper(tmp_path: Path) -> None:
    """epsilon = 2 per round, 80 rounds: 21.9 with the paper's sensitivity, 58.0 with twice that."""
    mu = 2 / gaussian.classical_sigma(1.0, 2.0, DELTA)
    tensors = [W | {"field": "operator"}, CLEAR]
    log = [paid(mu, 0)] * 80
    found = judged(write(tmp_path, "paper", log, epsilon=2.0, tensors=tensors))
    assert not found.private
    assert math.isnan(found.epsilon)
    assert "only operator noised; per round; sensitivity taken as C; NO client-level" in found.line
    assert "operator alone: epsilon 22 at sensitivity C" in found.line
    assert found.noised is not None
    assert found.noised.at_c == pytest.approx(21.90195, rel=1e-6)
    assert found.noised.at_2c == pytest.approx(57.97342, rel=1e-6)
    assert found.noised.claimed == 2
    assert "(claimed: 2 per round)" in found.line
    assert len(found.reasons) == 2


def test_the_paper_by_noise_and_with_less_outside(tmp_path: Path) -> None:
    noise = gaussian.classical_sigma(1.0, 4.0, DELTA)
    folder = write(tmp_path, "paper", [paid(2 / noise / 0.5, 0)], noise=noise, kappa=0.5)
    found = judged(folder)
    assert found.noised is not None
    assert found.noised.claimed == pytest.approx(4)
    assert any(reason.startswith("kappa = 0.5") for reason in found.reasons)


def central(path: Path, done: int, z: float, q: float = 1.0, **about: Any) -> Path:
    log = [{-1: {"z": z, "q": q, "clip": 1.0}}] * done
    return write(path, "central", log, noise=z, **about)


@pytest.mark.parametrize(("kind", "slack"), [("rdp", 1.1), ("pld", 1.01)])
def test_central_without_sampling_is_a_plain_gaussian(
    tmp_path: Path, kind: str, slack: float
) -> None:
    found = judged(central(tmp_path, 4, 4.0, accountant=kind))
    exact = gaussian.epsilon_of(0.5, DELTA)
    assert found.private
    assert exact <= found.epsilon <= slack * exact
    assert found.facts["adjacency"] == "one client more or less"
    assert found.facts["sampling"] == "Poisson, q = 1"
    assert "if the server is trusted" in found.line
    assert "The server is trusted" in found.conditions[0]
    assert any("at the server" in text for text in found.conditions)
    assert any("number of clients is taken for public" in text for text in found.conditions)
    assert not any("device must count" in text for text in found.conditions)  # the server does


def test_central_sampling_helps_and_rounds_must_be_known(tmp_path: Path) -> None:
    often, rarely = (judged(central(tmp_path / f"{q}", 4, 4.0, q)).epsilon for q in (1.0, 0.1))
    assert rarely < 0.5 * often
    folder = write(tmp_path / "lost", "central", [{-1: {"z": 4.0, "q": 1.0}}, {-1: {"q": 1.0}}],
                   noise=4.0)  # fmt: skip
    assert judged(folder).reasons == ("the log does not say what round 2 cost",)


def test_hardly_any_noise(tmp_path: Path) -> None:
    """What is called a promise must be one."""
    assert judged(central(tmp_path / "a", 2, 1e-4)).line == (
        "not DP: the noise is too little for any number"
    )
    large = judged(write(tmp_path / "b", "local", [paid(3.0, 0)], noise=0.3))
    fair = judged(write(tmp_path / "c", "local", [paid(0.3, 0)], noise=3.0))
    assert large.epsilon > 10 > fair.epsilon
    assert "a formality" in large.line
    assert "a formality" not in fair.line


def test_central_ends_when_epsilon_is_spent(tmp_path: Path) -> None:
    spent = judged(central(tmp_path / "a", 4, 4.0)).epsilon
    ended = {"about": {"ended": 4}}
    over = central(tmp_path / "b", 4, 4.0, epsilon=spent * 1.01, rounds=9, **ended)
    assert judged(over).line.startswith("all that may be spent, after 4 of 9 rounds: ")
    going = central(tmp_path / "c", 4, 4.0, epsilon=spent * 2, rounds=9)
    assert judged(going).line.startswith("so far, in 4 of 9 rounds: ")


def test_central_without_the_accountant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        EXTRAS, "privacy", replace(EXTRAS["privacy"], module="there_is_no_such_module")
    )
    found = judged(central(tmp_path, 4, 4.0))
    assert not found.private
    assert "needs the extra privacy: pip install 'dp-accounting>=0.6'" in found.line
    assert epsilon_by_round(read(tmp_path)) == {}


def test_numbers_are_rounded_up(tmp_path: Path) -> None:
    """Epsilon is 1.1317... of mu = 0.3 and 0.5299... of half of that; delta is given in full."""
    assert 1.131 < gaussian.epsilon_of(0.3, DELTA) < 1.132
    found = judged(write(tmp_path / "a", "local", [paid(0.3, 0)], noise=1.0))
    assert found.brief == "epsilon 1.14 at delta 1e-05"
    odd = {"noise": 1.0, "delta": 1.00000001e-5}
    assert judged(write(tmp_path / "b", "local", [paid(0.3, 0)], **odd)).brief == (
        "epsilon 1.14 at delta 1.00000001e-05"
    )
    assert 0.529 < gaussian.epsilon_of(0.15, DELTA) < 0.530
    paper = judged(write(tmp_path / "c", "paper", [paid(0.3, 0)], noise=1.0))
    assert "epsilon 0.53 at sensitivity C, 1.14 at 2 C" in paper.line


def test_the_weakest_of_several() -> None:
    small_, large = (Verdict("local", True, "", epsilon=x, delta=DELTA) for x in (1.0, 2.0))
    none = Verdict("local", False, "", reasons=("a",))
    worse = Verdict("local", False, "", reasons=("a", "b"))
    assert worst([small_, large]) is large
    assert worst([none, large]) is none
    assert worst([none, worse, large]) is worse


def real(path: Path, method: Any, privacy: PrivacyConfig, rounds: int = 3) -> Verdict:
    clients = 4
    owner = np.repeat(np.arange(clients), 8).tolist()
    data = small.windows(split=[0, 0, 0, 0, 0, 1, 2, 2] * clients, owner=owner)
    fleet = Fleet.of(data, models=(small.TINY,))
    config = (
        f'name = "x"\nseed = 0\n[data]\nname = "d"\n[method]\nname = "m"\n[run]\nrounds = {rounds}'
    )
    plan = Plan(rounds=rounds, participation=0.5)
    with Run(fleet, method, plan, folder=path, config=config, privacy=privacy) as run:
        list(run)
    return judged(path)


@pytest.mark.slow
def test_real_runs(tmp_path: Path) -> None:
    """A budget for two of three rounds: nobody gets past it."""
    asked = PrivacyConfig(mode="local", epsilon=4.0, participations=2)
    found = real(tmp_path / "local", FedAvg(lr=0.1), asked)
    assert found.private
    took = max(len(one.mu_by_round) for one in found.per_client)
    expected = gaussian.epsilon_of(gaussian.mu_of(4.0, DELTA) * math.sqrt(took / 2), DELTA)
    assert found.epsilon == pytest.approx(expected)
    assert {part.field for part in found.table} == {"w"}
    assert real(tmp_path / "alone", Local(lr=0.1), PrivacyConfig()).brief == "nothing leaves"
    asked = PrivacyConfig(mode="central", epsilon=4.0)
    found = real(tmp_path / "central", FedAvg(lr=0.1, uniform=True), asked)
    assert found.private
    assert found.epsilon == pytest.approx(4.0, rel=1e-3)
    assert found.epsilon <= 4.0
