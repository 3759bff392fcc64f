"""Damaged run folders: no run goes on with other numbers, and every refusal names its file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from communis import CommunisError, Fleet, Plan, Run
from communis.cli.main import app
from communis.core import disk
from communis.exchange.privacy.settings import PrivacyConfig
from communis.results.compare import collect
from communis.results.finished import read
from communis.results.verdict import privacy_verdict
from communis.run import tables
from communis.run.folder import STATES, Checkpoint, RunFolder
from communis.run.jobs import Job
from tests.faults.hostile_configs import BASE, attempt, damaged, look
from tests.faults.test_power_cuts import content
from tests.fleets import make, mixed_fleet
from tests.unit.fleet.test_gaps import lacking
from tests.unit.folders import block_of, forge_rows, records_in, rows_of, seal, write_records

NOISY = PrivacyConfig(mode="local", noise=2.0)
FLIPS = 40  # damaged copies of one folder
DAMAGED = 60  # folders with one damaged file


def run(
    folder: Path,
    rounds: int = 3,
    method: str = "fedper",
    privacy: bool = False,
    devices: Sequence[str] = (),
    seed: int = 0,
    keep: bool = True,
) -> Run:
    made = Run(
        mixed_fleet(devices=devices, seed=seed),
        make(method),
        Plan(rounds=rounds, workers=1, keep=keep),
        folder=folder,
        config=f'seed = {seed}\n[method]\nname = "{method}"\n[run]\nrounds = {rounds}\n'
        '[data]\nname = "made"\n',
        privacy=NOISY if privacy else None,
    )
    with made:
        list(made)
    return made


def without_line(path: Path, number: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: number - 1] + lines[number:]))


def test_a_gap_in_the_records_is_refused(tmp_path: Path) -> None:
    """With a record and its log gone, epsilon would come out lower than it is."""
    run(tmp_path, privacy=True, method="fedavg")
    without_line(tmp_path / "records.jsonl", 2)
    with pytest.raises(CommunisError, match=r"records\.jsonl.*records of 1 and 3 only"):
        run(tmp_path, rounds=4, privacy=True, method="fedavg")
    with pytest.raises(CommunisError, match=r"records\.jsonl.*records of 1 and 3 only"):
        read(tmp_path)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(CommunisError, match="no record of round 2, though of later ones"):
        read(tmp_path)


def test_what_privacy_cost_is_in_the_checkpoint_too(tmp_path: Path) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    honest = privacy_verdict(read(tmp_path))
    assert honest.private or "left uncovered" in honest.line
    without_line(tmp_path / "records.jsonl", 3)  # the last round: no gap remains
    block = block_of(tmp_path / "log.arrows", 2)
    os.truncate(tmp_path / "log.arrows", block.end)
    with pytest.raises(CommunisError, match=r"records\.jsonl: .*round 3, .*records of 1 to 2 only"):
        read(tmp_path)
    again = run(tmp_path, privacy=True, method="fedavg")  # round 3 is done again, as it was
    assert [record.round for record in again.history] == [1, 2, 3]
    assert privacy_verdict(read(tmp_path)).line == honest.line


def test_a_run_killed_since_its_last_checkpoint_is_read(tmp_path: Path) -> None:
    """It has more records than the checkpoint has rounds."""
    run(tmp_path)
    shutil.copy(tmp_path / "previous.safetensors", tmp_path / "checkpoint.safetensors")
    assert len(read(tmp_path).records) == 3


@pytest.mark.parametrize("lost", ["records.jsonl", "config.toml", "environment.json", "fleet.json"])
def test_a_lost_file_is_named(lost: str, tmp_path: Path) -> None:
    run(tmp_path / "a")
    (tmp_path / "a" / lost).unlink()
    result = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "r.html")])
    assert isinstance(result.exception, CommunisError), result.exception
    assert lost in str(result.exception)


@pytest.mark.slow
@pytest.mark.parametrize("room", ["scores", "links", "log"])
def test_a_lost_table_is_named(room: str, tmp_path: Path) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    (tmp_path / f"{room}.arrows").unlink()
    with pytest.raises(CommunisError, match=rf"{room}\.arrows: is gone.*round 1.*3 rounds"):
        read(tmp_path)
    with pytest.raises(CommunisError, match=rf"{room}\.arrows: is gone"):
        run(tmp_path, rounds=4, privacy=True, method="fedavg")


@pytest.mark.parametrize("room", ["scores", "links", "log"])
def test_a_table_that_was_cut_is_named(room: str, tmp_path: Path) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    path = tmp_path / f"{room}.arrows"
    os.truncate(path, block_of(path, 2).end - 1)
    with pytest.raises(CommunisError, match=rf"{room}\.arrows: ends too early.*round 2.*2 rounds"):
        read(tmp_path)
    with pytest.raises(CommunisError, match=rf"{room}\.arrows: ends too early"):
        run(tmp_path, rounds=4, privacy=True, method="fedavg")


def test_rows_of_another_round_are_named(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "links.arrows"
    one, two = block_of(path, 1), block_of(path, 2)
    assert one.length == two.length
    data = path.read_bytes()
    first = data[one.start : one.end]
    path.write_bytes(data[: two.start] + first + data[two.end :])
    with pytest.raises(CommunisError, match=r"links\.arrows: is damaged, or .* round 2"):
        read(tmp_path).rows("links")


def test_rows_that_no_record_names_are_overwritten(tmp_path: Path) -> None:
    """A kill between the rows and the record of a round leaves some."""
    run(tmp_path / "whole", rounds=4)
    run(tmp_path / "run")
    for name in ("scores", "links", "log"):
        with (tmp_path / "run" / f"{name}.arrows").open("ab") as file:
            file.write(b"of a round that did not end")
    assert len(read(tmp_path / "run").rows("scores")) > 0
    run(tmp_path / "run", rounds=4)
    found, expected = content(tmp_path / "run"), content(tmp_path / "whole")
    assert found.pop("config.toml") != expected.pop("config.toml")  # it was to end after 3 rounds
    assert found == expected


def test_a_disk_that_was_full_leaves_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round is done again in the same process, once there is room."""
    run(tmp_path / "whole", rounds=4)

    def full(path: Path, text: str) -> None:
        raise CommunisError(f"{path}: no space left")

    begun = Run(
        mixed_fleet(seed=0),
        make("fedper"),
        Plan(rounds=4, workers=1),
        folder=tmp_path / "run",
        config=(tmp_path / "whole" / "config.toml").read_text(),
    )
    with begun:
        records = iter(begun)
        next(records)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "append", full)
            with pytest.raises(CommunisError, match="no space left"):
                next(records)
        list(begun)
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_tables_are_streams_that_arrow_reads(tmp_path: Path) -> None:
    run(tmp_path)
    with pa.ipc.open_stream(tmp_path / "scores.arrows") as stream:
        found = stream.read_all()
    assert found.cast(tables.SCHEMAS["scores"]).equals(RunFolder(tmp_path).scores())


