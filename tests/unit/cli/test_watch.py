"""The page that shows runs while they go on: what it says, to whom, and what it survives."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from communis.cli import watch
from communis.core import disk
from communis.core.claim import Claim, is_held
from communis.core.errors import CommunisError
from communis.results.finished import read
from communis.results.live import followed
from communis.results.live.board import POINTS, Board, thinned
from communis.results.report.html import STYLE
from communis.results.verdict import Verdict, privacy_verdict
from communis.run.folder import RECORDS, RunFolder
from tests.unit.cli.test_main import SMALL, call
from tests.unit.folders import records_in, write, write_records

NASTY = "<img src=x onerror=document.title='broken'>"
HISTORY = {"test.accuracy": [{0: 0.5, 1: 0.7}, {0: 0.7, 1: 0.9}], "val.accuracy": [{0: 0.4}, {}]}
CLIENTS = [{"id": 0, "name": "Ada", "sensors": ["acc"], "device": "phone"}, {"id": 1}]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# A run in another process: it holds its folder, and writes a round for every line that it reads.
WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from communis.run.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.open()
last = folder.records()[-1]
print("open", flush=True)
for line in sys.stdin:
    if line == "half\\n":
        with (folder.path / "records.jsonl").open("a") as file:
            file.write('{"round": ')
    else:
        last = replace(last, round=last.round + 1, tables={})
        folder.record(last, {})
    print("done", flush=True)
"""


