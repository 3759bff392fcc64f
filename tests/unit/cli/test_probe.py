"""The attacks on the command line as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from communis.cli.privacy import app
from communis.core.errors import CommunisError
from communis.results.probe.audit import Audit
from communis.results.probe.bound import Bound
from tests.unit.results.probe.test_membership import finished

PRIVATE = """
[data]
name = "synthetic"
clients = 3
windows = 40
steps = 8
modalities = 1
[fleet]
models = ["cnn_small"]
embedding = 8
[privacy]
mode = "local"
epsilon = 8.0
[run]
rounds = 1
"""


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_invert_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    quick = ("invert", "--samples", "1", "--restarts", "1", "--iterations", "2")
    text = call(*quick, "--regime", "raw", "--regime", "theta_M raw", "--html", str(page))
    assert "everything in clear" in text
    assert "given" in text
    assert "local" not in text
    written = page.read_text("utf-8")
    assert written.count("<svg") == 3  # the window and two reconstructions
    assert "the result does not apply to it" in written
    (event,) = events(call(*quick, "--of", "series", "--regime", "local", "--json"))
    assert event["event"] == "inversion"
    assert event["regime"] == "local"
    assert -1 <= event["ssim"] <= 1
    with pytest.raises(CommunisError, match="--regime 'none': there are raw, paper, local"):
        call(*quick, "--regime", "none")
    with pytest.raises(CommunisError, match=r"--html .* expected a file"):
        call(*quick, "--html", str(tmp_path / "nowhere" / "page.html"))


@pytest.mark.slow
def test_membership_shows_the_controls(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    text = call("membership", str(tmp_path / "run"))
    for line in ("training windows", "untrained model", "validation windows", "others may find"):
        assert line in text
    (event,) = events(call("membership", str(tmp_path / "run"), "--json"))
    assert event["attack"]["auc"] > event["untrained"]["auc"]


def test_audit_says_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "private.toml"
    path.write_text(PRIVATE)
    text = call("audit", str(path), "--canaries", "10")
    assert "8 after 1 rounds" in text
    assert "not refuted, which proves nothing" in text
    (event,) = events(
        call("audit", str(path), "--set", "privacy.epsilon=2.0", "--canaries", "5", "--json")
    )
    assert event["claimed"] == pytest.approx(2.0, rel=1e-8)  # a budget leaves 1e-9 of the noise
    assert event["refuted"] is False
    assert event["bound"]["canaries"] == 5
    clear = call(
        "audit",
        str(path),
        "--set",
        "privacy.mode=none",
        "--set",
        "privacy.epsilon=0.0",
        "--canaries",
        "5",
    )
    assert "none: nothing is private" in clear


def test_what_an_audit_proves_is_rounded_down_and_what_was_claimed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = Bound(100, 50, 49, epsilon=1.9999, gaussian=5.6789, highest=2.946977)
    found = Audit("local", "one client's data replaced", 3, 1e-5, 7.991, bound)
    monkeypatch.setattr("communis.results.probe.audit.audit", lambda *_: found)
    path = tmp_path / "private.toml"
    path.write_text(PRIVATE)
    text = " ".join(call("audit", str(path)).split())
    assert "claimed epsilon 8 after 3 rounds" in text
    assert "epsilon, at least 1.99 (with all of them right: 2.94)" in text
    assert "if Gaussian 5.67 at least" in text
