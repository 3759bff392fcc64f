"""The round loop: sampling, evaluation, folders, checkpoints, resume."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from communis import Client, CommunisError, FedAvg, Plan, Run, State
from communis.cli.terminal import comparison, out
from communis.core.contract import AfterExchange
from communis.exchange.topology import ring
from communis.exchange.wire import encode
from communis.methods.fedavg import Down, Server, Up
from communis.results.compare import collect, rows
from communis.results.estimate import Estimate
from communis.results.finished import read
from communis.results.wording.warnings import warnings
from communis.run.backends.mock import Mock, corrupt
from communis.run.folder import RunFolder
from tests.fleets import make, mixed_fleet

QUICK = Plan(rounds=3, workers=1, eval_every=0)
CONFIG = 'seed = 0\n[method]\nname = "made"\n[run]\nrounds = 3\n[data]\nname = "made"\n'


def test_cohorts_are_drawn_by_seed_without_repetition() -> None:
    plan = replace(QUICK, rounds=6, cohort=3)
    with Run(mixed_fleet(), FedAvg(), plan) as run:
        cohorts = [record.cohort for record in run]
    assert all(len(set(c)) == 3 and list(c) == sorted(c) for c in cohorts)
    assert len(set(cohorts)) > 1
    with Run(mixed_fleet(), make("fedper"), plan) as other:
        assert [record.cohort for record in other] == cohorts  # paired across methods


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"participation": 0.0}, "share in"),
        ({"participation": 1.5}, "for a number of clients, set cohort"),
        ({"rounds": -1}, "rounds must be at least 0"),
        ({"checkpoint_every": 0}, "at least 1"),
        ({"pairs_in": "all"}, "must be 'evaluated' or 'every', got 'all'"),
        ({"pairs_in": "every"}, "without pairs = true"),
    ],
)
def test_impossible_plans_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CommunisError, match=message):
        Plan(**settings)


def test_no_rounds_is_no_work() -> None:
    with Run(mixed_fleet(), FedAvg(), Plan(rounds=0, workers=1)) as run:
        assert list(run) == []
    assert run.records().empty
    assert run.scores().empty


def test_evaluation_follows_the_plan() -> None:
    with Run(mixed_fleet(), FedAvg(), replace(QUICK, rounds=5, eval_every=2)) as run:
        evaluated = [record.round for record in run if record.scores]
    assert evaluated == [2, 4, 5]  # and always after the last round
    scores = run.scores()
    assert set(scores["split"]) == {"val", "test"}
    full = scores[(scores["client"] == 0) & scores["own"]]["subset"].unique()
    assert list(full) == ["+".join(run.cards[0].modalities)]


def test_evaluation_of_some_clients_only() -> None:
    with Run(mixed_fleet(), FedAvg(), replace(QUICK, eval_clients=2)) as run:
        list(run)
    assert run.scores()["client"].nunique() == 2


def test_of_many_clients_the_same_sample_is_scored_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("communis.run.plan.MOST_EVALUATED", 3)
    caplog.set_level(logging.INFO, "communis")
    scored = {}
    for method in (FedAvg(), make("fedper")):
        folder = tmp_path / type(method).__name__
        plan = replace(QUICK, eval_every=1)
        with Run(mixed_fleet(), method, plan, folder=folder, config=CONFIG) as run:
            list(run)
        by_round = run.scores().groupby("round")["client"].unique()
        scored[folder.name] = [tuple(sorted(clients)) for clients in by_round]
        about = json.loads((folder / "fleet.json").read_text("utf-8"))
        assert about["evaluation"] == {"clients": 3, "of": 5}
        assert "a sample of 3 of 5 clients" in warnings([read(folder)])[0]
    assert "a sample of 3 of 5 clients" in caplog.text
    assert "run.eval_clients = 5 scores all" in caplog.text
    first, second = scored.values()
    assert first == second  # methods are compared on the same clients
    assert len(set(first)) == 1
    assert len(first[0]) == 3


def test_all_of_many_clients_are_scored_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("communis.run.plan.MOST_EVALUATED", 3)
    with Run(mixed_fleet(), FedAvg(), replace(QUICK, eval_clients=5)) as run:
        list(run)
    assert run.scores()["client"].nunique() == 5
    with pytest.raises(CommunisError, match="eval_clients must be at least 0"):
        Plan(eval_clients=-1)


def test_subsets_score_every_sensor_alone() -> None:
    with Run(mixed_fleet(), FedAvg(), QUICK) as run:
        list(run)
    scores = run.scores()
    rich = next(c for c in run.cards if len(c.modalities) == 3)
    assert set(scores[scores["client"] == rich.id]["subset"]) == {"m0+m1+m2", "m0", "m1", "m2"}
    with Run(mixed_fleet(), FedAvg(), replace(QUICK, eval_subsets="own")) as run:
        list(run)
    assert run.scores()["own"].all()


def test_unsampled_clients_are_scored_with_the_new_model() -> None:
    """Evaluation has a receive step of its own, so nobody is judged with stale weights."""
    plan = Plan(rounds=1, cohort=1, workers=1)
    with Run(mixed_fleet(), FedAvg(lr=0.5), plan) as run:
        (record,) = list(run)
        asks: list[Any] = []
        mock = Mock(run.backend)
        run.backend, run.plan = mock, replace(plan, rounds=2)
        list(run)
        asks = [ask for ask in mock.asks if ask.kind == "evaluate"]
    assert len(asks) == 5
    assert len(record.cohort) == 1


def test_data_frames() -> None:
    with Run(mixed_fleet(), FedAvg(), QUICK) as run:
        list(run)
    records = run.records()
    assert list(records["round"]) == [1, 2, 3]
    assert "test.accuracy" in records
    assert isinstance(run.links(), pd.DataFrame)
    per_round = run.links().groupby("round")["payload"].sum()
    assert list(per_round) == list(records["bytes_up"] + records["bytes_down"])


def test_the_folder_holds_everything(tmp_path: Path) -> None:
    with Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path / "r", config="seed = 0\n") as run:
        list(run)
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert {"config.toml", "environment.json", "fleet.json", "records.jsonl"} <= names
    assert {"scores.arrows", "links.arrows", "checkpoint.safetensors", "clients"} <= names
    lines = (tmp_path / "r" / "records.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
    fleet = json.loads((tmp_path / "r" / "fleet.json").read_text("utf-8"))
    assert [c["id"] for c in fleet["clients"]] == [0, 1, 2, 3, 4]
    assert not list((tmp_path / "r").rglob("*.partial"))


def test_old_client_states_are_removed(tmp_path: Path) -> None:
    """The disk holds those of the last two checkpoints, however many rounds were run."""
    for every in (1, 2):
        folder = tmp_path / str(every)
        plan = replace(QUICK, rounds=5, checkpoint_every=every)
        with Run(mixed_fleet(), make("local"), plan, folder=folder) as run:
            list(run)
        kept = sorted(path.stem.partition("-")[2] for path in (folder / "clients").iterdir())
        assert kept == ["000004"] * 5 + ["000005"] * 5


@pytest.mark.slow
def test_resume_needs_only_the_folder_and_drops_what_came_after_the_checkpoint(
    tmp_path: Path,
) -> None:
    plan = replace(QUICK, rounds=5, checkpoint_every=2, eval_every=1)
    with Run(mixed_fleet(), make("fedper"), plan, folder=tmp_path / "whole") as whole:
        list(whole)
    run = Run(mixed_fleet(), make("fedper"), plan, folder=tmp_path / "cut")
    rounds = iter(run)
    for _ in range(3):
        next(rounds)
    run.backend.close()  # a crash after round 3: nothing is saved on the way out
    run.folder.close()
    with (tmp_path / "cut" / "records.jsonl").open("a") as file:
        file.write('{"round": 4, "coh')  # cut short in the middle of a line
    with Run(mixed_fleet(), make("fedper"), plan, folder=tmp_path / "cut") as again:
        assert again.round == 2
        list(again)
    assert encode(again.server).data == encode(whole.server).data
    assert again.scores().equals(whole.scores())
    assert again.links().equals(whole.links())
    old, new = whole.records(), again.records()
    same = [c for c in old.columns if not c.startswith("seconds")]
    pd.testing.assert_frame_equal(old[same], new[same])


def test_a_finished_run_resumes_to_nothing(tmp_path: Path) -> None:
    with Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path) as run:
        list(run)
    with Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path) as again:
        assert list(again) == []
        assert len(again.history) == 3


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    with Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path) as run:
        list(run)
    for fleet, method in ((mixed_fleet(1), FedAvg()), (mixed_fleet(), FedAvg(lr=0.2))):
        with pytest.raises(CommunisError, match="another experiment"):
            Run(fleet, method, QUICK, folder=tmp_path)
    with Run(mixed_fleet(), FedAvg(), replace(QUICK, rounds=4), folder=tmp_path) as longer:
        assert [record.round for record in longer] == [4]  # more rounds are no other experiment


@dataclass(frozen=True)
class Older(FedAvg):
    """A method before and after it got another setting."""


def test_a_setting_that_is_new_leaves_checkpoints_valid(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Newer(FedAvg):
        damping: float = 0.5

    Newer.__qualname__ = "Older"
    with Run(mixed_fleet(), Older(epochs=2), QUICK, folder=tmp_path) as run:
        list(run)
    with Run(mixed_fleet(), Newer(epochs=2), QUICK, folder=tmp_path) as again:
        assert again.round == 3
    others = [Newer(epochs=2, damping=0.1), Newer(), Newer(epochs=3), FedAvg(epochs=2)]
    for other in others:
        with pytest.raises(CommunisError, match="another experiment"):
            Run(mixed_fleet(), other, QUICK, folder=tmp_path)
    with pytest.raises(CommunisError, match="another experiment"):
        Run(mixed_fleet(), Older(epochs=2), QUICK, folder=tmp_path, topology=ring(5))


def test_records_are_strict_json(tmp_path: Path) -> None:
    """A loss that is not a number is null on disk and NaN again when read."""
    with Run(mixed_fleet(), FedAvg(epochs=0), QUICK, folder=tmp_path) as run:
        list(run)
    text = (tmp_path / "records.jsonl").read_text("utf-8")
    assert "NaN" not in text
    assert all(np.isnan(record.loss) for record in RunFolder(tmp_path).records())


def test_a_crash_before_the_first_checkpoint_leaves_no_trace(tmp_path: Path) -> None:
    plan = replace(QUICK, checkpoint_every=3)
    run = Run(mixed_fleet(), FedAvg(), plan, folder=tmp_path)
    next(iter(run))
    run.backend.close()
    run.folder.close()  # as the system does when a process ends
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"round": 2, "coh')
    with Run(mixed_fleet(), FedAvg(), plan, folder=tmp_path) as again:
        list(again)
    assert [record.round for record in RunFolder(tmp_path).records()] == [1, 2, 3]


class Lost(FedAvg):
    """Predictions of one client are not numbers."""

    def predict(self, client: Any, state: Any, batch: Any) -> Any:
        found = super().predict(client, state, batch)
        return found * float("nan") if client.card.id == 2 else found


def test_diverged_scores_survive_the_disk(tmp_path: Path) -> None:
    """Not only those that need probabilities: `argmax` finds a class in NaN too."""
    text = 'seed = 0\n[method]\nname = "lost"\n[run]\nrounds = 3\n'
    with Run(mixed_fleet(), Lost(), QUICK, folder=tmp_path, config=text) as run:
        list(run)
    (last,) = [r.scores for r in RunFolder(tmp_path).records() if r.scores]
    for metric in ("nll", "accuracy", "macro_f1"):
        assert np.isnan(last[f"test.{metric}"])
    found = read(tmp_path)
    assert Estimate.of([found.final("accuracy")]).diverged == 1
    by_client = found.by_client("accuracy")
    assert by_client.isna().tolist() == [client == 2 for client in by_client.index]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_diverges_is_refused_and_said_so(tmp_path: Path, workers: int) -> None:
    """Every client of `local` diverges in every round: all are refused by name, and the comparison
    says so instead of ranking what they were when they began."""
    plan = replace(QUICK, workers=workers)
    text = 'seed = 0\n[method]\nname = "local"\n[run]\nrounds = 3\n[data]\nname = "made"\n'
    with Run(mixed_fleet(), make("local", lr=1e30), plan, folder=tmp_path, config=text) as run:
        records = list(run)
    for record in records:
        assert [client for client, _ in record.refused] == list(record.cohort) == [0, 1, 2, 3, 4]
        for _, reason in record.refused:
            assert re.fullmatch(r"private state: [\w/.]+ holds NaN or Inf", reason)
    assert bool(run.scores()["value"].isna().all())
    finished = collect([tmp_path])
    (row,) = rows(finished, "accuracy")
    assert (row.refused, row.verdict, row.scores["accuracy"].diverged) == (15, "diverged", 1)
    (said,) = warnings(finished)
    assert said.startswith("local: 15 of 15 results of training were refused as not finite, of 5 ")
    with out.capture() as shown:
        out.print(comparison([row], "accuracy"))
    assert re.search(r"refused\n.* 15\n", shown.get())


def test_a_process_works_on_a_folder_once(tmp_path: Path) -> None:
    """As in a notebook, where a cell runs twice."""
    take = "import fcntl; fcntl.lockf(open('lock', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    first = Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path)
    with pytest.raises(
        CommunisError, match=f"{tmp_path.name}: this process is working on it already"
    ):
        Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path / ".." / tmp_path.name)
    other = subprocess.run([sys.executable, "-c", take], cwd=tmp_path, stderr=-1, check=False)
    assert b"BlockingIOError" in other.stderr  # the refusal has not given up the lock
    first.close()
    second = Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path)
    del first, second  # nobody closed it
    with pytest.raises(CommunisError, match="another experiment"):
        Run(mixed_fleet(), FedAvg(lr=0.5), QUICK, folder=tmp_path)
    Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path).close()


@pytest.mark.slow
def test_two_processes_cannot_work_on_one_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from communis import FedAvg, Run; from tests.fleets import mixed_fleet\n"
        f"Run(mixed_fleet(), FedAvg(), folder={str(tmp_path)!r})"
    )
    with Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path):
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert b"another process is working on this run" in other.stderr


def test_every_message_is_billed_also_an_unreadable_one() -> None:
    for change in (lambda data: data, lambda data: data[:-8], lambda data: b"x" * 50):
        run = Run(mixed_fleet(), FedAvg(), replace(QUICK, rounds=1))
        sizes: list[int] = []
        inner = corrupt(change, 1)

        def tamper(ask: Any, answer: Any, inner: Any = inner, sizes: Any = sizes) -> Any:
            changed = inner(ask, answer)
            sizes.append(len(changed.up))
            return changed

        run.backend = Mock(run.backend, tamper)
        with run:
            list(run)
        up = run.links().query("sender >= 0")
        assert int(up["payload"].sum() + up["framing"].sum()) == sum(sizes)


def test_failures_while_scoring_are_recorded() -> None:
    run = Run(mixed_fleet(), FedAvg(), replace(QUICK, rounds=1))

    def tamper(ask: Any, answer: Any) -> Any:
        lost = ask.kind == "evaluate" and ask.client == 2
        return replace(answer, scores=(), failure="died\x1b[31m" + "x" * 999) if lost else answer

    run.backend = Mock(run.backend, tamper)
    with run:
        (record,) = list(run)
    ((client, reason),) = record.refused
    assert client == 2
    assert reason.startswith(r"died\x1b[31m")
    assert len(reason) < 320


def test_centralized_needs_a_star() -> None:
    with pytest.raises(CommunisError, match="needs a star"):
        Run(mixed_fleet(), make("centralized"), QUICK, topology=ring(5))


def test_no_training_windows_anywhere_is_refused() -> None:
    fleet = mixed_fleet()
    windows = replace(fleet.windows, split=np.full(len(fleet.windows), 2, np.int8))
    with pytest.raises(CommunisError, match="no client has a training window"):
        Run(replace(fleet, windows=windows), FedAvg(), QUICK)


@pytest.mark.parametrize(("device", "message"), [("foo", "must be"), ("meta", "not available")])
def test_devices_that_cannot_be_used_are_refused(device: str, message: str) -> None:
    with pytest.raises(CommunisError, match=message):
        Plan(device=device)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_continued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path) as run:
        list(run)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path) as run:
        assert run.round == QUICK.rounds - 1
    assert "checkpoint.safetensors is not a readable checkpoint" in caplog.text
    assert f"going on from round {QUICK.rounds - 1}" in caplog.text
    assert "begin" not in caplog.text  # nothing is asked of the user


def test_without_any_whole_checkpoint_a_run_is_refused(tmp_path: Path) -> None:
    with Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path) as run:
        list(run)
    for name in ("checkpoint.safetensors", "previous.safetensors"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    words = r"checkpoint\.safetensors is damaged(.|\n)*previous\.safetensors is damaged"
    with pytest.raises(CommunisError, match=words):
        Run(mixed_fleet(), FedAvg(), QUICK, folder=tmp_path)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("nonsense\n{}\n")
    with pytest.raises(CommunisError, match=r"records\.jsonl:1"):
        RunFolder(tmp_path).records()


def test_lost_client_state_is_named(tmp_path: Path) -> None:
    with Run(mixed_fleet(), make("local"), QUICK, folder=tmp_path) as run:
        next(iter(run))
    for path in (tmp_path / "clients").iterdir():
        path.unlink()
    with pytest.raises(CommunisError, match="private state of client 0 is gone"):
        Run(mixed_fleet(), make("local"), QUICK, folder=tmp_path)


@dataclass(frozen=True)
class Settling(FedAvg, AfterExchange[Server, State, Down, Up]):
    """FedAvg that does work after the exchange: remembers the norm of the new common model."""

    def after_exchange(self, client: Client, state: State, down: Down) -> State:
        return state | {"fusion.shared.bias": down.w["fusion.shared.bias"]}


def test_clients_work_after_the_exchange_with_the_new_downlink(tmp_path: Path) -> None:
    with Run(mixed_fleet(), Settling(), replace(QUICK, rounds=1), folder=tmp_path) as run:
        mock = Mock(run.backend)
        run.backend = mock
        (record,) = list(run)
    kinds = [ask.kind for ask in mock.asks]
    assert kinds.count("after") == 5
    plain = Run(mixed_fleet(), FedAvg(), replace(QUICK, rounds=1))
    with plain:
        (once,) = list(plain)
    assert record.bytes_down == 2 * once.bytes_down  # the second downlink is billed
    assert record.bytes_up == once.bytes_up
    new = run.server.w["fusion.shared.bias"]
    state = State({"x": new})
    assert torch.isfinite(state["x"]).all()


def test_the_callers_random_state_and_threads_are_untouched() -> None:
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    legacy = np.random.get_state()[1].copy()  # noqa: NPY002 - the global state is what is watched
    with Run(mixed_fleet(), FedAvg(), QUICK) as run:
        list(run)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in all other tests
    assert torch.equal(before, torch.get_rng_state())
    assert threads == 2
    assert (legacy == np.random.get_state()[1]).all()  # noqa: NPY002


@dataclass(frozen=True)
class CountsThreads(FedAvg):
    """Notes the number of threads wherever the server or a client computes."""

    seen: ClassVar[set[int]] = set()

    def start_server(self, fleet: Any) -> Server:
        self.seen.add(torch.get_num_threads())
        return super().start_server(fleet)

    def local(self, client: Client, state: Any, down: Down) -> Any:
        self.seen.add(torch.get_num_threads())
        return super().local(client, state, down)

    def aggregate(self, server: Server, ups: Any) -> Server:
        self.seen.add(torch.get_num_threads())
        return super().aggregate(server, ups)

    def common(self, server: Server) -> State:  # asked for when updates are compared
        self.seen.add(torch.get_num_threads())
        return super().common(server)

    def predict(self, client: Client, state: Any, batch: Any) -> Any:
        self.seen.add(torch.get_num_threads())
        return super().predict(client, state, batch)


def test_a_run_computes_with_one_thread_from_beginning_to_end() -> None:
    """Sums of several threads depend on how many there are, so results would on the machine."""
    torch.set_num_threads(2)
    plan = Plan(rounds=1, workers=1, pairs=True)
    with Run(mixed_fleet(), CountsThreads(), plan) as run:
        list(run)
    torch.set_num_threads(1)  # as in all other tests
    assert CountsThreads.seen == {1}