def test_a_folder_with_a_file_per_round_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    records = records_in(tmp_path)
    for record in records:
        record["tables"] = dict.fromkeys(record["tables"], "0" * 32)
    write_records(tmp_path, records)
    with pytest.raises(CommunisError, match=r"records\.jsonl: was written by a version before for"):
        read(tmp_path)


def test_a_log_without_the_price_of_a_round_is_refused(tmp_path: Path) -> None:
    """Also if its digest is right."""
    run(tmp_path, privacy=True, method="fedavg")
    path = tmp_path / "log.arrows"
    forge_rows(path, 2, rows_of(path, 2).slice(0, 0))
    with pytest.raises(CommunisError, match="does not say what round 2 cost in privacy"):
        run(tmp_path, rounds=4, privacy=True, method="fedavg")


@pytest.mark.slow
def test_no_bit_of_a_table_can_change(tmp_path: Path) -> None:
    """Flipped bits would hide rows, or crash the process. Every seventh bit, so that all bytes are
    tried; what the file begins with is not read."""
    run(tmp_path, rounds=1)
    path = tmp_path / "scores.arrows"
    data = path.read_bytes()
    for bit in range(8 * block_of(path, 1).start, 8 * len(data), 7):
        damaged_data = bytearray(data)
        damaged_data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged_data))
        with pytest.raises(CommunisError, match=r"scores\.arrows: is damaged"):
            RunFolder(tmp_path).scores()