@contextmanager
def served(folder: Path) -> Iterator[watch.Server]:
    with watch.serving(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def ask(
    server: watch.Server,
    path: str = "/state.json",
    method: str = "GET",
    host: str = "",
    headers: Mapping[str, str] | None = None,
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        sent = {"Host": host or f"127.0.0.1:{server.server_port}", **(headers or {})}
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def looked(folder: Path) -> dict[str, Any]:
    """What is shown of a folder, as JSON has it."""
    state: dict[str, Any] = json.loads(json.dumps(Board(folder).look(), allow_nan=False))
    return state


def run_at(path: Path, method: str = "fedavg", seed: int = 0, **changes: Any) -> Path:
    fleet = {"clients": CLIENTS, **changes.pop("fleet", {})}
    return write(path, method, seed, HISTORY, fleet=fleet, **changes)


def test_a_finished_run(tmp_path: Path) -> None:
    run = run_at(tmp_path / "r", joules=[3.0, 4.0], seconds=[1.0, 2.0])
    with served(run) as server:
        answer, content = ask(server)
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        state = json.loads(content)
    assert state["title"] == "r: fedavg, seed 0"
    assert state["single"]
    assert state["problems"] == []
    assert state["left"] is None
    (row,) = state["runs"]
    assert (row["state"], row["round"], row["rounds"]) == ("finished", 2, 2)
    assert (row["up"], row["down"], row["framing"]) == (600, 200, 20)
    assert (row["joules"], row["seconds"]) == (7.0, 3.0)
    assert (row["cohort"], row["clients"], row["refused"]) == (2, 2, 2)
    assert row["score"] == pytest.approx(0.8)
    scores, losses = state["curves"]
    lines = {line["name"]: line["points"] for line in scores["lines"]}
    assert lines == {"test": [[1, 0.6], [2, 0.8]], "validation": [[1, 0.4]]}
    assert losses["lines"][0]["points"] == [[1, 0.5], [2, 0.5]]
    (detail,) = state["details"]
    assert detail["clients"] == [["Ada", "took part", "phone, acc"], ["client 1", "took part", ""]]
    assert detail["reasons"] == [["NaN", 2]]
    assert detail["refused"] == [[2, "client 1", "NaN"], [1, "client 1", "NaN"]]


def test_without_a_clock_there_are_no_joules(tmp_path: Path) -> None:
    (row,) = looked(run_at(tmp_path / "r"))["runs"]
    assert row["joules"] is None
    assert row["seconds"] is None


def test_a_comparison_has_a_row_and_a_curve_for_every_run(tmp_path: Path) -> None:
    for method in ("fedavg", "local"):
        for seed in (0, 1):
            run_at(tmp_path / method / f"seed{seed}", method, seed)
    planned = tmp_path / "local" / "seed1"
    for path in planned.iterdir():
        if path.name != "config.toml":
            path.unlink()
    stopped = tmp_path / "local" / "seed0"
    write_records(stopped, records_in(stopped)[:1])
    state = looked(tmp_path)
    found = {row["name"]: row["state"] for row in state["runs"]}
    assert found == {
        str(Path("fedavg", "seed0")): "finished",
        str(Path("fedavg", "seed1")): "finished",
        str(Path("local", "seed0")): "stopped",
        str(Path("local", "seed1")): "not begun",
    }
    assert not state["single"]
    assert state["problems"] == []
    assert [(line["name"], line["points"]) for line in state["curves"][0]["lines"]] == [
        ("fedavg", [[1, 0.6], [2, 0.8]]),
        ("fedavg", [[1, 0.6], [2, 0.8]]),
        ("local", [[1, 0.6]]),
    ]
    colours = [row["colour"] for row in state["runs"]]
    assert colours[0] == colours[1] != colours[2]
    assert [line["colour"] for line in state["curves"][0]["lines"]] == colours[:3]


def test_a_run_of_another_process(tmp_path: Path) -> None:
    run = run_at(tmp_path / "c" / "r")
    text = (run / "config.toml").read_text("utf-8").replace("rounds = 2", "rounds = 10")
    (run / "config.toml").write_text(text, "utf-8")
    waiting = tmp_path / "c" / "planned"
    waiting.mkdir()
    (waiting / "config.toml").write_text(text, "utf-8")
    board = Board(tmp_path / "c")
    assert [row["state"] for row in board.look()["runs"]] == ["not begun", "stopped"]
    assert is_held(run) is False
    with (
        closing(Claim(tmp_path / "c")),  # of the comparison
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            assert is_held(run) is True
            state = board.look()
            assert [row["state"] for row in state["runs"]] == ["waiting", "running"]
            assert state["runs"][1]["left"] == pytest.approx(8 * 2.0)
            assert state["left"] == pytest.approx(18 * 2.0)  # and ten rounds of the other
            for word in ("round", "half"):
                process.stdin.write(f"{word}\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"
                state = board.look()
                assert state["runs"][1]["round"] == 3
                assert state["problems"] == []
        finally:
            process.stdin.close()
            process.wait(30)
    state = board.look()
    assert [row["state"] for row in state["runs"]] == ["not begun", "stopped"]
    assert state["left"] is None


def test_to_ask_who_holds_a_folder_gives_up_no_lock(tmp_path: Path) -> None:
    claim = Claim(tmp_path)
    assert is_held(tmp_path) is True
    code = "from communis.core.claim import Claim, Path; import sys; Claim(Path(sys.argv[1]))"
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "another process is working on this run" in other.stderr
    claim.close()
    assert is_held(tmp_path) is False
    assert is_held(tmp_path / "gone") is False


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_at(tmp_path / "r")
    records = records_in(run)
    seen: list[int] = []
    before = RunFolder._record_in

    def counted(self: RunFolder, line: bytes, number: int) -> Any:
        seen.append(number)
        return before(self, line, number)

    monkeypatch.setattr(RunFolder, "_record_in", counted)
    board = Board(run)
    first = board.look()
    assert board.look() is first
    assert seen == [1, 2]
    write_records(tmp_path / "r", records)  # rewritten, not appended to
    assert board.look()["runs"][0]["round"] == 2
    with (run / RECORDS).open("a") as file:
        last = replace(RunFolder(run).records()[-1], round=3, tables={})
        seen.clear()
        file.write(RunFolder(run)._line(last))
    assert board.look()["runs"][0]["round"] == 3
    assert seen == [3]
    write_records(run, records[:1])  # resumed at an earlier checkpoint
    assert board.look()["runs"][0]["round"] == 1
    assert board.look()["runs"][0]["up"] == 300


def test_curves_are_bounded(tmp_path: Path) -> None:
    run = run_at(tmp_path / "r", refused=((1, "NaN"),) * 3)
    folder = RunFolder(run)
    last = folder.records()[-1]
    lines = [folder._line(replace(last, round=number, tables={})) for number in range(3, 1201)]
    with (run / RECORDS).open("a") as file:
        file.writelines(lines)
    state = looked(run)
    assert state["runs"][0]["round"] == 1200
    assert state["runs"][0]["refused"] == 3600
    for picture in state["curves"]:
        for line in picture["lines"]:
            assert len(line["points"]) <= POINTS
    points = state["curves"][1]["lines"][0]["points"]
    assert (points[0][0], points[-1][0]) == (1, 1200)
    assert len(state["details"][0]["refused"]) == 20


@pytest.mark.parametrize("count", [1, 2, 40, 41, 1000])
def test_thinned_points_keep_both_ends(count: int) -> None:
    points = [(i, 0.0) for i in range(count)]
    kept = thinned(points, 40)
    assert len(kept) == min(count, 40)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert len(set(kept)) == len(kept)


def test_damage_is_named_and_the_page_goes_on(tmp_path: Path) -> None:
    good, bad = run_at(tmp_path / "good"), run_at(tmp_path / "bad", seed=1)
    kept = (bad / RECORDS).read_bytes()
    board = Board(tmp_path)
    assert board.look()["problems"] == []
    os.truncate(bad / RECORDS, 0)
    (bad / RECORDS).write_bytes(kept.replace(b'"round": 2', b'"round": 7'))
    state = board.look()
    (problem,) = state["problems"]
    assert f"{bad / RECORDS}:2 is not a record" in problem
    assert {row["name"]: row["round"] for row in state["runs"]} == {"bad": 1, "good": 2}
    (bad / RECORDS).write_bytes(kept)
    state = board.look()
    assert state["problems"] == []
    assert state["runs"][0]["round"] == 2
    fleet = (good / "fleet.json").read_bytes()
    (good / "fleet.json").write_text("[", "utf-8")
    (bad / "config.toml").unlink()
    problems = "\n".join(board.look()["problems"])
    assert f"{good / 'fleet.json'}: cannot be read" in problems
    assert len(problems.splitlines()) == 2
    assert f"{bad / 'config.toml'}: not the settings of a run" in problems
    assert [row["state"] for row in board.look()["runs"]] == ["stopped", "damaged"]
    (good / "fleet.json").write_bytes(fleet)
    state = board.look()
    assert len(state["problems"]) == 1
    assert (state["runs"][1]["state"], state["runs"][1]["round"]) == ("finished", 2)


def test_a_gap_between_rounds_is_named(tmp_path: Path) -> None:
    run = run_at(tmp_path / "r")
    write_records(run, records_in(run)[1:])
    (problem,) = looked(run)["problems"]
    assert "after round 0 comes round 2" in problem


def test_a_pipe_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    run = run_at(tmp_path / "r")
    (run / RECORDS).unlink()
    os.mkfifo(run / RECORDS)
    (problem,) = looked(run)["problems"]
    assert "a pipe or a device" in problem


def test_a_mistake_of_ours_does_not_end_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Board, "look", lambda self: 1 / 0)
    with served(run_at(tmp_path / "r")) as server:
        answer, content = ask(server)
    assert answer.status == 200
    assert "ZeroDivisionError" in json.loads(content)["problems"][0]


def test_runs_that_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("communis.results.live.board.SEARCH", 0.0)
    run_at(tmp_path / "a")
    run_at(tmp_path / ".b.removed")
    board = Board(tmp_path)
    assert [row["name"] for row in board.look()["runs"]] == ["a"]
    run_at(tmp_path / "c")
    assert [row["name"] for row in board.look()["runs"]] == ["a", "c"]
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "c")
    state = board.look()
    assert state["runs"] == []
    assert state["problems"] == [f"{tmp_path}: holds no run any more"]


def test_who_is_online_and_what_privacy_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["fleet.online.kind=iid", "fleet.online.share=0.5", "privacy.mode=local"]
    settings += ["privacy.epsilon=8", "seed=3"]
    place = ["--into", str(tmp_path), "--name", "r", "--quiet"]
    assert call(monkeypatch, "run", "synthetic", *settings, *SMALL, *place) == 0
    state = looked(tmp_path / "r")
    (row,) = state["runs"]
    run = read(tmp_path / "r")
    assert row["privacy"] == privacy_verdict(run).brief
    assert row["privacy"].startswith("epsilon ")
    assert state["details"][0]["privacy"] == privacy_verdict(run).line
    cohort = run.records[-1].cohort
    assert row["cohort"] == row["online"] == len(cohort)  # all that are online take part
    states = [state for _, state, _ in state["details"][0]["clients"]]
    assert [i for i, state in enumerate(states) if state == "took part"] == list(cohort)
    assert states.count("offline") == 10 - len(cohort)


def test_a_slow_verdict_is_rare_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_at(tmp_path / "r")
    disk.write_json(run / "privacy.json", {"mode": "local"})
    judged: list[int] = []

    def slowly(finished: Any) -> Verdict:
        judged.append(len(finished.records))
        time.sleep(0.01)
        return Verdict("local", private=False, line="not DP: made for a test")

    monkeypatch.setattr(followed, "privacy_verdict", slowly)
    monkeypatch.setattr(followed, "RARELY", 1e4)
    folder = RunFolder(run)
    folder.open()
    board = Board(run)
    row = board.look()["runs"][0]
    assert (row["state"], row["privacy"], judged) == ("running", "not DP", [2])
    folder.record(replace(folder.records()[-1], round=3, tables={}), {})
    assert board.look()["runs"][0]["round"] == 3
    assert judged == [2]
    folder.close()
    assert board.look()["details"][0]["privacy"] == "not DP: made for a test"
    assert judged == [2, 3]
    board.look()
    assert judged == [2, 3]


def test_who_may_ask(tmp_path: Path) -> None:
    with served(run_at(tmp_path / "r")) as server:
        port = server.server_port
        assert server.server_address[0] == "127.0.0.1"
        for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
            assert ask(server, host=host)[0].status == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
            answer, content = ask(server, host=host)
            assert (answer.status, content) == (421, b"Misdirected Request\n")
        for hosts in ("", f"Host: 127.0.0.1:{port}\r\nHost: evil.example\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(f"GET / HTTP/1.1\r\n{hosts}\r\n".encode())
                assert b" 421 " in connection.recv(4000).partition(b"\r\n")[0]


def test_what_can_be_asked_for(tmp_path: Path) -> None:
    with served(run_at(tmp_path / "r")) as server:
        for path in ("/", "/page.js", "/page.css", "/state.json"):
            answer, content = ask(server, path)
            assert answer.status == 200
            assert content
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            tag = {"If-None-Match": answer.headers["ETag"]}
            again, nothing = ask(server, path, headers=tag)
            assert (again.status, nothing) == (304, b"")
        for path in ("/config.toml", "/../page.js", "/page.html", "/state.json?run=/etc/passwd",
                     "/%2e%2e/", str(tmp_path / "r" / "config.toml")):  # fmt: skip
            answer, content = ask(server, path)
            assert (answer.status, content) == (404, b"Not Found\n")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            answer, content = ask(server, method=method)
            assert (answer.status, answer.headers["Allow"]) == (405, "GET")
        assert ask(server, method="HEAD")[0].status == 405
        assert ask(server, method="NOSUCH")[0].status == 501


def test_files_of_the_page_are_served_as_they_are(tmp_path: Path) -> None:
    with served(run_at(tmp_path / "r")) as server:
        for path, name in (("/", "page.html"), ("/page.js", "page.js"), ("/page.css", "page.css")):
            assert ask(server, path)[1].endswith((watch.PAGE / name).read_bytes())
        assert ask(server, "/page.css")[1].startswith(STYLE.encode())


def test_nothing_is_written(tmp_path: Path) -> None:
    run = run_at(tmp_path / "r")

    def content() -> dict[str, tuple[int, bytes]]:
        return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.iterdir()}

    before = content()
    looked(run)
    assert content() == before


def test_the_page_asks_nobody_else_and_writes_no_markup() -> None:
    text = "".join(path.read_text("utf-8") for path in sorted(watch.PAGE.iterdir()))
    addresses = re.findall(r"\w+://[^\"' ]+", text)
    assert addresses == ["http://www.w3.org/2000/svg"]  # the name of SVG's elements
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                   "Function(", "srcdoc", "DOMParser", "<style", "style="):  # fmt: skip
        assert danger not in text


def test_names_from_a_folder_are_data(tmp_path: Path) -> None:
    hostile_run(tmp_path / "r")
    with served(tmp_path / "r") as server:
        answer, content = ask(server)
        assert answer.headers["Content-Type"].startswith("application/json")
        assert NASTY.encode() in content
        for path in ("/", "/page.js", "/page.css"):
            assert NASTY.encode() not in ask(server, path)[1]


def hostile_run(path: Path) -> Path:
    clients = [{"id": 0, "name": NASTY, "sensors": [NASTY], "device": NASTY}, {"id": 1}]
    refused = ((0, NASTY), (10**12, "\x1b[2J"))
    return run_at(path, method=NASTY, fleet={"clients": clients}, refused=refused)


def test_folders_without_runs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "watch", str(tmp_path)) == 2
    errors = capsys.readouterr().err
    assert "holds no run to watch" in errors
    assert errors.count("\n") == 1


