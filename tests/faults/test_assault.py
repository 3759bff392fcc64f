"""The assault sees harm: planted faults are counted, and every kind can be tried."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

if sys.platform != "linux":
    pytest.skip("the assault forks and looks into /proc", allow_module_level=True)

from tests.faults.assault.case import Case
from tests.faults.assault.outcome import SURVIVED, Outcome, Results, causes, harm, read, table
from tests.faults.assault.pages import Live
from tests.faults.assault.slices import KINDS, Slice
from tests.faults.assault.workers import DIED, _compared

PLANTED = "planted"


def planted(case: Case) -> Outcome:
    """Case 1 raises, 2 crashes, 3 hangs; the others do nothing."""
    if case.number == 1:
        raise ValueError("an oversight")
    if case.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if case.number == 3:
        time.sleep(600)
    return SURVIVED


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(PLANTED)
    module.LIMIT, module.attempt = 0.5, planted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"tests.faults.assault.{PLANTED}", module)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "result", "word"),
    [(1, "traceback", "an oversight"), (2, "traceback", "-9"), (3, "hang", "0.5 s")],
)
def test_what_a_case_does_to_its_process_is_seen(
    last: int, result: str, word: str, tmp_path: Path
) -> None:
    found = Slice(PLANTED, 0, range(last, last + 1), tmp_path).finish()
    assert found[last].result == result
    assert word in found[last].detail
    assert not list(tmp_path.iterdir())


def test_cases_before_a_crash_count(tmp_path: Path) -> None:
    found = Slice(PLANTED, 0, range(4), tmp_path).finish()
    assert [found[n].result for n in range(3)] == ["survived", "traceback", "traceback"]
    assert 3 not in found


def test_the_table_comes_from_the_file(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl")
    results.tried("kills", 0, 1.0, Counter({"survived": 1200}))
    results.tried("kills", 1200, 1.0, Counter({"survived": 1, "hang": 2}))
    for number in (1201, 1202):
        results.harm("kills", 3, number, Outcome("hang", f"no end within {number} s"))
    with results.path.open("a") as file:
        file.write('{"kind": "kil')  # a crash of the assault itself
    found = read(results.path)
    assert harm(found) == 2
    row = table(found, KINDS).splitlines()[-1]
    assert [cell.strip() for cell in row.split("|")[1:5]] == ["kills", "1,203", "1,201", "0"]
    assert causes(results.path).startswith("2 x kills, hang")
    assert "--only kills --case 1201 --seed 3" in causes(results.path)


@pytest.mark.parametrize(
    ("refused", "loss", "result"),
    [
        ([], 1.0, "survived"),
        ([], 2.0, "silent difference"),
        ([[0, f"{DIED} (exit code -9)"]], 2.0, "refused"),
        ([[0, "another reason"]], 2.0, "silent difference"),
    ],
)
def test_other_numbers_need_a_reason(refused: list[object], loss: float, result: str) -> None:
    whole = {"records.jsonl": [{"round": 1, "loss": 1.0, "refused": []}]}
    found = {"records.jsonl": [{"round": 1, "loss": loss, "refused": refused}]}
    assert _compared(found, whole).result == result


@pytest.mark.parametrize(
    ("text", "live"),
    [
        ("<p title='&lt;script&gt;'>&lt;script&gt;zq7(1)</p>", False),
        ("<p><script>zq7(1)</script></p>", True),
        ("<p title='' onmouseover='zq7(1)'></p>", True),
        ("<a href='javascript:zq7(1)'>x</a>", True),
        ("<!-- zq7 -->", True),
    ],
)
def test_live_html_is_told_from_text(text: str, live: bool) -> None:
    found = Live()
    found.feed(text)
    assert bool(found.found) == live


@pytest.mark.slow
def test_every_kind_can_be_tried(tmp_path: Path) -> None:
    """At least one case of each does no harm."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.assault", "--minutes", "0.1", "--workers", "1",
         "--results", str(tmp_path / "r.jsonl")],
        capture_output=True,
        text=True,
        env=os.environ,
        cwd=Path(__file__).parents[2],
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    tried = {*read(tmp_path / "r.jsonl")}
    assert tried == {*KINDS} - ({"cuts"} if "left out" in done.stdout else set())