EVERY_KIND = [
    "checkpoint.safetensors",
    "clients/000001-000003.safetensors",
    "environment.json",
    "fleet.json",
    "privacy.json",
    "records.jsonl",
    "scores.arrows",
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no such pipes")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path, whole: list[Path]) -> None:
    private = whole[1]
    for path in sorted(path for path in private.rglob("*") if path.is_file()):
        folder = tmp_path / "run"
        shutil.copytree(private, folder)
        place = folder / path.relative_to(private)
        place.unlink()
        os.mkfifo(place)
        assert look(folder) in ("ran", "refused"), place
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_file_of_another_run_is_refused(name: str, tmp_path: Path) -> None:
    """Two seeds write files of the same names and sizes, with good digests."""
    run(tmp_path / "a", privacy=True)
    run(tmp_path / "b", privacy=True, seed=1)
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    (tmp_path / "a" / "previous.safetensors").unlink()
    said = "another experiment" if name == "checkpoint.safetensors" else name
    with pytest.raises(CommunisError, match=said):
        read_all(tmp_path / "a")


def read_all(folder: Path) -> None:
    """Resumes a run, then reads every file of it."""
    run(folder, rounds=4, privacy=True)
    found = read(folder)
    found.rows("scores")
    privacy_verdict(found)
    assert found.environment


def test_the_private_state_of_another_client_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    own, other = (tmp_path / "clients" / f"00000{i}-000003.safetensors" for i in (0, 1))
    shutil.copy(other, own)
    (tmp_path / "previous.safetensors").unlink()
    with pytest.raises(
        CommunisError, match=r"000000-000003\.safetensors.* client 0 is damaged, or"
    ):
        run(tmp_path, rounds=4)


@pytest.mark.slow
def test_files_that_do_not_belong_to_a_run_are_left_alone(tmp_path: Path) -> None:
    """Such as synchronisation tools and finders leave."""
    run(tmp_path / "whole", rounds=4)
    run(tmp_path / "run")
    table = tmp_path / "run" / "scores.arrows"
    state = tmp_path / "run" / "clients" / "000001-000003.safetensors"
    strays = [
        table.with_name("scores (1).arrows"),
        table.with_name("._scores.arrows"),
        state.with_name("000001-000003 (1).safetensors"),
        state.with_name("copy.safetensors"),
    ]
    for stray in strays:
        stray.write_bytes(b"not of this run")
    run(tmp_path / "run", rounds=4)
    assert all(stray.read_bytes() == b"not of this run" for stray in strays)
    for stray in strays:
        stray.unlink()
    found, expected = content(tmp_path / "run"), content(tmp_path / "whole")
    assert found.pop("config.toml") != expected.pop("config.toml")  # it was to end after 3 rounds
    assert found == expected


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="links need rights")
@pytest.mark.parametrize("name", ["config.toml", "fleet.json", "privacy.json", "records.jsonl"])
def test_a_link_in_a_foreign_folder_is_not_followed(name: str, tmp_path: Path) -> None:
    """What is written first has a name that anybody can guess."""
    outside = tmp_path / "mine.txt"
    outside.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / f"{name}.partial").symlink_to(outside)
    run(folder)
    assert outside.read_text() == "mine"


def stated(folder: Path) -> str:
    """All that the JSON files and the records of a folder say."""
    found = read(folder)
    return json.dumps([found.fleet, found.privacy, found.environment, str(found.records)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fleet.json", "privacy.json", "environment.json", "records.jsonl"]
)
def test_a_flipped_bit_is_found_or_says_the_same(name: str, tmp_path: Path) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    whole, path, rng = stated(tmp_path), tmp_path / name, np.random.default_rng(4)
    data, refused = path.read_bytes(), 0
    for _ in range(60):
        path.write_bytes(data)
        flipped(path, rng)
        said = ""
        try:
            assert stated(tmp_path) == whole
        except CommunisError as error:
            said = str(error)
        assert not said or name in said
        refused += bool(said)
    assert refused > 30  # blanks and the like may be others


@pytest.fixture
def gaps(tmp_path: Path) -> Path:
    """A run with a sensor that was missing at times."""
    fleet = Fleet.of(lacking())
    config = 'seed = 0\n[method]\nname = "fedavg"\n[run]\nrounds = 1\n[data]\nname = "made"\n'
    plan = Plan(rounds=1, workers=1, eval_every=0)
    with Run(fleet, make("fedavg"), plan, folder=tmp_path / "gaps", config=config) as made:
        list(made)
    return tmp_path / "gaps"


def test_a_trace_of_another_run_is_named(gaps: Path) -> None:
    path = gaps / "availability.parquet"
    found = read(gaps).trace
    assert found is not None
    replace(found, end=found.end + 0.5).save(path)
    with pytest.raises(
        CommunisError, match=r"availability\.parquet: .*digest that fleet\.json has"
    ):
        read(gaps).trace  # noqa: B018 - reading is what is tested
    path.unlink()
    with pytest.raises(CommunisError, match=r"availability\.parquet: there is no such trace"):
        read(gaps).trace  # noqa: B018 - reading is what is tested


def test_a_trace_of_fewer_clients_is_named_without_a_digest(gaps: Path) -> None:
    """Older folders have none."""
    found = read(gaps)
    assert found.trace is not None
    older = {key: value for key, value in found.fleet.items() if key != "availability"}
    disk.write_json(gaps / "fleet.json", older)
    replace(found.trace, seconds=found.trace.seconds[:1]).save(gaps / "availability.parquet")
    result = CliRunner().invoke(app, ["report", str(gaps), "-o", str(gaps / "r.html")])
    assert isinstance(result.exception, CommunisError), result.exception
    assert "availability.parquet: not as this version writes it (it is of 1 clients" in str(
        result.exception
    )


def test_the_content_of_another_file_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    shutil.copy(tmp_path / "fleet.json", tmp_path / "environment.json")
    with pytest.raises(CommunisError, match=r"environment\.json: it is damaged, edited or another"):
        read(tmp_path).environment  # noqa: B018 - reading is what is tested


def test_files_of_older_versions_have_no_digest(tmp_path: Path) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    whole = json.loads(stated(tmp_path))
    for name in ("fleet.json", "privacy.json", "environment.json"):
        content = json.loads((tmp_path / name).read_text())
        content.pop("experiment", None)
        assert content.pop("digest").startswith("blake2b:")
        (tmp_path / name).write_text(json.dumps(content))
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    for record in records:
        assert record.pop("digest").startswith("blake2b:")
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    del whole[0]["experiment"]
    assert json.loads(stated(tmp_path)) == whole


def test_a_previous_checkpoint_of_another_run_is_not_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "one", method="fedavg")
    run(tmp_path / "other", method="fedprox")
    shutil.copy(
        tmp_path / "other" / "checkpoint.safetensors", tmp_path / "one" / "previous.safetensors"
    )
    (checkpoint,) = RunFolder(tmp_path / "one").load(RunFolder(tmp_path / "one").experiment)
    assert checkpoint.round == 3
    assert "previous.safetensors is a checkpoint of another experiment; going on" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["privacy.json", "environment.json", "records.jsonl"])