def test_a_port_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: Any, poll_interval: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.Server, "serve_forever", interrupt)
    run = run_at(tmp_path / "r")
    with watch.serving(run, 0) as first:
        assert call(monkeypatch, "watch", str(run), "--port", str(first.server_port)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"port {first.server_port} is taken, so another one was chosen"
    assert re.fullmatch(r"watching .*: http://127\.0\.0\.1:\d+/ \(Ctrl-C ends it\)", said[1])
    assert str(first.server_port) not in said[1]
    assert said[2:] == ["stopped watching; the runs go on"]


def test_where_nothing_can_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(watch.Server, "server_bind", refuse)
    with pytest.raises(CommunisError, match="no page can be served here"):
        watch.serving(run_at(tmp_path / "r"), 0)


def dom(address: str, profile: Path) -> str:
    """The page as Chromium has it after a few seconds."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={profile}", "--virtual-time-budget=5000", "--dump-dom", address],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed on this machine")
def test_a_browser_shows_a_hostile_run_as_text(tmp_path: Path) -> None:
    with served(hostile_run(tmp_path / "r")) as server:
        page = dom(server.address, tmp_path / "profile")
    assert "finished, round 2 of 2" in page
    assert len(re.findall(r'<path class="curve"[^>]* d="M[\d.,L]+"', page)) == 3
    assert "<img" not in page
    assert NASTY.replace("<", "&lt;").replace(">", "&gt;") in page
    assert "<title>broken" not in page


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed on this machine")
def test_a_browser_shows_a_run_that_goes_on(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "communis"]
    settings = ["data.windows=40", "run.workers=1", "run.rounds=5000", "run.eval_every=1"]
    into = ["--into", str(tmp_path), "--name", "live", "--quiet"]
    running = subprocess.Popen(
        [*command, "run", "synthetic", *settings, *into], env=environment, stderr=subprocess.PIPE
    )
    try:
        records = tmp_path / "live" / RECORDS
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (records.exists() and records.stat().st_size):
            time.sleep(0.05)
        watching = subprocess.Popen(
            [*command, "watch", str(tmp_path / "live"), "--port", "0"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert watching.stdout is not None
            address = re.findall(r"http://\S+", watching.stdout.readline())[0]
            page = dom(address, tmp_path / "profile")
            assert re.search(r"running, round \d+ of 5000; about \d+.* left", page)
            assert re.search(r'<path class="curve"[^>]* d="M[\d.,L]+"', page)
            assert page.count("client ") >= 10
        finally:
            watching.send_signal(signal.SIGINT)
            said, errors = watching.communicate(timeout=30)
        assert (watching.returncode, said, errors) == (0, "stopped watching; the runs go on\n", "")
        assert running.poll() is None
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