def test_a_digest_cannot_be_removed(name: str, tmp_path: Path) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    lines = [json.loads(line) for line in lines_of(tmp_path / name)]
    for line in lines:
        del line["digest"]
    (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(
        CommunisError, match=rf"{name}.*the digest that was written with it is missing"
    ):
        stated(tmp_path)


def lines_of(path: Path) -> list[str]:
    text = path.read_text("utf-8")
    return text.splitlines() if path.suffix == ".jsonl" else [text]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", 'name = "a"\nseed = 0\n', "[run]\nrounds = 3\n"])
def test_lost_settings_are_not_the_default_experiment(text: str, tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "config.toml").write_text(text)
    result = CliRunner().invoke(app, ["resume", str(tmp_path)])
    assert isinstance(result.exception, CommunisError), result.exception
    assert "config.toml: not the settings of a run" in str(result.exception)


def test_a_log_that_lost_a_round_is_refused(tmp_path: Path) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    (tmp_path / "log.arrows").unlink()
    with pytest.raises(CommunisError, match=r"log\.arrows: is gone"):
        run(tmp_path, rounds=4, privacy=True, method="fedavg")


@pytest.mark.slow
def test_a_run_without_its_last_checkpoint_is_not_finished(tmp_path: Path) -> None:
    from communis.run.config import load

    arguments = ["run", "synthetic", "--into", str(tmp_path), "--name", "a"]
    small = ["--set", "run.rounds=2", "--set", "run.workers=1", "--set", "run.eval_every=2"]
    assert CliRunner().invoke(app, [*arguments, *small]).exit_code == 0
    folder = tmp_path / "a"
    job = Job(load(str(folder / "config.toml")), folder)
    assert job.finished
    (folder / "checkpoint.safetensors").unlink()
    assert not job.finished


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """By another process."""
    code = (
        "import sys; from pathlib import Path; from communis.core.claim import Claim\n"
        "claim = Claim(Path(sys.argv[1])); print('claimed', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"claimed"
        yield
        assert other.stdin is not None
        other.stdin.close()


@pytest.mark.slow
def test_a_folder_in_use_is_not_removed(tmp_path: Path) -> None:
    """Nor are those of the same comparison that nobody uses."""
    methods = ["fedavg", "local"]
    arguments = ["compare", *methods, "--on", "synthetic", "--seeds", "1", "--into", str(tmp_path)]
    small = ["--name", "a", "--set", "run.rounds=1", "--set", "run.workers=1"]
    assert CliRunner().invoke(app, [*arguments, *small]).exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")}
    assert [path.parent.parent.name for path in sorted(before)] == methods
    for folder in (tmp_path / "a" / "local" / "seed0", tmp_path / "a"):
        with in_use(folder):
            result = CliRunner().invoke(app, [*arguments, *small, "--fresh"])
            assert isinstance(result.exception, CommunisError)
            assert f"{folder}: another process is working on" in str(result.exception)
        now = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")}
        assert now == before
    assert CliRunner().invoke(app, [*arguments, *small, "--fresh"]).exit_code == 0
    now = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")}
    assert now.keys() == before.keys()
    assert now != before
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_a_folder_whose_name_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    """Its files are sound, so nobody is told to begin anew."""
    run(tmp_path / "sound", rounds=1)
    strange = tmp_path / os.fsdecode(b"a\xffb")
    (tmp_path / "sound").rename(strange)
    for look_at in (lambda: run(strange, rounds=1), lambda: read(strange)):
        with pytest.raises(CommunisError, match=r"this name is not UTF-8.*; rename it"):
            look_at()


def test_checkpoints_hold_all_kinds_of_numbers(tmp_path: Path) -> None:
    """Also those that NumPy has not."""
    folder = RunFolder(tmp_path)
    kinds = (torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int8)
    tensors = {str(kind): torch.tensor([[0, 1], [1, 0]]).to(kind) for kind in kinds}
    tensors |= {STATES: torch.tensor(3), "none": torch.zeros(0, 2)}
    folder.save(Checkpoint(1, "an experiment", tensors))
    found = folder.last().tensors
    assert all(torch.equal(found[key], tensor) for key, tensor in tensors.items())
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(disk.DamagedError, match="does not match its digest"):
        folder.last()


def flipped(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(bytes(data))


def cut(path: Path, rng: np.random.Generator) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(rng.integers(len(data)))])


def gone(path: Path, rng: np.random.Generator) -> None:
    path.unlink()


def refusal(folder: Path) -> str:
    """Why the run is not continued; empty if it is."""
    try:
        run(folder, rounds=4)
    except CommunisError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flipped, cut, gone])
def test_damage_is_found_or_does_no_harm(
    damage: Callable[[Path, np.random.Generator], None], tmp_path: Path
) -> None:
    """Of checkpoints, private states and records: the run is refused by name, or goes on to the
    numbers it would have had."""
    run(tmp_path / "whole", rounds=4)
    expected = content(tmp_path / "whole")
    rng = np.random.default_rng(3)
    outcomes = {"refused": 0, "the same": 0}
    for number in range(FLIPS // 3):
        folder = tmp_path / f"{number}"
        run(folder, rounds=3)
        relied = ("checkpoint.safetensors", "previous.safetensors", "records.jsonl")
        files = [folder / name for name in relied] + sorted((folder / "clients").iterdir())
        hurt = files[int(rng.integers(len(files)))]
        damage(hurt, rng)
        said = refusal(folder)
        if said:
            assert str(folder) in said
            outcomes["refused"] += 1
        else:
            found = content(folder)
            scores = json.dumps(found["records.jsonl"])
            assert scores == json.dumps(expected["records.jsonl"]), hurt
            assert found["checkpoint.safetensors"] == expected["checkpoint.safetensors"], hurt
            outcomes["the same"] += 1
    assert outcomes["the same"] > 0, outcomes


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "scores.arrows"
    hurt = bytearray(path.read_bytes())
    hurt[block_of(path, 2).end - 9] ^= 1
    path.write_bytes(hurt)
    (tmp_path / "config.toml").write_text(
        'seed = 0\n[method]\nname = "fedper"\n[run]\nrounds = 3\n'
    )
    with pytest.raises(CommunisError, match=r"scores\.arrows: is damaged, or .* of round 2"):
        collect([tmp_path])[0].scores  # noqa: B018 - reading is what is tested


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b"\xff\xfe nonsense"),
        ("config.toml", b"seed = 1\n"),
        ("config.toml", b'seed = 1\n[method]\nname = "a"\n[run]\nrounds = "many"\n'),
        ("config.toml", b"a = " + b"[" * 5000),
        ("config.toml", b"seed = " + b"9" * 5000),
        ("fleet.json", b"\xff"),
        ("fleet.json", b"[]"),
        ("fleet.json", b'{"clients": 3'),
        ("privacy.json", b"\xff"),
        ("privacy.json", b"nothing"),
        ("records.jsonl", b'{"round": 1}\n{"round": 2}\n'),
        ("records.jsonl", b'{"round": 1, "of": "a newer version"}\n{}\n'),
        ("records.jsonl", b"\xff\xff\n\xff\n"),
        ("scores.arrows", b"PAR1"),
        ("scores.arrows", b""),
        ("config.toml", b'seed = 1\n[method]\nname = "a"\n[run]\nrounds = inf\n'),
        ("config.toml", b'seed = 1\n[method]\nname = "a"\n[run]\neval_every = "x"\n'),
        ("environment.json", b"{"),
        ("environment.json", b"[" * 200_000),
        ("privacy.json", b"[]"),
        ("privacy.json", b"null"),
        ("privacy.json", b"[" * 200_000),
        ("fleet.json", b'{"labels": 3, "clients": [], "pooled": false}'),
        ("fleet.json", b'{"labels": [], "clients": [{"id": 7}], "pooled": false}'),
        ("fleet.json", b'{"labels": [], "clients": [], "pooled": false, "attackers": 3}'),
        ("fleet.json", b'{"labels": [], "clients": [], "pooled": false, "notes": [{}]}'),
        ("fleet.json", b'{"labels": [], "clients": [], "pooled": false, "brought": 1}'),
        ("fleet.json", b'{"labels": [], "clients": [], "pooled": false, "evaluation": {"of": 2}}'),
    ],
)
def test_a_folder_that_cannot_be_read_is_one_line(
    name: str, content: bytes, tmp_path: Path
) -> None:
    """Of the command that reads it: no traceback, and the file is named."""
    run(tmp_path / "a")
    (tmp_path / "a" / name).write_bytes(content)
    result = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "r.html")])
    assert isinstance(result.exception, CommunisError), result.exception
    assert name.partition("/")[0] in str(result.exception)
    assert "\n" not in str(result.exception).strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bytes_up", "many"),
        ("seconds", [1]),
        ("loss", {}),
        ("cohort", ["a"]),
        ("scores", {"a": []}),
    ],
)
def test_a_record_with_other_values_is_one_line(key: str, value: object, tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1][key] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(CommunisError, match=r"records\.jsonl"):
        read(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "column", "values"),
    [
        ("scores", "own", pa.nulls(1, pa.bool_())),
        ("scores", "client", pa.array([10**6])),
        ("scores", "support", pa.array([-1])),
        ("links", "sender", pa.array([10**17])),
        ("links", "round", pa.nulls(1, pa.int64())),
        ("log", "round", pa.nulls(1, pa.int32())),
        ("clock", "up", pa.array([float("inf")])),
        ("clock", "joules", pa.array([float("nan")])),
    ],
)
def test_a_table_with_other_values_is_one_line(
    room: str, column: str, values: pa.Array, tmp_path: Path
) -> None:
    run(tmp_path, privacy=True, method="fedavg", devices=("relief-full",) * 5)
    path = tmp_path / f"{room}.arrows"
    table = rows_of(path, 3)
    row = pa.concat_arrays([values] * table.num_rows)
    forge_rows(path, 3, table.set_column(table.column_names.index(column), column, row))
    with pytest.raises(CommunisError, match=room) as caught:
        read(tmp_path).rows(room)
    assert str(caught.value).isprintable()


def test_a_run_that_was_made_in_python_can_be_shown(tmp_path: Path) -> None:
    """Its configuration need not say how it went."""
    run(tmp_path / "a")
    (tmp_path / "a" / "config.toml").write_text('seed = 0\n[method]\nname = "fedper"\n')
    result = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "r.html")])
    assert result.exit_code == 0, result.exception


def test_counts_that_are_none_are_refused(tmp_path: Path) -> None:
    """Scores of all windows together are made of counts."""
    run(tmp_path)
    path = tmp_path / "scores.arrows"
    for round in (1, 2, 3):
        table = rows_of(path, round)
        for name in ("value", "support"):
            column = table.column_names.index(name)
            table = table.set_column(column, name, pa.array([0] * table.num_rows))
        forge_rows(path, round, table)
    with pytest.raises(CommunisError, match="some are no numbers of windows"):
        read(tmp_path).final("macro_f1_pooled")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [("mode", "no such"), ("clients", 10**12), ("tensors", [{}]), ("settings", {}), ("leaks", 3)],
)
def test_an_account_by_which_nothing_can_be_reckoned(
    key: str, value: object, tmp_path: Path
) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(CommunisError, match=r"privacy\.json"):
        privacy_verdict(read(tmp_path))


def test_a_price_of_privacy_that_is_no_number_is_refused(tmp_path: Path) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    path = tmp_path / "log.arrows"
    table = rows_of(path, 2)
    nothing = pa.array([float("nan")] * table.num_rows)
    forge_rows(path, 2, table.set_column(table.column_names.index("value"), "value", nothing))
    with pytest.raises(CommunisError, match=r"log: privacy/mu is nan"):
        privacy_verdict(read(tmp_path))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what the values make of arithmetic
@settings(max_examples=DAMAGED, derandomize=True, deadline=None, database=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_damaged_folders_are_read_or_refused(
    seed: int, whole: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """By report, verdict and resume, whatever happened to one of their files."""
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("a") / "run"
    shutil.copytree(whole[int(rng.integers(len(whole)))], folder)
    hurt = damaged(folder, rng, forged=bool(rng.integers(2)))
    assert look(folder) in ("ran", "refused"), hurt


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of several kinds of runs."""
    kinds: list[dict[str, str]] = [
        {"method.name": '"fedper"', "run.pairs": "true"},
        {"privacy.mode": '"local"', "privacy.noise": "2.0"},
        {"attack.kind": '"sign_flip"', "attack.count": "1", "topology.kind": '"ring"'},
        {"fleet.roles": '[{modalities = ["m0"], count = 4, device = "relief-full"}]'},
    ]
    found = []
    for kind in kinds:
        folder = tmp_path_factory.mktemp("whole")
        text = "".join(f"{key} = {value}\n" for key, value in {**BASE, **kind}.items())
        assert attempt(text, folder) == "ran"
        found.append(folder / "run")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["local", "central"])
def test_no_loss_of_records_and_logs_lowers_epsilon(mode: str, tmp_path: Path) -> None:
    """Whichever lines and files are gone: the verdict refuses, promises nothing, or says what the
    rounds cost. The checkpoint has an account of its own."""
    whole = tmp_path / "whole"
    noisy = PrivacyConfig(mode=mode, noise=2.0)  # type: ignore[arg-type]
    config = 'seed = 0\n[method]\nname = "fedavg"\n[run]\nrounds = 3\n[data]\nname = "made"\n'
    method = make("fedavg", uniform=True)
    plan = Plan(rounds=3, workers=1, eval_every=0, participation=0.8)
    with Run(mixed_fleet(), method, plan, folder=whole, config=config, privacy=noisy) as made:
        list(made)
    honest = privacy_verdict(read(whole))
    assert honest.private, honest.line
    lines = (whole / "records.jsonl").read_text().splitlines(keepends=True)
    rounds = range(1, 4)
    promised = 0
    for kept, logged in product(*[[set(c) for n in range(4) for c in combinations(rounds, n)]] * 2):
        folder = tmp_path / f"{sorted(kept)}{sorted(logged)}"
        shutil.copytree(whole, folder)
        text = "".join(line for round, line in enumerate(lines, 1) if round in kept)
        (folder / "records.jsonl").write_text(text)
        log = folder / "log.arrows"
        data = bytearray(log.read_bytes())
        for round in rounds:
            block = block_of(whole / "log.arrows", round)
            if round not in logged:
                data[block.start : block.end] = bytes(block.length)
        log.write_bytes(data)
        found = None
        with suppress(CommunisError):  # a gap in the records, or none left
            found = privacy_verdict(read(folder))
        if found is not None and found.private:
            promised += 1
            assert found.epsilon >= honest.epsilon, (kept, logged, found.line)
    assert promised >= 1


def test_lost_checkpoints_are_named(tmp_path: Path) -> None:
    """To begin anew would remove all records."""
    run(tmp_path)
    before = (tmp_path / "records.jsonl").read_bytes()
    for name in ("checkpoint", "previous"):
        (tmp_path / f"{name}.safetensors").unlink()
    with pytest.raises(CommunisError, match=r"checkpoint\.safetensors: is gone, .* of 3 rounds"):
        run(tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_an_older_checkpoint_without_its_private_states_costs_nothing(tmp_path: Path) -> None:
    """Later rounds were removed before anybody saw that it could not be continued."""
    run(tmp_path / "run", rounds=4, keep=False)  # those of the best round stay
    run(tmp_path / "older", rounds=2, keep=False)
    shutil.copy(tmp_path / "older" / "checkpoint.safetensors", tmp_path / "run")
    previous = (tmp_path / "run" / "previous.safetensors").read_bytes()
    (tmp_path / "run" / "previous.safetensors").unlink()
    before = content(tmp_path / "run")
    with pytest.raises(CommunisError, match=r"000002\.safetensors: the private state .* is gone"):
        run(tmp_path / "run", rounds=4)
    assert content(tmp_path / "run") == before
    (tmp_path / "run" / "previous.safetensors").write_bytes(previous)
    assert run(tmp_path / "run", rounds=4).round == 4


def test_a_lost_account_of_privacy_is_named(tmp_path: Path) -> None:
    """A run that goes on would name what leaks from then on only."""
    run(tmp_path, privacy=True, method="fedavg")
    (tmp_path / "privacy.json").unlink()
    with pytest.raises(CommunisError, match=r"privacy\.json: is gone, so what left"):
        run(tmp_path, rounds=4, privacy=True, method="fedavg")
    with pytest.raises(CommunisError, match=r"privacy\.json: is gone, so what left"):
        privacy_verdict(read(tmp_path))


def test_an_older_account_of_privacy_is_refused(tmp_path: Path) -> None:
    run(tmp_path, privacy=True, method="fedavg")
    path = tmp_path / "privacy.json"
    content = json.loads(path.read_text())
    content["arrays"] = content["arrays"][1:]
    path.write_text(json.dumps(content))
    seal(path)
    with pytest.raises(CommunisError, match=r"privacy\.json names \d+ arrays .* an older copy"):
        run(tmp_path, rounds=4, privacy=True, method="fedavg")
    found = privacy_verdict(read(tmp_path))
    assert not found.private
    assert "privacy.json is an older copy: more left than it names" in found.reasons


def test_the_digest_of_the_fleet_cannot_be_removed(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "fleet.json"
    content = json.loads(path.read_text())
    del content["digest"]
    content["clients"][0]["windows"] = 1
    path.write_text(json.dumps(content))
    with pytest.raises(CommunisError, match=r"fleet\.json: .* digest .* is missing"):
        read(tmp_path).fleet  # noqa: B018 - reading is what is tested


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights")
@pytest.mark.parametrize("name", ["lock", "records.jsonl", "clients", "learned", "scores.arrows"])
def test_a_link_that_leads_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    """What is written there would be written elsewhere, and half-written files removed."""
    outside = tmp_path / "mine"
    outside.mkdir()
    (outside / "download.partial").write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    file = name not in ("clients", "learned")
    (folder / name).symlink_to(outside / "not yet" if file else outside)
    with pytest.raises(CommunisError, match=rf"run/{name}: is a link"):
        run(folder)
    assert [path.name for path in outside.iterdir()] == ["download.partial"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights")
@pytest.mark.parametrize("under_way", [False, True])
def test_a_file_that_a_table_leads_to_keeps_its_content(under_way: bool, tmp_path: Path) -> None:
    """It was cut to the length of the table."""
    folder = tmp_path / "run"
    outside = tmp_path / "mine"
    outside.write_bytes(bytes(100_000))
    made = Run(mixed_fleet(), make("fedper"), Plan(rounds=3, workers=1), folder=folder)
    with made:
        for record in made:
            if record.round == 2:
                (folder / "scores.arrows").unlink()
                (folder / "scores.arrows").symlink_to(outside)
                break
        if under_way:
            with pytest.raises(CommunisError, match=r"scores\.arrows: "):
                list(made)
    with pytest.raises(CommunisError, match=r"scores\.arrows: is a link"):
        Run(mixed_fleet(), make("fedper"), Plan(rounds=3, workers=1), folder=folder)
    assert outside.read_bytes() == bytes(100_000)


@pytest.mark.parametrize("left", ["nothing", "half"])
def test_a_table_that_is_lost_under_way_stops_the_run(left: str, tmp_path: Path) -> None:
    """Zeros took the place of its rows, and the run went on to its end."""
    path = tmp_path / "links.arrows"
    made = Run(mixed_fleet(), make("fedper"), Plan(rounds=3, workers=1), folder=tmp_path)
    with made:
        rounds = iter(made)
        next(rounds)
        if left == "half":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.unlink()
        with pytest.raises(CommunisError, match=r"links\.arrows: has \d+ bytes, but \d+ were"):
            next(rounds)
    assert made.round == 1


@pytest.mark.parametrize("left", ["nothing", "half"])
def test_records_that_are_lost_under_way_stop_the_run(left: str, tmp_path: Path) -> None:
    """The run went on to its end, and then its results were refused."""
    path = tmp_path / "records.jsonl"
    made = Run(mixed_fleet(), make("fedper"), Plan(rounds=3, workers=1), folder=tmp_path)
    with made:
        rounds = iter(made)
        next(rounds)
        if left == "half":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.unlink()
        with pytest.raises(CommunisError, match=r"records\.jsonl: has \d+ bytes, but this run"):
            next(rounds)
    assert made.round == 1


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="needs a device that ends at once")
def test_a_device_in_place_of_the_records_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").symlink_to("/dev/null")
    with pytest.raises(CommunisError, match=r"records\.jsonl: cannot be read \(a pipe or a dev"):
        RunFolder(tmp_path).records()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights")
def test_a_run_that_is_a_link_is_not_removed(tmp_path: Path) -> None:
    run(tmp_path / "run")
    before = content(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(CommunisError, match="link: is a link, so its results are not removed"):
        RunFolder(tmp_path / "link").remove()
    assert content(tmp_path / "run") == before
    assert (tmp_path / "link").is_symlink()


def test_private_states_of_clients_that_there_are_not_are_left_alone(tmp_path: Path) -> None:
    run(tmp_path)
    stray = tmp_path / "clients" / "000099-000003.safetensors"
    stray.write_bytes(b"not of this run")
    run(tmp_path, rounds=4)
    assert stray.read_bytes() == b"not of this run"


def test_garbled_records_before_the_first_checkpoint_are_no_obstacle(tmp_path: Path) -> None:
    """A power cut may leave anything in what was not synced."""
    (tmp_path / "records.jsonl").write_bytes(b"\0\0\0\n{")
    made = Run(
        mixed_fleet(),
        make("fedavg"),
        Plan(rounds=2, workers=1, checkpoint_every=2),
        folder=tmp_path,
    )
    with made:
        assert [record.round for record in made] == [1, 2]
